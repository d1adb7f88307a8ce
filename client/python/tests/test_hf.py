"""KvCobraCache with transformers, on small random models. Skipped without torch and transformers."""
import copy
import logging
import os
import subprocess
import sys
import unittest

import support

try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
except ImportError as e:
    print(f"skipped: torch and transformers are needed: {e}")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra.hf import KvCobraCache, model_geometry

COMMON = dict(vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, head_dim=64, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=None)
MOE = dict(num_local_experts=4, num_experts=4, n_routed_experts=4, num_experts_per_tok=2)
PER_TYPE = {"gemma4_text": dict(vocab_size_per_layer_input=128, hidden_size_per_layer_input=32),
            "granite": dict(attention_multiplier=0.1), "mistral": dict(sliding_window=None),
            "exaone4": dict(sliding_window=None, sliding_window_pattern=None, layer_types=["full_attention"] * 3),
            "dots1": dict(MOE, n_group=1, topk_group=1, sliding_window=None, first_k_dense_replace=1, n_shared_experts=1),
            "glm4_moe": dict(MOE, n_group=1, topk_group=1), "ernie4_5_moe": dict(moe_num_experts=4, moe_k=2, moe_num_shared_experts=1),
            "qwen2_moe": dict(MOE, shared_expert_intermediate_size=32), "starcoder2": dict(sliding_window=None),
            "granitemoe": dict(MOE, attention_multiplier=0.1), "cohere": dict(logit_scale=1.0),
            **{kind: MOE for kind in ("minimax_m2", "mixtral", "olmoe", "qwen3_moe")}}
SMALL_EXPERTS = ("dots1", "ernie4_5_moe", "glm4_moe", "qwen2_moe", "qwen3_moe")
# these derive the size of a head from that of a token
DERIVED = ("apertus", "cohere", "granite", "granitemoe", "mixtral", "nemotron", "olmo2", "olmoe", "phi3", "qwen2", "qwen2_moe",
           "stablelm", "starcoder2")
HALF_SPLIT = ("apertus", "dots1", "exaone4", "gemma", "glm4_moe", "granite", "granitemoe", "hunyuan_v1_dense", "llama", "minimax_m2",
              "mistral", "mixtral", "nemotron", "olmo2", "olmoe", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss",
              "stablelm", "starcoder2")
INTERLEAVED = ("cohere", "ernie4_5", "ernie4_5_moe", "glm4")
SHARPNESS = {"nemotron": 5}  # its MLP squares, and with 8 rounding to binary16 shows in the logits
WRONG_POSITIONS = transformers.__version__.startswith("5.2.")  # its prefill in pieces changes the answer of any cache


def make_model(kind="llama", dtype=torch.float32, **changes):
    torch.manual_seed(1)
    named = {**COMMON, **PER_TYPE.get(kind, {}), **changes}
    if kind in DERIVED:
        named["hidden_size"] = 256  # these derive the size of a head
    if kind in SMALL_EXPERTS:
        named["moe_intermediate_size"] = 32
    config = AutoConfig.for_model(kind, **named)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():  # attention that is far from uniform
        for layer in getattr(getattr(model, "model", None), "layers", ()):
            for name, p in layer.self_attn.named_parameters() if hasattr(layer, "self_attn") else ():
                if p.ndim == 2:
                    p.mul_(SHARPNESS.get(kind, 8))
    return model


def ids(*lengths, seed=2):
    """Left-padded random texts and their mask."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    texts = torch.randint(1, 128, (len(lengths), width), generator=generator)
    mask = torch.ones_like(texts)
    for i, n in enumerate(lengths):
        texts[i, :width - n], mask[i, :width - n] = 0, 0
    return texts, mask


def mean_kl(a, b):
    """KL(a || b) of logits [..., vocabulary], in binary64."""
    a, b = a.double().log_softmax(-1), b.double().log_softmax(-1)
    return (a.exp() * (a - b)).sum(-1).mean().item()


class HfCase(support.Case):
    def setUp(self):
        super().setUp()
        self.client = kvcobra.Client(False)
        self.addCleanup(self.client.close)

    def cache(self, model, client=None, **options):
        """A cache with a random table that fits @model."""
        path = os.path.join(self.folder, "model.table")
        support.write_table(path, model_geometry(model))
        return KvCobraCache.from_model(model, client or self.client, table=path, **options)

    def exact(self, model, **named):
        """Output with the model's own attention and cache."""
        model.set_attn_implementation("sdpa")
        with torch.no_grad():
            return model(past_key_values=DynamicCache(), **named)

    def run_model(self, model, cache, **named):
        with torch.no_grad():
            return model(past_key_values=cache, **named).logits


