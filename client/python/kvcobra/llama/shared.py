"""Prompts of llama-cpp-python: a llama_cpp.Llama takes the beginnings of its prompts from kvcobrad and publishes what it computed."""
from __future__ import annotations

import ctypes
import logging
from typing import Any, Generator, List, Optional

import kvcobra

from .._calibrate import folder_model_id
from . import slots, states
from .sharing import LEAST_GAIN

LOG = logging.getLogger("kvcobra.llama")
SEQUENCE = 0  # the only one that llama_cpp.Llama uses
PROBE_TOKENS = 4


class Shared:
    """Shares the prompts of @llm, a llama_cpp.Llama: its generate(), which all of its completions call, begins with what kvcobrad has,
    and publishes what it computed when it ends.

    client: a client, or None: kvcobrad at the default path. model_id: the model's digest, or its first digits; None: what
    `kvcobra model-id` prints for the file of @llm. pairs: "interleaved" or "half-split"; None: by the model's architecture.

    Raises kvcobra.Error without a daemon or a table, ValueError for an architecture that is not known. Later nothing raises
    because of kvcobrad: what cannot be shared is computed, and a line of the log says why. close() leaves @llm as it was.
    """

    def __init__(self, llm: Any, client: Optional[kvcobra.Client] = None, model_id: "bytes | str | None" = None,
                 pairs: Optional[str] = None) -> None:
        import llama_cpp

        self._api = llama_cpp
        self._llm = llm
        self._pairs = pairs or states.pairs_of(llm.metadata.get("general.architecture", ""))
        self._own_client = None if client is not None else kvcobra.Client()
        opened = client or self._own_client
        assert opened is not None
        self._model = kvcobra.Model(opened, model_id or folder_model_id(llm.model_path))
        self._layout: Optional[states.Layout] = None
        self.off: Optional[str] = None  # why nothing is shared
        self.found_tokens = self.published_tokens = 0
        self._generate = llm.generate
        llm.generate = self._shared_generate

    def close(self) -> None:
        if self._llm.__dict__.get("generate") == self._shared_generate:
            del self._llm.generate
        self._model.close()
        if self._own_client is not None:
            self._own_client.close()

    def __enter__(self) -> "Shared":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # ---- what llama_cpp.Llama calls ----

    def _shared_generate(self, tokens: Any, *arguments: Any, reset: bool = True, **options: Any) -> Generator[int, Any, None]:
        prompt = [int(token) for token in tokens]
        if reset and not arguments:  # with all arguments by position, reset is one of them
            self.fill(prompt)
        try:
            yield from self._generate(prompt, *arguments, **({} if arguments else {"reset": reset}), **options)
        finally:
            self.publish()

    # ---- states ----

    def _switch_off(self, reason: Any) -> None:
        self.off = str(reason)
        LOG.warning("prompts are computed by llama.cpp alone: %s", reason)

    def _state(self) -> bytes:
        context = self._llm._ctx.ctx
        size = self._api.llama_state_seq_get_size(context, SEQUENCE)
        memory = (ctypes.c_uint8 * size)()
        n = self._api.llama_state_seq_get_data(context, memory, size, SEQUENCE)
        return bytes(memory)[:n]

    def _learn(self, tokens: List[int]) -> bool:
        """Learns the layout of the context's states, from one of some tokens if it has none."""
        if self._layout is None and self.off is None:
            if getattr(self._llm, "_logits_all", False):
                self._switch_off("logits_all=True asks for the logits of all tokens, which only computing them gives")
                return False
            if self._llm.n_tokens == 0:
                self._llm.eval(tokens[:PROBE_TOKENS])
            try:
                self._layout, _ = states.check(self._model, self._state())
            except kvcobra.Error as e:
                self._switch_off(e.strerror)
        return self.off is None

    def fill(self, tokens: List[int]) -> int:
        """Puts the published beginning of @tokens into the context, if that has at least 256 tokens more than the context holds. Returns
        how many tokens were put there."""
        if len(tokens) < LEAST_GAIN or not self._learn(tokens):
            return 0
        assert self._layout is not None
        held = slots.common([int(token) for token in self._llm.input_ids[:self._llm.n_tokens]], tokens)
        try:
            with self._sequence() as sequence:
                found = sequence.match(tokens)
                if found < held + LEAST_GAIN:
                    return 0
                state = states.write_state(sequence, self._layout, found)
        except kvcobra.Error as e:
            LOG.warning("a prompt is computed by llama.cpp alone: %s", e.strerror)
            return 0
        self._llm.reset()
        self._llm._ctx.kv_cache_clear()
        memory = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if self._api.llama_state_seq_set_data(self._llm._ctx.ctx, memory, len(state), SEQUENCE) != len(state):
            self._llm._ctx.kv_cache_clear()
            self._switch_off("llama.cpp does not take the state of a sequence")
            return 0
        self._llm.input_ids[:found] = tokens[:found]
        self._llm.n_tokens = found
        self.found_tokens += found
        return found

    def publish(self) -> int:
        """Publishes the whole chunks of what the context holds. Returns how many tokens were new."""
        tokens = [int(token) for token in self._llm.input_ids[:self._llm.n_tokens]]
        whole = len(tokens) // 64 * 64
        try:
            if whole == 0 or not self._learn(tokens) or self._model.peek([*tokens[:whole], 0]) >= whole:
                return 0
            state = self._state()
            with self._sequence() as sequence:
                before = sequence.match([*tokens[:whole], 0])
                new = states.read_state(sequence, state, tokens[:whole]) - before if before < whole else 0
        except kvcobra.Error as e:
            LOG.warning("a prompt was not published: %s", e.strerror)
            return 0
        self.published_tokens += new
        return new

    def _sequence(self) -> kvcobra.Sequence:
        return kvcobra.Sequence(self._model, keys="after", pairs=self._pairs, publish_all=True)
