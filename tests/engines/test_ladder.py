"""The ladder in its short form: transformers with a tiny random model, with a table and without one. The answers after each situation must be
those of a cold run, to the bit."""
import os
import subprocess
import sys
import unittest

import engines


class Short(unittest.TestCase):
    def test_transformers(self):
        for variable in ("KVC_KVCOBRAD", "KVC_KVCOBRA"):
            engines.need(variable)
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as e:
            self.skipTest(f"the Python module {e.name} is missing")
        command = [sys.executable, "-B", engines.source("tests/engines/ladder.py"), "--short", "--model", "tiny-llama", "--engine", "transformers",
                   "--engine", "transformers-exact"]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=2 * engines.TIMEOUT_S)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-4000:])
        self.assertNotIn("wrong**", done.stdout)
        self.assertGreater(done.stdout.count("| right"), 35)


if __name__ == "__main__":
    unittest.main()
