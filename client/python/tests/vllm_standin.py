"""Stand-ins for kvcobrad's client and for vLLM's objects, with the members that the connector uses."""
import types

import kvcobra


class FakePool:
    """The pages of one shard: the first @n_published tokens of any text."""

    table = bytes(range(32))

    def __init__(self, n_published, error=False):
        self.n_published = n_published
        self.error = error
        self.n_open = 0
        self.tables = set()
        self.info = types.SimpleNamespace(table_digest=self.table)


class FakeSequence:
    def __init__(self, pool, table):
        self.pool = pool
        pool.n_open += 1
        pool.tables.add(table)

    def match(self, tokens):
        if self.pool.error:
            raise kvcobra.Error(11, "the daemon is busy")
        return min(self.pool.n_published, (len(tokens) - 1) // 64 * 64)

    def close(self):
        self.pool.n_open -= 1


class FakeService:
    def __init__(self):
        self.reasons = []

    def lost(self, reason):
        self.reasons.append(str(reason))

    def back(self):
        pass


class FakeDaemon:
    def __init__(self, pools):
        self.pools = pools
        self.service = FakeService()

    def models(self):
        return self.pools

    def sequence(self, model, salt, table, counted=False):
        return FakeSequence(model, table)

    def connected(self):
        return bool(self.pools)

    def close(self):
        pass


def request(request_id, n_tokens):
    tokens = list(range(n_tokens))
    return types.SimpleNamespace(request_id=request_id, all_token_ids=tokens, num_tokens=n_tokens, num_prompt_tokens=n_tokens)


def output(new=(), cached=(), blocks=None):
    """vLLM's SchedulerOutput. @new, @cached: (request id, tokens computed before, tokens of this step)."""
    n_tokens = {request_id: n for request_id, _, n in [*new, *cached]}
    return types.SimpleNamespace(
        scheduled_new_reqs=[types.SimpleNamespace(req_id=i, num_computed_tokens=first) for i, first, _ in new],
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=[i for i, _, _ in cached],
                                                    num_computed_tokens=[first for _, first, _ in cached]),
        num_scheduled_tokens=n_tokens, total_num_scheduled_tokens=sum(n_tokens.values()),
        kv_connector_block_state=types.SimpleNamespace(get_block_ids=lambda request_id: (list(blocks[request_id]),)))


class FakeLog:
    def __init__(self):
        self.lines = []

    def warning(self, text, *arguments):
        self.lines.append(text % arguments)

    info = warning
