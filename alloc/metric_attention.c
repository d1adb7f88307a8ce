/*
 * The attention metric (DESIGN 3.1): how much the attention output, and the distribution behind it, suffers from an
 * error of a key or a value.
 *
 *   K: an error e of key n changes the score of query m by scale <R(m) q, R(n) e> = scale <q~, e> with
 *      q~ = R(n)' R(m) q, and the softmax by its Fisher information p(1-p). So M = sum over the group's query heads
 *      and m >= n of p(1-p) scale^2 q~ q~', averaged over keys n. (scale^2 is the 1/d of the text.)
 *   V: an error e of value n moves head h's output by p_mn e and the residual stream by W_O,h p_mn e. So
 *      M = sum_h E[sum_m p_mn^2] W_O,h' W_O,h.
 *
 * Never a [T, T] array: scores exist for one block of keys at a time. A first pass over all keys finds each query's
 * maximum, denominator and sum of squares (online softmax); a second one makes the weights of the sampled keys only.
 */
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats_internal.h"
#include "base/cleanup.h"

#define KEY_BLOCK 128  /* keys of one block of scores */
#define UPDATE_ROWS 1024 /* weighted queries of one rank update: with d = 64 they stay in the second-level cache */

/* What one window and layer need; all [n, ...] arrays row-major. */
struct pass {
    size_t n, n_first, d, group;
    float *cosine, *sine;  /* [n, n_rot/2] of R(position) */
    float *key;            /* [n, d] rotated keys of one KV head */
    float *query;          /* [group, n, d] rotated queries times the attention scale */
    float *length;         /* [group, n] squared lengths of those */
    float *max, *denom;    /* [group, n] softmax of each query: largest score, sum of exp(score - max) */
    float *squares;        /* [n] sum over keys that count of exp(score - max)^2 */
    float *scores;         /* [KEY_BLOCK, n] or [n, KEY_BLOCK] */
    float *weights;        /* [group, KEY_BLOCK, n] p(1-p) of a block of sampled keys */
    float *sampled;        /* [KEY_BLOCK, d] rotated sampled keys */
    float *rows;           /* [UPDATE_ROWS, d] sqrt(weight) * query */
    float *update;         /* [d, d] */
    double *frame;         /* [d, d] the update in a key's own frame */
    float *block;          /* all of the floats above */
};

static void pass_deinit(struct pass *p)
{
    free(p->block);
    free(p->frame);
}

static int pass_init(struct pass *p, const struct geometry *g, size_t n, size_t n_first)
{
    size_t d = g->d, group = geometry_group(g), planes = g->n_rot / 2;
    size_t sizes[] = { n * planes, n * planes, n * d, group * n * d, group * n, group * n, group * n, n,
                       KEY_BLOCK * n, group * KEY_BLOCK * n, KEY_BLOCK * d, UPDATE_ROWS * d, d * d };
    float **parts[] = { &p->cosine, &p->sine, &p->key, &p->query, &p->length, &p->max, &p->denom, &p->squares,
                        &p->scores, &p->weights, &p->sampled, &p->rows, &p->update };
    size_t total = 0;

    *p = (struct pass) { .n = n, .n_first = n_first, .d = d, .group = group };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        total += (sizes[i] + 15) & ~(size_t) 15; /* each part on a cache line */
    p->block = aligned_alloc(64, total * sizeof(float));
    p->frame = malloc(d * d * sizeof(double));
    if (!p->block || !p->frame)
        return -ENOMEM;
    total = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        *parts[i] = p->block + total;
        total += (sizes[i] + 15) & ~(size_t) 15;
    }
    return 0;
}

static void fill_rotations(struct pass *p, const struct geometry *g)
{
    size_t planes = g->n_rot / 2;

    for (size_t t = 0; t < p->n; t++)
        for (size_t i = 0; i < planes; i++) {
            double angle = g->freq[i] * (double) t;

            p->cosine[t * planes + i] = (float) cos(angle);
            p->sine[t * planes + i] = (float) sin(angle);
        }
}

