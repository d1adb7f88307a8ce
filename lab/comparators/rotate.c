/* See rotate.h. */
#include "lab/comparators/rotate.h"

#include <cblas.h>
#include <errno.h>
#include <stdlib.h>

#include "alloc/math/rotation.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

struct rotate {
    uint32_t d;
    float R[]; /* [d, d] */
};

int rotate_new(uint32_t d, uint32_t order, uint64_t seed, struct rotate **ret_rotate, struct errmsg *e)
{
    _cleanup_(freep) struct rotate *t = calloc(1, sizeof(*t) + (size_t) d * d * sizeof(float));
    _cleanup_(freep) double *block = calloc((size_t) order * order, sizeof(*block));

    if (!t || !block)
        return fail(e, -ENOMEM, "out of memory for a rotation");

    t->d = d;
    rotation_matrix(order, seed, block);
    for (uint32_t at = 0; at < d; at += order)
        for (uint32_t i = 0; i < order; i++)
            for (uint32_t j = 0; j < order; j++)
                t->R[(size_t) (at + i) * d + at + j] = (float) block[i * order + j];
    *ret_rotate = take_ptr(t);
    return 0;
}

static void rotate_multiply(const struct rotate *t, enum CBLAS_TRANSPOSE how, const float *x, size_t n,
                            float *y)
{
    int d = (int) t->d;

    if (n > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, how, (int) n, d, d, 1, x, d, t->R, d, 0, y, d);
}

void rotate_forward(const struct rotate *t, const float *x, size_t n, float *ret_y)
{
    rotate_multiply(t, CblasTrans, x, n, ret_y);
}

void rotate_inverse(const struct rotate *t, const float *x, size_t n, float *ret_y)
{
    rotate_multiply(t, CblasNoTrans, x, n, ret_y);
}
