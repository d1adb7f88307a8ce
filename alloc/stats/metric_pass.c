/* Softmax and weighted outer products of one window and layer; see metric_pass.h. */
#include "alloc/stats/metric_pass.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Weighted queries of one rank update: at d = 64 they fit the second-level cache. */
#define UPDATE_ROWS 1024

void pass_deinit(struct pass *p)
{
    free(p->block);
    free(p->frame);
}

static void metric_pass_fill_rotations(struct pass *p)
{
    size_t planes = p->g->n_rot / 2;

    for (size_t t = 0; t < p->n; t++)
        for (size_t i = 0; i < planes; i++) {
            double angle = p->g->freq[i] * (double) t;

            p->cosine[t * planes + i] = (float) cos(angle);
            p->sine[t * planes + i] = (float) sin(angle);
        }
}

enum { N_PARTS = 16 };

/* Floats of each part of struct pass, in the order of pass_init(). */
static void metric_pass_part_sizes(const struct geometry *g, size_t n, bool outputs,
                                   size_t ret[static N_PARTS])
{
    size_t d = g->d, group = geometry_group(g), planes = g->n_rot / 2, keys = PASS_KEY_BLOCK;
    size_t sizes[N_PARTS] = {
        n * planes,
        n * planes,
        n * d,
        group * n * d,
        group * n,
        group * n,
        group * n,
        group * n,
        keys * n,
        group * keys * n,
        group * keys * n,
        keys * d,
        UPDATE_ROWS * d,
        d * d,
        outputs ? n * d : 0,
        outputs ? group * n * d : 0,
    };

    memcpy(ret, sizes, sizeof(sizes));
    for (size_t i = 0; i < N_PARTS; i++)
        ret[i] = (ret[i] + 15) & ~(size_t) 15; /* each part on a cache line */
}

static size_t metric_pass_sum_sizes(const size_t sizes[static N_PARTS])
{
    size_t total = 0;

    for (size_t i = 0; i < N_PARTS; i++)
        total += sizes[i];
    return total;
}

uint64_t pass_bytes(const struct geometry *g, size_t n, bool outputs)
{
    size_t sizes[N_PARTS];

    metric_pass_part_sizes(g, n, outputs, sizes);
    return (uint64_t) metric_pass_sum_sizes(sizes) * sizeof(float) + (uint64_t) g->d * g->d * sizeof(double);
}

int pass_init(struct pass *p, const struct geometry *g, size_t n, size_t n_first, bool outputs)
{
    float **parts[N_PARTS] = {&p->cosine, &p->sine,    &p->key,    &p->query, &p->length,  &p->max,
                              &p->denom,  &p->squares, &p->scores, &p->probs, &p->weights, &p->sampled,
                              &p->rows,   &p->update,  &p->value,  &p->output};
    size_t sizes[N_PARTS], at = 0;

    *p = (struct pass){.g = g, .n = n, .n_first = n_first, .d = g->d, .group = geometry_group(g)};
    metric_pass_part_sizes(g, n, outputs, sizes);
    p->block = aligned_alloc(64, metric_pass_sum_sizes(sizes) * sizeof(float));
    p->frame = malloc((size_t) g->d * g->d * sizeof(double));
    if (!p->block || !p->frame)
        return -ENOMEM;

    for (size_t i = 0; i < N_PARTS; i++) {
        *parts[i] = p->block + at;
        at += sizes[i];
    }
    if (!outputs)
        p->value = p->output = NULL;

    metric_pass_fill_rotations(p);
    return 0;
}

/* ret [n, d] := R(t) x scaled, of one head's rows x with a stride. */
static void metric_pass_rotate_rows(const struct pass *p, const float *x, size_t stride, float scale,
                                    float *ret)
{
    size_t planes = p->g->n_rot / 2;

    for (size_t t = 0; t < p->n; t++) {
        const float *from = x + t * stride, *c = p->cosine + t * planes, *s = p->sine + t * planes;
        float *to = ret + t * p->d;

        for (size_t i = 0; i < planes; i++) {
            to[i] = scale * (from[i] * c[i] - from[i + planes] * s[i]);
            to[i + planes] = scale * (from[i + planes] * c[i] + from[i] * s[i]);
        }

        for (size_t i = 2 * planes; i < p->d; i++)
            to[i] = scale * from[i];
    }
}

/* Subtracts the mean over the window from the values. Since p adds up to 1, sums p v change by the same
 * constant and the differences v - sum p v do not change, but they lose fewer digits to a common offset. */