/* ret [n, d] := R(t) x scaled, of one head's rows x with a stride. */
static void rotate_rows(const struct pass *p, const struct geometry *g, const float *x, size_t stride, float scale,
                        float *ret)
{
    size_t planes = g->n_rot / 2;

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

/* One query's online softmax over the scores of a block of keys; the first @n_skip of them are sinks. */
static void softmax_step(const float *score, size_t n, size_t n_skip, float *max, float *denom, float *squares)
{
    float top = *max, sum = 0, square = 0;

    for (size_t j = 0; j < n; j++)
        top = score[j] > top ? score[j] : top;
    for (size_t j = 0; j < n; j++) {
        float v = expf(score[j] - top);

        sum += v;
        if (j >= n_skip)
            square += v * v;
    }
    if (*max != top) { /* -inf at first: the factor is 0 */
        float rescale = expf(*max - top);

        *denom *= rescale;
        *squares *= rescale * rescale;
        *max = top;
    }
    *denom += sum;
    *squares += square;
}

/* First pass of query head @j of the group: max and denom of every query. Returns sum over queries and keys of p^2. */
static double softmax_pass(struct pass *p, size_t j)
{
    const float *query = p->query + j * p->n * p->d;
    float *max = p->max + j * p->n, *denom = p->denom + j * p->n;
    double sum = 0;

    for (size_t m = 0; m < p->n; m++) {
        max[m] = -INFINITY;
        denom[m] = 0;
        p->squares[m] = 0;
    }
    for (size_t first = 0; first < p->n; first += KEY_BLOCK) {
        size_t keys = p->n - first < KEY_BLOCK ? p->n - first : KEY_BLOCK;
        size_t n_skip = p->n_first > first ? p->n_first - first : 0;

        /* causal: queries before the block's first key see none of it */
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) (p->n - first), (int) keys, (int) p->d, 1.0f,
                    query + first * p->d, (int) p->d, p->key + first * p->d, (int) p->d, 0.0f, p->scores,
                    KEY_BLOCK);
        for (size_t m = first; m < p->n; m++) {
            size_t seen = m - first + 1 < keys ? m - first + 1 : keys;

            softmax_step(p->scores + (m - first) * KEY_BLOCK, seen, n_skip, &max[m], &denom[m], &p->squares[m]);
        }
    }
    for (size_t m = p->n_first; m < p->n; m++)
        sum += (double) p->squares[m] / ((double) denom[m] * (double) denom[m]);
    return sum;
}

/* Weights p(1-p) of the sampled keys at[0..n_keys) for every query of head @j: weights [key][query]. */
static void weigh_keys(struct pass *p, size_t j, const size_t *at, size_t n_keys)
{
    const float *max = p->max + j * p->n, *denom = p->denom + j * p->n;
    float *weights = p->weights + j * KEY_BLOCK * p->n;
    size_t first = at[0], n = p->n - first;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n_keys, (int) n, (int) p->d, 1.0f, p->sampled,
                (int) p->d, p->query + (j * p->n + first) * p->d, (int) p->d, 0.0f, weights + first, (int) p->n);
    for (size_t i = 0; i < n_keys; i++) {
        float *w = weights + i * p->n;

        for (size_t m = at[i]; m < p->n; m++) {
            float prob = expf(w[m] - max[m]) / denom[m];

            w[m] = fmaxf(prob * (1.0f - prob), 0.0f); /* rounding may leave prob a little above 1 */
        }
    }
}

/*
 * update := sum over the group and m >= n of weight * q q' for sampled key @i at position @at: one symmetric rank
 * update (cut into pieces of UPDATE_ROWS). Queries whose terms together stay below half a unit in the last place of
 * the sum's trace are left out: in most heads a key is read by few.
 */
static void update_key(struct pass *p, size_t i, size_t at)
{
    size_t n_rows = 0, d = p->d;
    double trace = 0;
    float least, beta = 0.0f;

    for (size_t j = 0; j < p->group; j++) {
        const float *w = p->weights + (j * KEY_BLOCK + i) * p->n, *length = p->length + j * p->n;

        for (size_t m = at; m < p->n; m++)
            trace += (double) (w[m] * length[m]);
    }
    least = (float) (trace * 0x1p-24 / (double) (p->group * (p->n - at)));
    memset(p->update, 0, d * d * sizeof(float));
    for (size_t j = 0; j < p->group; j++) {
        const float *w = p->weights + (j * KEY_BLOCK + i) * p->n, *length = p->length + j * p->n;

        for (size_t m = at; m < p->n; m++) {
            const float *from = p->query + (j * p->n + m) * d;
            float *to = p->rows + n_rows * d, root;

            if (w[m] * length[m] <= least)
                continue;
            root = sqrtf(w[m]);
            for (size_t c = 0; c < d; c++)
                to[c] = root * from[c];
            if (++n_rows == UPDATE_ROWS) {
                cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int) d, (int) n_rows, 1.0f, p->rows, (int) d,
                            beta, p->update, (int) d);
                beta = 1.0f;
                n_rows = 0;
            }
        }
    }
    if (n_rows > 0)
        cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int) d, (int) n_rows, 1.0f, p->rows, (int) d, beta,
                    p->update, (int) d);
}

