/*
 * OpenBLAS must not start threads inside our worker threads: its number of threads is 1 in the scope of a
 * parallel section, and is restored afterwards.
 *
 *     _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
 */
#pragma once

#include <cblas.h>

static inline int blas_threads_single(void)
{
    int n = openblas_get_num_threads();

    if (n != 1)
        openblas_set_num_threads(1);
    return n;
}

static inline void blas_threads_restore(const int *n)
{
    if (*n != 1)
        openblas_set_num_threads(*n);
}
