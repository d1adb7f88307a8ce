"""A model made of SmolLM2 (made_models.py): less is lost than by 4-bit numbers, at three quarters of the bits. One of the models, with few
tokens; skipped without KVC_HF_MODEL."""
import unittest

import engines

engines.need("KVC_HF_MODEL")

import made_models

TEXT = "/usr/share/common-licenses/GPL-3"


class Made(unittest.TestCase):
    def test_windows_and_sinks(self):
        name = next(n for n in made_models.MADE if n.startswith("sinks"))
        measured = next(made_models.measure_all([name], TEXT, 1024, 512, 3))
        print(measured)
        self.assertEqual(measured["groups"], "window-128, full")
        self.assertLessEqual(measured["true_bpd"], 3.14)
        self.assertLess(measured["kl"], 0.7 * measured["kl_q4_0"])
        self.assertGreater(measured["kl"], 1e-5)  # pages were read


if __name__ == "__main__":
    unittest.main()
