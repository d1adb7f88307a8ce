/* The inner loops in plain C: the oracle of the other variants, and the fallback. Loops run over 16 columns
 * at a time in local arrays, which the compiler converts to vectors of the base instruction set. */
#include <math.h>
#include <string.h>

#include "alloc/table/table.h"
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

static size_t quantise_ref(const struct levels *l, unsigned b, struct quantise_limits limits, const float *z,
                           size_t n, size_t lanes, uint8_t *codes)
{
    size_t outside = 0;

    for (size_t i = 0; i < n; i++) {
        codes[i] = levels_quantise(l, b, z[i]);
        outside += i % OPS_LANES < lanes && (z[i] < limits.low || z[i] > limits.high);
    }
    return outside;
}

static void transpose_ref(const float *x, size_t stride, float *ret, size_t ret_stride)
{
    for (size_t i = 0; i < OPS_LANES; i++)
        for (size_t k = 0; k < OPS_LANES; k++)
            ret[k * ret_stride + i] = x[i * stride + k];
}

static bool centre_ref(const float *mean, size_t n, float *x)
{
    bool finite = true;

    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < OPS_LANES; t++) {
            x[i * OPS_LANES + t] -= mean[i];
            finite &= isfinite(x[i * OPS_LANES + t]) != 0;
        }
    return finite;
}

static void from_brain_ref(const void *x, size_t n, float *ret)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, (const char *) x + i * sizeof(h), sizeof(h));
        ret[i] = bf16_to_f32(h);
    }
}

static void to_brain_ref(const float *x, size_t n, void *ret)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = f32_to_bf16(x[i]);

        memcpy((char *) ret + i * sizeof(h), &h, sizeof(h));
    }
}

static bool to_half_ref(const float *x, size_t n, void *ret)
{
    bool finite = true;

    for (size_t i = 0; i < n; i++) {
        uint16_t h = f32_to_f16(x[i]);

        finite &= (h & 0x7c00) != 0x7c00;
        memcpy((char *) ret + i * sizeof(h), &h, sizeof(h));
    }
    return finite;
}

static void turn_ref(float *restrict lo, float *restrict hi, const float *restrict cos,
                     const float *restrict sin, float sign, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = lo[i], y = hi[i], s = sign * sin[i];

        lo[i] = x * cos[i] - y * s;
        hi[i] = y * cos[i] + x * s;
    }
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
    .quantise = quantise_ref,
    .trellis = trellis_encode_ref,
    .transpose = transpose_ref,
    .centre = centre_ref,
    .from_brain = from_brain_ref,
    .to_brain = to_brain_ref,
    .to_half = to_half_ref,
    .turn = turn_ref,
};
