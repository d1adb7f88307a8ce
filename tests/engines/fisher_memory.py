#!/usr/bin/env python3
"""Peak memory of metric fisher of kvcobra.calibrate() against a forward pass of the same window.

    fisher_memory.py [FOLDER] [--window N]

FOLDER: a model of transformers; none: a random one of 1.1 billion parameters in bfloat16 (the shape of Llama 3.2 1B). Each case is a
process of its own. What statistics take is not counted: kvc_stats_get_estimate() of kvcobra-alloc.h tells it.
"""
import argparse
import resource
import subprocess
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def load(folder):
    if folder:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=64, vocab_size=128256, max_position_embeddings=8192, tie_word_embeddings=True)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.bfloat16().to_empty(device="cpu").eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.02)
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


class Nothing:
    """Takes what statistics would get, and keeps nothing."""

    def add_layer(self, *arguments):
        pass

    def add_gradients(self, *arguments):
        pass


def case(name, folder, window):
    model = load(folder)
    tokens = torch.randint(5, 1000, (window,)).tolist()
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if name == "forward":
        with torch.no_grad():
            model(input_ids=torch.tensor([tokens]), use_cache=False)
    elif name == "fisher":
        from kvcobra.hf._recorder import Recorder
        recorder = Recorder(model, "fisher")
        with recorder.recording([Nothing()]):
            recorder.run(1, tokens, lambda share: None)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(before, after, time.process_time() - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.case:
        case(a.case, a.folder, a.window)
        return
    peaks = {}
    for name in ("forward", "fisher"):
        done = subprocess.run([sys.executable, "-B", __file__, a.folder, "--window", str(a.window), "--case", name], check=True,
                              capture_output=True, text=True)
        before, after, seconds = map(float, done.stdout.split()[-3:])
        peaks[name] = after
        print(f"{name:8s} {after / 1024:6.0f} MiB at the peak, {(after - before) / 1024:6.0f} above the loaded model; {seconds:.0f} s of processor time",
              flush=True)
    print(f"fisher takes {peaks['fisher'] / peaks['forward']:.2f} times the peak of a forward pass")


if __name__ == "__main__":
    main()
