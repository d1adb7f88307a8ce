"""KvCobraCache for models whose layers have attention of several kinds, on small random models. Skipped without torch and
transformers."""
import copy
import json
import os
import shutil
import subprocess
import sys
from unittest import mock

import support

try:
    import torch
    from transformers.models.glm4 import modeling_glm4
    from transformers.models.llama import modeling_llama
except ImportError as e:
    print(f"skipped: torch and transformers are needed: {e}")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra._groups import FULL, group_digest, numbers
from kvcobra.hf import KvCobraCache, _geometry, _proof
from test_calibrate import Words, random_text
from test_hf import MOE, HfCase, ids, make_model, mean_kl

EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
# latent attention (MLA)
MLA = dict(MOE, num_key_value_heads=4, kv_lora_rank=64, q_lora_rank=48, qk_nope_head_dim=32, qk_rope_head_dim=32, head_dim=32, v_head_dim=32,
           n_group=1, topk_group=1, first_k_dense_replace=3)
# by type: what is changed, the names of groups, and whether attention runs on codes
KINDS = {"mistral": (dict(sliding_window=70), ["window-70"], True),
         "ministral": (dict(sliding_window=70), ["window-70"], True),
         "gemma3_text": (dict(num_hidden_layers=6, sliding_window=70), ["window-70", "full"], True),
         "olmo3": (dict(num_hidden_layers=4, sliding_window=70), ["window-70", "full"], True),
         "cohere2": (dict(num_hidden_layers=4, sliding_window=70, logit_scale=1.0), ["window-70", "full-nope"], True),
         "smollm3": (dict(num_hidden_layers=4), ["full", "full-nope"], True),
         "qwen2": (dict(use_sliding_window=True, sliding_window=70, max_window_layers=1), ["full", "window-70"], True),
         "gemma2": (dict(sliding_window=70), ["window-70", "full"], False),
         "gpt_oss": (dict(EXPERTS, sliding_window=70), ["window-70", "full"], False),
         **{kind: (MLA, ["latent", "rope"], False)
            for kind in ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")},
         "longcat_flash": (dict(MLA, num_layers=2), ["latent", "rope"], False)}
MODEL_ID = bytes(range(32))


class GroupsCase(HfCase):
    def make(self, kind):
        return make_model(kind, **KINDS[kind][0])

    def tables(self, model):
        """A random table per group, for the digests of its groups."""
        tables = {}
        for group in _geometry.model_groups(model):
            tables[group.name] = os.path.join(self.folder, f"{group.name}.table")
            support.write_table(tables[group.name], group.geometry)
        return tables

    def grouped(self, model, **options):
        return KvCobraCache.from_model(model, self.client, table=self.tables(model), **options)

    def own(self, model, **named):
        """Output with the model's own attention: sdpa has neither caps nor sinks."""
        model.set_attn_implementation("eager")
        with torch.no_grad():
            return model(**named).logits


class Exactness(GroupsCase):
    def test_groups_and_one_piece(self):
        """A piece that is appended at once is exact, longer than a window; codes serve what libkvcobra can attend to."""
        for kind, (_, names, on_codes) in KINDS.items():
            with self.subTest(kind):
                model = self.make(kind)
                self.assertEqual([g.name for g in _geometry.model_groups(model)], names)
                text, _ = ids(150)
                want = self.own(model, input_ids=text, use_cache=False)
                cache = self.grouped(model)
                self.assertEqual(model.config._attn_implementation, "kvcobra" if on_codes else "eager")
                self.assertLess(mean_kl(want, self.run_model(model, cache, input_ids=text)), 1e-6)
                self.assertEqual(cache.get_seq_length(), 150)
                self.assertEqual([s.length for s in cache.sequences], len(names) * [150 * on_codes])

    def test_a_window_off_by_one_is_seen(self):
        for kind in ("mistral", "gemma3_text"):
            model = self.make(kind)
            text, _ = ids(150)
            want = self.own(model, input_ids=text, use_cache=False)
            cache = self.grouped(model)
            served = cache._rows.served
            for by in (-1, 1):
                with self.subTest(kind, by=by):
                    cache.reset()
                    for i, s in enumerate(served):
                        if s.group.kind.window:
                            wrong = s.group._replace(kind=s.group.kind._replace(window=70 + by))
                            cache._rows.served[i] = s._replace(group=wrong)
                    for layer in model.model.layers:  # the model's own word would refuse it
                        layer.self_attn.sliding_window = 70 + by
                    before, model.config.sliding_window = model.config.sliding_window, 70 + by
                    got = self.run_model(model, cache, input_ids=text)
                    model.config.sliding_window = before
                    self.assertGreater(mean_kl(want[:, 80:], got[:, 80:]), 1e-6)

    def test_pieces(self):
        for kind, (_, _, on_codes) in KINDS.items():
            if on_codes:
                with self.subTest(kind):
                    model = self.make(kind)
                    text, _ = ids(120)
                    want = self.own(model, input_ids=text, use_cache=False)
                    cache = self.grouped(model)
                    got = torch.cat([self.run_model(model, cache, input_ids=text[:, a:b]) for a, b in ((0, 50), (50, 119), (119, 120))], 1)
                    self.assertLess(mean_kl(want, got), 1e-4)

    def test_crop_select_and_copy(self):
        model = self.make("gemma3_text")
        text, _ = ids(40, 40)
        cache = self.grouped(model)
        self.run_model(model, cache, input_ids=text)
        cache.crop(-10)
        self.assertEqual([s.length for s in cache.sequences], 4 * [30])
        cache.batch_select_indices(torch.tensor([1]))
        self.assertEqual([s.length for s in cache.sequences], 2 * [30])
        other = copy.deepcopy(cache)
        rest = self.run_model(model, other, input_ids=text[1:, 30:])
        want = self.own(model, input_ids=text[1:], use_cache=False)[:, 30:]
        self.assertLess(mean_kl(want, rest), 1e-4)
        self.assertEqual(cache.get_seq_length(), 30)


class Refusals(GroupsCase):
    def test_tables(self):
        model = self.make("gemma3_text")
        tables = self.tables(model)
        with self.assertRaisesRegex(ValueError, "one for 'full' is missing"):
            KvCobraCache.from_model(model, self.client, table={"window-70": tables["window-70"]})
        with self.assertRaisesRegex(ValueError, "2 groups of layers: table must be a dict"):
            KvCobraCache.from_model(model, self.client, table=tables["full"])
        with self.assertRaisesRegex(ValueError, "n_layers is 1"):
            KvCobraCache.from_model(model, self.client, table={"window-70": tables["full"], "full": tables["full"]})
        with self.assertRaisesRegex(ValueError, "capped scores, which attention to codes does not compute"):
            KvCobraCache.from_model(self.make("gemma2"), self.client, table=tables, dense=False)
        with self.assertRaisesRegex(ValueError, "layers 0-2 of the model keep a state"):
            KvCobraCache.from_model(make_model("qwen3_5_text", num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2,
                                               linear_key_head_dim=32, linear_value_head_dim=32), self.client, table=tables)

    def test_names(self):
        self.assertEqual(group_digest(MODEL_ID, FULL, 1), MODEL_ID)
        self.assertNotEqual(group_digest(MODEL_ID, FULL, 2), MODEL_ID)
        self.assertNotEqual(group_digest(MODEL_ID, "window-70", 1), MODEL_ID)
        self.assertEqual(numbers([0, 1, 2, 4, 6, 7]), "0-2, 4, 6, 7")


def interleave(model):
    """Permutes the rows of queries and keys of a Llama, so that with interleaved pairs it computes what it computed before."""
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                d = layer.self_attn.head_dim
                heads = projection.weight.view(-1, d, projection.weight.shape[1])
                heads.copy_(torch.stack([heads[:, :d // 2].clone(), heads[:, d // 2:].clone()], 2).flatten(1, 2))
    return model


class Budget(GroupsCase):
    """kvcobra solve with the statistics of all groups."""

    def calibrate(self, kind, metric, name):
        return kvcobra.calibrate(self.make(kind), [random_text(1, 1100)], output=os.path.join(self.folder, f"{name}.stats"), tokenizer=Words(),
                                 tokens=1000, window=250, metric=metric, model_id=MODEL_ID, own_share=0, progress=False).outputs

    def solve(self, *arguments):
        done = subprocess.run([support.program("KVC_KVCOBRA"), "solve", *arguments, "--bpd", "3", "-o", os.path.join(self.folder, "tables"), "--json"],
                              capture_output=True, text=True, check=False)
        return json.loads(done.stdout)["tables"] if done.returncode == 0 else None, done.stderr

    def test_one_budget(self):
        for kind, numbers in (("gemma3_text", (5, 1)), ("deepseek_v3", (64, 32))):
            with self.subTest(kind):
                paths = self.calibrate(kind, "fisher", kind)
                tables, _ = self.solve(*paths)
                self.assertEqual([t["table"] for t in tables],
                                 [os.path.join(self.folder, "tables", os.path.basename(p)[:-len("stats")] + "table") for p in paths])
                bits = [t["k_bpd"] + t["v_bpd"] for t in tables]
                if kind == "deepseek_v3":  # the latent's keys and values are halves of it; a shared key has no values
                    bits[0] /= 2
                    self.assertEqual(tables[1]["v_bpd"], 0)
                else:
                    bits = [b / 2 for b in bits]
                self.assertNotAlmostEqual(bits[0], bits[1], 1)
                self.assertAlmostEqual(sum(n * b for n, b in zip(numbers, bits)) / sum(numbers), 3, 1)
                if kind == "gemma3_text":
                    self.windows(paths, numbers, bits)

    def windows(self, paths, numbers, wholly):
        """Numbers of layers with a window of 1024 tokens count a quarter."""
        tables, _ = self.solve(*paths, "--windows", "1024,0")
        bits = [(t["k_bpd"] + t["v_bpd"]) / 2 for t in tables]
        self.assertGreater(bits[0], wholly[0] + 0.01)
        counted = [numbers[0] / 4, numbers[1]]
        self.assertAlmostEqual(sum(n * b for n, b in zip(counted, bits)) / sum(counted), 3, 1)
        for words in ("1024", "1024,0,0", "1024,", "1024,x", "-1,0", ""):
            tables, said = self.solve(*paths, "--windows", words)
            self.assertIsNone(tables)
            self.assertIn("2 numbers of tokens with commas are needed, one per file", said)

    def test_without_a_common_scale(self):
        tables, said = self.solve(*self.calibrate("gemma3_text", "mse", "m"))
        self.assertIn("no metric whose errors compare between groups", said)
        for t in tables:
            self.assertAlmostEqual(t["bpd_code"], 3, 1)
        tables, said = self.solve(os.path.join(self.folder, "m.window-70.stats"), os.path.join(self.folder, "m.full.stats"), "--windows", "70,0")
        self.assertIsNone(tables)
        self.assertIn("need metric fisher or output", said)

    def test_refusals(self):
        window, full = self.calibrate("gemma3_text", "mse", "m")
        other, _ = self.calibrate("deepseek_v3", "mse", "d")
        copy_of = os.path.join(self.folder, "copy.stats")
        shutil.copy(full, copy_of)
        for words, arguments in (("they are no groups of one model", (window, other)), ("are of the same layers", (full, copy_of)),
                                 ("would have one name", (full, full)), ("--sweep is for one file", (window, full, "--sweep")),
                                 ("--without is for one file", (window, full, "--without", "1")),
                                 ("missing.stats", (window, os.path.join(self.folder, "missing.stats")))):
            with self.subTest(words):
                tables, said = self.solve(*arguments)
                self.assertIsNone(tables)
                self.assertIn(words, said)
                self.assertEqual(os.listdir(os.path.join(self.folder, "tables")) if "for one" not in words else [], [], "no table is written")


class Sharing(GroupsCase):
    """Two caches and a real kvcobrad."""

    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon("--pool-bytes=512M", "--arena-bytes=16M")
        self.addCleanup(self.daemon.__exit__, None)

    def activate(self, model, skip=(), model_id=MODEL_ID):
        """Calibrated tables of the groups."""
        done = kvcobra.calibrate(model, [random_text(1, 1100)], output=os.path.join(self.folder, "m.stats"), tokenizer=Words(), tokens=1000,
                                 window=250, metric="mse", model_id=model_id, own_share=0, progress=False)
        for group, path in zip(_geometry.model_groups(model), done.outputs):
            if group.name not in skip:
                table = path[:-len("stats")] + "table"
                subprocess.run([support.program("KVC_KVCOBRA"), "solve", path, "--bpd", "6", "-o", table], check=True,
                                       capture_output=True)
                self.daemon.activate(table)

    def connected(self, model, model_id=MODEL_ID, dense=None):
        client = kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        return KvCobraCache.from_model(model, client, model_id=model_id, dense=dense)

    def test_a_hit(self):
        for i, kind in enumerate(("gemma3_text", "gpt_oss", "cohere2", "deepseek_v2", "deepseek_v3")):
            with self.subTest(kind):
                model, model_id = self.make(kind), bytes([i]) * 32
                self.activate(model, model_id=model_id)
                text, _ = ids(300)
                first, second = self.connected(model, model_id), self.connected(model, model_id)
                self.assertFalse(first.is_plain)
                want = self.run_model(model, first, input_ids=text)
                published = first.commit()[0]
                self.assertGreaterEqual(published, 192)
                self.assertEqual(second.match(text), published)
                got = self.run_model(model, second, input_ids=text[:, published:])
                other = self.own(model, input_ids=torch.cat([torch.flip(text[:, :published], (1,)), text[:, published:]], 1), use_cache=False)
                far = mean_kl(want[:, published:], other[:, published:])  # the same tokens behind others
                self.assertLess(mean_kl(want[:, published:], got), 0.1 * far)

    def test_early_pages_of_windows_left(self):
        """A hit needs the pages of the last window only, also in caches with dense keys. Cropping below it computes from the beginning. What is
        published behind a hit is found."""
        for i, kind in enumerate(("gemma3_text", "gpt_oss")):  # the second one has dense keys
            with self.subTest(kind):
                model, model_id = self.make(kind), bytes([i]) * 32
                self.activate(model, model_id=model_id)
                text, _ = ids(420)
                want = self.own(model, input_ids=text, use_cache=False)
                behind_others = self.own(model, input_ids=torch.cat([torch.flip(text[:, :192], (1,)), text[:, 192:]], 1), use_cache=False)
                far = mean_kl(want[:, 300:], behind_others[:, 300:])
                first, second, third = (self.connected(model, model_id) for _ in range(3))
                self.run_model(model, first, input_ids=text[:, :300])
                published = first.commit()[0]
                windows = next(s for s in first._rows.served if s.group.kind.window)
                gone = (published + 1 - 70) // 64 * 64
                self.daemon.command(*self.daemon.flush_command(windows.model.info.table_digest, text[0, :gone].tolist()))
                self.assertEqual(second.match(text), published)
                got = self.run_model(model, second, input_ids=text[:, published:])
                self.assertLess(mean_kl(want[:, published:], got), 0.3 * far)
                again = second.commit()[0]
                self.assertGreater(again, published)
                self.assertEqual(third.match(text), again)
                other = copy.deepcopy(third)

                third.crop(100)  # the window before it is not there
                self.assertEqual(third.get_seq_length(), 100)
                got = self.run_model(model, third, input_ids=text[:, 100:])
                self.assertLess(mean_kl(want[:, 100:], got), 1e-3)
                self.assertGreaterEqual(third.commit()[0], again)

                got = self.run_model(model, other, input_ids=text[:, again:])
                self.assertLess(mean_kl(want[:, again:], got), 0.3 * far)

    def test_rows_of_different_length(self):
        """A row goes on where the shortest one ends, and has the window before that."""
        model = self.make("gemma3_text")
        self.activate(model)
        text, _ = ids(300)
        want = self.own(model, input_ids=text, use_cache=False)
        first = self.connected(model)
        self.run_model(model, first, input_ids=text)
        published = first.commit()[0]
        for dense in (False, True):
            with self.subTest(dense=dense):
                second = self.connected(model, dense=dense)
                padded = torch.cat([torch.zeros((1, 30), dtype=torch.long), text[:, :270]], 1)
                mask = (torch.arange(300) >= torch.tensor([[0], [30]])).long()
                columns = second.match(torch.cat([text, padded]), mask)
                self.assertEqual(columns, published)
                positions = torch.stack([torch.arange(300), (torch.arange(300) - 30).clamp(min=0)])[:, columns:]
                got = self.run_model(model, second, input_ids=torch.cat([text, padded])[:, columns:], attention_mask=mask, position_ids=positions)
                self.assertLess(mean_kl(want[:, columns:], got[:1]), 0.05)
                self.assertLess(mean_kl(want[:, columns - 30:270], got[1:]), 0.05)

    def test_interleaved_pairs_share_with_half_split_ones(self):
        """One model in both orders of pairs: what one publishes the other finds, and reads rightly."""
        half, text = make_model("llama"), ids(300)[0]
        self.activate(half)
        first = self.connected(half)
        logits = self.run_model(half, first, input_ids=text)
        published = first.commit()[0]
        with mock.patch.object(modeling_llama, "apply_rotary_pos_emb", modeling_glm4.apply_rotary_pos_emb), \
                mock.patch.object(_proof, "_proofs", {}):
            other = interleave(make_model("llama"))
            self.assertEqual(_geometry.model_groups(other)[0].kind.pairs, "interleaved")
            second = self.connected(other)
            self.assertEqual(second.match(text), published)
            got = self.run_model(other, second, input_ids=text[:, published:])
        self.assertLess(mean_kl(logits[:, published:], got), 0.01)

    def test_a_group_that_published_less(self):
        """The hit is as short as that of the group with the least."""
        model = self.make("gemma3_text")
        self.activate(model)
        text, _ = ids(300)
        first, second = self.connected(model), self.connected(model)
        self.run_model(model, first, input_ids=text)
        tokens = text[0].tolist()
        windows, full = first._rows.rows[0].sequence.parts
        full.truncate(192)  # the newest 64 are not published
        full.commit(tokens[:192])
        windows.commit(tokens)
        self.assertEqual(second.match(text), 128)
        self.assertEqual([s.length for s in second.sequences], [128, 128])

    def test_a_group_without_a_table(self):
        model = self.make("gemma3_text")
        self.activate(model, skip=("full",))
        with self.assertLogs("kvcobra", "WARNING") as logged:
            cache = self.connected(model)
        self.assertTrue(cache.is_plain)
        self.assertIn("layers 5: ", logged.output[0])


if __name__ == "__main__":
    support.main()
