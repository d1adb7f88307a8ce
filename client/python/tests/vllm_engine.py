#!/usr/bin/env python3
"""Runs vLLM engines in child processes of one process that has imported vLLM once, and writes what each answered.

    vllm_engine.py PLAN.json RESULTS.json

The plan is a list of runs, one after another: {"engine": {arguments of vllm.LLM}, "prompts": [[{"tokens": [...]}, ...], ...],
"max_tokens": n, "environment": {...}, "rest": seconds, "before": {"1": shell command}, "rpc": {"1": method of the workers},
"until_cached": {"1": tokens}, "fail_loads": n, "logprobs": n}. Each inner list of prompts arrives together. Before the prompts of a number its command
runs and its method is called; they are repeated until the first of them finds that many tokens. Importing vLLM takes 25 s of processor time, so that a test of many engines starts
here.
"""
import json
import os
import subprocess
import sys
import time
import traceback

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2",
               "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "VLLM_NO_USAGE_STATS": "1"}
UNTIL_SECONDS = 120


def generate(llm, prompts, max_tokens, logprobs):
    """Answers to prompts that arrive together. Times are of the whole call, and of the steps after all first tokens."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    parameters = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=logprobs)
    wall, cpu = time.perf_counter(), time.process_time()
    for i, prompt in enumerate(prompts):
        text = {"prompt_token_ids": prompt["tokens"]}
        if "cache_salt" in prompt:
            text["cache_salt"] = prompt["cache_salt"]
        engine.add_request(f"{time.monotonic_ns()}-{i}", text, parameters)
    outputs, n_steps, first = {}, 0, None
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = output
        n_steps += first is not None
        if first is None and len(outputs) == len(prompts):
            first = time.perf_counter(), time.process_time()
    end = time.perf_counter(), time.process_time()
    result = {"wall": end[0] - wall, "cpu": end[1] - cpu, "first_wall": first[0] - wall, "first_cpu": first[1] - cpu,
              "step_cpu": (end[1] - first[1]) / max(n_steps, 1), "n_steps": n_steps, "answers": []}
    for _, output in sorted(outputs.items(), key=lambda item: int(item[0].split("-")[1])):
        best = output.outputs[0]
        result["answers"].append({
            "tokens": list(best.token_ids), "cached": output.num_cached_tokens,
            "logprobs": [{str(token): entry.logprob for token, entry in step.items()} for step in best.logprobs]})
    return result


def generate_until_cached(llm, prompts, max_tokens, logprobs, n_cached):
    """Repeats the prompts, which a thread publishes, until the first of them finds @n_cached tokens."""
    end = time.monotonic() + UNTIL_SECONDS
    while (result := generate(llm, prompts, max_tokens, logprobs))["answers"][0]["cached"] != n_cached:
        if time.monotonic() > end:
            raise TimeoutError(f"{n_cached} tokens were not found in {UNTIL_SECONDS} s, but "
                               f"{result['answers'][0]['cached']}")
    return result


def metrics():
    """The connector's counters, the sums of its histograms, and vLLM's count of preemptions, as vLLM's Prometheus page has them."""
    from prometheus_client import REGISTRY

    names = ("vllm:kvcobra_", "vllm:num_preemptions")
    return {sample.name.removeprefix("vllm:").removeprefix("kvcobra_").removesuffix("_total").removesuffix("_sum"): sample.value
            for family in REGISTRY.collect() for sample in family.samples
            if sample.name.startswith(names) and sample.name.endswith(("_total", "_sum"))}


def fail_loads(n):
    """The first @n loads of this process find that their pages are gone."""
    from kvcobra.vllm.loader import Loader

    read, left = Loader._read, [n]

    def fail(self, load):
        left[0] -= 1
        return "the test fails this load" if left[0] >= 0 else read(self, load)

    Loader._read = fail


def mend_llvmlite():
    """llvmlite, which LMCache loads, has an object whose every attribute is a function, __dict__ too. vLLM 0.32 on the CPU looks
    at the __dict__ of all members of all modules, and ends."""
    from llvmlite.binding import ffi

    kind = type(ffi.lib)
    plain = kind.__getattr__

    def get(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return plain(self, name)

    kind.__getattr__ = get


def run(plan):
    from kvcobra.vllm import plugin
    from vllm import LLM
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    os.environ.update(plan.get("environment", {}))
    fail_loads(plan.get("fail_loads", 0))
    is_lmcache = plan["engine"].get("kv_transfer_config", {}).get("kv_connector", "").startswith("LMCache")
    if is_lmcache:
        mend_llvmlite()
    plugin.register()  # as vLLM does where the package is installed with its entry point
    llm = LLM(**plan["engine"])
    llm.generate({"prompt_token_ids": [1, 2, 3]}, use_tqdm=False)
    result = {"calls": []}
    for i, prompts in enumerate(plan["prompts"]):
        command = plan.get("before", {}).get(str(i))
        if command:
            subprocess.run(command, shell=True, check=True)
        method = plan.get("rpc", {}).get(str(i))
        if method:
            llm.collective_rpc(method)
        n_cached = plan.get("until_cached", {}).get(str(i))
        arguments = llm, prompts, plan.get("max_tokens", 1), plan.get("logprobs", 5)
        result["calls"].append(generate(*arguments) if n_cached is None else generate_until_cached(*arguments, n_cached))
    before = time.process_time()
    time.sleep(plan.get("rest", 0))
    result["rest_cpu"] = time.process_time() - before
    llm.generate({"prompt_token_ids": [1, 2, 3]}, use_tqdm=False)  # a step brings the counts of the threads
    result["metrics"] = metrics()
    if is_lmcache:  # a shutdown after the worker's does not end; the exit of the process does
        return result
    before = time.process_time()
    if has_kv_transfer_group():
        get_kv_transfer_group().shutdown()
    result["shutdown_cpu"] = time.process_time() - before
    llm.llm_engine.engine_core.shutdown()
    return result


def main():
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    with open(sys.argv[1], encoding="utf-8") as file:
        plans = json.load(file)
    from vllm import LLM  # noqa: F401 imported before the first fork
    import vllm.v1.worker.cpu_worker  # noqa: F401

    results = []
    for plan in plans:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                text = json.dumps(run(plan))
            except BaseException as e:
                traceback.print_exc()
                text = json.dumps({"error": f"{type(e).__name__}: {e}"})
            with os.fdopen(write, "w") as file:
                file.write(text)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            text = file.read()
        os.waitpid(child, 0)
        results.append(json.loads(text) if text else {"error": "the engine's process ended"})
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
