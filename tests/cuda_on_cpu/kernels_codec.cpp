/* The encoding and decoding kernels, compiled for the CPU; see kernels.h. */
#include "tests/cuda_on_cpu/kernels.h"

#include "gpu/cuda/kernels/codec.cu"

static void encode_keys(const void *arg)
{
    kvc_encode_keys(static_cast<const plan_encode *>(arg));
}

static void encode_values(const void *arg)
{
    kvc_encode_values(static_cast<const plan_encode *>(arg));
}

static void decode(const void *arg)
{
    kvc_decode(static_cast<const plan_decode *>(arg));
}

void on_cpu_encode(const struct plan_encode *e, unsigned n_chunks, size_t shared_bytes)
{
    on_cpu_run({ e->table->n_kv_heads, n_chunks, 1 }, PLAN_THREADS, shared_bytes, encode_keys, e);
    on_cpu_run({ e->table->n_kv_heads, n_chunks, 1 }, PLAN_THREADS, shared_bytes, encode_values, e);
}

void on_cpu_decode(const struct plan_decode *d, unsigned n_pages)
{
    on_cpu_run({ d->table->n_kv_heads, n_pages, 1 }, PLAN_THREADS, 16, decode, d);
}
