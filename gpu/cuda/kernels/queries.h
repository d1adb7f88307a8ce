/* Common to the attention kernels: the rows of a block, the shared memory for them, queries rotated to the
 * frame of a block of 64 keys, and the range of keys that a query sees. */
#pragma once

#include "gpu/cuda/kernels/device.h"
#include "gpu/cuda/kernels/launch.h"

enum {
    TOKENS = 64,
    WARPS = LAUNCH_THREADS / 32,
    ROWS = DEVICE_GROUP_MAX,
    SCORE_LD = ROWS + 1,
    WEIGHT_LD = TOKENS + 8,
};

#define LOG2_E 1.4426950408889634f
#define LEAST (-1e30f) /* below every score; finite, so that differences are finite */

/* The shared memory of a block. */
struct shared {
    /* [ROWS][2][n_planes] queries in the frame of the first query of the tile, times scale and log2 e */
    float *start;
    float *phase;      /* [2][n_planes] cosine and sine of the rotation from there to the block of keys */
    float *query;      /* [ROWS][2][n_planes] in the frame of the block of keys */
    uint16_t *query16; /* query in binary16 */
    float *mean_terms; /* [ROWS][2][n_planes] factors of cosine and sine in the score of the key mean */
    float *scores;     /* [TOKENS][SCORE_LD] scores, then weights */
    uint16_t *weights; /* [ROWS][WEIGHT_LD] binary16, zero for exact keys */
    float *max, *sum, *factor; /* [ROWS] */
    float *exact;              /* [ROWS][d] weights times exact values */
};

/* The queries of a block: row i is query head i % group of query i / group of the tile. */
struct rows {
    const float *q; /* of the first query */
    size_t stride;  /* floats between queries */
    uint32_t n, group;
    uint32_t position; /* of the first query */
};

DEVICE struct shared carve(unsigned char *at, const struct device_table *t)
{
    struct shared s;
    uint32_t planes = ROWS * 2 * t->n_planes;

    s.start = (float *) at;
    s.phase = s.start + planes;
    s.query = s.phase + 2 * t->n_planes;
    s.mean_terms = s.query + planes;
    s.scores = s.mean_terms + planes;
    s.max = s.scores + TOKENS * SCORE_LD;
    s.sum = s.max + ROWS;
    s.factor = s.sum + ROWS;
    s.exact = s.factor + ROWS;
    s.query16 = (uint16_t *) (s.exact + ROWS * t->d);
    s.weights = s.query16 + planes;
    return s;
}

/* The rows of tile @tile of the queries of a sequence; the tile has at least one query. */
DEVICE struct rows rows_of(const struct device_table *t, const struct launch_attend_item *item, uint32_t tile,
                           uint32_t kv_head)
{
    uint32_t first = tile * LAUNCH_TILE_QUERIES(t->group), left = item->n_q - first;
    uint32_t n = left < LAUNCH_TILE_QUERIES(t->group) ? left : LAUNCH_TILE_QUERIES(t->group);
    uint32_t length = TOKENS * item->seq->n_pages + item->seq->n_exact;
    size_t stride = (size_t) t->n_kv_heads * t->group * t->d;

    return {item->q + first * stride + (size_t) kv_head * t->group * t->d, stride, n * t->group, t->group,
            length - item->n_behind - item->n_q + first};
}

/* The partial result of split 0; those of the other splits follow. */
DEVICE float *partials_of(const struct launch_attend *a, uint32_t item, uint32_t tile, uint32_t kv_head)
{
    const struct device_table *t = a->table;
    size_t at = ((size_t) item * LAUNCH_TILES(t->group, a->n_q) + tile) * t->n_kv_heads + kv_head;

    return a->partials + at * a->n_splits * LAUNCH_PARTIAL_FLOATS(t->columns_max, t->d);
}

