/* A GPU for tests/gpu/bench_attend.c: its kernels, memory that is freed in reverse
 * order, and time from its own events. */
#pragma once

#include "lab/cuda/f16.h"
#include "gpu/cuda/kernels.h"

struct bench_gpu {
    struct cuda_driver *driver;
    struct cuda_device_info device;
    struct cuda_space *space;
    struct cuda_kernels *kernels;
    struct cuda_f16 *f16;
    int n_multiprocessors;
    cu_event begin, end;
    cu_ptr allocations[2048];
    size_t n_allocations;
};

/* Opens the first GPU. bench_gpu_close() also closes it after a failure. */
int bench_gpu_open(struct bench_gpu *g, struct errmsg *e);
void bench_gpu_close(struct bench_gpu *g);

/* Allocates memory with the bytes at @from, or undefined if that is NULL. */
int bench_gpu_put(struct bench_gpu *g, const void *from, size_t bytes, cu_ptr *ret_at, struct errmsg *e);
int bench_gpu_get(struct bench_gpu *g, void *to, cu_ptr from, size_t bytes, struct errmsg *e);

/* Fills memory with repetitions of @pattern. */
int bench_gpu_fill(struct bench_gpu *g, cu_ptr at, size_t bytes, const void *pattern, size_t pattern_bytes,
                   struct errmsg *e);

/* Frees all but the first @n allocations. */
void bench_gpu_release(struct bench_gpu *g, size_t n);

/* Queues call number @i of the measured work. */
typedef int (*bench_call)(const void *arg, size_t i, struct errmsg *e);

/* Seconds per call of @n calls queued one after the other, from the start
 * of the first to the end of the last. */
int bench_gpu_time(struct bench_gpu *g, bench_call call, const void *arg, size_t n, double *ret_seconds,
                   struct errmsg *e);
