"""kvcobra bench serve: prompts to one or several servers with an OpenAI interface, and what their clients see: the time to the first token,
tokens per second, and how much of the prompts the servers found. Nothing but the standard library."""
from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import statistics
import sys
import threading
import time
import urllib.parse
from typing import Any, Dict, List, NamedTuple, Optional

DESCRIPTION = """Send prompts to servers with an OpenAI interface (vLLM, llama-server, the proxy of 'kvcobra llama-proxy') and print what their clients
see. With several --url all prompts go to the first server, then all to the second, and so on: what the first one published, the others can
find."""
EXAMPLE = """Example:

  kvcobra bench serve --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --prompts prompts.txt"""
TIMEOUT_SECONDS = 3600
PERCENTS = (50, 99)


class Answer(NamedTuple):
    """@cached: tokens of the prompt that the server did not compute; None: it does not say. @reason: why there is no answer."""

    first_seconds: float
    seconds: float
    prompt_tokens: int
    tokens: int
    cached: Optional[int]
    reason: Optional[str] = None


def read_prompts(path: str) -> List[str]:
    """One prompt per line: JSON texts, objects with "prompt", or the line itself."""
    with (sys.stdin if path == "-" else open(path, encoding="utf-8")) as file:
        lines = [line.rstrip("\n") for line in file if line.strip()]
    prompts = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            value = line
        if isinstance(value, dict):
            value = value.get("prompt")
        elif not isinstance(value, str):
            value = line  # a text such as 12 or [a] is JSON by chance
        if not isinstance(value, str) or not value:
            raise ValueError(f"{path} has a line that is no prompt: {line[:60]!r}; expected a text, or an object with \"prompt\"")
        prompts.append(value)
    if not prompts:
        raise ValueError(f"{path} has no prompts: one per line is expected")
    return prompts