static void metric_pass_centre_values(struct pass *p, uint32_t head, const float *v)
{
    size_t d = p->d, stride = p->g->n_kv_heads * d;
    double mean[GEOMETRY_DIM_MAX] = {0};

    for (size_t t = 0; t < p->n; t++)
        for (size_t i = 0; i < d; i++)
            mean[i] += (double) v[t * stride + head * d + i] / (double) p->n;
    for (size_t t = 0; t < p->n; t++)
        for (size_t i = 0; i < d; i++)
            p->value[t * d + i] = v[t * stride + head * d + i] - (float) mean[i];
}

void pass_keys(struct pass *p, uint32_t head, const float *k, const float *v)
{
    metric_pass_rotate_rows(p, k + head * p->d, p->g->n_kv_heads * p->d, 1.0f, p->key);
    if (p->value)
        metric_pass_centre_values(p, head, v);
}

void pass_queries(struct pass *p, size_t j, uint32_t head, const float *q)
{
    float *query = p->query + j * p->n * p->d, *length = p->length + j * p->n;

    metric_pass_rotate_rows(p, q + head * p->d, p->g->n_heads * p->d, (float) p->g->attn_scale, query);
    for (size_t t = 0; t < p->n; t++) {
        float sum = 0;

        for (size_t i = 0; i < p->d; i++)
            sum += query[t * p->d + i] * query[t * p->d + i];
        length[t] = sum;
    }
}

/*
 * One query's online softmax over the scores of a block of keys, which become exp(score - max); the first
 * @n_skip of them are sinks. Return: the factor for everything summed before.
 */
static float metric_pass_softmax_step(float *score, size_t n, size_t n_skip, float *max, float *denom,
                                      float *squares)
{
    float top = *max, sum = 0, square = 0, rescale = 1;

    for (size_t j = 0; j < n; j++)
        top = score[j] > top ? score[j] : top;
    for (size_t j = 0; j < n; j++) {
        float v = score[j] = expf(score[j] - top);

        sum += v;
        if (j >= n_skip)
            square += v * v;
    }

    if (*max != top) { /* -inf at first: the factor is 0 */
        rescale = expf(*max - top);
        *denom *= rescale;
        *squares *= rescale * rescale;
        *max = top;
    }

    *denom += sum;
    *squares += square;
    return rescale;
}

/* output [n - first, d] += exp(scores) value, rows of outputs scaled to the new maxima before. */
static void metric_pass_add_values(struct pass *p, size_t j, size_t first, size_t keys)
{
    float *output = p->output + (j * p->n + first) * p->d;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) (p->n - first), (int) p->d, (int) keys, 1.0f,
                p->scores, PASS_KEY_BLOCK, p->value + first * p->d, (int) p->d, 1.0f, output, (int) p->d);
}

static void metric_pass_start_softmax(struct pass *p, size_t j)
{
    for (size_t m = 0; m < p->n; m++) {
        p->max[j * p->n + m] = -INFINITY;
        p->denom[j * p->n + m] = 0;
        p->squares[j * p->n + m] = 0;
    }
    if (p->output)
        memset(p->output + j * p->n * p->d, 0, p->n * p->d * sizeof(float));
}

static void metric_pass_finish_softmax(struct pass *p, size_t j)
{
    for (size_t m = 0; m < p->n; m++) {
        float denom = p->denom[j * p->n + m];

        p->squares[j * p->n + m] /= denom * denom;
        for (size_t i = 0; p->output && i < p->d; i++)
            p->output[(j * p->n + m) * p->d + i] /= denom;
    }
}

void pass_softmax(struct pass *p, size_t j)
{
    const float *query = p->query + j * p->n * p->d;
    float *max = p->max + j * p->n, *denom = p->denom + j * p->n, *squares = p->squares + j * p->n;

    metric_pass_start_softmax(p, j);
    for (size_t first = 0; first < p->n; first += PASS_KEY_BLOCK) {
        size_t keys = p->n - first < PASS_KEY_BLOCK ? p->n - first : PASS_KEY_BLOCK;
        size_t n_skip = p->n_first > first ? p->n_first - first : 0;

        /* causal: queries before the block's first key read none of its keys */
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) (p->n - first), (int) keys, (int) p->d,
                    1.0f, query + first * p->d, (int) p->d, p->key + first * p->d, (int) p->d, 0.0f,
                    p->scores, PASS_KEY_BLOCK);
        for (size_t m = first; m < p->n; m++) {
            size_t seen = m - first + 1 < keys ? m - first + 1 : keys;
            float *score = p->scores + (m - first) * PASS_KEY_BLOCK,
                  *output = p->output ? p->output + (j * p->n + m) * p->d : NULL;
            float rescale = metric_pass_softmax_step(score, seen, n_skip, &max[m], &denom[m], &squares[m]);

            if (!output)
                continue;

            memset(score + seen, 0, (keys - seen) * sizeof(*score));
            for (size_t i = 0; rescale != 1 && i < p->d; i++)
                output[i] *= rescale;
        }

        if (p->output)
            metric_pass_add_values(p, j, first, keys);
    }

    metric_pass_finish_softmax(p, j);
}

