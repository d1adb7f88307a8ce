/* The loops of decode.h for folded planes, for any vector width. Included only by decode_simd.h, which
 * lists what it needs. */
#pragma once

#include <string.h>

#include "gpu/cpu/decode.h"

/*
 * Steps of node vectors w [FOLD_RATIO][ld], columns 0 .. n - 1, that make the largest number of each
 * @limit; not 0.
 */
static inline_always __m128 steps_of(const float *w, size_t ld, size_t n, float limit)
{
    vec top[FOLD_RATIO];

#pragma GCC unroll 4
    for (unsigned j = 0; j < FOLD_RATIO; j++) {
        top[j] = vec_set1(0x1p-100f);
        for (size_t c = 0; c < n; c += LANES)
            top[j] = vec_max(top[j], vec_abs(vec_load_some(w + j * ld + c, n - c)));
    }
    return _mm_mul_ps(vec_largest4(top), _mm_set1_ps(1 / limit));
}

/* Rounds row @row of four nodes, w [FOLD_RATIO][ld], to slots @slot .. */
static void round_wide(const float *w, size_t ld, const struct fold_codes *c, size_t slot, size_t row)
{
    float step[FOLD_RATIO];

    _mm_storeu_ps(step, steps_of(w, ld, c->n_wide, WIDE_MAX));
    for (size_t j = 0; j < FOLD_RATIO; j++) {
        size_t at = (slot + j) * c->n_rows + row;
        vec per = vec_set1(1 / step[j]);

        c->wide_step[at] = step[j];
        for (size_t i = 0; i < c->n_wide; i += LANES) /* rows have space for more than n_wide */
            store_whole(vec_load_some(w + j * ld + i, c->n_wide - i) * per,
                        c->wide + at * TABLE_RANK_MAX + i);
    }
}

static inline_always void round_narrow(const float *w, size_t ld, const struct fold_codes *c, size_t slot,
                                       size_t row)
{
    __m128 step = steps_of(w, ld, c->n_narrow, NARROW_MAX);
    float steps[FOLD_RATIO], per[FOLD_RATIO];
    int32_t start[FOLD_RATIO];
    ivec sum[FOLD_RATIO];

    _mm_storeu_ps(steps, step);
    _mm_storeu_ps(per, _mm_div_ps(_mm_set1_ps(1), step));
#pragma GCC unroll 4
    for (unsigned j = 0; j < FOLD_RATIO; j++) {
        int8_t *narrow = c->narrow + ((slot + j) * c->n_rows + row) * TABLE_RANK_MAX;

        sum[j] = ivec_set1(0);
        for (size_t i = 0; i < c->n_narrow; i += LANES) { /* rows have space for more than n_narrow */
            ivec whole = ivec_nearest(vec_load_some(w + j * ld + i, c->n_narrow - i) * vec_set1(per[j]));

            store_low_bytes(narrow + i, whole);
            sum[j] = ivec_add(sum[j], whole);
        }
    }
    _mm_storeu_si128((void *) start, ivec_sum4(sum));
#pragma GCC unroll 4
    for (unsigned j = 0; j < FOLD_RATIO; j++) {
        c->narrow_step[(slot + j) * c->n_rows + row] = steps[j];
        c->start[(slot + j) * c->n_rows + row] = -128 * start[j];
    }
}

/* Phases of planes to whole numbers, [n] pairs of cosine and sine, and rounded to binary32; then advances
 * them by @step. */
static void rotations(size_t n, double *restrict cos, double *restrict sin, const double *step_cos,
                      const double *step_sin, uint32_t *restrict ret_pairs, float *restrict ret_cos,
                      float *restrict ret_sin)
{
    for (size_t i = 0; i < n; i++) {
        double c = cos[i], s = sin[i];

        cos[i] = c * step_cos[i] - s * step_sin[i];
        sin[i] = s * step_cos[i] + c * step_sin[i];
        ret_cos[i] = (float) c;
        ret_sin[i] = (float) s;
    }
    for (size_t i = 0; i < n; i++) { /* nearest: both are above -2 */
        uint32_t c = (uint32_t) (int32_t) (ret_cos[i] * 32767 + 65536.5f) & 0xffff;
        uint32_t s = (uint32_t) (int32_t) (ret_sin[i] * 32767 + 65536.5f) & 0xffff;

        ret_pairs[i] = s << 16 | c;
    }
}

