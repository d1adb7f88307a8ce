/* See solver.h. */
#include "alloc/solve/solver.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/math/blas_threads.h"
#include "alloc/math/linalg.h"
#include "alloc/quantiser/trellis_fit.h"
#include "alloc/solve/metric.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "alloc/table/levels.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/threads.h"

/* Variance of each source beside that of all of them together, mean over head-sides. */
static void solver_compare_variances(const struct solver *v, double ret[static STATS_DOMAINS_MAX])
{
    size_t n_hs = head_side_count(v->g), d = v->g->d;

    for (uint32_t i = 0; i < v->n_sources; i++)
        ret[i] = 0;
    for (size_t hs = 0; hs < n_hs; hs++) {
        double variance[STATS_DOMAINS_MAX] = {0}, all = 0;

        for (uint32_t i = 0; i < v->n_sources; i++) {
            const struct stats_domain *from = &v->s->domains[v->sources[i]];

            variance[i] = linalg_trace(d, from->scatter + hs * d * d) / (double) from->n_tokens;
            all += v->share[i] * variance[i];
        }
        for (uint32_t i = 0; all > 0 && i < v->n_sources; i++)
            ret[i] += variance[i] / all / (double) n_hs;
    }
}

/* The value of the source in the middle of the tokens, if sources are sorted by @x. */
static double solver_median(const struct solver *v, const double *x)
{
    double median = INFINITY;

    for (uint32_t i = 0; i < v->n_sources; i++) {
        double up_to = 0;

        for (uint32_t j = 0; j < v->n_sources; j++)
            up_to += x[j] <= x[i] ? v->share[j] : 0;
        if (up_to > 0.5 && x[i] < median)
            median = x[i];
    }
    return median;
}

static void solver_set_shares(struct solver *v)
{
    double n_tokens = 0;

    for (uint32_t i = 0; i < v->n_sources; i++)
        n_tokens += (double) v->n_tokens[v->sources[i]];
    for (uint32_t i = 0; i < v->n_sources; i++)
        v->share[i] = (double) v->n_tokens[v->sources[i]] / n_tokens;
}

/* Reduces the tokens of odd sources (solver.h). */
static void solver_reduce_odd_sources(struct solver *v)
{
    double variance[STATS_DOMAINS_MAX] = {0}, median;

    solver_compare_variances(v, variance);
    median = solver_median(v, variance);
    if (!(median > 0) || !isfinite(median)) /* most of the text is odd: nothing can be said about the rest */
        return;

    for (uint32_t i = 0; i < v->n_sources; i++) {
        uint64_t *n = &v->n_tokens[v->sources[i]];
        double others = (double) *n / v->share[i] * (1 - v->share[i]);

        if (variance[i] > median * SOLVER_ODD && v->share[i] < SOLVER_WIDE_SHARE)
            *n = 0;
        else if (variance[i] * SOLVER_ODD < median && v->share[i] > SOLVER_NARROW_SHARE)
            *n = (uint64_t) (others * SOLVER_NARROW_SHARE);
        else
            continue;

        v->reduced |= 1u << v->sources[i];
    }
    solver_set_shares(v);
}

/* The rows of every source, one source after another; of a reduced source fewer. */
static int solver_take_rows(struct solver *v)
{
    const struct stats *s = v->s;

    v->rows = malloc((s->n_held + 1) * sizeof(*v->rows));
    if (!v->rows)
        return -ENOMEM;

    for (uint32_t i = 0; i < v->n_sources; i++) {
        uint32_t source = v->sources[i];
        uint64_t n = v->n_tokens[source], n_seen = 0;
        uint64_t step = n > 0 ? (s->domains[source].n_tokens + n - 1) / n : 0; /* 0: no sample is taken */

        v->first[i] = v->n;
        for (size_t t = 0; step > 0 && t < s->n_held; t++)
            if (s->domain_of[t] == source && ++n_seen % step == 0)
                v->rows[v->n++] = (uint32_t) t;
    }

    v->first[v->n_sources] = v->n;
    return 0;
}