void pass_sample(struct pass *p, const size_t *at, size_t n_keys)
{
    size_t first = at[0], n = p->n - first;

    for (size_t i = 0; i < n_keys; i++)
        memcpy(p->sampled + i * p->d, p->key + at[i] * p->d, p->d * sizeof(float));
    for (size_t j = 0; j < p->group; j++) {
        const float *max = p->max + j * p->n, *denom = p->denom + j * p->n;
        float *probs = p->probs + j * PASS_KEY_BLOCK * p->n;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n_keys, (int) n, (int) p->d, 1.0f,
                    p->sampled, (int) p->d, p->query + (j * p->n + first) * p->d, (int) p->d, 0.0f,
                    probs + first, (int) p->n);
        for (size_t i = 0; i < n_keys; i++)
            for (size_t m = at[i]; m < p->n; m++)
                probs[i * p->n + m] = expf(probs[i * p->n + m] - max[m]) / denom[m];
    }
}

/*
 * update := sum over the group and m >= n of weight * q q' for sampled key @i at position @at: one symmetric
 * rank update (cut into pieces of UPDATE_ROWS). Queries whose terms together stay below half a unit in the
 * last place of the sum's trace are left out: in most heads few queries give a key any weight.
 */
static void metric_pass_update_key(struct pass *p, size_t i, size_t at)
{
    size_t n_rows = 0, d = p->d;
    double trace = 0;
    float least, beta = 0.0f;

    for (size_t j = 0; j < p->group; j++) {
        const float *w = p->weights + (j * PASS_KEY_BLOCK + i) * p->n, *length = p->length + j * p->n;

        for (size_t m = at; m < p->n; m++)
            trace += (double) (w[m] * length[m]);
    }

    least = (float) (trace * 0x1p-24 / (double) (p->group * (p->n - at)));
    memset(p->update, 0, d * d * sizeof(float));
    for (size_t j = 0; j < p->group; j++) {
        const float *w = p->weights + (j * PASS_KEY_BLOCK + i) * p->n, *length = p->length + j * p->n;

        for (size_t m = at; m < p->n; m++) {
            const float *from = p->query + (j * p->n + m) * d;
            float *to = p->rows + n_rows * d, root;

            if (w[m] * length[m] <= least)
                continue;

            root = sqrtf(w[m]);
            for (size_t c = 0; c < d; c++)
                to[c] = root * from[c];
            if (++n_rows == UPDATE_ROWS) {
                cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int) d, (int) n_rows, 1.0f, p->rows,
                            (int) d, beta, p->update, (int) d);
                beta = 1.0f;
                n_rows = 0;
            }
        }
    }

    if (n_rows > 0)
        cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int) d, (int) n_rows, 1.0f, p->rows, (int) d,
                    beta, p->update, (int) d);
}

/* Rows (or, transposed by strides, columns) of a [d, d]: x := R(n)' x, plane by plane. */
static void metric_pass_unrotate(double *a, size_t d, size_t planes, size_t row, size_t column,
                                 const float *c, const float *s)
{
    for (size_t i = 0; i < planes; i++)
        for (size_t t = 0; t < d; t++) {
            double *x = a + t * row + i * column, *y = x + planes * column;
            double cosine = (double) c[i], sine = (double) s[i], x0 = *x;

            *x = x0 * cosine + *y * sine;
            *y = *y * cosine - x0 * sine;
        }
}

void pass_add_key(struct pass *p, size_t i, size_t at, double scale, double *sum)
{
    size_t d = p->d, planes = p->g->n_rot / 2;
    const float *c = p->cosine + at * planes, *s = p->sine + at * planes;

    metric_pass_update_key(p, i, at);
    for (size_t a = 0; a < d; a++)
        for (size_t b = 0; b <= a; b++)
            p->frame[a * d + b] = p->frame[b * d + a] = (double) p->update[a * d + b];
    metric_pass_unrotate(p->frame, d, planes, d, 1, c, s);
    metric_pass_unrotate(p->frame, d, planes, 1, d, c, s);
    for (size_t a = 0; a < d; a++)
        for (size_t b = 0; b <= a; b++) {
            /* both triangles get the same number: the sum stays exactly symmetric */
            double v = scale * p->frame[a * d + b];

            sum[a * d + b] += v;
            if (a != b)
                sum[b * d + a] += v;
        }
}
