"""The scheduler's side of KvCobraConnector: promises, their limit, and what the workers are sent. Without vLLM and kvcobrad."""
import random
import time
import types
import unittest

import support
from vllm_standin import TIMEOUT_S, FakeDaemon, FakePool, answer, one_list, output, request, until

from kvcobra.vllm.counters import COUNTERS, Counters
from kvcobra.vllm.geometry import Blocks, Geometry
from kvcobra.vllm.lookups import Lookups
from kvcobra.vllm.scheduler import ComputeRate, Scheduler


def scheduler(pools, block_tokens=64, waiting_leases=4, takes=True, publishes=True, salt=lambda r: b"", async_load=False,
              wait_ms=1000 * TIMEOUT_S, clock=time.monotonic, at_once=True):
    """@at_once: the thread that asks begins at once, not with the next step."""
    counters = Counters()
    lookups = Lookups(FakeDaemon(pools), wait_ms, [0], clock)
    if at_once:
        post = lookups._post
        lookups._post = lambda *work: (post(*work), lookups.flush())
    return Scheduler(lookups, salt, one_list(block_tokens), waiting_leases, takes, publishes, async_load, counters), counters


def counts(counters):
    return {name: value for name, value in counters.take().items() if name in COUNTERS}


class Rates(unittest.TestCase):
    """The engine's own rate goes with each question."""

    @staticmethod
    def rate(*steps):
        """@steps: (seconds before the step, its tokens)"""
        now = [0.0]
        rate = ComputeRate(lambda: now[0])
        for seconds, n_tokens in steps:
            now[0] += seconds
            rate.step(n_tokens)
        return rate.tokens_per_second()

    def test_prompts_one_after_another(self):
        self.assertEqual(self.rate(*[(0.1, 512)] * 8), 5120)

    def test_prompts_between_idle_times(self):
        """Each prompt is one step, and 10 generated tokens follow in steps of 1 ms; one pause of 5 s among them."""
        prompt = [(5, 511), (0.1, 1)] + [(0.001, 1)] * 9
        self.assertAlmostEqual(self.rate(*prompt * 6), 512 / 0.101, delta=1)

    def test_steps_prepared_while_the_one_before_runs(self):
        """The step after a prompt is prepared at once, and the next one when the prompt has been computed."""
        prompt = [(0.001, 511), (0, 1), (0.1, 1)] + [(0.001, 1)] * 8
        self.assertEqual(self.rate(*prompt * 6), 5120)

    def test_not_known_at_first(self):
        self.assertEqual(self.rate(*[(0.1, 1000)] * 5), 0)
        self.assertEqual(self.rate(*[(0.1, 100)] * 50), 0, "no step of a prompt")

    def test_questions_have_it(self):
        now = [0.0]
        daemon, counters = FakeDaemon([FakePool(256)]), Counters()
        s = Scheduler(Lookups(daemon, 1000 * TIMEOUT_S, [0]), lambda r: b"", one_list(64), 4, True, False, False, counters, clock=lambda: now[0])
        answer(s, request("a", 300), 0)
        self.assertEqual(daemon.compute_tokens_per_s, 0)
        for _ in range(6):
            s.step(output(new=[("b", 0, 600)], blocks={"b": range(10)}))
            now[0] += 0.1
        answer(s, request("c", 300), 0)
        self.assertEqual(daemon.compute_tokens_per_s, 6000)
        self.assertEqual(counters.take()["compute_tokens_per_second"], 6000)


