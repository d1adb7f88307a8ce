/*
 * The measurements of `kvcobra-lab bench generate`: decode steps over an exact and a compressed cache with
 * the same tokens, the time of appending to the compressed cache, and the first token of a process whose
 * prompt is published.
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
    double
        append_share; /* share of the packed steps' time in kvc_seq_append(), with encoding of due chunks */
};

struct prefill_result {
    size_t n_tokens;
    double model_seconds;  /* computing them with the exact cache */
    double append_seconds; /* encoding them */
};

/**
 * bench_contexts() - read tokens once into both caches, and time @n_steps decode steps of both at each
 * context
 * @tokens:   [contexts[n - 1]] the text; the steps use its next tokens
 * @contexts: [n] ascending, each more than @n_steps + 1 above the previous one
 *
 * Prefill attends with the exact cache and appends to both, so that one pass fills both. The two caches
 * alternate, and each is the first in every second step.
 *
 * Return: 0; a negative errno with a sentence.
 */
int bench_contexts(struct engine *en, struct kvc_client *c, struct kvc_model *m, const uint32_t *tokens,
                   const size_t *contexts, size_t n, size_t n_steps, struct progress *p,
                   struct context_result *ret_contexts, struct prefill_result *ret_prefill, struct errmsg *e);

struct first_token_result {
    size_t n_prompt, n_matched; /* tokens; found by the second process */
    struct timing cold, warm;   /* seconds to the first token */
    struct timing ratio;        /* cold over warm */
};

/**
 * bench_first_token() - time to first token of two processes, one after the other, with the same prompt
 * @model:  the GGUF file
 * @socket: a daemon that has a table for it
 * @text:   [bytes] the prompt; every repetition begins with another line, so that the first process never
 * finds it published
 *
 * Return: 0; a negative errno with a sentence.
 */
int bench_first_token(const char *model, const char *socket, const char *text, size_t bytes, size_t repeat,
                      struct first_token_result *ret, struct errmsg *e);
