/* See fold.h. */
#include "gpu/cpu/fold.h"

#include <math.h>
#include <string.h>

enum { BATCH = FOLD_RATIO }; /* nodes made at once: those of one cell of the level above */

static size_t fold_cols_of(size_t n_rows, size_t r)
{
    return n_rows * r + round_lanes(n_rows);
}

void fold_carve(struct fold *f, struct scratch_cursor *s, const struct geometry *g, size_t n_rows)
{
    size_t rank = round_lanes(g->d), cols = fold_cols_of(n_rows, rank), slots = FOLD_RING * n_rows;

    f->planes = attend_rows_take(s, g->d * cols, sizeof(float));
    for (unsigned level = 0; level < FOLD_LEVELS; level++)
        f->nodes[level] = attend_rows_take(s, FOLD_RING * cols, sizeof(float));
    f->rotations = attend_rows_take(s, BATCH * (size_t) g->d, sizeof(float));
    f->finest.pairs = attend_rows_take(s, (size_t) g->d / 2 * cols * 2, sizeof(int16_t));
    f->finest.step = attend_rows_take(s, cols, sizeof(float));
    f->finest.rotations = attend_rows_take(s, (size_t) g->d / 2 * BATCH, sizeof(uint32_t));
    f->codes.wide = attend_rows_take(s, slots * TABLE_RANK_MAX, sizeof(int16_t));
    f->codes.narrow = attend_rows_take(s, slots * TABLE_RANK_MAX, sizeof(int8_t));
    f->codes.start = attend_rows_take(s, slots, sizeof(int32_t));
    f->codes.wide_step = attend_rows_take(s, slots, sizeof(float));
    f->codes.narrow_step = attend_rows_take(s, slots, sizeof(float));
    f->codes.offset = attend_rows_take(s, slots, sizeof(float));
}

/* ---- A and B ---- */

/* ret [n] = (a x + b y) * unit */
static void fold_combine(size_t n, float a, const float *x, float b, const float *y, const float *unit,
                         float *restrict ret)
{
    for (size_t c = 0; c < n; c++)
        ret[c] = (a * x[c] + b * y[c]) * unit[c];
}

/* A query rotated by the angle a is, in one plane, (lo cos a - hi sin a, hi cos a + lo sin a). Times rows
 * lo and hi of dec: cos a (lo dec_lo + hi dec_hi) + sin a (lo dec_hi - hi dec_lo). */
static void fold_fill_plane(const struct fold *f, const struct attend_rows *rows, const struct key_columns *k,
                            const float *mean, size_t i, float *a, float *b)
{
    const struct geometry *g = rows->geometry;
    size_t lo = plane_dim(g, i, 0), hi = plane_dim(g, i, 1), r = f->r;
    const float *dec_lo = key_columns_row(k, lo), *dec_hi = key_columns_row(k, hi);

    for (size_t x = 0; x < rows->n; x++) {
        float q_lo = rows->q[x * g->d + lo], q_hi = rows->q[x * g->d + hi];

        fold_combine(r, q_lo, dec_lo, q_hi, dec_hi, k->unit, a + x * r);
        fold_combine(r, q_lo, dec_hi, -q_hi, dec_lo, k->unit, b + x * r);
        a[rows->n * r + x] = q_lo * mean[lo] + q_hi * mean[hi];
        b[rows->n * r + x] = q_lo * mean[hi] - q_hi * mean[lo];
    }

    for (size_t c = rows->n * (r + 1); c < f->cols; c++)
        a[c] = b[c] = 0;
}

/* Finds steps of columns that make the largest of A and B [n] fit 16
 * bits, and the sum of all fit PAIRS_MAX. */
static void fold_find_steps(const float *a, const float *b, size_t n, size_t ld, size_t cols,
                            float *restrict ret, float *restrict sum)
{
    for (size_t c = 0; c < cols; c++) {
        ret[c] = 0x1p-100f; /* not 0, so that quotients are finite */
        sum[c] = 0;
    }

    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < cols; c++) {
            float x = fabsf(a[i * ld + c]), y = fabsf(b[i * ld + c]), larger = x > y ? x : y;

            ret[c] = larger > ret[c] ? larger : ret[c];
            sum[c] += x + y;
        }
    for (size_t c = 0; c < cols; c++) {
        float one = ret[c] / 32767, all = sum[c] / PAIRS_MAX;

        ret[c] = one > all ? one : all;
    }
}

/* Rounds to the nearest whole number of 16 bits. */
static int16_t fold_nearest(float x)
{
    /* the converted number is above 0, so it is rounded down */
    return (int16_t) ((int32_t) (x + 65536.5f) - 65536);
}

/* Rounds A and B of level 0 to whole numbers, each column in steps of its own. */
static void fold_round_planes(struct fold *f, size_t n_rows)
{
    size_t n = f->first[1] - f->first[0], cols = n_rows * f->r;
    const float *a = f->planes, *b = a + n * f->cols;
    float *step = f->finest.step, *per = f->nodes[0]; /* nodes[0] is still free here */

    f->finest.n = n;
    f->finest.cols = cols;
    f->finest.weights = f->constants->fold_nodes;
    fold_find_steps(a, b, n, f->cols, cols, step, per);
    for (size_t c = 0; c < cols; c++) {
        per[c] = 1 / step[c];
        step[c] /= 32767; /* the step of the rotations */
    }

    for (size_t i = 0; i < n; i++, a += f->cols, b += f->cols)
        for (size_t c = 0; c < cols; c++) {
            f->finest.pairs[(i * cols + c) * 2] = fold_nearest(a[c] * per[c]);
            f->finest.pairs[(i * cols + c) * 2 + 1] = fold_nearest(b[c] * per[c]);
        }
}