class Asks(unittest.TestCase):
    def test_promise_is_whole_blocks_below_the_prompt(self):
        s, _ = scheduler([FakePool(1472)])
        self.assertEqual(answer(s, request("a", 1500), 0), (1472, False))
        s, _ = scheduler([FakePool(1472)], block_tokens=128)
        self.assertEqual(answer(s, request("a", 1500), 0), (1408, False))
        s, _ = scheduler([FakePool(128)])
        self.assertEqual(answer(s, request("a", 128), 0), (64, False), "one token is left to compute")

    def test_steps_wake_the_thread(self):
        """Between two calls of the scheduler it would hold the interpreter's lock."""
        pool = FakePool(256)
        s, _ = scheduler([pool], at_once=False)
        s.arrived(request("a", 300))
        self.assertEqual(s.ask(request("a", 300), 0), (None, False))
        s.step(output())
        until(lambda: pool.n_asked == 1)
        self.assertEqual(answer(s, request("a", 300), 0), (256, False))
        s.finished("a")
        s.step(output())
        until(lambda: pool.n_open == 0)
        self.assertEqual(answer(s, request("b", 300), 0), (256, False))
        s.finished("b")
        until(lambda: pool.n_open == 0)  # also if no step follows
        self.assertEqual(answer(s, request("c", 300), 0), (256, False))
        s.stop()
        until(lambda: pool.n_open == 0)

    def test_own_hit_is_subtracted(self):
        s, _ = scheduler([FakePool(256)])
        self.assertEqual(answer(s, request("a", 300), 128), (128, False))
        self.assertEqual(answer(s, request("a", 300), 256), (0, False))

    def test_later_asks_get_the_first_answer(self):
        pool = FakePool(256)
        s, _ = scheduler([pool])
        self.assertEqual(answer(s, request("a", 300), 0), (256, False))
        pool.n_published = 0  # evicted as far as new matches go; the promise is leased
        self.assertEqual(answer(s, request("a", 300), 0), (256, False))
        until(lambda: pool.n_open == 1)
        s.finished("a")
        until(lambda: pool.n_open == 0)
        self.assertEqual(answer(s, request("a", 300), 0), (0, False))

    def test_least_of_all_shards(self):
        pools = [FakePool(256), FakePool(192)]
        s, _ = scheduler(pools)
        self.assertEqual(answer(s, request("a", 300), 0), (192, False))
        self.assertEqual([p.tables for p in pools], [{pools[0].table}, {pools[0].table}], "one table for all shards")

    def test_waiting_requests_with_leases_are_limited(self):
        pool = FakePool(256)
        s, _ = scheduler([pool], waiting_leases=2)
        for name in "abc":
            answer(s, request(name, 300), 0)
        until(lambda: pool.n_open == 2)
        s.allocated(request("b", 300), ([1, 2, 3, 4, 5],), 256)
        answer(s, request("d", 300), 0)
        until(lambda: pool.n_open == 3)  # a scheduled request is not counted
        s.close()
        until(lambda: pool.n_open == 0)

    def test_nothing_is_taken_or_published_after_a_reset(self):
        pool = FakePool(128)
        s, _ = scheduler([pool])
        answer(s, request("a", 300), 0)
        s.stop()
        until(lambda: pool.n_open == 0)
        for name in "ab":
            self.assertEqual(answer(s, request(name, 300), 0), (0, False))
        step = s.step(output(new=[("a", 0, 300)], blocks={"a": range(1, 6)}))
        self.assertEqual((step.starts, step.rows, step.loads), ([], [], []))

    def test_no_daemon(self):
        s, _ = scheduler([])
        self.assertEqual(answer(s, request("a", 300), 0), (0, False))
        step = s.step(output(new=[("a", 0, 300)], blocks={"a": range(5)}))
        self.assertEqual((step.loads, step.starts, step.rows), ([], [], []))

    def test_error_of_the_daemon_is_no_error_of_the_engine(self):
        pools = [FakePool(256), FakePool(256, error=True)]
        s, _ = scheduler(pools)
        self.assertEqual(answer(s, request("a", 300), 0), (0, False))
        until(lambda: pools[0].n_open == 0)  # leases of a promise that failed are given back

    def test_unknown_keys(self):
        pool = FakePool(256)
        s, counters = scheduler([pool], salt=lambda r: None)
        for _ in range(2):
            self.assertEqual(answer(s, request("a", 300), 0), (0, False))
        self.assertEqual(counts(counters), {"requests_unknown_keys": 1})
        until(lambda: pool.n_open == 0)
        self.assertEqual(s.step(output(new=[("a", 0, 300)], blocks={"a": range(5)})).rows, [])

    def test_roles(self):
        s, _ = scheduler([FakePool(256)], takes=False)
        self.assertEqual(answer(s, request("a", 400), 0), (0, False))
        s, _ = scheduler([FakePool(256)], publishes=False)
        self.assertEqual(answer(s, request("a", 400), 0), (256, False))
        self.assertEqual(s.step(output(new=[("a", 256, 144)], blocks={"a": range(7)})).starts, [])

    def test_async(self):
        s, _ = scheduler([FakePool(256)], async_load=True)
        self.assertEqual(answer(s, request("a", 300), 0), (256, True))
        self.assertEqual(answer(s, request("a", 300), 256), (0, False), "vLLM requires False with 0 tokens")


