"""The connector in the scheduler's process: what is promised to vLLM, and what the workers load and record."""
from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence as Items, Tuple

from .counters import Counters
from .geometry import Blocks
from .lookups import Lookups, Promise
from .metadata import CHUNK, Load, Row, Rows, Start, Step, Text
from .promises import Promises

# The scheduler asks again in its next step, and never sleeps: on a busy machine a thread that sleeps for 1 ms may run again after 50. A
# step without tokens lasts so long in a worker instead: the first ones as long as an answer about pages in memory takes, then longer,
# since vLLM would repeat empty steps at full speed.
SHORT_STEPS, SHORT_SECONDS, LONG_SECONDS = 10, 0.001, 0.005


class ComputeRate:
    """How many tokens per second the engine computes, by the times between its steps that have many: those of prompts. vLLM prepares a
    step while the one before runs, so two steps are timed together: when the second next one begins, both have run but for one's time."""

    STEP_TOKENS = 256  # fewer are mostly tokens that are generated, one per request
    TIMES = 9  # the median of so many: a step after which nothing was to do looks slow

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._rates: Deque[float] = deque(maxlen=self.TIMES)
        self._steps: Deque[Tuple[float, int]] = deque(maxlen=2)

    def step(self, n_tokens: int) -> None:
        """A step of @n_tokens begins."""
        now = self._clock()
        if len(self._steps) == 2:
            (began, n), (_, n_next) = self._steps
            if n >= self.STEP_TOKENS and now > began:
                self._rates.append((n + n_next) / (now - began))
        self._steps.append((now, n_tokens))

    def tokens_per_second(self) -> int:
        """0: not known yet."""
        if len(self._rates) < self.TIMES // 2:
            return 0
        return min(int(sorted(self._rates)[len(self._rates) // 2]), (1 << 32) - 1)


class Prompt:
    """A request that the scheduler asked about. @text: whole chunks of its prompt."""

    def __init__(self, text: Text, n_found: int) -> None:
        self.text = text
        self.n_found = n_found
        self.started = False


class Scheduler:
    """@salt: the salt of a request, or None if it may be neither matched nor published."""

    def __init__(self, lookups: Lookups, salt: Callable[[Any], Optional[bytes]], blocks: Blocks, waiting_leases: int,
                 takes: bool, publishes: bool, async_load: bool, counters: Counters, codes: bool = False,
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self._lookups = lookups
        self._rate = ComputeRate(clock)
        self._salt = salt
        self._blocks = blocks
        self._block_tokens = blocks.common
        self._takes = takes
        self._publishes = publishes
        self._async_load = async_load
        self._counters = counters
        self._codes = codes
        self._requests: Dict[str, Any] = {}
        self._sent: Dict[str, int] = {}
        self._promises = Promises(lookups, waiting_leases, counters)
        self._salts: Dict[str, Optional[bytes]] = {}
        self._recorded: Dict[str, Prompt] = {}
        self._noted: Dict[str, Promise] = {}
        self._loads: List[Load] = []
        self._finished: List[str] = []
        self._stopped = False
        self._n_idle = 0  # steps without tokens, one after another

    def stop(self) -> None:
        """From now on nothing is matched and nothing is published, not even of prompts that are being recorded."""
        self._stopped = True
        self._promises.clear()
        self._salts = dict.fromkeys(self._salts)
        self._finished += [request_id for request_id, prompt in self._recorded.items() if prompt.started]
        self._recorded.clear()
        self._lookups.flush()

    # ---- asks ----

    def arrived(self, request: Any) -> None:
        """vLLM has a new request: its lookup begins before its turn comes."""
        salt = self._salt_of(request)
        if salt is not None:
            self._promises.begin(request.request_id, list(request.all_token_ids), salt)

    def ask(self, request: Any, n_computed: int) -> Tuple[Optional[int], bool]:
        """How many tokens after the first @n_computed the request can load, and whether between steps. None: not known yet."""
        request_id = request.request_id
        if self._codes:
            self._requests[request_id] = request
            self._sent[request_id] = 0
        salt = self._salt_of(request)
        if salt is None:
            return 0, False
        known, promise = self._promises.ask(request_id, list(request.all_token_ids), salt)
        if not known:
            return None, False
        if promise is None:
            return 0, False
        if self._noted.get(request_id) is not promise:
            self._noted[request_id] = promise
            self._note_prompt(request, promise.text, promise.n_found)
        if not self._takes:
            return 0, False
        # a request that was preempted may have fewer tokens to compute than were promised first
        n = min(promise.n_found, request.num_tokens - 1) // self._block_tokens * self._block_tokens
        if n <= n_computed:
            return 0, False
        return n - n_computed, self._async_load

    def _salt_of(self, request: Any) -> Optional[bytes]:
        request_id = request.request_id
        if request_id not in self._salts:
            self._salts[request_id] = salt = None if self._stopped else self._salt(request)
            if salt is None and not self._stopped:
                self._counters.add("requests_unknown_keys")
        return self._salts[request_id]

    def _note_prompt(self, request: Any, text: Text, n_found: int) -> None:
        n_whole = request.num_prompt_tokens // CHUNK * CHUNK
        known = self._recorded.get(request.request_id)
        if self._codes or not self._publishes or (known is not None and known.started):
            return
        if n_found >= n_whole:
            self._recorded.pop(request.request_id, None)
            return
        self._recorded[request.request_id] = Prompt(Text(text.tokens[:n_whole], text.salt, text.tables), n_found)

    def allocated(self, request: Any, blocks: Items[Items[int]], n_external: int) -> None:
        """The request has blocks for the @n_external tokens that it was promised. 0: nothing is loaded. @blocks: by vLLM's groups."""
        request_id = request.request_id
        promise = self._promises.get(request_id)
        self._promises.scheduled(request_id)
        if n_external == 0 or promise is None:
            return
        n = min(promise.n_found, request.num_tokens - 1) // self._block_tokens * self._block_tokens
        self._counters.add("promised_tokens", n_external)
        self._loads.append(Load(request_id, promise.text, n - n_external, n, self._first_blocks(blocks, n)))

    def _first_blocks(self, blocks: Items[Items[int]], n: int) -> Tuple[Tuple[int, ...], ...]:
        """Those of the first @n tokens."""
        return tuple(tuple(of_group[:-(-n // tokens)]) for of_group, tokens in zip(blocks, self._blocks.tokens))

    def load_failed(self, request_id: str) -> None:
        """A load between steps failed, and vLLM asks about the request again."""
        self._promises.failed(request_id)

    # ---- steps ----

    def step(self, output: Any) -> Step:
        """The metadata of a step. @output: vLLM's SchedulerOutput."""
        step = Step(loads=self._loads, finished=self._finished, n_tokens=output.total_num_scheduled_tokens,
                    idle_seconds=self._idle_seconds(output.total_num_scheduled_tokens))
        self._loads, self._finished = [], []
        self._rate.step(step.n_tokens)
        self._lookups.compute_tokens_per_s = self._rate.tokens_per_second()
        self._counters.set("compute_tokens_per_second", self._lookups.compute_tokens_per_s)
        self._counters.set("connected", self._lookups.connected)
        if self._codes:
            step.batch = [self._row(output, request_id) for request_id in output.num_scheduled_tokens]
        elif self._recorded:
            for request in output.scheduled_new_reqs:
                self._record(step, output, request.req_id, request.num_computed_tokens)
            cached = output.scheduled_cached_reqs
            for request_id, n_computed in zip(cached.req_ids, cached.num_computed_tokens):
                self._record(step, output, request_id, n_computed)
        self._lookups.flush()
        return step

    def _idle_seconds(self, n_tokens: int) -> float:
        """How long a step lasts that has nothing to do but to wait for kvcobrad's answers."""
        if n_tokens or not self._promises.n_unknown:
            self._n_idle = 0
            return 0.0
        self._n_idle += 1
        return SHORT_SECONDS if self._n_idle <= SHORT_STEPS else LONG_SECONDS

    def _record(self, step: Step, output: Any, request_id: str, n_computed: int) -> None:
        prompt = self._recorded.get(request_id)
        if prompt is None:
            return
        n = min(output.num_scheduled_tokens[request_id], len(prompt.text.tokens) - n_computed)
        if n <= 0:
            return
        if not prompt.started:
            # Rows of vLLM's own prefix hit are not seen again. Where the pool has their chunks, the text continues there.
            if n_computed > prompt.n_found:
                del self._recorded[request_id]
                self._counters.add("requests_not_continued")
                return
            prompt.started = True
            step.starts.append(Start(request_id, prompt.text, prompt.n_found))
        blocks = output.kv_connector_block_state.get_block_ids(request_id)
        step.rows.append(Rows(request_id, n_computed, n, self._first_blocks(blocks, n_computed + n)))

    def _row(self, output: Any, request_id: str) -> Row:
        request = self._requests[request_id]
        at = self._sent[request_id]
        tokens = tuple(request.all_token_ids[at:])
        self._sent[request_id] = at + len(tokens)
        promise = self._promises.get(request_id)
        text = promise.text if promise is not None else None
        return Row(request_id, output.kv_connector_block_state.get_block_ids(request_id)[0][0], at, tokens,
                   text.salt if text is not None else None, text.tables[0] if text is not None else None)

    def finished(self, request_id: str) -> None:
        self._promises.drop(request_id)
        self._salts.pop(request_id, None)
        self._noted.pop(request_id, None)
        prompt = self._recorded.pop(request_id, None)
        self._sent.pop(request_id, None)
        if self._requests.pop(request_id, None) is not None or (prompt is not None and prompt.started):
            self._finished.append(request_id)

    def close(self) -> None:
        self._promises.clear()
        self._lookups.close()
