/*
 * Vectors to codes and back on the GPU, with the CPU's bits: every element is the sum over 0, 1, 2 ... of products and sums
 * rounded to binary32, as gpu/codec.c and its matmul_ordered have it. A chunk is encoded in two launches, keys first: values
 * are residuals of what the stored keys' codes predict.
 *
 * One block per (KV head, chunk), one token per thread and half of a half-tile's coordinates.
 */
#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/device.h"
#include "gpu/cuda/kernels/plan.h"

enum { TOKENS = 64, HALVES = PLAN_THREADS / TOKENS, COORDS = 8 / HALVES, WIDTHS = 9, LEVELS = 256 };

/* Element @i of an array of @dtype. */
DEVICE float element(const void *x, enum plan_dtype dtype, size_t i)
{
    if (dtype == PLAN_F32)
        return ((const float *) x)[i];
    if (dtype == PLAN_F16)
        return half_to_float(((const uint16_t *) x)[i]);
    return bfloat_to_float(((const uint16_t *) x)[i]);
}

/* x - mean of all tokens to shared [d][TOKENS]; sinks are put at the mean. */
DEVICE void load_centred(const struct plan_encode *e, const struct plan_chunk *chunk, const void *x, const float *mean,
                         float *ret)
{
    const struct plan_table *t = e->table;
    bool finite = true;

    for (uint32_t i = threadIdx.x; i < TOKENS * t->d; i += PLAN_THREADS) {
        uint32_t token = i / t->d, col = i % t->d;
        float value = element(x, e->dtype, ((size_t) token * t->n_kv_heads + blockIdx.x) * t->d + col) - mean[col];

        finite &= value - value == 0; /* false for NaN and infinities */
        ret[col * TOKENS + token] = token < chunk->n_exact ? 0 : value;
    }
    if (!finite)
        *e->not_finite = 1;
    __syncthreads();
}

/* The number of thresholds that are not above z, by bits. */
DEVICE unsigned quantise(const float *thresholds, unsigned b, float z)
{
    unsigned code = 0;

    for (unsigned bit = 1u << (b - 1); bit > 0; bit >>= 1)
        code = z >= thresholds[(code | bit) - 1] ? code | bit : code;
    return code;
}

/* What the predictors' stored codes contribute to coordinate row @enc_k of one token. */
DEVICE float predicted(const struct plan_encode *e, const struct plan_head *head, const uint8_t *payload, const float *enc_k,
                       uint32_t token)
{
    const struct plan_table *t = e->table;
    const struct plan_head *layer = t->heads + e->layer * t->n_kv_heads;
    float all = 0;

    for (uint32_t i = 0; i < head->n_predictors; i++) {
        const struct plan_head *from = layer + head->first_predictor + i;
        float sum = 0;

        if (from->k.r == 0)
            continue;
        for (uint32_t c = 0; c < from->k.r; c++) {
            float level = half_to_float((uint16_t) key_level(t->levels, &from->k, payload + from->block, token, c));

            sum = add_rounded(sum, mul_rounded(enc_k[c], level));
        }
        all = add_rounded(all, sum);
        enc_k += from->k.r;
    }
    return all;
}

/* Word @i of a half-tile of @b bits out of codes [8][TOKENS]: the inverse of code_pair(). */
DEVICE uint32_t pack_word(const uint8_t *codes, unsigned b, bool is_key, unsigned i)
{
    unsigned plane = b & 8 ? 8 : b & 4 && i < 64 ? 4 : 0, below = b & 7, lane, word = 0;

    if (plane == 4) {
        below = b & 3;
    } else if (plane == 0) { /* planes of 4 have 64 words, of 2 have 32, of 1 have 16 of two lanes each */
        i -= b & 4 ? 64 : 0;
        plane = b & 2 && i < 32 ? 2 : 1;
        i -= plane == 1 && b & 2 ? 32 : 0;
        below = plane == 2 ? b & 1 : 0;
    } else {
        below = 0;
    }
    for (unsigned field = 0; field < 32 / plane; field++) {
        unsigned h, j;
        unsigned n, c;

        if (plane == 1) { /* 16-bit words: lane 2i below, 2i + 1 above; bit j + 8 h */
            lane = 2 * i + field / 16;
            j = field % 8;
            h = field / 8 % 2;
        } else {
            lane = i % 32;
            h = field / (16 / plane);
            j = field % (16 / plane) + i / 32 * (16 / plane);
        }
        n = 8 * j + (is_key ? lane >> 2 : 2 * (lane & 3) + h);
        c = is_key ? 2 * (lane & 3) + h : lane >> 2;
        word |= (codes[c * TOKENS + n] >> below & ((1u << plane) - 1)) << field * plane;
    }
    return word;
}

