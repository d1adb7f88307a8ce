"""vLLM's HTTP server with and without KV-COBRA: 200 mixed requests, twelve at a time, and clients that disconnect early.

Three servers run one after another: one without the connector, one whose kvcobrad has no pages yet, and one that takes from
kvcobrad what the second published. All get the same requests. Needs the environment of test_vllm_engine.py, and takes minutes.
"""
import collections
import concurrent.futures
import http.client
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import support
import test_vllm_engine as engines
import vllm_engine

import kvcobra

CHUNK = 64
SEED, N_CLIENTS, MAX_TOKENS, MODEL_TOKENS = 13, 12, 4, 1024
START_S, REQUEST_S, END_S = 900, 600, 300
# Without a hit only the order of additions may differ, since a step's batch depends on time. Logits are bfloat16: one rounding
# moves a logit between 16 and 32 by 0.125. Nearly all answers are equal to the last bit; on 2026-11-22 all were.
ROUNDING_MAX, SAME_MIN = 0.25, 0.95
# Codes of 3 bits per number, over different prompts that took tokens. Where many tokens are nearly as probable, the codec's
# error exceeds LOGPROB_DIFFERENCE_MAX. Measured on 2026-11-22: of 104 prompts 98 within, 97 equal first tokens, median 0.05. With
# another prompt's tokens in place of those taken: of 60 prompts 19 within, 28 equal, median 0.69.
WITHIN_MIN, EQUAL_MIN, MEDIAN_MAX = 0.85, 0.85, 0.1
# The part of whole chunks that the last server does not compute. A prompt that begins in vLLM's own cache, before kvcobrad has
# those chunks, is not published, so that a few are missing.
TAKEN_MIN = 0.9


class Request:
    """@abandon: None, or when its client disconnects: "sent" or "streaming"."""

    def __init__(self, tokens, salt=None, abandon=None):
        self.tokens = tokens
        self.salt = salt
        self.abandon = abandon
        self.n_takeable = (len(tokens) - 1) // CHUNK * CHUNK  # vLLM computes at least one token

    def body(self):
        body = {"model": "model", "prompt": self.tokens, "temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True,
                "logprobs": 5, "return_tokens_as_token_ids": True}
        if self.salt is not None:
            body["cache_salt"] = self.salt
        if self.abandon is not None:
            body.update(max_tokens=MODEL_TOKENS - len(self.tokens), stream=True)
        return json.dumps(body)

    def prefixes(self):
        """What the request shares with equal requests: its salt and the tokens of each whole chunk's prefix."""
        return [(self.salt, tuple(self.tokens[:n])) for n in range(CHUNK, self.n_takeable + 1, CHUNK)]


def mixed_requests(ids):
    """200 requests of clients that wait, and 8 of clients that do not, in an order of chance."""
    chance = random.Random(SEED)

    def piece(n):
        at = chance.randrange(len(ids) - n)
        return ids[at:at + n]

    requests = []
    for n in (128, 256, 512):
        root = piece(n)
        requests += [Request(root + piece(chance.randrange(1, 180))) for _ in range(10)]
    root = piece(256)
    requests += [Request(root + piece(chance.randrange(1, 180)), salt) for _ in range(10) for salt in ("red", "blue")]
    for _ in range(10):
        requests += [Request(piece(chance.randrange(65, 700)))] * 4
    for _ in range(5):  # each salt sends this text once
        text = piece(chance.randrange(130, 330))
        requests += [Request(text, salt) for salt in (None, "red", "blue", "green")]
    lengths = [3, 63, 64, 65, 127, 128, 129, 700]
    lengths += [round(math.exp(chance.uniform(math.log(3), math.log(700)))) for _ in range(90 - len(lengths))]
    requests += [Request(piece(n)) for n in lengths]
    requests += [Request(piece(chance.randrange(200, 500)), abandon=when) for _ in range(4) for when in ("sent", "streaming")]
    chance.shuffle(requests)
    return requests


