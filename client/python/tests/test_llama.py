"""kvcobra.llama: slot files, architectures, and the proxy in front of a stand-in for llama-server, with a real kvcobrad."""
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request
from unittest import mock

import support
from llama_standin import PIECES, Llama, LlamaServer, llama_cpp

import kvcobra
from kvcobra.llama import Shared, gguf, pairs_of, slots
from kvcobra.llama.proxy import Proxy, Upstream, serve
from kvcobra.llama.sharing import Sharing, Slots

TEXT = "".join(chr(97 + i * i % 23) for i in range(700))


class SlotFiles(support.Case):
    def test_what_is_built_is_parsed(self):
        state = struct.pack("<IiIIiIi", slots.STATE_MAGIC, 3, 1, 1, 0, 1, 3) + bytes(20)
        self.assertEqual(slots.parse(slots.build([5, 6, 7], state)), ([5, 6, 7], state))

    def test_other_bytes_are_refused(self):
        good = slots.build([5, 6, 7], struct.pack("<IiIIiIi", slots.STATE_MAGIC, 0, 1, 1, 0, 1, 0))
        for n in range(len(good)):
            with self.assertRaises(slots.FormatError):
                slots.parse(good[:n])
        for at, words in ((0, "begins with"), (4, "version 5"), (12, "words of the slot file"), (20, "words of the slot file")):
            bad = bytearray(good)
            bad[at] ^= 1
            with self.assertRaisesRegex(slots.FormatError, words):
                slots.parse(bytes(bad))

    def test_folder(self):
        path = os.path.join(self.folder, "slots")
        with self.assertRaisesRegex(ValueError, "cannot open the folder.*mkdir -m 700"):
            slots.Folder(path)
        os.mkdir(path, 0o755)
        with self.assertRaisesRegex(ValueError, "chmod 700"):
            slots.Folder(path)
        os.chmod(path, 0o700)
        os.symlink(path, path + "-link")
        with self.assertRaisesRegex(ValueError, "cannot open"):
            slots.Folder(path + "-link")
        folder = slots.Folder(path)
        with self.assertRaisesRegex(ValueError, "another proxy"):
            slots.Folder(path)
        folder.write("a", b"x")
        self.assertEqual(os.stat(os.path.join(path, "a")).st_mode & 0o777, 0o600)
        folder.remove("a")
        folder.remove("a")
        os.symlink("/etc/passwd", os.path.join(path, "kvcobra-0"))
        for call in (lambda: folder.read("kvcobra-0"), lambda: folder.write("kvcobra-0", b"")):
            with self.assertRaises(OSError):
                call()
        folder.close()


class Architectures(support.Case):
    def write(self, data):
        path = os.path.join(self.folder, "m.gguf")
        with open(path, "wb") as file:
            file.write(data)
        return path

    def test_architecture(self):
        def text(s):
            return struct.pack("<Q", len(s)) + s

        values = [text(b"a") + struct.pack("<II", 4, 7), text(b"b") + struct.pack("<IIQ", 9, 8, 2) + text(b"x") + text(b"yy"),
                  text(b"c") + struct.pack("<IIQ3H", 9, 2, 3, 1, 2, 3), text(b"general.architecture") + struct.pack("<I", 8) + text(b"qwen3")]
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
        whole = head + b"".join(values)
        self.assertEqual(gguf.architecture(self.write(whole)), "qwen3")
        for n in range(len(whole)):
            with self.assertRaises(ValueError):
                gguf.architecture(self.write(whole[:n]))
        with self.assertRaisesRegex(ValueError, "does not say"):
            gguf.architecture(self.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + values[0]))

    def test_pairs(self):
        self.assertEqual((pairs_of("llama"), pairs_of("qwen3")), ("interleaved", "half-split"))
        with self.assertRaisesRegex(ValueError, "not known for the architecture 'new'"):
            pairs_of("new")