/* Dimension of plane @i: its first (@hi 0) or second one. */
DEVICE uint32_t plane_dim(const struct device_table *t, uint32_t i, uint32_t hi)
{
    return device_plane_dim(t->n_rot, i, hi);
}

/* ---- queries ---- */

/* Cosine and sine of the rotation of plane @p over @positions; reduced in
 * binary64, so that @positions may be large. */
DEVICE void phase_of(const struct device_table *t, uint32_t p, double positions, float *ret_cosine,
                     float *ret_sine)
{
    double revolutions = t->freq[p] * positions * 0.15915494309189535;

    cos_sin_of_revolutions((float) (revolutions - floor(revolutions)), ret_cosine, ret_sine);
}

/* Loads all rows in the frame of the first query of the tile. Planes and rows that do not exist are zero,
 * here and in every frame. */
DEVICE void load_queries(const struct device_table *t, const struct rows *rows, struct shared s)
{
    uint32_t n = t->n_planes;

    for (uint32_t i = threadIdx.x; i < ROWS * n; i += LAUNCH_THREADS) {
        uint32_t row = i / n, p = i % n, at = row * 2 * n + p;
        float lo = 0, hi = 0;

        if (row < rows->n && p < t->d / 2) {
            const float *q = rows->q + row / rows->group * rows->stride + row % rows->group * t->d;
            float scale = t->attn_scale * LOG2_E, x = q[plane_dim(t, p, 0)] * scale,
                  y = q[plane_dim(t, p, 1)] * scale, c, sn;

            phase_of(t, p, row / rows->group, &c, &sn);
            lo = x * c - y * sn;
            hi = y * c + x * sn;
        }
        s.start[at] = lo;
        s.start[at + n] = hi;
        s.query16[at] = 0;
        s.query16[at + n] = 0;
    }
}

/* Rotates queries to the frame of the keys that begin at position @first, and
 * computes the terms of the key mean. */
DEVICE void rotate_queries(const struct device_table *t, const struct device_head *head,
                           const struct rows *rows, uint32_t first, struct shared s)
{
    uint32_t n = t->n_planes;

    for (uint32_t p = threadIdx.x; p < n; p += LAUNCH_THREADS)
        phase_of(t, p, (double) rows->position - (double) first, &s.phase[p], &s.phase[n + p]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows->n * n; i += LAUNCH_THREADS) {
        uint32_t row = i / n, p = i % n, at = row * 2 * n + p;
        float c = s.phase[p], sn = s.phase[n + p], x = s.start[at], y = s.start[at + n];
        float lo = x * c - y * sn, hi = y * c + x * sn;

        s.query[at] = lo;
        s.query[at + n] = hi;
        s.query16[at] = (uint16_t) pack_halves(lo, 0);
        s.query16[at + n] = (uint16_t) pack_halves(hi, 0);
        s.mean_terms[at] = lo * head->mean_k[p] + hi * head->mean_k[n + p];
        s.mean_terms[at + n] = hi * head->mean_k[p] - lo * head->mean_k[n + p];
    }
    __syncthreads();
}

/* The range from .. to - 1 of @n keys from position @first that the query at @position sees. */
DEVICE void visible(const struct launch_attend *a, uint32_t position, uint32_t first, uint32_t n,
                    uint32_t *from, uint32_t *to)
{
    uint32_t beyond = position + 1, low = a->window > 0 && beyond > a->window ? beyond - a->window : 0;

    uint32_t seen = beyond <= first ? 0 : beyond - first;

    *from = low > first ? low - first : 0;
    *to = seen < n ? seen : n;
}

/* Whether any row sees any of these keys. */
DEVICE bool any_visible(const struct launch_attend *a, const struct rows *rows, uint32_t first, uint32_t n)
{
    uint32_t from, to, unused;

    visible(a, rows->position, first, n, &from, &unused);
    visible(a, rows->position + (rows->n - 1) / rows->group, first, n, &unused, &to);
    return from < to;
}
