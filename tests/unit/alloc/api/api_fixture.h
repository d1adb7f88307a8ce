/* An allocator and windows of random activations in the plain form, for the tests of alloc/api/. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "alloc/kvcobra-alloc.h"
#include "tests/unit/alloc/shapes.h"

enum { API_LAYERS = 2, API_HEADS = 4, API_KV_HEADS = 2, API_DIM = 32, API_EMBD = 24, API_WINDOW = 96 };

struct api {
    kvc_alloc *a;
    struct geometry g;
    kvc_geometry geometry;
    struct shape_data x;
    float *hidden; /* [API_WINDOW, API_EMBD] */
};

static inline void api_init(struct api *f)
{
    *f = (struct api){.g = shape(API_LAYERS, API_HEADS, API_KV_HEADS, API_DIM, API_DIM)};
    CU_ASSERT_EQUAL_FATAL(kvc_alloc_new(&f->a), 0);
    shape_data_init(&f->x, &f->g, API_WINDOW);
    f->hidden = malloc(sizeof(float) * API_WINDOW * API_EMBD);
    assert(f->hidden && f->x.n_embd == API_EMBD);
}

static inline void api_deinit(struct api *f)
{
    f->a = kvc_alloc_free(f->a);
    shape_data_deinit(&f->x);
    free(f->hidden);
}

/* The geometry points into @f. */
static inline kvc_stats_options api_options(struct api *f, uint32_t metrics)
{
    kvc_stats_options o = {
        .struct_bytes = sizeof(o),
        .geometry =
            {
                .struct_bytes = sizeof(o.geometry),
                .n_layers = API_LAYERS,
                .n_heads = API_HEADS,
                .n_kv_heads = API_KV_HEADS,
                .head_dim = API_DIM,
                .n_rot = API_DIM,
                .attn_scale = f->g.attn_scale,
                .rope_freq = f->g.freq,
            },
        .model_digest = {1, 2, 3},
        .model_name = "made up",
        .n_sink = 4,
        .metrics = metrics,
        .n_samples = 4 * API_WINDOW,
    };

    return o;
}

/* Statistics with W_O of every layer. */
static inline kvc_stats *api_stats(struct api *f, uint32_t metrics)
{
    kvc_stats_options o = api_options(f, metrics);
    kvc_stats *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_stats_new(f->a, &o, &s), 0);
    shape_data_draw(&f->x, &f->g);
    for (uint32_t layer = 0; layer < API_LAYERS && metrics != 0; layer++) {
        kvc_stats_projection p = {
            .struct_bytes = sizeof(p), .layer = layer, .wo = f->x.wo, .n_embd = API_EMBD};

        CU_ASSERT_EQUAL(kvc_stats_set_output_projection(s, &p), 0);
    }
    return s;
}

/* New activations of a layer. */
static inline kvc_stats_layer api_layer(struct api *f, uint64_t document, uint32_t layer)
{
    shape_data_draw(&f->x, &f->g);
    fill_normal(f->hidden, API_WINDOW, API_EMBD, API_EMBD, 0.5);
    return (kvc_stats_layer){
        .struct_bytes = sizeof(kvc_stats_layer),
        .document = document,
        .layer = layer,
        .n = API_WINDOW,
        .q = f->x.q,
        .k = f->x.k,
        .v = f->x.v,
        .residual = f->hidden,
        .n_embd = API_EMBD,
    };
}

static inline void api_add_windows(struct api *f, kvc_stats *s, uint64_t first, size_t n)
{
    for (uint64_t document = first; document < first + n; document++)
        for (uint32_t layer = 0; layer < API_LAYERS; layer++) {
            kvc_stats_layer x = api_layer(f, document, layer);

            CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);
        }
    CU_ASSERT_STRING_EQUAL(kvc_alloc_error(f->a), "");
}

/* Expects -EINVAL, or @err, and a sentence with @words. */
#define EXPECT_REFUSED(f, call, err, words)                                                                  \
    do {                                                                                                     \
        CU_ASSERT_EQUAL(call, err);                                                                          \
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_alloc_error((f)->a), words));                                      \
    } while (0)