/*
 * @vecs vectors of columns from @col on of FOLD_RATIO nodes, to node [FOLD_RATIO][TABLE_RANK_MAX]: their own
 * planes plus the level above.
 */
static inline_always void sum_nodes(unsigned vecs, const struct fold_planes *p, size_t col, float *node)
{
    ivec sum[FOLD_RATIO][2];

#pragma GCC unroll 4
    for (unsigned j = 0; j < FOLD_RATIO; j++)
#pragma GCC unroll 2
        for (unsigned v = 0; v < vecs; v++)
            sum[j][v] = ivec_set1(0);
    for (size_t i = 0; i < p->n; i++) {
        const int16_t *pairs = p->pairs + (i * p->cols + col) * 2;

#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_RATIO; j++) {
            ivec rotation = ivec_four(p->rotations + j * p->n + i);

#pragma GCC unroll 2
            for (unsigned v = 0; v < vecs; v++)
                sum[j][v] = dot2(sum[j][v], ivec_load(pairs + 2 * LANES * v), rotation);
        }
    }
#pragma GCC unroll 2
    for (unsigned v = 0; v < vecs; v++) {
        vec step = vec_load(p->step + col + v * LANES), ret[FOLD_RATIO];

#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_RATIO; j++)
            ret[j] = vec_from_int(sum[j][v]) * step;
        for (unsigned k = 0; k < FOLD_NODES && p->above[0]; k++) {
            vec above = vec_load(p->above[k] + col + v * LANES);

#pragma GCC unroll 4
            for (unsigned j = 0; j < FOLD_RATIO; j++)
                ret[j] = vec_fma(vec_set1(p->weights[j][k]), above, ret[j]);
        }
#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_RATIO; j++)
            vec_store(node + j * TABLE_RANK_MAX + v * LANES, ret[j]);
    }
}

static void nodes(const struct fold_planes *planes, const struct fold_codes *codes, size_t slot)
{
    const struct fold_planes p = *planes; /* copies, which stores cannot change */
    const struct fold_codes c = *codes;
    size_t r = p.cols / c.n_rows;
    float node[FOLD_RATIO][TABLE_RANK_MAX];

    for (size_t row = 0; row < c.n_rows; row++) {
        size_t col = 0;

        for (; col + 2 * LANES <= r; col += 2 * LANES)
            sum_nodes(2, &p, row * r + col, node[0] + col);
        if (col < r)
            sum_nodes(1, &p, row * r + col, node[0] + col);
        if (c.n_wide > 0)
            round_wide(node[0], TABLE_RANK_MAX, &c, slot, row);
        round_narrow(node[0] + c.n_wide, TABLE_RANK_MAX, &c, slot, row);
    }
}

/* Nodes around one vector of tokens, @slot [FOLD_NODES], of @rows rows from @row on: scores += basis (step
 * sum + offset). */
