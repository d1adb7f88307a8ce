/*
 * A small random model in a GGUF file, so that tests that run a model need no download.
 *
 *     struct tiny_gguf_options o = {.architecture = "llama", .n_layers = 2, .n_heads = 4, .d = 32};
 *     struct tiny_gguf *t = tiny_gguf_new(&o);
 *     tiny_gguf_write(t, path);
 *     tiny_gguf_free(t);
 *
 * The vocabulary is the 256 bytes (token = byte) and three control tokens; there are no merges. The same
 * options give the same bytes on every machine. Oracles can read the weights, rounded to the file's type.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TINY_GGUF_BOS = 256,   /* "<|endoftext|>" */
    TINY_GGUF_START = 257, /* "<|im_start|>" */
    TINY_GGUF_EOS = 258,   /* "<|im_end|>" */
    TINY_GGUF_VOCAB = 259,
    TINY_GGUF_CONTEXT = 4096,
};

/* 0 or NULL = the default. */
struct tiny_gguf_options {
    /* "llama" (default), "qwen2" (with QKV bias), "qwen3" (with q and k norm), or any other */
    const char *architecture;
    uint32_t n_layers;        /* 2 */
    uint32_t n_heads;         /* 4 */
    uint32_t n_kv_heads;      /* 2 */
    uint32_t d;               /* 32 */
    uint32_t n_rot;           /* d */
    uint32_t n_embd;          /* n_heads * d */
    uint32_t n_ff;            /* 2 * n_embd */
    uint32_t type;            /* of the matrices: 0 = F32, 1 = F16, 3 = Q4_1, 8 = Q8_0, as numbered in GGUF */
    bool untied;              /* an output head of its own */
    const char *rope_scaling; /* "linear", "yarn"; with factor 4 and an original context of 1024 */
    bool rope_freqs;          /* a rope_freqs.weight tensor (Llama 3) */
    const char *tokenizer;    /* tokenizer.ggml.model: "gpt2" */
    const char *pre;          /* tokenizer.ggml.pre: "gpt-2" */
    const char *extra_key;    /* one more key: u32, or a string if extra_text is set */
    uint32_t extra_value;
    const char *extra_text;
    bool odd_types; /* KV heads as an array, token types as u32, the RoPE base as i32, no end: -1 as i32 */
    bool no_pre;    /* without tokenizer.ggml.pre */
    const char *extra_tensor; /* one more F32 tensor of 32 numbers */
    uint64_t seed;
};

struct tiny_gguf;

/* Ends the program when out of memory. */
struct tiny_gguf *tiny_gguf_new(const struct tiny_gguf_options *o);
struct tiny_gguf *tiny_gguf_free(struct tiny_gguf *t);
static inline void tiny_gguf_freep(struct tiny_gguf **t)
{
    *t = tiny_gguf_free(*t);
}

/* The file's bytes; borrowed. */
const uint8_t *tiny_gguf_bytes(const struct tiny_gguf *t, size_t *ret_bytes);

/* Return: 0 or a negative errno. */
int tiny_gguf_write(const struct tiny_gguf *t, const char *path);

/* Weights of a tensor, row-major, exactly as the file encodes them;
 * NULL if there is no such tensor. Borrowed. */
const float *tiny_gguf_tensor(const struct tiny_gguf *t, const char *name, size_t *ret_n);

/* The options with their defaults filled in. */
const struct tiny_gguf_options *tiny_gguf_shape(const struct tiny_gguf *t);