class SlotChoice(unittest.TestCase):
    def test_the_longest_beginning_then_the_oldest(self):
        s = Slots(3)
        a, b = s.take([1, 2]), s.take([1, 2])
        a.tokens, b.tokens = [1, 2, 3], [1]
        s.give_back(b)
        s.give_back(a)
        self.assertIs(s.take([1, 2, 9]), a)
        self.assertIs(s.take([9], wanted=b.number), b)
        taken = []
        waiting = threading.Thread(target=lambda: taken.append(s.take([7], wanted=a.number)))
        waiting.start()
        waiting.join(0.1)
        self.assertEqual(taken, [])
        s.give_back(a)
        waiting.join(support.TIMEOUT_S)
        self.assertEqual(taken, [a])


class InPython(support.Case):
    """kvcobra.llama.Shared with a stand-in for llama-cpp-python."""

    PROMPT = [i * i % 997 for i in range(700)]

    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon("--pool-bytes=256M", "--arena-bytes=8M")
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.daemon.activate(self.table)
        patch = mock.patch.dict(sys.modules, {"llama_cpp": llama_cpp()})
        patch.start()
        self.addCleanup(patch.stop)

    def shared(self, **options):
        llm = Llama(self.table, self.model_id, **options)
        self.addCleanup(llm.client.close)
        shared = Shared(llm, kvcobra.Client(self.daemon.socket), self.model_id.hex()[:8])
        self.addCleanup(shared.close)
        return llm, shared

    def test_one_computes_another_takes(self):
        llm, shared = self.shared()
        self.assertEqual(list(llm.generate(self.PROMPT)), [7, 8, 9])
        self.assertEqual((shared.found_tokens, shared.published_tokens), (0, 640))
        other, taking = self.shared()
        self.assertEqual(list(other.generate(self.PROMPT, top_k=1)), [7, 8, 9])
        self.assertEqual((taking.found_tokens, taking.published_tokens, other.restored), (640, 0, 640))
        self.assertEqual(other.n_evaluated, 4 + 60 + 3, "the probe, what was not found, and the answer")
        self.assertEqual(other.input_ids[:700].tolist(), self.PROMPT)
        self.assertEqual(list(other.generate(self.PROMPT[:300])), [7, 8, 9])
        self.assertEqual(taking.found_tokens, 640, "the context has that beginning itself")
        taking.close()
        self.assertNotIn("generate", vars(other))

    def test_what_follows_a_text_is_no_prompt(self):
        llm, shared = self.shared()
        list(llm.generate(self.PROMPT))
        other, taking = self.shared()
        other.eval(self.PROMPT[:4])
        list(other.generate(self.PROMPT[4:], reset=False))
        self.assertEqual(taking.found_tokens, 0)

    def test_an_answer_that_is_not_read_to_its_end(self):
        llm, shared = self.shared()
        answer = llm.generate(self.PROMPT)
        next(answer)
        answer.close()
        self.assertEqual(shared.published_tokens, 640)

    def test_states_that_are_not_taken(self):
        list(self.shared()[0].generate(self.PROMPT))
        for options, reason in (({"takes": False}, "does not take the state"), ({"logits_all": True}, "logits_all")):
            llm, shared = self.shared(**options)
            with self.assertLogs("kvcobra.llama", "WARNING") as logs:
                self.assertEqual(list(llm.generate(self.PROMPT)), [7, 8, 9])
            self.assertEqual(len(logs.output), 1)
            self.assertIn(reason, logs.output[0])
            self.assertEqual(shared.found_tokens, 0)
            self.assertEqual(llm.input_ids[:700].tolist(), self.PROMPT)
            self.assertEqual(list(llm.generate(self.PROMPT)), [7, 8, 9])

    def test_unknown_architecture(self):
        with self.assertRaisesRegex(ValueError, "not known for the architecture 'new'"):
            self.shared(architecture="new")

    def test_daemon_that_ends(self):
        llm, shared = self.shared()
        list(llm.generate(self.PROMPT))
        self.daemon.kill()
        llm.reset()
        self.assertEqual(list(llm.generate(self.PROMPT[::-1])), [7, 8, 9])
        with self.assertRaises(kvcobra.Error):
            Shared(llm, kvcobra.Client(self.daemon.socket), self.model_id)


