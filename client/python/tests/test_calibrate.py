"""kvcobra.calibrate() on small random models of transformers. Skipped without torch and transformers.

Environment: that of support.py, and KVCOBRA_ALLOC_LIBRARY.
"""
import contextlib
import copy
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import support

try:
    import torch
    import transformers  # noqa: F401
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
except ImportError as e:
    print(f"skipped: the Python module {e.name} is missing")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra import _openings, _progress, _texts
from kvcobra._alloc import library as alloc_library
from kvcobra.hf import _recorder
from kvcobra.hf._recorder import NAME, Recorder
from kvcobra.hf._writer import PIECE_TOKENS, write_windows
from test_hf import HALF_SPLIT, INTERLEAVED, make_model

# their attention's output is changed before it is added to the residual stream, or is added in another place
OTHER_RESIDUAL = ("apertus", "cohere", "exaone4", "glm4", "olmo2")
DIGEST = bytes(range(32))


class Words:
    """A tokeniser: an id per word, by its length and first letter."""

    bos_token_id = 1

    def __call__(self, text, add_special_tokens=True, verbose=True):
        ids = [2 + (31 * ord(word[0]) + len(word)) % 126 for word in text.split()]
        return {"input_ids": [1] * add_special_tokens + ids}


def random_text(seed, n_words):
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(97, 123, (n_words,), generator=generator).tolist()
    lengths = torch.randint(1, 9, (n_words,), generator=generator).tolist()
    return " ".join(chr(c) * n for c, n in zip(letters, lengths))


class Recorded:
    """Takes what statistics would get."""

    def __init__(self):
        self.wo, self.layers, self.gradients = {}, [], {}

    def set_output_projection(self, layer, wo):
        self.wo[layer] = wo.clone()

    def add_layer(self, document, layer, q, k, v, residual, pairs):
        self.layers.append((document, layer, *(None if x is None else x.clone() for x in (q, k, v, residual))))
        self.pairs = pairs

    def add_gradients(self, layer, side, g, pairs):
        self.gradients[layer, side] = (g.clone(), pairs)


def rotated_back(x, frequencies):
    """x [tokens, heads, dim] before RoPE, if token t was rotated to position t."""
    half, n = len(frequencies), x.shape[0]
    angles = torch.arange(n, dtype=torch.float64)[:, None, None] * torch.tensor(frequencies, dtype=torch.float64)
    lo, hi = x[..., :half].double(), x[..., half:2 * half].double()
    return torch.cat([lo * angles.cos() + hi * angles.sin(), hi * angles.cos() - lo * angles.sin(), x[..., 2 * half:].double()], -1)


