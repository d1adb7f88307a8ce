/*
 * KVarN: a Hadamard rotation of each head, then tiles of 128 tokens whose rows (tokens) and columns
 * (channels) are divided by their standard deviations in turn, 16 times, and codes between minimum and
 * maximum: keys per channel, values per token. After RoPE. Of all rounds the one is kept whose deviations
 * differ least.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/half.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/rotate.h"

enum { TILE = 128, ROUNDS = 16, SCALE_BITS = 16, RANGE_BITS = 2 * SCALE_BITS };

/* Of the logarithm of a scale. */
#define LOG_LEAST -0.3
#define LOG_MOST 10

_Static_assert((int) TILE <= (int) GEOMETRY_DIM_MAX, "scales of tokens have room");

/* One tile of one head: rotated vectors [n, d]; axis 0: scales of tokens [n], axis 1: of channels [d]. */
struct kvarn_tile {
    size_t n, d;
    const float *x;
    size_t stride;                         /* between tokens of @x */
    double log_scale[2][GEOMETRY_DIM_MAX]; /* by axis, in logarithms */
    double divided[2][GEOMETRY_DIM_MAX];   /* 1 / scale */
    double best[2][GEOMETRY_DIM_MAX];      /* logarithms of the round that is kept */
    double imbalance;                      /* of that round */
};

static void kvarn_set_scale(struct kvarn_tile *t, unsigned axis, size_t i, double log_scale)
{
    t->log_scale[axis][i] = log_scale;
    t->divided[axis][i] = exp(-log_scale);
}

static double kvarn_balanced(const struct kvarn_tile *t, size_t token, size_t channel)
{
    return (double) t->x[token * t->stride + channel] * t->divided[0][token] * t->divided[1][channel];
}

/* The standard deviation of a token (@axis 0) over channels, or of a channel over tokens. */
static double kvarn_deviation(const struct kvarn_tile *t, unsigned axis, size_t i)
{
    size_t n = axis == 0 ? t->d : t->n;
    double sum = 0, squares = 0;

    for (size_t j = 0; j < n; j++) {
        double x = axis == 0 ? kvarn_balanced(t, i, j) : kvarn_balanced(t, j, i);

        sum += x;
        squares += x * x;
    }
    return n > 1 ? sqrt(fmax(squares - sum * sum / (double) n, 0) / (double) (n - 1)) : 0;
}

/* Largest over smallest deviation, of tokens and of channels. Keeps the scales if none before was
 * smaller. */
static void kvarn_keep_best(struct kvarn_tile *t)
{
    double imbalance = 0;

    for (unsigned axis = 0; axis < 2; axis++) {
        double low = INFINITY, high = 0;

        for (size_t i = 0; i < (axis == 0 ? t->n : t->d); i++) {
            double deviation = kvarn_deviation(t, axis, i);

            low = fmin(low, deviation);
            high = fmax(high, deviation);
        }
        imbalance += high / fmax(low, 1e-8);
    }
    if (imbalance <= t->imbalance) {
        t->imbalance = imbalance;
        memcpy(t->best, t->log_scale, sizeof(t->best));
    }
}

static void kvarn_balance(struct kvarn_tile *t)
{
    for (unsigned i = 0; i < 2 * GEOMETRY_DIM_MAX; i++)
        kvarn_set_scale(t, i % 2, i / 2, 0);
    t->imbalance = INFINITY;
    kvarn_keep_best(t);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned axis = 0; axis < 2; axis++)
            for (size_t i = 0; i < (axis == 0 ? t->n : t->d); i++) {
                double deviation = fmin(fmax(kvarn_deviation(t, axis, i), 1e-3), 1e3);

                kvarn_set_scale(t, axis, i,
                                fmin(fmax(t->log_scale[axis][i] + log(deviation), LOG_LEAST), LOG_MOST));
            }
        kvarn_keep_best(t);
    }
    for (unsigned i = 0; i < 2 * GEOMETRY_DIM_MAX; i++)
        kvarn_set_scale(t, i % 2, i / 2, t->best[i % 2][i / 2]);
}

static double kvarn_half(double x)
{
    return (double) f16_to_f32(f32_to_f16((float) x));
}

