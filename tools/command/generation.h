/*
 * Reading a prompt and writing on, through whichever cache holds the keys and values.
 *
 * With a client sequence, tokens that others published are taken over instead of computed, the rest is
 * computed in pieces and each piece is published before the next, so that the arena bounds nothing but a
 * piece.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"

struct engine;
struct errmsg;
struct kv_cache;

struct generation_options {
    size_t n_tokens;   /* to generate at most */
    float temperature; /* 0 = the likeliest token */
    uint64_t seed;
    bool ignore_eos; /* go on after the end-of-text token */
    /* Each new token as it is chosen. Non-zero stops with that value. */
    int (*emit)(void *ctx, uint32_t token);
    /* Prompt tokens computed so far; may be NULL. */
    void (*progress)(void *ctx, size_t n_done);
    void *ctx;
};

struct generation {
    size_t n_matched; /* prompt tokens that came from published pages */
    size_t n_generated;
    size_t n_published;     /* tokens of the sequence in the daemon's pool at the end */
    double first_seconds;   /* from the call to the first token */
    double rest_seconds;    /* for the other n_generated - 1 */
    bool ended;             /* the model wrote its end-of-text token */
    int publish_err;        /* first error of publishing, 0 = none: the sequence went on privately */
    char publish_text[256]; /* its sentence */
};

/**
 * generation_run() - run @tokens, then write on
 * @cache: where keys and values go
 * @c, @s: the client and the empty sequence behind @cache; NULL for the exact cache
 *
 * Return: 0; what emit returned; a negative errno with a sentence.
 */
int generation_run(struct engine *en, struct kv_cache *cache, kvc_client *c, kvc_seq *s,
                   const uint32_t *tokens, size_t n_tokens, const struct generation_options *o,
                   struct generation *ret, struct errmsg *e);
