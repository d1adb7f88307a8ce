"""HTTP in front of one llama-server, which shares the beginnings of prompts through kvcobrad.

A request for a completion gets a slot; what kvcobrad has of its prompt is restored there; the request goes on to the server, with the slot's
number; after the answer the new chunks are saved and published. Everything else, and every request that cannot be helped, is forwarded
untouched. Answers are passed on as they come. API keys go to the server and into no log.
"""
from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import logging
import re
import socket
import threading
import urllib.parse
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .sharing import LOG, Sharing, Slots, SlotState

COMPLETIONS = ("/completion", "/completions", "/v1/completions")
CHATS = ("/chat/completions", "/v1/chat/completions")
HOP_BY_HOP = ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
              "content-length", "host")
BODY_BYTES_MAX = 256 << 20
PIECE_BYTES = 1 << 16
TAIL_BYTES = 1 << 16  # of an answer, in which its timings are
CACHED = re.compile(rb'"cache_n"\s*:\s*(\d+)')
TIMEOUT_SECONDS = 3600.0
START_SECONDS = 2.0  # for an answer to the first question


class Upstream:
    """llama-server."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"--server {url} is not a URL such as http://127.0.0.1:8080")
        self.host, self.port, self.prefix = parts.hostname, parts.port or 80, parts.path.rstrip("/")

    def complaint(self) -> Optional[str]:
        """Why requests would fail now; None: the server answers."""
        try:
            with self.send("GET", "/health", None, {}, START_SECONDS) as answer:
                answer.read()
        except (OSError, http.client.HTTPException) as e:
            return f"llama-server at {self.host}:{self.port} does not answer yet ({e}): until then requests get status 502"
        return None

    @contextlib.contextmanager
    def send(self, method: str, path: str, body: Optional[bytes], headers: Dict[str, str],
             timeout: float = TIMEOUT_SECONDS) -> Iterator[http.client.HTTPResponse]:
        """One request over a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, self.prefix + path, body, {**headers, "Connection": "close"})
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any, headers: Dict[str, str]) -> Any:
        """A call with JSON. Raises RuntimeError unless the server accepts it."""
        data = None if body is None else json.dumps(body).encode()
        with self.send(method, path, data, {**headers, "Content-Type": "application/json"}) as answer:
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{method} {path.split('?')[0]}: status {answer.status}: {_sentence(text)}")
            return json.loads(text)


