/* Tables in memory for the tests of gpu/: codecs with random matrices and chosen bits. They have the type
 * of tables that are parsed from files; digests and provenance are empty. */
#pragma once

#include "alloc/table/table.h"

struct memory_table_options {
    struct geometry geometry;
    uint32_t n_sink;
    enum prediction v_from;
    int bits; /* of every half-tile; -1: random, descending, with empty ones; 0: every head-side of rank 0 */
    uint32_t key_rank; /* largest number of coordinates of K; 0: as many as of V */
    uint32_t
        fast_planes; /* of K's bases in two blocks: every third half-tile is of these planes; 0: one block */
    unsigned state_bits; /* of the trellises of widths up to four bits; 0: scalar levels */
    double mean_norm;    /* of key means; 0: about 1 per coordinate */
};

struct memory_table {
    struct table table;
    struct codec *codecs;
    float *pool; /* all matrices */
};

struct geometry memory_table_geometry(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d,
                                      uint32_t n_rot);

/* Matrices are such that decoded vectors have coordinates of about 1
 * around the mean. Aborts without memory. */
void memory_table_init(struct memory_table *v, const struct memory_table_options *o);
void memory_table_deinit(struct memory_table *v);
