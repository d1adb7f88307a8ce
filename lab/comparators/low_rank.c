/* See low_rank.h. */
#include "lab/comparators/low_rank.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "alloc/solve/transform.h"
#include "base/cleanup.h"
#include "base/half.h"
#include "base/splitmix64.h"

enum { ROUNDS = 3 };

/* Makes the columns of x [n, r] orthonormal. A column that depends on the columns before it becomes 0. */
static void low_rank_orthonormalise(float *x, size_t n, size_t r)
{
    for (size_t k = 0; k < r; k++) {
        double energy = 0, left = 0, scale;

        for (size_t i = 0; i < n; i++)
            energy += (double) x[i * r + k] * x[i * r + k];
        for (size_t j = 0; j < k; j++) {
            double dot = 0;

            for (size_t i = 0; i < n; i++)
                dot += (double) x[i * r + k] * x[i * r + j];
            for (size_t i = 0; i < n; i++)
                x[i * r + k] -= (float) dot * x[i * r + j];
        }

        for (size_t i = 0; i < n; i++)
            left += (double) x[i * r + k] * x[i * r + k];
        scale = left > 1e-10 * energy && left > 0 ? 1 / sqrt(left) : 0;
        for (size_t i = 0; i < n; i++)
            x[i * r + k] *= (float) scale;
    }
}

static void low_rank_round_half(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = f16_to_f32(f32_to_f16(x[i]));
}

int low_rank(const float *x, size_t n, size_t d, size_t r, float *ret_y)
{
    _cleanup_(freep) float *q = calloc(n * r + 1, sizeof(*q));
    _cleanup_(freep) float *p = calloc(d * r + 1, sizeof(*p));

    if (!q || !p)
        return -ENOMEM;

    for (size_t i = 0; i < d * r; i++)
        p[i] = (float) (splitmix64_seed(1, i) >> 40) * 0x1p-23f - 1.0f;
    for (int round = 0; round < ROUNDS; round++) { /* q = orth(x p), p = x' q: in the end x ~ q q' x */
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) n, (int) r, (int) d, 1, x, (int) d, p,
                    (int) r, 0, q, (int) r);
        low_rank_orthonormalise(q, n, r);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int) d, (int) r, (int) n, 1, x, (int) d, q,
                    (int) r, 0, p, (int) r);
    }

    low_rank_round_half(q, n * r);
    low_rank_round_half(p, d * r);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) r, 1, q, (int) r, p, (int) r,
                0, ret_y, (int) d);
    return 0;
}
