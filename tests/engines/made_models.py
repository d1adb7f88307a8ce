#!/usr/bin/env python3
"""What pages of a table cost on models of other kinds: SmolLM2 is made into them without training, so that keys and values have the
spectra of a real model.

    made_models.py [MODEL...] [--text FILE] [--bpd BITS] [--metric METRIC] [--calibrate TOKENS] [--prompt TOKENS]

For each model: statistics of the text's beginning, tables of one budget for all groups of layers, a kvcobrad that has them. A prompt
from the rest of the text is published, and a second cache takes it and computes the tokens after it. Printed: the mean KL of these
tokens from those of the model with its own exact cache, and of the same model whose cache was rounded to 4-bit numbers in blocks of 32
with a binary16 scale (4.5 bits per number), as llama.cpp's q4_0 does. The environment is that of engines.py, and KVC_HF_MODEL.
"""
import argparse
import os
import subprocess
import sys
import tempfile

from engines import Daemon, need

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache

import kvcobra
from kvcobra._calibrate import METRICS
from kvcobra.hf import KvCobraCache, _geometry
from test_hf import mean_kl
from test_hf_groups import interleave

WINDOW = 128
BLOCK = 32  # numbers with one scale in q4_0
MODEL_ID = bytes(range(32))


def every(n, config, special, usual):
    """A value for each layer: every @n-th, from the @n-th on, is @special."""
    return [special if i % n == n - 1 else usual for i in range(config.num_hidden_layers)]


def fuse(state, names, fused):
    """The rows of the projections @names of each layer become one projection."""
    for name in [n for n in state if n.endswith(names[0])]:
        stem = name[:-len(names[0])]
        state[stem + fused] = torch.cat([state.pop(stem + part) for part in names])