class Server:
    """vLLM's HTTP server in a process group of its own, which is killed when the server has ended or the test failed."""

    def __init__(self, transfer=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-B", "-m", "vllm.entrypoints.openai.api_server", "--model", engines.MODEL,
                   "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "bfloat16",
                   "--enforce-eager", "--max-model-len", str(MODEL_TOKENS), "--block-size", str(CHUNK),
                   "--max-num-batched-tokens", "1024", "--max-num-seqs", "16", "--enable-prompt-tokens-details",
                   "--disable-uvicorn-access-log", "--shutdown-timeout", str(END_S // 2)]
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        environment = {**vllm_engine.ENVIRONMENT, **os.environ}
        del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]  # the engine is a process of its own, as the server starts it
        self.log_file = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=subprocess.STDOUT,
                                        env=environment, process_group=0)
        self.status, self.text = None, ""

    def log(self):
        self.log_file.seek(0)
        return self.log_file.read().decode(errors="replace")

    def __enter__(self):
        try:
            self.wait(lambda: self.get("/health") is not None, START_S, "start")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exception):
        try:
            if exception[0] is None:
                self.process.send_signal(signal.SIGTERM)
                self.status = self.process.wait(END_S)
        finally:
            self.kill()

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.text = self.log()
        self.log_file.close()

    def wait(self, condition, seconds, what):
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"vLLM's server did not {what}: {self.log()[-6000:]}")
            time.sleep(0.3)

    # ---- requests ----

    def get(self, path):
        """The page @path, or None if the server is not there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read().decode() if response.status == 200 else None
        except ConnectionError:
            return None
        finally:
            connection.close()

    def metric(self, name):
        """The value of a counter or gauge of the Prometheus page; 0 if the server has none of this name."""
        found = re.search(rf"^vllm:{name}\{{[^\n]*\}} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def send(self, request):
        """(HTTP status, answer); None if the client disconnected."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        try:
            connection.request("POST", "/v1/completions", request.body(), {"Content-Type": "application/json"})
            if request.abandon == "sent":
                return None
            response = connection.getresponse()
            if request.abandon == "streaming":
                if response.status != 200 or not response.readline().startswith(b"data: "):
                    raise AssertionError(f"a stream began with status {response.status}")
                return None
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def send_all(self, requests):
        """Answers, in the order of @requests. Returns when the server has no request left."""
        with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as clients:
            answers = list(clients.map(self.send, requests))
        self.wait(lambda: self.metric("num_requests_running") + self.metric("num_requests_waiting") == 0, REQUEST_S,
                  "end the requests of clients that disconnected")
        return answers


def first_token(answer):
    """The first token and the log-probabilities of the most probable ones."""
    logprobs = answer["choices"][0]["logprobs"]
    return logprobs["tokens"][0], logprobs["top_logprobs"][0]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def difference(answer, exact):
    """Of the log-probabilities of the token that is the most probable one in @exact."""
    token, logprobs = first_token(exact)
    return abs(first_token(answer)[1].get(token, -math.inf) - logprobs[token])