def _sentence(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text[:300].decode("utf-8", "replace").strip()


class Prompt:
    """A request that can be helped. @text: the prompt as the server's tokeniser gets it, or token ids."""

    def __init__(self, body: Dict[str, Any], tokens: List[int]) -> None:
        self.body = body
        self.tokens = tokens


class Proxy:
    def __init__(self, upstream: Upstream, sharing: Sharing) -> None:
        self.upstream = upstream
        self.sharing = sharing
        self._slots: Optional[Slots] = None
        self._lock = threading.Lock()

    # ---- one request ----

    def prompt_of(self, path: str, data: bytes, headers: Dict[str, str]) -> Optional[Prompt]:
        """None: the request is forwarded untouched."""
        if self.sharing.off is not None or path not in COMPLETIONS + CHATS:
            return None
        try:
            body = json.loads(data)
        except ValueError:
            return None
        if not isinstance(body, dict) or body.get("cache_prompt") is False or body.get("n", 1) != 1 or body.get("lora"):
            return None  # an adapter makes other keys and values
        tokens = self._tokens(path, body, headers)
        return Prompt(body, tokens) if tokens is not None and len(tokens) > 64 else None

    def _tokens(self, path: str, body: Dict[str, Any], headers: Dict[str, str]) -> Optional[List[int]]:
        if path in CHATS:
            if any(not isinstance(message.get("content"), (str, type(None))) for message in body.get("messages", [])):
                return None  # images and sounds have no tokens
            prompt = self.upstream.ask("POST", "/apply-template", body, headers)["prompt"]
        else:
            prompt = body.get("prompt")
        if isinstance(prompt, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt):
            return prompt
        if not isinstance(prompt, str) or "multimodal_data" in body:
            return None
        tokens: List[int] = self.upstream.ask("POST", "/tokenize", {"content": prompt, "add_special": True, "parse_special": True},
                                              headers)["tokens"]
        return tokens

    def slots(self, headers: Dict[str, str]) -> Slots:
        with self._lock:
            if self._slots is None:
                self._slots = Slots(int(self.upstream.ask("GET", "/props", None, headers)["total_slots"]))
            return self._slots

    def prepare(self, path: str, data: bytes, headers: Dict[str, str]) -> Tuple[bytes, Optional[Prompt], Optional[SlotState], int]:
        """The body to forward, and what finish() needs."""
        prompt: Optional[Prompt] = None
        slot: Optional[SlotState] = None
        restored = 0
        try:
            prompt = self.prompt_of(path, data, headers)
            if prompt is None:
                return data, None, None, 0
            wanted = prompt.body.get("id_slot")
            all_slots = self.slots(headers)
            if not isinstance(wanted, int) or not 0 <= wanted < len(all_slots):
                wanted = None
            slot = all_slots.take(prompt.tokens, wanted)
            ask = self._ask(headers)
            if self.sharing.learn(slot, ask):
                restored = self.sharing.fill(slot, prompt.tokens, ask)
            body = {**prompt.body, "id_slot": slot.number, "cache_prompt": True}
            return json.dumps(body).encode(), prompt, slot, restored
        except Exception as e:  # the server answers as without us
            self.sharing.say(f"a prompt is computed by llama-server alone: {getattr(e, 'strerror', None) or e}")
            if slot is not None:
                slot.tokens = []
                self._give_back(slot)
            return data, None, None, 0

    def _ask(self, headers: Dict[str, str]) -> Any:
        return lambda method, path, body: self.upstream.ask(method, path, body, headers)

    def _give_back(self, slot: SlotState) -> None:
        assert self._slots is not None
        self._slots.give_back(slot)

    def finish(self, prompt: Prompt, slot: SlotState, restored: int, tail: Optional[bytes], headers: Dict[str, str]) -> None:
        """After the answer. @tail: its end; None: it did not come whole."""
        try:
            slot.tokens = prompt.tokens[:restored]
            if tail is None:
                return
            slot.tokens = prompt.tokens
            found = CACHED.findall(tail)
            ask = self._ask(headers)
            self.sharing.note_cached(slot, restored, int(found[-1]) if found else None, ask)
            if self.sharing.off is None:
                self.sharing.publish(slot, prompt.tokens, ask)
        except Exception as e:
            slot.tokens = []
            self.sharing.say(f"a prompt was not published: {getattr(e, 'strerror', None) or e}")
        finally:
            self._give_back(slot)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 600
    proxy: Proxy  # of the class that serve() makes

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are the server's to log."""

    def _headers(self) -> Dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}

    def _body(self) -> Optional[bytes]:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            self.send_error(411, "a request needs a Content-Length here")
            return None
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            self.send_error(413, f"a request has at most {BODY_BYTES_MAX} bytes here")
            return None
        return self.rfile.read(int(length))

    def _serve(self) -> None:
        data = self._body()
        if data is None:
            self.close_connection = True
            return
        headers = self._headers()
        own = {name: value for name, value in headers.items() if name.lower() in ("authorization", "x-api-key")}
        path = urllib.parse.urlsplit(self.path).path
        prompt: Optional[Prompt] = None
        slot: Optional[SlotState] = None
        restored, tail = 0, None
        if self.command == "POST":
            data, prompt, slot, restored = self.proxy.prepare(path, data, own)
        try:
            tail = self._forward(data, headers)
        finally:
            if prompt is not None and slot is not None:
                self.proxy.finish(prompt, slot, restored, tail, own)

    def _forward(self, data: bytes, headers: Dict[str, str]) -> Optional[bytes]:
        """Passes the answer on as it comes. Returns the end of a whole one with status 200."""
        upstream, begun = self.proxy.upstream, False
        try:
            with upstream.send(self.command, self.path, data or None, headers) as answer:
                begun = True
                return self._pass_on(answer)
        except (OSError, http.client.HTTPException) as e:
            if begun:
                raise
            self.close_connection = True
            self.send_error(502, f"llama-server at {upstream.host}:{upstream.port} does not answer: {e}")
            return None

    def _pass_on(self, answer: http.client.HTTPResponse) -> Optional[bytes]:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.getheader("Content-Length")
        has_body = self.command != "HEAD" and answer.status not in (204, 304)
        if length is not None:
            self.send_header("Content-Length", length)
        elif has_body:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tail = b""
        for piece in self._pieces(answer) if has_body else ():
            self.wfile.write(piece if length is not None else b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            tail = (tail + piece)[-TAIL_BYTES:]
        if length is None and has_body:
            self.wfile.write(b"0\r\n\r\n")
        return tail if answer.status == 200 else None

    @staticmethod
    def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            piece = answer.read1(PIECE_BYTES)
            if not piece:
                return
            yield piece

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_HEAD = _serve


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away within an answer is no error of ours."""
        import sys
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError, socket.timeout)):
            LOG.error("a request failed: %s: %s", type(error).__name__, error)


def serve(proxy: Proxy, listen: str) -> Server:
    """A server at @listen, HOST:PORT, that is not running yet. Raises ValueError with what to do."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {listen} is not HOST:PORT, such as 127.0.0.1:8081")
    handler = type("BoundHandler", (Handler,), {"proxy": proxy})
    try:
        return Server((host.strip("[]"), int(port)), handler)
    except OSError as e:
        raise ValueError(f"cannot listen at {listen}: {e.strerror}") from None


logging.getLogger("kvcobra.llama").addHandler(logging.NullHandler())
