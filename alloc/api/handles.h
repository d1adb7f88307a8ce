/*
 * The handles of kvcobra-alloc.h. An allocator owns its statistics and views through lists, and has the
 * sentence of the last error. Public calls clear the sentence when they begin (alloc_api_enter()).
 */
#pragma once

#include <stddef.h>

#include "alloc/api/stats_input.h"
#include "alloc/kvcobra-alloc.h"
#include "base/errmsg.h"

struct geometry;
struct solve_options;
struct stats;
struct table;

struct kvc_stats {
    kvc_alloc *alloc;
    struct kvc_stats *next;
    struct stats *sums;
    struct stats_input input;
};

struct kvc_table_view {
    kvc_alloc *alloc;
    struct kvc_table_view *next;
    struct table *table;
};

struct kvc_alloc {
    struct errmsg error;
    struct kvc_stats *stats;
    struct kvc_table_view *views;
};

/* Clears the sentence of @a, which is not NULL. Return: where the call writes its own. */
static inline struct errmsg *alloc_api_enter(kvc_alloc *a)
{
    errmsg_clear(&a->error);
    return &a->error;
}

/**
 * alloc_api_adopt_stats() - make a handle of statistics
 * @sums: transferred on success
 *
 * Return: 0; -ENOMEM.
 */
int alloc_api_adopt_stats(kvc_alloc *a, struct stats *sums, kvc_stats **ret_stats);

/**
 * solve_api_read() - the options of a solve, with every default in its place
 * @ret_levels: the table of from->levels_from, or NULL; the caller drops the reference
 *
 * Return: 0; -EINVAL, -EBADMSG with a sentence.
 */
int solve_api_read(const kvc_stats *s, const kvc_solve_options *from, struct solve_options *ret,
                   struct table **ret_levels, struct errmsg *e);
