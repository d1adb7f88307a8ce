/* One call of packed attention to test: a table, pages of random bytes (any bytes are valid codes), exact
 * rows and queries drawn for a shape, each in memory that ends at a fence; and the check on every variant
 * that this machine runs. */
#pragma once

#include "gpu/attend.h"
#include "gpu/cpu/ops.h"
#include "tests/unit/gpu/memory_table.h"

struct attend_shape {
    uint32_t d, n_rot, group;
    int bits;             /* see memory_table.h */
    uint32_t key_rank;    /* see memory_table.h */
    uint32_t fast_planes; /* see memory_table.h */
    unsigned state_bits;  /* see memory_table.h */
    uint32_t n_sink;
    enum prediction v_from;
    double mean_norm, q_size; /* standard deviation of queries; 0: 1 */
    double exact_size;        /* standard deviation of exact keys about the mean; 0: 1 */
    size_t n_pages, n_exact, n_q;
    size_t q_first; /* SIZE_MAX: the queries are the newest tokens */
    size_t window;  /* 0: all */
};

enum { N_KV = 3, LAYER = 1, HEAD = 2 }; /* of two layers */

/* Memory followed by a page without access: one byte beyond the end is a fault. */
struct fenced {
    char *map, *data;
    size_t map_bytes;
};

/* @data ends at the fence as closely as @align allows. */
struct fenced fenced_new(size_t bytes, size_t align);
void fenced_free(struct fenced f);

struct attend_scene {
    struct memory_table memory;
    struct page_layout layout;
    struct attend_args args;
    struct fenced *pages, exact_k, exact_v, q, out, scratch;
};

void attend_scene_init(struct attend_scene *s, const struct attend_shape *shape);
void attend_scene_deinit(struct attend_scene *s);

enum { ATTEND_SCENE_VARIANTS = 6 };

/* The different variants up to the best of this machine. Returns their number. */
size_t attend_scene_variants(const struct ops *ret[ATTEND_SCENE_VARIANTS]);

/* Runs every variant, with and without folding of slow planes, on one input
 * and compares each with the oracle. */
void attend_scene_check(const struct attend_shape *shape);
