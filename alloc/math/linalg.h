/*
 * Dense linear algebra of the solvers in binary64: wrappers of LAPACK that also check for finite input and
 * output. Matrices are row-major [n, n]; "symmetric" means both triangles are filled.
 *
 * Errors: -EDOM   not finite, not definite or no convergence; the caller adds the head-side to the sentence
 *         -ENOMEM
 */
#pragma once

#include <stddef.h>

/**
 * linalg_eigen() - eigenvalues and vectors of a symmetric matrix, largest first
 * @a:       [n, n], destroyed; on success row i is the unit eigenvector of ret_w[i]
 * @ret_w:   [n] descending
 *
 * The sign of a vector is free: the component of largest magnitude is made positive, so that the same
 * statistics give the same table with every LAPACK.
 */
int linalg_eigen(size_t n, double *a, double *ret_w);

/**
 * linalg_roots() - A = a^(1/2) and A^-1 of a symmetric positive definite matrix
 * @a: [n, n], unchanged
 *
 * Eigenvalues below 1e-12 of the largest are raised to that value, so that the inverse stays finite.
 */
int linalg_roots(size_t n, const double *a, double *ret_root, double *ret_inverse);

/* b := a^-1 b for symmetric positive definite @a [n, n] (destroyed) and @b [n, n_rhs] row-major. */
int linalg_solve(size_t n, size_t n_rhs, double *a, double *b);

/* c := a b for row-major a [m, k], b [k, n], c [m, n]. */
void linalg_product(size_t m, size_t n, size_t k, const double *a, const double *b, double *ret_c);

/* Copies the lower triangle onto the upper one. */
void linalg_mirror(size_t n, double *a);

double linalg_trace(size_t n, const double *a);
