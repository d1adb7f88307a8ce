"""vLLM engines that share prefixes through a real kvcobrad. Takes minutes, and needs what the C build does not:

    KVC_VLLM_MODEL   folder of a model that vLLM runs on the CPU, such as SmolLM2-135M-Instruct as safetensors
    KVC_VLLM_TABLE   a table of the model
    KVC_VLLM_TEXT    a text file of some thousand tokens

Every engine is a process (vllm_engine.py). One runs without the connector, and the answers of the others are compared with its.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import support

VARIABLES = ("KVC_VLLM_MODEL", "KVC_VLLM_TABLE", "KVC_VLLM_TEXT")
if not all(os.environ.get(name) for name in VARIABLES):
    print(f"skipped: {', '.join(VARIABLES)} are not all set")
    sys.exit(support.SKIPPED)
try:
    import vllm  # noqa: F401
except ImportError:
    print("skipped: the Python module vllm is missing")
    sys.exit(support.SKIPPED)

import kvcobra

MODEL, TABLE, TEXT = (os.environ[name] for name in VARIABLES)
HERE = os.path.dirname(os.path.abspath(__file__))
# The log-probability of the most probable token after a hit. The codec's error at 3 bits per number changes it by 0.01 to 0.1;
# a prefix at a wrong position, or another prompt's, changes it by 1 and more.
LOGPROB_DIFFERENCE_MAX = 0.3
PROMPT, MODEL_TOKENS = 1500, 4096


def token_ids():
    from transformers import AutoTokenizer

    with open(TEXT, encoding="utf-8") as file:
        return AutoTokenizer.from_pretrained(MODEL)(file.read(), add_special_tokens=False)["input_ids"]


class Engines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ids = token_ids()
        assert len(cls.ids) > PROMPT + 1900, "the text is too short"
        with open(TABLE, "rb") as file, kvcobra.Client(False) as client:
            cls.model_id = client.table_geometry(file.read())[0].hex()

    def engine(self, **changes):
        return {"model": MODEL, "dtype": "bfloat16", "enforce_eager": True, "max_model_len": MODEL_TOKENS, "block_size": 64,
                "max_num_batched_tokens": 2048, "disable_log_stats": False, **changes}

    def mixed(self):
        """Prompts of different lengths without a common beginning."""
        return [{"tokens": self.ids[at:at + n]} for at, n in ((1600, 700), (1700, 65), (1800, 3), (1900, 128), (2000, 1400))]

    def connector(self, daemon, role="kv_both", **options):
        return {"kv_connector": "KvCobraConnector", "kv_connector_module_path": "kvcobra.vllm", "kv_role": role,
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"socket": daemon.socket, "model_id": self.model_id, **options}}

    def run_plan(self, plan):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("plan.json", "results.json")]
            with open(paths[0], "w", encoding="utf-8") as file:
                json.dump(plan, file)
            with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
                subprocess.run([sys.executable, "-B", os.path.join(HERE, "vllm_engine.py"), *paths], stdout=log,
                               stderr=subprocess.STDOUT, check=False)
                log.seek(0)
                self.log = log.read()
            self.assertTrue(os.path.exists(paths[1]), self.log[-4000:])
            with open(paths[1], encoding="utf-8") as file:
                results = json.load(file)
        for result in results:
            self.assertNotIn("error", result, self.log[-4000:])
        return results

    def assert_same_answers(self, calls, expected, cached=None):
        """The same first tokens with log-probabilities that differ by the codec's error."""
        for i, (call, exact) in enumerate(zip(calls, expected)):
            for j, (a, b) in enumerate(zip(call["answers"], exact["answers"])):
                token = str(b["tokens"][0])
                self.assertIn(token, a["logprobs"][0], f"call {i}, prompt {j}")
                difference = abs(a["logprobs"][0][token] - b["logprobs"][0][token])
                self.assertLess(difference, LOGPROB_DIFFERENCE_MAX, f"call {i}, prompt {j}")
                if cached is not None:
                    self.assertEqual(a["cached"], cached[i][j], f"call {i}, prompt {j}")

    def test_share(self):
        ids = self.ids
        one = [{"tokens": ids[:PROMPT]}]
        mixed = self.mixed()
        salted = [{"tokens": ids[:PROMPT], "cache_salt": "tenant"}]
        prompts, n = [one, mixed, salted], [[1472], [640, 64, 0, 64, 1344], [1472]]
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(TABLE)
            sharing = self.engine(kv_transfer_config=self.connector(daemon))
            chunked = self.engine(kv_transfer_config=self.connector(daemon), max_num_batched_tokens=256, max_num_seqs=4)
            between = self.engine(kv_transfer_config=self.connector(daemon, async_load=True))
            default = self.engine(kv_transfer_config=self.connector(daemon, role="kv_consumer"), block_size=128)
            own, publish, sync, async_, other_blocks = self.run_plan([
                {"engine": self.engine(), "prompts": prompts},
                {"engine": chunked, "prompts": prompts, "rest": 1},
                {"engine": sharing, "prompts": prompts},
                {"engine": between, "prompts": prompts},
                {"engine": default, "prompts": [one]}])
        self.assert_same_answers(publish["calls"], own["calls"], [[0], [0] * 5, [0]])
        self.assert_same_answers(sync["calls"], own["calls"], n)
        self.assert_same_answers(async_["calls"], own["calls"], n)
        self.assert_same_answers(other_blocks["calls"], own["calls"], [[1408]])
        self.assertEqual(sync["metrics"]["load_failures"], 0)

    def test_daemon_that_ends_under_an_engine(self):
        ids = self.ids
        first, second, third = ([{"tokens": ids[at:at + 600]}] for at in (0, 700, 1400))
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(TABLE)
            sharing = self.engine(kv_transfer_config=self.connector(daemon))
            kill = {"1": f"kill -KILL {daemon.process.pid}"}
            own, publish, lost = self.run_plan([
                {"engine": self.engine(), "prompts": [first, second, third]},
                {"engine": sharing, "prompts": [first], "rest": 1},
                {"engine": sharing, "prompts": [first, second, third], "before": kill}])
        self.assert_same_answers(lost["calls"], own["calls"], [[576], [0], [0]])
        lines = [line for line in self.log.split("\n") if "without shared prefixes" in line]
        self.assertEqual(len(lines), 1, lines)

    def test_attention_on_codes(self):
        ids = self.ids
        one = [{"tokens": ids[:PROMPT]}]
        mixed = self.mixed()
        codes = {"KVCOBRA_ATTENTION": "1"}
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(TABLE)
            engine = self.engine(kv_transfer_config=self.connector(daemon), enable_prefix_caching=False)
            chunked = dict(engine, max_num_batched_tokens=256, max_num_seqs=4)
            own, cold, hit = self.run_plan([
                {"engine": self.engine(enable_prefix_caching=False), "prompts": [one, mixed], "max_tokens": 8},
                {"engine": chunked, "prompts": [one, mixed], "max_tokens": 8, "environment": codes},
                {"engine": engine, "prompts": [one, mixed], "max_tokens": 8, "environment": codes}])
        self.assert_same_answers(cold["calls"], own["calls"])
        self.assert_same_answers(hit["calls"], own["calls"], [[1408], [640, 0, 0, 64, 1280]])

    def test_tensor_parallel(self):
        """Two ranks with one KV head each. The model is random, and so is its table: only the counts are compared."""
        from transformers import LlamaConfig, LlamaForCausalLM

        g = support.geometry((2, 4, 2, 64))
        parameters = LlamaConfig(hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                                 num_key_value_heads=2, head_dim=64, vocab_size=512, max_position_embeddings=2048,
                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=True)
        with tempfile.TemporaryDirectory() as folder, support.Daemon("--pool-bytes=1G") as daemon:
            LlamaForCausalLM(parameters).bfloat16().save_pretrained(folder)
            table = os.path.join(folder, "random.table")
            self.model_id = support.write_table(table, g).hex()
            daemon.activate(table)
            engine = self.engine(model=folder, skip_tokenizer_init=True, tensor_parallel_size=2, max_model_len=2048,
                                 kv_transfer_config=self.connector(daemon))
            prompts = [[{"tokens": [i % 500 for i in range(700)]}]]
            publish, take = self.run_plan([{"engine": engine, "prompts": prompts, "rest": 2},
                                           {"engine": engine, "prompts": prompts}])
        self.assertEqual(publish["metrics"]["published_tokens"], 2 * 640)
        self.assertEqual(take["calls"][0]["answers"][0]["cached"], 640)
        self.assertEqual(take["metrics"]["loaded_tokens"], 2 * 640)


if __name__ == "__main__":
    support.main()