/* The sources of the solve and their samples. */
static int solver_take_sources(struct solver *v, uint32_t mask)
{
    const struct stats *s = v->s;

    for (uint32_t i = 0; i < s->n_domains; i++)
        if (mask >> i & 1) {
            v->n_tokens[i] = s->domains[i].n_tokens;
            v->sources[v->n_sources++] = i;
            v->mask |= 1u << i;
        }
    solver_set_shares(v);
    if (v->o.leave_out && v->o.method == METHOD_BANDS)
        solver_reduce_odd_sources(v);
    if (solver_take_rows(v) < 0)
        return -ENOMEM;

    for (uint32_t i = 0; i < v->n_sources; i++)
        v->largest_share = fmax(v->largest_share, v->share[i]);
    v->leaves_out = v->o.leave_out && v->o.method == METHOD_BANDS && v->n_sources > 1 && v->n > 0 &&
                    v->largest_share <= SOLVER_SHARE_MAX;
    return 0;
}

/* The head-sides with their means and weights. */
static int solver_init_heads(struct solver *v)
{
    const struct geometry *g = v->g;
    size_t d = g->d;

    v->heads = calloc(head_side_count(g), sizeof(*v->heads));
    v->metrics = calloc(head_side_count(g), sizeof(*v->metrics));
    if (!v->heads || !v->metrics)
        return -ENOMEM;

    for (uint32_t hs = 0; hs < head_side_count(g); hs++) {
        struct head *h = &v->heads[v->n_heads++];
        uint32_t layer = hs / (2 * g->n_kv_heads);

        h->mean = malloc(d * sizeof(*h->mean));
        h->dec = malloc(d * d * sizeof(*h->dec));
        if (!h->mean || !h->dec || transform_init(&h->t, g->d) < 0)
            return -ENOMEM;

        solver_moments(v, hs, v->mask, h->mean, h->dec); /* h->dec has the room that is needed */
        /* depth weights are KL per unit of the attention metric: they do not apply to other metrics */
        h->weight = v->o.depth_weights && v->o.metric == METRIC_ATTENTION
                        ? metric_depth_weight(v->s, layer, (enum side)(hs % 2))
                        : 1;
    }

    return 0;
}

/* Memory of a step for one head-side: the sums of a prediction (solve_regression.c) are the largest. */
static double solver_item_bytes(const struct solver *v)
{
    double d = v->g->d, m = v->o.v_from == PREDICT_LAYER ? v->g->n_kv_heads * d : d;

    return (2.0 * v->n_sources + 1) * (m + d) * (m + d) * sizeof(double);
}

/* Without a number of the caller: as many threads as there are processors, and as a quarter of the machine's
 * memory has room for; the caller's alone if no other can be started. */
static int solver_start_threads(struct solver *v, struct errmsg *e)
{
    double memory = (double) sysconf(_SC_PHYS_PAGES) * (double) sysconf(_SC_PAGESIZE);
    double most = memory / 4 / solver_item_bytes(v);
    unsigned n = v->o.n_threads;
    int r;

    if (n > 0)
        return threads_new(n, &v->threads, e);

    n = threads_available();
    if (n > most)
        n = most > 1 ? (unsigned) most : 1;
    r = threads_new(n, &v->threads, NULL);
    if (r == -EAGAIN)
        return 0;
    return r < 0 ? fail(e, r, "out of memory for threads") : 0;
}

/* Levels that stay if none are fitted. Those of another table have its loading already. */
static int solver_init_levels(struct solver *v)
{
    int r = 0;

    if (v->o.levels_from) {
        memcpy(v->levels, v->o.levels_from->levels, sizeof(v->levels));
        return 0;
    }

    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX && r == 0; b++)
            r = trellis_scale(v->model.books[b].state_bits > 0 ? &v->model.books[b] : &v->model.levels[b], b,
                              solve_loading(&v->o, side, b), &v->levels[side][b]);
    return r;
}

/* Of the trellises that the table will have; 0: none. */
static unsigned solver_state_bits(const struct solver *v)
{
    unsigned bits = 0;

    if (v->o.levels_from)
        return v->o.levels_from->levels[SIDE_K][1].state_bits;
    while (v->o.trellis_states > 1u << bits)
        bits++;
    return bits;
}

/*
 * The first planes, which turn by more than SOLVER_CUT radians per token, are the first block of keys:
 * attention computes their keys, and folds the others (gpu/cpu/fold.h). Their number is rounded to whole
 * bands.
 */
