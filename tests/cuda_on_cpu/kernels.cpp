/* The kernels, compiled for the CPU; see kernels.h. */
#include "tests/cuda_on_cpu/kernels.h"

#include "gpu/cuda/kernels/attend.cu"

static void attend(const void *arg)
{
    kvc_attend(static_cast<const plan_attend *>(arg));
}

static void merge(const void *arg)
{
    kvc_merge(static_cast<const plan_attend *>(arg));
}

void on_cpu_attend(const struct plan_attend *a, unsigned n_seqs, size_t attend_shared_bytes, size_t merge_shared_bytes)
{
    const struct plan_table *t = a->table;

    on_cpu_run({ t->n_kv_heads, a->n_splits, n_seqs }, PLAN_THREADS, attend_shared_bytes, attend, a);
    on_cpu_run({ t->group, t->n_kv_heads, n_seqs }, PLAN_THREADS, merge_shared_bytes, merge, a);
}
