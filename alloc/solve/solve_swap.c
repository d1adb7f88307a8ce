/*
 * See solve_swap.h. The codec is that of DESIGN 3.2. Means, predictions, covariances and decoders are those
 * of a source on its own: fitted to its vectors, which its own mean and prediction encode. Bases, scales,
 * levels and bits are those in use, for all vectors.
 */
#include "alloc/solve/solve_swap.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve_internal.h"
#include "alloc/solve/solve_regression.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"

#define SAMPLES_MIN 64 /* of each source: 32 vectors are the fewest that a half is fitted to */

/* Sets of vectors: of the codec's source, and two halves of the other one. */
enum swap_set { SET_OWN, SET_OTHER, SET_MEASURED, N_SETS };

#define BASIS (SWAP_COVARIANCE | SWAP_SCALES)
#define FITTED (BASIS | SWAP_MEAN | SWAP_PREDICTION | SWAP_DECODERS)
#define EVERYTHING (FITTED | SWAP_METRIC | SWAP_LEVELS | SWAP_BITS)

static const struct swap_row swap_rows[] = {
    {.name = "nothing", .parts = {0, 0}},
    {.name = "prediction of values", .parts = {SWAP_PREDICTION, SWAP_PREDICTION}},
    {.name = "scales of bands", .parts = {SWAP_SCALES, SWAP_SCALES}},
    {.name = "decoders", .parts = {SWAP_DECODERS, SWAP_DECODERS}},
    {.name = "means", .parts = {SWAP_MEAN, SWAP_MEAN}},
    {.name = "covariances", .parts = {SWAP_COVARIANCE, SWAP_COVARIANCE}},
    {.name = "covariances of keys", .parts = {SWAP_COVARIANCE, 0}},
    {.name = "levels", .parts = {SWAP_LEVELS, SWAP_LEVELS}},
    {.name = "metric", .parts = {SWAP_METRIC, SWAP_METRIC}},
    {.name = "bits", .parts = {SWAP_BITS, SWAP_BITS}},
    {.name = "covariances, scales", .parts = {BASIS, BASIS}},
    {.name = "and means, prediction, decoders", .parts = {FITTED, FITTED}},
    {.name = "everything", .parts = {EVERYTHING, EVERYTHING}},
};
#define N_ROWS (sizeof(swap_rows) / sizeof(*swap_rows))
_Static_assert(N_ROWS <= SWAP_ROWS_MAX, "the caller has room for all rows");

struct swap_pair {
    struct solver v[2];     /* solved: the codec's source, the other one */
    uint32_t *rows[N_SETS]; /* rows of a set in the statistics of its source */
    size_t n[N_SETS];
    size_t d;
};

static void solve_swap_deinit(struct swap_pair *s)
{
    for (int i = 0; i < N_SETS; i++)
        free(s->rows[i]);
    solver_deinit(&s->v[0]);
    solver_deinit(&s->v[1]);
}

/* ---- sets of vectors ---- */

struct swap_place {
    struct sample_id id;
    uint32_t row;
};

static int solve_swap_compare(const void *a, const void *b)
{
    const struct sample_id *x = &((const struct swap_place *) a)->id,
                           *y = &((const struct swap_place *) b)->id;

    if (x->document != y->document)
        return x->document < y->document ? -1 : 1;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    return 0;
}

/* Halves of the other source by document, so that hardly any text is in both. */
static int solve_swap_take_sets(struct swap_pair *s)
{
    const struct solver *other = &s->v[1];
    _cleanup_(freep) struct swap_place *places = malloc((other->n + 1) * sizeof(*places));

    s->n[SET_OWN] = s->v[0].n;
    s->n[SET_OTHER] = other->n / 2;
    s->n[SET_MEASURED] = other->n - other->n / 2;
    for (int i = 0; i < N_SETS; i++) {
        s->rows[i] = malloc((s->n[i] + 1) * sizeof(*s->rows[i]));
        if (!s->rows[i] || !places)
            return -ENOMEM;
    }

    memcpy(s->rows[SET_OWN], s->v[0].rows, s->v[0].n * sizeof(*s->rows[SET_OWN]));
    for (size_t t = 0; t < other->n; t++)
        places[t] = (struct swap_place){other->s->ids[other->rows[t]], other->rows[t]};
    qsort(places, other->n, sizeof(*places), solve_swap_compare);
    for (size_t t = 0; t < other->n; t++) {
        bool fits = t < s->n[SET_OTHER];

        s->rows[fits ? SET_OTHER : SET_MEASURED][fits ? t : t - s->n[SET_OTHER]] = places[t].row;
    }

    return 0;
}

