/*
 * Packs the rows of one chunk, head and side into their block of a page, with the codes of the CPU. For the
 * kernels that append to sequences on the GPU and for those that pack pages for host memory.
 *
 * A block of threads takes one tile of 32 coordinates (coding.h). Keys of all heads are packed by an earlier
 * launch than values, because values are residuals of a prediction from the stored codes of keys.
 */
#pragma once

#include "gpu/cuda/kernels/coding.h"

/* One chunk of one head and side, and the page that it is packed into. */
struct chunk {
    const struct device_table *table;
    unsigned long long *saturated; /* [2] coordinates by side, added to; NULL: not counted */
    uint32_t layer;
    const struct device_head *head;
    const struct device_codes *codes;
    const struct device_encoder *encoder;
    const uint16_t *rows; /* [TOKENS][d] */
    const float *mean;    /* the mean that was subtracted from the rows */
    uint8_t *payload;
    uint32_t n_sink; /* how many of the rows are sinks; they stay exact */
    bool is_key;
};

/* The chunk of head @kv_head of @layer, without its rows and its page. */
DEVICE struct chunk chunk_of_head(const struct device_table *t, uint32_t layer, uint32_t kv_head, bool is_key)
{
    const struct device_head *head = t->heads + layer * t->n_kv_heads + kv_head;
    struct chunk c;

    c.table = t;
    c.saturated = nullptr;
    c.layer = layer;
    c.head = head;
    c.codes = is_key ? &head->k : &head->v;
    c.encoder = is_key ? &head->encode_k : &head->encode_v;
    c.mean = is_key ? head->decode_mean_k : head->mean_v;
    c.rows = nullptr;
    c.payload = nullptr;
    c.n_sink = 0;
    c.is_key = is_key;
    return c;
}

DEVICE void store_sinks(const struct chunk *c)
{
    const struct device_table *t = c->table;
    uint16_t *to = (uint16_t *) (c->payload + (c->is_key ? c->head->sinks_k : c->head->sinks_v));

    for (uint32_t i = threadIdx.x; i < c->n_sink * t->d; i += LAUNCH_THREADS)
        to[i] = c->rows[i];
}

/* Loads the input of the encoder to shared [d][COLUMN_LD]: rows plus their mean minus the mean of the
 * encoder; sinks are set to zero, the encoder's mean. */
DEVICE void load_centred(const struct chunk *c, float *ret)
{
    const struct device_table *t = c->table;
    const uint32_t *pairs = (const uint32_t *) c->rows;
    /* which of two goes first, so that the lanes of a warp write to all banks */
    uint32_t first = threadIdx.x / 16;

    for (uint32_t i = threadIdx.x; i < TOKENS * t->d / 2; i += LAUNCH_THREADS) {
        uint32_t token = 2 * i / t->d, col = 2 * i % t->d, pair = pairs[i];

        for (uint32_t x = 0; x < 2; x++) {
            uint32_t hi = (first + x) % 2;
            float value = exact_value(c->mean[col + hi], (uint16_t) (pair >> 16 * hi));

            ret[(col + hi) * COLUMN_LD + token] =
                token < c->n_sink ? 0 : add_rounded(value, -c->encoder->mean[col + hi]);
        }
    }
    __syncthreads();
}

/* Subtracts the prediction from the stored codes of the predictors. @space:
 * shared memory for the levels of a chunk. */
DEVICE void subtract_predicted(const struct chunk *c, struct share mine, float *space, float z[ROWS][MINE])
{
    const struct device_table *t = c->table;
    const struct device_head *from = t->heads + c->layer * t->n_kv_heads + c->head->first_predictor;
    const float *enc = c->encoder->enc_k + (size_t) mine.row * c->encoder->n_pred;
    float all[ROWS][MINE] = {{0}};

    for (uint32_t i = 0; i < c->head->n_predictors; i++, from++) {
        float sum[ROWS][MINE] = {{0}};

        if (from->k.r == 0)
            continue;
        __syncthreads(); /* all threads have read the old contents */
        load_levels(levels_of(t, true), &from->k, c->payload + from->block, true, space);
        if (mine.row < c->codes->r)
            multiply(enc, c->encoder->n_pred, ROWS, space + mine.token, LEVEL_LD, from->k.r, sum);
        add_shares(all, sum, false);
        enc += from->k.r;
    }
    add_shares(z, all, true);
}

