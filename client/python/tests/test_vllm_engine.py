"""vLLM engines that share prefixes through a real kvcobrad. Takes minutes, and needs what the C build does not:

    KVC_ENGINE_MODELS   has the folder bf16, a model that vLLM runs on the CPU: SmolLM2-135M-Instruct as safetensors
    KVC_ENGINE_TABLE, KVC_ENGINE_SECOND_TABLE   two tables of the model
    KVC_SOURCE_ROOT     the checkout, whose DESIGN.md is the text

Every engine is a process (vllm_engine.py). One runs without the connector, and the answers of the others are compared with its.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import unittest

import support

VARIABLES = ("KVC_ENGINE_MODELS", "KVC_ENGINE_TABLE", "KVC_ENGINE_SECOND_TABLE", "KVC_SOURCE_ROOT")
if not all(os.environ.get(name) for name in VARIABLES):
    print(f"skipped: {', '.join(VARIABLES)} are not all set")
    sys.exit(support.SKIPPED)
try:
    import vllm  # noqa: F401
except ImportError:
    print("skipped: the Python module vllm is missing")
    sys.exit(support.SKIPPED)

import kvcobra

MODEL = os.path.join(os.environ["KVC_ENGINE_MODELS"], "bf16")
TABLE, SECOND_TABLE = os.environ["KVC_ENGINE_TABLE"], os.environ["KVC_ENGINE_SECOND_TABLE"]
TEXT = os.path.join(os.environ["KVC_SOURCE_ROOT"], "DESIGN.md")
HERE = os.path.dirname(os.path.abspath(__file__))
# The log-probability of the most probable token, of two runs of one text that differ by rounding or in a few tokens of codes
LOGPROB_DIFFERENCE_MAX = 0.3
# The same after hits, which differ by the codec's error at 3 bits per number. Measured on 2026-11-22 over 119 prompts: median
# 0.05, 113 within 0.3, largest 0.84. With another prompt's tokens in place of those taken the median was 0.69.
HITS_MEDIAN_MAX, HIT_MAX = 0.15, 1.0
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
        differences = []
        self.assertEqual(len(calls), len(expected))
        for i, (call, exact) in enumerate(zip(calls, expected)):
            for j, (a, b) in enumerate(zip(call["answers"], exact["answers"])):
                token = str(b["tokens"][0])
                self.assertIn(token, a["logprobs"][0], f"call {i}, prompt {j}")
                difference = abs(a["logprobs"][0][token] - b["logprobs"][0][token])
                self.assertLess(difference, HIT_MAX if a["cached"] else LOGPROB_DIFFERENCE_MAX, f"call {i}, prompt {j}")
                differences.append(difference)
                if cached is not None:
                    self.assertEqual(a["cached"], cached[i][j], f"call {i}, prompt {j}")
        self.assertLess(statistics.median(differences), HITS_MEDIAN_MAX, differences)

    def assert_same_texts(self, call, expected):
        """The same tokens and log-probabilities. Rounding depends on the batch, so that a text may part from the expected one
        where two tokens are about as probable; it is compared until then."""
        n_compared, n_tokens = 0, 0
        for j, (a, b) in enumerate(zip(call["answers"], expected["answers"])):
            n_tokens += len(b["tokens"])
            for i, token in enumerate(b["tokens"]):
                self.assertIn(str(token), a["logprobs"][i], f"prompt {j}, token {i}")
                difference = abs(a["logprobs"][i][str(token)] - b["logprobs"][i][str(token)])
                self.assertLess(difference, LOGPROB_DIFFERENCE_MAX, f"prompt {j}, token {i}")
                n_compared += 1
                if a["tokens"][i] != token:
                    break
        self.assertGreater(n_compared, n_tokens // 4, "the texts part too early to tell anything")

    def test_share(self):
        ids = self.ids
        one = [{"tokens": ids[:PROMPT]}]
        mixed = self.mixed()
        salted = [{"tokens": ids[:PROMPT], "cache_salt": "tenant"}]
        prompts, n = [one, mixed, salted], [[1472], [640, 64, 0, 64, 1344], [1472]]
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(TABLE)
            sharing = self.engine(kv_transfer_config=self.connector(daemon))
            # vLLM's default: a compiled model. It has no cache of its own, and finds what it published
            chunked = self.engine(kv_transfer_config=self.connector(daemon), max_num_batched_tokens=256, max_num_seqs=4,
                                  enable_prefix_caching=False)
            del chunked["enforce_eager"]
            between = self.engine(kv_transfer_config=self.connector(daemon, async_load=True))
            default = self.engine(kv_transfer_config=self.connector(daemon, role="kv_consumer"), block_size=128)
            own, publish, sync, async_, other_blocks = self.run_plan([
                {"engine": self.engine(), "prompts": prompts},
                {"engine": chunked, "prompts": [*prompts, one, mixed, salted],
                 "until_cached": {"3": 1472, "4": 640, "5": 1472}},
                {"engine": sharing, "prompts": prompts},
                {"engine": between, "prompts": prompts},
                {"engine": default, "prompts": [one]}])
        self.assert_same_answers(publish["calls"], 2 * own["calls"], [[0], [0] * 5, [0], *n])
        self.assert_same_answers(sync["calls"], own["calls"], n)
        self.assert_same_answers(async_["calls"], own["calls"], n)
        self.assert_same_answers(other_blocks["calls"], own["calls"][:1], [[1408]])
        self.assertEqual(sync["metrics"]["load_failures"], 0)

    def in_test(self, function):
        """A command for "before": @function runs in this process, and the engine waits for its end."""
        folder = tempfile.mkdtemp(prefix="kvcobra-python-")
        self.addCleanup(shutil.rmtree, folder)
        ask, answer = (os.path.join(folder, name) for name in ("ask", "answer"))
        os.mkfifo(ask)
        os.mkfifo(answer)

        def serve():
            with open(ask, encoding="utf-8"):  # returns when the command has opened its end
                pass
            try:
                function()
                text = "done"
            except Exception as e:
                text = f"{type(e).__name__}: {e}"
            with open(answer, "w", encoding="utf-8") as file:
                file.write(text + "\n")

        threading.Thread(target=serve, daemon=True).start()
        return f": >{ask}; read -r line <{answer}; echo \"$line\"; test \"$line\" = done"

    def test_changes_under_an_engine(self):
        """A canary is begun, another table activated, the daemon killed, and started again, under one engine. It has no cache of
        its own, so that the prompts that it published are found in the pool or not at all."""
        first, second = ([{"tokens": self.ids[at:at + 600]}] for at in (0, 700))
        pages = []
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(TABLE)

            def count_pages():
                pages.append(sorted(table["pages"] for table in json.loads(daemon.command("table", "list", "--json"))))

            def begin_canary():
                daemon.command("table", "stage", SECOND_TABLE)
                daemon.command("table", "canary", SECOND_TABLE, "--share=99", "--yes")

            def activate_second():
                count_pages()
                daemon.command("table", "activate", SECOND_TABLE, "--yes")

            def kill():
                count_pages()
                daemon.kill()

            def start_again():
                daemon.start()
                daemon.activate(TABLE)

            calls = [first, first + second, second, first, first, first, first]
            before = {"1": begin_canary, "3": activate_second, "5": kill, "6": start_again}
            own, changes = self.run_plan([
                {"engine": self.engine(), "prompts": [first, second]},
                {"engine": self.engine(kv_transfer_config=self.connector(daemon), enable_prefix_caching=False), "prompts": calls,
                 "before": {number: self.in_test(function) for number, function in before.items()},
                 "until_cached": {"0": 576, "2": 576, "4": 576, "6": 576}}])
        exact = {id(prompts): call["answers"] for prompts, call in zip((first, second), own["calls"])}
        both = {"answers": [*exact[id(first)], *exact[id(second)]]}
        expected = [both if len(prompts) == 2 else {"answers": exact[id(prompts)]} for prompts in calls]
        self.assert_same_answers(changes["calls"], expected, [[576], [576, 0], [576], [0], [576], [0], [576]])
        # before the activation all pages are of the first table, although 99 % of new sequences would take part in the canary
        self.assertEqual(pages, [[0, 18], [9, 18]])
        for text in ("without shared prefixes", "prefixes are shared again"):
            lines = [line for line in self.log.split("\n") if text in line]
            self.assertEqual(len(lines), 1, lines)

    def test_loads_that_fail_are_computed(self):
        prompts = [[{"tokens": self.ids[:600]}, {"tokens": self.ids[700:1400]}], [{"tokens": self.ids[:600]}]]
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(TABLE)
            sharing = self.engine(kv_transfer_config=self.connector(daemon))
            between = self.engine(kv_transfer_config=self.connector(daemon, async_load=True))
            own, _, sync, async_ = self.run_plan([
                {"engine": self.engine(), "prompts": prompts}, {"engine": sharing, "prompts": prompts[:1], "rest": 1},
                {"engine": sharing, "prompts": prompts, "fail_loads": 1},
                {"engine": between, "prompts": prompts, "fail_loads": 1}])
        for result in (sync, async_):
            self.assert_same_answers(result["calls"], own["calls"])
            self.assertEqual(result["metrics"]["load_failures"], 1)
            # the second call finds the first prompt in vLLM's own cache, or loads it
            self.assertIn(result["metrics"]["loaded_tokens"], (640, 640 + 576))

    def test_preemption(self):
        """19 blocks do not hold five requests, so that vLLM preempts some and computes or loads them again."""
        prompts = [[{"tokens": self.ids[at:at + 300]} for at in range(0, 2000, 400)]]
        with support.Daemon("--pool-bytes=1G") as daemon:
            daemon.activate(TABLE)
            large = self.engine(kv_transfer_config=self.connector(daemon), enable_prefix_caching=False)
            small = dict(large, max_model_len=1024, num_gpu_blocks_override=20, max_num_batched_tokens=128,
                         scheduler_reserve_full_isl=False)
            own, publish, hit, preempted, codes = self.run_plan([
                {"engine": self.engine(), "prompts": prompts, "max_tokens": 90},
                {"engine": dict(small, enable_prefix_caching=True), "prompts": prompts, "max_tokens": 90, "rest": 1},
                {"engine": large, "prompts": prompts, "max_tokens": 90},
                {"engine": small, "prompts": prompts, "max_tokens": 90},
                {"engine": small, "prompts": prompts, "max_tokens": 90, "environment": {"KVCOBRA_ATTENTION": "1"}}])
        for result in (publish, preempted, codes):
            self.assertGreater(result["metrics"]["num_preemptions"], 0)
        self.assertEqual(publish["metrics"]["published_tokens"], 5 * 256)
        self.assert_same_texts(publish["calls"][0], own["calls"][0])
        self.assert_same_answers(hit["calls"], own["calls"], [[256] * 5])
        self.assert_same_texts(preempted["calls"][0], hit["calls"][0])
        self.assert_same_texts(codes["calls"][0], hit["calls"][0])
        # what a request lost with its blocks was loaded again
        self.assertGreater(preempted["metrics"]["loaded_tokens"], hit["metrics"]["loaded_tokens"])

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
