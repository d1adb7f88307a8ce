/* Formats on vectors of a test: a geometry without RoPE, a codec, and coding in one call. */
#pragma once

#include <stdlib.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "lab/comparators/comparator.h"

/* One layer of @n_kv_heads heads, one query head each. */
static inline struct geometry plain_geometry(uint32_t n_kv_heads, uint32_t d)
{
    return (struct geometry){
        .n_layers = 1,
        .n_heads = n_kv_heads,
        .n_kv_heads = n_kv_heads,
        .d = d,
        .n_rot = 0,
        .attn_scale = 1,
    };
}

static inline struct comparator_codec *codec_of(const char *name, const struct comparator_source *s)
{
    struct comparator_codec *codec = NULL;
    const struct comparator *c = comparator_find(name);
    struct errmsg e = {""};

    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    CU_ASSERT_EQUAL_FATAL(comparator_codec_new(c, s, &codec, &e), 0);
    return codec;
}

/* Codes @n tokens; *y is their decoded form. Return: bits. */
static inline uint64_t coded(const struct comparator_codec *codec, enum side side, const float *x, size_t n,
                             float *y)
{
    uint64_t bits = 0;

    CU_ASSERT_EQUAL_FATAL(codec->what->code(codec, 0, side, x, n, y, &bits), 0);
    return bits;
}
