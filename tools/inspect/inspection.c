/* Loading, spectra and shapes of an inspection; see inspection.h. */
#include "tools/inspect/inspection.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/math/blas_threads.h"
#include "alloc/math/sort.h"
#include "alloc/solve/metric.h"
#include "alloc/solve/spectrum.h"
#include "base/cleanup.h"
#include "base/threads.h"
#include "tools/command/client_model.h"
#include "tools/command/progress.h"

static const char *const part_names[] = {"table", "spectra", "gaussianity", "curves", "distortion"};

const char *inspect_part_name(enum inspect_part part)
{
    return part_names[part];
}

/* ---- opening ---- */

/* Page sizes come from the library. */
static int inspection_open_table(struct inspection *x, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    const char *path = x->request.table_path;
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry = {.struct_bytes = sizeof(id.geometry)}};
    const struct geometry *g;
    struct errmsg why = {""};
    kvc_model *m; /* belongs to the client */
    int r = table_load(path, &x->table, e);

    if (r < 0)
        return r;

    x->g = g = &x->table->geometry;
    id.geometry.n_layers = g->n_layers;
    id.geometry.n_heads = g->n_heads;
    id.geometry.n_kv_heads = g->n_kv_heads;
    id.geometry.head_dim = g->d;
    id.geometry.n_rot = g->n_rot;
    id.geometry.attn_scale = g->attn_scale;
    id.geometry.rope_freq = g->freq;
    memcpy(id.model_digest, x->table->model_digest, sizeof(id.model_digest));
    r = client_open(NULL, &c, e);
    if (r < 0)
        return r;

    x->info.struct_bytes = sizeof(x->info);
    r = kvc_model_open_table(c, &id, x->table->bytes, x->table->n_bytes, &m);
    if (r == 0)
        r = kvc_model_get_info(m, &x->info);
    if (r < 0)
        return fail(e, r, "%s: %s", path, kvc_last_error(c));

    x->has_solved = solve_options_read(x->table->provenance, &x->solved, x->solved_from, &why) == 0;
    memcpy(x->unsolved, why.text, sizeof(x->unsolved));
    return 0;
}