class Groups(unittest.TestCase):
    """A model whose layers have two kinds of attention, and blocks of 32 and of 48 tokens."""

    def setUp(self):
        self.full, self.window = FakePool(640), FakePool(512)
        self.window.info = types.SimpleNamespace(table_digest=bytes(32))
        self.s = Scheduler(Lookups(FakeDaemon([self.full], [[self.window]]), 1000 * TIMEOUT_S, [0, 0]), lambda r: b"",
                           Blocks((0, 1), (32, 48)), 4, True, True, True, Counters())
        self.addCleanup(self.s.close)

    def test_a_promise_is_what_all_groups_have(self):
        r = request("a", 700)
        self.assertEqual(answer(self.s, r, 0), (480, True), "whole blocks of both lists")
        self.assertEqual((self.full.tables, self.window.tables), ({FakePool.table}, {bytes(32)}))
        self.s.allocated(r, (range(1, 23), [0] * 8 + list(range(31, 38))), 480)
        load, = self.s.step(output()).loads
        self.assertEqual((load.text.tables, load.end), ((FakePool.table, bytes(32)), 480))
        self.assertEqual([list(blocks) for blocks in load.blocks], [list(range(1, 16)), [0] * 8 + [31, 32]])

    def test_rows(self):
        r = request("a", 700)
        answer(self.s, r, 0)
        step = self.s.step(output(new=[("a", 480, 100)], blocks={"a": (range(1, 23), range(31, 46))}))
        rows, = step.rows
        self.assertEqual((step.starts[0].n_published, rows.first, rows.n), (512, 480, 100))
        self.assertEqual([len(blocks) for blocks in rows.blocks], [19, 13])

    def test_a_load_that_failed_is_not_promised_again(self):
        r = request("a", 700)
        answer(self.s, r, 0)
        self.s.allocated(r, (range(1, 23), range(31, 46)), 480)
        self.s.load_failed("a")
        for _ in range(2):
            self.assertEqual(answer(self.s, r, 0), (0, False))
        until(lambda: self.full.n_open == self.window.n_open == 0)
        self.s.finished("a")
        self.assertEqual(answer(self.s, r, 0), (480, True), "another request of that name")


def group(window, layers):
    return Geometry(1, 1, 1, 2, 2, 1.0, (1.0,), window=window, layers=layers)


