/* The parameters of konly.cu: packed keys beside binary16 values, which benches compare. Plain structs, the
 * same in C, C++ and CUDA; pointers are device pointers. Not part of the library. */
#pragma once

#include "gpu/cuda/kernels/attend_80.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KONLY_D = 128, KONLY_ROWS = 4, KONLY_STAGES = 2 };

struct konly_attend {
    /* one query per item; no exact rows; partials: [items][KV heads][n_splits][KONLY_PARTIAL_FLOATS] */
    struct launch_attend attend;
    const uint16_t *v; /* [items][KV heads][ld][KONLY_D] binary16, aligned to 16 */
    uint32_t ld;       /* rows of a (sequence, KV head), at least 64 n_pages */
};

/* Maxima and sums per row, then [KONLY_D][DEVICE_GROUP_MAX]. */
#define KONLY_PARTIAL_FLOATS (DEVICE_GROUP_MAX * (2u + KONLY_D))

/* X(name, largest number of coordinates of K) */
#define KONLY_ATTEND_KERNELS(X) X(kvc_konly_rank_64, 64) X(kvc_konly_rank_128, 128)
#define KONLY_MERGE_KERNELS(X) X(kvc_konly_merge, konly_attend)

/* Offset of values in shared memory, [KONLY_STAGES][2 pages][64][KONLY_D] binary16. */
DEVICE_INLINE uint32_t konly_values_at(const struct attend_80_shape *s)
{
    return (s->ring + KONLY_STAGES * 2 * s->block_bytes + 127) / 128 * 128;
}

#define KONLY_VALUE_BYTES (KONLY_STAGES * 2 * 64 * KONLY_D * 2)

#ifdef __cplusplus
}
#endif
