/* The shared memory of a block of attend_90.cu, and the code that fills in the constants of the block: what
 * all its pieces share. */
#pragma once

#include "gpu/cuda/kernels/levels_90.h"
#include "gpu/cuda/kernels/work_90.h"

/* Sizes as constants, so that registers have constant indices. D: coordinates of a head, R: rows of a tile.
 * Steps are of 16 planes or of 16 coordinates of K. Tiles are of 16 columns of values per warp, of 16
 * dimensions of exact values, of 8 rows. */
template <int D, int R> struct size_90 {
    enum {
        DIMS = D,
        PLANES = D / 2,
        STEPS = D / 32,
        KEY_STEPS = D / 16,
        VALUE_TILES = D / 32,
        EXACT_TILES = D / 64,
        N_ROWS = R,
        ROW_TILES = R / 8,
        /* cosines and sines stay in registers; if false, they are loaded for every piece */
        ROTATIONS_STAY = D <= 128,
        QUERY_STAGES = ATTEND_90_QUERY_STAGES(D),
        BLOCKS = ATTEND_90_BLOCKS(D, R),
    };
};

/* The first warp of the first warpgroup fetches pages and its other warps rotate
 * queries; the second warpgroup attends. */
enum {
    FETCHING = 32, /* threads */
    FILLING = ATTEND_90_THREADS - FETCHING,
    ATTENDING = 128, /* threads */
    ATTENDING_WARPS = ATTENDING / 32,
    ATTENDING_BARRIER = 1,
    FILLING_BARRIER = 2,
};

struct block_90 {
    struct attend_90_shape shape;
    uint64_t *full, *empty;             /* [n_stages] of page blocks */
    uint64_t *query_full, *query_empty; /* [S::QUERY_STAGES] */
    struct levels_90 levels;            /* of K; those of V follow each array */
    /* [DEVICE_HALVES_MAX / 2][4], [4 (warps)][DEVICE_HALVES_MAX / 4][4]: see tile_at() */
    uint32_t *key_tiles, *column_tiles;
    /* operand B of keys: blocks of 8 planes by 8 coordinates, planes first within a step of coordinates */
    unsigned char *dec_k;
    unsigned char *queries; /* [S::QUERY_STAGES], see attend_90.h */
    /* [N_ROWS][2][planes] queries in the frame of the first query of the tile, times scale and log2 e */
    float *start;
    uint32_t *weights;   /* [2][N_ROWS][ATTEND_90_WEIGHT_LD] */
    float *rows;         /* [2][ATTENDING_WARPS][N_ROWS] values of rows that warps exchange */
    unsigned char *ring; /* [n_stages][stage_bytes] */
};

template <class S> DEVICE struct block_90 block_of(const struct device_table *t)
{
    unsigned char *at = dynamic_shared;
    struct block_90 b;

    b.shape = attend_90_shape(S::DIMS, S::N_ROWS, t->key_rank_max, t->block_bytes_max);
    b.full = (uint64_t *) at;
    b.empty = b.full + ATTEND_90_STAGES_MAX;
    b.query_full = b.empty + ATTEND_90_STAGES_MAX;
    b.query_empty = b.query_full + ATTEND_90_QUERY_STAGES_MAX;
    b.levels = {at + b.shape.narrow, (const uint16_t *) (at + b.shape.wide)};
    b.key_tiles = (uint32_t *) (at + b.shape.tiles);
    b.column_tiles = b.key_tiles + DEVICE_HALVES_MAX / 2 * 4;
    b.dec_k = at + b.shape.dec_k;
    b.queries = at + b.shape.queries;
    b.start = (float *) (at + b.shape.start);
    b.weights = (uint32_t *) (at + b.shape.weights);
    b.rows = (float *) (at + b.shape.rows);
    b.ring = at + b.shape.ring;
    return b;
}

DEVICE void fill_levels(const struct device_table *t, struct block_90 b)
{
    enum { OF_SIDE = (NARROW_BITS + 1) * 4 };

    for (uint32_t i = threadIdx.x - FETCHING; i < 2 * OF_SIDE;
         i += FILLING) /* levels of K have 128 added; those of V follow, without it */
        ((uint32_t *) b.levels.narrow)[i] = i < OF_SIDE ? t->narrow[i] : t->narrow[i + OF_SIDE] ^ 0x80808080;
    for (uint32_t i = threadIdx.x - FETCHING; i < WIDE_LEVELS; i += FILLING)
        ((uint32_t *) b.levels.wide)[i] = t->wide[i];
}

template <class S> DEVICE void fill_dec_k(const struct device_head *head, struct block_90 b)
{
    for (uint32_t i = threadIdx.x - FETCHING; i < S::DIMS * (head->k.r / 8u); i += FILLING) {
        uint32_t plane = i % S::DIMS, coords = i / S::DIMS;

        *(struct words4 *) (b.dec_k + 16 * i) =
            load_16_bytes(head->dec_k + (size_t) plane * head->k.r + 8 * coords);
    }
    async_fence();
}