static inline_always void fold_narrow(unsigned rows, const struct key_codes *x, const struct fold_codes *c,
                                      const size_t slot[FOLD_NODES], size_t row, size_t group,
                                      const float (*basis)[FOLD_SPACING], float *scores)
{
    const ivec *levels = (const ivec *) (const void *) x->narrow + group;
    size_t within = group * LANES % FOLD_SPACING;
    ivec sum[FOLD_ROWS][FOLD_NODES];

#pragma GCC unroll 4
    for (unsigned j = 0; j < FOLD_NODES; j++)
#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++)
            sum[i][j] = ivec_set1(c->start[slot[j] * c->n_rows + row + i]);
    for (size_t col = 0; col < c->n_narrow; col += 4) {
        ivec four = levels[col / 4 * GROUPS];

#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_NODES; j++)
#pragma GCC unroll 4
            for (unsigned i = 0; i < rows; i++) {
                const int8_t *w = c->narrow + (slot[j] * c->n_rows + row) * TABLE_RANK_MAX + col;

                sum[i][j] = dot4(sum[i][j], four, ivec_four(w + i * TABLE_RANK_MAX));
            }
    }
#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++) {
        vec score = vec_load(scores + i * CHUNK_TOKENS + group * LANES);

#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_NODES; j++) {
            size_t at = slot[j] * c->n_rows + row + i;
            vec part =
                vec_fma(vec_from_int(sum[i][j]), vec_set1(c->narrow_step[at]), vec_set1(c->offset[at]));

            score = vec_fma(part, vec_load(basis[j] + within), score);
        }
        vec_store(scores + i * CHUNK_TOKENS + group * LANES, score);
    }
}

static inline_always void fold_wide(unsigned rows, const struct key_codes *x, const struct fold_codes *c,
                                    const size_t slot[FOLD_NODES], size_t row, size_t group,
                                    const float (*basis)[FOLD_SPACING], float *scores)
{
    const ivec *levels = (const ivec *) (const void *) x->wide + group;
    size_t within = group * LANES % FOLD_SPACING;
    ivec sum[FOLD_ROWS][FOLD_NODES];

#pragma GCC unroll 4
    for (unsigned j = 0; j < FOLD_NODES; j++)
#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++)
            sum[i][j] = ivec_set1(0);
    for (size_t col = 0; col < c->n_wide; col += 2) {
        ivec pair = levels[col / 2 * GROUPS];

#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_NODES; j++)
#pragma GCC unroll 4
            for (unsigned i = 0; i < rows; i++) {
                const int16_t *w = c->wide + (slot[j] * c->n_rows + row) * TABLE_RANK_MAX + col;

                sum[i][j] = dot2(sum[i][j], pair, ivec_four(w + i * TABLE_RANK_MAX));
            }
    }
#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++) {
        vec score = vec_load(scores + i * CHUNK_TOKENS + group * LANES);

#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_NODES; j++)
            score = vec_fma(vec_from_int(sum[i][j]) * vec_set1(c->wide_step[slot[j] * c->n_rows + row + i]),
                            vec_load(basis[j] + within), score);
        vec_store(scores + i * CHUNK_TOKENS + group * LANES, score);
    }
}

static inline_always void fold_rows(unsigned rows, const struct key_codes *x, const struct fold_codes *nodes,
                                    size_t first, size_t row, const float (*basis)[FOLD_SPACING],
                                    float *scores)
{
    const struct fold_codes c = *nodes; /* a copy, which stores to scores cannot change */

    for (size_t group = 0; group < GROUPS; group++) {
        size_t slot[FOLD_NODES];

        for (size_t j = 0; j < FOLD_NODES; j++)
            slot[j] = (first + group * LANES / FOLD_SPACING + j) % FOLD_RING;
        fold_narrow(rows, x, &c, slot, row, group, basis, scores);
        if (c.n_wide > 0)
            fold_wide(rows, x, &c, slot, row, group, basis, scores);
    }
}

static void fold(const struct key_codes *x, const struct fold_codes *c, size_t first, size_t row,
                 size_t n_rows, const float (*basis)[FOLD_SPACING], float *scores)
{
    size_t i = 0;

    for (; i + FOLD_ROWS <= n_rows; i += FOLD_ROWS)
        fold_rows(FOLD_ROWS, x, c, first, row + i, basis, scores + i * CHUNK_TOKENS);
    if (FOLD_ROWS > 3 && n_rows - i == 3)
        fold_rows(3, x, c, first, row + i, basis, scores + i * CHUNK_TOKENS);
    else if (FOLD_ROWS > 2 && n_rows - i == 2)
        fold_rows(2, x, c, first, row + i, basis, scores + i * CHUNK_TOKENS);
    else if (i < n_rows)
        fold_rows(1, x, c, first, row + i, basis, scores + i * CHUNK_TOKENS);
}
