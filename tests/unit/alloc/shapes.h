/* Small geometries, random vectors and statistics for the tests of alloc/. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"

static inline struct geometry shape(uint32_t layers, uint32_t heads, uint32_t kv_heads, uint32_t d,
                                    uint32_t n_rot)
{
    struct geometry g = {
        .n_layers = layers,
        .n_heads = heads,
        .n_kv_heads = kv_heads,
        .d = d,
        .n_rot = n_rot,
        .attn_scale = 1.0 / sqrt((double) d),
    };

    for (uint32_t i = 0; i < n_rot / 2; i++)
        g.freq[i] = pow(10000.0, -2.0 * i / n_rot);
    return g;
}

/* x [n, width]: independent normals whose deviation falls from 1 to about 0.1
 * over each d columns, plus an offset. */
static inline void fill_normal(float *x, size_t n, size_t width, size_t d, double offset)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < width; i++)
            x[t * width + i] =
                (float) (test_rand_normal() * pow(0.1, (double) (i % d) / (double) d) + offset);
}

struct shape_data {
    float *q, *k, *v, *wo; /* of one window and layer; wo [n_embd, heads * d] */
    size_t n;
    uint32_t n_embd;
};

static inline void shape_data_init(struct shape_data *x, const struct geometry *g, size_t n)
{
    x->n = n;
    x->n_embd = 24;
    x->q = calloc(n * g->n_heads * g->d, sizeof(float));
    x->k = calloc(n * g->n_kv_heads * g->d, sizeof(float));
    x->v = calloc(n * g->n_kv_heads * g->d, sizeof(float));
    x->wo = calloc((size_t) x->n_embd * g->n_heads * g->d, sizeof(float));
    assert(x->q && x->k && x->v && x->wo);
}

static inline void shape_data_draw(struct shape_data *x, const struct geometry *g)
{
    fill_normal(x->q, x->n, (size_t) g->n_heads * g->d, g->d, 0.1);
    fill_normal(x->k, x->n, (size_t) g->n_kv_heads * g->d, g->d, 0.3);
    fill_normal(x->v, x->n, (size_t) g->n_kv_heads * g->d, g->d, -0.2);
    fill_normal(x->wo, x->n_embd, (size_t) g->n_heads * g->d, g->d, 0);
}

static inline void shape_data_deinit(struct shape_data *x)
{
    free(x->q);
    free(x->k);
    free(x->v);
    free(x->wo);
}

/* Statistics of @n_windows windows of vectors as of shape_data_draw(), with
 * every token but the sinks as a sample. */
static inline struct stats *shape_statistics(const struct geometry *g, size_t window, size_t n_windows)
{
    struct stats_options o;
    struct stats *s = NULL;
    struct shape_data x;
    struct errmsg e = {""};

    stats_options_default(&o, g);
    o.n_samples = (uint32_t) (window * n_windows);
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, g, window);
    shape_data_draw(&x, g);
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(s, l, x.wo, x.n_embd, &e), 0);
    for (uint64_t doc = 0; doc < n_windows; doc++)
        for (uint32_t l = 0; l < g->n_layers; l++) {
            shape_data_draw(&x, g);
            CU_ASSERT_EQUAL(stats_add_layer(s, doc, 0, l, window, x.q, x.k, x.v, NULL, &e), 0);
        }
    CU_ASSERT_STRING_EQUAL(e.text, "");
    shape_data_deinit(&x);
    return s;
}