/* The solver whose statistics and samples a set has. */
static const struct solver *solve_swap_solver(const struct swap_pair *s, int set)
{
    return &s->v[set == SET_OWN ? 0 : 1];
}

/* ---- one head-side ---- */

/* The vectors of a set; [n, ...] a row per vector. */
struct swap_set_vectors {
    size_t n;
    double *x;    /* [n, d]; after encoding, what the encoder's inverse leaves */
    double *pred; /* [n, m] codes of the keys that values are predicted from */
    double *code; /* [n, m + r] pred, and the codes of its own */
};

struct swap_codec {
    uint32_t hs;
    size_t m, r; /* predictors, stored coordinates of its own */
    const struct swap_row *row;
    struct transform t;
    double *P[2], *mean[2]; /* by source: [d, m]; [d] of what the transform codes */
    double *S[2], *M;       /* [d, d] covariances of it by source; the metric */
    double *block;          /* all of the numbers above */
    const struct levels *levels;
    const uint8_t *bits;
    struct swap_set_vectors x[N_SETS];
};

static void solve_swap_codec_deinit(struct swap_codec *c)
{
    for (int i = 0; i < N_SETS; i++) {
        free(c->x[i].x);
        free(c->x[i].pred);
        free(c->x[i].code);
    }
    free(c->block);
    transform_deinit(&c->t);
}

/* Which source a part is taken from: 0 the codec's own, 1 the other one. */
static int solve_swap_from(const struct swap_codec *c, enum swap_part part)
{
    return c->row->parts[c->hs % 2] & part ? 1 : 0;
}

/* @keys: [N_SETS] the layer's codes of keys, rows of @stride; predictors begin at column @first. */
static int solve_swap_codec_init(struct swap_codec *c, const struct swap_pair *s, double *const *keys,
                                 size_t stride, size_t first)
{
    size_t d = s->d;

    c->block = malloc((2 * d * (c->m + 1) + 3 * d * d) * sizeof(*c->block));
    if (!c->block || transform_init(&c->t, (uint32_t) d) < 0)
        return -ENOMEM;

    for (int i = 0; i < 2; i++) {
        c->S[i] = c->block + (size_t) i * d * d;
        c->mean[i] = c->block + 3 * d * d + (size_t) i * d;
        c->P[i] = c->block + 3 * d * d + 2 * d + (size_t) i * d * c->m;
    }
    c->M = c->block + 2 * d * d;
    for (int i = 0; i < N_SETS; i++) {
        const struct solver *v = solve_swap_solver(s, i);
        struct swap_set_vectors *x = &c->x[i];
        float row[GEOMETRY_DIM_MAX];

        x->n = s->n[i];
        x->x = malloc((x->n * d + 1) * sizeof(*x->x));
        x->pred = malloc((x->n * c->m + 1) * sizeof(*x->pred));
        if (!x->x || !x->pred)
            return -ENOMEM;

        for (size_t t = 0; t < x->n; t++) {
            sample_code_get(v->s, c->hs, s->rows[i][t], row);
            for (size_t j = 0; j < d; j++)
                x->x[t * d + j] = (double) row[j];
            if (c->m > 0)
                memcpy(x->pred + t * c->m, keys[i] + t * stride + first, c->m * sizeof(*x->pred));
        }
    }

    c->levels = s->v[solve_swap_from(c, SWAP_LEVELS)].levels[c->hs % 2];
    c->bits = s->v[solve_swap_from(c, SWAP_BITS)].heads[c->hs].bits;
    return 0;
}

/* The scales of bands := deviations of their coordinates under a covariance [d, d]. */
static void solve_swap_rescale(struct transform *t, const double *S)
{
    double scale[TABLE_HALF_TILES_MAX];
    size_t d = t->d;

    for (uint32_t b = 0; b < t->n_bands; b++) {
        const double *enc = t->enc + (size_t) b * BAND_COORDS * d;
        double energy = 0;

        for (uint32_t k = 0; k < band_coords(t, b); k++)
            for (size_t i = 0; i < d; i++)
                energy += enc[k * d + i] * cblas_ddot((int) d, S + i * d, 1, enc + k * d, 1);
        scale[b] = t->scale[b] * sqrt(energy / band_coords(t, b));
    }
    transform_rescale(t, scale);
}