class Activations(unittest.TestCase):
    def record(self, model, tokens, metric="output"):
        recorder, recorded = Recorder(model, metric), Recorded()
        before = model.config._attn_implementation
        with recorder.recording([recorded]):
            recorder.run(7, tokens, lambda share: None)
        self.assertEqual(model.config._attn_implementation, before)
        return recorder, recorded

    def test_attention_of_what_was_recorded(self):
        """Attention of the recorded vectors, by W_O, is what the layer adds to its input: this holds for no other queries,
        keys, scale, W_O or residual stream."""
        tokens = torch.randint(1, 128, (40,), generator=torch.Generator().manual_seed(3)).tolist()
        for kind in HALF_SPLIT + INTERLEAVED:
            if kind in OTHER_RESIDUAL:
                continue
            with self.subTest(kind):
                model = make_model(kind)
                recorder, recorded = self.record(model, tokens)
                g = recorder.groups[0].geometry
                with torch.no_grad():
                    states = model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
                self.assertEqual([x[:2] for x in recorded.layers], [(7, layer) for layer in range(g.n_layers)])
                for _, layer, q, k, v, residual in recorded.layers:
                    group = g.n_heads // g.n_kv_heads
                    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * g.attn_scale
                    scores = scores.masked_fill(torch.ones(40, 40).triu(1).bool(), float("-inf"))
                    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(group, 1)).flatten(1)
                    added = out @ recorded.wo[layer].T.float()
                    torch.testing.assert_close(added, residual - states[layer][0], rtol=1e-3, atol=1e-4)

    def gradients(self, model, tokens):
        recorder, recorded = Recorder(model, "fisher"), Recorded()
        with recorder.recording([recorded]):
            recorder.run(7, tokens, lambda share: None)
        return recorder, recorded

    def check_gradients(self, kind, layer, side, **changes):
        """The gradient along a random direction against a difference quotient of log p(y) of the same drawn tokens."""
        model = make_model(kind, dtype=torch.float32, **changes)
        tokens = torch.randint(1, 128, (24,), generator=torch.Generator().manual_seed(3)).tolist()
        drawn = []

        def multinomial(*arguments, **named):
            drawn.append(draw(*arguments, **named))
            return drawn[-1]

        draw = torch.multinomial
        with mock.patch.object(torch, "multinomial", multinomial):
            recorder, recorded = self.gradients(model, tokens)
        self.assertEqual(len(recorded.gradients), 2 * recorder.groups[0].geometry.n_layers)
        self.assertEqual([x[:2] for x in recorded.layers], [(7, i) for i in range(recorder.groups[0].geometry.n_layers)])
        self.assertTrue(all(p.requires_grad for p in model.parameters()))
        g = recorded.gradients[layer, side][0]
        direction = torch.randn(g.shape, generator=torch.Generator().manual_seed(5))
        right = _recorder.attention

        def moved(step):
            def attention(module, query, key, value, *arguments, **named):
                if module.layer_idx == layer:
                    change = step * direction.transpose(0, 1)[None].to(key.dtype)
                    factor = recorder.groups[0].kind.factor if side == "k" else 1.0
                    key, value = (key + factor * change, value) if side == "k" else (key, value + change)
                return right(module, query, key, value, *arguments, **named)

            double = copy.deepcopy(model).double()
            double.config._experts_implementation = "eager"  # the others have no binary64
            AttentionInterface.register("kvcobra_moved", attention)
            AttentionMaskInterface.register("kvcobra_moved", sdpa_mask)
            double.set_attn_implementation("kvcobra_moved")
            with torch.no_grad():
                log_p = double(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
            return log_p.gather(1, drawn[0]).sum().item()

        want = (moved(1e-4) - moved(-1e-4)) / 2e-4
        self.assertAlmostEqual((g.double() * direction).sum().item(), want, delta=2e-3 * abs(want) + 1e-3)

    def test_gradients(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10000.0}
        for kind, changes in [("llama", {}), ("llama", {"rope_parameters": yarn}), ("glm4", {}), ("granite", {"logits_scaling": 0.5}),
                              ("mixtral", {}), ("olmo2", {})]:
            for layer, side in ((0, "k"), (2, "v"), (1, "k")):
                with self.subTest(kind, layer=layer, side=side):
                    self.check_gradients(kind, layer, side, **changes)

    def test_yarn_is_divided_out(self):
        rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10000.0}
        model = make_model("llama", rope_parameters=rope)
        recorder, recorded = self.record(model, list(range(1, 33)))
        attention = model.model.layers[0].self_attn
        with torch.no_grad():
            x = model.model.layers[0].input_layernorm(model.model.embed_tokens(torch.arange(1, 33)))
            want = attention.k_proj(x).view(32, -1, attention.head_dim)
        torch.testing.assert_close(rotated_back(recorded.layers[0][3], recorder.groups[0].geometry.rope_freq).float(), want, rtol=1e-4,
                                   atol=1e-4)

    def test_interleaved_pairs(self):
        """Keys in the model's order, and its name: rotated back they are those of the model."""
        model = make_model("glm4")
        recorder, recorded = self.record(model, list(range(1, 33)), "mse")
        layer, g = model.model.layers[0], recorder.groups[0].geometry
        with torch.no_grad():
            x = layer.input_layernorm(model.model.embed_tokens(torch.arange(1, 33)))
            want = layer.self_attn.k_proj(x).view(32, -1, g.head_dim)
        self.assertEqual(recorded.pairs, "interleaved")
        k, want = (torch.cat([y[..., :g.n_rot:2], y[..., 1:g.n_rot:2], y[..., g.n_rot:]], -1) for y in (recorded.layers[0][3], want))
        torch.testing.assert_close(rotated_back(k, g.rope_freq).float(), want, rtol=1e-4, atol=1e-4)

    def test_model_is_as_before_after_a_failure(self):
        model = make_model().train()
        recorder = Recorder(model, "output")
        with self.assertRaises(ZeroDivisionError):
            with recorder.recording([Recorded()]):
                recorder.run(1, [1, 2, 3], lambda share: 1 / 0)
        self.assertTrue(model.training)
        self.assertNotEqual(model.config._attn_implementation, NAME)
        for layer in model.model.layers:
            self.assertFalse(layer.post_attention_layernorm._forward_pre_hooks)
            self.assertFalse([name for name in vars(layer.self_attn) if "kvcobra" in name])

    def test_refusals(self):
        for kind in OTHER_RESIDUAL:
            with self.subTest(kind):
                with self.assertRaisesRegex(ValueError, "layers 0-2 .*metric='fisher'"):
                    Recorder(make_model(kind), "output")
                self.record(make_model(kind), [1, 2, 3, 4, 5, 6], "mse")
        with self.assertRaisesRegex(ValueError, "layers 0-2 see 64 tokens, fewer than a window of 65 tokens of text"):
            Recorder(make_model("mistral", sliding_window=64), "output").check_window(65)
        Recorder(make_model("mistral", sliding_window=64), "output").check_window(64)
        for kind in ("gemma2", "gpt_oss"):
            with self.subTest(kind), self.assertRaisesRegex(ValueError, "metric='fisher'"):
                Recorder(make_model(kind), "output")