/* Rows (or, transposed by strides, columns) of a [d, d]: x := R(n)' x, plane by plane. */
static void unrotate(double *a, size_t d, size_t planes, size_t row, size_t column, const float *c, const float *s)
{
    for (size_t i = 0; i < planes; i++)
        for (size_t t = 0; t < d; t++) {
            double *x = a + t * row + i * column, *y = x + planes * column;
            double cosine = (double) c[i], sine = (double) s[i], x0 = *x;

            *x = x0 * cosine + *y * sine;
            *y = *y * cosine - x0 * sine;
        }
}

/* sum [d, d] += scale * R(at)' update R(at) */
static void add_in_key_frame(struct pass *p, const struct geometry *g, size_t at, double scale, double *sum)
{
    size_t d = p->d, planes = g->n_rot / 2;
    const float *c = p->cosine + at * planes, *s = p->sine + at * planes;

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++)
            p->frame[i * d + j] = p->frame[j * d + i] = (double) p->update[i * d + j];
    unrotate(p->frame, d, planes, d, 1, c, s);
    unrotate(p->frame, d, planes, 1, d, c, s);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++) { /* one triangle decides: the sum stays exactly symmetric */
            double v = scale * p->frame[i * d + j];

            sum[i * d + j] += v;
            if (i != j)
                sum[j * d + i] += v;
        }
}

/* Second pass: the K metric of one KV head from every stride-th key. */
static void add_key_metric(struct pass *p, const struct geometry *g, uint32_t stride, uint64_t key_seed, double *sum)
{
    size_t n_keys = p->n - p->n_first, step = stride < n_keys ? stride : n_keys;
    size_t offset = (size_t) (key_seed % step), n_sampled = (n_keys - offset + step - 1) / step;
    double scale = (double) n_keys / (double) n_sampled;

    for (size_t done = 0; done < n_sampled; done += KEY_BLOCK) {
        size_t at[KEY_BLOCK], n = n_sampled - done < KEY_BLOCK ? n_sampled - done : KEY_BLOCK;

        for (size_t i = 0; i < n; i++) {
            at[i] = p->n_first + offset + (done + i) * step;
            memcpy(p->sampled + i * p->d, p->key + at[i] * p->d, p->d * sizeof(float));
        }
        for (size_t j = 0; j < p->group; j++)
            weigh_keys(p, j, at, n);
        for (size_t i = 0; i < n; i++) {
            update_key(p, i, at[i]);
            add_in_key_frame(p, g, at[i], scale, sum);
        }
    }
}

static void square_lengths(struct pass *p)
{
    for (size_t t = 0; t < p->group * p->n; t++) {
        float sum = 0;

        for (size_t i = 0; i < p->d; i++)
            sum += p->query[t * p->d + i] * p->query[t * p->d + i];
        p->length[t] = sum;
    }
}

int metric_attention_add(struct stats *s, uint32_t layer, size_t n, size_t n_first, uint64_t key_seed, const float *q,
                         const float *k)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, group = geometry_group(g);
    _cleanup_(pass_deinit) struct pass p = { 0 };
    int r = pass_init(&p, g, n, n_first);

    if (r < 0)
        return r;
    fill_rotations(&p, g);
    for (uint32_t kv = 0; kv < g->n_kv_heads; kv++) {
        double *metric_k = s->metric + (size_t) head_side_index(g, layer, kv, SIDE_K) * d * d;
        double *metric_v = s->metric + (size_t) head_side_index(g, layer, kv, SIDE_V) * d * d;

        rotate_rows(&p, g, k + kv * d, g->n_kv_heads * d, 1.0f, p.key);
        for (size_t j = 0; j < group; j++) {
            size_t head = kv * group + j;
            const double *wo = s->wo + ((size_t) layer * g->n_heads + head) * d * d;
            double squares;

            rotate_rows(&p, g, q + head * d, g->n_heads * d, (float) g->attn_scale, p.query + j * n * d);
            squares = softmax_pass(&p, j);
            for (size_t i = 0; i < d * d; i++)
                metric_v[i] += squares * wo[i];
        }
        square_lengths(&p);
        add_key_metric(&p, g, s->o.key_stride, key_seed, metric_k);
    }
    return 0;
}
