#!/usr/bin/env python3
"""Times vLLM with prompts that another process computed: without sharing, through kvcobrad, and through LMCache's server.

    bench_vllm.py [--prompts N] [--tokens N] [--json] [WAY...]      ways: plain, kvcobra, kvcobra-128, lmcache-256, lmcache-64

The environment is that of test_vllm_engine.py. Each way runs two engines, one after the other: the first computes N prompts and
publishes them, the second gets the same prompts. The first token's time is that of the whole call; its ratio is to the same
prompt in `plain`, which shares nothing. LMCache rows need its package (0.5.6 was tried), and are left out without it. The
prompts are consecutive pieces of DESIGN.md and differ from the first token on.
"""
import argparse
import importlib.util
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON_TESTS = os.path.join(ROOT, "client", "python", "tests")
sys.path.insert(0, PYTHON_TESTS)

import support  # noqa: E402
import kvcobra  # noqa: E402

WAYS = ("plain", "kvcobra", "kvcobra-128", "lmcache-256", "lmcache-64")
SERVER_WAIT_S = 60
ENGINE_WAIT_S = 900


class Bench:
    def __init__(self, options):
        self.options = options
        self.model = os.path.join(support.program("KVC_ENGINE_MODELS"), "bf16")
        self.table = support.program("KVC_ENGINE_TABLE")
        with open(self.table, "rb") as file, kvcobra.Client(False) as client:
            digest, self.geometry = client.table_geometry(file.read())
        self.model_id = digest.hex()
        self.prompts = self.read_prompts()

    def read_prompts(self):
        from transformers import AutoTokenizer

        with open(os.path.join(ROOT, "DESIGN.md"), encoding="utf-8") as file:
            ids = AutoTokenizer.from_pretrained(self.model)(file.read(), add_special_tokens=False)["input_ids"]
        n = self.options.tokens
        if self.options.prompts * n > len(ids):
            sys.exit(f"DESIGN.md has {len(ids)} tokens: at most {len(ids) // n} prompts of {n}")
        return [[{"tokens": ids[i * n:(i + 1) * n]}] for i in range(self.options.prompts)]

    def run_engine(self, block_size, transfer):
        """The results of vllm_engine.py for one engine that gets all prompts, one after another."""
        engine = {"model": self.model, "dtype": "bfloat16", "enforce_eager": True, "max_model_len": self.options.tokens + 64,
                  "block_size": block_size, "max_num_batched_tokens": 2048, "disable_log_stats": False}
        if transfer:
            engine["kv_transfer_config"] = transfer
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("plan.json", "results.json")]
            with open(paths[0], "w", encoding="utf-8") as file:
                json.dump([{"engine": engine, "prompts": self.prompts}], file)
            with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
                child = subprocess.Popen([sys.executable, "-B", os.path.join(PYTHON_TESTS, "vllm_engine.py"), *paths], stdout=log,
                                         stderr=subprocess.STDOUT, env={**os.environ, "PYTHONHASHSEED": "0"},
                                         start_new_session=True)  # LMCache compares Python's hashes
                try:
                    child.wait(ENGINE_WAIT_S)
                except subprocess.TimeoutExpired:
                    print(f"vLLM did not end within {ENGINE_WAIT_S} s", file=sys.stderr)
                finally:
                    end_group(child)
                log.seek(0)
                text = log.read()
            if not os.path.exists(paths[1]):
                sys.exit(f"vLLM failed: {text[-4000:]}")
            with open(paths[1], encoding="utf-8") as file:
                result = json.load(file)[0]
        if "error" in result:
            sys.exit(f"vLLM failed: {result['error']}\n{text[-4000:]}")
        return result

    # ---- the ways ----

    def plain(self):
        return {"alone": self.run_engine(64, None)}

    def kvcobra(self, block_size):
        with support.Daemon("--pool-bytes=256M", "--arena-bytes=64M") as daemon:
            daemon.activate(self.table)
            transfer = {"kv_connector": "KvCobraConnector", "kv_connector_module_path": "kvcobra.vllm", "kv_role": "kv_both",
                        "kv_load_failure_policy": "recompute",
                        "kv_connector_extra_config": {"socket": daemon.socket, "model_id": self.model_id}}
            runs = {"first": self.run_engine(block_size, transfer)}
            status = json.loads(daemon.command("status", "--json"))
            runs["bytes"] = status["page_bytes"], status["waste_bytes"]
            runs["second"] = self.run_engine(block_size, transfer)
        return runs

    def lmcache(self, chunk_tokens):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "lmcache.v1.multiprocess.server", "--host", "127.0.0.1", "--port", str(port),
                   "--chunk-size", str(chunk_tokens), "--l1-size-gb", "1", "--eviction-policy", "LRU",
                   "--supported-transfer-mode", "auto", "--shm-name", f"kvcobra_bench_{os.getpid()}_{chunk_tokens}"]
        transfer = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
                    "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}}
        with tempfile.TemporaryFile() as log:
            server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONHASHSEED": "0"})
            try:
                wait_for_port(port, server)
                return {"first": self.run_engine(64, transfer), "second": self.run_engine(64, transfer)}
            finally:
                server.terminate()
                server.wait()

    def run(self, way):
        kind, _, number = way.partition("-")
        if kind == "plain":
            return self.plain()
        return self.kvcobra(int(number or 64)) if kind == "kvcobra" else self.lmcache(int(number))


