"""KvCobraCache with a real model: what a hit finds, and how far its answer is from the model's own cache.

    KVC_HF_MODEL=FOLDER KVC_HF_TABLE=FILE python test_hf_model.py

FOLDER: the model in binary32, with its tokeniser; FILE: its allocation table. Skipped without them.
"""
import os
import subprocess
import sys
import unittest

import support

FOLDER, TABLE = os.environ.get("KVC_HF_MODEL"), os.environ.get("KVC_HF_TABLE")
if not FOLDER or not TABLE:
    print("skipped: KVC_HF_MODEL and KVC_HF_TABLE name no model and no table")
    sys.exit(support.SKIPPED)
try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
except ImportError as e:
    print(f"skipped: torch and transformers are needed: {e}")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra.hf import KvCobraCache
from test_hf import mean_kl

TEXT = "/usr/share/common-licenses/GPL-3"
N = int(os.environ.get("KVC_HF_TOKENS", "700"))
N_SHARED = (N // 64 - 1) * 64  # whole chunks without the newest 64 tokens


def load():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def prompt():
    with open(TEXT, encoding="utf-8") as file:
        text = file.read(8 * N)
    return AutoTokenizer.from_pretrained(FOLDER)(text, return_tensors="pt").input_ids[:, :N]


def publish(socket, model_id):
    """In another process: computes the prompt and publishes it."""
    client, model = kvcobra.Client(socket), load()
    cache = KvCobraCache.from_model(model, client, model_id=model_id)
    with torch.no_grad():
        model(prompt(), past_key_values=cache)
    print(cache.commit()[0])


class RealModel(unittest.TestCase):
    def test_it(self):
        with support.Daemon("--pool-bytes=256M", "--arena-bytes=64M") as daemon:
            daemon.activate(TABLE)
            with kvcobra.Client(False) as embedded:
                model_id = kvcobra.Model(embedded, table=TABLE).model_id.hex()
            done = subprocess.run([sys.executable, "-B", __file__, "publish", daemon.socket, model_id], capture_output=True,
                                  text=True)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, str(N_SHARED)), done.stderr)
            self.compare(daemon, model_id)

    def compare(self, daemon, model_id):
        model, ids = load(), prompt()
        with torch.no_grad(), kvcobra.Client(daemon.socket) as client:
            want = model(ids, past_key_values=DynamicCache()).logits
            cache = KvCobraCache.from_model(model, client, model_id=model_id)
            exact = mean_kl(want, model(ids, past_key_values=cache).logits)
            cache.reset()
            self.assertEqual(cache.match(ids), N_SHARED)
            hit_logits = model(ids[:, N_SHARED:], past_key_values=cache).logits
            hit = mean_kl(want[:, N_SHARED:], hit_logits)
            bpd = cache.sequences[0].usage.true_bpd
            text = model.generate(ids, past_key_values=KvCobraCache.from_model(model, client, model_id=model_id), max_new_tokens=8,
                                  do_sample=False)
            print(f"{N} tokens: mean KL of an exact piece {exact:.2e}, of a hit of {N_SHARED} tokens {hit:.2e}; {bpd:.2f} true bpd")
        self.assertLessEqual(exact, 1e-6)
        self.assertLess(hit, 0.05)
        # not the likeliest token: where two are equally likely, codes may turn their order
        self.assertLess(mean_kl(want[:, -1:], hit_logits[:, -1:]), 0.3)
        self.assertEqual(text.shape[1], N + 8)


if __name__ == "__main__":
    if sys.argv[1:2] == ["publish"]:
        publish(*sys.argv[2:])
    else:
        unittest.main(verbosity=2)
