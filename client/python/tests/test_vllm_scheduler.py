"""The scheduler's side of KvCobraConnector: promises, their limit, and what the workers are sent. Without vLLM and kvcobrad."""
import unittest

import support
from vllm_standin import FakeDaemon, FakePool, output, request

from kvcobra.vllm.counters import Counters
from kvcobra.vllm.scheduler import Scheduler


def scheduler(pools, block_tokens=64, waiting_leases=4, takes=True, publishes=True, salt=lambda r: b"", async_load=False):
    counters = Counters()
    return Scheduler(FakeDaemon(pools), salt, block_tokens, waiting_leases, takes, publishes, async_load, counters), counters


class Asks(unittest.TestCase):
    def test_promise_is_whole_blocks_below_the_prompt(self):
        s, _ = scheduler([FakePool(1472)])
        self.assertEqual(s.ask(request("a", 1500), 0), (1472, False))
        s, _ = scheduler([FakePool(1472)], block_tokens=128)
        self.assertEqual(s.ask(request("a", 1500), 0), (1408, False))
        s, _ = scheduler([FakePool(128)])
        self.assertEqual(s.ask(request("a", 128), 0), (64, False), "one token is left to compute")

    def test_own_hit_is_subtracted(self):
        s, _ = scheduler([FakePool(256)])
        self.assertEqual(s.ask(request("a", 300), 128), (128, False))
        self.assertEqual(s.ask(request("a", 300), 256), (0, False))

    def test_later_asks_get_the_first_answer(self):
        pool = FakePool(256)
        s, _ = scheduler([pool])
        self.assertEqual(s.ask(request("a", 300), 0), (256, False))
        pool.n_published = 0  # evicted as far as new matches go; the promise is leased
        self.assertEqual(s.ask(request("a", 300), 0), (256, False))
        self.assertEqual(pool.n_open, 1)
        s.finished("a")
        self.assertEqual(pool.n_open, 0)
        self.assertEqual(s.ask(request("a", 300), 0), (0, False))

    def test_least_of_all_shards(self):
        pools = [FakePool(256), FakePool(192)]
        s, _ = scheduler(pools)
        self.assertEqual(s.ask(request("a", 300), 0), (192, False))
        self.assertEqual([p.tables for p in pools], [{pools[0].table}, {pools[0].table}], "one table for all shards")

    def test_waiting_requests_with_leases_are_limited(self):
        pool = FakePool(256)
        s, _ = scheduler([pool], waiting_leases=2)
        for name in "abc":
            s.ask(request(name, 300), 0)
        self.assertEqual(pool.n_open, 2)
        s.allocated(request("b", 300), [1, 2, 3, 4, 5], 256)
        s.ask(request("d", 300), 0)
        self.assertEqual(pool.n_open, 3, "a scheduled request is not counted")
        s.close()
        self.assertEqual(pool.n_open, 0)

    def test_nothing_is_taken_or_published_after_a_reset(self):
        pool = FakePool(128)
        s, _ = scheduler([pool])
        s.ask(request("a", 300), 0)
        s.stop()
        self.assertEqual(pool.n_open, 0)
        for name in "ab":
            self.assertEqual(s.ask(request(name, 300), 0), (0, False))
        step = s.step(output(new=[("a", 0, 300)], blocks={"a": range(1, 6)}))
        self.assertEqual((step.starts, step.rows, step.loads), ([], [], []))

    def test_no_daemon(self):
        s, _ = scheduler([])
        self.assertEqual(s.ask(request("a", 300), 0), (0, False))
        step = s.step(output(new=[("a", 0, 300)], blocks={"a": range(5)}))
        self.assertEqual((step.loads, step.starts, step.rows), ([], [], []))

    def test_error_of_the_daemon_is_no_error_of_the_engine(self):
        pools = [FakePool(256), FakePool(256, error=True)]
        s, _ = scheduler(pools)
        self.assertEqual(s.ask(request("a", 300), 0), (0, False))
        self.assertEqual(pools[0].n_open, 0, "leases of a promise that failed are given back")

    def test_unknown_keys(self):
        pool = FakePool(256)
        s, counters = scheduler([pool], salt=lambda r: None)
        for _ in range(2):
            self.assertEqual(s.ask(request("a", 300), 0), (0, False))
        self.assertEqual(counters.take(), {"requests_unknown_keys": 1})
        self.assertEqual(pool.n_open, 0)
        self.assertEqual(s.step(output(new=[("a", 0, 300)], blocks={"a": range(5)})).rows, [])

    def test_roles(self):
        s, _ = scheduler([FakePool(256)], takes=False)
        self.assertEqual(s.ask(request("a", 400), 0), (0, False))
        s, _ = scheduler([FakePool(256)], publishes=False)
        self.assertEqual(s.ask(request("a", 400), 0), (256, False))
        self.assertEqual(s.step(output(new=[("a", 256, 144)], blocks={"a": range(7)})).starts, [])

    def test_async(self):
        s, _ = scheduler([FakePool(256)], async_load=True)
        self.assertEqual(s.ask(request("a", 300), 0), (256, True))
        self.assertEqual(s.ask(request("a", 300), 256), (0, False), "vLLM requires False with 0 tokens")


