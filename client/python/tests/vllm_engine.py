#!/usr/bin/env python3
"""Runs vLLM engines in child processes of one process that has imported vLLM once, and writes what each answered.

    vllm_engine.py PLAN.json RESULTS.json

The plan is a list of runs, one after another: {"engine": {arguments of vllm.LLM}, "prompts": [[{"tokens": [...]}, ...], ...],
"max_tokens": n, "environment": {...}}. Each inner list of prompts is one call of generate(). Importing vLLM takes 25 s of
processor time, so that a test of many engines starts here.
"""
import json
import os
import sys
import time
import traceback

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2",
               "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "VLLM_NO_USAGE_STATS": "1"}


def generate(llm, prompts, max_tokens):
    """Answers of one call of generate(), with its wall and processor time."""
    from vllm import SamplingParams

    inputs = []
    for prompt in prompts:
        inputs.append({"prompt_token_ids": prompt["tokens"]})
        if "cache_salt" in prompt:
            inputs[-1]["cache_salt"] = prompt["cache_salt"]
    parameters = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=5)
    wall, cpu = time.perf_counter(), time.process_time()
    outputs = llm.generate(inputs, parameters, use_tqdm=False)
    result = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "answers": []}
    for output in outputs:
        best = output.outputs[0]
        result["answers"].append({
            "tokens": list(best.token_ids), "cached": output.num_cached_tokens,
            "logprobs": [{str(token): entry.logprob for token, entry in step.items()} for step in best.logprobs]})
    return result


def run(plan):
    from vllm import LLM
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    os.environ.update(plan.get("environment", {}))
    llm = LLM(**plan["engine"])
    llm.generate({"prompt_token_ids": [1, 2, 3]}, use_tqdm=False)
    result = {"calls": []}
    for prompts in plan["prompts"]:
        result["calls"].append(generate(llm, prompts, plan.get("max_tokens", 1)))
    before = time.process_time()
    time.sleep(plan.get("rest", 0))
    result["rest_cpu"] = time.process_time() - before
    llm.generate({"prompt_token_ids": [1, 2, 3]}, use_tqdm=False)  # a step brings the counts of the threads
    result["metrics"] = {m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:kvcobra")}
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
