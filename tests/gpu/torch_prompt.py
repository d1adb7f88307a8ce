#!/usr/bin/env python3
"""What a shared prompt saves on a GPU: a model of random weights in the shape of Llama 3 8B, made here from a seed, computes a prompt, and
a KvCobraCache publishes it; a second cache finds it. Prints a table and writes JSON.

    torch_prompt.py KIT OUT.json [--tokens 8192] [--layers 32] [--hidden 4096] [--device cuda] [--samples 5]

KIT: the unpacked kit, with programs, libraries and the Python package. Times are of the host, around work that has ended:
computed    the forward pass over the whole prompt, to the logits of its last token
encoded     commit(): encoding on the GPU, copies to host memory, the requests to kvcobrad; the first commit of a client stands alone
found       match(), copies to the GPU and decoding, and the forward pass over the tokens that are left
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TABLES = (("3 bits", 3.0), ("4 bits", 4.0))


class Daemon:
    def __init__(self, kit, folder, arena, pool):
        self.kit, self.sockets = kit, [os.path.join(folder, name) for name in ("socket", "operator")]
        ready, write = os.pipe()
        self.process = subprocess.Popen(
            [os.path.join(kit, "bin/kvcobrad"), f"--socket={self.sockets[0]}", f"--operator-socket={self.sockets[1]}",
             f"--ready-fd={write}", f"--pool-bytes={pool}", f"--arena-bytes={arena}"], pass_fds=(write,))
        os.close(write)
        if os.read(ready, 1) == b"":
            sys.exit("kvcobrad did not start")
        os.close(ready)

    def activate(self, table):
        for action in ("stage", "activate"):
            subprocess.run([os.path.join(self.kit, "bin/kvcobra"), "table", action, table, "--socket", self.sockets[1]], check=True,
                           stdout=subprocess.DEVNULL)

    def close(self):
        self.process.terminate()
        self.process.wait(20)


def make_model(torch, args):
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = args.hidden // 128
    config = LlamaConfig(hidden_size=args.hidden, intermediate_size=args.hidden * 7 // 2, num_hidden_layers=args.layers,
                         num_attention_heads=heads, num_key_value_heads=max(1, heads // 4), head_dim=128, vocab_size=32000,
                         max_position_embeddings=2 * args.tokens, rope_theta=500000.0, attn_implementation="sdpa")
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(args.device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(before)
    return model


def make_table(kit, model, path, bits):
    from kvcobra.hf import _geometry

    g = _geometry.model_geometry(model)
    values = [path, 1, bits, "-", g.n_layers, g.n_heads, g.n_kv_heads, g.head_dim, repr(g.attn_scale), *map(repr, g.rope_freq)]
    done = subprocess.run([os.path.join(kit, "bin/write_table"), *map(str, values)], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def timed(torch, device, work):
    torch.cuda.synchronize(device)
    begun = time.perf_counter()
    result = work()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - begun) * 1e3, result


def spread(samples):
    samples = sorted(samples)
    return {"min": samples[0], "median": statistics.median(samples), "p99": samples[-1]}


def measure(torch, args, model, daemon, digest, bits):
    import kvcobra
    from kvcobra.hf import KvCobraCache

    computed, encoded, found, left, first = [], [], [], 0, 0.0
    client = kvcobra.Client(daemon.sockets[0], threads=4, gpu=args.device)
    for sample in range(args.samples + 1):  # the first one pays for the table's upload and for memory that is new
        generator = torch.Generator().manual_seed(100 * sample + 1)
        ids = torch.randint(0, 32000, (1, args.tokens), generator=generator).to(args.device)
        cache = KvCobraCache.from_model(model, client, model_id=digest)
        ms, _ = timed(torch, args.device, lambda: model(ids, past_key_values=cache, logits_to_keep=1))
        commit, published = timed(torch, args.device, cache.commit)
        if published != [args.tokens // 64 * 64]:
            sys.exit(f"{published} of {args.tokens} tokens were published")
        cache.reset()
        again = KvCobraCache.from_model(model, client, model_id=digest)

        def find():
            n = again.match(ids)
            model(ids[:, n:], past_key_values=again, logits_to_keep=1)
            return n

        hit, n = timed(torch, args.device, find)
        if n == 0:
            sys.exit("the prompt was not found")
        left = args.tokens - n
        again.reset()
        if sample:
            computed.append(ms)
            encoded.append(commit)
            found.append(hit)
        else:
            first = commit
    client.close()
    return {"table": bits, "tokens": args.tokens, "left_tokens": left, "computed_ms": spread(computed), "commit_ms": spread(encoded),
            "found_ms": spread(found), "found_share": statistics.median(found) / statistics.median(computed),
            "commit_share": statistics.median(encoded) / statistics.median(computed), "first_commit_ms": first}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kit")
    parser.add_argument("json")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--samples", type=int, default=5)
    args = parser.parse_args()
    try:
        import cffi  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as e:
        print(f"skipped: the Python module {e.name} is missing")
        return 77
    if not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        return 77
    torch.set_grad_enabled(False)
    begun = time.perf_counter()
    model = make_model(torch, args)
    print("%.1f s to make %.1f G weights" % (time.perf_counter() - begun, sum(p.numel() for p in model.parameters()) / 1e9))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(args.kit, folder, "1G", "8G")
        try:
            for bits, bpd in TABLES:
                begun = time.perf_counter()
                table = os.path.join(folder, f"{bpd}.table")
                digest = make_table(args.kit, model, table, bpd)
                daemon.activate(table)
                print("%.1f s to make and activate a table of %s" % (time.perf_counter() - begun, bits))
                rows.append(measure(torch, args, model, daemon, digest, bits))
        finally:
            daemon.close()
    print("%-8s %7s %5s  %30s  %30s  %30s  %8s %8s" % ("table", "tokens", "left", "computed ms (min, median, max)", "encoded and committed",
                                                     "found", "found/c.", "enc./c."))
    for r in rows:
        three = lambda k: "%.1f %.1f %.1f" % (r[k]["min"], r[k]["median"], r[k]["p99"])
        print("%-8s %7d %5d  %30s  %30s  %30s  %8.3f %8.3f" % (r["table"], r["tokens"], r["left_tokens"], three("computed_ms"),
                                                            three("commit_ms"), three("found_ms"), r["found_share"], r["commit_share"]))
    with open(args.json, "w") as f:
        json.dump({"device": torch.cuda.get_device_name(args.device), "torch": torch.__version__,
                   "transformers": transformers.__version__, "rows": rows}, f, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