/* Prediction, mean and covariance of both sources; basis and scales, each from its source. */
static int solve_swap_fit(struct swap_codec *c, const struct swap_pair *s)
{
    const double *S = c->S[solve_swap_from(c, SWAP_COVARIANCE)];
    int r = 0;

    for (int i = 0; r == 0 && i < 2; i++) {
        const struct swap_set_vectors *x = &c->x[i == 0 ? SET_OWN : SET_OTHER];
        _cleanup_(regression_deinit) struct regression reg = {.m = 0};

        r = regression_init(&reg, x->pred, c->m, x->x, s->d, x->n, NULL, 1);
        if (r == 0)
            r = regression_fit(&reg, REGRESSION_ALL, SOLVE_PREDICT_RIDGE, c->P[i], c->mean[i]);
        if (r == 0)
            r = regression_covariance(&reg, REGRESSION_ALL, c->P[i], c->S[i]);
    }
    if (r == 0)
        r = solver_metric(&s->v[solve_swap_from(c, SWAP_METRIC)], c->hs, S, c->M);
    if (r == 0)
        r = transform_fit(&c->t, S, c->M, splitmix64_seed(s->v[0].o.seed, c->hs));
    if (r != 0)
        return r;

    solve_swap_rescale(&c->t, c->S[solve_swap_from(c, SWAP_SCALES)]);
    for (uint32_t b = 0; b < c->t.n_bands; b++)
        c->r += c->bits[b] > 0 ? band_coords(&c->t, b) : 0;
    return 0;
}

/* x [n, d] -= mean + P c for rows c [n, m]. */
static void solve_swap_subtract(double *x, size_t n, size_t d, const double *c, size_t m, const double *P,
                                const double *mean)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++)
            x[t * d + i] -= mean[i];
    if (m > 0)
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) m, -1.0, c, (int) m, P,
                    (int) m, 1.0, x, (int) d);
}

/* The levels of z [n, coordinates], which replace it, behind the predictors in x->code, and x->x less their
 * inverse. */
static void solve_swap_quantise(const struct swap_codec *c, struct swap_set_vectors *x, size_t d, float *z)
{
    size_t wide = c->m + c->r, col = c->m;

    for (uint32_t b = 0; b < c->t.n_bands; b++) {
        unsigned bits = c->bits[b];
        size_t first = (size_t) b * BAND_COORDS, n_coords = bits > 0 ? band_coords(&c->t, b) : 0;

        if (n_coords == 0)
            continue;
        curve_quantise_levels(&c->levels[bits], bits, z + first, x->n, n_coords, c->t.n_coords);
        for (size_t t = 0; t < x->n; t++)
            for (size_t k = 0; k < n_coords; k++)
                x->code[t * wide + col + k] = (double) z[t * c->t.n_coords + first + k];
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) x->n, (int) d, (int) n_coords, -1.0,
                    x->code + col, (int) wide, c->t.dec + first * d, (int) d, 1.0, x->x, (int) d);
        col += n_coords;
    }
}

/* Codes of one set, and what the encoder's inverse leaves of its vectors. */
static int solve_swap_encode(struct swap_codec *c, int set, size_t d)
{
    struct swap_set_vectors *x = &c->x[set];
    bool measured = set == SET_MEASURED;
    int mean = measured ? solve_swap_from(c, SWAP_MEAN) : set == SET_OTHER;
    int predict = measured ? solve_swap_from(c, SWAP_PREDICTION) : set == SET_OTHER;
    const double zero[GEOMETRY_DIM_MAX] = {0};
    size_t wide = c->m + c->r;
    _cleanup_(freep) float *u = malloc((x->n * d + 1) * sizeof(*u));
    _cleanup_(freep) float *z = malloc((x->n * c->t.n_coords + 1) * sizeof(*z));
    int r;

    x->code = malloc((x->n * wide + 1) * sizeof(*x->code));
    if (!u || !z || !x->code)
        return -ENOMEM;

    solve_swap_subtract(x->x, x->n, d, x->pred, c->m, c->P[predict], c->mean[mean]);
    for (size_t i = 0; i < x->n * d; i++)
        u[i] = (float) x->x[i];
    for (size_t t = 0; c->m > 0 && t < x->n; t++)
        memcpy(x->code + t * wide, x->pred + t * c->m, c->m * sizeof(*x->code));

    r = transform_apply(&c->t, zero, u, x->n, z);
    if (r == 0)
        solve_swap_quantise(c, x, d, z);
    return r;
}