/* The number of thresholds that are not above z, found bit by bit. */
DEVICE unsigned quantise(const float *thresholds, unsigned b, float z)
{
    unsigned code = 0;

    for (unsigned bit = 1u << (b - 1); bit > 0; bit >>= 1)
        code = z >= thresholds[(code | bit) - 1] ? code | bit : code;
    return code;
}

/* Word @i of a half-tile of @b bits, from codes [8][TOKENS]: the inverse of code_pair(). */
DEVICE uint32_t pack_word(const uint8_t *codes, unsigned b, bool is_key, unsigned i)
{
    /* below: bits of the code below those of the plane */
    unsigned plane = 0, below = 0, word = 0;

    if (b & 8) {
        plane = 8;
    } else if (b & 4 && i < 64) {
        plane = 4;
        below = b & 3;
    } else { /* planes of 4 have 64 words, of 2 have 32, of 1 have 16 of two lanes each */
        i -= b & 4 ? 64 : 0;
        plane = b & 2 && i < 32 ? 2 : 1;
        i -= plane == 1 && b & 2 ? 32 : 0;
        below = plane == 2 ? b & 1 : 0;
    }
    for (unsigned field = 0; field < 32 / plane; field++) {
        unsigned lane, h, j, n, c;

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

/* Stores the codes of this thread to [8][TOKENS] of its half-tile; returns how many are saturated. */
DEVICE unsigned store_codes(const struct chunk *c, unsigned b, struct share mine, const float z[ROWS][MINE],
                            uint8_t *codes)
{
    const struct device_table *t = c->table;
    unsigned at = (c->is_key ? 0 : WIDTHS) + b, saturated = 0;

    UNROLL
    for (uint32_t i = 0; i < ROWS; i++) {
        UNROLL
        for (uint32_t j = 0; j < MINE; j++) {
            codes[(mine.row % 8 + i) * TOKENS + mine.token + LANE_TOKENS * j] =
                (uint8_t) quantise(t->thresholds + at * LEVELS, b, z[i][j]);
            saturated += z[i][j] < t->limits[2 * at] || z[i][j] > t->limits[2 * at + 1];
        }
    }
    return saturated;
}

/* Encodes the half-tiles of a tile, one per warp; the last one may have no codes. */
DEVICE void encode_tile(const struct chunk *c, uint32_t tile)
{
    const struct device_table *t = c->table;
    struct share mine = share_of(tile);
    uint32_t half = mine.row / 8;
    unsigned b = half < c->codes->n_half ? c->codes->bits[half] : 0, saturated = 0;
    float *space = (float *) dynamic_shared; /* vectors, later levels */
    uint8_t *codes = dynamic_shared + launch_coding_floats(t->d, t->rank_max) * sizeof(float) +
                     threadIdx.x / 32 * 8 * TOKENS;
    float z[ROWS][MINE] = {{0}};

    load_centred(c, space);
    if (b > 0)
        multiply(c->encoder->enc + (size_t) mine.row * t->d, t->d, ROWS, space + mine.token, COLUMN_LD, t->d,
                 z);
    if (c->encoder->enc_k)
        subtract_predicted(c, mine, space, z);
    if (b > 0)
        saturated = store_codes(c, b, mine, z, codes);
    if (c->saturated && saturated > 0)
        count(c->saturated + !c->is_key, saturated);
    __syncthreads();
    for (uint32_t w = threadIdx.x % 32; w < 16 * b; w += 32)
        ((uint32_t *) (c->payload + c->head->block + c->codes->offset[half]))[w] =
            pack_word(codes, b, c->is_key, w);
}

/* Packs tile @tile of a chunk: its half-tiles and, with the first tile, the sinks. */
DEVICE void pack_tile(const struct chunk *c, uint32_t tile)
{
    if (tile == 0)
        store_sinks(c);
    if (HALVES * tile < c->codes->n_half && c->codes->bits[HALVES * tile] > 0)
        encode_tile(c, tile);
}