class Texts(unittest.TestCase):
    def test_byte_order_mark(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "text")
            path.write_bytes(b"\xef\xbb\xbfhello\xef\xbb\xbf")
            self.assertEqual(_texts.read(path, 1), (str(path), b"hello\xef\xbb\xbf"))
            path.write_bytes(b"hello")
            self.assertEqual(_texts.read(path, 1), (str(path), b"hello"))

    def test_windows(self):
        sources = [_texts.Source("a", b"", 0, list(range(100, 125))), _texts.Source("b", b"", 0, list(range(200, 207)))]
        cuts = list(_texts.windows(sources, [1], 1000, 6))
        self.assertEqual([(c.source, c.tokens[1]) for c in cuts], [(0, 100), (1, 200), (0, 105), (0, 110), (0, 115), (0, 120)])
        self.assertTrue(all(len(c.tokens) == 6 and c.tokens[0] == 1 for c in cuts))
        self.assertEqual(len(list(_texts.windows(sources, [1], 13, 6))), 3)
        self.assertEqual(len({c.document for c in cuts}), len(cuts))
        data = (0).to_bytes(8, "little") + b"".join(t.to_bytes(4, "little") for t in [1, 100, 101, 102, 103, 104])
        self.assertEqual(cuts[0].document.to_bytes(8, "little"), hashlib.blake2b(data, digest_size=16).digest()[:8])

    def test_pieces_are_sources(self):
        """A text alone is divided into pieces, whose windows are windows of the whole text."""
        text = _texts.Source("a", b"a" * 32, 0, list(range(3100)))
        whole = list(_texts.windows([text], [1], 100000, 101))
        self.assertEqual({cut.name for cut in whole}, {b"a" * 32})
        cuts = list(_texts.windows([text], [1], 100000, 101, pieces=6))
        self.assertEqual([cut.document for cut in cuts], [cut.document for cut in whole])
        self.assertEqual(len({cut.name for cut in cuts}), 6)
        few = list(_texts.windows([text], [1], 606, 101, pieces=6))  # two windows of each piece, from all of the text
        self.assertEqual([cut.tokens[1] for cut in few], [0, 600, 1100, 1600, 2100, 2600])
        self.assertEqual([cut.name for cut in few], [b"a" * 30 + bytes([3, piece]) for piece in (1, 1, 2, 2, 3, 3)])
        self.assertEqual(len({cut.name for cut in _texts.windows([text, text], [1], 100000, 101, pieces=6)}), 1)

    def test_windows_that_repeat_others_are_left_out(self):
        page = list(range(1000, 1040))
        sources = [_texts.Source("copies", b"", 0, page * 3), _texts.Source("copy", b"", 0, page + list(range(2000, 2040)))]
        repeated = {}
        cuts = list(_texts.windows(sources, [1], 1000, 41, repeated))
        self.assertEqual([(c.source, c.tokens[1]) for c in cuts], [(0, 1000), (1, 2000)])
        self.assertEqual(repeated, {0: 2, 1: 1})
        self.assertEqual(cuts[1].document, _texts.document(cuts[1].tokens, 1))  # its place in its text
        partly = page[:31] + list(range(3000, 3009))  # 9 of 25 runs are new
        self.assertEqual(len(list(_texts.windows([_texts.Source("a", b"", 0, page + partly)], [], 1000, 40))), 2)

    def test_share_of_the_model(self):
        self.assertEqual([_texts.own_windows(n, 1000) for n in (0, 63, 64, 499, 500, 2400)],
                         [(0, 0), (0, 63), (1, 64), (1, 499), (1, 1000), (2, 1000)])
        sources, cuts = _texts.of_model([[5, 6], [7, 8], [9, 10]], [1], ["x", "y"], 3)
        self.assertEqual([(c.source, c.tokens) for c in cuts], [(3, [1, 5, 6]), (4, [1, 7, 8]), (3, [1, 9, 10])])
        ids = b"".join(t.to_bytes(4, "little") for t in (1, 5, 6, 1, 9, 10))
        self.assertEqual((sources[0].digest, sources[0].n_bytes), (hashlib.sha256(ids).digest(), len(ids)))
        self.assertNotEqual(_texts.own_seed(cuts, 0), _texts.own_seed(cuts[1:], 0))
        self.assertNotEqual(_texts.own_seed(cuts, 0), _texts.own_seed(cuts, 1))

    def test_progress_line(self):
        p = _progress.Progress("calibrating", "tokens", 2048, False)
        self.assertEqual(p.line(0, 1.0), "calibrating  0 %")
        self.assertEqual(p.line(512, 4.0), "calibrating  25 %  128 tokens/s  0:12 left")
        p.update(2048)  # not wanted
        with contextlib.redirect_stderr(io.StringIO()) as log:  # no terminal: a line every ten seconds
            p = _progress.Progress("calibrating", "tokens", 2048)
            p.update(1)
            p._last -= 10
            p.update(512)
            p.update(1024)
        self.assertRegex(log.getvalue(), r"\Acalibrating  25 %  .* left\n\Z")


