"""Options, salts, shards and RoPE frequencies of the vLLM adapter. Without vLLM and kvcobrad."""
import os
import tempfile
import types
import unittest

import support

from kvcobra.vllm import geometry, model_id, options, salt


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


class Rope(unittest.TestCase):
    def of(self, **rope):
        return geometry.rope_frequencies(types.SimpleNamespace(rope_parameters=rope), 64)

    def test_default(self):
        n_rot, frequencies = self.of(rope_type="default", rope_theta=10000.0)
        self.assertEqual((n_rot, len(frequencies), frequencies[0]), (64, 32, 1.0))
        self.assertAlmostEqual(frequencies[16], 0.01, places=15)

    def test_partial(self):
        n_rot, frequencies = self.of(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)
        self.assertEqual((n_rot, len(frequencies)), (32, 16))

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "'longrope'"):
            self.of(rope_type="longrope", rope_theta=10000.0)
        with self.assertRaisesRegex(ValueError, "'dynamic'"):
            self.of(rope_type="dynamic", rope_theta=10000.0)
        with self.assertRaisesRegex(ValueError, "rope_theta"):
            self.of(full_attention={"rope_theta": 1.0}, sliding_attention={"rope_theta": 2.0})

    def test_architecture(self):
        config = types.SimpleNamespace(hf_config=types.SimpleNamespace(architectures=["CohereForCausalLM"]))
        with self.assertRaisesRegex(ValueError, "CohereForCausalLM"):
            geometry.of_model(config)


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
        with self.assertRaisesRegex(ValueError, "not a folder.*set model_id"):
            model_id.of_model("org/name", None)


if __name__ == "__main__":
    support.main()
