/*
 * TurboQuant-mse: the vector's norm in binary16, a random rotation, and the Lloyd-Max levels of N(0, 1/d) for
 * every coordinate of the unit vector. After RoPE. The rotation is a Hadamard matrix with random signs, as in
 * implementations; the paper draws it from all rotations.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/solve/transform.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "base/splitmix64.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/rotate.h"

enum { NORM_BITS = 16, SEED = 1 };

struct turboquant_state {
    struct rotate *rotate;
    struct levels levels;
};

static void turboquant_release(void *p)
{
    struct turboquant_state *s = p;

    if (s)
        free(s->rotate);
    free(s);
}

static int turboquant_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                              struct errmsg *e)
{
    uint32_t d = s->geometry.d;
    struct turboquant_state *st = calloc(1, sizeof(*st));
    int r;

    if (!st)
        return fail(e, -ENOMEM, "out of memory for %s", c->name);

    r = levels_normal(QUANT_LLOYD_MAX, c->bits, &st->levels);
    if (r < 0)
        r = fail(e, r, "no levels of %u bits", c->bits);
    else
        r = rotate_new(d, d, splitmix64_seed(SEED, d), &st->rotate, e);
    if (r < 0) {
        turboquant_release(st);
        return r;
    }

    *ret_state = st;
    return 0;
}

static int turboquant_code(const struct comparator_codec *codec, uint32_t layer, enum side side,
                           const float *x, size_t n, float *ret_y, uint64_t *ret_bits)
{
    const struct turboquant_state *s = codec->state;
    unsigned b = codec->what->bits;
    size_t d = codec->geometry.d, n_vectors = n * codec->geometry.n_kv_heads;
    _cleanup_(freep) float *z = malloc((n_vectors * d + 1) * sizeof(*z));

    (void) layer;
    (void) side;
    if (!z)
        return -ENOMEM;

    rotate_forward(s->rotate, x, n_vectors, z);
    for (size_t v = 0; v < n_vectors; v++) {
        double energy = 0;
        float norm, unit;

        for (size_t i = 0; i < d; i++)
            energy += (double) z[v * d + i] * z[v * d + i];
        norm = f16_to_f32(f32_to_f16((float) sqrt(energy)));
        unit = norm / sqrtf((float) d);
        for (size_t i = 0; i < d; i++)
            z[v * d + i] =
                unit > 0
                    ? unit * (float) level_z(&s->levels, levels_quantise(&s->levels, b, z[v * d + i] / unit))
                    : 0;
    }

    rotate_inverse(s->rotate, z, n_vectors, ret_y);
    *ret_bits = n_vectors * (d * b + NORM_BITS);
    return 0;
}

#define WHAT "norm, random rotation, Lloyd-Max levels; no residual sketch"
#define CITATION "Zandieh et al., TurboQuant, 2025"

const struct comparator comparator_turboquant_2 = {
    .name = "turboquant-2",
    .what = WHAT,
    .citation = CITATION,
    .bits = 2,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = turboquant_prepare,
    .release = turboquant_release,
    .code = turboquant_code,
};
const struct comparator comparator_turboquant_3 = {
    .name = "turboquant-3",
    .what = WHAT,
    .citation = CITATION,
    .bits = 3,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = turboquant_prepare,
    .release = turboquant_release,
    .code = turboquant_code,
};
const struct comparator comparator_turboquant_4 = {
    .name = "turboquant-4",
    .what = WHAT,
    .citation = CITATION,
    .bits = 4,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = turboquant_prepare,
    .release = turboquant_release,
    .code = turboquant_code,
};
