/*
 * libkvcobra for llama.cpp: the state of one sequence, which llama_state_seq_get_data() returns and
 * llama_state_seq_set_data() accepts, read into a sequence of KV-COBRA and written from one. A prompt that
 * one process evaluated need not be evaluated by another one. libkvcobra does not link llama.cpp.
 *
 * Known formats: that of llama.cpp at commit 0c1e57098 (libllama 0.5.0, llama-cpp-python 0.3.36), and that of
 * releases since October 2026, which state how keys and values are rotated (llama.cpp's pull request 28498).
 * They have no version number and may change with every release. kvc_llama_state_check() tells whether a
 * state of the running release has a known format, and which; every other call checks it too. A state may
 * come from anywhere: all of it is checked before it is used.
 *
 * The sequence needs KVC_KEYS_AFTER_ROPE, and the order of pairs of the model's architecture:
 *
 *   llama_model_rope_type()   pairs                    general.architecture, for example
 *   LLAMA_ROPE_TYPE_NORM      KVC_PAIRS_INTERLEAVED    llama, mistral3, smollm3, granite, command-r, olmo
 *   LLAMA_ROPE_TYPE_NEOX      KVC_PAIRS_HALF_SPLIT     qwen2, qwen3, phi3, gemma, falcon, olmo2, stablelm
 *   NONE, MROPE, IMROPE       not supported            gpt2, bloom; qwen2vl, qwen3vl
 *
 * Not supported: caches of quantised types, which llama.cpp stores rotated by a Hadamard matrix; keys and
 * values of different types; models with several caches (sliding window, recurrent layers, MLA); contexts
 * whose positions were shifted or removed.
 */
#ifndef KVCOBRA_LLAMA_H
#define KVCOBRA_LLAMA_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvc_llama_layout {
    size_t struct_bytes;   /* sizeof(kvc_llama_layout) */
    uint32_t n_tokens;     /* positions 0 .. n_tokens - 1; at least 1 */
    uint32_t n_streams;    /* 1 if the context has kv_unified or one sequence; else its n_seq_max */
    uint32_t dtype;        /* enum kvc_dtype: type_k and type_v of the context */
    uint32_t v_transposed; /* 1: values are stored as [dimension, token]: a context without flash attention */
    uint32_t
        states_rotation; /* 1: the format of October 2026, with a rotation of keys and values that is none */
    uint32_t unused;     /* 0 */
} kvc_llama_layout;

/**
 * kvc_llama_state_check() - check a state, and describe it
 * @m:     the model that the state must fit
 * @state: [state_bytes] from llama_state_seq_get_data(); aligned to 4 bytes; borrowed during the call
 *
 * Call it once with the state of a short text before the first kvc_llama_state_write() for a context: the
 * layout of all states of that context is then known, but for n_tokens. The order of pairs cannot be seen in
 * a state.
 *
 * Return: 0, or
 *   -EBADMSG     not a state of a known format; the sentence names what was found and what was expected
 *   -EOPNOTSUPP  a state of a known format that is listed above as not supported
 *   -EINVAL      a state of a model with another geometry, or an argument is not valid
 */
KVC_EXPORT int kvc_llama_state_check(kvc_model *m, const void *state, size_t state_bytes,
                                     kvc_llama_layout *ret_layout);

/**
 * kvc_llama_state_read() - append tokens of a state to a sequence
 * @s:        has keys after RoPE; holds the first tokens of the same text, or is empty
 * @state:    [state_bytes] as in kvc_llama_state_check()
 * @n_tokens: length of the sequence after the call: positions kvc_seq_length(s) .. n_tokens - 1 of the state
 *            are appended; at most those of the state
 *
 * A long text must be appended in several calls, with a kvc_seq_commit() after each, if its pages do not fit
 * into the arena.
 *
 * After a failure the sequence is as before, but if memory ran out it may have been cut to whole chunks: see
 * kvc_seq_length().
 *
 * Return: 0; as kvc_llama_state_check(); as kvc_seq_append(): -ENOSPC: append fewer tokens, or commit first;
 * -EINVAL: the state has NaN or infinity, or the sequence has keys before RoPE; -ENOMEM.
 */
KVC_EXPORT int kvc_llama_state_read(kvc_seq *s, const void *state, size_t state_bytes, size_t n_tokens);

/* The size of a state with layout @to of a sequence of model @m.
 * Return: 0; -EINVAL: the layout is not valid, or the size is above SIZE_MAX. */
KVC_EXPORT int kvc_llama_state_bytes(kvc_model *m, const kvc_llama_layout *to, size_t *ret_bytes);

/**
 * kvc_llama_state_write() - make a state of the first tokens of a sequence
 * @s:         has keys after RoPE and at least to->n_tokens tokens
 * @to:        layout of the states of the context that gets this one
 * @ret_state: [state_bytes] aligned to 4 bytes; undefined after a failure
 *
 * llama_state_seq_set_data(context, state, size, seq_id) accepts the state for any seq_id and replaces what
 * that sequence held. Evaluate the tokens from position to->n_tokens on: at least one, which gives logits.
 *
 * Return: 0, or
 *   -EINVAL      the layout is not valid, or the sequence has fewer tokens, or keys before RoPE
 *   -ENOSPC      state_bytes is below that of kvc_llama_state_bytes()
 *   -ESTALE, -ENOMEM, -EOPNOTSUPP: as kvc_seq_read_blocks()
 */
KVC_EXPORT int kvc_llama_state_write(kvc_seq *s, const kvc_llama_layout *to, void *ret_state,
                                     size_t state_bytes);

#ifdef __cplusplus
}
#endif

#endif
