#!/usr/bin/env python3
"""Times decode attention on a binary16 cache by the kernels installed beside torch (flash-attn, FlashInfer, torch's own), at the sizes
of bench_attend.c, and adds the best to its JSON, as a baseline for packed attention. Without torch or a GPU it prints that and changes
nothing.

    torch_baseline.py BENCH.json [--seconds S]
"""
import argparse
import json
import statistics
import sys
import time

D, KV_HEADS, GROUP = 128, 8, 4
COLD_BYTES = 256 << 20  # caches that calls use in rotation, as in the bench
SAMPLES = 30


def candidates(torch):
    """Names and functions (q [b, heads, d], k, v [b, tokens, kv heads, d]) -> a call without arguments."""
    found = []
    try:
        from flash_attn_interface import flash_attn_with_kvcache as fa3  # FlashAttention 3

        found.append(("flash-attn 3", lambda q, k, v: lambda: fa3(q[:, None], k, v)))
    except ImportError:
        pass
    try:
        from flash_attn import flash_attn_with_kvcache as fa2

        found.append(("flash-attn 2", lambda q, k, v: lambda: fa2(q[:, None], k, v)))
    except ImportError:
        pass
    try:
        import flashinfer

        def decode(q, k, v):
            workspace = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
            pages, size = q.shape[0] * (k.shape[1] // 64), 64
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
            indptr = torch.arange(q.shape[0] + 1, dtype=torch.int32, device="cuda") * (k.shape[1] // size)
            wrapper.plan(indptr, torch.arange(pages, dtype=torch.int32, device="cuda"),
                         torch.full((q.shape[0],), size, dtype=torch.int32, device="cuda"), KV_HEADS * GROUP, KV_HEADS, D, size,
                         q_data_type=torch.float16, kv_data_type=torch.float16)
            cache = (k.view(pages, size, KV_HEADS, D), v.view(pages, size, KV_HEADS, D))
            return lambda: wrapper.run(q, cache)

        found.append(("FlashInfer", decode))
    except ImportError:
        pass
    attention = torch.nn.functional.scaled_dot_product_attention

    def own(q, k, v):
        heads, keys, values = q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)
        return lambda: attention(heads, keys, values, enable_gqa=True)

    found.append(("torch", own))
    return found


def measure(torch, make, batch, tokens, seconds):
    """Microseconds of a call: minimum, median, p99; None if the caches do not fit into memory."""
    one = 2 * batch * tokens * KV_HEADS * D * 2
    sets = max(1, min(16, COLD_BYTES // one + 1))
    if sets * one > 0.8 * torch.cuda.mem_get_info()[0]:
        return None
    q = torch.randn(batch, KV_HEADS * GROUP, D, dtype=torch.float16, device="cuda")
    shape = (batch, tokens, KV_HEADS, D)
    calls = [make(q, torch.randn(shape, dtype=torch.float16, device="cuda"), torch.randn(shape, dtype=torch.float16, device="cuda"))
             for _ in range(sets)]
    for call in calls:
        call()
    torch.cuda.synchronize()
    begun, samples = time.monotonic(), []
    while len(samples) < SAMPLES and (len(samples) < 3 or time.monotonic() - begun < seconds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for call in calls:
            call()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / sets)
    samples.sort()
    return {"min": samples[0], "median": statistics.median(samples), "p99": samples[-1 - len(samples) // 100]}


def merge(bench, timed):
    """Adds to each row with a shape timed here the best of @timed at its size, and the ratio to it."""
    bench["installed"] = timed
    best = {}
    for row in timed:
        size = row["batch"], row["tokens"]
        if size not in best or row["us"]["median"] < best[size]["us"]["median"]:
            best[size] = row
    for row in bench["attend"]:
        size = row["batch"], row["tokens"]
        if size in best and row["fits"] and row["f16_bytes"] == 2 * row["batch"] * row["tokens"] * KV_HEADS * D * 2:
            row["installed"] = best[size]["name"]
            row["ratio_to_installed"] = best[size]["us"]["median"] / row["packed_us"]["median"]


def show(bench):
    print("%-24s %5s %7s  %-14s %11s %6s %6s" % ("table", "batch", "tokens", "installed", "ratio", "must", "aim"))
    for row in bench["attend"]:
        if "installed" in row:
            print("%-24s %5d %7d  %-14s %11.2f %6s %6s" %
                  (row["table"], row["batch"], row["tokens"], row["installed"], row["ratio_to_installed"],
                   *("%.2f" % row[x] if row[x] else "" for x in ("must", "aim"))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("json")
    parser.add_argument("--seconds", type=float, default=1, help="seconds for the samples of one kernel at one size")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed")
        return 0
    if not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        return 0
    with open(args.json) as f:
        bench = json.load(f)
    timed = []
    for batch, tokens in sorted({(row["batch"], row["tokens"]) for row in bench["attend"] if row["fits"]}):
        for name, make in candidates(torch):
            try:
                us = measure(torch, make, batch, tokens, args.seconds)
            except Exception as error:  # a kernel may refuse the shape or the GPU; measure the others
                print("%s, batch %d, %d tokens: %s" % (name, batch, tokens, str(error).split("\n")[0]), file=sys.stderr)
                us = None
            torch.cuda.empty_cache()
            if us:
                timed.append({"name": name, "batch": batch, "tokens": tokens, "us": us})
    merge(bench, timed)
    with open(args.json, "w") as f:
        json.dump(bench, f, indent=2)
    show(bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