/* One side of one head: vectors @x to the half-tiles of @codes in the block at @to. */
DEVICE void encode(const struct plan_encode *e, const struct plan_chunk *chunk, const struct plan_head *head, bool is_key)
{
    const struct plan_table *t = e->table;
    const struct plan_codes *codes = is_key ? &head->k : &head->v;
    const struct plan_encoder *with = is_key ? &head->encode_k : &head->encode_v;
    float *x = (float *) dynamic_shared;              /* [d][TOKENS] */
    uint8_t *half = (uint8_t *) (x + t->d * TOKENS);  /* [8][TOKENS] */
    uint32_t token = threadIdx.x % TOKENS, first = threadIdx.x / TOKENS * COORDS;
    unsigned saturated = 0;

    load_centred(e, chunk, is_key ? chunk->k : chunk->v, with->mean, x);
    for (uint32_t i = 0; i < codes->n_half && codes->bits[i] > 0; i++) {
        unsigned b = codes->bits[i], at = (is_key ? 0 : WIDTHS) + b;
        uint32_t *words = (uint32_t *) (chunk->payload + head->block + codes->offset[i]);

        for (uint32_t c = first; c < first + COORDS; c++) {
            const float *enc = with->enc + (size_t) (8 * i + c) * t->d;
            float z = 0;

            for (uint32_t k = 0; k < t->d; k++)
                z = add_rounded(z, mul_rounded(enc[k], x[k * TOKENS + token]));
            if (with->enc_k)
                z = add_rounded(z, -predicted(e, head, chunk->payload, with->enc_k + (size_t) (8 * i + c) * with->n_pred, token));
            half[c * TOKENS + token] = (uint8_t) quantise(t->thresholds + at * LEVELS, b, z);
            saturated += z < t->limits[2 * at] || z > t->limits[2 * at + 1];
        }
        __syncthreads();
        for (uint32_t w = threadIdx.x; w < 16 * b; w += PLAN_THREADS)
            words[w] = pack_word(half, b, is_key, w);
        __syncthreads();
    }
    if (e->saturated && saturated > 0)
        count(e->saturated + !is_key, saturated);
}

/* Grid of all three: (KV heads, chunks). */
KERNEL void __launch_bounds__(PLAN_THREADS) kvc_encode_keys(PARAMETER struct plan_encode plan)
{
    encode(&plan, plan.chunks + blockIdx.y, plan.table->heads + plan.layer * plan.table->n_kv_heads + blockIdx.x, true);
}

KERNEL void __launch_bounds__(PLAN_THREADS) kvc_encode_values(PARAMETER struct plan_encode plan)
{
    encode(&plan, plan.chunks + blockIdx.y, plan.table->heads + plan.layer * plan.table->n_kv_heads + blockIdx.x, false);
}

/* Level of V's (token, coordinate), coordinates as rows. */
DEVICE float value_level(const struct plan_table *t, const struct plan_codes *v, const uint8_t *block, uint32_t token,
                         uint32_t coord)
{
    uint32_t pair = levels_at(t->levels + WIDTHS * LEVELS, v, block, coord / 8, 4 * (coord % 8) + token % 8 / 2, token / 8);

    return half_to_float((uint16_t) (token & 1 ? pair >> 16 : pair));
}

/* mean + the predictors' part, head by head, + the codec's own: gpu/codec.c's order. */
DEVICE float decoded(const struct plan_decode *p, const struct plan_head *head, const uint8_t *payload, uint32_t token,
                     uint32_t dim)
{
    const struct plan_table *t = p->table;
    const struct plan_head *layer = t->heads + p->layer * t->n_kv_heads;
    bool is_key = p->side == 0;
    const struct plan_codes *codes = is_key ? &head->k : &head->v;
    const float *dec = is_key ? head->decode_k + (size_t) dim * head->k.r : head->dec_v + (size_t) dim * head->r_in;
    float x = is_key ? head->decode_mean_k[dim] : head->mean_v[dim], sum;

    for (uint32_t i = 0; !is_key && i < head->n_predictors; i++) {
        const struct plan_head *from = layer + head->first_predictor + i;

        sum = 0;
        for (uint32_t c = 0; c < from->k.r; c++)
            sum = add_rounded(sum, mul_rounded(dec[c], half_to_float((uint16_t) key_level(t->levels, &from->k,
                                                                                          payload + from->block, token, c))));
        if (from->k.r > 0)
            x = add_rounded(x, sum);
        dec += from->k.r;
    }
    sum = 0;
    for (uint32_t c = 0; c < codes->r; c++) {
        float level = is_key ? half_to_float((uint16_t) key_level(t->levels, codes, payload + head->block, token, c))
                             : value_level(t, codes, payload + head->block, token, c);

        sum = add_rounded(sum, mul_rounded(dec[c], level));
    }
    return codes->r > 0 ? add_rounded(x, sum) : x;
}

KERNEL void __launch_bounds__(PLAN_THREADS) kvc_decode(PARAMETER struct plan_decode plan)
{
    const struct plan_table *t = plan.table;
    const struct plan_head *head = t->heads + plan.layer * t->n_kv_heads + blockIdx.x;

    for (uint32_t i = threadIdx.x; i < TOKENS * t->d; i += PLAN_THREADS) {
        uint32_t token = i / t->d, dim = i % t->d;
        size_t row = ((size_t) blockIdx.y * TOKENS + token) * t->n_kv_heads + blockIdx.x;

        plan.out[row * t->d + dim] = decoded(&plan, head, plan.payloads[blockIdx.y], token, dim);
    }
}