static void solver_init_blocks(struct solver *v)
{
    const struct geometry *g = v->g;
    uint32_t half = g->n_rot / 2, n = 0, first = 0, rest;

    while (n < half && fabs(g->freq[n]) > SOLVER_CUT)
        n++;
    n = (2 * n + BAND_COORDS / 2) / BAND_COORDS * BAND_COORDS / 2;
    if (!v->o.blocks || n == 0 || n > half || 2 * n >= g->d)
        return;

    v->fast_planes = n;
    v->blocks.n_first = rest = 2 * n;
    for (uint32_t i = 0; i < g->d; i++)
        v->blocks.dim[geometry_in_planes(g, n, i) ? first++ : rest++] = (uint16_t) i;
}

int solver_init_with(struct solver *v, const struct stats *s, const struct solve_options *o, uint32_t mask,
                     struct errmsg *e)
{
    int r;

    *v = (struct solver){.s = s, .g = &s->o.geometry, .o = *o, .only_layer = ALL_LAYERS};
    r = solve_options_check(s, o, e);
    if (r < 0)
        return r;

    (void) blas_threads_single();
    v->single_blas = true;
    if (solver_take_sources(v, mask) < 0)
        return fail(e, -ENOMEM, "out of memory for solving");

    r = solver_start_threads(v, e);
    if (r < 0)
        return r;

    solver_init_blocks(v);
    if (o->blocks && v->fast_planes == 0)
        return fail(
            e, -EINVAL,
            "the model's RoPE planes are all fast or all slow, so its keys have one block: solve with "
            "--frame 1");

    v->half = o->half_matrices && solver_state_bits(v) > 0;
    r = curve_model_init(&v->model, o->curve, o->quantiser, solver_state_bits(v));
    if (r < 0)
        return fail(e, r, "the quantiser has no levels");

    r = solver_init_levels(v);
    if (r < 0)
        return fail(e, r, "the quantiser has no levels");

    return solver_init_heads(v) < 0 ? fail(e, -ENOMEM, "out of memory for solving") : 0;
}

int solver_init(struct solver *v, const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    return solver_init_with(v, s, o, UINT32_MAX, e);
}

void solver_deinit(struct solver *v)
{
    v->threads = threads_free(v->threads);
    if (v->single_blas)
        blas_threads_restore(NULL);
    free(v->rows);
    for (uint32_t hs = 0; hs < v->n_heads; hs++) {
        free(v->heads[hs].mean);
        free(v->heads[hs].dec);
        free(v->heads[hs].predict);
        free(v->heads[hs].codes);
        free(v->heads[hs].decoder.mean);
        free(v->heads[hs].decoder.predict);
        free(v->heads[hs].decoder.dec);
        transform_deinit(&v->heads[hs].t);
        free(v->metrics[hs].M);
        transform_roots_deinit(&v->metrics[hs].roots);
    }
    free(v->heads);
    free(v->metrics);
    *v = (struct solver){.n_heads = 0};
}

int solver_fail(uint32_t layer, uint32_t head, enum side side, int err, struct errmsg *e)
{
    char letter = side == SIDE_K ? 'K' : 'V';

    if (err == -ENOMEM)
        return fail(e, -ENOMEM, "out of memory for layer %u, head %u, side %c", layer, head, letter);

    return fail(e, -EINVAL,
                "layer %u, head %u, side %c: its covariance, metric or samples are too large for a transform",
                layer, head, letter);
}

float *solver_samples(const struct solver *v, uint32_t head_side)
{
    size_t d = v->g->d;
    float *x = malloc((v->n * d + 1) * sizeof(*x));

    if (x)
        sample_code_read(v->s, head_side, v->rows, v->n, 1, x);
    return x;
}

void solver_moments(const struct solver *v, uint32_t head_side, uint32_t mask, double *ret_mean,
                    double *ret_S)
{
    size_t d = v->g->d, dd = d * d;
    uint64_t n = 0;

    if (v->n_sources == 0) { /* moments have no sources */
        memcpy(ret_mean, v->s->mean + head_side * d, d * sizeof(*ret_mean));
        memcpy(ret_S, v->s->scatter + head_side * dd, dd * sizeof(*ret_S));
        n = v->s->n_tokens;
    } else {
        memset(ret_mean, 0, d * sizeof(*ret_mean));
        memset(ret_S, 0, dd * sizeof(*ret_S));
    }

    for (uint32_t i = 0; i < v->s->n_domains; i++) {
        const struct stats_domain *from = &v->s->domains[i];

        double left_out = 1 - (double) v->n_tokens[i] / (double) from->n_tokens;

        if (!(mask >> i & 1) || v->n_tokens[i] == 0)
            continue;

        stats_merge_moments(d, n, ret_mean, ret_S, v->n_tokens[i], from->mean + head_side * d,
                            from->scatter + head_side * dd);
        for (size_t k = 0; left_out > 0 && k < dd; k++) /* the scatter is that of all tokens of the source */
            ret_S[k] -= left_out * from->scatter[head_side * dd + k];
        n += v->n_tokens[i];
    }

    for (size_t i = 0; i < dd; i++)
        ret_S[i] /= (double) n;
}

