/* See curve.h. */
#include "alloc/solve/curve.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_paper.h"
#include "alloc/math/sort.h"
#include "alloc/quantiser/trellis_fit.h"
#include "alloc/table/trellis.h"
#include "base/cleanup.h"
#include "base/half.h"

static int curve_model_init_books(struct curve_model *m, unsigned state_bits)
{
    for (unsigned b = 1; state_bits > 0 && b <= TRELLIS_BITS_MAX; b++) {
        double mse;
        int r = trellis_normal(b, state_bits, &m->books[b], &mse);

        if (r < 0)
            return r;

        m->ratio[b] = mse / m->mse[b];
    }
    return 0;
}

int curve_model_init(struct curve_model *m, enum curve curve, enum quantiser q, unsigned state_bits)
{
    m->curve = curve;
    m->mse[0] = 1;
    for (unsigned b = 0; b <= TABLE_BITS_MAX; b++)
        m->ratio[b] = 1;
    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
        int r = levels_normal(q, b, &m->levels[b]);

        if (r < 0)
            return r;

        m->mse[b] = levels_normal_mse(&m->levels[b], b);
    }
    return curve_model_init_books(m, state_bits);
}

/* The numbers of a band, sorted: the squared error of a cell is a difference of sums, so a width costs 2^b
 * searches, and one sort serves all widths. */
struct curve_sorted {
    size_t n;
    float *x;              /* [n] ascending */
    double *sum, *squares; /* [n + 1] of the first i numbers */
};

static void curve_sorted_deinit(struct curve_sorted *s)
{
    free(s->x);
    free(s->sum);
}

static int curve_sorted_init(struct curve_sorted *s, const float *z, size_t n, size_t n_coords, size_t stride)
{
    _cleanup_(freep) uint32_t *scratch = NULL;
    size_t at = 0;

    *s = (struct curve_sorted){.n = n * n_coords};
    s->x = malloc((s->n + 1) * sizeof(*s->x));
    s->sum = calloc(2 * (s->n + 1), sizeof(*s->sum));
    scratch = malloc((2 * s->n + 1) * sizeof(*scratch));
    if (!s->x || !s->sum || !scratch)
        return -ENOMEM;

    s->squares = s->sum + s->n + 1;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < n_coords; i++)
            s->x[at++] = z[t * stride + i];
    sort_floats(s->x, s->n, scratch);
    for (size_t i = 0; i < s->n; i++) {
        double x = (double) s->x[i];

        s->sum[i + 1] = s->sum[i] + x;
        s->squares[i + 1] = s->squares[i] + x * x;
    }
    return 0;
}

/* Sum of squared errors at one width. A number at a threshold belongs to the upper cell. */
static double curve_sorted_error(const struct curve_sorted *s, const struct levels *l, unsigned b)
{
    double error = 0;
    size_t first = 0;

    for (unsigned q = 0; q < 1u << b; q++) {
        size_t end = q + 1 < 1u << b ? sort_rank(s->x, s->n, l->threshold[q]) : s->n;
        double y = level_z(l, q);

        error += s->squares[end] - s->squares[first] - 2 * y * (s->sum[end] - s->sum[first]) +
                 y * y * (double) (end - first);
        first = end;
    }

    return error > 0 ? error : 0;
}

static int curve_measured(const struct curve_model *m, const float *z, size_t n, size_t n_coords,
                          size_t stride, double ret[static TABLE_BITS_MAX + 1])
{
    _cleanup_(curve_sorted_deinit) struct curve_sorted s = {.n = 0};
    int r = curve_sorted_init(&s, z, n, n_coords, stride);

    if (r < 0)
        return r;

    ret[0] = s.squares[s.n] / (double) n;
    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
        ret[b] = m->ratio[b] * curve_sorted_error(&s, &m->levels[b], b) / (double) n;
    return 0;
}

int curve_band(const struct curve_model *m, const float *z, size_t n, size_t n_coords, size_t stride,
               double ret[static TABLE_BITS_MAX + 1])
{
    if (m->curve == CURVE_MEASURED)
        return curve_measured(m, z, n, n_coords, stride, ret);

    for (unsigned b = 0; b <= TABLE_BITS_MAX; b++) {
        if (m->curve == CURVE_BENNETT) /* paper, Eq. 1 */
            ret[b] = (double) n_coords * (b == 0 ? 1.0 : paper_bennett((double) b));
        else
            ret[b] = (double) n_coords * m->ratio[b] * m->mse[b];
    }
    return 0;
}

/* ---- quantising blocks ---- */

/*
 * With few levels all thresholds are compared, four numbers at a time, which needs neither branches nor loads
 * that depend on a number. The bits of a level are those of the level below plus a difference, modulo 2^32:
 * every comparison adds its difference or 0. Measured on a Zen 4 core without AVX: at 3 bits a fifth of the
 * time of a binary search.
 */
#define COMPARE_BITS_MAX 5

typedef float quantise_floats __attribute__((vector_size(16)));
typedef uint32_t quantise_words __attribute__((vector_size(16)));

struct quantise_steps {
    unsigned n; /* thresholds */
    uint32_t lowest;
    quantise_floats threshold[1 << COMPARE_BITS_MAX];
    quantise_words step[1 << COMPARE_BITS_MAX];
};