static void fold_split_levels(struct fold *f, size_t first, size_t n_planes)
{
    size_t i = first;

    f->top = 0;
    for (unsigned level = 0; level < FOLD_LEVELS; level++) {
        f->first[level] = i;
        while (i < n_planes && f->constants->fold_level[i] == level)
            i++;
        if (i > f->first[level])
            f->top = level;
        f->next[level] = -BATCH;
    }

    f->first[FOLD_LEVELS] = i;
}

void fold_begin(struct fold *f, const struct ops *ops, const struct page_constants *constants,
                const struct attend_rows *rows, const struct key_columns *k, const float *mean,
                const struct rope_phase *frame, size_t first)
{
    const struct geometry *g = rows->geometry;

    f->ops = ops;
    f->constants = constants;
    f->r = k->r;
    f->cols = fold_cols_of(rows->n, k->r);
    f->codes.n_rows = rows->n;
    f->codes.n_wide = 8 * k->n_wide;
    f->codes.n_narrow = 8 * k->n_narrow;
    fold_split_levels(f, first, g->d / 2);
    for (size_t i = first; i < g->d / 2; i++) {
        size_t from = f->first[constants->fold_level[i]], n = f->first[constants->fold_level[i] + 1] - from;
        float *a = f->planes + (2 * (from - first) + i - from) * f->cols;
        bool rotates = i < g->n_rot / 2;
        double c = rotates ? frame->cos[i] : 1, s = rotates ? frame->sin[i] : 0;

        f->phase.cos[i] = c * constants->fold_start.cos[i] - s * constants->fold_start.sin[i];
        f->phase.sin[i] = s * constants->fold_start.cos[i] + c * constants->fold_start.sin[i];
        fold_fill_plane(f, rows, k, mean, i, a, a + n * f->cols);
    }

    fold_round_planes(f, rows->n);
}

/* ---- nodes ---- */

static size_t fold_slot(long node)
{
    return (unsigned long) node % FOLD_RING;
}

static const float *fold_window(const struct fold *f, unsigned level, long cell, size_t j)
{
    return f->nodes[level] + fold_slot(cell - 1 + (long) j) * f->cols;
}

/* Columns @from .. of the nodes at @ret [BATCH] in binary32: their own planes plus the level above. */
static void fold_sum_nodes(const struct fold *f, unsigned level, long cell, size_t from, float *ret)
{
    size_t n = 2 * (f->first[level + 1] - f->first[level]), cols = f->cols - from;
    const float *planes = f->planes + 2 * (f->first[level] - f->first[0]) * f->cols;

    for (size_t j = 0; j < BATCH; j++)
        memset(ret + j * f->cols + from, 0, cols * sizeof(*ret));
    f->ops->matmul(BATCH, cols, n, (struct matrix_in){f->rotations, n},
                   (struct matrix_in){planes + from, f->cols}, (struct matrix_out){ret + from, f->cols});
    for (size_t j = 0; level < f->top && j < FOLD_NODES; j++)
        f->ops->matmul(BATCH, cols, 1, (struct matrix_in){f->constants->fold_nodes[0] + j, FOLD_NODES},
                       (struct matrix_in){fold_window(f, level + 1, cell, j) + from, f->cols},
                       (struct matrix_out){ret + from, f->cols});
}

/* Nodes of level 0 at @at: whole numbers, except for the part of the mean. */
static void fold_finest_nodes(struct fold *f, long cell, float *ret, size_t at)
{
    const struct fold_codes *c = &f->codes;
    size_t offsets = c->n_rows * f->r;

    for (size_t j = 0; j < FOLD_NODES; j++)
        f->finest.above[j] = f->top > 0 ? fold_window(f, 1, cell, j) : NULL;
    f->ops->decode->nodes(&f->finest, c, at);
    fold_sum_nodes(f, 0, cell, offsets, ret);
    for (size_t j = 0; j < BATCH; j++)
        memcpy(c->offset + (at + j) * c->n_rows, ret + j * f->cols + offsets, c->n_rows * sizeof(*ret));
}

/* Makes nodes of @level up to @last; the level above already has the nodes that this needs. */
static void fold_extend(struct fold *f, unsigned level, long last)
{
    const struct rope_phase *step = &f->constants->fold_step;
    size_t from = f->first[level], n = f->first[level + 1] - from;

    for (; f->next[level] <= last; f->next[level] += BATCH) {
        size_t at = fold_slot(f->next[level]);
        float *ret = f->nodes[level] + at * f->cols;
        long cell = f->next[level] / FOLD_RATIO;

        for (size_t j = 0; j < BATCH; j++)
            f->ops->decode->rotations(n, f->phase.cos + from, f->phase.sin + from, step->cos + from,
                                      step->sin + from, f->finest.rotations + j * n, f->rotations + j * 2 * n,
                                      f->rotations + (j * 2 + 1) * n);
        if (level == 0)
            fold_finest_nodes(f, cell, ret, at);
        else
            fold_sum_nodes(f, level, cell, 0, ret);
    }
}

void fold_page(struct fold *f, size_t page, const struct key_codes *x, size_t i, size_t n, float *scores)
{
    /* of the nodes around the first tokens of the page */
    long first = (long) page * (CHUNK_TOKENS / FOLD_SPACING) - 1;
    long last[FOLD_LEVELS];

    last[0] = first + CHUNK_TOKENS / FOLD_SPACING + FOLD_NODES - 2;
    for (unsigned level = 0; level < f->top; level++)
        last[level + 1] = last[level] / FOLD_RATIO + FOLD_NODES - 2;
    for (unsigned level = f->top + 1; level-- > 0;)
        fold_extend(f, level, last[level]);
    f->ops->decode->fold(x, &f->codes, fold_slot(first), i, n, f->constants->fold_tokens, scores);
}
