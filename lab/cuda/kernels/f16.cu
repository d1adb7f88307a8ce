/*
 * Attention of one new token per sequence on a binary16 cache: the baseline that benches compare packed
 * attention with. Plain, and bound by the bandwidth of the memory: every key and value is read once, by loads
 * of 16 bytes, for all query heads of its KV head together.
 *
 * Every warp takes its own share of the keys, with its own softmax: no barriers, no shared memory. It takes
 * 16 keys at a time:
 *
 *     scores     [16 query heads, 8 keys] x 2, over dimensions in the order in which a load of 16 bytes
 *                brings them; the order is the same for queries and keys, so it changes nothing in a sum
 *     weights    the fragments of the scores, rounded to binary16: already the left operand of the next
 *                product
 *     values     [16 query heads, 8 dimensions], columns g = dimensions 8 g + i of 64
 *
 * A second kernel merges the shares.
 */
#include "gpu/cuda/kernels/device.h"
#include "lab/cuda/kernels/f16.h"

#define LOG2_E 1.4426950408889634f
#define LEAST (-1e30f) /* below every score; finite, so that differences are finite */

/* 16 bytes of each row of a tile that this lane multiplies. */
template <int D> struct tile {
    struct words4 k[2][D / 32]; /* key 8 i + g, dimensions 32 j + 8 t .. */
    struct words4 v[4][D / 64]; /* keys 2t, 2t + 1, 2t + 8, 2t + 9, dimensions 64 j + 8 g .. */
};

/* Softmax and output so far; the two halves are rows g and g + 8 of the fragments. */
template <int D> struct state {
    float max[2], sum[2];
    float out[D / 8][4];
};

/* Loads query heads as left operands in the order in which keys are loaded, times scale and log2 e. Rows
 * without a head are zero. */
template <int D>
DEVICE void load_queries(const struct f16_attend *a, const float *q, unsigned lane, uint32_t ret[D / 16][4])
{
    float scale = a->scale * LOG2_E;

    for (unsigned step = 0; step < D / 16; step++)
        for (unsigned i = 0; i < 4; i++) {
            unsigned row = (lane >> 2) + (i & 1) * 8,
                     dim = 32 * (step / 2) + 8 * (lane & 3) + 4 * (step % 2) + 2 * (i >> 1);
            const float *x = q + row * D + dim;

            ret[step][i] = row < a->group ? pack_halves(x[0] * scale, x[1] * scale) : 0;
        }
}

/* Rows beyond the last read the last row again; their weights are zero. */
template <int D>
DEVICE void load_tile(const uint16_t *k, const uint16_t *v, uint32_t first, uint32_t last, unsigned lane,
                      struct tile<D> *ret)
{
    UNROLL
    for (unsigned i = 0; i < 2; i++) {
        uint32_t key = first + 8 * i + (lane >> 2);
        const uint16_t *row = k + (size_t) (key < last ? key : last) * D + 8 * (lane & 3);

        UNROLL
        for (unsigned j = 0; j < D / 32; j++)
            ret->k[i][j] = load_16_bytes(row + 32 * j);
    }
    UNROLL
    for (unsigned i = 0; i < 4; i++) {
        uint32_t key = first + 2 * (lane & 3) + (i & 1) + (i >> 1) * 8;
        const uint16_t *row = v + (size_t) (key < last ? key : last) * D + 8 * (lane >> 2);

        UNROLL
        for (unsigned j = 0; j < D / 64; j++)
            ret->v[i][j] = load_16_bytes(row + 64 * j);
    }
}

/* Scores of two times 8 keys in base 2, then their weights against the new maxima; earlier sums are scaled
 * to those maxima. */
template <int D> DEVICE void softmax(float c[2][4], struct state<D> *s)
{
    for (unsigned half = 0; half < 2; half++) {
        float *x = &c[0][2 * half], *y = &c[1][2 * half];
        float largest = max_of(fmaxf(fmaxf(x[0], x[1]), fmaxf(y[0], y[1])), 4), factor;

        largest = fmaxf(largest, s->max[half]);
        factor = exp2_fast(s->max[half] - largest);
        s->max[half] = largest;
        for (unsigned i = 0; i < 2; i++) {
            x[i] = exp2_fast(x[i] - largest);
            y[i] = exp2_fast(y[i] - largest);
        }
        s->sum[half] = s->sum[half] * factor + (x[0] + x[1]) + (y[0] + y[1]);
        UNROLL
        for (unsigned n = 0; n < D / 8; n++) {
            s->out[n][2 * half] *= factor;
            s->out[n][2 * half + 1] *= factor;
        }
    }
}

template <int D>
DEVICE void attend_tile(const struct tile<D> *t, const uint32_t q[D / 16][4], uint32_t n_left, unsigned lane,
                        struct state<D> *s)
{
    float c[2][4] = {{0}};
    uint32_t weights[4];