def phi(state):
    fuse(state, ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"), "self_attn.qkv_proj.weight")
    fuse(state, ("mlp.gate_proj.weight", "mlp.up_proj.weight"), "mlp.gate_up_proj.weight")
    return state


class WithoutExperts(torch.nn.Module):
    """An MLP in the place of experts, which return what their router said, too."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp = mlp

    def forward(self, x):
        return self.mlp(x), None


def without_experts(model, source):
    for layer, its in zip(model.model.layers, source.model.layers):
        layer.mlp = WithoutExperts(its.mlp)


# by name: the type of transformers, fields of its configuration, how weights are renamed, and what is changed afterwards
MADE = {
    "nothing changed": ("llama", lambda c: {}, None, None),
    "interleaved pairs": ("ernie4_5", lambda c: {"use_bias": False}, None, lambda model, source: interleave(model)),
    f"windows of {WINDOW} in every second layer": (
        "qwen2", lambda c: {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": every(2, c, "sliding_attention", "full_attention")},
        None, None),
    "no RoPE in every fourth layer": ("smollm3", lambda c: {"no_rope_layers": every(4, c, 0, 1), "use_sliding_window": False}, None, None),
    f"sinks, windows of {WINDOW} in every second layer": (
        "gpt_oss", lambda c: {"sliding_window": WINDOW, "layer_types": every(2, c, "full_attention", "sliding_attention"), "num_local_experts": 2,
                              "num_experts_per_tok": 1}, None, without_experts),
    "RoPE of half the dimensions": (
        "phi3", lambda c: {"rope_parameters": {**c.rope_parameters, "partial_rotary_factor": 0.5}}, phi, None),
}
SHARED_FIELDS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                 "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "rope_parameters", "bos_token_id", "eos_token_id", "pad_token_id")


def make(name, source):
    """The model @name with the weights of @source, a Llama. What it has beyond a Llama is 0, but sinks, which are drawn."""
    kind, fields, rename, change = MADE[name]
    config = AutoConfig.for_model(kind, **{**{f: getattr(source.config, f) for f in SHARED_FIELDS}, **fields(source.config)})
    if kind == "gpt_oss":  # its experts are not used
        config.intermediate_size = 32
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = {n: p.clone() for n, p in source.state_dict().items()}
    missing, unexpected = model.load_state_dict(rename(state) if rename else state, strict=False)
    with torch.no_grad():
        for n in missing:
            p = model.get_parameter(n)
            if n.endswith("sinks"):
                p.normal_(0, 2)
            elif n.endswith("bias"):
                p.zero_()
            elif ".mlp." not in n:
                raise AssertionError(f"{name}: {n} has no weights")
    left = [n for n in unexpected if not (kind == "gpt_oss" and ".mlp." in n)]
    if left:
        raise AssertionError(f"{name}: nothing takes {left[0]}")
    if change:
        change(model, source)
    return model


def q4_0(x):
    """@x rounded to 4-bit numbers, in blocks of 32 whose largest magnitude is 8 steps below zero."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    step = (largest / -8).half().float()
    codes = torch.where(step == 0, torch.zeros_like(blocks), blocks / step).add(8).round().clamp(0, 15) - 8
    return (codes * step).reshape(x.shape)


class Measured:
    """One made model: its tables, and the KL of what follows a prompt."""

    def __init__(self, name, source, tokenizer, folder):
        self.name, self.tokenizer, self.folder = name, tokenizer, folder
        self.model = make(name, source)
        self.groups = _geometry.model_groups(self.model)

    def solve(self, text, n_tokens, bpd, metric):
        """The table files of all groups, from the first tokens of @text."""
        done = kvcobra.calibrate(self.model, [text], output=os.path.join(self.folder, "made.stats"), tokenizer=self.tokenizer,
                                 tokens=n_tokens, window=min(n_tokens, 1024), metric=metric,
                                 model_id=MODEL_ID, own_share=0, progress=False)
        tables = os.path.join(self.folder, "tables")
        os.makedirs(tables, exist_ok=True)
        together = len(done.outputs) > 1
        command = [need("KVC_KVCOBRA"), "solve", *done.outputs, "--bpd", str(bpd), "-o",
                   tables if together else os.path.join(tables, "made.table"), "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return sorted(os.path.join(tables, t) for t in os.listdir(tables)), done.metric

    def run(self, cache, ids):
        with torch.no_grad():
            return self.model(ids, past_key_values=cache).logits

    def after_pages(self, tables, ids, n_prompt):
        """The logits of the tokens after a prompt that another cache published, and the true bits per number of its pages."""
        with Daemon("--pool-bytes=1G", "--arena-bytes=64M") as daemon:
            for table in tables:
                daemon.activate(table)
            with kvcobra.Client(daemon.socket) as client:
                first = KvCobraCache.from_model(self.model, client, model_id=MODEL_ID)
                self.run(first, ids)
                first.commit()
                cache = KvCobraCache.from_model(self.model, client, model_id=MODEL_ID)
                found = cache.match(ids[:, :n_prompt + 1])
                if found != n_prompt:
                    raise AssertionError(f"{self.name}: {found} of {n_prompt} tokens were found")
                # before anything else is in the sequences
                sizes = [len(group.layers) * s.usage.true_bpd for group, s in zip(self.groups, cache.sequences)]
                return self.run(cache, ids[:, n_prompt:]), sum(sizes) / sum(len(group.layers) for group in self.groups)

    def after_own(self, ids, n_prompt, change):
        """The same with the model's own cache, whose keys and values of the prompt are changed first."""
        self.model.set_attn_implementation("eager")
        cache = DynamicCache()
        self.run(cache, ids[:, :n_prompt])
        for layer in cache.layers:
            layer.keys, layer.values = change(layer.keys), change(layer.values)
        return self.run(cache, ids[:, n_prompt:])

    def measure(self, text, n_calibrate, n_prompt, bpd, metric=None, n_after=256):
        ids = self.tokenizer(text[1], return_tensors="pt").input_ids[:, :n_prompt + n_after]
        if ids.shape[1] < n_prompt + n_after:
            raise ValueError(f"the text after its calibrated part has {ids.shape[1]} tokens, {n_prompt + n_after} are needed")
        tables, metric = self.solve(text[0], n_calibrate, bpd, metric)
        pages, true_bpd = self.after_pages(tables, ids, n_prompt)
        want = self.after_own(ids, n_prompt, lambda x: x)
        return {"model": self.name, "groups": ", ".join(group.name for group in self.groups), "metric": metric, "true_bpd": true_bpd,
                "kl": mean_kl(want, pages), "kl_q4_0": mean_kl(want, self.after_own(ids, n_prompt, q4_0))}


def split_text(path, tokenizer, n_tokens):
    """The beginning of a text, with @n_tokens and a few more, and the rest."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    offsets = tokenizer(text, return_offsets_mapping=True).offset_mapping
    if len(offsets) <= n_tokens + 64:
        raise ValueError(f"{path} has {len(offsets)} tokens, which is too few for {n_tokens} to calibrate with")
    at = offsets[n_tokens + 64][0]
    return text[:at], text[at:]


def measure_all(names, path, n_calibrate, n_prompt, bpd, metric=None):
    """A dictionary of measurements for each model of @names."""
    folder = need("KVC_HF_MODEL")
    source = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = split_text(path, tokenizer, n_calibrate)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="kvcobra-made-") as work:
            yield Measured(name, source, tokenizer, work).measure(text, n_calibrate, n_prompt, bpd, metric)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", metavar="MODEL", nargs="*", help=f"of: {'; '.join(MADE)}. None: all")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--bpd", type=float, default=3)
    parser.add_argument("--calibrate", type=int, default=4096, metavar="TOKENS")
    parser.add_argument("--metric", choices=METRICS, help="of the statistics; without it that of kvcobra.calibrate()")
    parser.add_argument("--prompt", type=int, default=1024, metavar="TOKENS", help="a multiple of 64")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MADE]
    if unknown:
        parser.error(f"there is no model '{unknown[0]}'; models: {'; '.join(MADE)}")
    if options.prompt % 64 != 0 or options.prompt < 64:
        parser.error("--prompt is a multiple of 64")
    print("| SmolLM2 with | groups of layers | metric | true bits per number | mean KL | q4_0, 4.5 bits | ratio |\n|---|---|---|---|---|---|---|")
    for m in measure_all(options.models or MADE, options.text, options.calibrate, options.prompt, options.bpd, options.metric):
        print(f"| {m['model']} | {m['groups']} | {m['metric']} | {m['true_bpd']:.2f} | {m['kl']:.4f} | {m['kl_q4_0']:.4f} "
              f"| {m['kl'] / m['kl_q4_0']:.2f} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as e:
        sys.exit(f"made_models.py: {e}")