static void quantise_steps_init(struct quantise_steps *s, const float *threshold, const float *level,
                                unsigned b)
{
    s->n = (1u << b) - 1;
    s->lowest = half_float_to_bits(level[0]);
    for (unsigned q = 0; q < s->n; q++) {
        s->threshold[q] = threshold[q] + (quantise_floats){0};
        s->step[q] = (half_float_to_bits(level[q + 1]) - half_float_to_bits(level[q])) + (quantise_words){0};
    }
}

/* Eight numbers. */
static inline void quantise_compare(const struct quantise_steps *s, float *z)
{
    quantise_floats x[2];
    quantise_words y[2] = {s->lowest + (quantise_words){0}, s->lowest + (quantise_words){0}};

    memcpy(x, z, sizeof(x));
    for (unsigned q = 0; q < s->n; q++) {
        y[0] += (quantise_words) (x[0] >= s->threshold[q]) & s->step[q];
        y[1] += (quantise_words) (x[1] >= s->threshold[q]) & s->step[q];
    }
    memcpy(z, y, sizeof(y));
}

/* @level: [2^b] */
static void quantise_rows(const struct levels *l, unsigned b, const float *level, float *z, size_t n,
                          size_t n_coords, size_t stride)
{
    struct quantise_steps s;
    bool compare = n_coords == 2 * sizeof(quantise_floats) / sizeof(float) && b <= COMPARE_BITS_MAX;

    if (compare)
        quantise_steps_init(&s, l->threshold, level, b);
    for (size_t t = 0; t < n; t++) {
        float *row = z + t * stride;

        if (compare)
            quantise_compare(&s, row);
        for (size_t i = 0; !compare && i < n_coords; i++)
            row[i] = level[quantise_fast(l, b, row[i])];
    }
}

enum { STRINGS_COORDS = 8, STRINGS_AT_ONCE = 4, STRINGS_LANES = STRINGS_COORDS * STRINGS_AT_ONCE };

struct curve_strings {
    int16_t steps[TRELLIS_TOKENS][STRINGS_LANES];
    uint8_t states[TRELLIS_TOKENS][STRINGS_LANES];
    _Alignas(64) uint8_t scratch[TRELLIS_SCRATCH];
};

/* The states of up to four chunks of rows: a lane has one coordinate of one chunk. */
static void curve_encode_strings(struct curve_strings *s, const struct levels *l, unsigned b, const float *z,
                                 size_t n, size_t n_coords, size_t stride)
{
    size_t lanes = n > 2 * TRELLIS_TOKENS ? STRINGS_LANES : STRINGS_LANES / 2;
    float inverse = 1 / l->step;

    memset(s->steps, 0, sizeof(s->steps));
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < n_coords; i++)
            s->steps[t % TRELLIS_TOKENS][t / TRELLIS_TOKENS * STRINGS_COORDS + i] =
                trellis_steps(z[t * stride + i], inverse);
    trellis_encode_best()(l, b, s->steps[0], lanes, STRINGS_LANES, s->states[0], s->scratch);
}

static inline const uint8_t *curve_states_of(const struct curve_strings *s, size_t t)
{
    return &s->states[t % TRELLIS_TOKENS][t / TRELLIS_TOKENS * STRINGS_COORDS];
}

static void curve_quantise_strings(const struct levels *l, unsigned b, const float *level, float *z, size_t n,
                                   size_t n_coords, size_t stride)
{
    struct curve_strings s;

    curve_encode_strings(&s, l, b, z, n, n_coords, stride);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < n_coords; i++)
            z[t * stride + i] = level[curve_states_of(&s, t)[i]];
}

/* @level: [levels_count()] */
static void curve_quantise(const struct levels *l, unsigned b, const float *level, float *z, size_t n,
                           size_t n_coords, size_t stride)
{
    size_t at_once = l->state_bits > 0 ? STRINGS_AT_ONCE * TRELLIS_TOKENS : n;

    for (size_t t = 0; t < n; t += at_once)
        if (l->state_bits > 0)
            curve_quantise_strings(l, b, level, z + t * stride, n - t < at_once ? n - t : at_once, n_coords,
                                   stride);
        else
            quantise_rows(l, b, level, z, n, n_coords, stride);
}

void curve_quantise_codes(const struct levels *l, unsigned b, const float *z, size_t n, size_t n_coords,
                          size_t stride, uint8_t *ret_codes, size_t codes_stride)
{
    size_t at_once = STRINGS_AT_ONCE * TRELLIS_TOKENS;
    struct curve_strings s;

    for (size_t t = 0; t < n; t++) {
        if (l->state_bits > 0 && t % at_once == 0)
            curve_encode_strings(&s, l, b, z + t * stride, n - t < at_once ? n - t : at_once, n_coords,
                                 stride);
        for (size_t i = 0; i < n_coords; i++)
            ret_codes[t * codes_stride + i] = l->state_bits > 0
                                                  ? curve_states_of(&s, t % at_once)[i]
                                                  : (uint8_t) quantise_fast(l, b, z[t * stride + i]);
    }
}

void curve_quantise_levels(const struct levels *l, unsigned b, float *z, size_t n, size_t n_coords,
                           size_t stride)
{
    float level[1 << TABLE_BITS_MAX] = {0};

    for (unsigned q = 0; q < levels_count(l, b); q++)
        level[q] = (float) level_z(l, q);
    curve_quantise(l, b, level, z, n, n_coords, stride);
}

void curve_quantise_values(const struct levels *l, unsigned b, float *z, size_t n, size_t n_coords,
                           size_t stride)
{
    curve_quantise(l, b, l->value, z, n, n_coords, stride);
}
