/* Selection of the kernel, and the reference; see matvec.h. */
#include "tools/engine/matvec.h"

static void matvec_rows_ref(const struct matrix *w, size_t first, size_t n_rows, const float *x,
                            const float *sums, float *y)
{
    const struct quant_type *t = w->type;

    (void) sums;
    for (size_t i = 0; i < n_rows; i++) {
        const uint8_t *block = w->data + (first + i) * w->row_bytes;
        double sum = 0.0;

        for (size_t at = 0; at < w->n_cols; at += t->block_weights, block += t->block_bytes) {
            float decoded[QUANT_BLOCK_MAX];

            t->decode(block, 1, decoded);
            for (size_t k = 0; k < t->block_weights; k++)
                sum += (double) decoded[k] * (double) x[at + k];
        }

        y[i] = (float) sum;
    }
}

const struct matvec_ops matvec_ref = {"reference", matvec_rows_ref};

size_t matvec_runnable(const struct matvec_ops *ret_ops[static 3])
{
    size_t n = 0;

    ret_ops[n++] = &matvec_ref;
#if defined(__x86_64__)
    /* All processors with AVX2 and FMA have F16C. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        ret_ops[n++] = &matvec_avx2;
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        ret_ops[n++] = &matvec_avx512;
#endif
    return n;
}

const struct matvec_ops *matvec_ops(void)
{
    const struct matvec_ops *ops[3];

    return ops[matvec_runnable(ops) - 1];
}

void matvec_sums(const float *x, size_t n, float *ret_sums)
{
    for (size_t i = 0; i + MATVEC_SUM_RUN <= n; i += MATVEC_SUM_RUN) {
        double sum = 0.0;

        for (size_t k = 0; k < MATVEC_SUM_RUN; k++)
            sum += (double) x[i + k];
        ret_sums[i / MATVEC_SUM_RUN] = (float) sum;
    }
}