static int inspection_open_stats(struct inspection *x, struct errmsg *e)
{
    const struct stats_options *o;
    uint8_t a[DIGEST_BYTES], b[DIGEST_BYTES];
    kvc_stats *handle;
    int r = kvc_alloc_new(&x->alloc);

    if (r < 0)
        return fail(e, r, "out of memory for statistics");

    r = kvc_stats_load(x->alloc, x->request.stats_path, NULL, &handle);
    if (r < 0)
        return fail(e, r, "%s", kvc_alloc_error(x->alloc));

    x->stats = handle->sums; /* spectra, shapes and curves are not in the public header */
    r = stats_digest(x->stats, x->stats_digest, e);
    if (r < 0)
        return r;

    o = stats_get_options(x->stats);
    x->metric = metric_best(x->stats);
    x->power = metric_power(x->metric, 0);
    if (!x->table) {
        x->g = &o->geometry;
        return 0;
    }

    geometry_digest(&x->table->geometry, a);
    geometry_digest(&o->geometry, b);
    if (memcmp(a, b, sizeof(a)) != 0 || memcmp(x->table->model_digest, o->model_digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "%s and %s belong to different models: inspect them separately",
                    x->request.stats_path, x->request.table_path);

    return 0;
}

static void inspection_set_unavailable(struct inspection *x)
{
    if (!x->table)
        (void) snprintf(x->unavailable[PART_TABLE], ERRMSG_BYTES,
                        "this needs an allocation table: make one with kvcobra solve and inspect it");
    for (int part = PART_SPECTRA; part < INSPECT_PARTS && !x->stats; part++)
        (void) snprintf(x->unavailable[part], ERRMSG_BYTES,
                        "this needs the calibration statistics: give them with --stats");
    if (x->stats && stats_samples(x->stats) == 0)
        for (int part = PART_SHAPES; part < INSPECT_PARTS; part++)
            (void) snprintf(x->unavailable[part], ERRMSG_BYTES,
                            "the statistics hold moments only, and this needs sampled vectors");
}

int inspection_open(struct inspection *x, const struct inspect_request *request, struct errmsg *e)
{
    int r = 0;

    *x = (struct inspection){.request = *request};
    if (request->table_path)
        r = inspection_open_table(x, e);
    if (r == 0 && request->stats_path)
        r = inspection_open_stats(x, e);
    inspection_set_unavailable(x);
    return r;
}

void inspection_close(struct inspection *x)
{
    (void) table_unref(x->table);
    (void) kvc_alloc_free(x->alloc);
    free(x->lambda);
    free(x->shapes);
    free(x->pools);
    free(x->points);
    free(x->distortion);
    *x = (struct inspection){.n_points = 0};
}

/* ---- spectra ---- */

static int inspection_fail_head(uint32_t hs, const struct geometry *g, int r, struct errmsg *e)
{
    if (r == -ENOMEM)
        return fail(e, r, "out of memory for inspecting");

    return fail(e, -EINVAL,
                "layer %u, head %u, side %c: its statistics are empty, or too large for a transform",
                hs / 2 / g->n_kv_heads, hs / 2 % g->n_kv_heads, hs % 2 ? 'V' : 'K');
}

static int inspection_fill_spectra(struct inspection *x, struct progress *p, struct errmsg *e)
{
    uint32_t n_hs = head_side_count(x->g);
    size_t d = x->g->d;

    progress_rename(p, "spectra");
    x->lambda = calloc(2 * n_hs * d, sizeof(*x->lambda));
    if (!x->lambda)
        return fail(e, -ENOMEM, "out of memory for spectra");

    x->weighted = x->lambda + n_hs * d;
    for (uint32_t hs = 0; hs < n_hs; hs++) {
        int r =
            spectrum_fill(x->stats, x->metric, x->power, hs / 2 / x->g->n_kv_heads, hs / 2 % x->g->n_kv_heads,
                          (enum side)(hs % 2), x->lambda + hs * d, x->weighted + hs * d);

        if (r < 0)
            return inspection_fail_head(hs, x->g, r, e);

        progress_update(p, (double) hs / n_hs);
    }

    return 0;
}

/* ---- shapes ---- */

/* Sorts @values. */
static double inspection_quantile(double *values, size_t n, double share)
{
    sort_doubles(values, n);
    return n > 0 ? values[(size_t) (share * (double) (n - 1) + 0.5)] : (double) NAN;
}

static void inspection_summarise(double *values, size_t n, struct kurtosis_summary *ret)
{
    ret->n = n;
    ret->median = inspection_quantile(values, n, 0.5);
    for (size_t i = 0; i < n; i++) {
        double at = (values[i] - KURTOSIS_MIN) / KURTOSIS_BIN;

        ret->bins[(size_t) fmin(fmax(at, 0), KURTOSIS_BINS - 1)]++;
        values[i] = fabs(values[i]);
    }

    ret->median_abs = inspection_quantile(values, n, 0.5);
    ret->p95_abs = inspection_quantile(values, n, 0.95);
}

/* One side. @values: scratch for all its coordinates, [SHAPE_STAGES, n_hs / 2 * d]. @p: NULL: does not say
 * anything. */
static int inspection_fill_side(struct inspection *x, enum side side, double *values, struct progress *p,
                                struct errmsg *e)
{
    uint32_t n_hs = head_side_count(x->g);
    size_t room = (size_t) n_hs / 2 * x->g->d, n[SHAPE_STAGES] = {0};

    for (uint32_t hs = side; hs < n_hs; hs += 2) {
        struct shape shape;
        int r = shape_measure(x->stats, x->metric, x->power, 0, hs / 2 / x->g->n_kv_heads,
                              hs / 2 % x->g->n_kv_heads, side, &shape, &x->pools[side]);

        if (r < 0)
            return inspection_fail_head(hs, x->g, r, e);

        for (int stage = 0; stage < SHAPE_STAGES; stage++) {
            memcpy(values + (size_t) stage * room + n[stage], shape.kurtosis[stage],
                   shape.n[stage] * sizeof(*values));
            n[stage] += shape.n[stage];
            x->shapes[hs].kurtosis[stage] = inspection_quantile(shape.kurtosis[stage], shape.n[stage], 0.5);
        }

        if (p)
            progress_update(p, (double) hs / n_hs);
    }

    for (int stage = 0; stage < SHAPE_STAGES; stage++)
        inspection_summarise(values + (size_t) stage * room, n[stage], &x->kurtosis[side][stage]);
    return 0;
}

/* Both sides at once: they share nothing. */
struct inspection_sides {
    struct inspection *x;
    struct progress *p;
    double *values; /* [2, SHAPE_STAGES, n_hs / 2 * d] */
    struct errmsg e[2];
    int result[2];
};

static void inspection_run_side(void *ctx, size_t side, unsigned worker)
{
    struct inspection_sides *s = ctx;
    size_t room = (size_t) head_side_count(s->x->g) / 2 * s->x->g->d * SHAPE_STAGES;

    s->result[side] = inspection_fill_side(s->x, (enum side) side, s->values + side * room,
                                           worker == 0 ? s->p : NULL, &s->e[side]);
}

static int inspection_fill_shapes(struct inspection *x, struct progress *p, struct errmsg *e)
{
    uint32_t n_hs = head_side_count(x->g);
    _cleanup_(freep) double *values = calloc((size_t) n_hs * x->g->d, SHAPE_STAGES * sizeof(*values));
    _cleanup_(threads_freep) struct threads *threads = NULL;
    _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
    struct inspection_sides s = {.x = x, .p = p, .values = values};
    int r;

    (void) blas_threads;
    progress_rename(p, "shapes of coordinates");
    x->shapes = calloc(n_hs, sizeof(*x->shapes));
    x->pools = calloc(2, sizeof(*x->pools));
    if (!values || !x->shapes || !x->pools)
        return fail(e, -ENOMEM, "out of memory for the shapes of coordinates");

    r = threads_new(threads_available() < 2 ? 1 : 2, &threads, e);
    if (r < 0)
        return r;

    threads_run(threads, inspection_run_side, &s, 2);
    for (int side = 0; side < 2; side++)
        if (s.result[side] < 0)
            return fail(e, s.result[side], "%s", s.e[side].text);
    return 0;
}

int inspection_fill(struct inspection *x, struct progress *p, struct errmsg *e)
{
    int r = 0;

    if (!x->unavailable[PART_SPECTRA][0])
        r = inspection_fill_spectra(x, p, e);
    if (r == 0 && !x->unavailable[PART_SHAPES][0])
        r = inspection_fill_shapes(x, p, e);
    if (r == 0 && !x->unavailable[PART_CURVES][0])
        r = inspection_fill_curves(x, p, e);
    return r;
}

/* ---- small numbers ---- */

double inspect_qq_normal(int i)
{
    return (i - INSPECT_QQ / 2) * 0.25;
}

double inspect_qq(const struct inspection *x, enum side side, enum shape_stage stage, int i)
{
    double z = inspect_qq_normal(i), p = 0.5 * erfc(-z / sqrt(2)), beyond = 0.5 * erfc(fabs(z) / sqrt(2));
    const struct shape_pool *pool = &x->pools[side];

    return beyond * (double) pool->n[stage] >= 10 ? shape_quantile(pool, stage, p) : (double) NAN;
}

uint64_t inspect_code_bits(const struct table *t, enum side side)
{
    uint64_t sum = 0;

    for (uint32_t i = (uint32_t) side; i < head_side_count(&t->geometry); i += 2)
        sum += t->codecs[i].code_bits;
    return sum;
}

double inspect_side_bpd(const struct table *t, enum side side)
{
    const struct geometry *g = &t->geometry;

    return (double) inspect_code_bits(t, side) / ((double) g->n_layers * g->n_kv_heads * g->d);
}

unsigned inspect_codec_stored(const struct codec *c)
{
    unsigned n = 0;

    for (unsigned i = 0; i < c->n_half; i++)
        n += c->bits[i] > 0 ? 8 : 0;
    return n;
}

double inspect_codec_mean_bits(const struct codec *c)
{
    unsigned n = inspect_codec_stored(c);

    return n > 0 ? (double) c->code_bits / n : 0;
}
