/* The number types of vectors that callers pass in and receive, converted to and from binary32. Their
 * values are those of kvcobra.h and of the protocol. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum dtype { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2 };

/* Bytes of one number; 0 if there is no such type. */
size_t dtype_bytes(unsigned dtype);

/* Loads numbers [first, first + n) of @from, which is aligned to its type, as binary32. */
void dtype_load(unsigned dtype, const void *from, size_t first, size_t n, float *to);

/* Stores @n numbers at the beginning of @to, rounded to nearest. */
void dtype_store(unsigned dtype, const float *from, size_t n, void *to);

/* Whether none of @n numbers is NaN or infinite. */
bool dtype_all_finite(unsigned dtype, const void *x, size_t n);
