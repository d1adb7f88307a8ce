"""kvcobra.lm_eval: lm-evaluation-harness on local tasks, with the exact model and with a table.

    KVC_HF_MODEL=FOLDER KVC_HF_TABLE=FILE python test_lm_eval.py

FOLDER: the model in binary32, with its tokeniser; FILE: its allocation table. Skipped without them, and without the harness.
"""
import contextlib
import io
import json
import math
import os
import sys
import tempfile
import unittest

import support

FOLDER, TABLE = os.environ.get("KVC_HF_MODEL"), os.environ.get("KVC_HF_TABLE")
if not FOLDER or not TABLE:
    print("skipped: KVC_HF_MODEL and KVC_HF_TABLE name no model and no table")
    sys.exit(support.SKIPPED)
os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from lm_eval.models.huggingface import HFLM
except ImportError as e:
    print(f"skipped: torch, transformers and lm-eval are needed: {e}")
    sys.exit(support.SKIPPED)

import kvcobra.lm_eval

sys.path.insert(0, os.path.join(support.program("KVC_SOURCE_ROOT"), "tests/engines"))
import recall_task  # noqa: E402

N = int(os.environ.get("KVC_HF_QUESTIONS", "4"))


class Paired(unittest.TestCase):
    def test_equal_scores(self):
        self.assertEqual(kvcobra.lm_eval.paired([1.0] * 6, [1.0] * 6), (0.0, -0.5, 0.5))
        self.assertEqual(kvcobra.lm_eval.paired([1.0], [1.0]), (0.0, -1.0, 1.0))

    def test_differences(self):
        difference, low, high = kvcobra.lm_eval.paired([1, 1, 0, 1, 0, 1, 0, 1] * 8, [1, 0, 0, 1, 1, 1, 0, 0] * 8)
        self.assertEqual(difference, -1 / 8)
        # the standard error is sqrt((3 / 8 - 1 / 64) / 64) = 0.075
        self.assertAlmostEqual(low, -1 / 8 - 1.96 * 0.075, delta=0.03)
        self.assertAlmostEqual(high, -1 / 8 + 1.96 * 0.075, delta=0.03)


class Harness(unittest.TestCase):
    def test_logits(self):
        """A call reads codes: its logits are near the exact model's and not equal, and do not depend on the call before."""
        ids = torch.randint(1000, (1, 400), generator=torch.Generator().manual_seed(1))
        exact = HFLM(pretrained=FOLDER, dtype="float32", device="cpu", batch_size=1)._model_call(ids).log_softmax(-1)
        lm = kvcobra.lm_eval.CompressedLM(pretrained=FOLDER, dtype="float32", table=TABLE)
        first, short, again = (lm._model_call(x).log_softmax(-1) for x in (ids, ids[:, :50], ids))
        kl, short_kl = ((exact[:, :x.shape[1]].exp() * (exact[:, :x.shape[1]] - x)).sum(-1)[0] for x in (first, short))
        self.assertTrue(torch.equal(first, again))
        self.assertLess(kl[:64].max().item(), 1e-5)  # nothing is packed yet
        self.assertLess(short_kl.max().item(), 1e-5)
        self.assertGreater(kl[256:].mean().item(), 1e-4)
        self.assertLess(kl[256:].mean().item(), 0.5)

    def test_unfinite_logits(self):
        logits = torch.zeros(1, 3, 5)
        self.assertIs(kvcobra.lm_eval.finite(logits), logits)
        for value in (math.nan, math.inf):
            logits[0, 1, 4] = value
            with self.assertRaisesRegex(kvcobra.lm_eval.UnfiniteError, "not all finite"):
                kvcobra.lm_eval.finite(logits)

    def test_tasks(self):
        with tempfile.TemporaryDirectory() as folder:
            recall_task.write(folder, N)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = kvcobra.lm_eval.main([FOLDER, "--table", TABLE, "--tasks", "recall,recall_write", "--include", folder,
                                               "--json"])
        self.assertEqual(status, 0)
        rows = json.loads(out.getvalue()[out.getvalue().index("[\n"):])
        self.assertEqual([(row["task"], row["metric"], row["questions"]) for row in rows],
                         [("recall", "acc", N), ("recall_write", "exact_match", N)])
        for row in rows:
            self.assertAlmostEqual(row["compressed"] - row["exact"], row["difference"])
            self.assertTrue(-1 <= row["low"] <= row["difference"] <= row["high"] <= 1)
            self.assertAlmostEqual((row["higher"] - row["lower"]) / N, row["difference"])  # an answer scores 0 or 1


if __name__ == "__main__":
    support.main()