class WithServers(support.Case):
    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon("--pool-bytes=512M")  # every client has an arena
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.daemon.activate(self.table)
        self.lines = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        log = logging.getLogger("kvcobra.llama")
        log.addHandler(handler)
        self.addCleanup(log.removeHandler, handler)

    def pair(self, name, socket=None, **options):
        """A stand-in server and a proxy in front of it. Returns the server, the sharing, and the proxy's URL."""
        path = os.path.join(self.folder, name)
        os.makedirs(path, 0o700, exist_ok=True)
        server = LlamaServer(path, self.table, self.model_id, **options)
        self.addCleanup(server.close)
        sharing = Sharing(lambda: kvcobra.Client(socket or self.daemon.socket), self.model_id.hex(), "interleaved", slots.Folder(path))
        self.addCleanup(sharing.close)
        front = serve(Proxy(Upstream(server.url), sharing), "127.0.0.1:0")
        threading.Thread(target=front.serve_forever, daemon=True).start()
        self.addCleanup(front.server_close)
        self.addCleanup(front.shutdown)
        return server, sharing, f"http://127.0.0.1:{front.server_address[1]}"

    def post(self, url, path, body, key=None):
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        with urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), headers), timeout=support.TIMEOUT_S) as r:
            return r.read()

    def settle(self, sharing, n):
        """Publishing goes on after the answer: the next request gets the slot only then, so any request waits for it."""
        for _ in range(support.TIMEOUT_S * 10):
            if sharing.published_tokens >= n:
                return
            threading.Event().wait(0.1)
        self.fail(f"{sharing.published_tokens} tokens were published: {self.lines}")

    def test_a_prompt_of_one_server_is_found_by_another(self):
        a, sharing, front_a = self.pair("a")
        self.assertEqual(json.loads(self.post(front_a, "/completion", {"prompt": TEXT}))["content"], "answer")
        self.settle(sharing, 640)
        self.assertEqual(set(a.modes), {0o600})
        b, other, front_b = self.pair("b")
        self.post(front_b, "/completion", {"prompt": TEXT})
        self.assertEqual((b.computed[-1], other.found_tokens), (700 - 640, 640))
        self.assertEqual([n for n in os.listdir(os.path.join(self.folder, "b")) if n != "kvcobra-proxy.lock"], [])
        self.assertEqual(self.lines, [])
        n = len([p for p in b.paths if "restore" in p])
        self.post(front_b, "/completion", {"prompt": TEXT + "!"})  # the slot has it: nothing is restored
        self.assertEqual((b.computed[-1], len([p for p in b.paths if "restore" in p])), (1, n))

    def test_chats_streams_and_keys(self):
        a, sharing, front_a = self.pair("a", key="secret-key")
        chat = {"messages": [{"role": "user", "content": TEXT}], "stream": True}
        answer = self.post(front_a, "/v1/chat/completions", chat, "secret-key")
        self.assertEqual(answer.count(b"data: "), PIECES)
        self.settle(sharing, 640)
        b, _, front_b = self.pair("b", key="secret-key")
        self.post(front_b, "/v1/chat/completions", chat, "secret-key")
        self.assertEqual(b.computed[-1], 706 - 704)
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.post(front_b, "/v1/chat/completions", chat, "wrong")
        self.assertEqual(raised.exception.code, 401)
        raised.exception.close()
        self.assertNotIn("secret-key", " ".join(self.lines))

    def test_everything_else_is_forwarded_untouched(self):
        server, _, front = self.pair("a")
        with urllib.request.urlopen(front + "/v1/models?x=1") as answer:
            self.assertEqual(json.load(answer), {"path": "/v1/models?x=1"})
        for path, body in (("/embedding", {"content": TEXT}), ("/completion", {"prompt": TEXT, "cache_prompt": False}),
                           ("/completion", {"prompt": "short"}), ("/completion", {"prompt": TEXT, "n": 2}),
                           ("/completion", {"prompt": TEXT, "lora": [{"id": 0, "scale": 1.0}]})):
            self.post(front, path, body)
            self.assertEqual(json.loads(server.bodies[-1]), body)
        self.assertFalse(any(p.startswith("/slots") for p in server.paths))

    def test_without_a_daemon_the_server_answers(self):
        server, sharing, front = self.pair("a", socket=os.path.join(self.folder, "none"))
        for _ in range(2):
            self.assertEqual(json.loads(self.post(front, "/completion", {"prompt": TEXT}))["content"], "answer")
        self.assertEqual((len(self.lines), sharing.off), (1, None), self.lines)

    def test_without_a_table_the_server_answers(self):
        with support.Daemon("--pool-bytes=64M", "--arena-bytes=8M") as empty:
            _, sharing, front = self.pair("a", socket=empty.socket)
            for _ in range(2):
                self.assertEqual(json.loads(self.post(front, "/completion", {"prompt": TEXT}))["content"], "answer")
        self.assertEqual((len(self.lines), sharing.off), (1, None), self.lines)
        self.assertIn("no active table for model", self.lines[0])

    def small(self, name, n_bytes):
        """A folder with little room."""
        path = os.path.join(self.folder, name)
        os.mkdir(path, 0o700)
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_bytes},mode=700", "tmpfs", path],
                                               stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("mounting a small file system takes root")
        self.addCleanup(subprocess.run, ["umount", "--lazy", path], check=True)
        return path

    def test_a_folder_of_slots_without_room_for_a_prompt(self):
        a, sharing, front_a = self.pair("a")
        self.post(front_a, "/completion", {"prompt": TEXT})
        self.settle(sharing, 640)
        path = self.small("b", 128 << 10)
        b, other, front_b = self.pair("b")
        self.assertEqual(json.loads(self.post(front_b, "/completion", {"prompt": TEXT}))["content"], "answer")
        self.assertGreaterEqual(b.computed[-1], 699, "what the layout was learned from begins with the same letter")
        self.assertEqual((other.found_tokens, other.off), (0, None), self.lines)
        self.assertRegex(self.lines[0], f"cannot write [0-9]+ bytes in the folder of slots {path}: No space left")
        self.post(front_b, "/completion", {"prompt": TEXT[::-1]})
        end = time.monotonic() + 20  # it is published, or not, behind the answer
        while "was not published" not in " ".join(self.lines) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertIn("was not published", " ".join(self.lines))
        self.assertEqual([n for n in os.listdir(path) if n != "kvcobra-proxy.lock"], [], "what was begun is removed")

    def test_a_folder_of_slots_that_is_full_at_first(self):
        path = self.small("a", 8 << 20)
        filler = os.path.join(path, "filler")
        server, sharing, front = self.pair("a")
        with open(filler, "wb") as file, self.assertRaises(OSError):
            file.write(bytes(16 << 20))
            file.flush()
        self.assertEqual(json.loads(self.post(front, "/completion", {"prompt": TEXT}))["content"], "answer")
        self.assertIn("while the folder of slots is full", self.lines[0])
        os.unlink(filler)
        self.post(front, "/completion", {"prompt": TEXT})
        self.settle(sharing, 640)

    def test_a_restore_that_does_nothing_ends_sharing(self):
        a, sharing, front_a = self.pair("a")
        self.post(front_a, "/completion", {"prompt": TEXT})
        self.settle(sharing, 640)
        b, other, front_b = self.pair("b", honest=False)
        self.post(front_b, "/completion", {"prompt": TEXT})
        for _ in range(support.TIMEOUT_S * 10):  # it is noticed after the answer
            if other.off is not None:
                break
            threading.Event().wait(0.1)
        self.post(front_b, "/completion", {"prompt": TEXT})
        self.assertIn("computed a prompt again", other.off)
        self.assertEqual((len([p for p in b.paths if "erase" in p]), len(self.lines)), (1, 1), self.lines)

    def test_servers_that_cannot_share(self):
        unknown, sharing, front = self.pair("a", version=9)
        self.assertEqual(json.loads(self.post(front, "/completion", {"prompt": TEXT}))["content"], "answer")
        self.assertIn("version 9", sharing.off)
        os.mkdir(os.path.join(self.folder, "elsewhere"))
        server, sharing, front = self.pair("b")
        server.folder = os.path.join(self.folder, "elsewhere")
        self.assertEqual(json.loads(self.post(front, "/completion", {"prompt": TEXT}))["content"], "answer")
        self.assertIn("--slot-save-path", sharing.off)

    def test_a_server_that_is_gone(self):
        server, _, front = self.pair("a")
        server._http.shutdown()
        server._http.server_close()
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.post(front, "/completion", {"prompt": TEXT})
        self.assertEqual(raised.exception.code, 502)
        raised.exception.close()

    def test_several_requests_at_once(self):
        server, sharing, front = self.pair("a")
        texts = [TEXT[:300 + 10 * i] + str(i) for i in range(6)]
        threads = [threading.Thread(target=self.post, args=(front, "/completion", {"prompt": t})) for t in texts]
        for t in threads:
            t.start()
        for t in threads:
            t.join(support.TIMEOUT_S)
        self.assertEqual(len(server.computed) - 1, 6, self.lines)  # one more learns the layout
        self.assertEqual(self.lines, [])


