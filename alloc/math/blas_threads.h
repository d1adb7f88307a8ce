/*
 * OpenBLAS must not start threads inside our worker threads, and its threads spin while other work waits for
 * the core. Its number of threads, which is one for the whole process, is 1 while any scope of this program
 * asks for it, and what the caller had set afterwards. The scopes may overlap, on any threads.
 *
 *     _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
 */
#pragma once

int blas_threads_single(void); /* its value means nothing */
void blas_threads_restore(const int *unused);
