/* See rotary.h. */
#include "tools/engine/rotary.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/table/geometry.h"
#include "base/errmsg.h"

/* Products in binary64: at position 10^5 the error of a binary32 angle is 0.01. */
int rotary_reserve(struct rotary *r, const struct geometry *g, size_t n, size_t n_max, struct errmsg *e)
{
    size_t half = g->n_rot / 2, capacity;
    float *cosine, *sine;

    r->half = half;
    r->d = g->d;
    if (n > r->capacity) {
        capacity = n < n_max / 2 ? 2 * n : n_max;
        cosine = realloc(r->cosine, (capacity * half + 1) * sizeof(float));
        if (cosine)
            r->cosine = cosine;
        sine = realloc(r->sine, (capacity * half + 1) * sizeof(float));
        if (sine)
            r->sine = sine;
        if (!cosine || !sine)
            return fail(e, -ENOMEM, "no memory for the angles of %zu positions", capacity);

        r->capacity = capacity;
    }

    for (; r->n_positions < n; r->n_positions++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double) r->n_positions * g->freq[i];

            r->cosine[r->n_positions * half + i] = (float) cos(angle);
            r->sine[r->n_positions * half + i] = (float) sin(angle);
        }
    }

    return 0;
}

void rotary_rotate(const struct rotary *r, size_t position, const float *x, float scale, float *y)
{
    size_t half = r->half;
    const float *cosine = r->cosine + position * half, *sine = r->sine + position * half;

    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];

        y[i] = scale * (a * cosine[i] - b * sine[i]);
        y[i + half] = scale * (a * sine[i] + b * cosine[i]);
    }

    for (size_t i = 2 * half; i < r->d; i++)
        y[i] = scale * x[i];
}

void rotary_deinit(struct rotary *r)
{
    free(r->cosine);
    free(r->sine);
    *r = (struct rotary){0};
}
