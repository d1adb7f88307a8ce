"""Options, salts, shards and RoPE frequencies of the vLLM adapter. Without vLLM and kvcobrad."""
import contextlib
import math
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

import support

from kvcobra.vllm import geometry, model_id, options, plugin, requirements, salt


class Options(unittest.TestCase):
    def test_defaults_and_values(self):
        self.assertEqual(options.parse({}).waiting_leases, 64)
        self.assertGreaterEqual(options.parse({}).threads, 1)
        o = options.parse({"socket": "/run/s", "model_id": "AB" * 32, "threads": 3, "async_load": True, "queue_mib": 1})
        self.assertEqual((o.socket, o.model_id, o.threads, o.async_load, o.queue_mib), ("/run/s", "ab" * 32, 3, True, 1))

    def test_refusals_name_the_option(self):
        for name, value in [("socket", ""), ("socket", 5), ("model_id", "ab"), ("model_id", "x" * 64), ("threads", 0),
                            ("threads", 65), ("threads", True), ("threads", "2"), ("async_load", 1), ("queue_mib", 0),
                            ("waiting_leases", 65537)]:
            with self.assertRaisesRegex(ValueError, f"{name} is {value!r}"):
                options.parse({name: value})
        with self.assertRaisesRegex(ValueError, "wait_ms is 10001; expected a whole number from 0 to 10000"):
            options.parse({"wait_ms": 10001})

    def test_unknown_keys_are_refused(self):
        with self.assertRaisesRegex(ValueError, "sokcet: unknown"):
            options.parse({"sokcet": "/run/s"})


class Salts(unittest.TestCase):
    def of(self, *keys, adapter=lambda path: b"A" * 32):
        return salt.of_keys(keys or None, adapter)

    def test_no_keys_is_no_salt(self):
        self.assertEqual(self.of(), b"")

    def test_every_part_counts(self):
        salts = [self.of(("cache_salt", "a")), self.of(("cache_salt", "b")), self.of(("mm", "a", 0)), self.of(("mm", "a", 1)),
                 self.of(("mm", "a", 1), ("mm", "b", 1)), self.of(("mm", "b", 1), ("mm", "a", 1)),
                 self.of(("prompt_embeds", b"a")), self.of(("lora", "x", "/a")),
                 self.of(("lora", "x", "/a"), adapter=lambda path: b"B" * 32), self.of(("cache_salt", "amm"), ("mm", "a", 0)),
                 self.of(("cache_salt", "a"), ("mm", "mma", 0))]
        self.assertEqual(len(set(salts)), len(salts))
        self.assertTrue(all(len(s) == 32 for s in salts))

    def test_adapter_counts_by_content(self):
        self.assertEqual(self.of(("lora", "x", "/a")), self.of(("lora", "y", "/b")))

    def test_unknown_keys(self):
        for key in [("new", "a"), ("mm", "a"), ("cache_salt", 5), ("prompt_embeds", "a"), (), "mm", ("lora", "x", "/a", 1)]:
            self.assertIsNone(self.of(key), key)
            self.assertIsNone(self.of(("cache_salt", "a"), key), key)
        self.assertIsNone(self.of(("lora", "x", "/a"), adapter=lambda path: None))


