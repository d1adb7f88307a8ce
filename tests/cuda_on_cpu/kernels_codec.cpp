/* The encoding and decoding kernels, compiled for the CPU; see kernels.h. */
#include "tests/cuda_on_cpu/kernels.h"

#include "gpu/cuda/kernels/codec.cu"
#include "tests/cuda_on_cpu/kernels_codec.h"

void on_cpu_encode_keys(const void *arg)
{
    kvc_encode_keys(static_cast<const plan_encode *>(arg));
}

void on_cpu_encode_values(const void *arg)
{
    kvc_encode_values(static_cast<const plan_encode *>(arg));
}

void on_cpu_decode_page(const void *arg)
{
    kvc_decode(static_cast<const plan_decode *>(arg));
}

void on_cpu_encode(const struct plan_encode *e, unsigned n_chunks, size_t shared_bytes)
{
    on_cpu_run({ e->table->n_kv_heads, n_chunks, 1 }, PLAN_THREADS, shared_bytes, on_cpu_encode_keys, e);
    on_cpu_run({ e->table->n_kv_heads, n_chunks, 1 }, PLAN_THREADS, shared_bytes, on_cpu_encode_values, e);
}

void on_cpu_decode(const struct plan_decode *d, unsigned n_pages)
{
    on_cpu_run({ d->table->n_kv_heads, n_pages, 1 }, PLAN_THREADS, 16, on_cpu_decode_page, d);
}
