/* Conversion of a caller's activations; see stats_input.h. */
#include "alloc/api/stats_input.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/kvcobra-alloc.h"
#include "alloc/stats/stats.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/rope.h"

#define POSITION_MAX (1ull << 31) /* beyond it angles have no digits left */

void stats_input_deinit(struct stats_input *in)
{
    for (size_t i = 0; i < sizeof(in->scratch) / sizeof(in->scratch[0]); i++)
        free(in->scratch[i]);
    *in = (struct stats_input){.scratch = {NULL}};
}

static int stats_input_reserve(struct stats_input *in, enum stats_input_place place, size_t n,
                               struct errmsg *e)
{
    size_t bytes;
    float *grown;

    if (in->n_scratch[place] >= n)
        return 0;
    if (!checked_mul(n, sizeof(*grown), &bytes))
        return fail(e, -ENOMEM, "out of memory for a window");

    grown = realloc(in->scratch[place], bytes);
    if (!grown)
        return fail(e, -ENOMEM, "out of memory for a window: %zu MiB", bytes >> 20);

    in->scratch[place] = grown;
    in->n_scratch[place] = n;
    return 0;
}

static int stats_input_check_dtype(uint32_t dtype, struct errmsg *e)
{
    if (dtype != KVC_F32 && dtype != KVC_F16 && dtype != KVC_BF16)
        return fail(e, -EINVAL, "dtype is %u: KVC_F32, KVC_F16 and KVC_BF16 are possible", dtype);

    return 0;
}

/* ret[i] := number i of x at a distance of @stride numbers. */
static void stats_input_read(const void *x, uint32_t dtype, size_t at, size_t stride, size_t n, float *ret)
{
    const uint16_t *halves = x;

    switch (dtype) {
    case KVC_F16:
        for (size_t i = 0; i < n; i++)
            ret[i] = f16_to_f32(halves[at + i * stride]);
        return;
    case KVC_BF16:
        for (size_t i = 0; i < n; i++)
            ret[i] = bf16_to_f32(halves[at + i * stride]);
        return;
    default:
        break;
    }
    for (size_t i = 0; i < n; i++)
        ret[i] = ((const float *) x)[at + i * stride];
}

static int stats_input_check_vectors(const struct geometry *g, const struct stats_vectors *v, size_t token,
                                     size_t head, const char *name, struct errmsg *e)
{
    size_t tokens, heads, end;
    int r = stats_input_check_dtype(v->dtype, e);

    if (r < 0)
        return r;
    if (v->n == 0 || v->n > KVC_WINDOW_TOKENS_MAX)
        return fail(e, -EINVAL, "a window of %zu tokens is not in 1..%d", v->n, KVC_WINDOW_TOKENS_MAX);
    if (v->keys != KVC_KEYS_BEFORE_ROPE && v->keys != KVC_KEYS_AFTER_ROPE)
        return fail(e, -EINVAL, "keys is %u: KVC_KEYS_BEFORE_ROPE and KVC_KEYS_AFTER_ROPE are possible",
                    v->keys);
    if (v->pairs != KVC_PAIRS_HALF_SPLIT && v->pairs != KVC_PAIRS_INTERLEAVED)
        return fail(e, -EINVAL, "pairs is %u: KVC_PAIRS_HALF_SPLIT and KVC_PAIRS_INTERLEAVED are possible",
                    v->pairs);
    if (v->keys == KVC_KEYS_AFTER_ROPE && v->position > POSITION_MAX - v->n)
        return fail(e, -EINVAL, "position %llu: keys after RoPE have positions up to %llu",
                    (unsigned long long) v->position, POSITION_MAX);
    if ((v->n > 1 && token < g->d) || (v->n_heads > 1 && head < g->d))
        return fail(e, -EINVAL, "%s: strides of %zu and %zu numbers let vectors of %u numbers overlap", name,
                    token, head, g->d);
    if (!checked_mul(v->n, token, &tokens) || !checked_mul(v->n_heads, head, &heads) ||
        !checked_add(tokens, heads, &end) || end > SIZE_MAX / sizeof(float))
        return fail(e, -EINVAL, "%s: strides of %zu and %zu numbers exceed the memory of a process", name,
                    token, head);

    return 0;
}

/* x [d], interleaved in its rotary part, becomes half-split. */
static void stats_input_split_pairs(const struct geometry *g, float *x)
{
    float split[GEOMETRY_DIM_MAX];

    for (uint32_t i = 0; i < g->n_rot / 2; i++) {
        split[i] = x[2 * i];
        split[i + g->n_rot / 2] = x[2 * i + 1];
    }
    memcpy(x, split, g->n_rot * sizeof(*x));
}

