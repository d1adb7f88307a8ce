/*
 * QuaRot's cache: a Hadamard rotation of each head, then codes per token and head between 0.95 of the minimum
 * and 0.95 of the maximum, step and zero point in binary16. After RoPE. Heads longer than 128 are coded in
 * groups of 128.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/half.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/rotate.h"

#define CLIP 0.95f
enum { GROUP_MAX = 128, META_BITS = 32 };

/* step = (max - min) / (2^b - 1), zero = round(-min / step). 0 is always a level, so the range must contain
 * it. */
static void quarot_code_group(float *x, size_t n, unsigned b)
{
    float lo = 0, hi = 0, top = (float) ((1u << b) - 1), step, zero;

    for (size_t i = 0; i < n; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }

    step = f16_to_f32(f32_to_f16(CLIP * (hi - lo) / top));
    zero = step > 0 ? rintf(-CLIP * lo / step) : 0;
    for (size_t i = 0; i < n; i++)
        x[i] = step > 0 ? step * (fminf(fmaxf(rintf(x[i] / step) + zero, 0), top) - zero) : 0;
}

static int quarot_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                          struct errmsg *e)
{
    uint32_t d = s->geometry.d;

    (void) c;
    return rotate_new(d, d, 0, (struct rotate **) ret_state, e);
}

static int quarot_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                       size_t n, float *ret_y, uint64_t *ret_bits)
{
    size_t d = codec->geometry.d, n_vectors = n * codec->geometry.n_kv_heads, n_groups = 0;
    _cleanup_(freep) float *z = malloc((n_vectors * d + 1) * sizeof(*z));

    (void) layer;
    (void) side;
    if (!z)
        return -ENOMEM;

    rotate_forward(codec->state, x, n_vectors, z);
    for (size_t v = 0; v < n_vectors; v++)
        for (size_t i = 0; i < d; i += GROUP_MAX, n_groups++)
            quarot_code_group(z + v * d + i, d - i < GROUP_MAX ? d - i : GROUP_MAX, codec->what->bits);
    rotate_inverse(codec->state, z, n_vectors, ret_y);
    *ret_bits = n_vectors * d * codec->what->bits + n_groups * META_BITS;
    return 0;
}

#define WHAT "Hadamard, then min/max per token and head, clipped to 0.95"
#define CITATION "Ashkboos et al., QuaRot, NeurIPS 2024"

const struct comparator comparator_quarot_3 = {
    .name = "quarot-3",
    .what = WHAT,
    .citation = CITATION,
    .bits = 3,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = quarot_prepare,
    .code = quarot_code,
};
const struct comparator comparator_quarot_4 = {
    .name = "quarot-4",
    .what = WHAT,
    .citation = CITATION,
    .bits = 4,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = quarot_prepare,
    .code = quarot_code,
};
