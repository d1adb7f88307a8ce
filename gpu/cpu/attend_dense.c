/*
 * Attention over vectors in memory, where each query chooses per key between the exact and the decoded
 * vector. Used by `eval`: windows of some thousand tokens, all queries at once.
 *
 * Unlike in packed attention, keys are loaded once for all rows: every block of 64 is stored in scratch,
 * rotated to its absolute position, in both versions. Then 64 rows at a time run over all blocks that they
 * see, so that their accumulators stay in the nearest cache.
 */
#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "gpu/attend.h"
#include "gpu/cpu/attend_rows.h"

enum version { EXACT = 0, DECODED = 1 };

struct attend_dense_work {
    const struct ops *ops;
    const struct attend_dense_args *args;
    struct attend_rows rows;
    size_t n_positions, n_blocks;
    size_t d_lanes;
    float *cos, *sin; /* [n_rot/2][64] of one block */
    float *kt[2];     /* [n_blocks][d][64] */
    float *v[2];      /* [n_blocks][64][d_lanes], zero beyond d and beyond the last position */
    float *scores[2]; /* [ROWS_BATCH, 64] */
};

/* The keys of a block that a row reads decoded: columns from .. to - 1. The others that it sees are exact. */
struct attend_dense_split {
    size_t from, to;
};

