/* Reading a sequence back, with the CPU's bits (client/seq_read.c): decoded vectors of pages, exact ones of sinks and tail. */
#include "gpu/cuda/kernels/coding.h"

/* x[i] += the part of rows @row .. of dec that @codes take, its columns [n_rows, r] at @dec, for this thread's token. */
DEVICE void add_decoded(const struct plan_table *t, const struct plan_codes *codes, const uint8_t *block, bool is_key,
                        const float *dec, size_t ld, uint32_t n_rows, uint32_t token, float x[ROWS])
{
    float *levels = (float *) dynamic_shared, sum[ROWS] = { 0 };

    if (codes->r == 0)
        return;
    load_levels(levels_of(t, is_key), codes, block, is_key, levels);
    if (n_rows > 0)
        multiply(dec, ld, n_rows, levels + token, LEVEL_LD, codes->r, sum);
    __syncthreads(); /* before others come to stand there */
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        x[i] = add_rounded(x[i], sum[i]);
}

/* Dimensions @dim .. of this thread's token of a page: mean + the predictors' part, head by head, + the codec's own. */
DEVICE void decode(const struct plan_read *p, const struct plan_head *head, const uint8_t *payload, uint32_t dim, uint32_t n_dims,
                   uint32_t token, float x[ROWS])
{
    const struct plan_table *t = p->table;
    const struct plan_head *from = t->heads + p->layer * t->n_kv_heads + head->first_predictor;
    bool is_key = p->side == 0;
    size_t ld = is_key ? head->k.r : head->r_in;
    const float *dec = (is_key ? head->decode_k : head->dec_v) + dim * ld;

    for (uint32_t i = 0; !is_key && i < head->n_predictors; i++, from++) {
        add_decoded(t, &from->k, payload + from->block, true, dec, ld, n_dims, token, x);
        dec += from->k.r;
    }
    add_decoded(t, is_key ? &head->k : &head->v, payload + head->block, is_key, dec, ld, n_dims, token, x);
}

/* This thread's token out of binary16 of x - mean. */
DEVICE void read_exact(const uint16_t *row, const float *mean, uint32_t n_dims, float x[ROWS])
{
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        if (i < n_dims)
            x[i] = exact_value(mean[i], row[i]);
}

/*
 * Grid: (chunks of 64 positions that the range touches, KV heads, tiles of 16 dimensions). A thread has one token and eight
 * dimensions.
 */
KERNEL void __launch_bounds__(PLAN_THREADS) kvc_read(PARAMETER struct plan_read p)
{
    const struct plan_table *t = p.table;
    const struct plan_head *head = t->heads + p.layer * t->n_kv_heads + blockIdx.y;
    uint32_t chunk = p.first / TOKENS + blockIdx.x, token = threadIdx.x % TOKENS, at = chunk * TOKENS + token;
    uint32_t dim = ROWS * (HALVES * blockIdx.z + threadIdx.x / TOKENS), left = dim < t->d ? t->d - dim : 0;
    uint32_t n_dims = left < ROWS ? left : (uint32_t) ROWS;
    const float *mean = (p.side == 0 ? head->decode_mean_k : head->mean_v) + dim;
    bool is_asked = at >= p.first && at - p.first < p.n;
    float x[ROWS];

    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        x[i] = i < n_dims ? mean[i] : 0;
    if (chunk < p.seq->n_pages) {
        const uint8_t *payload = p.seq->payloads[chunk];

        decode(&p, head, payload, dim, n_dims, token, x);
        if (chunk == 0 && token < t->n_sink)
            read_exact((const uint16_t *) (payload + (p.side == 0 ? head->sinks_k : head->sinks_v)) + token * t->d + dim, mean,
                       n_dims, x);
    } else if (is_asked) {
        size_t row = (size_t) blockIdx.y * p.seq->exact_ld + p.seq->first_row + (at - TOKENS * p.seq->n_pages);

        read_exact((p.side == 0 ? p.seq->exact_k : p.seq->exact_v) + row * t->d + dim, mean, n_dims, x);
    }
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        if (is_asked && i < n_dims)
            p.out[((size_t) (at - p.first) * t->n_kv_heads + blockIdx.y) * t->d + dim + i] = x[i];
}
