/* The number types that callers may hand over. */
#include <string.h>

#include "base/half.h"
#include "client/seq.h"

size_t dtype_bytes(enum kvc_dtype dtype)
{
    switch (dtype) {
    case KVC_F32:
        return 4;
    case KVC_F16:
    case KVC_BF16:
        return 2;
    }
    return 0;
}

void dtype_load(enum kvc_dtype dtype, const void *from, size_t first, size_t n, float *to)
{
    const uint16_t *half = (const uint16_t *) from + first;

    switch (dtype) {
    case KVC_F32:
        memcpy(to, (const float *) from + first, n * sizeof(*to));
        break;
    case KVC_F16:
        for (size_t i = 0; i < n; i++)
            to[i] = f16_to_f32(half[i]);
        break;
    case KVC_BF16:
        for (size_t i = 0; i < n; i++)
            to[i] = bf16_to_f32(half[i]);
        break;
    }
}