class Command(support.Case):
    """kvcobra llama-proxy itself: what it says where it cannot start, or where something is missing."""

    def setUp(self):
        super().setUp()
        self.slots = os.path.join(self.folder, "slots")
        os.mkdir(self.slots, 0o700)
        self.model = self.gguf("m.gguf", b"llama")

    def gguf(self, name, architecture):
        path = os.path.join(self.folder, name)
        key = b"general.architecture"
        with open(path, "wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key + struct.pack("<IQ", 8, len(architecture)) + architecture)
        return path

    def start(self, *changes):
        words = ["--server", "http://127.0.0.1:1", "--slots", self.slots, "--model", self.model, "--model-id", self.model_id.hex(),
                 "--socket", os.path.join(self.folder, "none"), "--listen", "127.0.0.1:0", *changes]
        return subprocess.Popen([sys.executable, "-B", "-m", "kvcobra", "llama-proxy", *words], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def refused(self, *changes):
        with self.start(*changes) as process:
            out, err = process.communicate(timeout=support.TIMEOUT_S)
        self.assertEqual((process.returncode, out, err.count("\n")), (1, "", 1), err)
        return err

    def test_it_does_not_start(self):
        self.assertIn("is not known for the architecture 'new'", err := self.refused("--model", self.gguf("n.gguf", b"new")))
        self.assertIn("--pairs", err)
        self.assertIn("is not a URL", self.refused("--server", "https://x"))
        self.assertIn("mkdir -m 700", self.refused("--slots", self.slots + "-none"))
        folder = slots.Folder(self.slots)
        self.assertIn("another proxy uses", self.refused())
        folder.close()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.assertIn("Address already in use", self.refused("--listen", f"127.0.0.1:{port}"))

    def test_a_folder_that_is_not_writable(self):
        if os.geteuid() == 0:
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "tmpfs", self.slots], stderr=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                self.skipTest("root writes everywhere, and nothing can be mounted")
            self.addCleanup(subprocess.run, ["umount", "--lazy", self.slots], check=True)
        else:
            os.chmod(self.slots, 0o500)
        self.assertIn(f"cannot write in the folder of slots {self.slots}: ", self.refused())

    def test_without_daemon_and_server(self):
        """It serves: what is missing may come later."""
        with self.start() as process:
            line = process.stdout.readline()
            said = [process.stderr.readline(), process.stderr.readline()]
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
        self.assertIn("with shared prompts", line)
        self.assertIn("prompts are computed by llama-server alone", said[0])
        self.assertIn(os.path.join(self.folder, "none"), said[0])
        self.assertIn("llama-server at 127.0.0.1:1 does not answer yet", said[1])
        self.assertEqual((process.returncode, rest), (0, "kvcobra: 0 tokens were found, 0 published\n"))


class Arguments(unittest.TestCase):
    def test_urls(self):
        self.assertEqual(Upstream("localhost:8080/x/").prefix, "/x")
        for url in ("https://host", "http://", "ftp://host"):
            with self.assertRaisesRegex(ValueError, "is not a URL"):
                Upstream(url)
        for listen in ("8081", "host:", "host:99999"):
            with self.assertRaisesRegex(ValueError, "HOST:PORT"):
                serve(None, listen)


if __name__ == "__main__":
    support.main()
