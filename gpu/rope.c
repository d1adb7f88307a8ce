/* See rope.h. */
#include "gpu/rope.h"

#include <math.h>
#include <string.h>

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