class Windows(unittest.TestCase):
    """Layers with windows need the pages of these only."""

    @staticmethod
    def promised(pools, windows, n_tokens, block_tokens=64):
        """What a request of @n_tokens is promised, and how many questions each of @pools got."""
        blocks = Blocks(tuple(range(len(pools))), (block_tokens,) * len(pools))
        lookups = Lookups(FakeDaemon([pools[0]], [[pool] for pool in pools[1:]]), 1000 * TIMEOUT_S,
                          [blocks.window(group(window, (i,))) for i, window in enumerate(windows)])
        s = Scheduler(lookups, lambda r: b"", blocks, 4, True, True, True, Counters())
        try:
            n = answer(s, request("a", n_tokens), 0)[0]
            s.allocated(request("a", n_tokens), ([1] * 99,) * len(pools), n)
            s.finished("a")
            s.step(output())  # wakes the thread that gives the leases back
            until(lambda: all(pool.n_open == 0 for pool in pools))
            return n, [pool.n_asked for pool in pools]
        finally:
            s.close()

    def test_early_pages_are_not_needed(self):
        self.assertEqual(self.promised([FakePool(640), FakePool(640, missing=range(7))], [None, 128], 700), (640, [1, 1]))
        self.assertEqual(self.promised([FakePool(640), FakePool(640, missing=range(8))], [None, 128], 700)[0], 0)

    def test_a_shorter_text(self):
        """Every group is asked again until all have the same."""
        self.assertEqual(self.promised([FakePool(640), FakePool(640, missing=[9])], [None, 128], 700), (576, [1, 1]))
        self.assertEqual(self.promised([FakePool(512), FakePool(640, missing=range(6))], [None, 128], 700), (0, [1, 2]))
        pools = [FakePool(640), FakePool(640, missing=[9, 6]), FakePool(640, missing=[8])]
        self.assertEqual(self.promised(pools, [None, 64, 128], 700), (384, [1, 2, 2]))

    def test_any_holes(self):
        """The longest text that all groups have, in blocks of any size, by the positions that its next token sees."""
        draw = random.Random(3)
        for _ in range(60):
            windows = [draw.choice([None, 64, 128, 200, 1000, 4096]) for _ in range(3)]
            pools = [FakePool(64 * draw.randrange(8, 14), missing=draw.sample(range(12), draw.randrange(3))) for _ in range(3)]
            block_tokens = draw.choice([16, 32, 64, 128, 96])
            n, _ = self.promised(pools, windows, 900, block_tokens)
            self.assertEqual(n % block_tokens, 0)
            for pool, window in zip(pools, windows):
                first = 0 if window is None else max(0, n - window + 1) // block_tokens * block_tokens
                self.assertFalse(pool.missing & {i // 64 for i in range(first, n)}, (windows, block_tokens, n))
                self.assertLessEqual(n, pool.n_published)
            if block_tokens in (16, 32, 64):
                longer = [m for m in range(n + 64, 897, 64) if all(m == pool.found(m, 0 if window is None else window + block_tokens - 1)
                                                                  for pool, window in zip(pools, windows))]
                self.assertEqual(longer, [])


class Waits(unittest.TestCase):
    """A daemon that does not answer yet."""

    def scheduler(self, pool, **options):
        self.now = 0.0
        s, counters = scheduler([pool], clock=lambda: self.now, wait_ms=1000, **options)
        self.addCleanup(s.close)
        return s, counters

    def test_request_waits_and_others_go_on(self):
        pool = FakePool(256, held=True)
        s, _ = self.scheduler(pool)
        before = time.monotonic()
        for _ in range(1000):
            self.assertEqual(s.ask(request("a", 300), 0), (None, False))
        self.assertLess(time.monotonic() - before, 0.5 * TIMEOUT_S, "no step waits")
        seconds = [s.step(output()).idle_seconds for _ in range(12)]
        self.assertTrue(0 < seconds[0] < seconds[-1], "short at first, since an answer about pages in memory takes no longer")
        self.assertEqual(s.step(output(new=[("b", 0, 64)])).idle_seconds, 0.0)
        self.assertEqual(s.step(output()).idle_seconds, seconds[0])
        until(lambda: pool.n_asked == 1)
        pool.answer()
        self.assertEqual(answer(s, request("a", 300), 0), (256, False))
        self.assertEqual(s.step(output()).idle_seconds, 0.0)

    def test_lookup_begins_with_the_arrival(self):
        pool = FakePool(256)
        s, _ = self.scheduler(pool, waiting_leases=2)
        for name in "abc":
            s.arrived(request(name, 300))
        until(lambda: pool.n_asked == 2)  # of a request whose turn may be far away no other one gives leases back
        self.assertEqual(answer(s, request("a", 300), 0), (256, False))
        step = s.step(output(new=[("a", 192, 108)], blocks={"a": range(5)}))
        self.assertEqual(step.starts, [], "all whole chunks are published")
        self.assertEqual(answer(s, request("c", 300), 0), (256, False))

    def test_request_that_waited_too_long_is_computed(self):
        pool = FakePool(256, held=True)
        s, counters = self.scheduler(pool)
        self.assertEqual(s.ask(request("a", 300), 0), (None, False))
        until(lambda: pool.n_asked == 1)
        self.now = 1.1
        self.assertEqual(s.ask(request("a", 300), 0), (0, False))
        for name in "ab":  # no other one waits for a daemon that is silent
            s.arrived(request(name, 300))
            self.assertEqual(s.ask(request(name, 300), 0), (0, False))
        self.assertEqual(counts(counters), {"requests_given_up": 1})
        pool.answer()
        until(lambda: pool.n_open == 0)  # what the late answer leased is given back
        self.assertEqual(answer(s, request("c", 300), 0), (256, False))
        self.assertEqual(s.ask(request("a", 300), 0), (0, False), "its answer stays")

    def test_all_that_may_wait_wait_already(self):
        pool = FakePool(256, held=True)
        s, _ = self.scheduler(pool, waiting_leases=2)
        for _ in range(3):
            for name in "abcd":
                self.assertEqual(s.ask(request(name, 300), 0), (None, False))
        until(lambda: pool.n_asked == 2)
        pool.answer()
        for name in "abcd":
            self.assertEqual(answer(s, request(name, 300), 0), (256, False))

    def test_request_that_ends_while_it_waits(self):
        pool = FakePool(256, held=True)
        s, _ = self.scheduler(pool)
        for name in "ab":
            s.ask(request(name, 300), 0)
        until(lambda: pool.n_asked == 2)
        s.finished("a")
        s.stop()
        self.assertEqual(s.ask(request("b", 300), 0), (0, False))
        pool.answer()
        until(lambda: pool.n_open == 0)

    def test_error_that_is_not_the_library_s(self):
        pool = FakePool(256)
        pool.result_error = RuntimeError("of a test")
        s, _ = self.scheduler(pool)
        with self.assertLogs("vllm.kvcobra", "ERROR"):
            self.assertEqual(answer(s, request("a", 300), 0), (0, False))
        pool.result_error = None
        self.assertEqual(answer(s, request("b", 300), 0), (256, False), "the thread lives")

    def test_limit_of_slow_tiers(self):
        for wait_ms, fetch_ms in ((1000, 800), (0, 0)):
            daemon = FakeDaemon([FakePool(256)])
            lookups = Lookups(daemon, wait_ms, [0])
            lookup = lookups.ask(list(range(300)), b"")
            lookups.flush()
            until(lambda: lookup.answered)
            self.assertEqual(daemon.fetch_ms, fetch_ms)
            lookups.close()


class Steps(unittest.TestCase):
    def test_load_and_rows(self):
        s, _ = scheduler([FakePool(128)])
        r = request("a", 300)
        self.assertEqual(answer(s, r, 64), (64, False))
        s.allocated(r, ([7, 8, 9, 10, 11],), 64)
        step = s.step(output(new=[("a", 128, 172)], blocks={"a": [7, 8, 9, 10, 11]}))
        load, = step.loads
        self.assertEqual((load.first, load.end, load.blocks), (64, 128, ((7, 8),)))
        self.assertEqual(load.text.tables, (FakePool.table,))
        start, = step.starts
        self.assertEqual((start.n_published, len(start.text.tokens)), (128, 256))
        rows, = step.rows
        self.assertEqual((rows.first, rows.n, rows.blocks), (128, 128, ((7, 8, 9, 10),)))
        self.assertEqual(s.step(output()).loads, [], "a load is sent once")

    def test_nothing_is_loaded_without_external_tokens(self):
        s, _ = scheduler([FakePool(128)])
        r = request("a", 300)
        answer(s, r, 0)
        s.allocated(r, [1, 2, 3, 4, 5], 0)
        self.assertEqual(s.step(output(new=[("a", 0, 300)], blocks={"a": range(5)})).loads, [])

    def test_chunked_prefill(self):
        s, _ = scheduler([FakePool(0)])
        answer(s, request("a", 300), 0)
        first = s.step(output(new=[("a", 0, 100)], blocks={"a": [1, 2]}))
        second = s.step(output(cached=[("a", 100, 100)], blocks={"a": [1, 2, 3, 4]}))
        third = s.step(output(cached=[("a", 200, 100)], blocks={"a": [1, 2, 3, 4, 5]}))
        decode = s.step(output(cached=[("a", 300, 1)], blocks={"a": [1, 2, 3, 4, 5]}))
        self.assertEqual([len(x.starts) for x in (first, second, third, decode)], [1, 0, 0, 0])
        self.assertEqual([[(r.first, r.n, r.blocks) for r in x.rows] for x in (first, second, third, decode)],
                         [[(0, 100, ((1, 2),))], [(100, 100, ((1, 2, 3, 4),))], [(200, 56, ((1, 2, 3, 4),))], []])

    def test_own_hit_beyond_the_pool_is_not_published(self):
        s, counters = scheduler([FakePool(64)])
        answer(s, request("a", 300), 128)
        step = s.step(output(new=[("a", 128, 172)], blocks={"a": range(5)}))
        self.assertEqual((step.starts, step.rows), ([], []))
        self.assertEqual(counts(counters), {"requests_not_continued": 1})
        s.finished("a")
        self.assertEqual(s.step(output()).finished, [], "the workers never knew it")

    def test_own_hit_within_the_pool_is_continued(self):
        s, _ = scheduler([FakePool(128)], block_tokens=32)
        answer(s, request("a", 300), 96)
        step = s.step(output(new=[("a", 96, 204)], blocks={"a": range(10)}))
        self.assertEqual((step.starts[0].n_published, step.rows[0].first, step.rows[0].n), (128, 96, 160))

    def test_ask_after_leases_were_given_back(self):
        pool = FakePool(128)
        s, _ = scheduler([pool], waiting_leases=1)
        answer(s, request("a", 300), 0)
        answer(s, request("b", 300), 0)
        pool.n_published = 64
        self.assertEqual(answer(s, request("a", 300), 0), (64, False))
        step = s.step(output(new=[("a", 64, 236)], blocks={"a": range(5)}))
        self.assertEqual(step.starts[0].n_published, 64)

    def test_preempted_request(self):
        s, _ = scheduler([FakePool(0)])
        answer(s, request("a", 300), 0)
        s.step(output(new=[("a", 0, 200)], blocks={"a": range(4)}))
        answer(s, request("a", 300), 0)
        step = s.step(output(cached=[("a", 0, 300)], blocks={"a": [20, 21, 22, 23, 24]}))
        self.assertEqual(step.starts, [], "the recording continues")
        self.assertEqual((step.rows[0].first, step.rows[0].n, step.rows[0].blocks), (0, 256, ((20, 21, 22, 23),)))

    def test_finished(self):
        s, _ = scheduler([FakePool(0)])
        answer(s, request("a", 300), 0)
        s.step(output(new=[("a", 0, 200)], blocks={"a": range(4)}))
        s.finished("a")
        self.assertEqual(s.step(output()).finished, ["a"])

    def test_prompt_that_is_published_whole_is_not_recorded(self):
        s, _ = scheduler([FakePool(256)])
        answer(s, request("a", 300), 0)
        self.assertEqual(s.step(output(new=[("a", 256, 44)], blocks={"a": range(5)})).starts, [])


if __name__ == "__main__":
    support.main()
