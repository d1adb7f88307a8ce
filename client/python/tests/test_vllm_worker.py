"""Recording, publishing and loading as a worker of vLLM does them, against a real kvcobrad. Needs torch, and no vLLM."""
import os
import signal
import sys
import time
import unittest

import support

try:
    import torch
except ImportError:
    print("skipped: the Python module torch is missing")
    sys.exit(support.SKIPPED)

import kvcobra
from kvcobra._groups import group_digest
from kvcobra.vllm import geometry
from kvcobra.vllm.counters import Counters
from kvcobra.vllm.daemon import Daemon, Refused, Service
from kvcobra.vllm.loader import Loader, LoadThread
from kvcobra.vllm.metadata import Load, Rows, Start, Step, Text
from kvcobra.vllm.publisher import Publisher
from kvcobra.vllm.recording import Recorder, find_row, slots
from kvcobra.vllm.weights import Watch, classes_of
from kvcobra.vllm.worker import Worker
from vllm_standin import FakeLog, one_list

L, H, D = support.N_LAYERS, support.N_KV_HEADS, support.HEAD_DIM
BLOCK = 32
BLOCKS = one_list(BLOCK, L)


def new_daemon(socket, model_id, log=None, base=10000.0, clock=None, **extra):
    g = geometry.Geometry(**support.geometry(base=base)._asdict())
    if clock is not None:
        extra["clock"] = clock
    return Daemon(socket, model_id.hex(), [(g, [geometry.Shard(0, H, 0)])], 4096, Service(log or FakeLog()), **extra)


