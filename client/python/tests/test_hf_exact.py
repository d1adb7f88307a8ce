"""Caches of transformers without a table: pages hold the model's own keys and values. Skipped without torch and transformers."""
import os
import unittest

import support
from test_hf import make_model

import torch

from kvcobra.hf import KvCobraCache, model_geometry

OPTIONS = ("--pool-bytes=256M", "--extent-bytes=64M", "--arena-bytes=32M", "--exact=yes")
N, MODEL_ID = 300, "ab" * 32


class Exact(support.Case):
    def setUp(self):
        super().setUp()
        self.model_id = MODEL_ID
        self.daemon = support.Daemon(*OPTIONS)
        self.addCleanup(self.daemon.__exit__, None)
        self.text = torch.randint(1, 128, (2, N), generator=torch.Generator().manual_seed(5))

    def cache(self, model, **options):
        client = support.kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        cache = KvCobraCache.from_model(model, client, model_id=self.model_id, **options)
        self.addCleanup(cache.close)
        return cache

    def run_pieces(self, model, cache, text, pieces):
        """Logits of all tokens; the prompt is computed in @pieces, ends of columns."""
        found, first = [], cache.get_seq_length()
        with torch.no_grad():
            for end in pieces:
                if end > first:
                    found.append(model(input_ids=text[:, first:end], past_key_values=cache).logits)
                    first = end
        return torch.cat(found, 1)

    def check(self, model):
        self.model_id = os.urandom(32).hex()
        cold, first, found = (self.cache(model) for _ in range(3))
        self.assertFalse(cold.is_plain)
        want = self.run_pieces(model, cold, self.text, (256, N))[:, 256:]
        self.run_pieces(model, first, self.text, (256, N))
        self.assertEqual(first.commit(), [256, 256])
        self.assertEqual(found.match(self.text), 256)
        at = 256 - (getattr(model.config, "sliding_window", None) or 256)
        for layer, other in zip(found.layers, cold.layers):  # of layers with a window, what their queries read
            for have, want_of in ((layer.keys, other.keys), (layer.values, other.values)):
                self.assertTrue(torch.equal(have[:, :, at:256], want_of[:, :, at:256]))
        logits = self.run_pieces(model, found, self.text, (N,))
        self.assertTrue(torch.equal(logits.log_softmax(-1), want.log_softmax(-1)))

    def test_answers_are_those_of_a_cold_run_to_the_bit(self):
        self.check(make_model())

    def test_bf16(self):
        self.check(make_model(dtype=torch.bfloat16))

    def test_interleaved_pairs_and_windows(self):
        self.check(make_model("cohere"))
        self.check(make_model("mistral", sliding_window=100))

    def test_other_number_type_shares_nothing(self):
        model, other = make_model(), make_model(dtype=torch.bfloat16)
        cache = self.cache(model)
        self.run_pieces(model, cache, self.text, (N,))
        self.assertEqual(cache.commit(), [256, 256])
        with self.assertLogs("kvcobra", "WARNING") as log:
            plain = self.cache(other)
        self.assertTrue(plain.is_plain)
        self.assertIn("binary32, keys after RoPE", log.output[0])
        self.assertEqual(plain.match(self.text), 0)
        self.run_pieces(other, plain, self.text, (N,))

    def test_a_table_replaces_the_pages(self):
        model = make_model()
        cache = self.cache(model)
        self.run_pieces(model, cache, self.text, (N,))
        self.assertEqual(cache.commit(), [256, 256])
        path = os.path.join(self.folder, "random.table")
        support.write_table(path, model_geometry(model), model=bytes.fromhex(MODEL_ID))
        self.daemon.activate(path)
        cache.reset()
        self.assertEqual(cache.match(self.text), 0)
        self.run_pieces(model, cache, self.text, (N,))
        self.assertEqual(cache.commit(), [256, 256])
        self.assertEqual(self.cache(model).match(self.text), 256)
        self.assertIn('"exact": null', self.daemon.command("table", "list", "--json"))

    def test_attention_to_codes_needs_a_table(self):
        for options in ({"dense": False}, {"repeatable": True}):
            with self.assertLogs("kvcobra", "WARNING") as log:
                self.assertTrue(self.cache(make_model(), **options).is_plain)
            self.assertIn("no active table", log.output[0])


if __name__ == "__main__":
    support.main()
