/* Reads a sequence back with the same bits as the CPU (client/sequence/seq_host_read.c): vectors of pages are
 * decoded, those of sinks and tail are exact. */
#include "gpu/cuda/kernels/coding.h"

/* x += the columns of dec, [n_rows][r] at @dec, times the levels of @codes. */
DEVICE void add_decoded(const struct device_table *t, const struct device_codes *codes, const uint8_t *block,
                        bool is_key, const float *dec, size_t ld, uint32_t n_rows, uint32_t token,
                        float x[ROWS][MINE])
{
    float *levels = (float *) dynamic_shared, sum[ROWS][MINE] = {{0}};

    if (codes->r == 0)
        return;
    load_levels(levels_of(t, is_key), codes, block, is_key, levels);
    if (n_rows > 0)
        multiply(dec, ld, n_rows, levels + token, LEVEL_LD, codes->r, sum);
    __syncthreads(); /* before others overwrite it */
    add_shares(x, sum, false);
}

/* Decodes a page: mean, plus the part of the predictors, head by head, plus
 * the part of the codec's own codes. */
DEVICE void decode(const struct launch_read *p, const struct device_head *head, const uint8_t *payload,
                   struct share mine, uint32_t n_rows, float x[ROWS][MINE])
{
    const struct device_table *t = p->table;
    const struct device_head *from = t->heads + p->layer * t->n_kv_heads + head->first_predictor;
    bool is_key = p->side == 0;
    size_t ld = is_key ? head->k.r : head->r_in;
    const float *dec = (is_key ? head->decode_k : head->dec_v) + mine.row * ld;

    for (uint32_t i = 0; !is_key && i < head->n_predictors; i++, from++) {
        add_decoded(t, &from->k, payload + from->block, true, dec, ld, n_rows, mine.token, x);
        dec += from->k.r;
    }
    add_decoded(t, is_key ? &head->k : &head->v, payload + head->block, is_key, dec, ld, n_rows, mine.token,
                x);
}

/* Binary16 of x - mean of the token at position @at, from dimension 0; NULL if the token is not exact. */
DEVICE const uint16_t *exact_row(const struct launch_read *p, const struct device_head *head, uint32_t at)
{
    const struct device_table *t = p->table;
    const struct device_seq *seq = p->seq;
    uint32_t packed = TOKENS * seq->n_pages;

    if (at >= packed)
        return (p->side == 0 ? seq->exact_k : seq->exact_v) +
               ((size_t) blockIdx.y * seq->exact_ld + seq->first_row + (at - packed)) * t->d;
    if (at < t->n_sink)
        return (const uint16_t *) (seq->payloads[0] + (p->side == 0 ? head->sinks_k : head->sinks_v)) +
               at * t->d;
    return nullptr;
}

/* Grid: (chunks of 64 positions that the range touches, KV heads, tiles of LAUNCH_TILE_ROWS dimensions). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_read(PARAMETER struct launch_read p)
{
    const struct device_table *t = p.table;
    const struct device_head *head = t->heads + p.layer * t->n_kv_heads + blockIdx.y;
    uint32_t chunk = p.first / TOKENS + blockIdx.x;
    struct share mine = share_of(blockIdx.z);
    uint32_t left = mine.row < t->d ? t->d - mine.row : 0, n_rows = left < ROWS ? left : (uint32_t) ROWS;
    const float *mean = (p.side == 0 ? head->decode_mean_k : head->mean_v) + mine.row;
    float x[ROWS][MINE];

    UNROLL
    for (uint32_t i = 0; i < ROWS; i++) {
        UNROLL
        for (uint32_t j = 0; j < MINE; j++)
            x[i][j] = i < n_rows ? mean[i] : 0;
    }
    if (chunk < p.seq->n_pages)
        decode(&p, head, p.seq->payloads[chunk], mine, n_rows, x);
    UNROLL
    for (uint32_t j = 0; j < MINE; j++) {
        uint32_t at = TOKENS * chunk + mine.token + LANE_TOKENS * j, i = at - p.first;
        const uint16_t *exact = at >= p.first && i < p.n ? exact_row(&p, head, at) : nullptr;
        float *out = p.out + ((size_t) i * t->n_kv_heads + blockIdx.y) * t->d + mine.row;

        UNROLL
        for (uint32_t row = 0; row < ROWS; row++)
            if (at >= p.first && i < p.n && row < n_rows)
                out[row] = exact ? exact_value(mean[row], exact[mine.row + row]) : x[row][j];
    }
}
