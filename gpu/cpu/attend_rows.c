/* See attend_rows.h. */
#include "gpu/cpu/attend_rows.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void *attend_rows_take(struct scratch_cursor *s, size_t n, size_t elem_bytes)
{
    size_t at = (s->bytes + 63) & ~(size_t) 63;

    s->bytes = at + n * elem_bytes;
    return s->base ? s->base + at : NULL;
}

void rows_load(struct attend_rows *rows, const float *q, size_t q_stride, double origin)
{
    const struct geometry *g = rows->geometry;
    float scale = (float) g->attn_scale;
    struct rope_phase phase, step;

    rope_phase_at(g, (double) rows->first - origin, &phase);
    if (rows->n > rows->group)
        rope_phase_at(g, 1, &step);
    for (size_t i = 0; i < rows->n; i++) {
        float *row = rows->q + i * g->d;

        if (i > 0 && i % rows->group == 0 && rows->direct_phases)
            rope_phase_at(g, (double) (rows->first + i / rows->group) - origin, &phase);
        else if (i > 0 && i % rows->group == 0)
            rope_phase_advance(g, &phase, &step);
        rope_rotate(g, &phase, q + i / rows->group * q_stride + i % rows->group * g->d, row);
        for (size_t x = 0; x < g->d; x++)
            row[x] *= scale;
        rows->state[i] = (struct softmax_row){.max = -INFINITY, .sum = 0};
    }

    memset(rows->acc, 0, rows->n * rows->acc_cols * sizeof(*rows->acc));
}

size_t rows_first_seeing(const struct attend_rows *rows, size_t n)
{
    size_t row = n <= rows->first ? 0 : (n - rows->first) * rows->group;

    return row < rows->n ? row : rows->n;
}

size_t rows_end_seeing(const struct attend_rows *rows, size_t n)
{
    size_t beyond = n + rows->window, row; /* the first position that does not see n */

    if (rows->window == 0)
        return rows->n;

    row = beyond <= rows->first ? 0 : (beyond - rows->first) * rows->group;
    return row < rows->n ? row : rows->n;
}

/* The first position inside the window of a row at @position. */
static size_t attend_rows_window_first(const struct attend_rows *rows, size_t position)
{
    return rows->window == 0 || position < rows->window ? 0 : position + 1 - rows->window;
}

size_t rows_lowest_seen(const struct attend_rows *rows)
{
    return attend_rows_window_first(rows, rows->first);
}

size_t rows_keys_seen(const struct attend_rows *rows, size_t i, size_t block, size_t n_keys)
{
    size_t position = rows->first + i / rows->group;
    size_t seen = position < block ? 0 : position - block + 1;

    return seen < n_keys ? seen : n_keys;
}

void attend_rows_block_scores(const struct ops *ops, const float *q, size_t n, size_t d, const float *kt,
                              float *scores)
{
    memset(scores, 0, n * CHUNK_TOKENS * sizeof(*scores));
    ops->matmul(n, CHUNK_TOKENS, d, (struct matrix_in){q, d}, (struct matrix_in){kt, CHUNK_TOKENS},
                (struct matrix_out){scores, CHUNK_TOKENS});
}

void rows_hide(const struct attend_rows *rows, size_t i, size_t block, size_t n_keys,
               float scores[CHUNK_TOKENS])
{
    size_t from = attend_rows_window_first(rows, rows->first + i / rows->group),
           hidden = from > block ? from - block : 0;
    size_t seen = rows_keys_seen(rows, i, block, n_keys);

    assert(seen > hidden);
    for (size_t t = 0; t < hidden; t++)
        scores[t] = -INFINITY;
    for (size_t t = seen; t < CHUNK_TOKENS; t++)
        scores[t] = -INFINITY;
}

/* Sum of the weights of one row over a block. @growth: by how much they made the sum of the row grow, which
 * has an error of up to 2^-23 of that sum. */
static float attend_rows_weights(float sum, float growth, const float weights[CHUNK_TOKENS])
{
    float ret = 0;

    if (growth > 0x1p-20f * sum)
        return growth;

    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        ret += weights[t];
    return ret;
}

void rows_softmax(const struct ops *ops, struct attend_rows *rows, size_t i, size_t n, size_t block,
                  size_t n_keys, float *scores, float *ret_weights)
{
    for (size_t x = 0; x < n; x++) {
        float *s = scores + x * CHUNK_TOKENS;
        float *acc = rows->acc + (i + x) * rows->acc_cols;
        struct softmax_row *state = &rows->state[i + x];
        float before = state->sum, factor;

        rows_hide(rows, i + x, block, n_keys, s);
        factor = ops->softmax(state, s);
        if (ret_weights)
            ret_weights[x] = attend_rows_weights(state->sum, state->sum - before * factor, s);
        if (factor == 1)
            continue;

        state->skipped *= factor;
        for (size_t c = 0; c < rows->acc_cols; c++)
            acc[c] *= factor;
    }
}

static bool attend_rows_needs_values(const struct softmax_row *state, float weights)
{
    return !(weights < 0x1p-24f * state->sum && state->skipped + weights < 0x1p-20f * state->sum);
}

size_t rows_needing_values(struct attend_rows *rows, size_t i, size_t n, const float *weights,
                           size_t *ret_first)
{
    struct softmax_row *state = rows->state + i;
    size_t first = 0, end = n;

    for (; !rows->all_values && first < end && !attend_rows_needs_values(&state[first], weights[first]);
         first++)
        state[first].skipped += weights[first];
    for (; !rows->all_values && first < end && !attend_rows_needs_values(&state[end - 1], weights[end - 1]);
         end--)
        state[end - 1].skipped += weights[end - 1];
    rows->n_skipped += n - (end - first);
    *ret_first = first;
    return end - first;
}