    UNROLL
    for (unsigned i = 0; i < 2; i++) {
        UNROLL
        for (unsigned step = 0; step < D / 16; step++)
            mma_16x8x16(c[i], q[step], t->k[i][step / 2].word[step % 2 * 2],
                        t->k[i][step / 2].word[step % 2 * 2 + 1]);
        for (unsigned x = 0; x < 4; x++)
            if (8 * i + 2 * (lane & 3) + (x & 1) >= n_left)
                c[i][x] = LEAST;
    }
    softmax<D>(c, s);
    for (unsigned i = 0; i < 4; i++)
        weights[i] = pack_halves(c[i >> 1][2 * (i & 1)], c[i >> 1][2 * (i & 1) + 1]);
    UNROLL
    for (unsigned n = 0; n < D / 8; n++) { /* columns are dimensions 64 (n / 8) + 8 g + n % 8 */
        unsigned j = n / 8, word = n % 8 / 2, shift = n % 2 * 16;
        uint32_t b[2];

        for (unsigned i = 0; i < 2; i++)
            b[i] = (t->v[2 * i][j].word[word] >> shift & 0xffff) |
                   (t->v[2 * i + 1][j].word[word] >> shift & 0xffff) << 16;
        mma_16x8x16(s->out[n], weights, b[0], b[1]);
    }
}

template <int D>
DEVICE void store(const struct f16_attend *a, const struct state<D> *s, unsigned lane, float *ret)
{
    for (unsigned half = 0; half < 2; half++) {
        unsigned row = (lane >> 2) + 8 * half;
        float sum = sum_of(s->sum[half], 4);

        if (row >= a->group)
            continue;
        if ((lane & 3) == 0) {
            ret[row] = s->max[half];
            ret[F16_GROUP_MAX + row] = sum;
        }
        UNROLL
        for (unsigned n = 0; n < D / 8; n++)
            for (unsigned i = 0; i < 2; i++)
                ret[2 * F16_GROUP_MAX + row * D + 64 * (n / 8) + 8 * (2 * (lane & 3) + i) + n % 8] =
                    s->out[n][2 * half + i];
    }
}

template <int D> DEVICE void attend(const struct f16_attend a)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_shares = a.n_splits * F16_WARPS;
    unsigned part = blockIdx.y * F16_WARPS + warp;
    size_t kv = (size_t) blockIdx.z * a.n_kv_heads + blockIdx.x;
    const uint16_t *k = a.k + kv * a.ld * D, *v = a.v + kv * a.ld * D;
    uint32_t n_tiles = (a.n_keys + 15) / 16, share = (n_tiles + n_shares - 1) / n_shares, at = part * share,
             q[D / 16][4];
    struct state<D> s = {
        {LEAST, LEAST}, {0, 0},
        {
            {
                0
            }
        }
    };

    load_queries<D>(&a, a.q + kv * a.group * D, lane, q);
    for (uint32_t end = at + share; at < end && at < n_tiles; at++) {
        struct tile<D> t;

        load_tile<D>(k, v, 16 * at, a.n_keys - 1, lane, &t);
        attend_tile<D>(&t, q, a.n_keys - 16 * at, lane, &s);
    }
    store<D>(&a, &s, lane, a.partials + (kv * n_shares + part) * F16_PARTIAL_FLOATS(D));
}

/* Grid: (KV heads, splits, sequences). */
KERNEL void __launch_bounds__(F16_THREADS) kvc_f16_64(PARAMETER struct f16_attend a)
{
    attend<64>(a);
}

KERNEL void __launch_bounds__(F16_THREADS) kvc_f16_128(PARAMETER struct f16_attend a)
{
    attend<128>(a);
}

KERNEL void __launch_bounds__(F16_THREADS) kvc_f16_256(PARAMETER struct f16_attend a)
{
    attend<256>(a);
}

/* Grid: (query heads of a KV head, KV heads, sequences). One output row. Shares without keys have maximum
 * LEAST and sum 0. */
KERNEL void __launch_bounds__(F16_THREADS) kvc_f16_merge(PARAMETER struct f16_attend a)
{
    size_t kv = (size_t) blockIdx.z * a.n_kv_heads + blockIdx.y, ld = F16_PARTIAL_FLOATS(a.d);
    uint32_t row = blockIdx.x, n = a.n_splits * F16_WARPS;
    const float *partials = a.partials + kv * n * ld;
    float largest = LEAST, total = 0;

    for (uint32_t i = 0; i < n; i++)
        largest = fmaxf(largest, partials[i * ld + row]);
    for (uint32_t i = 0; i < n; i++)
        total += partials[i * ld + F16_GROUP_MAX + row] * exp2_fast(partials[i * ld + row] - largest);
    for (uint32_t dim = threadIdx.x; dim < a.d; dim += F16_THREADS) {
        float sum = 0;

        for (uint32_t i = 0; i < n; i++)
            sum += partials[i * ld + 2 * F16_GROUP_MAX + row * a.d + dim] *
                   exp2_fast(partials[i * ld + row] - largest);
        a.out[(kv * a.group + row) * a.d + dim] = sum / total;
    }
}
