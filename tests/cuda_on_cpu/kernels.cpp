/* Finds kernels by name, and runs the sequences of kernels that tests need; see kernels.h. */
#include "tests/cuda_on_cpu/kernels.h"

#include <cstdlib>
#include <cstring>

#include "gpu/cuda/kernels/device.h" /* and with it backend/device.h of this folder */
#include "tests/cuda_on_cpu/entries.h"

#define DECLARE_ATTEND(kernel, n_key_coords, n_columns, n_rows) ENTRY_DECLARE(kernel, launch_attend)
ATTEND_KERNELS(DECLARE_ATTEND)
#define DECLARE_80(kernel, d, n_key_coords, n_columns, n_rows) ENTRY_DECLARE(kernel, launch_attend)
ATTEND_80_KERNELS(DECLARE_80)
MERGE_KERNELS(ENTRY_DECLARE)
APPEND_KERNELS(ENTRY_DECLARE)
READ_KERNELS(ENTRY_DECLARE)
STAGED_KERNELS(ENTRY_DECLARE)
MEMORY_KERNELS(ENTRY_DECLARE)
F16_KERNELS(ENTRY_DECLARE)

static const struct kernel {
    const char *name;
    size_t bytes;
    void (*run)(const void *arg);
} kernels[] = {
#define ROW(name, parameters) {#name, sizeof(struct parameters), on_cpu_##name},
#define ROW_ATTEND(name, n_key_coords, n_columns, n_rows) ROW(name, launch_attend)
#define ROW_80(name, d, n_key_coords, n_columns, n_rows) ROW(name, launch_attend)
    ATTEND_KERNELS(ROW_ATTEND) ATTEND_80_KERNELS(ROW_80) MERGE_KERNELS(ROW) APPEND_KERNELS(ROW)
        READ_KERNELS(ROW) STAGED_KERNELS(ROW) MEMORY_KERNELS(ROW) F16_KERNELS(ROW)};

static const struct kernel *find(const char *name)
{
    for (const auto &k : kernels)
        if (strcmp(k.name, name) == 0)
            return &k;
    return nullptr;
}

size_t on_cpu_param_bytes(const char *name)
{
    const struct kernel *k = find(name);

    return k ? k->bytes : 0;
}

void on_cpu_launch(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned n_threads,
                   size_t shared_bytes, const void *parameters)
{
    const struct kernel *k = find(name);

    if (!k)
        abort();
    on_cpu_run({gx, gy, gz}, n_threads, shared_bytes, k->run, parameters);
}

void on_cpu_attend(enum attend_kernel kernel, const struct launch_attend *a, unsigned n_items,
                   size_t attend_shared_bytes, size_t merge_shared_bytes)
{
    const struct device_table *t = a->table;

    on_cpu_run({t->n_kv_heads * LAUNCH_TILES(t->group, a->n_q), a->n_splits, n_items}, LAUNCH_THREADS,
               attend_shared_bytes, kernels[kernel].run, a); /* those of attention come first */
    on_cpu_launch("kvc_merge", t->group * a->n_q, t->n_kv_heads, n_items, LAUNCH_THREADS, merge_shared_bytes,
                  a);
}

void on_cpu_attend_80(enum attend_80_kernel kernel, const struct launch_attend *a, unsigned n_items,
                      size_t attend_shared_bytes, size_t merge_shared_bytes)
{
    const struct device_table *t = a->table;

    on_cpu_run({t->n_kv_heads * LAUNCH_TILES(t->group, a->n_q), a->n_splits, n_items}, LAUNCH_THREADS,
               attend_shared_bytes, kernels[ATTEND_COUNT + kernel].run,
               a); /* these follow the general ones */
    on_cpu_launch("kvc_merge", t->group * a->n_q, t->n_kv_heads, n_items, LAUNCH_THREADS, merge_shared_bytes,
                  a);
}

void on_cpu_f16(const struct f16_attend *a, unsigned n_seqs)
{
    const char *kernel = "kvc_f16_256";

    if (a->d == 64)
        kernel = "kvc_f16_64";
    else if (a->d == 128)
        kernel = "kvc_f16_128";
    on_cpu_launch(kernel, a->n_kv_heads, a->n_splits, n_seqs, F16_THREADS, 16, a);
    on_cpu_launch("kvc_f16_merge", a->group, a->n_kv_heads, n_seqs, F16_THREADS, 16, a);
}
