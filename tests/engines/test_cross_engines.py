"""One text, computed by one engine and used by the others: transformers, vLLM and llama.cpp, through one kvcobrad.

Their files of the model differ, and so do the digests: the daemon knows those of the safetensors folders as aliases of the
GGUF file's. Pages of one engine then serve all, although each keeps keys in an order and number type of its own.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import engines
from engines import Daemon

N = 400
WHOLE_CHUNKS = 384   # what llama.cpp publishes
WITHOUT_NEWEST = 320  # what transformers publishes: its cache attends to the newest 64 tokens in the sequence
DIVERGENCE_MAX = 1.0  # see test_llama.py

# of the log-probability of the next token: 0.01 to 0.1 by 3 bits per number; a prefix of other text changes it by 1 and more
LOGPROB_DIFFERENCE_MAX = 0.5

# transformers in another process: prints the published and found tokens, and the next token without and with the cache
TRANSFORMERS = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, DynamicCache
import kvcobra
from kvcobra.hf import KvCobraCache
folder, socket, model_id, tokens = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
ids = torch.tensor([tokens])
with torch.no_grad(), kvcobra.Client(socket) as client:
    alone = model(ids, past_key_values=DynamicCache()).logits[0, -1].log_softmax(-1)
    cache = KvCobraCache.from_model(model, client, model_id=model_id)
    found = cache.match(ids)
    got = model(ids[:, found:], past_key_values=cache).logits[0, -1].log_softmax(-1)
    best = alone.argmax().item()
    print(json.dumps({"found": found, "published": cache.commit()[0], "next": best, "alone": alone[best].item(),
                      "logprob": got[best].item()}))
"""


class CrossEngines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = engines.need("KVC_ENGINE_MODELS")
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvcobra-engines-"))
        table = engines.need("KVC_ENGINE_TABLE")
        cls.daemon = cls.enterClassContext(Daemon("--pool-bytes=512M", "--arena-bytes=64M"))
        cls.daemon.activate(table)
        cls.digest = engines.table_model(table)
        cls.aliases = {name: cls.alias(os.path.join(cls.models, name)) for name in ("f32", "bf16")}

    @classmethod
    def alias(cls, folder):
        """Declares the model of @folder to be that of the table. Returns its digest."""
        done = subprocess.run([engines.need("KVC_KVCOBRA"), "model-id", folder, "--json"], check=True, capture_output=True, text=True)
        digest = json.loads(done.stdout)["digest"]
        cls.daemon.command("model", "alias", digest, cls.digest, "--yes")
        return digest

    def text(self, first):
        """A file with lines of a text of the project from @first on, and its first N tokens."""
        from transformers import AutoTokenizer

        with open(engines.source("CONVENTIONS.md"), encoding="utf-8") as file:
            text = "".join(file.readlines()[first:])
        path = os.path.join(self.folder, f"{first}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path, AutoTokenizer.from_pretrained(os.path.join(self.models, "f32"))(text).input_ids[:N]

    def transformers(self, tokens):
        done = subprocess.run([sys.executable, "-B", "-c", TRANSFORMERS, os.path.join(self.models, "f32"), self.daemon.socket,
                               self.aliases["f32"], json.dumps(tokens)], capture_output=True, text=True,
                              timeout=engines.TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def llama(self, path, *options):
        return engines.llama_share(self, self.daemon, self.digest, engines.need("KVC_ENGINE_GGUF"), path, "--tokens", str(N), *options)

    def vllm(self, tokens):
        """The answer of a vLLM engine: its tokens, and the number of tokens that it did not compute."""
        options = {"socket": self.daemon.socket, "model_id": self.aliases["bf16"]}
        plan = [{"engine": {"model": os.path.join(self.models, "bf16"), "dtype": "bfloat16", "enforce_eager": True, "block_size": 64,
                            "max_model_len": 1024, "disable_log_stats": False, "kv_transfer_config": {
                                "kv_connector": "KvCobraConnector", "kv_connector_module_path": "kvcobra.vllm",
                                "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                                "kv_connector_extra_config": options}},
                 "prompts": [[{"tokens": tokens}]]}]
        names = [os.path.join(self.folder, name) for name in ("plan.json", "results.json")]
        with open(names[0], "w", encoding="utf-8") as file:
            json.dump(plan, file)
        done = subprocess.run([sys.executable, "-B", engines.source("client/python/tests/vllm_engine.py"), *names],
                              capture_output=True, text=True, timeout=engines.TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        with open(names[1], encoding="utf-8") as file:
            result = json.load(file)[0]
        self.assertNotIn("error", result, done.stderr[-4000:])
        return result["calls"][0]["answers"][0]

    def check_next(self, logprob, computed):
        self.assertLess(abs(logprob - computed["alone"]), LOGPROB_DIFFERENCE_MAX)

    def check_vllm(self, tokens, n_cached, computed):
        answer = self.vllm(tokens)
        self.assertEqual(answer["cached"], n_cached)
        self.assertIn(str(computed["next"]), answer["logprobs"][0])  # of the five best tokens
        self.check_next(answer["logprobs"][0][str(computed["next"])], computed)

    def test_transformers_publishes(self):
        path, tokens = self.text(0)
        first = self.transformers(tokens)
        self.assertEqual((first["found"], first["published"]), (0, WITHOUT_NEWEST))
        with self.subTest("transformers"):
            again = self.transformers(tokens)
            self.assertEqual(again["found"], WITHOUT_NEWEST)
            self.check_next(again["logprob"], first)
        with self.subTest("llama.cpp"):
            got = self.llama(path, "--compare")
            self.assertEqual(got["found"], WITHOUT_NEWEST)
            self.assertLess(got["divergence"], DIVERGENCE_MAX)
        with self.subTest("vLLM"):  # llama.cpp has published one chunk more
            self.check_vllm(tokens, WHOLE_CHUNKS, first)

    def test_llama_publishes(self):
        path, tokens = self.text(20)
        self.assertEqual(self.llama(path)["published"], WHOLE_CHUNKS)
        with self.subTest("transformers"):
            got = self.transformers(tokens)
            self.assertEqual(got["found"], WHOLE_CHUNKS)
            self.check_next(got["logprob"], got)
        with self.subTest("vLLM"):
            self.check_vllm(tokens, WHOLE_CHUNKS, got)
