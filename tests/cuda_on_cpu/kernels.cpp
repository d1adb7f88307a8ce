/* The kernels, compiled for the CPU; see kernels.h. */
#include "tests/cuda_on_cpu/kernels.h"

#include <cstdlib>
#include <cstring>

#include "gpu/cuda/kernels/attend.cu"
#include "tests/cuda_on_cpu/kernels_codec.h"
#include "tests/cuda_on_cpu/kernels_f16.h"

#define RUN_ATTEND(name, n_key_coords, n_columns, n_rows)  \
    static void run_##name(const void *arg)                \
    {                                                      \
        name(static_cast<const plan_attend *>(arg));       \
    }
PLAN_ATTEND_KERNELS(RUN_ATTEND)

static void merge(const void *arg)
{
    kvc_merge(static_cast<const plan_attend *>(arg));
}

/* Kernels whose parameter is the address of their plan. */
static const struct {
    const char *name;
    void (*run)(const void *plan);
} kernels[] = {
#define NAMED(name, n_key_coords, n_columns, n_rows) { #name, run_##name },
    PLAN_ATTEND_KERNELS(NAMED)
#undef NAMED
    { "kvc_merge", merge },
    { "kvc_encode_keys", on_cpu_encode_keys },
    { "kvc_encode_values", on_cpu_encode_values },
    { "kvc_decode", on_cpu_decode_page },
    { "kvc_f16_64", on_cpu_f16_64 },
    { "kvc_f16_128", on_cpu_f16_128 },
    { "kvc_f16_256", on_cpu_f16_256 },
    { "kvc_f16_merge", on_cpu_f16_merge },
};

size_t on_cpu_param_bytes(const char *name)
{
    for (const auto &k : kernels)
        if (strcmp(k.name, name) == 0)
            return sizeof(const void *);
    return 0;
}

void on_cpu_launch(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned n_threads, size_t shared_bytes,
                   const void *params)
{
    for (const auto &k : kernels)
        if (strcmp(k.name, name) == 0) {
            on_cpu_run({ gx, gy, gz }, n_threads, shared_bytes, k.run, *static_cast<const void *const *>(params));
            return;
        }
    abort();
}

void on_cpu_attend(enum plan_attend_kernel kernel, const struct plan_attend *a, unsigned n_seqs, size_t attend_shared_bytes, size_t merge_shared_bytes)
{
    static void (*const attends[])(const void *plan) = {
#define FUNCTION(name, n_key_coords, n_columns, n_rows) run_##name,
        PLAN_ATTEND_KERNELS(FUNCTION)
#undef FUNCTION
    };
    const struct plan_table *t = a->table;

    on_cpu_run({ t->n_kv_heads * PLAN_TILES(t->group, a->n_q), a->n_splits, n_seqs }, PLAN_THREADS, attend_shared_bytes, attends[kernel], a);
    on_cpu_run({ t->group * a->n_q, t->n_kv_heads, n_seqs }, PLAN_THREADS, merge_shared_bytes, merge, a);
}
