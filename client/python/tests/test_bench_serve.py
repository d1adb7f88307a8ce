"""kvcobra bench serve with a stand-in for servers with an OpenAI interface."""
import contextlib
import http.server
import io
import json
import os
import threading

import support

from kvcobra import bench_serve


class Server(http.server.ThreadingHTTPServer):
    """Answers 4 tokens to each prompt; its tokens are its words. The second time it finds a prompt. @key: that requests need."""

    daemon_threads = True

    def __init__(self, key=None, fails="", details=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.key, self.fails, self.details = key, fails, details
        self.seen, self.bodies = set(), []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def reply(self, status, data, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    def allowed(self):
        if self.server.key is None or self.headers.get("Authorization") == f"Bearer {self.server.key}":
            return True
        self.reply(401, b"no key")
        return False

    def do_GET(self):
        if self.allowed():
            self.reply(200, json.dumps({"data": [{"id": "small"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        self.server.bodies.append(body)
        prompt = body["prompt"]
        if self.server.fails and self.server.fails in prompt:
            self.reply(503, b"too busy")
            return
        n = len(prompt.split())
        usage = {"prompt_tokens": n, "completion_tokens": 4}
        if self.server.details:
            usage["prompt_tokens_details"] = {"cached_tokens": n - 1 if prompt in self.server.seen else 0}
        self.server.seen.add(prompt)
        events = [{"choices": [{"text": "a"}]}] * 4 + [{"choices": [], "usage": usage}]
        self.reply(200, b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n", "text/event-stream")


class Bench(support.Case):
    def server(self, **options):
        server = Server(**options)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def file(self, text):
        path = os.path.join(self.folder, "prompts")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run_bench(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = bench_serve.main(list(arguments))
        return status, out.getvalue(), err.getvalue()

    def test_two_servers(self):
        server, silent = self.server(), self.server(details=False)
        prompts = self.file('one two three four\n{"prompt": "five six"}\n"seven \\n eight nine"\n\n')
        arguments = [a for s in (server, server, silent) for a in ("--url", s.url)]
        status, out, err = self.run_bench(*arguments, "--prompts", prompts, "--clients", "2", "--max-tokens", "4", "--json")
        self.assertEqual((status, err), (0, ""))
        first, second, third = json.loads(out)["servers"]
        self.assertEqual((first["requests"], first["failed"], first["model"]), (3, 0, "small"))
        self.assertEqual((first["prompt_tokens"], first["tokens"], first["found_tokens"]), (9, 12, 0))
        self.assertEqual((second["found_tokens"], second["found_share"]), (6, 6 / 9))
        self.assertEqual((third["found_tokens"], third["found_share"]), (None, None))
        self.assertLessEqual(first["first_token_p50_seconds"], first["first_token_p99_seconds"])
        self.assertLessEqual(first["first_token_p99_seconds"], first["answer_p99_seconds"])
        self.assertEqual({b["max_tokens"] for b in server.bodies}, {4})
        status, out, err = self.run_bench("--url", server.url, "--url", silent.url, "--prompts", prompts)
        self.assertEqual((status, len(out.splitlines())), (0, 3))
        self.assertIn(" 67 %", out)
        self.assertIn("--enable-prompt-tokens-details", err)

    def test_failures(self):
        server = self.server(fails="bad")
        status, out, err = self.run_bench("--url", server.url, "--prompts", self.file("good one\nbad one\n"), "--json")
        self.assertEqual((status, json.loads(out)["servers"][0]["failed"]), (1, 1))
        self.assertIn("1 of 2 requests", err)
        self.assertIn("status 503: too busy", err)
        status, out, err = self.run_bench("--url", server.url, "--prompts", self.file("bad\n"))
        self.assertEqual(status, 1)

    def test_keys_and_names(self):
        server = self.server(key="secret")
        prompts, key = self.file("a b\n"), os.path.join(self.folder, "key")
        with open(key, "w", encoding="utf-8") as file:
            file.write("secret\n")
        self.assertEqual(self.run_bench("--url", server.url, "--prompts", prompts, "--key-file", key)[0], 0)
        for arguments, sentence in (((), "lists no model (status 401): name it with --model"), (("--model", "m"), "status 401: no key")):
            status, out, err = self.run_bench("--url", server.url, "--prompts", prompts, *arguments)
            self.assertEqual(status, 1)
            self.assertIn(sentence, err)

    def test_what_is_refused(self):
        good = self.file("a\n")
        for url, path, sentence in (("http://127.0.0.1:1", good, "does not answer"), ("ftp://x", good, "is not a URL"),
                                    ("http://127.0.0.1:1", good + "-none", "No such file")):
            status, out, err = self.run_bench("--url", url, "--prompts", path)
            self.assertEqual((status, out), (1, ""))
            self.assertIn(sentence, err)
        for text, sentence in (("\n", "has no prompts"), ('{"text": "a"}\n', "is no prompt"), ('""\n', "is no prompt")):
            with self.assertRaisesRegex(ValueError, sentence):
                bench_serve.read_prompts(self.file(text))
        self.assertEqual(bench_serve.read_prompts(self.file("12\n[1]\n[a b\n")), ["12", "[1]", "[a b"])

    def test_percentiles(self):
        values = [float(i) for i in range(1, 101)]
        self.assertEqual([bench_serve.percentile(values, p) for p in (1, 50, 99, 100)], [1, 50, 99, 100])
        self.assertEqual([bench_serve.percentile([7.0], p) for p in (50, 99)], [7, 7])


if __name__ == "__main__":
    support.main()