class Exactness(HfCase):
    """A piece that is appended at once is exact."""

    def check_kind(self, kind, limit=1e-6, **changes):
        model = make_model(kind, **changes)
        text, mask = ids(100)
        want = self.exact(model, input_ids=text).logits
        cache = self.cache(model)
        got = self.run_model(model, cache, input_ids=text)
        self.assertFalse(cache.is_plain)
        self.assertEqual((cache.get_seq_length(), cache.sequences[0].length), (100, 100))
        self.assertLess(mean_kl(want, got), limit)
        # the same last token behind another order of the others
        other = self.exact(model, input_ids=torch.cat([torch.flip(text[:, :99], (1,)), text[:, 99:]], 1))
        self.assertGreater(mean_kl(want[:, -1], other.logits[:, -1]), 1000 * limit)  # the measure sees attention

    def test_all_model_types(self):
        for kind in HALF_SPLIT + INTERLEAVED:
            with self.subTest(kind):
                self.check_kind(kind)

    def test_rope_types(self):
        for rope in (dict(rope_type="linear", factor=4.0),
                     dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=1024),
                     dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024)):
            with self.subTest(rope["rope_type"]):
                model = make_model(rope_parameters={"rope_theta": 10000.0, **rope})
                text, _ = ids(100)
                want = self.exact(model, input_ids=text).logits
                self.assertLess(mean_kl(want, self.run_model(model, self.cache(model), input_ids=text)), 1e-6)

    def test_sixteen_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(str(dtype)):
                model = make_model(dtype=dtype)
                text, _ = ids(100)
                want = self.exact(model, input_ids=text).logits
                got = self.run_model(model, self.cache(model), input_ids=text)
                self.assertEqual(got.dtype, dtype)
                self.assertLess(mean_kl(want, got), 5e-3)  # both round to 16 bits, in different places

    def test_partial_rotation(self):
        self.check_kind("phi3", rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})

    def test_pieces_and_steps(self):
        """Tokens of the tail are exact to binary16 whatever the pieces; the texts are shorter than what is packed."""
        model = make_model()
        text, _ = ids(120)
        want = self.exact(model, input_ids=text).logits
        cache = self.cache(model)
        got = torch.cat([self.run_model(model, cache, input_ids=text[:, a:b]) for a, b in ((0, 50), (50, 119), (119, 120))], 1)
        self.assertLess(mean_kl(want, got), 1e-4)

    def test_a_batch_with_padding(self):
        model = make_model()
        text, mask = ids(100, 37, 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = self.cache(model)
        got = self.run_model(model, cache, input_ids=text, attention_mask=mask, position_ids=positions)
        for i, n in enumerate((100, 37, 1)):
            want = self.exact(model, input_ids=text[i:i + 1, 100 - n:]).logits
            model.set_attn_implementation("kvcobra")
            self.assertLess(mean_kl(want[0], got[i, 100 - n:]), 1e-6)
            self.assertEqual(cache.sequences[i].length, n)
        # the next step, and pieces in which a row has nothing but padding
        cache.reset()
        for a, b in ((0, 30), (30, 80), (80, 100)):
            last = self.run_model(model, cache, input_ids=text[:, a:b], attention_mask=mask[:, :b], position_ids=positions[:, a:b])
        self.assertEqual([s.length for s in cache.sequences], [100, 37, 1])
        self.assertLess(mean_kl(got[:, 80:], last), 1e-4)


class Generation(HfCase):
    """generate() gives what the model's own cache gives, while nothing is packed: texts are short."""

    def setUp(self):
        super().setUp()
        self.model = make_model()
        self.text, self.mask = ids(40, 25)

    def generate(self, cache, **options):
        torch.manual_seed(5)
        self.model.set_attn_implementation("kvcobra" if isinstance(cache, KvCobraCache) else "sdpa")
        options = {"max_new_tokens": 12, "do_sample": False, **options}
        return self.model.generate(self.text, attention_mask=self.mask, past_key_values=cache, **options)

    def same(self, **options):
        want = self.generate(DynamicCache(), **options)
        cache = self.cache(self.model)
        got = self.generate(cache, **options)
        self.assertEqual(got.tolist(), want.tolist())
        return cache

    def test_greedy(self):
        cache = self.same()
        self.assertEqual(cache.get_seq_length(), 51)
        self.assertEqual([s.length for s in cache.sequences], [51, 36])

    def test_sampling(self):
        self.same(do_sample=True, temperature=0.7, top_k=20)

    def test_several_results(self):
        self.same(do_sample=True, num_return_sequences=3)

    def test_beams(self):
        cache = self.same(num_beams=4)
        self.assertEqual(len(cache.sequences), 8)

    def test_prefill_in_pieces(self):
        if WRONG_POSITIONS:
            self.skipTest("generate() of this version of transformers gives wrong positions with prefill_chunk_size")
        self.text, self.mask = self.text[:1], self.mask[:1]
        self.same(prefill_chunk_size=16)

    def test_assisted(self):
        """The assistant proposes tokens, and the cache is cropped where they are refused."""
        self.text, self.mask = self.text[:1], self.mask[:1]
        assistant = make_model(num_hidden_layers=1)
        self.same(assistant_model=assistant, eos_token_id=127)
        self.same(prompt_lookup_num_tokens=3, eos_token_id=127)

    def test_assisted_across_chunks(self):
        """A repeatable cache packs every full chunk, so that refused tokens may be in a page."""
        self.text, self.mask = ids(60)
        cache = self.cache(self.model, repeatable=True)
        want = self.generate(self.cache(self.model, repeatable=True), max_new_tokens=20, eos_token_id=127)
        got = self.generate(cache, max_new_tokens=20, eos_token_id=127, assistant_model=make_model(num_hidden_layers=1))
        self.assertEqual(got.tolist(), want.tolist())

    def test_a_long_text_is_packed(self):
        self.text, self.mask = ids(300, 170)
        cache = self.cache(self.model)
        out = self.generate(cache)
        self.assertEqual(out.shape, (2, 312))
        self.assertGreater(cache.sequences[0].usage.code_bytes, 0)

    def test_going_on(self):
        """A second generate() with the first one's output and cache."""
        self.text, self.mask = self.text[:1], self.mask[:1]
        results = []
        for cache in (DynamicCache(), self.cache(self.model)):
            text, mask = self.text, self.mask
            for _ in range(2):
                self.text = self.generate(cache)
                self.mask = torch.ones_like(self.text)
            results.append(self.text.tolist())
            self.text, self.mask = text, mask
        self.assertEqual(*results)

    def test_other_caches_work(self):
        want = self.generate(DynamicCache())
        self.cache(self.model)
        torch.manual_seed(5)
        got = self.model.generate(self.text, attention_mask=self.mask, max_new_tokens=12, do_sample=False)
        self.assertEqual(self.model.config._attn_implementation, "kvcobra")
        self.assertEqual(got.tolist(), want.tolist())

    def test_static_caches_work(self):
        """transformers makes the mask of a static cache outside of the forward pass, and asks it for what a tensor has."""
        want = self.generate(DynamicCache())
        self.generate(self.cache(self.model))
        got = self.model.generate(self.text, attention_mask=self.mask, max_new_tokens=12, do_sample=False, cache_implementation="static")
        self.assertEqual(got.tolist(), want.tolist())

    def test_a_deep_copy_goes_on_alone(self):
        """transformers' recipe for one prefix and several questions."""
        text, _ = ids(160)
        first = self.cache(self.model)
        self.run_model(self.model, first, input_ids=text[:, :150])
        other = copy.deepcopy(first)
        a = self.run_model(self.model, first, input_ids=text[:, 150:])
        self.assertEqual((first.get_seq_length(), other.get_seq_length()), (160, 150))
        b = self.run_model(self.model, other, input_ids=text[:, 150:])
        torch.testing.assert_close(a, b)
        first.reset()
        self.assertEqual([s.length for s in other.sequences], [160])


class Rows(HfCase):
    """Operations on rows."""

    def setUp(self):
        super().setUp()
        self.model = make_model()
        self.text, _ = ids(50, 50)
        self.filled = self.cache(self.model)
        self.run_model(self.model, self.filled, input_ids=self.text)

    def step(self, cache, text):
        return self.run_model(self.model, cache, input_ids=text)

    def test_crop(self):
        fresh = self.cache(self.model)
        self.step(fresh, self.text[:, :30])
        self.filled.crop(-20)
        self.assertEqual((self.filled.get_seq_length(), self.filled.sequences[0].length), (30, 30))
        self.assertLess(mean_kl(self.step(fresh, self.text[:, 30:]), self.step(self.filled, self.text[:, 30:])), 1e-9)
        self.filled.crop(10)  # a positive number is what stays
        self.assertEqual(self.filled.get_seq_length(), 10)
        self.filled.crop(0)
        self.filled.crop(-20)
        self.assertEqual(self.filled.get_seq_length(), 0)
        text, mask = ids(9, 4)  # another padding than before
        self.run_model(self.model, self.filled, input_ids=text, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
        self.assertEqual([s.length for s in self.filled.sequences], [9, 4])

    def test_crop_into_a_page(self):
        """The rest of a chunk is computed again, for rows whose chunks end in different columns."""
        text, mask = ids(250, 220)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache, fresh = self.cache(self.model), self.cache(self.model)
        for a, b in ((0, 240), (240, 250)):  # the second pass packs chunks
            self.run_model(self.model, cache, input_ids=text[:, a:b], attention_mask=mask[:, :b], position_ids=positions[:, a:b])
        cache.crop(110)
        self.assertEqual(([s.length for s in cache.sequences], cache.get_seq_length()), ([110, 80], 110))
        last = dict(input_ids=text[:, 110:115], attention_mask=mask[:, :115], position_ids=positions[:, 110:115])
        self.run_model(self.model, fresh, input_ids=text[:, :110], attention_mask=mask[:, :110], position_ids=positions[:, :110])
        self.assertLess(mean_kl(self.run_model(self.model, fresh, **last), self.run_model(self.model, cache, **last)), 0.05)
        cache.crop(64)
        self.assertEqual([s.length for s in cache.sequences], [64, 34])
        self.assertEqual([row.tokens for row in cache._rows.rows], [text[0, :64].tolist(), text[1, 30:64].tolist()])

    def test_crop_into_a_page_of_unknown_tokens_is_refused(self):
        cache = self.cache(self.model)
        embeddings = self.model.get_input_embeddings()(ids(250)[0])
        for a, b in ((0, 240), (240, 250)):
            self.run_model(self.model, cache, inputs_embeds=embeddings[:, a:b])
        with self.assertRaisesRegex(ValueError, "cannot be cropped to 70"):
            cache.crop(70)
        self.assertEqual((cache.sequences[0].length, cache.get_seq_length()), (250, 250))
        cache.crop(64)
        self.assertEqual(cache.sequences[0].length, 64)

    def test_select(self):
        self.filled.batch_repeat_interleave(2)
        self.filled.reorder_cache(torch.tensor([3, 0, 0, 1]))
        text = ids(1, 1, 1, 1)[0]
        want = self.cache(self.model)
        self.step(want, self.text[[1, 0, 0, 0]])
        self.assertLess(mean_kl(self.step(want, text), self.step(self.filled, text)), 1e-9)
        self.filled.batch_select_indices(torch.tensor([2]))
        self.assertEqual(len(self.filled.sequences), 1)

    def test_reset(self):
        self.filled.reset()
        self.assertEqual((self.filled.get_seq_length(), self.filled.sequences), (0, []))
        self.step(self.filled, ids(3, 3, 3)[0])
        self.assertEqual(len(self.filled.sequences), 3)
        self.filled.close()
        self.filled.close()

    def test_refused_inputs(self):
        text, mask = ids(10, 5)
        right = torch.flip(mask, (1,))
        more = torch.cat([torch.ones(2, 50, dtype=torch.long), mask], 1)
        for words, named in [("3 rows|has 2 rows", dict(input_ids=ids(5, 5, 5)[0])),
                             ("position_ids are needed", dict(input_ids=text, attention_mask=mask, cache=self.cache(self.model))),
                             ("padding must be on the left", dict(input_ids=text, attention_mask=right, cache=self.cache(self.model))),
                             ("padding must be on the left", dict(input_ids=text, attention_mask=more)),
                             ("columns; expected 60", dict(input_ids=text, attention_mask=mask)),
                             ("positions", dict(input_ids=text, position_ids=torch.arange(10)[None])),
                             ("M-RoPE", dict(input_ids=text, position_ids=torch.arange(60).reshape(3, 2, 10))),
                             ("dimensions", dict(input_ids=text, attention_mask=torch.ones(2, 1, 10, 60)))]:
            cache = named.pop("cache", self.filled)
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                self.run_model(self.model, cache, **named)
        self.assertEqual([s.length for s in self.filled.sequences], [50, 50])
        self.assertEqual(self.filled.sequences[0].read(0, "k", 0, 50).shape[0], 50)

    def test_other_attention_is_refused(self):
        self.model.set_attn_implementation("sdpa")
        with self.assertRaisesRegex(RuntimeError, "set_attn_implementation"):
            self.step(self.filled, ids(1, 1)[0])

    def test_another_model_is_refused(self):
        other = make_model()
        other.set_attn_implementation("kvcobra")
        with self.assertRaisesRegex(RuntimeError, "made from"):
            self.run_model(other, self.filled, input_ids=ids(1, 1)[0])

    def test_training_is_refused(self):
        self.model.train()
        with self.assertRaisesRegex(ValueError, "trained"):
            self.step(self.filled, ids(1, 1)[0])


class Refusals(HfCase):
    """Models that cannot be used, each by its reason and before anything is opened."""

    def test_models(self):
        cases = [("layer 0: the frequencies of its RoPE change with the length", make_model("phi3", rope_parameters={
                     "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32,
                     "original_max_position_embeddings": 1024, "factor": 4.0})),
                 ("change with the length", make_model(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})),
                 ("torch.float64", make_model(dtype=torch.float64))]
        static = make_model()
        static.generation_config.cache_implementation = "static"
        cases.append(("static", static))
        cases.append(("torch.compile", torch.compile(make_model())))
        for words, name, value in [("indexer", "index_topk", 8), ("ALiBi", "alibi", True), ("share the keys", "num_kv_shared_layers", 2),
                                   ("later tokens", "use_bidirectional_attention", True),
                                   ("scales queries by the position", "attn_temperature_tuning", True),
                                   ("has attention_cutoff, local_rope_theta, which no code", "attention_cutoff", 4)]:
            changed = make_model()
            setattr(changed.config, name, value)
            if name == "attention_cutoff":
                changed.config.local_rope_theta = 500.0
            cases.append((words, changed))
        seq2seq = make_model()
        seq2seq.config.is_encoder_decoder = True
        cases.append(("cross attention", seq2seq))
        for words, model in cases:
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                KvCobraCache.from_model(model, self.client, table=self.table)
            self.assertNotEqual(model.config._attn_implementation, "kvcobra")

    def test_tables_of_other_models(self):
        model = make_model()
        g = model_geometry(model)
        for words, change in [("n_layers is 2", dict(n_layers=2)), ("n_heads is 6", dict(n_heads=6)), ("scale", dict(attn_scale=0.5)),
                              ("frequency 1", dict(rope_freq=(1.0,) + tuple(1.01 * f for f in g.rope_freq[1:])))]:
            path = os.path.join(self.folder, "other.table")
            support.write_table(path, g._replace(**change))
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                KvCobraCache.from_model(model, self.client, table=path)
        with self.assertRaises(kvcobra.Error):
            KvCobraCache.from_model(model, self.client, table=b"not a table")


class DaemonCase(HfCase):
    """Two processes and a real kvcobrad."""

    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon()
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.activate(self.table)
        self.model = make_model()
        self.text, self.mask = ids(300, 210)

    def connected(self, **options):
        client = kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        return KvCobraCache.from_model(self.model, client, model_id=self.model_id, **options)

    def publish(self, repeatable=False):
        """Another process publishes both texts, as a batch."""
        code = ("import sys; sys.path.insert(0, sys.argv[1]); import test_hf as t\n"
                "text, mask = t.ids(300, 210)\n"
                "model = t.make_model()\n"
                "client = t.kvcobra.Client(sys.argv[2])\n"
                "cache = t.KvCobraCache.from_model(model, client, model_id=sys.argv[3], repeatable=bool(int(sys.argv[4])))\n"
                "model.generate(text, attention_mask=mask, past_key_values=cache, max_new_tokens=2, do_sample=False)\n"
                "print(cache.commit())")
        done = subprocess.run([sys.executable, "-B", "-c", code, os.path.dirname(__file__), self.daemon.socket,
                               self.model_id.hex(), str(int(repeatable))], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()


class Shared(DaemonCase):
    def test_a_prefix_is_shared(self):
        self.assertEqual(self.publish(), "[192, 128]")
        cache = self.connected()
        self.assertEqual(cache.match(self.text[:1]), 192)
        self.assertEqual(self.run_model(self.model, cache, input_ids=self.text[:1, 192:]).shape[1], 108)
        cache.reset()
        # rows that match differently: columns 90 .. 217 of row 1 are found, 0 .. 191 of row 0
        self.assertEqual(cache.match(self.text, self.mask), 192)
        out = self.model.generate(self.text, attention_mask=self.mask, past_key_values=cache, max_new_tokens=3, do_sample=False)
        self.assertEqual(out.shape, (2, 303))
        self.assertEqual([s.length for s in cache.sequences], [302, 212])
        self.assertEqual(cache.commit(), [192, 128])

    def test_rows_that_overlap_what_is_computed(self):
        """A row that has more than the common columns attends from what it has."""
        self.publish()
        cache, alone = self.connected(), self.connected()
        columns = cache.match(self.text, self.mask)
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        got = self.run_model(self.model, cache, input_ids=self.text[:, columns:], attention_mask=self.mask,
                             position_ids=positions[:, columns:])
        for i, n in enumerate((300, 210)):
            one = self.text[i:i + 1, 300 - n:]
            found = alone.match(one)
            want = self.run_model(self.model, alone, input_ids=one[:, found:])
            same = min(want.shape[1], got.shape[1])
            self.assertLess(mean_kl(want[0, -same:], got[i, -same:]), 0.05)
            alone.reset()

    def test_a_hit_of_a_repeatable_cache_is_a_cold_run(self):
        cold = self.connected(repeatable=True)
        want = self.run_model(self.model, cold, input_ids=self.text[:1])
        self.publish(repeatable=True)
        hit = self.connected(repeatable=True)
        self.assertEqual(hit.match(self.text[:1]), 192)
        got = self.run_model(self.model, hit, input_ids=self.text[:1, 192:])
        self.assertLess(mean_kl(want[:, 192:], got), 1e-6)

    def test_another_text_is_refused(self):
        self.publish()
        cache = self.connected()
        cache.match(self.text, self.mask)
        with self.assertRaisesRegex(ValueError, "not empty"):
            cache.match(self.text)
        other = self.text[:, 192:].clone()
        other[1, 0] += 1  # row 1 has a part of this piece already
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)[:, 192:]
        with self.assertRaisesRegex(ValueError, "row 1 has other tokens"):
            self.run_model(self.model, cache, input_ids=other, attention_mask=self.mask, position_ids=positions)
        self.assertEqual([s.length for s in cache.sequences], [192, 128])

    def test_tokens_are_those_that_the_model_got(self):
        """Beams reorder rows; what is published are the tokens of each row as the model computed them."""
        cache = self.connected()
        self.model.generate(self.text[:1], past_key_values=cache, max_new_tokens=8, num_beams=3, do_sample=False)
        self.assertEqual(cache.commit(), [192] * 3)
        rows = [row.tokens for row in cache._rows.rows]
        self.assertEqual([len(t) for t in rows], [307] * 3)
        again = self.connected()
        self.assertEqual(again.match(self.text[:1]), 192)

    def test_embeddings_are_not_published(self):
        cache = self.connected()
        with self.assertLogs("kvcobra", logging.WARNING) as logged:
            self.run_model(self.model, cache, inputs_embeds=self.model.get_input_embeddings()(self.text[:1]))
            self.assertEqual(cache.commit(), [0])
        self.assertIn("embeddings", logged.output[0])

    def test_no_daemon(self):
        want = self.model.generate(self.text, attention_mask=self.mask, max_new_tokens=5, do_sample=False)
        self.daemon.kill()
        client = kvcobra.Client(False)
        self.addCleanup(client.close)
        with self.assertLogs("kvcobra", logging.WARNING) as logged:
            cache = KvCobraCache.from_model(self.model, client, model_id=self.model_id)
        self.assertEqual(len(logged.output), 1)
        self.assertTrue(cache.is_plain)
        self.assertEqual((cache.match(self.text), cache.commit()), (0, []))
        got = self.model.generate(self.text, attention_mask=self.mask, past_key_values=cache, max_new_tokens=5, do_sample=False)
        self.assertEqual(got.tolist(), want.tolist())
        cache.crop(-3)
        cache.reorder_cache(torch.tensor([1, 0]))
        self.assertEqual(cache.get_seq_length(), 301)
        cache.crop(-1000)  # more than there are
        self.assertEqual(cache.get_seq_length(), 0)
        cache.reset()
        self.assertEqual(cache.get_seq_length(), 0)

    def test_a_daemon_without_a_table(self):
        client = kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        with self.assertLogs("kvcobra", logging.WARNING):
            self.assertTrue(KvCobraCache.from_model(self.model, client, model_id=bytes(32)).is_plain)
        with self.assertRaisesRegex(ValueError, "not loaded from a local folder: pass model_id"):
            KvCobraCache.from_model(self.model, client)  # another model of the same shape may be the daemon's only one
        self.assertFalse(KvCobraCache.from_model(self.model, client, model_id=self.model_id.hex()[:8]).is_plain)

    def test_a_daemon_that_is_killed_and_started_again(self):
        self.publish()
        cache = self.connected()
        cache.match(self.text[:1])
        first = self.run_model(self.model, cache, input_ids=self.text[:1, 192:])
        self.daemon.kill()
        out = self.model.generate(torch.cat([self.text[:1], first[:, -1:].argmax(-1)], 1), past_key_values=cache,
                                  max_new_tokens=3, do_sample=False)
        self.assertEqual(out.shape[1], 304)
        with self.assertNoLogs("kvcobra") if hasattr(self, "assertNoLogs") else self.subTest():
            self.assertEqual(cache.commit()[0] % 64, 0)

    def test_an_arena_that_is_too_small(self):
        """The prompt needs more room than the arena has: the cache becomes a plain one with the same tokens."""
        self.daemon.__exit__(None)
        self._cleanups = [c for c in self._cleanups if c[0] != self.daemon.__exit__]
        self.daemon = support.Daemon("--pool-bytes=64M", "--arena-bytes=128K")
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.activate(self.table)
        text, _ = ids(2000)
        want = self.exact(self.model, input_ids=text).logits
        cache = self.connected()
        with self.assertLogs("kvcobra", logging.WARNING) as logged:
            got = torch.cat([self.run_model(self.model, cache, input_ids=text[:, a:b]) for a, b in ((0, 100), (100, 1999))], 1)
            last = self.run_model(self.model, cache, input_ids=text[:, 1999:])
        self.assertEqual(len(logged.output), 1)
        self.assertIn("prefill_chunk_size", logged.output[0])
        self.assertTrue(cache.is_plain)
        self.assertLess(mean_kl(want[:, :1999], got), 0.05)
        self.assertLess(mean_kl(want[:, 1999:], last), 0.05)
        cache.reset()
        self.assertFalse(cache.is_plain)


if __name__ == "__main__":
    print("transformers", transformers.__version__, "torch", torch.__version__)
    unittest.main(verbosity=2)