def status(daemon):
    return json.loads(daemon.command("status", "--json"))


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.requests = mixed_requests(engines.token_ids())
        # a salt that was not used before, for texts that every other salt has published
        cls.strangers = [Request(request.tokens, "stranger") for request in cls.requests if request.salt == "green"]
        cls.servers = []
        with Server() as server:
            cls.servers.append(server)
            plain = server.send_all(cls.requests)
        with open(engines.TABLE, "rb") as file, kvcobra.Client(False) as client:
            model_id = client.table_geometry(file.read())[0].hex()
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(engines.TABLE)
            transfer = {"kv_connector": "KvCobraConnector", "kv_connector_module_path": "kvcobra.vllm", "kv_role": "kv_both",
                        "kv_load_failure_policy": "recompute",
                        "kv_connector_extra_config": {"socket": daemon.socket, "model_id": model_id}}
            publishing, cls.publish_counts = cls.share(daemon, transfer, cls.requests)
            taking, cls.take_counts = cls.share(daemon, transfer, cls.requests + cls.strangers)
        cls.stranger_answers = taking[len(cls.requests):]
        waited = [i for i, request in enumerate(cls.requests) if request.abandon is None]
        cls.answered = [cls.requests[i] for i in waited]
        cls.plain, cls.publishing, cls.taking = ([answers[i] for i in waited] for answers in (plain, publishing, taking))

    @classmethod
    def share(cls, daemon, transfer, requests):
        """Answers of a server with the connector, and its counters. No lease may be left while it runs, no session after it."""
        with Server(transfer) as server:
            cls.servers.append(server)
            answers = server.send_all(requests)
            server.wait(lambda: status(daemon)["leases"] == 0, REQUEST_S, "give its leases back")
            server.send(Request([1, 2, 3]))  # steps bring the counts of the threads
            counts = {name: server.metric(f"kvcobra_{name}_total") for name in
                      ("loaded_tokens", "load_failures", "published_tokens", "publish_failures", "requests_unknown_keys")}
        end = time.monotonic() + support.TIMEOUT_S
        while status(daemon)["sessions"] != 0:  # the daemon closes the sessions of processes that have ended
            if time.monotonic() > end:
                raise AssertionError("the server has ended, and kvcobrad has its sessions")
            time.sleep(0.1)
        return answers, counts

    def test_all_are_answered(self):
        self.assertEqual(len(self.answered), 200)
        for answers in (self.plain, self.publishing, self.taking):
            for request, (http_status, answer) in zip(self.answered, answers):
                self.assertEqual(http_status, 200, answer)
                self.assertEqual(answer["usage"]["prompt_tokens"], len(request.tokens))
                self.assertEqual(answer["usage"]["completion_tokens"], MAX_TOKENS)

    def test_answers_without_hits(self):
        self.assertEqual(self.publish_counts["loaded_tokens"], 0)  # vLLM's own cache has a prefix before kvcobrad
        self.assertGreater(self.publish_counts["published_tokens"], 0)
        differences = [difference(answer, exact) for (_, answer), (_, exact) in zip(self.publishing, self.plain)]
        print(f"the same without hits: {differences.count(0)} of 200, largest difference {max(differences):.3f}")
        self.assertLess(max(differences), ROUNDING_MAX)
        self.assertGreaterEqual(differences.count(0), SAME_MIN * len(differences))

    def test_answers_after_hits(self):
        different = {(request.salt, tuple(request.tokens)): (answer, exact) for request, (_, answer), (_, exact) in
                     zip(self.answered, self.taking, self.plain)}
        pairs = [(answer, exact) for answer, exact in different.values() if cached(answer) > 0]
        differences = sorted(difference(answer, exact) for answer, exact in pairs)
        n_equal = sum(first_token(answer)[0] == first_token(exact)[0] for answer, exact in pairs)
        n_within = sum(x < engines.LOGPROB_DIFFERENCE_MAX for x in differences)
        n, median = len(pairs), differences[len(pairs) // 2]
        print(f"hits: {n} different prompts, {n_equal} equal first tokens, {n_within} within {engines.LOGPROB_DIFFERENCE_MAX}, "
              f"median difference {median:.3f}, largest {differences[-1]:.3f}")
        self.assertGreaterEqual(n_equal, EQUAL_MIN * n)
        self.assertGreaterEqual(n_within, WITHIN_MIN * n)
        self.assertLess(median, MEDIAN_MAX)
        for request, (_, answer), (_, exact) in zip(self.answered, self.taking, self.plain):
            if cached(answer) == 0:
                self.assertLess(difference(answer, exact), ROUNDING_MAX, len(request.tokens))

    def test_tokens_taken(self):
        takeable, taken = sum(request.n_takeable for request in self.answered), sum(cached(answer) for _, answer in self.taking)
        different = CHUNK * len({prefix for request in self.answered for prefix in request.prefixes()})
        loaded = self.take_counts["loaded_tokens"]
        print(f"taken: {taken} of {takeable} tokens; loaded {loaded:.0f}, of {different} different ones that were answered")
        self.assertGreaterEqual(taken, TAKEN_MIN * takeable)
        self.assertGreaterEqual(loaded, TAKEN_MIN * different)
        for request, (_, answer) in zip(self.answered, self.taking):
            self.assertLessEqual(cached(answer), request.n_takeable)
        for counts in (self.publish_counts, self.take_counts):
            for name in ("load_failures", "publish_failures", "requests_unknown_keys"):
                self.assertEqual(counts[name], 0, name)

    def test_salts_do_not_share(self):
        n_requests = collections.Counter(prefix for request in self.requests for prefix in request.prefixes())
        n_alone = 0
        for answers in (self.plain, self.publishing):
            for request, (_, answer) in zip(self.answered, answers):
                shared = CHUNK * sum(n_requests[prefix] > 1 for prefix in request.prefixes())
                self.assertLessEqual(cached(answer), shared, request.salt)
                n_alone += shared == 0 and request.salt is not None
        self.assertGreaterEqual(n_alone, 2 * 3 * 5)
        self.assertEqual([(http_status, cached(answer)) for http_status, answer in self.stranger_answers], [(200, 0)] * 5)

    def test_servers_end(self):
        for server in self.servers:
            self.assertEqual(server.status, 0, server.text[-6000:])
            self.assertNotIn("force killing", server.text)


if __name__ == "__main__":
    support.main()
