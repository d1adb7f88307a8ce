"""Caches of transformers that keep dense keys and values. Skipped without torch and transformers."""
import copy
import os
import unittest

import support
from test_hf import DaemonCase, ids, make_model, mean_kl

import torch
from transformers import DynamicCache

from kvcobra.hf import model_geometry


class Dense(DaemonCase):
    """Caches that keep dense keys and values: the model's own attention, and pages for match() and commit()."""

    def logits(self, cache, first, text=None, mask=None):
        text, mask = self.text if text is None else text, self.mask if mask is None else mask
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        return self.run_model(self.model, cache, input_ids=text[:, first:], attention_mask=mask, position_ids=positions[:, first:])

    def test_computing_is_exact_and_any_cache_finds_what_was_published(self):
        want = self.exact(self.model, input_ids=self.text, attention_mask=self.mask,
                          position_ids=(self.mask.cumsum(1) - 1).clamp(min=0)).logits
        cache = self.connected(dense=True)
        self.assertEqual(cache.match(self.text, self.mask), 0)
        torch.testing.assert_close(self.logits(cache, 0)[:, 90:], want[:, 90:])
        self.assertEqual(cache.commit(), [256, 192])  # every whole chunk: the dense rows stay
        codes, other = self.connected(), self.connected(dense=True)
        self.assertEqual(codes.match(self.text, self.mask), 256)
        self.assertEqual(other.match(self.text, self.mask), 256)
        self.assertLess(mean_kl(want[:, 256:], self.logits(other, 256)), 0.05)
        self.assertEqual(other.commit(), [256, 192])

    def test_pages_are_those_of_a_cache_with_codes(self):
        self.assertEqual(self.publish(), "[192, 128]")
        cache = self.connected(dense=True)
        self.assertEqual(cache.match(self.text[:1]), 192)
        layer, sequence = cache.layers[1], cache.sequences[0]
        for side, dense in (("k", layer.keys), ("v", layer.values)):
            got = dense[0].transpose(0, 1).double().numpy()
            decoded = sequence.read(1, side, 0, 192)
            # read() of this sequence gives keys after RoPE, as the layers have them
            self.assertLess(abs(got - decoded).max(), 1e-6)

    def test_generate_continues_and_publishes_what_was_generated(self):
        cache = self.connected(dense=True)
        text = self.text[:1]
        cache.match(text)
        out = self.model.generate(text, past_key_values=cache, max_new_tokens=100, do_sample=False)
        self.model.set_attn_implementation("sdpa")
        plain = self.model.generate(text, past_key_values=DynamicCache(), max_new_tokens=100, do_sample=False)
        self.assertEqual(out.tolist(), plain.tolist())
        self.assertEqual(cache.commit(), [384])  # 399 tokens have keys and values
        self.assertEqual(self.connected(dense=True).match(out), 384)

    def test_crop_select_and_reset(self):
        cache = self.connected(dense=True)
        self.logits(cache, 0)
        cache.commit()
        cache.crop(100)
        self.assertEqual((cache.get_seq_length(), [len(r.tokens) for r in cache._rows.rows]), (100, [100, 10]))
        want = self.logits(cache, 100)
        self.assertEqual(cache.commit(), [256, 192])
        cache.reorder_cache(torch.tensor([1, 1]))
        self.assertEqual(cache._rows.rows[0].tokens, cache._rows.rows[1].tokens)
        self.assertTrue(torch.equal(cache.layers[0].keys[0], cache.layers[0].keys[1]))
        cache.reset()
        self.assertEqual((cache.get_seq_length(), cache.sequences), (0, []))
        torch.testing.assert_close(self.logits(cache, 0)[:, 100:], want)

    def test_scaled_keys(self):
        """YaRN: the model scales its keys, pages have them without."""
        rope = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024, rope_theta=10000.0)
        self.model = make_model(rope_parameters=rope)
        path = os.path.join(self.folder, "yarn.table")
        self.model_id = support.write_table(path, model_geometry(self.model))
        self.daemon = support.Daemon()  # all tables of write_table() are of one model, whose scale this is not
        self.addCleanup(self.daemon.__exit__, None)
        self.daemon.activate(path)
        text = self.text[:1]
        want = self.exact(self.model, input_ids=text).logits
        cache = self.connected(dense=True)
        self.run_model(self.model, cache, input_ids=text)
        self.assertEqual(cache.commit(), [256])
        for other in (self.connected(dense=True), self.connected()):
            self.assertEqual(other.match(text), 256)
            self.assertLess(mean_kl(want[:, 256:], self.run_model(self.model, other, input_ids=text[:, 256:])), 0.05)

    def test_a_daemon_that_is_killed(self):
        cache = self.connected(dense=True)
        want = self.logits(cache, 0)
        self.daemon.kill()
        self.assertEqual(cache.commit(), [0, 0])
        cache.crop(299)  # the model goes on without the daemon
        torch.testing.assert_close(self.logits(cache, 299)[:, -1], want[:, -1])

    def test_a_deep_copy_goes_on_alone(self):
        first = self.connected(dense=True)
        self.logits(first, 0)
        other = copy.deepcopy(first)
        first.crop(100)
        self.assertEqual((first.get_seq_length(), other.get_seq_length()), (100, 300))
        self.assertEqual((other.commit(), first.commit()), ([256, 192], [64, 0]))

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "repeatable"):
            self.connected(dense=True, repeatable=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