/* The correction of the decoder, applied to the vectors that are measured. */
static int solve_swap_decode(struct swap_codec *c, size_t d)
{
    struct swap_set_vectors *to = &c->x[SET_MEASURED], *x = &c->x[solve_swap_from(c, SWAP_DECODERS)];
    size_t wide = c->m + c->r;
    _cleanup_(freep) double *change = malloc((d * wide + d + 1) * sizeof(*change));
    _cleanup_(regression_deinit) struct regression reg = {.m = 0};
    double *mean;
    int r = change ? regression_init(&reg, x->code, wide, x->x, d, x->n, NULL, 1) : -ENOMEM;

    if (r < 0)
        return r;

    mean = change + d * wide;
    r = regression_fit(&reg, REGRESSION_ALL, SOLVE_DECODE_RIDGE, change, mean);
    if (r == 0)
        solve_swap_subtract(to->x, to->n, d, to->code, wide, change, mean);
    return r;
}

/* Mean of e'Me under the metric of the other source, on the vectors that are measured. */
static int solve_swap_measure(struct swap_codec *c, const struct swap_pair *s, double *ret_distortion)
{
    const struct solver *v = &s->v[1];
    const struct swap_set_vectors *x = &c->x[SET_MEASURED];
    size_t d = s->d;
    double product[GEOMETRY_DIM_MAX];
    int r = solver_metric(v, c->hs, c->S[1], c->M);

    *ret_distortion = 0;
    for (size_t t = 0; r == 0 && t < x->n; t++) {
        cblas_dsymv(CblasRowMajor, CblasLower, (int) d, 1.0, c->M, (int) d, x->x + t * d, 1, 0.0, product, 1);
        *ret_distortion +=
            v->heads[c->hs].weight * cblas_ddot((int) d, product, 1, x->x + t * d, 1) / (double) x->n;
    }
    return r;
}

/* One head-side. Values read predictors [first, first + m) of @keys; the codes of keys go behind the @first
 * columns of @keys, and *ret_r is their number. */
static int solve_swap_head_side(const struct swap_pair *s, const struct swap_row *row, uint32_t hs,
                                double *const *keys, size_t first, size_t m, size_t *ret_r,
                                double *ret_distortion)
{
    _cleanup_(solve_swap_codec_deinit) struct swap_codec c = {.hs = hs, .m = m, .row = row};
    size_t stride = s->v[0].g->n_kv_heads * s->d;
    int r = solve_swap_codec_init(&c, s, keys, stride, first);

    if (r == 0)
        r = solve_swap_fit(&c, s);
    for (int i = 0; r == 0 && i < N_SETS; i++)
        r = solve_swap_encode(&c, i, s->d);
    if (r != 0)
        return r;

    for (int i = 0; hs % 2 == SIDE_K && i < N_SETS; i++)
        for (size_t t = 0; t < c.x[i].n; t++)
            memcpy(keys[i] + t * stride + first, c.x[i].code + t * c.r, c.r * sizeof(double));
    *ret_r = c.r;
    if (s->v[0].o.decoder == DECODER_LEAST_SQUARES)
        r = solve_swap_decode(&c, s->d);
    return r == 0 ? solve_swap_measure(&c, s, ret_distortion) : r;
}

/* ---- all of them ---- */

/* Adds the distortions of one layer. @keys: [N_SETS] scratch, [n, n_kv_heads * d]. */
static int solve_swap_layer(const struct swap_pair *s, uint32_t layer, double *const *keys,
                            struct swap_row *row, struct errmsg *e)
{
    const struct geometry *g = s->v[0].g;
    size_t first[GEOMETRY_HEADS_MAX + 1] = {0};

    for (uint32_t i = 0; i < 2 * g->n_kv_heads; i++) {
        enum side side = i < g->n_kv_heads ? SIDE_K : SIDE_V;
        uint32_t head = side == SIDE_K ? i : i - g->n_kv_heads, hs = head_side_index(g, layer, head, side);
        struct head_run run = prediction_heads(s->v[0].o.v_from, g->n_kv_heads, head);
        size_t from = side == SIDE_K ? first[head] : first[run.first], r = 0;
        size_t m = side == SIDE_K ? 0 : first[run.first + run.n] - from;
        double distortion = 0;
        int err = solve_swap_head_side(s, row, hs, keys, from, m, &r, &distortion);

        if (err != 0)
            return solver_fail(layer, head, side, err, e);
        if (side == SIDE_K)
            first[head + 1] = first[head] + r;
        row->distortion[side] += distortion;
    }

    return 0;
}

