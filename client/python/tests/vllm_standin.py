"""Stand-ins for kvcobrad's client and for vLLM's objects, with the members that the connector uses."""
import os
import threading
import time
import types

import kvcobra
from kvcobra.vllm.geometry import Blocks

TIMEOUT_S = 60


def one_list(block_tokens, n_layers=1):
    """The blocks of a model whose layers have one list of them."""
    return Blocks(n_layers * (0,), (block_tokens,))


class FakePool:
    """The pages of one shard: the first @n_published tokens of any text, without the chunks @missing. While @held, no answer comes."""

    table = bytes(range(32))

    def __init__(self, n_published, error=False, held=False, missing=()):
        self.n_published = n_published
        self.missing = set(missing)
        self.error = error
        self.result_error = None
        self.held = held
        self.n_open = 0
        self.n_asked = 0
        self.lock = threading.Lock()  # a test answers while the scheduler's thread gives up and closes
        self.fetches = []
        self.tables = set()
        self.info = types.SimpleNamespace(table_digest=self.table)

    def found(self, n_tokens, window):
        """What a match of @n_tokens finds: the longest text that has all that the token behind it sees."""
        n = min(self.n_published, n_tokens // 64 * 64)
        while any(i // 64 in self.missing for i in range(max(0, n - window + 1) if window else 0, n)):
            n -= 64
        return n

    def answer(self):
        """What was held is answered."""
        with self.lock:
            self.held = False
            for fetch in self.fetches:
                fetch.ring()


class FakeFetch:
    """A descriptor that becomes readable with the answer."""

    def __init__(self, pool, tokens, window):
        self.pool, self.tokens, self.window = pool, tokens, window
        self.ear, self.bell = os.pipe()
        with pool.lock:
            pool.fetches.append(self)
            pool.n_asked += 1
            if not pool.held:
                self.ring()

    def ring(self):
        os.write(self.bell, b"!")

    def fileno(self):
        return self.ear

    def done(self):
        return not self.pool.held

    def result(self, timeout):
        if self.pool.error:
            raise kvcobra.Error(11, "the daemon is busy")
        if self.pool.result_error is not None:
            raise self.pool.result_error
        return self.pool.found(len(self.tokens) - 1, self.window)

    def close(self):
        with self.pool.lock:
            if self in self.pool.fetches:
                self.pool.fetches.remove(self)
                os.close(self.ear)
                os.close(self.bell)


class FakeSequence:
    def __init__(self, pool, table, window):
        self.pool, self.window = pool, window
        self.fetching = None
        pool.n_open += 1
        pool.tables.add(table)

    def fetch(self, tokens):
        self.fetching = FakeFetch(self.pool, tokens, self.window)
        return self.fetching

    def close(self):
        if self.fetching is not None:
            self.fetching.close()
        self.pool.n_open -= 1


class FakeService:
    def __init__(self):
        self.reasons = []

    def lost(self, reason):
        self.reasons.append(str(reason))

    def back(self):
        pass


class FakeDaemon:
    """@pools: of the shards of a model's one group of layers. @others: the same of its other groups."""

    def __init__(self, pools, others=()):
        self.pools = pools
        self.others = others
        self.service = FakeService()

    def models(self):
        return [self.pools, *self.others] if self.pools else []

    def sequence(self, group, model, salt, table, counted=False, fetch_ms=None, compute_tokens_per_s=0, window=0):
        self.fetch_ms = fetch_ms
        self.compute_tokens_per_s = compute_tokens_per_s
        return FakeSequence(model, table, window)

    def connected(self):
        return bool(self.pools)

    def close(self):
        pass


def until(condition):
    """Waits for what a thread does."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def answer(scheduler, r, n_computed):
    """What the scheduler's side says when it knows: a busy machine needs longer than a step waits."""
    end = time.monotonic() + TIMEOUT_S
    while (found := scheduler.ask(r, n_computed))[0] is None:
        assert time.monotonic() < end, "no answer came"
        scheduler.step(output())
    return found


def request(request_id, n_tokens):
    tokens = list(range(n_tokens))
    return types.SimpleNamespace(request_id=request_id, all_token_ids=tokens, num_tokens=n_tokens, num_prompt_tokens=n_tokens)


def output(new=(), cached=(), blocks=None):
    """vLLM's SchedulerOutput. @new, @cached: (request id, tokens computed before, tokens of this step). @blocks: by request, one list or
    a tuple of lists."""
    def lists(of_request):
        return of_request if isinstance(of_request, tuple) else (list(of_request),)

    n_tokens = {request_id: n for request_id, _, n in [*new, *cached]}
    return types.SimpleNamespace(
        scheduled_new_reqs=[types.SimpleNamespace(req_id=i, num_computed_tokens=first) for i, first, _ in new],
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=[i for i, _, _ in cached],
                                                    num_computed_tokens=[first for _, first, _ in cached]),
        num_scheduled_tokens=n_tokens, total_num_scheduled_tokens=sum(n_tokens.values()),
        kv_connector_block_state=types.SimpleNamespace(get_block_ids=lambda request_id: lists(blocks[request_id])))


class FakeLog:
    def __init__(self):
        self.lines = []

    def warning(self, text, *arguments):
        self.lines.append(text % arguments)

    info = warning
