/*
 * GEAR at 2 bits in its streaming form: blocks of 64 tokens; outliers (2 %: both ends of each group) are
 * stored apart and replaced by the mean of the others; KIVI's axes in groups of 64 between minimum and
 * maximum; the remaining error is approximated per head with rank 2. After RoPE.
 *
 * The paper's prefill uses rank 4 over the whole prompt, about as many bits; that would let every query see
 * later tokens.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/low_rank.h"
#include "lab/comparators/outliers.h"
#include "lab/comparators/range.h"

enum { GROUP = 64, RANK = 2 };
#define OUTLIER_SHARE 0.02

struct gear_scratch {
    uint8_t *mark;  /* [64, row] outliers */
    uint8_t *group; /* [64] outliers of a group */
    float *filled;  /* [64, row] without outliers */
    float *missing; /* [64, d] of one head */
};

static void gear_scratch_deinit(struct gear_scratch *s)
{
    free(s->mark);
    free(s->group);
    free(s->filled);
    free(s->missing);
}

static int gear_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                        struct errmsg *e)
{
    uint32_t d = s->geometry.d;

    (void) ret_state;
    if (d > GROUP && d % GROUP != 0)
        return fail(e, -EINVAL,
                    "%s codes groups of %d channels, which %u channels per head do not divide into", c->name,
                    GROUP, d);

    return 0;
}

/* One group of @n numbers, @stride apart from @at on: finds outliers, codes the others into @y. */
static uint64_t gear_code_group(const float *x, size_t n, size_t stride, unsigned b, size_t at,
                                struct gear_scratch *s, float *y)
{
    size_t n_marked = outliers_find(x + at, n, stride, outliers_each(OUTLIER_SHARE, n), s->group);
    float mean = outliers_rest_mean(x + at, n, stride, s->group);

    for (size_t i = 0; i < n; i++) {
        s->mark[at + i * stride] = s->group[i];
        s->filled[at + i * stride] = s->group[i] ? mean : x[at + i * stride];
    }

    return range_code(s->filled + at, n, stride, b, y + at) + n_marked * OUTLIER_BITS;
}

/* Adds the rank-2 approximation of one head's remaining error, without outliers, to @y. */
static int gear_add_missing(const struct geometry *g, const float *x, size_t n, uint32_t head,
                            struct gear_scratch *s, float *y)
{
    size_t d = g->d, row = (size_t) g->n_kv_heads * d;
    float *rank = s->filled; /* no longer needed by this head: [n, d] fits */
    int r;

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++) {
            size_t at = t * row + head * d + i;

            s->missing[t * d + i] = s->mark[at] ? 0 : x[at] - y[at];
        }
    r = low_rank(s->missing, n, d, RANK, rank);
    for (size_t t = 0; r == 0 && t < n; t++)
        for (size_t i = 0; i < d; i++)
            y[t * row + head * d + i] += rank[t * d + i];
    return r;
}

/* @n at most 64 tokens. */
static int gear_code_block(const struct comparator_codec *codec, enum side side, const float *x, size_t n,
                           struct gear_scratch *s, float *y, uint64_t *bits)
{
    const struct geometry *g = &codec->geometry;
    size_t d = g->d, row = (size_t) g->n_kv_heads * d, group = d < GROUP ? d : GROUP;
    int r = 0;

    if (side == SIDE_V)
        for (size_t i = 0; i < n * row; i += group)
            *bits += gear_code_group(x, group, 1, codec->what->bits, i, s, y);
    else
        for (size_t i = 0; i < row; i++)
            *bits += gear_code_group(x, n, row, codec->what->bits, i, s, y);
    for (uint32_t h = 0; r == 0 && h < g->n_kv_heads; h++) {
        r = gear_add_missing(g, x, n, h, s, y);
        *bits += (n + d) * RANK * 16;
    }

    for (size_t i = 0; i < n * row; i++)
        if (s->mark[i])
            y[i] = f16_to_f32(f32_to_f16(x[i]));
    return r;
}

static int gear_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                     size_t n, float *ret_y, uint64_t *ret_bits)
{
    size_t d = codec->geometry.d, row = codec->geometry.n_kv_heads * d;
    _cleanup_(gear_scratch_deinit) struct gear_scratch s = {
        .mark = malloc(GROUP * row),
        .group = malloc(GROUP),
        .filled = malloc(GROUP * row * sizeof(float)),
        .missing = malloc(GROUP * d * sizeof(float)),
    };
    uint64_t bits = 0;
    int r = 0;

    (void) layer;
    if (!s.mark || !s.group || !s.filled || !s.missing)
        return -ENOMEM;

    for (size_t t = 0; r == 0 && t < n; t += GROUP)
        r = gear_code_block(codec, side, x + t * row, n - t < GROUP ? n - t : GROUP, &s, ret_y + t * row,
                            &bits);
    *ret_bits = bits;
    return r;
}

const struct comparator comparator_gear_2 = {
    .name = "gear-2",
    .what = "KIVI's axes over 64, 2 % outliers, rank 2 per head and 64 tokens",
    .citation = "Kang et al., GEAR, 2024",
    .bits = 2,
    .block_tokens = GROUP,
    .post_rope = true,
    .prepare = gear_prepare,
    .code = gear_code,
};
