"""The models of ladder.py: folders, tables, and prompts. Those that are made are tiny and random; their tables are calibrated."""
import copy
import os
import random
import subprocess

import engines
import kvcobra

VOCABULARY = 512


FINE_BITS = "8"  # of tables whose error hides little


def solve(stats, bits):
    table = f"{stats[:-len('.stats')]}-{bits}.table"
    subprocess.run([engines.need("KVC_KVCOBRA"), "solve", stats, "--bpd", bits, "-o", table], check=True, capture_output=True)
    return table


class Model:
    """folder, with binary32 for transformers, and exact_folder for vLLM; tables and second_tables: of the groups of layers; digests: of these."""

    n_positions = 16384
    small_pool = "--pool-bytes=1M", "--extent-bytes=1M", "--span-bytes=128K"
    n_flood = {"short": 30, "long": 60}
    stride = {"short": 1, "long": 1}
    block_tokens = 64
    n_measured = 48  # prompts that a bound is taken from
    engines = frozenset({"transformers", "transformers-exact", "vllm", "vllm-own"})

    def __init__(self, name):
        self.name = name
        self._random = random.Random(7)

    def prompt(self, n):
        """@n tokens that no other prompt begins with."""
        return [self._random.randrange(3, VOCABULARY) for _ in range(n)]


class SmolLM2(Model):
    """A real model: prompts are pieces of the project's documents."""

    n_positions = 8192
    small_pool = "--pool-bytes=8M", "--extent-bytes=8M", "--span-bytes=1M"
    n_flood = {"short": 12, "long": 40}
    stride = {"short": 1, "long": 9}
    n_measured = 12
    engines = frozenset({"transformers", "vllm", "vllm-own"})
    PAGES = "DESIGN.md", "CONVENTIONS.md", "README.md", "client/README.md", "daemon/README.md", "SECURITY.md"

    def __init__(self, folder):
        from transformers import AutoTokenizer

        self._made = folder
        super().__init__("SmolLM2-135M")
        folders = engines.need("KVC_ENGINE_MODELS")
        self.folder, self.exact_folder = (os.path.join(folders, name) for name in ("f32", "bf16"))
        self.tables, self.second_tables = [engines.need("KVC_ENGINE_TABLE")], [engines.need("KVC_ENGINE_SECOND_TABLE")]
        self.model_id = engines.table_model(self.tables[0])
        self.digests, self.vocabulary = [self.model_id], 49152
        text = ""
        for page in self.PAGES:
            with open(engines.source(page), encoding="utf-8") as file:
                text += file.read()
        self._ids = AutoTokenizer.from_pretrained(self.folder)(text, add_special_tokens=False, verbose=False)["input_ids"]
        self._at = 0

    def fine_tables(self):
        os.makedirs(self._made, exist_ok=True)
        stats = os.path.join(self._made, "smollm2.stats")
        texts = [argument for page in ("DESIGN.md", "client/kvcobra.h") for argument in ("--text", engines.source(page))]
        subprocess.run([engines.need("KVC_KVCOBRA"), "calibrate", engines.need("KVC_ENGINE_GGUF"), *texts, "--tokens", "4096", "-o", stats, "--quiet"],
                       check=True, capture_output=True)
        return [solve(stats, FINE_BITS)]

    def prompt(self, n):
        self._at += 41
        return self._ids[self._at:self._at + n]


class Tiny(Model):
    """A model of a type of transformers with random weights."""

    kind, changes = "llama", {}
    bits = "3", "4"

    def __init__(self, folder):
        from kvcobra.hf._geometry import model_groups
        from test_hf import make_model
        from test_vllm_tiny import Ids

        super().__init__(f"tiny {self.kind}")
        os.makedirs(folder)
        self.vocabulary = VOCABULARY
        named = dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=VOCABULARY,
                     max_position_embeddings=self.n_positions, **self.changes)
        model = make_model(self.kind, **named)
        self.group_names = [group.name for group in model_groups(model)]
        self.shapes = [(group.geometry, group.kind.pairs) for group in model_groups(model)]
        self.exact_folder = self.folder = os.path.join(folder, "model")
        copy.deepcopy(model).bfloat16().save_pretrained(self.folder)
        self.model_id = (self.kind.encode() + bytes(32))[:32].hex()
        done = kvcobra.calibrate(model, [2200 * "word "], output=os.path.join(folder, "m.stats"), tokenizer=Ids(VOCABULARY), tokens=2000, window=250,
                                 metric="mse", model_id=bytes.fromhex(self.model_id), own_share=0, progress=False)
        self.tables, self.second_tables = ([solve(path, bits) for path in done.outputs] for bits in self.bits)
        self._stats = done.outputs
        self.digests = [engines.table_model(table) for table in self.tables]

    def fine_tables(self):
        return [solve(path, FINE_BITS) for path in self._stats]


class Grouped(Tiny):
    """Layers of several kinds have pages of their own, which need a span each."""

    small_pool = "--pool-bytes=2M", "--extent-bytes=2M", "--span-bytes=128K"


class Gemma(Grouped):
    kind, changes = "gemma3_text", {"num_hidden_layers": 6, "sliding_window": 128}


class GptOss(Grouped):
    kind, changes = "gpt_oss", {"num_hidden_layers": 4, "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2}
    engines = frozenset({"vllm", "vllm-own"})


MODELS = {"smollm2": SmolLM2, "tiny-llama": Tiny, "tiny-gemma": Gemma, "tiny-gpt-oss": GptOss}
