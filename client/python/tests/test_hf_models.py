"""docs/models.md: what each kind of model can do, measured on a small random one of it. Skipped without torch and transformers.

    python test_hf_models.py                    compares the page with what is measured
    python test_hf_models.py --write PAGE       writes the table into the page
"""
import os
import sys

import support

try:
    import torch
except ImportError as e:
    print(f"skipped: torch and transformers are needed: {e}")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra.hf import _geometry
from kvcobra.hf._recorder import Recorder
from test_calibrate import Recorded
from test_hf import HALF_SPLIT, INTERLEAVED, MOE, ids, make_model, mean_kl
from test_hf_groups import KINDS, MLA, GroupsCase

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
LINEAR = dict(num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=32, linear_value_head_dim=32)
HYBRID = dict(MLA, num_hidden_layers=4, layer_types=3 * ["linear_attention"] + ["full_attention"])
NAMES = {"apertus": "Apertus", "axk1": "A.X K1", "cohere": "Command R", "cohere2": "Command R7B (Cohere 2)", "deepseek_v2": "DeepSeek V2", "deepseek_v3":
         "DeepSeek V3, R1, Kimi K2", "deepseek_v32": "DeepSeek V3.2", "dots1": "dots.llm1", "ernie4_5": "Ernie 4.5", "ernie4_5_moe": "Ernie 4.5, experts", "exaone4":
         "EXAONE 4, full attention", "gemma": "Gemma", "gemma2": "Gemma 2", "gemma3_text": "Gemma 3", "gemma4_text": "Gemma 4", "glm4": "GLM-4", "glm4_moe":
         "GLM-4.5", "glm4_moe_lite": "GLM-4.7-Flash", "glm_moe_dsa": "GLM-5", "gpt2": "GPT-2", "gpt_oss": "gpt-oss", "granite": "Granite 3", "granitemoe": "Granite 3, experts", "hunyuan_v1_dense":
         "Hunyuan, dense", "kimi_linear": "Kimi Linear", "longcat_flash": "LongCat-Flash", "llama": "Llama 2 and 3, SmolLM2", "llama4_text": "Llama 4", "minicpm3": "MiniCPM3", "minimax_m2": "MiniMax-M2", "ministral":
         "Ministral", "mistral": "Mistral without a window", "mixtral": "Mixtral", "nemotron": "Nemotron", "olmo2": "OLMo 2", "olmo3":
         "OLMo 3", "olmoe": "OLMoE", "phi3": "Phi-3 to a window's length", "qwen2": "Qwen2, Qwen2.5", "qwen2_moe": "Qwen2, experts",
         "qwen3": "Qwen3", "qwen3_5_text": "Qwen3.5", "qwen3_moe": "Qwen3, experts", "qwen3_next": "Qwen3-Next", "seed_oss": "Seed-OSS",
         "smollm3": "SmolLM3", "stablelm": "StableLM", "starcoder2": "StarCoder2", "youtu": "Youtu-LLM"}
WINDOWED = {"mistral": "Mistral 0.1, a window in every layer", "qwen2": "Qwen2 with use_sliding_window"}
REFUSED = {"gemma4_text": {}, "deepseek_v32": MLA, "glm_moe_dsa": MLA, "kimi_linear": HYBRID, "qwen3_next": dict(LINEAR, **MOE), "qwen3_5_text": LINEAR,
           "llama4_text": dict(num_local_experts=2, attention_chunk_size=128), "gpt2": dict(n_embd=256, n_head=4)}


def models():
    """(name, type, changes) of every row, by name."""
    rows = [(NAMES[kind], kind, {}) for kind in HALF_SPLIT + INTERLEAVED]
    rows += [(WINDOWED.get(kind, NAMES[kind]), kind, changes) for kind, (changes, _, _) in KINDS.items()]
    rows += [(NAMES[kind], kind, changes) for kind, changes in REFUSED.items()]
    return sorted(rows, key=lambda row: row[0].lower())


def reason_of(call):
    try:
        return call(), ""
    except ValueError as e:
        return None, str(e)


class Page(GroupsCase):
    def calibrate(self, model):
        for metric in ("output", "fisher"):
            recorder, reason = reason_of(lambda: Recorder(model, metric))
            if recorder is not None:
                with recorder.recording([Recorded() for _ in recorder.groups]):
                    recorder.run(1, list(range(1, 65)), lambda share: None)
                return "`output`, `fisher`" if metric == "output" else "`fisher`"
        return f"no: {reason}"

    def transformers(self, model):
        """An exact piece must be what the model computes."""
        groups, reason = reason_of(lambda: _geometry.cache_groups(model))
        if groups is None:
            return f"no: {reason}"
        text, _ = ids(150)
        want = self.own(model, input_ids=text, use_cache=False)
        tables = self.tables(model)
        cache = kvcobra.hf.KvCobraCache.from_model(model, self.client, table=tables if len(groups) > 1 else next(iter(tables.values())))
        self.assertLess(mean_kl(want, self.run_model(model, cache, input_ids=text)), 1e-6)
        return "yes, dense keys" if _geometry.needs_dense(groups) else "yes"

    def vllm(self, model):
        """As the connector decides at the start of an engine; test_vllm_tiny.py runs engines with a Llama, a Gemma 3, a gpt-oss and a DeepSeek V3."""
        _, reason = reason_of(lambda: _geometry.cache_groups(model))
        return f"no: {reason}" if reason else "yes"

    def row(self, name, kind, changes):
        model = make_model(kind, **changes)
        groups, _ = reason_of(lambda: _geometry.model_groups(model))
        kinds = "; ".join(g.name if not g.kind.pairs == "interleaved" else f"{g.name}, interleaved" for g in groups or ())
        cells = [name, f"`{kind}`", kinds.replace("window-70", "window") or "-", self.calibrate(model), self.transformers(model), self.vllm(model)]
        if cells[3].startswith("no") and cells[4] == cells[5] == cells[3]:
            cells[4] = cells[5] = "no"
        return "| " + " | ".join(cells) + " |"

    def measure(self):
        lines = []
        for row in models():
            with self.subTest(row[0]):
                lines.append(self.row(*row))
        head = "| model | type | groups of layers | calibrate | transformers | vLLM |\n|---|---|---|---|---|---|"
        return "\n".join([head, *lines])

    def test_the_page(self):
        with open(page(), encoding="utf-8") as file:
            written = file.read().split(BEGIN)[1].split(END)[0].strip()
        self.assertEqual(written, self.measure())


def page():
    return os.path.join(support.program("KVC_SOURCE_ROOT"), "docs/models.md")


class Write(Page):
    """Not a test: writes the page."""

    def test_the_page(self):
        with open(page(), encoding="utf-8") as file:
            before, _, after = file.read().partition(BEGIN)
        table = self.measure()
        with open(page(), "w", encoding="utf-8") as file:
            file.write(f"{before}{BEGIN}\n{table}\n{END}{after.partition(END)[2]}")


if __name__ == "__main__":
    import unittest
    writes = "--write" in sys.argv[1:]
    result = unittest.TextTestRunner(verbosity=2).run((Write if writes else Page)("test_the_page"))
    sys.exit(not result.wasSuccessful())