void solver_covariance(const struct solver *v, uint32_t head_side, double *ret_S)
{
    double mean[GEOMETRY_DIM_MAX];

    solver_moments(v, head_side, v->mask, mean, ret_S);
}

int solver_metric(const struct solver *v, uint32_t head_side, const double *S, double *ret_M)
{
    uint32_t head = head_side / 2;

    return metric_matrix(v->s, v->o.metric, v->o.temper, head / v->g->n_kv_heads, head % v->g->n_kv_heads,
                         (enum side)(head_side % 2), S, ret_M);
}

int solver_head_metric(const struct solver *v, uint32_t head_side, const struct head_metric **ret)
{
    size_t d = v->g->d;
    struct head_metric *m = &v->metrics[head_side];
    _cleanup_(freep) double *M = NULL;
    _cleanup_(freep) double *S = NULL;
    int r;

    *ret = m;
    if (m->M)
        return 0;

    M = malloc(d * d * sizeof(*M));
    S = malloc(d * d * sizeof(*S));
    if (!M || !S)
        return -ENOMEM;

    solver_covariance(v, head_side, S);
    r = solver_metric(v, head_side, S, M);
    if (r == 0)
        r = transform_roots_init(&m->roots, (uint32_t) d, M, head_side % 2 == SIDE_K ? &v->blocks : NULL);
    if (r == 0)
        m->M = take_ptr(M);
    return r;
}

/* ---- steps ---- */

struct solver_job {
    struct solver *v;
    const char *what;
    solver_step step;
    void *ctx;
    const uint32_t *items;
    size_t n_items;
    int *result;           /* [n_items] */
    _Atomic size_t failed; /* no item after the first one that is known to have failed is run */
    _Atomic size_t n_done;
};

static void solver_run_item(void *ctx, size_t item, unsigned worker)
{
    struct solver_job *j = ctx;
    size_t failed = atomic_load(&j->failed);
    int r;

    if (item > failed)
        return;
    if (worker == 0)
        solver_progress(j->v, j->what, (double) atomic_load(&j->n_done) / (double) j->n_items);
    r = j->step(j->v, j->items[item], j->ctx);
    j->result[item] = r;
    while (r != 0 && failed > item && !atomic_compare_exchange_weak(&j->failed, &failed, item))
        ;
    (void) atomic_fetch_add(&j->n_done, 1);
}

int solver_each(struct solver *v, const char *what, solver_step step, void *ctx, const uint32_t *items,
                size_t n_items, struct errmsg *e)
{
    _cleanup_(freep) int *result = calloc(n_items + 1, sizeof(*result));
    struct solver_job j = {
        .v = v, .what = what, .step = step, .ctx = ctx, .items = items, .n_items = n_items};
    uint32_t hs;

    if (!result)
        return fail(e, -ENOMEM, "out of memory for solving");

    j.result = result;
    atomic_init(&j.failed, n_items);
    /* here, not with the first item: the other threads may take every item of a short step */
    solver_progress(v, what, 0);
    threads_run(v->threads, solver_run_item, &j, n_items);
    if (j.failed == n_items)
        return 0;

    hs = items[j.failed];
    return solver_fail(hs / 2 / v->g->n_kv_heads, hs / 2 % v->g->n_kv_heads, (enum side)(hs % 2),
                       result[j.failed], e);
}

int solver_each_side(struct solver *v, const char *what, unsigned sides, solver_step step, void *ctx,
                     struct errmsg *e)
{
    _cleanup_(freep) uint32_t *items = calloc((size_t) v->n_heads + 1, sizeof(*items));
    size_t n = 0;

    if (!items)
        return fail(e, -ENOMEM, "out of memory for solving");

    for (uint32_t hs = 0; hs < v->n_heads; hs++)
        if ((sides >> hs % 2 & 1) && solver_codes(v, hs / (2 * v->g->n_kv_heads), (enum side)(hs % 2)))
            items[n++] = hs;
    return solver_each(v, what, step, ctx, items, n, e);
}
