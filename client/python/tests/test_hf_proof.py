"""The proof that admits a model: what it says of models that are right, and of models with one mistake. Skipped without torch and
transformers."""
import json
import os
import subprocess
import sys
import unittest
from unittest import mock

import support

try:
    import torch
    from transformers.models.deepseek_v3 import modeling_deepseek_v3
    from transformers.models.llama import modeling_llama
    from transformers.models.glm4 import modeling_glm4
    from transformers.models.qwen3 import modeling_qwen3
except ImportError as e:
    print(f"skipped: torch and transformers are needed: {e}")
    sys.exit(support.SKIPPED)

from kvcobra.hf import _geometry, _proof
from test_hf import HALF_SPLIT, INTERLEAVED, make_model
from test_hf_groups import MLA


class ProofCase(support.Case):
    def prove(self, kind, **changes):
        with mock.patch.object(_proof, "_proofs", {}):  # a mistake must not be remembered
            return _geometry.model_proof(make_model(kind, **changes))

    def layers(self, kind, **changes):
        return self.prove(kind, **changes).layers


class Models(ProofCase):
    def test_pairs(self):
        for kinds, pairs in ((HALF_SPLIT, "half-split"), (INTERLEAVED, "interleaved")):
            for kind in kinds:
                with self.subTest(kind):
                    proof = self.prove(kind)
                    self.assertEqual([layer.pairs for layer in proof.layers], 3 * [pairs])
                    self.assertLess(proof.rotation_error, 1e-6)
                    self.assertLess(proof.attention_error, 1e-4)

    def test_many_layers(self):
        """Rounding of one layer is not taken for a difference of a later one."""
        proof = self.prove("llama", num_hidden_layers=40)
        self.assertLess(proof.attention_error, 1e-5)

    def test_norms(self):
        for kind, norm in (("llama", "none"), ("qwen3", "before"), ("olmo2", "before"), ("hunyuan_v1_dense", "after")):
            with self.subTest(kind):
                self.assertEqual([layer.norm for layer in self.layers(kind)], 3 * [norm])

    def test_windows_caps_and_sinks(self):
        layers = self.layers("gemma2", sliding_window=200)
        self.assertEqual([(layer.window, layer.cap, layer.sinks) for layer in layers],
                         [(200, 50, False), (None, 50, False), (200, 50, False)])
        layers = self.layers("gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=128)
        self.assertEqual([(layer.window, layer.sinks) for layer in layers], [(128, True), (None, True), (128, True)])
        self.assertGreater(layers[0].factor, 1)  # YaRN

    def test_two_frequencies(self):
        layers = self.layers("gemma3_text", num_hidden_layers=6, sliding_window=100)
        self.assertEqual([layer.window for layer in layers], 5 * [100] + [None])
        self.assertEqual(len({layer.frequencies for layer in layers}), 2)
        self.assertEqual(layers[0].frequencies, layers[4].frequencies)

    def test_layers_without_rope_or_attention(self):
        layers = self.layers("smollm3", num_hidden_layers=4)
        self.assertEqual([len(layer.frequencies) for layer in layers], [32, 32, 32, 0])
        layers = self.layers("qwen3_5_text", num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=32,
                             linear_value_head_dim=32)
        self.assertEqual([layer is None for layer in layers], [True, True, True, False])

    def test_latents(self):
        yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=1024, mscale=0.8, mscale_all_dim=0.2)
        layers = self.layers("deepseek_v3", **MLA, rope_parameters=yarn)
        self.assertEqual([(x.latent, x.head_dim, x.norm, len(x.frequencies)) for x in layers], 3 * [(64, 32, "none", 16)])
        self.assertGreater(layers[0].factor, 1)
        latent, rope = _geometry.model_groups(make_model("deepseek_v3", **MLA, rope_parameters=yarn))
        self.assertEqual((latent.factor, rope.factor), (1.0, layers[0].factor))
        self.assertEqual(latent.geometry[:5], (3, 1, 1, 32, 0))
        self.assertEqual(rope.geometry[:5], (3, 1, 1, 32, 32))

    def test_a_window_that_no_text_reaches(self):
        self.assertEqual([layer.window for layer in self.layers("mistral", sliding_window=4096)], 3 * [None])

    def test_chunks_and_temperature_are_refused(self):
        with self.assertRaisesRegex(ValueError, "scales queries by the position"):
            self.layers("llama4_text", num_local_experts=2, attention_chunk_size=128)
        with self.assertRaisesRegex(ValueError, "layer 0: "):
            self.layers("llama4_text", num_local_experts=2, attention_chunk_size=128, attn_temperature_tuning=False)

    def test_the_answer_is_remembered_and_random_numbers_are_not_used(self):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        model = make_model()
        torch.set_rng_state(before)
        proof = _geometry.model_proof(model)
        self.assertTrue(torch.equal(torch.get_rng_state(), before))
        with mock.patch.object(_proof, "_prove", side_effect=AssertionError):
            self.assertIs(_geometry.model_proof(model), proof)


