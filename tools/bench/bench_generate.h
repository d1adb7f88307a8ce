/*
 * What `kvcobra bench generate` measures: decode steps over an exact and a compressed cache that hold the
 * same tokens, what appending to the compressed one costs, and the first token of a process that finds its
 * prompt read.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tools/bench/timing.h"

struct engine;
struct errmsg;
struct kvc_client;
struct kvc_model;
struct progress;

#define CONTEXTS_MAX 16

/* The newest of the timed tokens stands at position n_tokens - 1. */
struct context_result {
    size_t n_tokens;
    struct timing exact, packed; /* seconds of one decode step */
    struct timing ratio;         /* exact over packed, step by step: above 1, packed is faster */
    double append_share;         /* of the packed steps' time, spent in kvc_seq_append(); chunks that fell due
                                    included */
};

struct prefill_result {
    size_t n_tokens;
    double model_seconds;  /* reading them with the exact cache */
    double append_seconds; /* encoding them on the way */
};

/**
 * bench_contexts() - read tokens once into both caches, and stop at each context for @n_steps decode steps on
 * either
 * @tokens:   [contexts[n - 1]] what is read; the steps' tokens are those that follow in it
 * @contexts: [n] ascending, each more than @n_steps + 1 above the one before
 *
 * Prefill runs on the exact cache; the compressed one takes the same keys and values, so that one pass serves
 * both. The two caches take turns, and turns in going first.
 *
 * Return: 0; a negative errno with a sentence.
 */
int bench_contexts(struct engine *en, struct kvc_client *c, struct kvc_model *m, const uint32_t *tokens,
                   const size_t *contexts, size_t n, size_t n_steps, struct progress *p,
                   struct context_result *ret_contexts, struct prefill_result *ret_prefill, struct errmsg *e);

struct first_token_result {
    size_t n_prompt, n_matched; /* tokens; of them found by the second process */
    struct timing cold, warm;   /* seconds to the first token */
    struct timing ratio;        /* cold over warm */
};

/**
 * bench_first_token() - time to first token of two processes, one after the other, with the same prompt
 * @model:  the GGUF file
 * @socket: a daemon that has a table for it
 * @text:   [bytes] the prompt; every repetition puts another line in front, so that the first process never
 * finds it
 *
 * Return: 0; a negative errno with a sentence.
 */
int bench_first_token(const char *model, const char *socket, const char *text, size_t bytes, size_t repeat,
                      struct first_token_result *ret, struct errmsg *e);
