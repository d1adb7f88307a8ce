/* A model without weights for benches of the service: tables with synthetic codecs. */
#pragma once

#include <stdbool.h>

#include "alloc/table/table.h"
#include "client/kvcobra.h"
#include "gpu/page_layout.h"

struct errmsg;

struct bench_shape {
    unsigned n_layers, n_kv_heads, d; /* one query head per KV head */
    unsigned n_bands, bits;           /* of each head-side: its first 8 n_bands dimensions are stored */
    bool no_sinks;                    /* all pages have one size; else the first 4 tokens are exact */
};

struct bench_model {
    struct table *table;
    struct page_layout layout; /* of all heads */
};

/* Dimensions @d; layers, heads and frequencies of @s. */
struct geometry bench_geometry(const struct bench_shape *s);

/* The model as kvc_model_open() takes it; borrows the frequencies of @g. */
kvc_model_id bench_model_id(const struct geometry *g);

/**
 * bench_model_init() - make a table of the bench's model
 * @scale: of the decoded vectors; another scale gives another table of the same model
 *
 * The transform is the identity. Return: 0; a negative errno with a sentence.
 */
int bench_model_init(struct bench_model *m, const struct bench_shape *s, double scale, struct errmsg *e);
void bench_model_deinit(struct bench_model *m); /* accepts zeros */

extern const uint8_t bench_model_digest[DIGEST_BYTES];
