/*
 * TCQ: the vector's norm in binary16, a random rotation, and trellis-coded levels of N(0, 1/d) along the
 * coordinates of the unit vector, as forks of llama.cpp have it. After RoPE. The trellis is that of
 * alloc/table/trellis.h with 256 states, over circular strings of 64 coordinates, with no bit for the first
 * state.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/quantiser/trellis_fit.h"
#include "alloc/solve/transform.h"
#include "alloc/table/levels.h"
#include "alloc/table/trellis.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "base/splitmix64.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/rotate.h"

enum { NORM_BITS = 16, STATE_BITS = 8, SEED = 1 };

struct tcq_state {
    struct rotate *rotate;
    struct levels levels;
};

static void tcq_release(void *p)
{
    struct tcq_state *s = p;

    if (s)
        free(s->rotate);
    free(s);
}

static int tcq_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                       struct errmsg *e)
{
    uint32_t d = s->geometry.d;
    struct tcq_state *st;
    double mse;
    int r;

    if (d % TRELLIS_TOKENS != 0)
        return fail(e, -EINVAL,
                    "%s codes strings of %d channels, which %u channels per head do not divide into", c->name,
                    TRELLIS_TOKENS, d);
    st = calloc(1, sizeof(*st));
    if (!st)
        return fail(e, -ENOMEM, "out of memory for %s", c->name);

    r = trellis_normal(c->bits, STATE_BITS, &st->levels, &mse);
    if (r < 0)
        r = fail(e, r, "no trellis of %u bits", c->bits);
    else
        r = rotate_new(d, d, splitmix64_seed(SEED, d), &st->rotate, e);
    if (r < 0) {
        tcq_release(st);
        return r;
    }

    *ret_state = st;
    return 0;
}

/* The norm as stored, divided by the root of d: the unit of the coordinates. */
static float tcq_unit(const float *z, size_t d)
{
    double energy = 0;

    for (size_t i = 0; i < d; i++)
        energy += (double) z[i] * (double) z[i];
    return f16_to_f32(f32_to_f16((float) sqrt(energy))) / sqrtf((float) d);
}

static int tcq_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                    size_t n, float *ret_y, uint64_t *ret_bits)
{
    const struct tcq_state *s = codec->state;
    size_t d = codec->geometry.d, n_vectors = n * codec->geometry.n_kv_heads, per = d / TRELLIS_TOKENS;
    size_t n_strings = n_vectors * per,
           stride = (n_strings + TRELLIS_LANES - 1) / TRELLIS_LANES * TRELLIS_LANES;
    _cleanup_(freep) float *z = malloc((n_vectors * d + 1) * sizeof(*z)),
                           *units = malloc((n_vectors + 1) * sizeof(*units));
    _cleanup_(freep) int16_t *steps = calloc(stride * TRELLIS_TOKENS + 1, sizeof(*steps));
    _cleanup_(freep) uint8_t *states = malloc(stride * TRELLIS_TOKENS + 1);
    _cleanup_(freep) void *scratch = aligned_alloc(64, (TRELLIS_SCRATCH + 63) / 64 * 64);

    (void) layer;
    (void) side;
    if (!z || !units || !steps || !states || !scratch)
        return -ENOMEM;

    rotate_forward(s->rotate, x, n_vectors, z);
    for (size_t v = 0; v < n_vectors; v++)
        units[v] = tcq_unit(z + v * d, d);
    for (size_t i = 0; i < n_strings * TRELLIS_TOKENS; i++) {
        size_t string = i / TRELLIS_TOKENS, token = trellis_token(i % TRELLIS_TOKENS);

        if (units[string / per] > 0)
            steps[token * stride + string] = trellis_steps(z[i] / units[string / per], 1 / s->levels.step);
    }

    trellis_encode_best()(&s->levels, codec->what->bits, steps, stride, stride, states, scratch);
    for (size_t i = 0; i < n_strings * TRELLIS_TOKENS; i++) {
        size_t string = i / TRELLIS_TOKENS, token = trellis_token(i % TRELLIS_TOKENS);

        z[i] = units[string / per] * s->levels.step * s->levels.value[states[token * stride + string]];
    }

    rotate_inverse(s->rotate, z, n_vectors, ret_y);
    *ret_bits = n_vectors * (d * codec->what->bits + NORM_BITS);
    return 0;
}

#define WHAT "norm, random rotation, a trellis of 256 states along the channels"
#define CITATION "TurboQuant with trellis-coded levels, in forks of llama.cpp, 2026"

const struct comparator comparator_tcq_2 = {
    .name = "tcq-2",
    .what = WHAT,
    .citation = CITATION,
    .bits = 2,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = tcq_prepare,
    .release = tcq_release,
    .code = tcq_code,
};
const struct comparator comparator_tcq_3 = {
    .name = "tcq-3",
    .what = WHAT,
    .citation = CITATION,
    .bits = 3,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = tcq_prepare,
    .release = tcq_release,
    .code = tcq_code,
};
