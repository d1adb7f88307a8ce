"""States of llama.cpp, as llama_state_seq_get_data() returns them: kvcobra-llama.h describes the format and what is refused."""
from __future__ import annotations

from typing import Any, NamedTuple

from .._library import ffi, new
from .._model import Model
from .._sequence import Sequence

PIECE_TOKENS = 1024  # of all layers, appended between two commits: a client's arena bounds what is not committed

# general.architecture of GGUF files by the dimensions that RoPE rotates together, as llama_model_rope_type() has them
INTERLEAVED = ("llama", "mistral3", "smollm3", "granite", "command-r", "cohere2", "olmo", "deci", "baichuan", "starcoder", "arctic")
HALF_SPLIT = ("qwen2", "qwen2moe", "qwen3", "qwen3moe", "phi2", "phi3", "gemma", "falcon", "olmo2", "stablelm", "starcoder2", "gptneox",
              "grok", "dbrx", "exaone")


def pairs_of(architecture: str) -> str:
    """"interleaved" or "half-split". Raises ValueError for an architecture whose order is not known here."""
    if architecture in INTERLEAVED:
        return "interleaved"
    if architecture in HALF_SPLIT:
        return "half-split"
    raise ValueError(f"the order in which RoPE pairs dimensions is not known for the architecture '{architecture}': a wrong order would "
                     "make pages that no other program can use. If you know it, name it: --pairs, or pairs= in Python")


class Layout(NamedTuple):
    """How the states of one context are laid out, as kvc_llama_layout in kvcobra-llama.h, but for the number of tokens."""

    n_streams: int
    dtype: int
    v_transposed: int
    states_rotation: int


def _words(state: Any) -> Any:
    """@state, bytes, in memory that is aligned to 4 bytes."""
    words = ffi.new("uint32_t[]", (len(state) + 3) // 4)
    ffi.buffer(words)[:len(state)] = state
    return words


def check(model: Model, state: Any) -> "tuple[Layout, int]":
    """The layout of a state and its number of tokens. Raises kvcobra.Error with the reason if it is not one of @model."""
    layout = new("kvc_llama_layout")
    model.client.call("kvc_llama_state_check", model.handle, _words(state), len(state), layout)
    return Layout(layout.n_streams, layout.dtype, layout.v_transposed, layout.states_rotation), int(layout.n_tokens)


def read_state(sequence: Sequence, state: Any, tokens: Any) -> int:
    """Appends what @state has of @tokens to @sequence, which has the first of them, and publishes whole chunks. Returns how many
    tokens are published."""
    words, published = _words(state), sequence.length
    while sequence.length < len(tokens):
        end = min(sequence.length + PIECE_TOKENS, len(tokens))
        sequence.client.call("kvc_llama_state_read", sequence.handle, words, len(state), end)
        published = sequence.commit(tokens[:end])
        if published < end // 64 * 64:
            break  # the pool is full: the prompt is published up to here
    return published


def write_state(sequence: Sequence, layout: Layout, n_tokens: int) -> bytes:
    """A state of the first @n_tokens tokens of @sequence."""
    to, size = new("kvc_llama_layout", n_tokens=n_tokens, **layout._asdict()), ffi.new("size_t *")
    sequence.client.call("kvc_llama_state_bytes", sequence.model.handle, to, size)
    words = ffi.new("uint32_t[]", (size[0] + 3) // 4)
    sequence.client.call("kvc_llama_state_write", sequence.handle, to, words, size[0])
    return bytes(ffi.buffer(words, size[0]))
