/*
 * The subjects of an evaluation: a table through the client library, a cache of another kind, which
 * kvcobra-lab adds, or the exact model, where it has a row of its own. Each provides one cache at a time and
 * adds up the bits of its caches.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table_account.h"
#include "client/kvcobra.h"
#include "tools/engine/engine.h"

struct errmsg;
struct subject;

/* Exact tokens and coded parts, equal for all subjects; see kvc_eval_options. */
struct subject_options {
    uint32_t n_sink;
    int32_t n_recent;
    uint32_t sides, first_layer, n_layers;
    bool post_rope;
};

/* A cache of another kind. */
struct subject_other {
    void *state;
    int (*begin)(void *state, const struct subject_options *o, size_t n_tokens, struct kv_cache *ret_cache,
                 struct errmsg *e);
    /* Of the cache that begin() made: coded numbers of the coded sides and layers, their bits, and tokens. */
    void (*count)(void *state, uint64_t *ret_bits, uint64_t *ret_numbers, size_t *ret_tokens);
    void (*end)(void *state); /* frees that cache; there may be none */
    void (*free)(void *state);
    json_t *(*describe)(const void *state); /* members for a row of JSON */
};

#define SUBJECT_SINKS 4 /* without a table and without --sinks */

/* @path: for the name and for sentences. @bytes: the table; NULL: read it from @path. */
int subject_table_new(struct engine *en, const char *path, const void *bytes, size_t n_bytes,
                      const struct subject_options *o, struct subject **ret_subject, struct errmsg *e);
/* @what: copied; its state is transferred, also on failure. @name: "kivi-2". */
int subject_other_new(struct engine *en, const char *name, const struct subject_other *what,
                      const struct subject_options *o, struct subject **ret_subject, struct errmsg *e);
int subject_exact_new(struct engine *en, struct subject **ret_subject, struct errmsg *e);
struct subject *subject_free(struct subject *s);
static inline void subject_freep(struct subject **s)
{
    *s = subject_free(*s);
}

const char *subject_name(const struct subject *s); /* "kivi-2", "exact", a table's file name */
const struct subject_other *subject_other(const struct subject *s); /* NULL: of no other kind */
const kvc_model_info *subject_table(const struct subject *s);       /* NULL: not a table */

/**
 * subject_begin() - provide an empty cache
 * @n_tokens: most tokens of the cache
 *
 * Valid until subject_end(). Return: 0 or a negative errno with a sentence.
 */
int subject_begin(struct subject *s, size_t n_tokens, struct kv_cache *ret_cache, struct errmsg *e);

/* Frees the cache, after adding its bits to the sums if @count. */
int subject_end(struct subject *s, bool count, struct errmsg *e);

/*
 * Bits of the counted caches, over the coded sides and layers:
 *
 *   charged  bits of coded tokens: codes without padding, and the data stored with each token or group
 *   held     all bits: with padding, page headers, and exact tokens at 16 bits per number
 */
struct subject_bits {
    double charged, charged_numbers, held, numbers;
};
struct subject_bits subject_bits(const struct subject *s);

/* Bits per number; 16 for the exact model. */
double subject_charged_bpd(const struct subject *s);
double subject_held_bpd(const struct subject *s);

/* For a table: sums over counted caches of the library's usage, of the whole cache. Else zeros. */
const kvc_usage *subject_usage(const struct subject *s);
