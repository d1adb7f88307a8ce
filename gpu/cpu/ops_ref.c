/* The inner loops in plain C: the oracle of the other variants, and the fallback. Loops run over 16 columns
 * at a time in local arrays, which the compiler converts to vectors of the base instruction set. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "gpu/cpu/ops.h"

static void matmul_ref(size_t m, size_t n, size_t k, struct matrix_in a, struct matrix_in b,
                       struct matrix_out c)
{
    for (size_t j = 0; j < n; j += OPS_LANES)
        for (size_t i = 0; i < m; i++) {
            float sum[OPS_LANES] = {0};
            float *out = c.p + i * c.ld + j;

            for (size_t x = 0; x < k; x++) {
                const float *row = b.p + x * b.ld + j;
                float factor = a.p[i * a.ld + x];

                for (size_t l = 0; l < OPS_LANES; l++)
                    sum[l] += factor * row[l];
            }

            for (size_t l = 0; l < OPS_LANES; l++)
                out[l] += sum[l];
        }
}

static void lookup_ref(const struct levels *l, unsigned b, const uint8_t *codes, size_t n, float *ret)
{
    (void) b;
    for (size_t i = 0; i < n; i++)
        ret[i] = l->value[codes[i]];
}

static void rotate_ref(float *lo, float *hi, const float *cos, const float *sin, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = lo[i], y = hi[i];

        lo[i] = x * cos[i] - y * sin[i];
        hi[i] = y * cos[i] + x * sin[i];
    }
}

static void from_half_ref(const void *x, size_t n, float *ret)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, (const char *) x + i * sizeof(h), sizeof(h));
        ret[i] = f16_to_f32(h);
    }
}

static float softmax_ref(struct softmax_row *row, float scores[CHUNK_TOKENS])
{
    float max = row->max, sum = 0, factor;

    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        max = fmaxf(max, scores[t]);
    for (size_t t = 0; t < CHUNK_TOKENS; t++) {
        scores[t] = expf(scores[t] - max);
        sum += scores[t];
    }

    factor = expf(row->max - max);
    row->sum = row->sum * factor + sum;
    row->max = max;
    return factor;
}

/* Its plain loop already has the order that matmul_ordered demands; -ffp-contract=off prevents FMA. */
const struct ops ops_ref = {
    .name = "reference",
    .matmul = matmul_ref,
    .matmul_ordered = matmul_ref,
    .lookup = lookup_ref,
    .rotate = rotate_ref,
    .from_half = from_half_ref,
    .softmax = softmax_ref,
};