/* Rows that can differ: a part that the options do not have changes nothing. */
static size_t solve_swap_take_rows(const struct solve_options *o, struct swap_row *ret_rows)
{
    size_t n = 0;

    for (size_t i = 0; i < N_ROWS; i++) {
        bool none = (o->v_from == PREDICT_NONE && swap_rows[i].parts[SIDE_V] == SWAP_PREDICTION) ||
                    (o->decoder == DECODER_INVERSE && swap_rows[i].parts[SIDE_V] == SWAP_DECODERS) ||
                    (!o->fit_levels && swap_rows[i].parts[SIDE_V] == SWAP_LEVELS);

        if (!none)
            ret_rows[n++] = swap_rows[i];
    }
    return n;
}

static int solve_swap_measure_rows(struct swap_pair *s, uint32_t n_layers, struct swap_row *rows,
                                   size_t n_rows, struct errmsg *e)
{
    const struct geometry *g = s->v[0].g;
    double *keys[N_SETS] = {NULL};
    int r = 0;

    if (n_layers == 0 || n_layers > g->n_layers)
        n_layers = g->n_layers;
    for (int i = 0; i < N_SETS; i++) {
        keys[i] = malloc((s->n[i] * g->n_kv_heads * s->d + 1) * sizeof(double));
        if (!keys[i])
            r = fail(e, -ENOMEM, "out of memory for exchanging statistics");
    }

    for (uint32_t i = 0; r == 0 && i < n_layers; i++)
        for (size_t row = 0; r == 0 && row < n_rows; row++) {
            solver_progress(&s->v[0], "exchanging statistics",
                            ((double) i + (double) row / (double) n_rows) / n_layers);
            /* the middle of each of n_layers equal parts */
            r = solve_swap_layer(s, (2 * i + 1) * g->n_layers / (2 * n_layers), keys, &rows[row], e);
        }
    for (int i = 0; i < N_SETS; i++)
        free(keys[i]);
    return r;
}

static int solve_swap_check(const struct stats *own, const struct stats *other, const struct solve_options *o,
                            struct errmsg *e)
{
    uint8_t digest[2][DIGEST_BYTES];

    geometry_digest(&own->o.geometry, digest[0]);
    geometry_digest(&other->o.geometry, digest[1]);
    if (memcmp(own->o.model_digest, other->o.model_digest, DIGEST_BYTES) != 0 ||
        memcmp(digest[0], digest[1], DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "the statistics are of different models: %s and %s", own->o.model_name,
                    other->o.model_name);
    if (o->method != METHOD_BANDS)
        return fail(e, -EINVAL, "statistics are exchanged in tables of method bands only");
    if (own->n_held < SAMPLES_MIN || other->n_held < SAMPLES_MIN)
        return fail(e, -EINVAL, "the statistics have %zu and %zu sampled tokens; %d of each are needed",
                    own->n_held, other->n_held, SAMPLES_MIN);

    return 0;
}

int solve_swap(const struct stats *own, const struct stats *other, const struct solve_options *o,
               uint32_t n_layers, struct swap_row *ret_rows, size_t *ret_n_rows, struct errmsg *e)
{
    _cleanup_(solve_swap_deinit) struct swap_pair s = {.d = own->o.geometry.d};
    struct swap_row rows[SWAP_ROWS_MAX];
    struct solve_options options = *o;
    double first;
    size_t n_rows;
    int r = solve_swap_check(own, other, o, e);

    if (r < 0)
        return r;

    options.leave_out = false;
    options.without = 0;
    solve_options_least_squares(&options); /* squared errors are compared */
    for (int i = 0; r == 0 && i < 2; i++) {
        r = solver_init(&s.v[i], i == 0 ? own : other, &options, e);
        if (r == 0)
            r = solve_bands_method(&s.v[i], e);
    }
    if (r != 0)
        return r;
    if (solve_swap_take_sets(&s) < 0)
        return fail(e, -ENOMEM, "out of memory for exchanging statistics");

    n_rows = solve_swap_take_rows(&options, rows);
    r = solve_swap_measure_rows(&s, n_layers, rows, n_rows, e);
    if (r < 0)
        return r;

    first = rows[0].distortion[SIDE_K] + rows[0].distortion[SIDE_V];
    for (size_t i = 0; i < n_rows; i++)
        rows[i].left = first > 0 ? (rows[i].distortion[SIDE_K] + rows[i].distortion[SIDE_V]) / first : 1;
    memcpy(ret_rows, rows, n_rows * sizeof(*rows));
    *ret_n_rows = n_rows;
    return 0;
}