class Mistakes(ProofCase):
    """One mistake on purpose: in the model, or in what the reference knows of it."""

    def test_pairs_swapped(self):
        """The other order is seen as such, and one that is neither is refused."""
        with mock.patch.object(modeling_llama, "apply_rotary_pos_emb", modeling_glm4.apply_rotary_pos_emb):
            self.assertEqual(self.layers("llama")[0].pairs, "interleaved")
        with mock.patch.object(modeling_llama, "rotate_half", lambda x: modeling_glm4.rotate_half(x)), \
                self.assertRaisesRegex(ValueError, "layer 0: its keys at later positions are not those of position 0, rotated"):
            self.layers("llama")

    def test_norm_moved(self):
        def moved(q, k, cos, sin):
            """Of Qwen3, whose norms are before RoPE: a second one behind it, with unequal weights."""
            q, k = rotate(q, k, cos, sin)
            weight = 1 + torch.arange(k.shape[-1]) / k.shape[-1]
            return q * weight, k * weight / k.square().mean(-1, keepdim=True).sqrt()

        rotate = modeling_qwen3.apply_rotary_pos_emb
        with mock.patch.object(modeling_qwen3, "apply_rotary_pos_emb", moved), self.assertRaisesRegex(ValueError, "layer 0: its keys"):
            self.layers("qwen3")

    def check_reference(self, kind, change, **changes):
        """The reference gets @change of what was measured."""
        right = _proof.reference
        with mock.patch.object(_proof, "reference", lambda seen, layer: right(seen, change(layer))), \
                self.assertRaisesRegex(ValueError, "layer [01]: the model's attention differs by"):
            self.layers(kind, **changes)

    def test_scale_wrong(self):
        for kind in ("llama", "qwen3", "granite"):
            with self.subTest(kind):
                self.check_reference(kind, lambda layer: layer._replace(scale=1.02 * layer.scale))

    def test_window_off_by_one(self):
        for kind in ("mistral", "gemma2"):
            for by in (-1, 1):
                with self.subTest(kind, by=by):
                    self.check_reference(kind, lambda layer: layer._replace(window=layer.window and layer.window + by),
                                         sliding_window=200)

    def test_cap_and_sinks_forgotten(self):
        self.check_reference("gemma2", lambda layer: layer._replace(cap=0.0))
        self.check_reference("gpt_oss", lambda layer: layer._replace(sinks=False), num_local_experts=4, num_experts_per_tok=2)

    def test_queries_scaled_by_position(self):
        def scaled(q, k, cos, sin):
            q, k = rotate(q, k, cos, sin)
            return q * (1 + torch.arange(q.shape[2])[:, None] / 100), k

        rotate = modeling_llama.apply_rotary_pos_emb
        with mock.patch.object(modeling_llama, "apply_rotary_pos_emb", scaled), self.assertRaisesRegex(ValueError, "temperature"):
            self.layers("llama")

    def check_latents(self, words, name, change):
        """A DeepSeek V3 whose function or method @name is replaced by @change of it."""
        place = modeling_deepseek_v3
        if hasattr(place.DeepseekV3Attention, name):
            place = place.DeepseekV3Attention
        with mock.patch.object(place, name, change(getattr(place, name))), self.assertRaisesRegex(ValueError, words):
            self.layers("deepseek_v3", **MLA)

    def test_latent_attention(self):
        def rotate_more(rotate):
            return lambda q, k, cos, sin: (rotate(q, k, cos, sin)[0], rotate(q, *rotate(q, k, cos, sin)[1:], cos, sin)[1])

        def warm(rotate):
            return lambda q, k, cos, sin: (rotate(q, k, cos, sin)[0] * (1 + torch.arange(q.shape[2])[:, None] / 100), rotate(q, k, cos, sin)[1])

        def with_count(expand):
            calls = iter(6 * [0] + list(range(10000)))  # something besides what the cache has, after two runs of three layers
            return lambda self, c, k: (lambda n: tuple(x * (1 + n / 100) for x in expand(self, c, k)))(next(calls))

        self.check_latents("layer 0: its keys at later positions", "apply_rotary_pos_emb_interleave", rotate_more)
        self.check_latents("layer 0: its queries are scaled by the position", "apply_rotary_pos_emb_interleave", warm)
        self.check_latents("layer 0: its keys and values are not made of what its cache has alone", "expand_kv", with_count)

    def test_latents_that_no_table_has(self):
        for words, change in (("its latents have 62 numbers", dict(kv_lora_rank=62)), ("latents have 514", dict(kv_lora_rank=514)),
                              ("shared key has 16 numbers", dict(qk_rope_head_dim=16, head_dim=16))):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                self.layers("deepseek_v3", **{**MLA, **change})
        with self.assertRaisesRegex(ValueError, "indexer"):
            self.layers("deepseek_v32", **MLA)

    def test_code_that_fails(self):
        """A model whose code fails with the copy's widths is refused, and the program that asks goes on."""
        with mock.patch.object(modeling_llama.LlamaAttention, "forward", side_effect=IndexError("of nothing")), \
                self.assertRaisesRegex(ValueError, "could not be measured on a small copy: IndexError: of nothing"):
            self.layers("llama")
        with self.assertRaisesRegex(ValueError, "differ in head_dim"):
            self.layers("gemma4_text")

    def test_frequencies_of_the_model_changed(self):
        model = make_model()
        model.model.rotary_emb.inv_freq.mul_(1.001)
        with self.assertRaisesRegex(ValueError, "not those of its configuration"):
            _geometry.model_geometry(model)


class Command(ProofCase):
    def prove_folder(self, **changes):
        with open(os.path.join(self.folder, "config.json"), "w") as file:
            json.dump({**make_model("qwen3").config.to_dict(), **changes}, file)
        done = subprocess.run([sys.executable, "-m", "kvcobra", "prove", self.folder], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_it(self):
        status, out, _ = self.prove_folder()
        self.assertEqual(status, 0)
        self.assertIn("layers 0-2 (full): half-split RoPE of 64 of 64 dimensions, scale 0.125, norm before RoPE\n", out)
        status, out, _ = self.prove_folder(my_rope_trick=3)
        self.assertEqual((status, "refused: the configuration has my_rope_trick" in out), (1, True))
        os.unlink(os.path.join(self.folder, "config.json"))
        done = subprocess.run([sys.executable, "-m", "kvcobra", "prove", self.folder], capture_output=True, text=True)
        self.assertEqual((done.returncode, "is not a folder with a config.json" in done.stderr), (1, True))


if __name__ == "__main__":
    support.main()