def end_group(child):
    """Ends a process and those that it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def wait_for_port(port, server):
    end = time.monotonic() + SERVER_WAIT_S
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    sys.exit("LMCache's server did not start")


def spread(values):
    """Minimum, median and 99th percentile."""
    ordered = sorted(values)
    return [ordered[0], statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]]


def row(name, run, base):
    wall, cpu = [call["first_wall"] for call in run["calls"]], [call["first_cpu"] for call in run["calls"]]
    return {"name": name, "tokens_taken": [call["answers"][0]["cached"] for call in run["calls"]], "first_token_s": spread(wall),
            "cpu_s": spread(cpu), "ratio": spread([w / b["first_wall"] for w, b in zip(wall, base["calls"])]),
            "published": run["metrics"].get("published_tokens"), "publish_cpu_s": run["metrics"].get("publish_cpu_seconds"),
            "loaded": run["metrics"].get("loaded_tokens"), "load_s": run["metrics"].get("load_seconds")}


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{len(names)} x {names[0] if names else platform.machine()}"


def print_rows(rows, pool, n_prompts):
    print(f"{machine()}; {n_prompts} prompts; minimum, median and 99th percentile")
    print(f"{'':24}{'tokens taken':>13}{'first token, s':>22}{'processor time, s':>22}{'ratio to plain':>22}")
    for r in rows:
        columns = ["  ".join(f"{x:.3f}" for x in r[key]) for key in ("first_token_s", "cpu_s", "ratio")]
        print(f"{r['name']:24}{statistics.median(r['tokens_taken']):13.0f}" + "".join(f"{c:>22}" for c in columns))
        if r["published"]:
            print(f"{'':24}published {r['published']:.0f} tokens, {r['publish_cpu_s'] / n_prompts:.3f} s of processor time per prompt "
                  "beside the steps")
        if r["loaded"]:
            print(f"{'':24}loaded {r['loaded']:.0f} tokens, {r['load_s'] / n_prompts:.3f} s per prompt")
    if pool:
        print(f"pool: {pool['bytes_per_token']:.0f} bytes per shared token, {pool['bytes_per_token_with_waste']:.0f} with unused "
              f"ends of spans and free slots; bf16: {pool['bf16_bytes_per_token']} ({pool['ratio']:.2f} times as many)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("way", nargs="*", metavar="WAY", help=", ".join(WAYS))
    options = parser.parse_args()
    unknown = set(options.way) - set(WAYS)
    if unknown or options.prompts < 1 or options.tokens < 65:
        parser.error(f"ways are {', '.join(WAYS)}; at least 1 prompt of 65 tokens")
    ways = [way for way in WAYS if not options.way or way in options.way]
    if importlib.util.find_spec("lmcache") is None and any(way.startswith("lmcache") for way in ways):
        print("the Python module lmcache is missing: its rows are left out", file=sys.stderr)
        ways = [way for way in ways if not way.startswith("lmcache")]
    bench = Bench(options)
    base = bench.plain()["alone"]
    rows, pool = [row("plain", base, base)], None
    g = bench.geometry
    for way in ways:
        if way == "plain":
            continue
        runs = bench.run(way)
        rows += [row(f"{way}, computes", runs["first"], base), row(f"{way}, takes", runs["second"], base)]
        if way == "kvcobra":
            n, bf16 = rows[-2]["published"], 4 * g.n_layers * g.n_kv_heads * g.head_dim
            page, waste = runs["bytes"]
            pool = {"bytes_per_token": page / n, "bytes_per_token_with_waste": (page + waste) / n, "bf16_bytes_per_token": bf16,
                    "ratio": bf16 * n / page}
    if options.json:
        print(json.dumps({"machine": machine(), "prompts": options.prompts, "tokens": options.tokens, "rows": rows, "pool": pool}))
    else:
        print_rows(rows, pool, options.prompts)


if __name__ == "__main__":
    main()