class Server:
    """@url: without the path of the interface, such as http://127.0.0.1:8000."""

    def __init__(self, url: str, key: Optional[str], model: Optional[str]) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8000")
        self.url, self._parts, self._path = url, parts, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.model = model or self._first_model()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_SECONDS)

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", self._path + "/v1/models", headers=self._headers)
            reply = connection.getresponse()
            status, data = reply.status, reply.read()
        except (OSError, http.client.HTTPException) as e:
            raise ValueError(f"{self.url} does not answer: {e}") from None
        finally:
            connection.close()
        try:
            return str(json.loads(data)["data"][0]["id"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(f"{self.url} lists no model (status {status}): name it with --model") from None

    def ask(self, prompt: str, max_tokens: int) -> Answer:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = self._connect()
        begin = time.perf_counter()
        first: Optional[float] = None
        n_events = 0
        usage: Dict[str, Any] = {}
        timings: Dict[str, Any] = {}
        try:
            connection.request("POST", self._path + "/v1/completions", json.dumps(body), self._headers)
            reply = connection.getresponse()
            if reply.status != 200:
                return Answer(0, 0, 0, 0, None, f"status {reply.status}: {reply.read(300).decode(errors='replace')}")
            for line in reply:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                event: Dict[str, Any] = json.loads(line[5:])
                usage = event.get("usage") or usage
                timings = event.get("timings") or timings
                if event.get("choices"):
                    first = first or time.perf_counter()
                    n_events += 1
        except (OSError, http.client.HTTPException, ValueError) as e:
            return Answer(0, 0, 0, 0, None, f"{type(e).__name__}: {e}")
        finally:
            connection.close()
        if first is None:
            return Answer(0, 0, 0, 0, None, "the server sent no token")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", timings.get("cache_n"))
        return Answer(first - begin, time.perf_counter() - begin, int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", n_events)),
                      cached)


def percentile(values: List[float], percent: int) -> float:
    """The value below which @percent of 100 lie: the nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def run(server: Server, prompts: List[str], clients: int, max_tokens: int) -> Dict[str, Any]:
    lock, left = threading.Lock(), list(prompts)
    answers: List[Answer] = []

    def client() -> None:
        while True:
            with lock:
                if not left:
                    return
                prompt = left.pop(0)
            answer = server.ask(prompt, max_tokens)
            with lock:
                answers.append(answer)

    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for future in [pool.submit(client) for _ in range(clients)]:
            future.result()
    seconds = time.perf_counter() - begin
    good = [answer for answer in answers if answer.reason is None]
    reasons = [answer.reason for answer in answers if answer.reason is not None]
    result: Dict[str, Any] = {"url": server.url, "model": server.model, "requests": len(answers), "failed": len(reasons), "seconds": seconds}
    if reasons:
        result["first_reason"] = reasons[0]
    if good:
        told = [answer for answer in good if answer.cached is not None]
        n_prompt = sum(answer.prompt_tokens for answer in told)
        firsts = [answer.first_seconds for answer in good]
        result.update({
            "prompt_tokens": sum(answer.prompt_tokens for answer in good), "tokens": sum(answer.tokens for answer in good),
            "found_tokens": sum(answer.cached or 0 for answer in told) if told else None,
            "found_share": sum(answer.cached or 0 for answer in told) / n_prompt if n_prompt else None,
            "tokens_per_second": sum(answer.tokens for answer in good) / seconds,
            "first_token_mean_seconds": statistics.fmean(firsts),
            **{f"first_token_p{p}_seconds": percentile(firsts, p) for p in PERCENTS},
            **{f"answer_p{p}_seconds": percentile([answer.seconds for answer in good], p) for p in PERCENTS}})
    return result


def print_table(results: List[Dict[str, Any]]) -> None:
    print(f"{'server':<32}{'requests':>9}{'failed':>8}{'found':>8}{'first token p50, p99, s':>26}{'answer p50, p99, s':>22}{'tokens/s':>10}")
    for r in results:
        if r["requests"] == r["failed"]:
            print(f"{r['url']:<32}{r['requests']:>9}{r['failed']:>8}")
            continue
        found = "-" if r["found_share"] is None else f"{100 * r['found_share']:.0f} %"
        first = f"{r['first_token_p50_seconds']:.3f}, {r['first_token_p99_seconds']:.3f}"
        answer = f"{r['answer_p50_seconds']:.3f}, {r['answer_p99_seconds']:.3f}"
        print(f"{r['url']:<32}{r['requests']:>9}{r['failed']:>8}{found:>8}{first:>26}{answer:>22}{r['tokens_per_second']:>10.1f}")
    if any(r.get("found_share") is None for r in results):
        print("found: - where a server does not say it (vLLM: --enable-prompt-tokens-details)", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="kvcobra bench serve", description=DESCRIPTION, epilog=EXAMPLE,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", action="append", required=True, metavar="URL", help="a server, without /v1; may be repeated")
    p.add_argument("--prompts", required=True, metavar="FILE", help="one prompt per line, or JSON lines; - is standard input")
    p.add_argument("--clients", type=int, default=1, metavar="N", help="requests at one time (default %(default)s)")
    p.add_argument("--max-tokens", type=int, default=16, metavar="N", help="tokens of each answer (default %(default)s)")
    p.add_argument("--model", metavar="NAME", help="the model's name in requests (default: the first that the server lists)")
    p.add_argument("--key-file", metavar="FILE", help="file with the API key of the servers")
    p.add_argument("--json", action="store_true", help="one JSON document on standard output instead of a table")
    return p


def main(arguments: Optional[List[str]] = None) -> int:
    """The exit status: 1 if no server could be measured, or a request failed."""
    p = parser()
    o = p.parse_args(arguments)
    if not 1 <= o.clients <= 1024 or o.max_tokens < 1:
        p.error("--clients takes 1 to 1024, --max-tokens 1 or more")
    try:
        prompts = read_prompts(o.prompts)
        key = None
        if o.key_file:
            with open(o.key_file, encoding="utf-8") as file:
                key = file.read().strip()
        results = [run(Server(url, key, o.model), prompts, o.clients, o.max_tokens) for url in o.url]
    except OSError as e:
        print(f"kvcobra: {e.filename or ''}: {e.strerror or e}", file=sys.stderr)
        return 1
    except ValueError as e:
        print(f"kvcobra: {e}", file=sys.stderr)
        return 1
    if o.json:
        print(json.dumps({"servers": results}, indent=2))
    else:
        print_table(results)
    for r in results:
        if r["failed"]:
            print(f"kvcobra: {r['failed']} of {r['requests']} requests to {r['url']} failed, the first one with: {r['first_reason']}", file=sys.stderr)
    return 1 if any(r["failed"] for r in results) else 0


def program() -> int:
    """The program kvcobra-bench-serve, which 'kvcobra bench serve' runs."""
    try:
        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
