"""vLLM with a tiny random model and a random table: how the connector is named, what vLLM does after a load that fails, MultiConnector,
weights that are replaced, what an engine costs that waits for kvcobrad, and models with groups of layers. Takes minutes; needs vllm and transformers."""
import copy
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import support

try:
    import vllm  # noqa: F401
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as e:
    print(f"skipped: the Python module {e.name} is missing")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra._groups import group_digest
from kvcobra.hf._geometry import cache_groups as groups_of_model
from test_hf import make_model

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE, PROMPT, FOUND = (2, 4, 2, 64), 700, 640
WAIT_MS, CORE_SHARE_MAX = 5000, 0.2


class Engines(unittest.TestCase):
    """Engines on models in a folder."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

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


class Tiny(Engines):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = os.path.join(cls.folder.name, "model")
        parameters = LlamaConfig(hidden_size=256, intermediate_size=256, num_hidden_layers=SHAPE[0], num_attention_heads=SHAPE[1],
                                 num_key_value_heads=SHAPE[2], head_dim=SHAPE[3], vocab_size=512, max_position_embeddings=2048,
                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=True)
        LlamaForCausalLM(parameters).bfloat16().save_pretrained(cls.model)
        cls.table = os.path.join(cls.folder.name, "random.table")
        cls.model_id = support.write_table(cls.table, support.geometry(SHAPE)).hex()

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


class Ids:
    """A tokeniser: each text is random tokens, as many as words. A text of few different tokens would fit layers whose keys and values depend
    on the token alone, and no other text."""

    bos_token_id = 1

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __call__(self, text, add_special_tokens=True, verbose=True):
        generator = torch.Generator().manual_seed(len(text))
        return {"input_ids": torch.randint(3, self.vocabulary, (len(text.split()),), generator=generator).tolist()}


class Groups(Engines):
    """Models whose layers have attention of several kinds. What the first engine computed, the second takes."""

    PROMPT, WINDOW, VOCABULARY = 1100, 128, 512

    def make(self, kind, **changes):
        return make_model(kind, **{**dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                                          vocab_size=self.VOCABULARY, max_position_embeddings=2048, sliding_window=self.WINDOW), **changes})

    @staticmethod
    def kl(a, b):
        """KL(a || b) of the next token."""
        a, b = a["logprobs"][0], b["logprobs"][0]
        return sum(math.exp(p) * (p - b[token]) for token, p in a.items())

    def tables(self, model, name):
        """Calibrated tables of the model's groups of layers."""
        self.model = os.path.join(self.folder.name, name)
        copy.deepcopy(model).bfloat16().save_pretrained(self.model)
        self.model_id = (name.encode() + bytes(32))[:32].hex()
        done = kvcobra.calibrate(model, [2200 * "word "], output=os.path.join(self.folder.name, name + ".stats"),
                                 tokenizer=Ids(self.VOCABULARY), tokens=2000, window=250, metric="mse", model_id=bytes.fromhex(self.model_id), own_share=0,
                                 progress=False)
        paths = []
        for path in done.outputs:
            paths.append(path[:-len("stats")] + "table")
            subprocess.run([support.program("KVC_KVCOBRA"), "solve", path, "--bpd", "8", "-o", paths[-1]], check=True, capture_output=True)
        return paths

    def forget(self, daemon, model, tokens):
        """The command after which the group with a window has no pages of @tokens."""
        group, = [g for g in groups_of_model(model) if g.kind.window]
        with kvcobra.Client(daemon.socket) as client, \
                kvcobra.Model(client, group_digest(bytes.fromhex(self.model_id), group.name, 2)) as served:
            table = served.info.table_digest
        return [support.program("KVC_KVCOBRA"), *daemon.flush_command(table, tokens), "--socket", daemon.operator_socket]

    def share(self, model, name, block_tokens, found, cached_after_failure=0, windowed=True, **changes):
        """@found: tokens of the prompt that the second engine takes. @windowed: before it does, the early pages of layers with a window
        leave. @cached_after_failure: what vLLM
        counts for a request whose load failed. Returns the second engine's results and the log."""
        torch.manual_seed(2)
        prompt, start = torch.randint(3, self.VOCABULARY, (2, self.PROMPT)).tolist()
        other = start[:found] + prompt[found:]
        prompts = [[{"tokens": tokens}] for tokens in (prompt, other)]
        with support.Daemon("--pool-bytes=1G") as daemon:
            for path in self.tables(model, name):
                daemon.activate(path)
            engine = self.engine(self.connector(daemon), block_size=block_tokens, enable_prefix_caching=False, max_logprobs=self.VOCABULARY,
                                 **changes)
            plan = [{"engine": engine, "prompts": prompts, "logprobs": self.VOCABULARY},
                    {"engine": engine, "prompts": 2 * prompts[:1], "logprobs": self.VOCABULARY, "fail_loads": 1}]
            if windowed:
                plan[1]["before"] = {"0": shlex.join(self.forget(daemon, model, prompt[:found // 2 // 64 * 64]))}
            (publish, take), log = self.run_plan(plan)
        self.assertEqual(publish["metrics"]["published_tokens"], 2 * (self.PROMPT // 64 * 64), log[-4000:])
        (cold,), (far,), (failed,), (hit,) = (call["answers"] for call in publish["calls"] + take["calls"])
        self.assertEqual((failed["cached"], take["metrics"]["load_failures"]), (cached_after_failure, 1), "a request whose load failed is computed")
        self.assertEqual((hit["cached"], take["metrics"]["loaded_tokens"]), (found, found), log[-4000:])
        after_hit, after_failure, of_other = (self.kl(cold, answer) for answer in (hit, failed, far))
        print(f"{name}, blocks of {block_tokens}: KL of the next token {after_hit:.2e} after a hit, {after_failure:.2e} after a load that failed, "
              f"{of_other:.2e} behind another beginning", flush=True)
        self.assertLess(after_hit, 0.1 * of_other)
        self.assertLess(after_failure, 0.01 * of_other)
        return log

    def test_gemma_3(self):
        log = self.share(self.make("gemma3_text", num_hidden_layers=6), "gemma", 64, 1088)
        self.assertIn("pages are loaded between steps", log)

    def test_gpt_oss(self):
        for block_tokens, found in ((32, 1088), (96, 1056)):
            with self.subTest(block_tokens):
                model = self.make("gpt_oss", num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=2)
                self.share(model, "gpt-oss", block_tokens, found)

    def test_deepseek_v3(self):
        """Latent attention, of the only widths that vLLM computes on a CPU. Loads are in steps: vLLM counts what it computes again as found."""
        model = self.make("deepseek_v3", num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=16, kv_lora_rank=512, q_lora_rank=64,
                          qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
                          topk_group=1, first_k_dense_replace=2)
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            block_tokens = 32 if "amx_bf16" in file.read() else 16  # of vLLM's two backends
        self.share(model, "deepseek", block_tokens, 1088, cached_after_failure=1088, windowed=False)


if __name__ == "__main__":
    support.main()