/* All rows in the frame of the first query of the tile; rows that do not exist are zero. */
template <class S> DEVICE void fill_start(const struct work *w, struct block_90 b)
{
    const struct device_table *t = w->table;

    for (uint32_t i = threadIdx.x - FETCHING; i < S::N_ROWS * S::PLANES; i += FILLING) {
        uint32_t row = i / S::PLANES, p = i % S::PLANES, at = row * S::DIMS + p;
        float lo = 0, hi = 0;

        if (row < w->rows.n) {
            const float *q = w->rows.q + row / w->rows.group * w->rows.stride + row % w->rows.group * t->d;
            float scale = t->attn_scale * LOG2_E, x = q[plane_dim(t, p, 0)] * scale,
                  y = q[plane_dim(t, p, 1)] * scale, c, s;

            phase_of(t, p, row / w->rows.group, &c, &s);
            lo = x * c - y * s;
            hi = y * c + x * s;
        }
        b.start[at] = lo;
        b.start[at + S::PLANES] = hi;
    }
}

/* ---- tiles and constants of a head ---- */

DEVICE void put_tile(const struct device_codes *codes, uint32_t tile, bool of_key, uint32_t *ret)
{
    uint32_t b0 = codes->bits[2 * tile], b1 = codes->bits[2 * tile + 1];

    ret[0] = codes->offset[2 * tile];
    ret[1] = codes->offset[2 * tile + 1];
    ret[2] = b0 == b1 && b0 <= NARROW_BITS ? b0 : 0;
    ret[3] = b0 | b1 << 4 | (uint32_t) of_key << 8;
}

/* Fills in the tiles of K, then those of columns: coordinates of K if V is predicted from them, then those
 * of V. Tile i belongs to warp i % 4. */
DEVICE void fill_tiles(const struct device_head *head, struct block_90 b)
{
    uint32_t n_keys = head->k.n_half / 2u, n_predicting = head->n_predictors > 0 ? n_keys : 0,
             n_values = head->v.n_half / 2u;

    for (uint32_t i = threadIdx.x - FETCHING; i < n_keys; i += FILLING)
        put_tile(&head->k, i, true, b.key_tiles + 4 * i);
    for (uint32_t i = threadIdx.x - FETCHING; i < n_predicting + n_values; i += FILLING) {
        uint32_t *at =
            b.column_tiles + 4 * (i % ATTENDING_WARPS * DEVICE_HALVES_MAX / 4 + i / ATTENDING_WARPS);

        if (i < n_predicting)
            put_tile(&head->k, i, true, at);
        else
            put_tile(&head->v, i - n_predicting, false, at);
    }
}

/* Constants of a head, in registers. */
struct head_90 {
    uint32_t n_key_steps, mean_steps, n_tiles; /* n_tiles: of the columns of this warp */
    float key_scale, mean_scale;
};

DEVICE struct head_90 head_of(const struct device_head *h, unsigned warp)
{
    uint32_t n_tiles = (h->n_predictors > 0 ? h->k.n_half / 2u : 0) + h->v.n_half / 2u;

    return {h->k.n_half / 2u, h->mean_steps, (n_tiles + ATTENDING_WARPS - 1 - warp) / ATTENDING_WARPS,
            h->dec_k_scale, h->mean_scale};
}

/* Called by all threads of the block. */
template <class S> DEVICE void begin_barriers(struct block_90 b)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < b.shape.n_stages; i++) {
            barrier_init(&b.full[i], 1);
            barrier_init(&b.empty[i], ATTENDING_WARPS);
        }
        for (uint32_t i = 0; i < S::QUERY_STAGES; i++) {
            barrier_init(&b.query_full[i], 1);
            barrier_init(&b.query_empty[i], ATTENDING_WARPS);
        }
        barriers_ready();
    }
    __syncthreads();
}

/* Called by all threads except those that fetch, which read none of it. On return all
 * callers see what the others wrote. */
template <class S> DEVICE void fill_block(const struct work *w, struct block_90 b)
{
    fill_levels(w->table, b);
    fill_tiles(w->head, b);
    fill_dec_k<S>(w->head, b);
    fill_start<S>(w, b);
    for (uint32_t i = threadIdx.x - FETCHING; i < S::QUERY_STAGES * b.shape.query_bytes / 4; i += FILLING)
        ((uint32_t *) b.queries)[i] = 0; /* rows that do not exist stay zero */
    threads_sync(FILLING_BARRIER, FILLING);
}

/* ---- stages ---- */

/* The stage that comes next in a ring, and the parity to wait with until it is filled. */
struct stage {
    uint32_t n, at, parity;
};

DEVICE void next_stage(struct stage *s)
{
    if (++s->at == s->n) {
        s->at = 0;
        s->parity ^= 1;
    }
}

/* Called by all lanes, after their accesses to what the barrier guards. */
DEVICE void arrive_by_warp(uint64_t *barrier)
{
    warp_sync();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}
