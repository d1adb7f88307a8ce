"""What a proxy shares: a model of kvcobrad, the layout of one llama-server's states, and its slots. No HTTP here.

Nothing raises because of kvcobrad or of a state: what cannot be shared is computed by the server, as without us.
"""
from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, List, Optional

import kvcobra

from . import slots, states

LOG = logging.getLogger("kvcobra.llama")
LEAST_GAIN = 256  # tokens that a restore must have more than the slot: below, computing them is as fast
RETRY_SECONDS = 10.0


class SlotState:
    """@tokens: a beginning of what the slot holds, as far as it is known."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens: List[int] = []
        self.busy = False
        self.used = 0.0


class Slots:
    """The slots of the server: one request at a time has each."""

    def __init__(self, n: int) -> None:
        self._all = [SlotState(i) for i in range(n)]
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._all)

    def take(self, tokens: List[int], wanted: Optional[int] = None) -> SlotState:
        """Waits for slot @wanted, or for a free one: that which has most of @tokens, else the one that was used longest ago."""
        with self._changed:
            while True:
                free = [s for s in self._all if not s.busy and wanted in (None, s.number)]
                if free:
                    slot = max(free, key=lambda s: (slots.common(s.tokens, tokens), -s.used))
                    slot.busy = True
                    return slot
                self._changed.wait()

    def give_back(self, slot: SlotState) -> None:
        with self._changed:
            slot.busy, slot.used = False, time.monotonic()
            self._changed.notify_all()


class Sharing:
    """@new_client: connects to kvcobrad. @ask(method, path, body): a call of llama-server, which raises if it fails."""

    def __init__(self, new_client: Callable[[], kvcobra.Client], model_id: str, pairs: str, folder: slots.Folder,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._new_client, self._model_id, self._pairs, self._folder = new_client, model_id, pairs, folder
        self._clock = clock
        self._learning = threading.Lock()
        self._lock = threading.Lock()  # a client is used by one thread at a time
        self._client: Optional[kvcobra.Client] = None
        self._model: Optional[kvcobra.Model] = None
        self._layout: Optional[states.Layout] = None
        self._next_attempt = 0.0
        self.off: Optional[str] = None  # why nothing is restored or saved again
        self._said = ""
        self.found_tokens = self.published_tokens = 0

    def say(self, sentence: str) -> None:
        """A line, unless it is the last one again."""
        if sentence != self._said:
            self._said = sentence
            LOG.warning("%s", sentence)

    def switch_off(self, reason: str) -> None:
        if self.off is None:
            self.off = reason
            LOG.warning("sharing has ended: %s", reason)

    # ---- kvcobrad ----

    def _open(self) -> Optional[kvcobra.Model]:
        """With the lock. None: not now."""
        if self._model is not None or self._clock() < self._next_attempt:
            return self._model
        try:
            if self._client is None:
                self._client = self._new_client()
            self._model = kvcobra.Model(self._client, self._model_id)
        except kvcobra.Error as e:
            self._next_attempt = self._clock() + RETRY_SECONDS
            self.say(f"prompts are computed by llama-server alone: {e.strerror}")
        return self._model

    def open(self) -> bool:
        """Whether kvcobrad serves the model now."""
        with self._lock:
            return self._open() is not None

    def _sequence(self, model: kvcobra.Model) -> kvcobra.Sequence:
        return kvcobra.Sequence(model, keys="after", pairs=self._pairs, publish_all=True)

    # ---- states ----

    def _save(self, slot: SlotState, ask: Any) -> slots.Slot:
        """What the server has in @slot."""
        name = f"kvcobra-{slot.number}"
        try:
            self._folder.write(name, b"")  # llama-server writes into this file: it stays private, whatever that program's umask is
            ask("POST", f"/slots/{slot.number}?action=save", {"filename": name})
            data = self._folder.read(name)
            if not data:
                raise RuntimeError("it wrote nothing into the folder of slots")
            return slots.parse(data)
        finally:
            self._folder.remove(name)

    def learn(self, slot: SlotState, ask: Any) -> bool:
        """Learns the layout of the server's states from one of some tokens. False: nothing is shared."""
        with self._learning:
            return self._learn(slot, ask)

    def _learn(self, slot: SlotState, ask: Any) -> bool:
        if self._layout is not None or self.off is not None:
            return self.off is None
        with self._lock:
            model = self._open()
        if model is None:
            return False
        try:
            ask("POST", "/completion", {"prompt": "a b c", "n_predict": 0, "id_slot": slot.number, "cache_prompt": True})
            saved = self._save(slot, ask)
            with self._lock:
                self._layout, _ = states.check(model, saved.state)
        except slots.FormatError as e:
            self.switch_off(f"{e}: llama-server is of a release that this version does not know")
        except kvcobra.Error as e:
            self.switch_off(f"the states of this llama-server cannot be shared: {e.strerror}")
        except Exception as e:
            if self._folder.is_full:
                self.say(f"prompts are computed by llama-server alone while the folder of slots is full: {e}")
                slot.tokens = []
                return False
            self.switch_off(f"llama-server saves no slots ({e}): start it with --slot-save-path and the folder that --slots names")
        slot.tokens = []
        return self.off is None

    def fill(self, slot: SlotState, tokens: List[int], ask: Any) -> int:
        """Restores the published beginning of @tokens in @slot, if that is worth it. Returns how many tokens were restored."""
        assert self._layout is not None
        held = slots.common(slot.tokens, tokens)
        with self._lock:
            model = self._open()
            if model is None:
                return 0
            with self._sequence(model) as sequence:
                found = sequence.match(tokens)
                if found < held + LEAST_GAIN:
                    return 0
                state = states.write_state(sequence, self._layout, found)
        name = f"kvcobra-{slot.number}"
        slot.tokens = []
        try:
            self._folder.write(name, slots.build(tokens[:found], state))
            restored = ask("POST", f"/slots/{slot.number}?action=restore", {"filename": name}).get("n_restored")
        finally:
            self._folder.remove(name)
        if restored != found:
            self.switch_off(f"llama-server restored {restored} of {found} tokens of a slot file")
            self._erase(slot, ask)
            return 0
        slot.tokens = tokens[:found]
        self.found_tokens += found
        return found

    def _erase(self, slot: SlotState, ask: Any) -> None:
        ask("POST", f"/slots/{slot.number}?action=erase", {})

    def note_cached(self, slot: SlotState, restored: int, cached: Optional[int], ask: Any) -> None:
        """@cached: tokens that the server says it did not compute (timings.cache_n)."""
        if restored and cached is not None and cached < restored // 64 * 64 - 64:
            self.switch_off(f"llama-server computed a prompt again whose {restored} tokens it had restored ({cached} from its cache)")
            slot.tokens = []
            self._erase(slot, ask)

    def publish(self, slot: SlotState, tokens: List[int], ask: Any) -> None:
        """Publishes the whole chunks of @tokens that the slot holds and kvcobrad lacks."""
        whole = len(tokens) // 64 * 64
        with self._lock:
            model = self._open()
            if model is None or model.peek(tokens[:whole] + [0]) >= whole:
                return
        saved = self._save(slot, ask)
        n = slots.common(saved.tokens, tokens[:whole]) // 64 * 64
        slot.tokens = saved.tokens
        if n == 0:
            return
        with self._lock, self._sequence(model) as sequence:
            before = sequence.match(tokens[:n] + [0])
            if before < n:
                self.published_tokens += states.read_state(sequence, saved.state, tokens[:n]) - before

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = self._model = None
        self._folder.close()