class Adapters(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w", encoding="utf-8") as file:
            file.write(text)

    def test_content(self):
        self.write("adapter_config.json", "{}")
        self.write("adapter_model.safetensors", "weights")
        first = salt.Adapters().digest(self.path)
        self.write("README.md", "no part of the adapter")
        self.assertEqual(salt.Adapters().digest(self.path), first)
        self.write("adapter_model.safetensors", "other")
        self.assertNotEqual(salt.Adapters().digest(self.path), first)

    def test_change_after_the_first_use(self):
        self.write("adapter_model.safetensors", "weights")
        adapters = salt.Adapters()
        first = adapters.digest(self.path)
        self.assertEqual(adapters.digest(self.path), first)
        self.write("adapter_model.safetensors", "longer weights")
        self.assertIsNone(adapters.digest(self.path), "vLLM may still run the first adapter")
        self.assertNotEqual(adapters.digest(self.path, reload=True), first)

    def test_no_adapter(self):
        self.assertIsNone(salt.Adapters().digest(self.path), "a folder without files of an adapter")
        self.assertIsNone(salt.Adapters().digest("/does/not/exist"))


class Shards(unittest.TestCase):
    def test_divided(self):
        self.assertEqual([geometry.shard(8, 2, r) for r in range(2)], [geometry.Shard(0, 4, 0), geometry.Shard(4, 4, 1)])
        self.assertEqual(geometry.shards(3, 1), [geometry.Shard(0, 3, 0)])

    def test_copies(self):
        self.assertEqual([geometry.shard(2, 4, r) for r in range(4)],
                         [geometry.Shard(0, 1, 0), geometry.Shard(0, 1, 0), geometry.Shard(1, 1, 2), geometry.Shard(1, 1, 2)])
        self.assertEqual(geometry.shards(2, 4), [geometry.Shard(0, 1, 0), geometry.Shard(1, 1, 2)])


class Rows(list):
    """Stands for a tensor."""


class Ropes(unittest.TestCase):
    """What vLLM rotates, against what the geometry says."""

    @staticmethod
    def rope(n_rot=8, neox=True, factor=1.0, base=100.0):
        frequencies = [base ** (-2 * i / n_rot) for i in range(n_rot // 2)]
        cache = Rows([[factor * f(n * x) for f in (math.cos, math.sin) for x in frequencies] for n in range(32)])
        cache.shape = (32, n_rot)
        return types.SimpleNamespace(is_neox_style=neox, cos_sin_cache=cache)

    @staticmethod
    def group(base=100.0, **changes):
        return geometry.Geometry(1, 2, 1, 8, 8, 0.5, tuple(base ** (-2 * i / 8) for i in range(4)), **changes)

    def check(self, pairs="half-split", **rope):
        geometry.with_ropes([self.group(pairs=pairs)], [self.rope(**rope)])

    def test_same(self):
        self.check()
        self.check(neox=False, pairs="interleaved")
        geometry.with_ropes([geometry.Geometry(1, 2, 1, 8, 0, 0.5, ())], [])

    def test_groups(self):
        """A model may rotate the keys of its layers in several ways, or those of some not at all."""
        groups = [self.group(), self.group(base=120.0, layers=(1, 3)), geometry.Geometry(1, 2, 1, 8, 0, 0.5, ())]
        ropes = [self.rope(), self.rope(base=120.0)]
        geometry.with_ropes(groups, ropes)
        with self.assertRaisesRegex(ValueError, "no rotary embedding that rotates the keys of layers 1, 3 as"):
            geometry.with_ropes(groups, ropes[:1])
        with self.assertRaisesRegex(ValueError, "other angles"):
            geometry.with_ropes(groups, [*ropes, self.rope(base=140.0)])

    def test_a_key_of_all_heads(self):
        """Latent attention: vLLM's order of pairs is that of its cache."""
        groups = [geometry.Geometry(1, 1, 1, 8, 0, 0.5, (), name="latent", part="latent"), self.group(name="rope", part="rope")]
        self.assertEqual([g.pairs for g in geometry.with_ropes(groups, [self.rope(neox=False)])], ["half-split", "interleaved"])
        self.assertEqual([g.pairs for g in geometry.with_ropes(groups, [self.rope()])], ["half-split", "half-split"])
        with self.assertRaisesRegex(ValueError, "other angles"):
            geometry.with_ropes(groups, [self.rope(neox=False, base=120.0)])

    def test_refusals(self):
        for words, changes in [("rotates interleaved pairs", dict(neox=False)), ("rotates half-split pairs", dict(pairs="interleaved")),
                               ("rotates 4 dimensions", dict(n_rot=4)), ("other angles", dict(base=120.0)),
                               ("frequency 0, position 0", dict(factor=1.1))]:
            with self.assertRaisesRegex(ValueError, words):
                self.check(**changes)
        with self.assertRaisesRegex(ValueError, "made no rotary embedding"):
            geometry.with_ropes([geometry.Geometry(1, 2, 1, 8, 2, 0.5, (1.0,))], [])


class Blocks(unittest.TestCase):
    """vLLM's lists of blocks, one for each of its own groups of layers."""

    def test_lists_of_layers(self):
        kinds = [type(name, (), {"block_size": tokens})() for name, tokens in (("SlidingWindowSpec", 32), ("FullAttentionSpec", 48))]
        groups = [types.SimpleNamespace(kv_cache_spec=kind, layer_names=[f"model.layers.{i}.self_attn.attn" for i in layers])
                  for kind, layers in zip(kinds, ((0, 2), (1, 3)))]
        blocks = geometry.blocks_of(groups)
        self.assertEqual(blocks, geometry.Blocks((0, 1, 0, 1), (32, 48), frozenset({1})))
        self.assertEqual(blocks.common, 96)
        for name in ("model.norm", "model.layers.1.experts.2"):
            with self.assertRaisesRegex(ValueError, "not one number"):
                geometry.layer_number(name)

    def test_windows(self):
        """Of what a match finds, whole blocks are loaded, those in which the window begins too."""
        def group(window, *layers):
            return geometry.Geometry(len(layers), 1, 1, 2, 2, 1.0, (1.0,), window=window, layers=layers)

        for tokens in (1, 16, 32, 64, 96, 128, 192):
            blocks = geometry.Blocks((0,), (tokens,))
            for n_found in range(64, 2000, 64):
                end = n_found // tokens * tokens
                first_block = max(0, end - 128 + 1) // tokens * tokens
                leased = max(0, n_found - blocks.window(group(128, 0)) + 1)
                self.assertLessEqual(leased, first_block)
        self.assertEqual(geometry.Blocks((0,), (1,)).window(group(128, 0)), 128)
        self.assertEqual(geometry.Blocks((0, 1), (64, 16)).window(group(128, 1)), 143)
        self.assertEqual(geometry.Blocks((0,), (64,)).window(group(None, 0)), 0)
        one_list = geometry.Blocks((0, 0), (64,), frozenset({0}))
        self.assertEqual(one_list.window(group(128, 0)), 0, "vLLM loads all blocks")

    def test_positions_that_are_needed(self):
        blocks = geometry.Blocks((0, 1), (32, 32))
        lists = ((0, 0, 0, 7, 8), (1, 2, 3, 4, 5))
        self.assertEqual(blocks.needed(lists, (0,), 0, 160), 96, "the first blocks are outside of the window")
        self.assertEqual(blocks.needed(lists, (0,), 128, 160), 128)
        self.assertEqual(blocks.needed(lists, (1,), 32, 160), 32)
        self.assertEqual(blocks.needed(lists, (0, 1), 32, 160), 32, "one of its layers needs them")


def config(**changes):
    """A configuration of vLLM that the connector accepts. @changes: by paths such as model_config__use_mla."""
    spec = type("FullAttentionSpec", (), {"sliding_window": None, "attention_chunk_size": None, "non_causal": False,
                                          "head_size": 64, "head_size_v": 64})()
    new = types.SimpleNamespace
    c = new(kv_transfer_config=new(kv_load_failure_policy="recompute", kv_role="kv_both"),
            parallel_config=new(tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1),
            model_config=new(is_encoder_decoder=False, use_mla=False, is_hybrid=False, is_attention_free=False, uses_mrope=False,
                             quantization=None, hf_config=new(), hf_text_config=new(num_hidden_layers=2)),
            load_config=new(load_format="auto"),
            speculative_config=None, cache_config=new(cache_dtype="auto", enable_prefix_caching=True, block_size=64),
            kv_cache=new(kv_cache_groups=[new(kv_cache_spec=spec, layer_names=["0", "1"])], kv_cache_spec=spec))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = c
        for name in parents:
            place = getattr(place, name)
        setattr(place, last, value)
    return c


class Requirements(unittest.TestCase):
    refusal, factor, groups = "", 1.0, None

    def check(self, codes=False, chosen=None, **changes):
        c = config(**changes)
        requirements.check(c, c.kv_cache, options.parse(chosen or {}), codes, self.of_model)

    def of_model(self, model_config):
        if self.refusal:
            raise ValueError(self.refusal)
        return self.groups or [geometry.Geometry(2, 2, 1, 8, 2, 0.5, (1.0,), factor=self.factor)]

    def test_accepted(self):
        self.check()
        self.check(cache_config__cache_dtype="bfloat16")
        self.check(speculative_config=types.SimpleNamespace(method="ngram"))
        self.check(model_config__quantization="fp8", chosen={"model_id": "ab" * 32})
        self.check(codes=True, cache_config__enable_prefix_caching=False, chosen={"repeatable": True})

    def test_refusals_name_the_reason(self):
        def group(kind, **members):
            return types.SimpleNamespace(kv_cache_spec=type(kind, (), members)(), layer_names=["0", "1"])

        full = group("FullAttentionSpec")
        for reason, changes in [
                ("kv_load_failure_policy is 'fail'", {"kv_transfer_config__kv_load_failure_policy": "fail"}),
                ("pipeline_parallel_size is 2", {"parallel_config__pipeline_parallel_size": 2}),
                ("decode_context_parallel_size is 2", {"parallel_config__decode_context_parallel_size": 2}),
                ("encoder", {"model_config__is_encoder_decoder": True}),
                ("compressed latents", {"kv_cache__kv_cache_groups": [group("MLAAttentionSpec", model_version="v4")]}),
                ("vLLM keeps latents", {"kv_cache__kv_cache_groups": [group("MLAAttentionSpec", head_size=96)]}),
                ("without attention", {"model_config__is_hybrid": True}),
                ("M-RoPE", {"model_config__uses_mrope": True}),
                ("GGUF", {"model_config__quantization": "gguf"}),
                ("quantises the weights", {"model_config__quantization": "fp8"}),
                ("weights are random", {"load_config__load_format": "dummy"}),
                ("layers of its own", {"speculative_config": types.SimpleNamespace(method="eagle")}),
                ("kv_cache_dtype is 'fp8'", {"cache_config__cache_dtype": "fp8"}),
                ("in chunks of 32 tokens, and with a state instead of keys and values$",
                 {"kv_cache__kv_cache_groups": [full, group("ChunkedLocalAttentionSpec", attention_chunk_size=32), group("MambaSpec")]}),
                ("in chunks of 32 tokens", {"kv_cache__kv_cache_groups": [group("ChunkedLocalAttentionSpec", attention_chunk_size=32)]}),
                ("a cache of kind CrossAttentionSpec", {"kv_cache__kv_cache_groups": [group("CrossAttentionSpec")]}),
                ("layer 0 a window of 128 tokens, transformers none", {"kv_cache__kv_cache_spec__sliding_window": 128}),
                ("later tokens", {"kv_cache__kv_cache_spec__non_causal": True}),
                ("values 32", {"kv_cache__kv_cache_spec__head_size_v": 32}),
                ("2 of 3 layers", {"model_config__hf_text_config__num_hidden_layers": 3})]:
            with self.assertRaisesRegex(ValueError, "^KvCobraConnector: .*" + reason):
                self.check(**changes)
        with self.assertRaisesRegex(ValueError, "repeatable"):
            self.check(chosen={"repeatable": True})
        self.refusal = "layer 3: no reason"
        with self.assertRaisesRegex(ValueError, "^KvCobraConnector: layer 3: no reason$"):
            self.check()

    def test_windows(self):
        def group(name, layers, window, n_kv_heads=1):
            return geometry.Geometry(1, 2, n_kv_heads, 8, 2, 0.5, (1.0,), name=name, layers=layers, window=window)

        def of_vllm(kind, names, window):
            spec = type(kind, (), {"sliding_window": window, "head_size": 8, "head_size_v": 8})()
            return types.SimpleNamespace(kv_cache_spec=spec, layer_names=names)

        self.groups = [group("window-64", (0,), 64), group("full", (1,), None)]
        two = [of_vllm("SlidingWindowSpec", ["layers.0.attn"], 64), of_vllm("FullAttentionSpec", ["layers.1.attn"], None)]
        self.check(kv_cache__kv_cache_groups=two)
        one = [of_vllm("FullAttentionSpec", ["layers.0.attn", "layers.1.attn"], None)]  # all blocks are kept
        self.check(kv_cache__kv_cache_groups=one)
        two[0].kv_cache_spec.sliding_window = 63
        with self.assertRaisesRegex(ValueError, "layer 0 a window of 63 tokens, transformers one of 64"):
            self.check(kv_cache__kv_cache_groups=two)
        for reason in ("attention of 2 kinds", "layers 0 have a window of 64 tokens"):
            with self.assertRaisesRegex(ValueError, reason):
                self.check(codes=True, kv_cache__kv_cache_groups=one, cache_config__enable_prefix_caching=False)
        self.groups = [group("window-64", (0,), 64), group("full", (1,), None, n_kv_heads=2)]
        self.check(kv_cache__kv_cache_groups=one)
        with self.assertRaisesRegex(ValueError, "different numbers of KV heads"):
            self.check(kv_cache__kv_cache_groups=one, parallel_config__tensor_parallel_size=2)

    def test_latent_attention(self):
        def of_vllm(kind):
            return [types.SimpleNamespace(kv_cache_spec=type(kind, (), {"head_size": 96, "head_size_v": 0})(), layer_names=["0", "1"])]

        self.groups = [geometry.Geometry(2, 1, 1, 32, 0, 0.5, (), name=part, part=part, needs="latent attention") for part in ("latent", "rope")]
        self.check(kv_cache__kv_cache_groups=of_vllm("MLAAttentionSpec"))
        with self.assertRaisesRegex(ValueError, "layers 0, 1 have latent attention: attention on codes does not support it"):
            self.check(codes=True, kv_cache__kv_cache_groups=of_vllm("MLAAttentionSpec"), cache_config__enable_prefix_caching=False)
        with self.assertRaisesRegex(ValueError, "vLLM keeps keys and values of heads of layer 0"):
            self.check(kv_cache__kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=config().kv_cache.kv_cache_spec, layer_names=["0", "1"])])

    def test_attention_on_codes(self):
        good = {"cache_config__enable_prefix_caching": False}
        for reason, changes, chosen in [
                ("prefix-caching", {}, None), ("block size is 96", dict(good, cache_config__block_size=96), None),
                ("kv_consumer", dict(good, kv_transfer_config__kv_role="kv_consumer"), None),
                ("speculative", dict(good, speculative_config=types.SimpleNamespace(method="ngram")), None),
                ("async_load", good, {"async_load": True})]:
            with self.assertRaisesRegex(ValueError, reason):
                self.check(codes=True, chosen=chosen, **changes)
        self.factor = 1.3
        with self.assertRaisesRegex(ValueError, "YaRN"):
            self.check(codes=True, **good)
        self.check()

    def test_plugin_is_off_without_the_variable(self):
        before = os.environ.pop(plugin.VARIABLE, None)
        try:
            for value, active in [(None, False), ("", False), ("0", False), ("1", True)]:
                if value is not None:
                    os.environ[plugin.VARIABLE] = value
                self.assertEqual(plugin.active(), active)
            os.environ[plugin.VARIABLE] = "yes"
            with self.assertRaisesRegex(ValueError, "'yes'"):
                plugin.register()
        finally:
            os.environ.pop(plugin.VARIABLE)
            if before is not None:
                os.environ[plugin.VARIABLE] = before

    def test_policy(self):
        for policy, changes in (("fail", True), ("recompute", False)):
            c = types.SimpleNamespace(kv_load_failure_policy=policy)
            self.assertEqual(requirements.set_policy(c), changes)
            self.assertEqual(c.kv_load_failure_policy, "recompute")


class Names(unittest.TestCase):
    """The plugin, with stand-ins for vLLM's modules."""

    def register(self, factory):
        name = "vllm.distributed.kv_transfer.kv_connector.factory"
        modules = {".".join(name.split(".")[:n]): types.ModuleType("stand-in") for n in range(1, 6)}
        modules[name].KVConnectorFactory = factory
        with mock.patch.dict(sys.modules, modules):
            before = set(sys.modules)
            plugin.register()
            self.assertEqual(set(sys.modules), before, "nothing is imported before it is used")

    def test_connector_is_known_by_its_name(self):
        known = {}

        class Factory:
            @staticmethod
            def register_connector(name, module, class_name):
                if name in known:
                    raise ValueError(f"Connector '{name}' is already registered.")
                known[name] = (module, class_name)

        with self.assertNoLogs("vllm.kvcobra") if sys.version_info >= (3, 10) else contextlib.nullcontext():
            for _ in range(2):
                self.register(Factory)
        self.assertEqual(known, {"KvCobraConnector": ("kvcobra.vllm.connector", "KvCobraConnector")})

    def test_other_versions_of_vllm(self):
        class Factory:
            pass

        with self.assertLogs("vllm.kvcobra", "WARNING") as logs:
            self.register(Factory)
        self.assertIn("kv_connector_module_path", logs.output[0])


class ModelId(unittest.TestCase):
    def run_with(self, script):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        command = os.path.join(folder.name, "kvcobra")
        if script is not None:
            with open(command, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + script)
            os.chmod(command, 0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = folder.name + (":/bin" if script is not None else "")
        try:
            return model_id.of_model(folder.name, None)
        finally:
            os.environ["PATH"] = before

    def test_option(self):
        self.assertEqual(model_id.of_model("/does/not/exist", "ab" * 32), "ab" * 32)

    def test_command(self):
        self.assertEqual(self.run_with(f'[ "$1" = model-id ] && echo "{"cd" * 32}  $2"\n'), "cd" * 32)

    def test_errors_say_what_to_do(self):
        for script, reason in [(None, "not installed"), ("echo no weights >&2; exit 1\n", "no weights"), ("echo abc\n", "failed")]:
            with self.assertRaisesRegex(ValueError, f"(?s){reason}.*set model_id"):
                self.run_with(script)
        with self.assertRaisesRegex(ValueError, "neither a folder nor a name.*set model_id"):
            model_id.of_model("org/name", None)

    def test_name_of_a_hub(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        asked = []

        def snapshot_download(name, revision, local_files_only):
            asked.append((name, revision, local_files_only))
            return folder.name

        sys.modules["huggingface_hub"], before = types.SimpleNamespace(snapshot_download=snapshot_download), \
            sys.modules.get("huggingface_hub")
        try:
            self.assertEqual(model_id._folder("org/name", "v2"), folder.name)
        finally:
            del sys.modules["huggingface_hub"]
            if before is not None:
                sys.modules["huggingface_hub"] = before
        self.assertEqual(asked, [("org/name", "v2", True)])  # nothing is downloaded


if __name__ == "__main__":
    support.main()