static size_t attend_dense_n_blocks_of(size_t n_positions)
{
    return (n_positions + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
}

static void attend_dense_carve(struct attend_dense_work *w, struct scratch_cursor *s,
                               const struct geometry *g, size_t n_positions, size_t n_q)
{
    size_t d_lanes = round_lanes(g->d), n_rows = n_q * geometry_group(g);
    size_t n_keys = attend_dense_n_blocks_of(n_positions) * CHUNK_TOKENS;

    w->cos = attend_rows_take(s, (size_t) g->n_rot / 2 * CHUNK_TOKENS, sizeof(float));
    w->sin = attend_rows_take(s, (size_t) g->n_rot / 2 * CHUNK_TOKENS, sizeof(float));
    for (int i = EXACT; i <= DECODED; i++) {
        w->kt[i] = attend_rows_take(s, n_keys * g->d, sizeof(float));
        w->v[i] = attend_rows_take(s, n_keys * d_lanes, sizeof(float));
        w->scores[i] = attend_rows_take(s, (size_t) ROWS_BATCH * CHUNK_TOKENS, sizeof(float));
    }

    w->rows.q = attend_rows_take(s, n_rows * g->d, sizeof(float));
    w->rows.acc = attend_rows_take(s, n_rows * d_lanes, sizeof(float));
    w->rows.state = attend_rows_take(s, n_rows, sizeof(struct softmax_row));
}

size_t attend_dense_scratch_bytes(const struct geometry *g, size_t n_positions, size_t n_q)
{
    struct scratch_cursor s = {0};
    struct attend_dense_work w;

    attend_dense_carve(&w, &s, g, n_positions, n_q);
    return (s.bytes + 63) & ~(size_t) 63;
}

static void attend_dense_load_block(struct attend_dense_work *w, size_t block, enum version version)
{
    const struct attend_dense_args *a = w->args;
    size_t d = a->geometry->d, first = block * CHUNK_TOKENS;
    size_t n = w->n_positions - first < CHUNK_TOKENS ? w->n_positions - first : CHUNK_TOKENS;
    const float *k = (version == EXACT ? a->exact_k : a->decoded_k) + first * a->row_stride;
    const float *v = (version == EXACT ? a->exact_v : a->decoded_v) + first * a->row_stride;
    float *kt = w->kt[version] + block * d * CHUNK_TOKENS;
    float *ret_v = w->v[version] + block * CHUNK_TOKENS * w->d_lanes;
    size_t half = (size_t) a->geometry->n_rot / 2 * CHUNK_TOKENS;

    memset(ret_v, 0, CHUNK_TOKENS * w->d_lanes * sizeof(*ret_v));
    for (size_t t = 0; t < n; t++)
        memcpy(ret_v + t * w->d_lanes, v + t * a->row_stride, d * sizeof(*v));
    for (size_t i = 0; i < d; i++)
        for (size_t t = 0; t < CHUNK_TOKENS; t++)
            kt[i * CHUNK_TOKENS + t] = t < n ? k[t * a->row_stride + i] : 0;
    w->ops->rotate(kt, kt + half, w->cos, w->sin, half);
}

/* The decoded keys of query @m in the block that starts at @first: those after
 * the sinks and before the recent keys. */
static struct attend_dense_split attend_dense_split_of(const struct attend_dense_args *a, size_t m,
                                                       size_t first)
{
    size_t sinks_end = a->n_sink <= first ? 0 : a->n_sink - first;
    size_t recent; /* first position that is exact because it is recent */
    struct attend_dense_split s;

    /* chunk end + 64 > m + 1: the query's last chunk but one, or a later one */
    if (a->n_recent == EXACT_BY_STEP)
        recent = first + 2 * CHUNK_TOKENS > m + 1 ? first : first + CHUNK_TOKENS;
    else
        recent = m + 1 < (size_t) a->n_recent ? 0 : m + 1 - (size_t) a->n_recent;
    s.from = sinks_end < CHUNK_TOKENS ? sinks_end : CHUNK_TOKENS;
    s.to = recent <= first ? 0 : recent - first;
    if (s.to > CHUNK_TOKENS)
        s.to = CHUNK_TOKENS;
    if (s.to < s.from)
        s.to = s.from;
    return s;
}

static size_t attend_dense_row_position(const struct attend_dense_work *w, size_t i)
{
    return w->rows.first + i / w->rows.group;
}

/* Finds which versions of a block a batch of rows reads, counting the keys that each row sees. */
static void attend_dense_versions_needed(const struct attend_dense_work *w, size_t i, size_t n, size_t first,
                                         bool ret_need[2])
{
    ret_need[EXACT] = ret_need[DECODED] = false;
    for (size_t x = 0; x < n; x++) {
        struct attend_dense_split s =
            attend_dense_split_of(w->args, attend_dense_row_position(w, i + x), first);
        size_t seen = rows_keys_seen(&w->rows, i + x, first, CHUNK_TOKENS);

        ret_need[DECODED] |= s.from < s.to && s.from < seen;
        ret_need[EXACT] |= s.from > 0 || s.to < seen;
    }
}

/* Merges the scores of both versions into one row each: the decoded columns of @decoded are copied over
 * those of @exact. */
static void attend_dense_merge_scores(const struct attend_dense_work *w, size_t i, size_t n, size_t first)
{
    for (size_t x = 0; x < n; x++) {
        struct attend_dense_split s =
            attend_dense_split_of(w->args, attend_dense_row_position(w, i + x), first);
        size_t at = x * CHUNK_TOKENS + s.from;

        memcpy(w->scores[EXACT] + at, w->scores[DECODED] + at, (s.to - s.from) * sizeof(float));
    }
}

/* Divides the weights after the softmax: each version keeps the weights of its own
 * columns; the others become zero. */
static void attend_dense_part_weights(const struct attend_dense_work *w, size_t i, size_t n, size_t first)
{
    memset(w->scores[DECODED], 0, n * CHUNK_TOKENS * sizeof(float));
    for (size_t x = 0; x < n; x++) {
        struct attend_dense_split s =
            attend_dense_split_of(w->args, attend_dense_row_position(w, i + x), first);
        size_t at = x * CHUNK_TOKENS + s.from;

        memcpy(w->scores[DECODED] + at, w->scores[EXACT] + at, (s.to - s.from) * sizeof(float));
        memset(w->scores[EXACT] + at, 0, (s.to - s.from) * sizeof(float));
    }
}

static void attend_dense_accumulate(struct attend_dense_work *w, size_t i, size_t n, size_t block,
                                    enum version version)
{
    const float *v = w->v[version] + block * CHUNK_TOKENS * w->d_lanes;

    w->ops->matmul(n, w->d_lanes, CHUNK_TOKENS, (struct matrix_in){w->scores[version], CHUNK_TOKENS},
                   (struct matrix_in){v, w->d_lanes},
                   (struct matrix_out){w->rows.acc + i * w->d_lanes, w->d_lanes});
}

/* Rows i .. i + n - 1, all of which see the block. */
static void attend_dense_block(struct attend_dense_work *w, size_t i, size_t n, size_t block)
{
    size_t d = w->args->geometry->d, first = block * CHUNK_TOKENS;
    bool need[2], both;
    enum version main;

    attend_dense_versions_needed(w, i, n, first, need);
    both = need[EXACT] && need[DECODED];
    main = need[EXACT] ? EXACT : DECODED; /* the version in which the softmax is computed */
    for (int x = EXACT; x <= DECODED; x++)
        if (need[x])
            attend_rows_block_scores(w->ops, w->rows.q + i * d, n, d, w->kt[x] + block * d * CHUNK_TOKENS,
                                     w->scores[x]);
    if (both)
        attend_dense_merge_scores(w, i, n, first);
    rows_softmax(w->ops, &w->rows, i, n, first, CHUNK_TOKENS, w->scores[main], NULL);
    if (both)
        attend_dense_part_weights(w, i, n, first);
    for (int x = EXACT; x <= DECODED; x++)
        if (need[x])
            attend_dense_accumulate(w, i, n, block, x);
}

static void attend_dense_store_row(const struct attend_dense_work *w, size_t i)
{
    const struct attend_dense_args *a = w->args;
    size_t d = a->geometry->d;
    const float *acc = w->rows.acc + i * w->d_lanes;
    float *out = a->out + i / w->rows.group * a->out_stride + i % w->rows.group * d;
    float norm = 1 / w->rows.state[i].sum;

    for (size_t c = 0; c < d; c++)
        out[c] = acc[c] * norm;
}

/* A batch may contain tokens that do not see a block yet, or, with a window, that no longer see it. Then
 * the block is computed for the rows that see it. */
static void attend_batch(struct attend_dense_work *w, size_t i, size_t n)
{
    for (size_t block = 0; block < w->n_blocks; block++) {
        size_t from = rows_first_seeing(&w->rows, block * CHUNK_TOKENS);
        size_t to = rows_end_seeing(&w->rows, block * CHUNK_TOKENS + CHUNK_TOKENS - 1);

        if (from >= i + n)
            break;
        if (from < i)
            from = i;
        if (to > i + n)
            to = i + n;
        if (from < to)
            attend_dense_block(w, from, to - from, block);
    }

    for (size_t x = 0; x < n; x++)
        attend_dense_store_row(w, i + x);
}

void attend_dense_with(const struct attend_dense_args *a, const struct ops *ops)
{
    const struct geometry *g = a->geometry;
    struct scratch_cursor scratch = {.base = a->scratch};
    struct attend_dense_work w = {.ops = ops, .args = a, .n_positions = a->q_first + a->n_q};

    assert(((uintptr_t) a->scratch & 63) == 0);
    assert(a->n_recent >= EXACT_BY_STEP);
    attend_dense_carve(&w, &scratch, g, w.n_positions, a->n_q);
    w.n_blocks = attend_dense_n_blocks_of(w.n_positions);
    w.d_lanes = round_lanes(g->d);
    w.rows.geometry = g;
    w.rows.group = geometry_group(g);
    w.rows.n = a->n_q * w.rows.group;
    w.rows.first = a->q_first;
    w.rows.window = a->window;
    w.rows.acc_cols = w.d_lanes;
    rows_load(&w.rows, a->q, a->q_stride, 0);
    for (size_t block = 0; block < w.n_blocks; block++) {
        rope_columns(g, (double) (block * CHUNK_TOKENS), w.cos, w.sin);
        attend_dense_load_block(&w, block, EXACT);
        attend_dense_load_block(&w, block, DECODED);
    }

    for (size_t i = 0; i < w.rows.n; i += ROWS_BATCH)
        attend_batch(&w, i, w.rows.n - i < ROWS_BATCH ? w.rows.n - i : ROWS_BATCH);
}

void attend_dense(const struct attend_dense_args *a)
{
    attend_dense_with(a, ops_best());
}
