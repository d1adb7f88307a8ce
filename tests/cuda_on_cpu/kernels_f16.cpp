/* The kernels of the binary16 baseline, compiled for the CPU; see kernels.h. */
#include "tests/cuda_on_cpu/kernels.h"

#include "gpu/cuda/kernels/f16.cu"
#include "tests/cuda_on_cpu/kernels_f16.h"

void on_cpu_f16_64(const void *arg)
{
    kvc_f16_64(static_cast<const f16_attend *>(arg));
}

void on_cpu_f16_128(const void *arg)
{
    kvc_f16_128(static_cast<const f16_attend *>(arg));
}

void on_cpu_f16_256(const void *arg)
{
    kvc_f16_256(static_cast<const f16_attend *>(arg));
}

void on_cpu_f16_merge(const void *arg)
{
    kvc_f16_merge(static_cast<const f16_attend *>(arg));
}

void on_cpu_f16(const struct f16_attend *a, unsigned n_seqs)
{
    on_cpu_run({ a->n_kv_heads, a->n_splits, n_seqs }, F16_THREADS, 16,
               a->d == 64 ? on_cpu_f16_64 : a->d == 128 ? on_cpu_f16_128 : on_cpu_f16_256, a);
    on_cpu_run({ a->group, a->n_kv_heads, n_seqs }, F16_THREADS, 16, on_cpu_f16_merge, a);
}
