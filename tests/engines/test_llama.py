"""llama.cpp processes share prompts through kvcobrad: the example llama_share with real models and a real daemon.

A divergence is the mean Kullback-Leibler divergence of the probabilities after the 16 tokens behind the last whole chunk, from
those that llama.cpp computes alone. Measured: 0.09 to 0.40 nats with SmolLM2 and 3 bits per number, 0.0002 to 0.022 with random
models and 6 bits. With the other order of pairs it was 3.5 to 4.4, and 0.37 to 0.54. Each limit lies between.
"""
import os
import subprocess
import tempfile
import unittest

import engines
from engines import Daemon

TOKENS = 400
WHOLE_CHUNKS = 384


class Sharing(unittest.TestCase):
    """One daemon with the table of one model for all cases; each case has a text of its own."""

    divergence_max = 1.0

    @classmethod
    def setUpClass(cls):
        cls.program = engines.need("KVC_LLAMA_SHARE")
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvcobra-llama-"))
        cls.gguf, table = cls.model()
        cls.daemon = cls.enterClassContext(Daemon("--pool-bytes=512M", "--arena-bytes=16M"))
        cls.daemon.activate(table)
        cls.digest = engines.table_model(table)

    @classmethod
    def model(cls):
        """The GGUF file, and a table for it."""
        return engines.need("KVC_ENGINE_GGUF"), engines.need("KVC_ENGINE_TABLE")

    def text(self, first):
        """A file with the project's licence from line @first on: each @first is another text."""
        path = os.path.join(self.folder, f"{first}.txt")
        with open(engines.source("LICENSE"), encoding="utf-8") as file, open(path, "w", encoding="utf-8") as to:
            to.writelines(file.readlines()[first:])
        return path

    def share(self, text, *options):
        return engines.llama_share(self, self.daemon, self.digest, self.gguf, text, "--tokens", str(TOKENS), *options)

    def publish(self, text, *options):
        got = self.share(text, *options)
        self.assertEqual((got["tokens"], got["found"], got["evaluated"]), (TOKENS, 0, TOKENS))
        self.assertEqual(got["published"], WHOLE_CHUNKS)
        return got

    def use(self, text, *options):
        got = self.share(text, "--compare", *options)
        self.assertEqual((got["found"], got["evaluated"]), (WHOLE_CHUNKS, TOKENS - WHOLE_CHUNKS))
        self.assertEqual(got["published"], WHOLE_CHUNKS)
        self.assertLess(got["divergence"], self.divergence_max)
        return got


class Llama(Sharing):
    def test_second_process(self):
        text = self.text(0)
        first = self.publish(text)
        second = self.use(text)
        self.assertEqual(first["next token"], second["next token without sharing"])

    def test_number_types(self):
        """One process of each kind uses what another kind published."""
        text = self.text(10)
        self.publish(text, "--type", "bf16")
        for options in ([], ["--no-flash"], ["--type", "f32"], ["--type", "f32", "--no-flash"], ["--type", "bf16"]):
            with self.subTest(options=options):
                self.use(text, *options)

    def test_transposed_values_are_read(self):
        text = self.text(20)
        self.publish(text, "--no-flash")
        self.use(text)

    def test_text_that_differs(self):
        text, other = self.text(30), self.text(40)
        self.publish(text)
        self.assertEqual(self.share(other)["found"], 0)

    def test_quantised_cache_is_refused(self):
        arguments = [self.program, "--socket", self.daemon.socket, "--type", "q8_0", self.gguf, self.digest, self.text(0)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=engines.TIMEOUT_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("keys of type q8_0, which llama.cpp rotates and quantises", done.stderr)


class Architecture(Sharing):
    """A small random model, made, calibrated and solved here."""

    name = "llama"
    divergence_max = 0.1

    @classmethod
    def model(cls):
        gguf, stats, table = (os.path.join(cls.folder, name) for name in ("m.gguf", "m.stats", "m.table"))
        subprocess.run([engines.need("KVC_TINY_MODEL"), gguf, "1", cls.name], check=True)
        kvcobra, text = engines.need("KVC_KVCOBRA"), engines.source("LICENSE")
        subprocess.run([kvcobra, "calibrate", gguf, "--text", text, "--tokens", "4096", "--window", "512", "-o", stats, "--quiet"],
                       check=True, stdout=subprocess.DEVNULL)
        subprocess.run([kvcobra, "solve", stats, "--bpd", "6", "-o", table], check=True, stdout=subprocess.DEVNULL)
        return gguf, table


class Qwen2(Architecture):
    """Half-split pairs in llama.cpp's cache."""

    name = "qwen2"

    def test_second_process(self):
        text = self.text(0)
        self.publish(text)
        self.use(text)


class Qwen3(Qwen2):
    name = "qwen3"
