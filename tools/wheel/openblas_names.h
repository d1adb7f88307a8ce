/*
 * Names of the OpenBLAS of PyPI's scipy-openblas32, which begin with scipy_ so that several copies can be
 * in one process. tools/wheel.sh lets the compiler include this file before every source; no source does.
 */
#pragma once

#define LAPACKE_dposv scipy_LAPACKE_dposv
#define LAPACKE_dsyevd scipy_LAPACKE_dsyevd
#define cblas_daxpy scipy_cblas_daxpy
#define cblas_ddot scipy_cblas_ddot
#define cblas_dgemm scipy_cblas_dgemm
#define cblas_dscal scipy_cblas_dscal
#define cblas_dsymv scipy_cblas_dsymv
#define cblas_dsyr2k scipy_cblas_dsyr2k
#define cblas_dsyrk scipy_cblas_dsyrk
#define cblas_sgemm scipy_cblas_sgemm
#define cblas_sgemv scipy_cblas_sgemv
#define cblas_ssyrk scipy_cblas_ssyrk
#define openblas_get_corename scipy_openblas_get_corename
#define openblas_get_num_threads scipy_openblas_get_num_threads
#define openblas_set_num_threads scipy_openblas_set_num_threads
