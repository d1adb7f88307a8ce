/*
 * Reading a prompt and generating tokens through any cache. Used by generate, retrieval and continuation.
 *
 * With a client sequence, tokens that other processes published are matched and not computed. The rest of the
 * prompt is computed in pieces, and each piece is published before the next, so that the arena must hold only
 * one piece.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"

struct engine;
struct errmsg;
struct kv_cache;

enum { GENERATION_PIECE_TOKENS = 512 };

struct generation_options {
    size_t n_tokens;   /* maximum to generate */
    float temperature; /* 0: the likeliest token */
    uint64_t seed;
    bool ignore_eos; /* continue after the end-of-text token */
    /* Prompt tokens that are computed at once; 0: GENERATION_PIECE_TOKENS. With KVC_CHUNK_TOKENS a prompt is
     * computed in the same pieces if its beginning was matched. */
    size_t piece_tokens;
    /* Receives each new token. A non-zero return stops the generation with that value. */
    int (*emit)(void *ctx, uint32_t token);
    /* Prompt tokens computed so far; may be NULL. */
    void (*progress)(void *ctx, size_t n_done);
    void *ctx;
};

struct generation {
    size_t n_matched; /* prompt tokens that came from published pages */
    size_t n_generated;
    size_t n_published;     /* tokens of the sequence that are in the daemon's pool at the end */
    double first_seconds;   /* from the call to the first token */
    double rest_seconds;    /* for the other n_generated - 1 */
    bool ended;             /* by the model's end-of-text token */
    int publish_err;        /* first error of publishing; the sequence continued privately. 0: none */
    char publish_text[256]; /* its sentence */
};

/**
 * generation_run() - run @tokens, then generate
 * @cache: holds keys and values
 * @c, @s: the client and the empty sequence behind @cache; NULL for the exact cache
 *
 * Return: 0; the non-zero value of emit; a negative errno with a sentence.
 */
int generation_run(struct engine *en, struct kv_cache *cache, kvc_client *c, kvc_seq *s,
                   const uint32_t *tokens, size_t n_tokens, const struct generation_options *o,
                   struct generation *ret, struct errmsg *e);
