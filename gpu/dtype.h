/* The number types that vectors come and go in; binary32 in between. Values are those of kvcobra.h and the
 * protocol. */
#pragma once

#include <stddef.h>

enum dtype { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2 };

/* Of one number; 0 if there is no such type. */
size_t dtype_bytes(unsigned dtype);

/* Numbers [first, first + n) of @from, which is aligned to its type, as binary32. */
void dtype_load(unsigned dtype, const void *from, size_t first, size_t n, float *to);

/* The other way: @n numbers to the beginning of @to, rounded to nearest. */
void dtype_store(unsigned dtype, const float *from, size_t n, void *to);