class Steps(unittest.TestCase):
    def test_load_and_rows(self):
        s, _ = scheduler([FakePool(128)])
        r = request("a", 300)
        self.assertEqual(s.ask(r, 64), (64, False))
        s.allocated(r, [7, 8, 9, 10, 11], 64)
        step = s.step(output(new=[("a", 128, 172)], blocks={"a": [7, 8, 9, 10, 11]}))
        load, = step.loads
        self.assertEqual((load.first, load.end, load.blocks), (64, 128, (7, 8)))
        self.assertEqual(load.text.table, FakePool.table)
        start, = step.starts
        self.assertEqual((start.n_published, len(start.text.tokens)), (128, 256))
        rows, = step.rows
        self.assertEqual((rows.first, rows.n, rows.blocks), (128, 128, (7, 8, 9, 10)))
        self.assertEqual(s.step(output()).loads, [], "a load is sent once")

    def test_nothing_is_loaded_without_external_tokens(self):
        s, _ = scheduler([FakePool(128)])
        r = request("a", 300)
        s.ask(r, 0)
        s.allocated(r, [1, 2, 3, 4, 5], 0)
        self.assertEqual(s.step(output(new=[("a", 0, 300)], blocks={"a": range(5)})).loads, [])

    def test_chunked_prefill(self):
        s, _ = scheduler([FakePool(0)])
        s.ask(request("a", 300), 0)
        first = s.step(output(new=[("a", 0, 100)], blocks={"a": [1, 2]}))
        second = s.step(output(cached=[("a", 100, 100)], blocks={"a": [1, 2, 3, 4]}))
        third = s.step(output(cached=[("a", 200, 100)], blocks={"a": [1, 2, 3, 4, 5]}))
        decode = s.step(output(cached=[("a", 300, 1)], blocks={"a": [1, 2, 3, 4, 5]}))
        self.assertEqual([len(x.starts) for x in (first, second, third, decode)], [1, 0, 0, 0])
        self.assertEqual([[(r.first, r.n, r.blocks) for r in x.rows] for x in (first, second, third, decode)],
                         [[(0, 100, (1, 2))], [(100, 100, (1, 2, 3, 4))], [(200, 56, (1, 2, 3, 4))], []])

    def test_own_hit_beyond_the_pool_is_not_published(self):
        s, counters = scheduler([FakePool(64)])
        s.ask(request("a", 300), 128)
        step = s.step(output(new=[("a", 128, 172)], blocks={"a": range(5)}))
        self.assertEqual((step.starts, step.rows), ([], []))
        self.assertEqual(counters.take(), {"requests_not_continued": 1})
        s.finished("a")
        self.assertEqual(s.step(output()).finished, [], "the workers never knew it")

    def test_own_hit_within_the_pool_is_continued(self):
        s, _ = scheduler([FakePool(128)], block_tokens=32)
        s.ask(request("a", 300), 96)
        step = s.step(output(new=[("a", 96, 204)], blocks={"a": range(10)}))
        self.assertEqual((step.starts[0].n_published, step.rows[0].first, step.rows[0].n), (128, 96, 160))

    def test_ask_after_leases_were_given_back(self):
        pool = FakePool(128)
        s, _ = scheduler([pool], waiting_leases=1)
        s.ask(request("a", 300), 0)
        s.ask(request("b", 300), 0)
        pool.n_published = 64
        self.assertEqual(s.ask(request("a", 300), 0), (64, False))
        step = s.step(output(new=[("a", 64, 236)], blocks={"a": range(5)}))
        self.assertEqual(step.starts[0].n_published, 64)

    def test_preempted_request(self):
        s, _ = scheduler([FakePool(0)])
        s.ask(request("a", 300), 0)
        s.step(output(new=[("a", 0, 200)], blocks={"a": range(4)}))
        s.ask(request("a", 300), 0)
        step = s.step(output(cached=[("a", 0, 300)], blocks={"a": [20, 21, 22, 23, 24]}))
        self.assertEqual(step.starts, [], "the recording continues")
        self.assertEqual((step.rows[0].first, step.rows[0].n, step.rows[0].blocks), (0, 256, (20, 21, 22, 23)))

    def test_finished(self):
        s, _ = scheduler([FakePool(0)])
        s.ask(request("a", 300), 0)
        s.step(output(new=[("a", 0, 200)], blocks={"a": range(4)}))
        s.finished("a")
        self.assertEqual(s.step(output()).finished, ["a"])

    def test_prompt_that_is_published_whole_is_not_recorded(self):
        s, _ = scheduler([FakePool(256)])
        s.ask(request("a", 300), 0)
        self.assertEqual(s.step(output(new=[("a", 256, 44)], blocks={"a": range(5)})).starts, [])


if __name__ == "__main__":
    support.main()
