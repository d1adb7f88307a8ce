/*
 * What an evaluation compares with the exact model: a table through the client library, or another format
 * (tools/lab/comparators/); and the exact model itself, where it stands in a row of its own. Each hands out
 * one cache at a time and adds up what its caches took.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table_account.h"
#include "client/kvcobra.h"
#include "tools/engine/engine.h"

struct comparator;
struct errmsg;
struct stats;
struct subject;

/* Which tokens are exact and what is coded, alike for all subjects; see kvc_eval_options. */
struct subject_options {
    uint32_t n_sink;
    int32_t n_recent;
    uint32_t sides, first_layer, n_layers;
    bool post_rope;
};

#define SUBJECT_SINKS 4 /* where neither a table nor the user says */

/* @path: for the name and for sentences; @bytes: the table, or NULL: it is read from @path. */
int subject_table_new(struct engine *en, const char *path, const void *bytes, size_t n_bytes,
                      const struct subject_options *o, struct subject **ret_subject, struct errmsg *e);
/* @stats, @rotated: for calibrated formats, else NULL; needed during the call only. */
int subject_comparator_new(struct engine *en, const struct comparator *c, const struct stats *stats,
                           const struct stats *rotated, const struct subject_options *o,
                           struct subject **ret_subject, struct errmsg *e);
int subject_exact_new(struct engine *en, struct subject **ret_subject, struct errmsg *e);
struct subject *subject_free(struct subject *s);
static inline void subject_freep(struct subject **s)
{
    *s = subject_free(*s);
}

const char *subject_name(const struct subject *s); /* "kivi-2", "exact", a table's file name */
const struct comparator *subject_comparator(const struct subject *s); /* NULL: none */
const kvc_model_info *subject_table(const struct subject *s);         /* NULL: not a table */

/**
 * subject_begin() - an empty cache
 * @n_tokens: it will hold at most
 *
 * Valid until subject_end(). Return: 0 or a negative errno with a sentence.
 */
int subject_begin(struct subject *s, size_t n_tokens, struct kv_cache *ret_cache, struct errmsg *e);

/* Takes the cache away, after counting what it holds if @count. */
int subject_end(struct subject *s, bool count, struct errmsg *e);

/*
 * What the counted caches took, over the sides and layers that are coded:
 *
 *   charged  bits of coded tokens, codes and what stands beside them for each token or group of tokens, but
 * no padding held     all bits: padding, page headers, and exact tokens at 16 bits per number
 */
struct subject_bits {
    double charged, charged_numbers, held, numbers;
};
struct subject_bits subject_bits(const struct subject *s);

/* Bits per number; 16 for the exact model. */
double subject_charged_bpd(const struct subject *s);
double subject_held_bpd(const struct subject *s);

/* Of a table: sums over counted caches of what the library reports, whole cache. Zeros else. */
const kvc_usage *subject_usage(const struct subject *s);
