"""vLLM with a tiny random model and a random table: how the connector is named, what vLLM does after a load that fails, MultiConnector,
weights that are replaced, and what an engine costs that waits for kvcobrad. Takes minutes; needs vllm and transformers."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import support

try:
    import vllm  # noqa: F401
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as e:
    print(f"skipped: the Python module {e.name} is missing")
    sys.exit(support.SKIPPED)

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE, PROMPT, FOUND = (2, 4, 2, 64), 700, 640
WAIT_MS, CORE_SHARE_MAX = 5000, 0.2


class Tiny(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = os.path.join(cls.folder.name, "model")
        parameters = LlamaConfig(hidden_size=256, intermediate_size=256, num_hidden_layers=SHAPE[0], num_attention_heads=SHAPE[1],
                                 num_key_value_heads=SHAPE[2], head_dim=SHAPE[3], vocab_size=512, max_position_embeddings=2048,
                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=True)
        LlamaForCausalLM(parameters).bfloat16().save_pretrained(cls.model)
        cls.table = os.path.join(cls.folder.name, "random.table")
        cls.model_id = support.write_table(cls.table, support.geometry(SHAPE)).hex()

    def engine(self, connector, **changes):
        return {"model": self.model, "skip_tokenizer_init": True, "dtype": "bfloat16", "enforce_eager": True, "max_model_len": 2048,
                "block_size": 64, "disable_log_stats": False, "kv_transfer_config": connector, **changes}

    def connector(self, daemon, **options):
        """As VLLM.md has it: by its name, without a module and a policy."""
        return {"kv_connector": "KvCobraConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"socket": daemon.socket, "model_id": self.model_id, **options}}

    def run_plan(self, plan):
        paths = [os.path.join(self.folder.name, name) for name in ("plan.json", "results.json")]
        with open(paths[0], "w", encoding="utf-8") as file:
            json.dump(plan, file)
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "vllm_engine.py"), *paths], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertTrue(os.path.exists(paths[1]), done.stdout[-4000:])
        with open(paths[1], encoding="utf-8") as file:
            results = json.load(file)
        for result in results:
            self.assertNotIn("error", result, done.stdout[-4000:])
        return results, done.stdout

    def test_engines(self):
        prompt = [{"tokens": [i % 500 for i in range(PROMPT)]}]
        other = [{"tokens": [i % 499 for i in range(PROMPT)]}]
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(self.table)
            several = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                       "kv_connector_extra_config": {"connectors": [self.connector(daemon)]}}
            pid = daemon.process.pid
            waiting = self.connector(daemon, wait_ms=WAIT_MS)
            # a daemon that is stopped, and has the prompt: the engine has nothing to do but to wait for it. The first prompt makes
            # torch compile what it needs
            plan = [{"engine": self.engine(self.connector(daemon)), "prompts": [prompt], "rest": 2},
                    {"engine": self.engine(self.connector(daemon)), "prompts": [prompt], "fail_loads": 1},
                    {"engine": self.engine(several), "prompts": [prompt]},
                    {"engine": self.engine(self.connector(daemon), enable_prefix_caching=False), "prompts": [prompt, prompt, prompt, other],
                     "rpc": {"1": "reload_weights"}, "rest": 1},
                    {"engine": self.engine(waiting), "prompts": [other, prompt], "before": {"1": f"kill -STOP {pid}"}}]
            timer = threading.Timer(600, daemon.process.send_signal, (signal.SIGCONT,))
            timer.start()
            try:
                (publish, fail, take, reload, wait), log = self.run_plan(plan)
            finally:
                timer.cancel()
                daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(publish["metrics"]["published_tokens"], FOUND)
        self.assertEqual(fail["metrics"]["load_failures"], 1, "the request was computed, and did not fail")
        self.assertEqual(fail["calls"][0]["answers"][0]["tokens"], publish["calls"][0]["answers"][0]["tokens"])
        self.assertEqual(take["calls"][0]["answers"][0]["cached"], FOUND)
        # the first step after it tells the scheduler; a load that was promised before is refused
        self.assertEqual(reload["calls"][0]["answers"][0]["cached"], FOUND)
        self.assertEqual([call["answers"][0]["cached"] for call in reload["calls"][2:]], [0, 0])
        self.assertEqual((reload["metrics"]["loaded_tokens"], reload["metrics"].get("published_tokens", 0)), (FOUND, 0))
        self.assertLessEqual(reload["metrics"].get("load_failures", 0), 1)
        self.assertIn("reload_weights() of vLLM's worker may have changed the weights", log)
        waited = wait["calls"][1]
        print(f"a request waited for {waited['first_wall']:.2f} s, which took {waited['first_cpu']:.2f} s of processor time")
        self.assertGreater(waited["first_wall"], WAIT_MS / 1000)
        self.assertLess(waited["first_cpu"], CORE_SHARE_MAX * waited["first_wall"])
        for text in ("prefixes are shared through", "kv_load_failure_policy is set to 'recompute'"):
            self.assertIn(text, log)


if __name__ == "__main__":
    support.main()
