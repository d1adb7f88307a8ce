"""Stand-ins for llama-server (slots, slot files and completions, over HTTP) and for llama-cpp-python. Keys and values of a token depend on the token and its position."""
import http.server
import json
import os
import threading
import types
import urllib.parse

import numpy
import support

import kvcobra
from kvcobra.llama import slots, states

PIECES = 7  # of a streamed answer


def vectors(tokens, layer, side):
    rows = [numpy.random.default_rng((token, position, layer, side)).standard_normal((support.N_KV_HEADS, support.HEAD_DIM))
            for position, token in enumerate(tokens)]
    return numpy.array(rows, numpy.float32)


class Llama:
    """A stand-in for llama_cpp.Llama: what kvcobra.llama.Shared uses of it. @takes: whether it takes states."""

    def __init__(self, table, model_id, takes=True, logits_all=False, architecture="llama"):
        self.client = kvcobra.Client(False)
        self.model = kvcobra.Model(self.client, model_id, support.geometry(), table=table)
        self.metadata = {"general.architecture": architecture}
        self.model_path = "/none.gguf"
        self.takes, self._logits_all = takes, logits_all
        self._ctx = types.SimpleNamespace(ctx=self, kv_cache_clear=self.reset)
        self.input_ids = numpy.zeros(4096, numpy.intc)
        self.n_tokens = 0
        self.n_evaluated = 0

    def reset(self):
        self.n_tokens = 0

    def eval(self, tokens):
        self.input_ids[self.n_tokens:self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)
        self.n_evaluated += len(tokens)

    def generate(self, tokens, top_k=40, reset=True):
        held = min(slots.common(self.input_ids[:self.n_tokens].tolist(), tokens), len(tokens) - 1) if reset else self.n_tokens
        self.n_tokens = held
        self.eval(tokens[held:] if reset else tokens)
        for token in (7, 8, 9):
            yield token
            self.eval([token])

    def state(self):
        tokens = self.input_ids[:self.n_tokens].tolist()
        with kvcobra.Sequence(self.model, keys="after", pairs="interleaved") as sequence:
            for layer in range(support.N_LAYERS):
                sequence.append(layer, vectors(tokens, layer, 0), vectors(tokens, layer, 1))
            return states.write_state(sequence, states.Layout(1, 0, 0, 1), len(tokens))


def llama_cpp():
    """The module's functions of states."""
    def get_data(llm, memory, size, number):
        state = llm.state()
        memory[:len(state)] = state
        return len(state)

    def set_data(llm, memory, size, number):
        if not llm.takes:
            return 0
        llm.restored = states.check(llm.model, bytes(memory))[1]
        return size

    module = types.ModuleType("llama_cpp")
    module.llama_state_seq_get_size = lambda llm, number: len(llm.state())
    module.llama_state_seq_get_data, module.llama_state_seq_set_data = get_data, set_data
    return module


class LlamaServer:
    """@folder: --slot-save-path. @key: the API key that every request needs. @honest: False: a restore does nothing but say so."""

    def __init__(self, folder, table, model_id, n_slots=2, key=None, honest=True, version=slots.FILE_VERSION):
        self.folder, self.key, self.honest, self.version = folder, key, honest, version
        self.held = [[] for _ in range(n_slots)]
        self.computed, self.paths, self.bodies = [], [], []
        self.modes = []  # of the slot files that it wrote
        self._client = kvcobra.Client(False)
        self._model = kvcobra.Model(self._client, model_id, support.geometry(), table=table)
        self._lock = threading.Lock()
        handler = type("Bound", (Handler,), {"server_of_test": self})
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        self._client.close()

    def state(self, tokens):
        with kvcobra.Sequence(self._model, keys="after", pairs="interleaved") as sequence:
            for layer in range(support.N_LAYERS):
                sequence.append(layer, vectors(tokens, layer, 0), vectors(tokens, layer, 1))
            return states.write_state(sequence, states.Layout(len(self.held), 0, 0, 1), len(tokens))

    def slot(self, number, action, name):
        with self._lock:
            if action == "erase":
                self.held[number] = []
                return {"id_slot": number}
            path = os.path.join(self.folder, name)
            if action == "save":
                data = bytearray(slots.build(self.held[number], self.state(self.held[number])))
                data[4] = self.version
                with open(path, "wb") as file:
                    file.write(data)
                    self.modes.append(os.fstat(file.fileno()).st_mode & 0o777)
                return {"n_saved": len(self.held[number])}
            with open(path, "rb") as file:
                restored = slots.parse(file.read()).tokens
            if self.honest:
                self.held[number] = restored
            return {"n_restored": len(restored)}

    def complete(self, body):
        """Computes what the slot lacks."""
        with self._lock:
            tokens = body["prompt"] if isinstance(body.get("prompt"), list) else tokens_of(body.get("prompt") or template(body))
            number = body.get("id_slot", 0)
            cached = min(slots.common(self.held[number], tokens), len(tokens) - 1) if body.get("cache_prompt", True) else 0
            self.held[number] = list(tokens)
            self.computed.append(len(tokens) - cached)
            return {"content": "answer", "timings": {"cache_n": cached, "prompt_n": len(tokens) - cached}}


def tokens_of(text):
    return [ord(c) % 1000 for c in text]


def template(body):
    return "".join(f"<{m['role']}>{m['content']}" for m in body["messages"])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        server = self.server_of_test
        server.paths.append(self.path)
        self.answer({"total_slots": len(server.held)} if self.path == "/props" else {"path": self.path})

    def do_POST(self):
        server, parts = self.server_of_test, urllib.parse.urlsplit(self.path)
        data = self.rfile.read(int(self.headers["Content-Length"]))
        server.paths.append(self.path)
        server.bodies.append(data)
        if server.key is not None and self.headers.get("Authorization") != f"Bearer {server.key}":
            return self.answer({"error": {"message": "Invalid API Key"}}, 401)
        body = json.loads(data or b"{}")
        if parts.path == "/tokenize":
            return self.answer({"tokens": tokens_of(body["content"])})
        if parts.path == "/apply-template":
            return self.answer({"prompt": template(body)})
        if parts.path.startswith("/slots/"):
            action = urllib.parse.parse_qs(parts.query)["action"][0]
            try:
                return self.answer(server.slot(int(parts.path.split("/")[2]), action, body.get("filename")))
            except OSError as e:
                return self.answer({"error": {"message": str(e)}}, 400)
        if parts.path in ("/completion", "/v1/chat/completions"):
            value = server.complete(body)
            return self.stream(value) if body.get("stream") else self.answer(value)
        return self.answer({"path": self.path, "body": body})

    def stream(self, value):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(PIECES):
            piece = b"data: " + json.dumps(value if i == PIECES - 1 else {"content": str(i)}).encode() + b"\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