/*
 * Codes of the tile along @axis: 1: a range per channel (keys), 0: per token (values). Step and minimum are
 * stored times the scale of that axis, the scale of the other axis alone.
 */
static void kvarn_code_tile(const struct kvarn_tile *t, unsigned axis, unsigned bits, float *y)
{
    size_t n_groups = axis == 0 ? t->n : t->d, n = axis == 0 ? t->d : t->n;
    double top = (double) ((1u << bits) - 1);

    for (size_t g = 0; g < n_groups; g++) {
        double low = INFINITY, high = -INFINITY, own = exp(t->log_scale[axis][g]), step, stored_step,
               stored_low;

        for (size_t i = 0; i < n; i++) {
            double x = axis == 0 ? kvarn_balanced(t, g, i) : kvarn_balanced(t, i, g);

            low = fmin(low, x);
            high = fmax(high, x);
        }
        step = fmax((high - low) / top, 1e-10);
        stored_step = kvarn_half(own * step);
        stored_low = kvarn_half(own * low);
        for (size_t i = 0; i < n; i++) {
            size_t token = axis == 0 ? g : i, channel = axis == 0 ? i : g;
            double code = fmin(fmax(rint((kvarn_balanced(t, token, channel) - low) / step), 0), top);

            y[token * t->stride + channel] =
                (float) ((code * stored_step + stored_low) * kvarn_half(exp(t->log_scale[1 - axis][i])));
        }
    }
}

/* "kvarn-3": four bits for keys and two for values, as its authors recommend. */
static unsigned kvarn_bits(const struct comparator *c, enum side side)
{
    if (c->bits == 3)
        return side == SIDE_K ? 4 : 2;
    return c->bits;
}

static int kvarn_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                         struct errmsg *e)
{
    (void) c;
    return rotate_new(s->geometry.d, s->geometry.d, 0, (struct rotate **) ret_state, e);
}

static int kvarn_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                      size_t n, float *ret_y, uint64_t *ret_bits)
{
    size_t d = codec->geometry.d, heads = codec->geometry.n_kv_heads, row = heads * d;
    _cleanup_(freep) float *z = malloc((2 * n * row + 1) * sizeof(*z));
    _cleanup_(freep) struct kvarn_tile *t = malloc(sizeof(*t));
    unsigned bits = kvarn_bits(codec->what, side), axis = side == SIDE_K ? 1 : 0;
    uint64_t sum = 0;

    (void) layer;
    if (!z || !t)
        return -ENOMEM;

    rotate_forward(codec->state, x, n * heads, z);
    for (size_t first = 0; first < n; first += TILE)
        for (size_t head = 0; head < heads; head++) {
            size_t at = first * row + head * d;

            t->n = n - first < TILE ? n - first : TILE;
            t->d = d;
            t->x = z + at;
            t->stride = row;
            kvarn_balance(t);
            kvarn_code_tile(t, axis, bits, z + n * row + at);
            sum +=
                t->n * d * bits + (axis == 1 ? d : t->n) * RANGE_BITS + (axis == 1 ? t->n : d) * SCALE_BITS;
        }
    rotate_inverse(codec->state, z + n * row, n * heads, ret_y);
    *ret_bits = sum;
    return 0;
}

#define WHAT "Hadamard, deviations of tokens and channels made 1 over 128 tokens, min/max"
#define CITATION "Muller et al., KVarN, 2026"

const struct comparator comparator_kvarn_2 = {
    .name = "kvarn-2",
    .what = WHAT,
    .citation = CITATION,
    .bits = 2,
    .block_tokens = TILE,
    .post_rope = true,
    .prepare = kvarn_prepare,
    .code = kvarn_code,
};
const struct comparator comparator_kvarn_3 = {
    .name = "kvarn-3",
    .what = WHAT "; keys 4 bits, values 2",
    .citation = CITATION,
    .bits = 3,
    .block_tokens = TILE,
    .post_rope = true,
    .prepare = kvarn_prepare,
    .code = kvarn_code,
};
const struct comparator comparator_kvarn_4 = {
    .name = "kvarn-4",
    .what = WHAT,
    .citation = CITATION,
    .bits = 4,
    .block_tokens = TILE,
    .post_rope = true,
    .prepare = kvarn_prepare,
    .code = kvarn_code,
};