class Spike(torch.nn.Module):
    """A model that always predicts token 7, less surely token 1, and counts what it reads."""

    def __init__(self, head=True):
        super().__init__()
        self.head, self.read = head, []

    def get_output_embeddings(self):
        return self.head or None

    def forward(self, input_ids, past_key_values, use_cache):
        self.read.append(input_ids)
        logits = torch.zeros(*input_ids.shape, 128)
        logits[..., 1], logits[..., 7] = 200, 100
        return transformers.modeling_outputs.CausalLMOutputWithPast(logits=logits, past_key_values="cache")


class SpecialWords(Words):
    all_special_ids = [1]


class Writing(unittest.TestCase):
    def test_openings_are_those_of_the_command(self):
        self.assertEqual([name for name, _ in _openings.OPENINGS],
                         ["prose", "code", "markup", "dialogue", "languages", "records"])
        with open(os.path.join(support.program("KVC_SOURCE_ROOT"), "tools/calibrate/corpus_openings.c"), encoding="utf-8") as file:
            source = file.read()
        self.assertTrue(all(len(found) == 10 for _, found in _openings.OPENINGS))
        self.assertIn('"' + _openings.OPENINGS[1][1][1].encode("unicode_escape").decode() + '"', source)
        self.assertIn("\u65e5\u672c", _openings.OPENINGS[4][1][8])

    def test_beginnings_then_the_model_s_own_tokens(self):
        """Sequences begin with words of their kind; then come tokens of the model, and none that begins a text."""
        model, done = Spike().train(), []
        texts = write_windows(model, SpecialWords(), [1], 7, 2 * PIECE_TOKENS + 1, 3, done.append)
        self.assertEqual([len(text) for text in texts], 7 * [2 * PIECE_TOKENS + 1])
        for i, text in enumerate(texts):
            openings = [SpecialWords()(words, False)["input_ids"] for words in _openings.OPENINGS[i % 6][1]]
            self.assertTrue(any(text[:len(o) + 1] == o + [7] for o in openings), text[:20])
            self.assertNotIn(1, text)
            self.assertGreater(text.count(7), len(text) // 2)
            self.assertGreater(sum(a == 7 != b for a, b in zip(text, text[1:])), 0)  # another document begins
        self.assertTrue(all(x.shape[1] == 1 for x in model.read))
        self.assertEqual(done[-1], 7 * 3 * ((2 * PIECE_TOKENS + 1 + 2) // 3))
        self.assertTrue(model.training)

    def test_real_model(self):
        """The likeliest text of the pieces together is that of each alone: sequences do not see each other."""
        model = make_model()
        some = write_windows(model, Words(), [1], 2, 60, 3, lambda n: None)
        self.assertEqual(some, write_windows(model, Words(), [1], 5, 60, 3, lambda n: None)[:2])
        self.assertNotEqual(some, write_windows(model, Words(), [1], 2, 60, 4, lambda n: None))
        self.assertTrue(all(0 <= token < 128 for text in some for token in text))

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "no head that predicts tokens"):
            write_windows(Spike(head=False), Words(), [1], 1, 60, 3, lambda n: None)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.stats = os.path.join(self.folder, "made.stats")

    def calibrate(self, model, texts, **named):
        named = {"output": self.stats, "tokenizer": Words(), "tokens": 2000, "window": 250, "model_id": DIGEST, "own_share": 0,
                 **named}
        return kvcobra.calibrate(model, texts, **named)

    def test_table_of_statistics(self):
        """A table of the statistics opens, and its errors on other text are near those that it expects."""
        path = pathlib.Path(self.folder, "text")
        path.write_text(random_text(1, 1200))
        model = make_model()
        done = self.calibrate(model, [path, random_text(2, 1200)])
        self.assertEqual((done.tokens, done.windows, done.samples), (8 * 246, 8, 8 * 246))
        self.assertEqual(done.bytes, os.path.getsize(self.stats))
        table = os.path.join(self.folder, "made.table")
        subprocess.run([support.program("KVC_KVCOBRA"), "solve", self.stats, "--bpd", "4", "-o", table], check=True,
                       capture_output=True)
        tokens = _texts.tokenise(random_text(3, 320), 0, Words()).tokens
        recorder, recorded = Recorder(model, "mse"), Recorded()
        with recorder.recording([recorded]):
            recorder.run(1, tokens, lambda share: None)
        with kvcobra.Client(False) as client:
            bound = kvcobra.Model(client, model_id=DIGEST, geometry=recorder.groups[0].geometry, table=table)
            with kvcobra.Sequence(bound, keys="after") as sequence:
                for first in range(0, 320, 64):
                    for _, layer, _, k, v, _ in recorded.layers:
                        sequence.append(layer, k[first:first + 64], v[first:first + 64])
                for _, layer, _, k, v, _ in recorded.layers:
                    for side, x in (("k", k), ("v", v)):
                        out = torch.empty_like(x[4:192].contiguous())
                        sequence.read(layer, side, 4, 188, out)
                        error = (out - x[4:192]).square().sum() / (x[4:192] - x[4:192].mean(0)).square().sum()
                        self.assertTrue(0 < error < 0.05, f"layer {layer} {side}: {error}")

    def test_groups(self):
        """A file per group of layers, each for the digest of its group, which tables and pages of the group are named by."""
        model = make_model("gemma3_text", num_hidden_layers=6, sliding_window=64)
        done = self.calibrate(model, [random_text(1, 1200)], metric="fisher", tokens=1000)
        self.assertEqual([os.path.basename(path) for path in done.outputs], ["made.window-64.stats", "made.full.stats"])
        for path, name, n_layers in zip(done.outputs, ("window-64", "full"), (5, 1)):
            shown = subprocess.run([support.program("KVC_KVCOBRA"), "inspect", path, "--json"], check=True, capture_output=True, text=True)
            self.assertIn(hashlib.sha256(b"kvcobra group 1" + DIGEST + name.encode()).hexdigest(), shown.stdout)
            self.assertIn(f'"layers": {n_layers}', shown.stdout.replace('"n_layers"', '"layers"'))

    def test_fisher(self):
        """The solver takes the metric that the gradients make available. They cost the statistics' bytes, and a failure names a layer."""
        model, text = make_model("olmo2"), random_text(1, 1200)
        self.calibrate(model, [text], metric="fisher", tokens=1000)
        table = os.path.join(self.folder, "made.table")
        subprocess.run([support.program("KVC_KVCOBRA"), "solve", self.stats, "--bpd", "4", "-o", table], check=True, capture_output=True)
        done = subprocess.run([support.program("KVC_KVCOBRA"), "inspect", table, "--json"], check=True, capture_output=True, text=True)
        self.assertIn('"fisher"', done.stdout)
        with self.assertRaisesRegex(ValueError, "no head that predicts tokens, which metric 'fisher'"):
            Recorder(model.model, "fisher")

    def test_metric_that_suits_the_model(self):
        text = random_text(1, 700)
        for kind, metric, changes in (("llama", "output", {}), ("olmo2", "fisher", {}), ("mistral", "fisher", dict(sliding_window=64))):
            with self.subTest(kind):
                self.assertEqual(self.calibrate(make_model(kind, **changes), [text], tokens=500).metric, metric)
        with self.assertRaisesRegex(ValueError, "fewer than a window of"):
            self.calibrate(make_model("mistral", sliding_window=64), [text], tokens=500, metric="output")
        with self.assertRaisesRegex(ValueError, "no head that predicts tokens"):  # no metric is left but mse, which must be asked for
            self.calibrate(make_model("olmo2").model, [text], tokens=500)

    def test_the_same_bytes_again_and_other_seeds(self):
        text = random_text(1, 700)
        digests = []
        for seed in (0, 0, 1):
            self.calibrate(make_model(), [text], tokens=500, seed=seed)
            with open(self.stats, "rb") as file:
                digests.append(hashlib.sha256(file.read()).digest())
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])

    def test_text_of_the_model(self):
        """Its share, its kinds as sources, and a text in copies."""
        def sources():
            done = subprocess.run([support.program("KVC_KVCOBRA"), "inspect", self.stats, "--json"], check=True,
                                  capture_output=True, text=True)
            return [x for x in json.loads(done.stdout)["sources"]]

        done = self.calibrate(make_model(), [random_text(1, 1100)], own_share=50)
        self.assertEqual((done.windows, done.own_windows, done.repeated), (8, 4, 0))
        self.assertEqual(len(sources()), 5)
        done = self.calibrate(make_model(), [" ".join(3 * [random_text(1, 249)])])
        self.assertEqual((done.windows, done.own_windows, done.repeated), (1, 0, 2))
        done = self.calibrate(make_model(), [], tokens=1500)
        self.assertEqual((done.windows, done.own_windows, done.tokens), (6, 6, 6 * 246))
        self.assertEqual(len(sources()), 6)
        done = self.calibrate(make_model(), [], tokens=1500, window=100)
        self.assertEqual((done.windows, len(sources())), (15, 6))
        texts = [random_text(i, 260) for i in range(10, 13)]
        self.calibrate(make_model(), texts, own_share=50)
        self.assertEqual(len(sources()), 4)  # 3 + 6 would be more than stay apart

    def test_refusals(self):
        model, text = make_model(), random_text(1, 700)
        with self.assertRaisesRegex(ValueError, "own_share is 91"):
            self.calibrate(model, [text], own_share=91)
        with self.assertRaisesRegex(ValueError, "metric is 'kl'"):
            self.calibrate(model, [text], metric="kl")
        with self.assertRaisesRegex(ValueError, "reads 5 to 4096 tokens"):
            self.calibrate(model, [text], window=4097)
        with self.assertRaisesRegex(ValueError, "give more text"):
            self.calibrate(model, [random_text(1, 100)])
        with self.assertRaisesRegex(ValueError, "was not loaded from a local folder"):
            self.calibrate(model, [text], model_id=None)
        with self.assertRaisesRegex(TypeError, "text 0 is a bytes"):
            self.calibrate(model, [text.encode()])
        path = pathlib.Path(self.folder, "latin1")
        path.write_bytes(b"caf\xe9 " * 300)
        with self.assertRaisesRegex(ValueError, "0xe9 at offset 3"):
            self.calibrate(model, [path])
        with self.assertRaises(kvcobra.Error) as caught:
            self.calibrate(model, [text], output=os.path.join(self.folder, "nowhere", "x"))
        self.assertIn("nowhere", caught.exception.strerror)
        with torch.no_grad():
            model.model.layers[1].self_attn.k_proj.weight[5, 5] = float("nan")
        with self.assertRaises(kvcobra.Error) as caught:
            self.calibrate(model, [text])
        self.assertIn("of layer 1", caught.exception.strerror)
        self.assertFalse(os.path.exists(self.stats))

    def test_command(self):
        def run(*arguments):
            return subprocess.run([sys.executable, "-m", "kvcobra", "calibrate", *arguments], capture_output=True, text=True)

        self.assertEqual(run().returncode, 2)
        done = run(self.folder, "--text", "x", "-o", self.stats)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("is not a folder with a config.json", done.stderr)

    def test_library_that_is_missing(self):
        environment = {**os.environ, "KVCOBRA_ALLOC_LIBRARY": "/nowhere/libkvcobra-alloc.so.0"}
        done = subprocess.run([sys.executable, "-c", "from kvcobra._alloc import library; library()"], capture_output=True, text=True,
                              env=environment)
        self.assertIn("set the environment variable KVCOBRA_ALLOC_LIBRARY", done.stderr)
        self.assertEqual(alloc_library(), alloc_library())


if __name__ == "__main__":
    support.main()