int stats_input_vectors(struct stats_input *in, const struct geometry *g, const struct stats_vectors *v,
                        enum stats_input_place place, const char *name, const float **ret, struct errmsg *e)
{
    size_t d = g->d, row = v->n_heads * d, head = v->head_stride ? v->head_stride : d;
    size_t token = v->token_stride ? v->token_stride : row;
    bool rotated = v->keys == KVC_KEYS_AFTER_ROPE && g->n_rot > 0;
    bool interleaved = v->pairs == KVC_PAIRS_INTERLEAVED && g->n_rot > 0;
    int r = stats_input_check_vectors(g, v, token, head, name, e);
    float *to;

    if (r < 0)
        return r;
    if (v->dtype == KVC_F32 && token == row && head == d && !rotated && !interleaved) {
        *ret = v->x;
        return 0;
    }

    r = stats_input_reserve(in, place, v->n * row, e);
    if (r < 0)
        return r;

    to = in->scratch[place];
    for (size_t t = 0; t < v->n; t++) {
        struct rope_phase back;

        if (rotated) /* R(-m) undoes R(m) */
            rope_phase_at(g, -(double) (v->position + t), &back);
        for (size_t h = 0; h < v->n_heads; h++, to += d) {
            stats_input_read(v->x, v->dtype, t * token + h * head, 1, d, to);
            if (interleaved)
                stats_input_split_pairs(g, to);
            if (rotated)
                rope_rotate(g, &back, to, to);
        }
    }

    *ret = in->scratch[place];
    return 0;
}

/* Checks a matrix [rows, columns] with these strides, none of them 0. */
static int stats_input_check_matrix(uint32_t dtype, size_t rows, size_t columns, size_t row_stride,
                                    size_t column_stride, const char *name, struct errmsg *e)
{
    size_t down, right, end;
    int r = stats_input_check_dtype(dtype, e);

    if (r < 0)
        return r;
    if (rows == 0 || columns == 0 || !checked_mul(rows, row_stride, &down) ||
        !checked_mul(columns, column_stride, &right) || !checked_add(down, right, &end) ||
        end > SIZE_MAX / sizeof(float))
        return fail(e, -EINVAL, "%s: [%zu, %zu] numbers with strides of %zu and %zu is not a matrix", name,
                    rows, columns, row_stride, column_stride);

    return 0;
}

int stats_input_mean_squares(struct stats_input *in, const void *x, uint32_t dtype, size_t n, size_t n_embd,
                             size_t token_stride, const float **ret, struct errmsg *e)
{
    size_t stride = token_stride ? token_stride : n_embd;
    float *means, *row;
    int r;

    if (n_embd == 0 || n_embd > STATS_EMBD_MAX)
        return fail(e, -EINVAL, "n_embd is %zu: the residual stream has 1 to %d numbers", n_embd,
                    STATS_EMBD_MAX);
    r = stats_input_check_matrix(dtype, n, n_embd, stride, 1, "the residual stream", e);
    if (r == 0)
        r = stats_input_reserve(in, INPUT_RESIDUAL, n + n_embd, e);
    if (r < 0)
        return r;

    means = in->scratch[INPUT_RESIDUAL];
    row = means + n;
    for (size_t t = 0; t < n; t++) {
        double sum = 0;

        stats_input_read(x, dtype, t * stride, 1, n_embd, row);
        for (size_t j = 0; j < n_embd; j++)
            sum += (double) row[j] * (double) row[j];
        means[t] = (float) (sum / (double) n_embd);
    }

    *ret = means;
    return 0;
}

int stats_input_matrix(const void *x, uint32_t dtype, size_t rows, size_t columns, size_t row_stride,
                       size_t column_stride, float **ret_copy, struct errmsg *e)
{
    size_t column = column_stride ? column_stride : 1, row = row_stride ? row_stride : columns * column;
    int r = stats_input_check_matrix(dtype, rows, columns, row, column, "the output projection", e);
    float *copy;

    if (r < 0)
        return r;
    if (dtype == KVC_F32 && column == 1 && row == columns) {
        *ret_copy = NULL;
        return 0;
    }

    copy = reallocarray(NULL, rows * columns, sizeof(*copy));
    if (!copy)
        return fail(e, -ENOMEM, "out of memory for an output projection");

    for (size_t i = 0; i < rows; i++)
        stats_input_read(x, dtype, i * row, column, columns, copy + i * columns);
    *ret_copy = copy;
    return 0;
}
