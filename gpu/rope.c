/* See rope.h. */
#include "gpu/rope.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gpu/page_layout.h"

void rope_phase_at(const struct geometry *g, double position, struct rope_phase *ret)
{
    for (uint32_t i = 0; i < g->n_rot / 2; i++)
        sincos(position * g->freq[i], &ret->sin[i], &ret->cos[i]);
}

void rope_phase_advance(const struct geometry *g, struct rope_phase *phase, const struct rope_phase *step)
{
    for (uint32_t i = 0; i < g->n_rot / 2; i++) {
        double c = phase->cos[i], s = phase->sin[i];

        phase->cos[i] = c * step->cos[i] - s * step->sin[i];
        phase->sin[i] = s * step->cos[i] + c * step->sin[i];
    }
}

void rope_rotate(const struct geometry *g, const struct rope_phase *phase, const float *x, float *ret)
{
    uint32_t half = g->n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        float lo = x[i], hi = x[half + i];
        float c = (float) phase->cos[i], s = (float) phase->sin[i];

        ret[i] = lo * c - hi * s;
        ret[half + i] = hi * c + lo * s;
    }
    if (ret != x)
        memcpy(ret + g->n_rot, x + g->n_rot, (g->d - g->n_rot) * sizeof(*ret));
}

void rope_columns(const struct geometry *g, double first, float *ret_cos, float *ret_sin)
{
    struct rope_phase phase, step;

    rope_phase_at(g, first, &phase);
    rope_phase_at(g, 1, &step);
    for (size_t t = 0; t < CHUNK_TOKENS; t++) {
        for (uint32_t i = 0; i < g->n_rot / 2; i++) {
            ret_cos[i * CHUNK_TOKENS + t] = (float) phase.cos[i];
            ret_sin[i * CHUNK_TOKENS + t] = (float) phase.sin[i];
        }
        rope_phase_advance(g, &phase, &step);
    }
}

void rope_rows(const struct geometry *g, size_t first, size_t n, float *ret_cos, float *ret_sin)
{
    for (size_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < g->n_rot / 2; i++) {
            double c, s;

            sincos((double) (first + t) * g->freq[i], &s, &c);
            *ret_cos++ = (float) c;
            *ret_sin++ = (float) s;
        }
}

static int rope_table_grow(struct rope_table *t, const struct geometry *g, size_t n)
{
    size_t n_max = t->n_max > 0 ? t->n_max : CHUNK_TOKENS, bytes;
    float *cos, *sin;

    while (n_max < n)
        if (!checked_mul(n_max, 2, &n_max))
            return -ENOMEM;
    if (!checked_mul(n_max, (size_t) g->n_rot / 2 * sizeof(float), &bytes))
        return -ENOMEM;

    cos = malloc(bytes);
    sin = malloc(bytes);
    if (!cos || !sin) {
        free(cos);
        free(sin);
        return -ENOMEM;
    }

    rope_table_deinit(t);
    *t = (struct rope_table){.n_max = n_max, .cos = cos, .sin = sin};
    return 0;
}

int rope_table_cover(struct rope_table *t, const struct geometry *g, size_t first, size_t n)
{
    int r;

    if (first >= t->first && first - t->first <= t->n && n <= t->n - (first - t->first))
        return 0;

    r = n > t->n_max ? rope_table_grow(t, g, n) : 0;
    if (r < 0)
        return r;

    rope_rows(g, first, n, t->cos, t->sin);
    t->first = first;
    t->n = n;
    return 0;
}

void rope_table_deinit(struct rope_table *t)
{
    free(t->cos);
    free(t->sin);
    *t = (struct rope_table){0};
}