def prompt(seed, n):
    """Keys after RoPE and values of a text: [layers, 2, n, heads, d]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((L, 2, n, H, D), generator=generator).to(torch.bfloat16)


class Recording(unittest.TestCase):
    def setUp(self):
        self.counters = Counters()
        self.allowed = True
        self.recorder = Recorder(BLOCKS, 0, range(L), lambda n, like: torch.empty(n, dtype=like.dtype) if self.allowed else None,
                                 self.counters)

    def step(self, rows, text, mapping=None):
        """A step with @rows of one request in the middle of a batch. Returns its copies."""
        self.recorder.expect(rows)
        for layer in range(L):
            for r in rows:
                mine = slots(r.blocks[0], BLOCK, r.first, r.n)
                batch = torch.cat([torch.tensor([5000, 5001]), mine, torch.tensor([6000])]) if mapping is None else mapping
                padded = [torch.cat([torch.zeros(2, H, D), text[layer, side, r.first:r.first + r.n].float(),
                                     torch.ones(1, H, D)]).to(text.dtype) for side in range(2)]
                if self.recorder.active:
                    self.recorder.take(layer, *padded, batch)
        return self.recorder.end()

    def test_slots(self):
        self.assertEqual(slots((7, 3), 32, 30, 4).tolist(), [254, 255, 96, 97])
        mapping = torch.tensor([9, 254, 255, 96, 97, 8])
        self.assertEqual(find_row(mapping, torch.tensor([254, 255, 96])), 1)
        self.assertIsNone(find_row(mapping, torch.tensor([254, 255, 97])))
        self.assertIsNone(find_row(mapping, torch.tensor([8, 9])), "the rows end too early")
        self.assertIsNone(find_row(mapping, torch.tensor([1])))

    def test_chunks_of_a_prompt_in_order(self):
        text = prompt(1, 160)
        self.recorder.start("a", Text(tuple(range(128)), b"", (b"t",)), 0)
        first, = self.step([Rows("a", 0, 100, ((4, 5, 6, 7),))], text)
        self.assertTrue(torch.equal(first.vectors, text[:, :, :100]))
        again = self.step([Rows("a", 0, 50, ((4, 5),))], text)
        self.assertEqual(again, [], "positions that were recorded are skipped")
        second, = self.step([Rows("a", 90, 70, ((9, 8, 7, 6, 5),))], text)
        self.assertEqual((second.first, second.n), (100, 28))
        self.assertTrue(torch.equal(second.vectors, text[:, :, 100:128]))
        self.assertEqual(self.step([Rows("a", 128, 1, ((4, 5, 6, 7, 8),))], text), [], "the whole chunks are recorded")
        self.assertIsNone(self.recorder.finish("a"))

    def test_gap(self):
        text = prompt(2, 256)
        self.recorder.start("a", Text(tuple(range(256)), b"", (b"t",)), 64)
        self.assertEqual(self.step([Rows("a", 128, 64, (tuple(range(6)),))], text), [])
        copy, = self.step([Rows("a", 64, 64, (tuple(range(4)),))], text)
        self.assertEqual((copy.first, copy.n), (64, 64))

    def test_rows_of_failed_loads_are_ignored(self):
        text = prompt(3, 128)
        self.recorder.start("a", Text(tuple(range(128)), b"", (b"t",)), 0)
        self.recorder.expect([Rows("a", 0, 64, ((4, 5),))])
        self.recorder.fail({5})
        self.assertFalse(self.recorder.active)
        self.assertEqual(self.recorder.end(), [])
        self.assertEqual(self.step([Rows("a", 0, 128, ((1, 2, 3, 4),))], text), [], "the prompt is not published")
        for name, blocks, n in (("b", (5, 6), 0), ("c", (6, 7), 1)):  # scheduled before vLLM saw the failure
            self.recorder.start(name, Text(tuple(range(64)), b"", (b"t",)), 0)
            self.assertEqual(len(self.step([Rows(name, 0, 64, (blocks,))], text)), n)
        self.step([], text)
        self.recorder.start("d", Text(tuple(range(64)), b"", (b"t",)), 0)
        copy, = self.step([Rows("d", 0, 64, ((5, 6),))], text)
        self.assertEqual(copy.n, 64, "the block was computed again")

    def test_stop(self):
        text = prompt(3, 256)
        self.recorder.start("a", Text(tuple(range(256)), b"", (b"t",)), 0)
        copy, = self.step([Rows("a", 0, 128, ((4, 5, 6, 7),))], text)
        stopped, = self.recorder.stop()
        self.assertIs(stopped, copy.recording)
        self.assertTrue(stopped.dropped, "the publisher drops what waits for it, too")
        self.assertEqual(self.step([Rows("a", 128, 128, (tuple(range(4, 12)),))], text), [])

    def test_step_without_all_layers(self):
        text = prompt(4, 64)
        self.recorder.start("a", Text(tuple(range(64)), b"", (b"t",)), 0)
        self.recorder.expect([Rows("a", 0, 64, ((0, 1),))])
        self.recorder.take(0, text[0, 0], text[0, 1], slots((0, 1), BLOCK, 0, 64))
        copy, = self.recorder.end()
        self.assertTrue(copy.recording.dropped)
        self.assertEqual(self.step([Rows("a", 0, 64, ((0, 1),))], text), [])
        self.assertIs(self.recorder.finish("a"), copy.recording, "the publisher has to forget it")

    def test_full_queue(self):
        self.allowed = False
        self.recorder.start("a", Text(tuple(range(64)), b"", (b"t",)), 0)
        self.assertEqual(self.step([Rows("a", 0, 64, ((0, 1),))], prompt(5, 64)), [])
        self.assertEqual(self.counters.take(), {"prompts_queue_full": 1})

    def test_other_slots_than_announced(self):
        self.recorder.start("a", Text(tuple(range(64)), b"", (b"t",)), 0)
        self.assertEqual(self.step([Rows("a", 0, 64, ((0, 1),))], prompt(5, 64), torch.arange(100, 167)), [])


class Lines(unittest.TestCase):
    def test_one_line_per_loss(self):
        log, now = FakeLog(), [0.0]
        service = Service(log, lambda: now[0])
        service.back()
        service.lost("a")
        service.lost("b")
        service.back()
        service.back()
        self.assertEqual([line.split(": ")[-1] for line in log.lines], ["a", "prefixes are shared again"])
        service.lost("c")
        service.back()
        self.assertEqual(len(log.lines), 2, "a service that changes often has few lines")
        now[0] = 61.0
        service.lost("d")
        self.assertEqual(log.lines[2].split(": ")[-1], "d")

    def test_the_last_line(self):
        log = FakeLog()
        service = Service(log)
        service.end("the weights are others")
        service.end("again")
        service.lost("a load failed")
        service.back()
        self.assertEqual(len(log.lines), 1, log.lines)
        self.assertIn("the weights are others; start the engine again", log.lines[0])


class Weights(unittest.TestCase):
    def test_methods_that_may_change_weights(self):
        class Base:
            def reload_weights(self, path):
                return "base", path

        class Derived(Base):
            def apply_model(self, function):
                return function(self)

            def execute_model(self):
                return "a step"

        watch = Watch()
        before = watch.since_now()
        watch.wrap(classes_of(Base))
        watch.wrap(classes_of(Base))  # a second connector of the process
        worker = Derived()
        self.assertEqual((worker.execute_model(), before()), ("a step", None))
        self.assertEqual((worker.reload_weights("x"), before()), (("base", "x"), "reload_weights"))
        later = watch.since_now()
        self.assertIsNone(later(), "the weights of a later start")
        with self.assertRaises(ZeroDivisionError):
            worker.apply_model(lambda w: 1 // 0)
        self.assertEqual((later(), before()), ("apply_model", "apply_model"), "it may have changed some before it failed")
        self.assertEqual(watch._n, 2, "each call counts once")


class WithDaemon(support.Case):
    def setUp(self):
        super().setUp()
        self.daemon = support.Daemon("--pool-bytes=512M")  # every client has an arena
        self.daemon.__enter__()
        self.addCleanup(self.daemon.__exit__, None, None, None)
        self.daemon.activate(self.table)
        self.counters = Counters()
        self.log = FakeLog()

    def text(self, n, salt=b""):
        _, model = self.connected(self.daemon)
        return Text(tuple(range(1, n + 1)), salt, (model.info.table_digest,))

    def publish(self, text, vectors, pieces, n_published=0):
        publisher = Publisher(new_daemon(self.daemon.socket, self.model_id, self.log), 1 << 24, self.counters)
        recorder = Recorder(BLOCKS, 0, range(L), publisher.reserve, self.counters)
        recorder.start("a", text, n_published)
        at = n_published
        blocks = tuple(range(100, 100 + len(text.tokens) // BLOCK))
        for n in pieces:
            recorder.expect([Rows("a", at, n, (blocks,))])
            for layer in range(L):
                recorder.take(layer, vectors[layer, 0, at:at + n], vectors[layer, 1, at:at + n], slots(blocks, BLOCK, at, n))
            publisher.put(recorder.end())
            at += n
        publisher.close()
        return self.counters.take()

    def load(self, text, first, end, thread=False, daemon=None):
        """Returns what was stored by slot, and the failed blocks."""
        cache = torch.zeros((L, 2, 400, H, D), dtype=torch.bfloat16)

        def store(layer, key, value, where):
            cache[layer, 0, where], cache[layer, 1, where] = key, value

        daemon = daemon or new_daemon(self.daemon.socket, self.model_id, self.log)
        loader = Loader(daemon, store, BLOCKS, torch.bfloat16, torch.device("cpu"), self.counters)
        load = Load("a", text, first, end, (tuple(range(1, 1 + -(-end // BLOCK))),))
        if not thread:
            failed = loader.load(load)
            loader.close()
            return cache, failed
        loads = LoadThread(loader)
        loads.put([load])
        finished, failed = set(), set()
        while not finished:
            finished, failed = loads.finished(support.TIMEOUT_S)
        self.assertEqual(finished, {"a"})
        loads.close()
        return cache, failed  # the requests, whatever their blocks

    def test_publish_and_load(self):
        text, vectors = self.text(256), prompt(6, 256)
        counts = self.publish(text, vectors, [100, 1, 155])
        self.assertEqual(counts["published_tokens"], 256)
        longer = Text(text.tokens + (7,), b"", text.tables)
        _, model = self.connected(self.daemon)
        with kvcobra.Sequence(model, keys="after", publish_all=True) as sequence:
            self.assertEqual(sequence.match(longer.tokens), 256)
            decoded = torch.stack([torch.stack([torch.from_numpy(sequence.read(layer, side, 64, 192)) for side in "kv"])
                                   for layer in range(L)])
        for thread in (False, True):
            cache, failed = self.load(longer, 64, 256, thread)
            self.assertEqual(failed, set())
            self.assertTrue(torch.equal(cache[:, :, 96:288], decoded.to(torch.bfloat16)))
            self.assertEqual(int(cache[:, :, :96].abs().sum() + cache[:, :, 288:].abs().sum()), 0)
        # a vector of another position has the error 2; the random table of this test has 0.3
        self.assertLess(((decoded - vectors[:, :, 64:256].float()) ** 2).mean(), 0.6)
        self.assertEqual(self.counters.take()["loaded_tokens"], 2 * 192)

    def test_continue_what_is_published(self):
        text, vectors = self.text(256), prompt(7, 256)
        self.publish(Text(text.tokens[:128], b"", text.tables), vectors, [128])
        counts = self.publish(text, vectors, [128], n_published=128)
        self.assertEqual(counts["published_tokens"], 128)
        counts = self.publish(Text(text.tokens, b"other salt", text.tables), vectors, [128], n_published=128)
        self.assertEqual((counts.get("published_tokens"), counts["publish_failures"]), (None, 1))

    def test_pages_that_are_on_the_disk_only(self):
        """A step does not wait for a disk: the scheduler leases pages, which are in memory then."""
        disk, state = (os.path.join(self.folder, name) for name in ("disk", "state"))
        os.mkdir(disk, 0o700)
        with support.Daemon("--pool-bytes=512M", f"--disk-dir={disk}", "--disk-bytes=64M", f"--state-dir={state}") as daemon:
            daemon.activate(self.table)
            self.daemon = daemon
            text = self.text(256)
            self.publish(text, prompt(6, 256), [256])
            daemon.command("tier", "write")
            daemon.command("evict", "--yes")
            longer = Text(text.tokens + (7,), b"", text.tables)
            _, failed = self.load(longer, 0, 256)
            self.assertEqual(len(failed), 256 // BLOCK)
            _, model = self.connected(daemon)
            with kvcobra.Sequence(model, keys="after", publish_all=True) as sequence:
                self.assertEqual(sequence.match(longer.tokens), 256, "they are there")

    def test_daemon_that_hangs(self):
        text, limit = self.text(128), 0.5
        self.publish(text, prompt(6, 128), [128])
        daemon = new_daemon(self.daemon.socket, self.model_id, self.log, timeout=limit)
        self.assertTrue(daemon.open())
        loader = Loader(daemon, None, BLOCKS, torch.bfloat16, torch.device("cpu"), self.counters)
        longer = Text(text.tokens + (7,), b"", text.tables)
        loads = [Load(str(i), longer, 0, 128, (tuple(range(10 * i, 10 * i + 4)),)) for i in range(20)]
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            before = time.monotonic()
            failed = loader.load_all(loads)
            seconds = time.monotonic() - before
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(failed, {block for load in loads for block in load.blocks[0]})
        self.assertLess(seconds, 20 * limit, "all loads of a step wait once")
        self.assertEqual(self.counters.take()["load_failures"], 20)
        self.assertEqual(len(self.log.lines), 1, self.log.lines)
        loader.close()

    def test_no_page_of_other_weights(self):
        text = self.text(256)
        self.publish(text, prompt(6, 256), [256])
        changes = [None, "reload_weights"]  # while the load reads
        loader = Loader(new_daemon(self.daemon.socket, self.model_id, self.log), lambda *arguments: None, BLOCKS, torch.bfloat16,
                        torch.device("cpu"), self.counters, lambda: changes.pop(0) if len(changes) > 1 else changes[0])
        load = Load("a", Text(text.tokens + (7,), b"", text.tables), 0, 256, (tuple(range(8)),))
        for _ in range(2):
            self.assertEqual(loader.load(load), set(range(8)))
        self.assertIn("reload_weights() may have changed the weights", self.log.lines[-1])
        loader.close()
        changed = []
        worker = Worker(lambda threads, timeout: new_daemon(self.daemon.socket, self.model_id, self.log),
                        [geometry.Geometry(**support.geometry()._asdict())], BLOCKS, 1, False, True, 1 << 24, self.counters, changed_by=lambda: changed[-1] if changed else None)
        other = Text(tuple(range(500, 756)), b"", text.tables)
        worker.bind(Step(starts=[Start("b", other, 0)], rows=[Rows("b", 0, 256, (tuple(range(8)),))]))
        self.assertTrue(worker._recorders[0].active)
        changed.append("apply_model")
        worker.bind(Step(starts=[Start("c", other, 0)], rows=[Rows("b", 0, 256, (tuple(range(8)),)), Rows("c", 0, 256, (tuple(range(8)),))]))
        self.assertFalse(worker._recorders[0].active, "neither the prompt before nor that behind is recorded")
        worker.close()

    def test_publisher_survives_any_exception(self):
        text, vectors = self.text(128), prompt(9, 128)
        publish, raised = Publisher._publish, []

        def fail_once(publisher, copy):
            if not raised:
                raised.append(copy)
                raise RuntimeError("the first prompt")
            publish(publisher, copy)

        Publisher._publish = fail_once
        try:
            with self.assertLogs("vllm.kvcobra", "ERROR"):
                counts = self.publish(text, vectors, [128])
            self.assertEqual((counts.get("published_tokens"), counts["publish_failures"]), (None, 1))
            self.assertEqual(self.publish(text, vectors, [128])["published_tokens"], 128)
        finally:
            Publisher._publish = publish

    def test_pages_that_are_gone(self):
        text = self.text(256)
        for thread in (False, True):
            _, failed = self.load(Text(text.tokens + (7,), b"", text.tables), 64, 256, thread)
            self.assertEqual(failed, {"a"} if thread else {3, 4, 5, 6, 7, 8})
        _, failed = self.load(Text(text.tokens + (7,), b"", (bytes(32),)), 64, 256)
        self.assertEqual(failed, {3, 4, 5, 6, 7, 8}, "a table that the daemon does not have")
        self.assertEqual(self.counters.take()["load_failures"], 3)

    def test_swap_between_promise_and_load(self):
        text, vectors = self.text(128), prompt(8, 128)
        self.publish(text, vectors, [128])
        daemon = new_daemon(self.daemon.socket, self.model_id, self.log)
        self.assertTrue(daemon.open())
        other = os.path.join(self.folder, "other.table")
        self.assertEqual(support.write_table(other, seed=2), self.model_id)
        self.daemon.activate(other)
        _, failed = self.load(Text(text.tokens + (7,), b"", text.tables), 0, 128, daemon=daemon)
        self.assertEqual(failed, set(), self.log.lines)

    def test_daemon_that_ends(self):
        text, vectors = self.text(128), prompt(9, 128)
        self.publish(text, vectors, [128])
        daemon = new_daemon(self.daemon.socket, self.model_id, self.log)
        self.assertTrue(daemon.open())
        self.daemon.kill()
        self.log.lines.clear()
        _, failed = self.load(Text(text.tokens + (7,), b"", text.tables), 0, 128, daemon=daemon)
        self.assertEqual(failed, {1, 2, 3, 4})
        self.assertEqual(len(self.log.lines), 1, self.log.lines)

    def test_no_daemon_at_first(self):
        now = [0.0]
        missing = new_daemon(os.path.join(self.folder, "missing"), self.model_id, self.log, clock=lambda: now[0])
        self.assertFalse(missing.open())
        for now[0] in (5.0, 11.0, 22.0):
            self.assertEqual(missing.models(), [])
        self.assertEqual(len(self.log.lines), 1, "one line per outage")
        os.symlink(self.daemon.socket, os.path.join(self.folder, "missing"))
        now[0] = 33.0
        self.assertEqual(len(missing.models()), 1)
        self.assertIn("shared again", self.log.lines[1])

    def test_groups_of_layers(self):
        """Layers 0, 2 and 3 have a window, 1 and 4 have none; vLLM keeps their keys and values in three lists of blocks."""
        blocks = geometry.Blocks((0, 2, 0, 1, 2), (32, 32, 64))
        kinds = [geometry.Geometry(**support.geometry((3, 4, H, D))._asdict(), name="window-70", layers=(0, 2, 3), window=70),
                 geometry.Geometry(**support.geometry((2, 4, 1, D), base=500.0)._asdict(), layers=(1, 4))]
        tables = []
        for g in kinds:
            path = os.path.join(self.folder, f"{g.name}.table")
            support.write_table(path, g.of_table, bpd=6.0, model=group_digest(self.model_id, g.name, 2))
            self.daemon.activate(path)
        heads = {layer: g.n_kv_heads for g in kinds for layer in g.layers}

        def daemon(threads, timeout):
            return Daemon(self.daemon.socket, self.model_id.hex(), [(g, [geometry.Shard(0, g.n_kv_heads, 0)]) for g in kinds], 4096,
                          Service(self.log), threads, timeout=timeout)

        first = daemon(1, None)
        for shards in first.models():
            tables.append(shards[0].info.table_digest)
        self.assertEqual(len(tables), 2, self.log.lines)
        first.describe()
        self.assertRegex(self.log.lines[-1], "table .* and table .* room for [0-9]+ tokens")
        first.close()

        class Impl:
            def do_kv_cache_update(self, layer, key, value, cache, slot_mapping):
                cache[0, slot_mapping], cache[1, slot_mapping] = key, value

        class Layer:
            def __init__(self, n_heads):
                self.impl, self.kv_cache = Impl(), torch.zeros((2, 4000, n_heads, D), dtype=torch.bfloat16)

        def engine(publishes):
            worker = Worker(daemon, kinds, blocks, 1, True, publishes, 1 << 26, self.counters)
            layers = {f"model.layers.{i}.self_attn.attn": Layer(heads[i]) for i in range(5)}
            worker.register(layers)
            return worker, list(layers.values())

        n = 256
        text = Text(tuple(range(1, n + 1)), b"", tuple(tables))
        generator = torch.Generator().manual_seed(1)
        vectors = [torch.randn((2, n, heads[i], D), generator=generator).to(torch.bfloat16) for i in range(5)]
        lists = (tuple(range(1, 9)), tuple(range(21, 29)), tuple(range(31, 35)))
        worker, layers = engine(True)
        worker.bind(Step(starts=[Start("a", text, 0)], rows=[Rows("a", 0, n, lists)], n_tokens=n))
        for i, layer in enumerate(layers):
            where = slots(lists[blocks.of_layer[i]], blocks.tokens[blocks.of_layer[i]], 0, n)
            layer.impl.do_kv_cache_update(layer, vectors[i][0], vectors[i][1], layer.kv_cache, where)
        worker.end_step()
        worker.close()
        self.assertEqual(self.counters.take()["published_tokens"], n, self.log.lines)

        self.daemon.command(*self.daemon.flush_command(tables[0], text.tokens[:128]))  # pages before the window
        worker, layers = engine(False)
        lists = ((0, 0, 0, 0, 0, 5, 6, 7), (0, 0, 0, 0, 0, 45, 46, 47), (11, 12, 13, 14))  # a window needs the last 70 tokens
        for request_id, tokens in (("b", text.tokens + (7,)), ("c", (9,) + text.tokens)):
            worker.bind(Step(loads=[Load(request_id, Text(tokens, b"", text.tables), 0, n, lists)]))
            worker.load()
            end = time.monotonic() + support.TIMEOUT_S
            while not (finished := worker.finished_loads()):
                self.assertLess(time.monotonic(), end)
            self.assertEqual((finished, worker.failed_requests()), ({request_id}, {"c"} & finished))
            self.assertEqual(worker.failed_blocks(), set(), "vLLM cannot tell whose they are")
        client = kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        for g in kinds:
            model = kvcobra.Model(client, group_digest(self.model_id, g.name, 2), g.of_table)
            with kvcobra.Sequence(model, keys="after", publish_all=True, window=97 if g.window else 0) as sequence:
                self.assertEqual(sequence.match(text.tokens + (7,)), n)
                for place, i in enumerate(g.layers):
                    of_vllm, first = blocks.of_layer[i], 160 if g.window else 0
                    where = slots(lists[of_vllm], blocks.tokens[of_vllm], first, n - first)
                    for side in range(2):
                        decoded = torch.from_numpy(sequence.read(place, "kv"[side], first, n - first)).to(torch.bfloat16)
                        self.assertTrue(torch.equal(layers[i].kv_cache[side, where], decoded), (i, side))
                        near = torch.nn.functional.cosine_similarity(decoded.float(), vectors[i][side, first:].float(), dim=-1).mean()
                        self.assertGreater(float(near), 0.8, (i, side))  # a random table's codec, of this layer's vectors
                    others = torch.ones(4000, dtype=torch.bool)
                    others[where] = False
                    self.assertEqual(int(layers[i].kv_cache[:, others].count_nonzero()), 0, "nothing is written besides")
        worker.close()

    def test_latent_attention(self):
        """Layers with MLA: two groups, whose vectors one method of vLLM's backend stores."""
        rank, width, n = 64, 32, 256
        blocks = geometry.Blocks((0, 0), (64,))
        kinds = [geometry.Geometry(2, 1, 1, rank // 2, 0, 0.1, (), name="latent", part="latent"),
                 geometry.Geometry(2, 1, 1, width, width, 0.1, support.geometry((2, 1, 1, width)).rope_freq, name="rope", part="rope",
                                   pairs="interleaved", factor=1.5)]
        self.assertEqual(geometry.units([kinds[0], kinds[1], kinds[0], kinds[1]]), [[0, 1], [2, 3]])
        for g in kinds:
            path = os.path.join(self.folder, f"{g.name}.table")
            support.write_table(path, g.of_table, bpd=6.0, model=group_digest(self.model_id, g.name, 2))
            self.daemon.activate(path)

        def daemon(threads, timeout):
            return Daemon(self.daemon.socket, self.model_id.hex(), [(g, [geometry.Shard(0, 1, 0)]) for g in kinds], 4096,
                          Service(self.log), threads, timeout=timeout)

        class Impl:
            def do_kv_cache_update(self, kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale):
                self.given = kv_cache_dtype, k_scale
                kv_cache.view(-1, rank + width)[slot_mapping.flatten()] = torch.cat([kv_c_normed, k_pe.squeeze(1)], 1)

        class Layer:
            kv_cache_dtype, _k_scale = "auto", torch.tensor(1.0)

            def __init__(self):
                self.impl, self.kv_cache = Impl(), torch.zeros((40, 64, rank + width), dtype=torch.bfloat16)

        def engine(publishes):
            worker = Worker(daemon, kinds, blocks, 1, False, publishes, 1 << 26, self.counters)
            layers = [Layer(), Layer()]
            worker.register({f"model.layers.{i}.self_attn.attn": layer for i, layer in enumerate(layers)})
            return worker, layers

        first = daemon(1, None)
        tables = tuple(shards[0].info.table_digest for shards in first.models())
        first.close()
        text = Text(tuple(range(1, n + 1)), b"", tables)
        generator = torch.Generator().manual_seed(1)
        vectors = [torch.randn((n, rank + width), generator=generator).to(torch.bfloat16) for _ in range(2)]
        lists = (tuple(range(5, 9)),)
        worker, layers = engine(True)
        worker.bind(Step(starts=[Start("a", text, 0)], rows=[Rows("a", 0, n, lists)], n_tokens=n))
        for x, layer in zip(vectors, layers):
            layer.impl.do_kv_cache_update(x[:, :rank], x[:, None, rank:], layer.kv_cache, slots(lists[0], 64, 0, n)[:, None], "auto",
                                          layer._k_scale)
        worker.end_step()
        worker.close()
        self.assertEqual(self.counters.take()["published_tokens"], n, self.log.lines)

        worker, layers = engine(False)
        lists = ((12, 11, 30, 31),)
        worker.bind(Step(loads=[Load("b", Text(text.tokens + (7,), b"", tables), 0, n, lists)]))
        worker.load()
        worker.close()
        self.assertEqual(worker.failed_blocks(), set(), self.log.lines)
        where, client = slots(lists[0], 64, 0, n), kvcobra.Client(self.daemon.socket)
        self.addCleanup(client.close)
        decoded = [[], []]
        for g in kinds:
            model = kvcobra.Model(client, group_digest(self.model_id, g.name, 2), g.of_table)
            with kvcobra.Sequence(model, keys="after", pairs=g.pairs, publish_all=True) as sequence:
                self.assertEqual(sequence.match(text.tokens + (7,)), n)
                for i, parts in enumerate(decoded):
                    sides = [torch.from_numpy(sequence.read(i, side, 0, n))[:, 0].to(torch.bfloat16) for side in "kv"]
                    parts += sides if g.part == "latent" else [sides[0] * g.factor]
        for i, layer in enumerate(layers):
            got = layer.kv_cache.view(-1, rank + width)
            self.assertEqual(layer.impl.given, ("auto", layer._k_scale))
            self.assertTrue(torch.equal(got[where], torch.cat(decoded[i], 1)))
            near = torch.nn.functional.cosine_similarity(got[where].float(), vectors[i].float(), dim=-1).mean()
            self.assertGreater(float(near), 0.8)
            others = torch.ones(len(got), dtype=torch.bool)
            others[where] = False
            self.assertEqual(int(got[others].count_nonzero()), 0, "nothing is written besides")

    def test_other_geometry_is_refused(self):
        daemon = new_daemon(self.daemon.socket, self.model_id, self.log, base=20000.0)
        with self.assertRaises(Refused):
            daemon.open()

    def test_model_without_table(self):
        daemon = new_daemon(self.daemon.socket, bytes(32), self.log)
        self.assertFalse(daemon.open())
        self.assertEqual(len(self.log.lines), 1)


if __name__ == "__main__":
    support.main()
