/* Attention for compute capability 9.0: the list of its kernels, and how a block divides its shared memory.
 * Used by the host, which launches the kernels, and by attend_90.cu, which defines them. Plain C. */
#pragma once

#include "gpu/cuda/kernels/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ATTEND_90_COMPUTE = 90, /* 10 * major + minor of the devices that run them */
    /* of a block: one warpgroup fetches pages and rotates queries, the other attends */
    ATTEND_90_THREADS = 256,
    /* bytes of a multiprocessor; a block takes 1024 more than it requests */
    ATTEND_90_SHARED_ALL = 228 << 10,
    ATTEND_90_SHARED_MAX = 227 << 10,  /* of one block */
    ATTEND_90_SHARED_HALF = 113 << 10, /* so that two blocks share a multiprocessor */
    ATTEND_90_STAGES_MIN = 2,
    ATTEND_90_STAGES_GOOD = 4,
    ATTEND_90_STAGES_MAX = 32,
    ATTEND_90_PREFETCH_BYTES = 24 << 10, /* bytes that should be in flight */
    ATTEND_90_QUERY_STAGES_MAX = 3,
};

/* X(name, d, rows): head dimension, and the largest number of query rows of a tile. */
#define ATTEND_90_KERNELS(X)                                                                                 \
    X(kvc_attend90_64_rows_8, 64, 8)                                                                         \
    X(kvc_attend90_128_rows_8, 128, 8)                                                                       \
    X(kvc_attend90_256_rows_8, 256, 8)                                                                       \
    X(kvc_attend90_64_rows_16, 64, 16)                                                                       \
    X(kvc_attend90_128_rows_16, 128, 16)                                                                     \
    X(kvc_attend90_256_rows_16, 256, 16)

/* Blocks on one multiprocessor that the registers allow. */
#define ATTEND_90_BLOCKS(d, n_rows) (1u + ((d) <= 128) + ((d) == 64 && (n_rows) == 8))

enum attend_90_kernel {
#define ATTEND_90_NUMBER(name, d, n_rows) number_of_##name,
    ATTEND_90_KERNELS(ATTEND_90_NUMBER)
#undef ATTEND_90_NUMBER
        ATTEND_90_COUNT
};

/* Queries of a page as operand B, by step of 16 planes, tile of 8 rows, lane: four words, of k 2t, 2t + 8
 * of two matrices. Sets: the queries (lo, hi); factors of the mean's cosines and sines; rounding residuals
 * of those factors. */
#define ATTEND_90_QUERY_STAGES(d)                                                                            \
    ((d) <= 128 ? 3u : 2u) /* pieces whose queries are rotated in advance, each by one warp */
enum { ATTEND_90_SETS = 3, ATTEND_90_STEP_PAD = 8 };
#define ATTEND_90_STEP_WORDS(n_row_tiles) (128 * (n_row_tiles) + ATTEND_90_STEP_PAD)

/* A row of weights: 32 words. The word at 8 t + 2 s + h has the tokens 16 s + 2 t + h and 8 more. Padded so
 * that rows begin in different banks. */
enum { ATTEND_90_WEIGHT_LD = 36 };

/* Offsets in the shared memory of a block, all multiples of 128. */
struct attend_90_shape {
    uint32_t narrow, wide, tiles, dec_k, queries, start, weights, rows, ring;
    uint32_t query_bytes;           /* of one stage of queries */
    uint32_t stage_bytes, n_stages; /* of the ring of page blocks */
    uint32_t bytes;                 /* total */
};

DEVICE_INLINE uint32_t attend_90_take(uint32_t *at, uint32_t bytes)
{
    uint32_t from = *at;

    *at = (from + bytes + 127) / 128 * 128;
    return from;
}

/* Barriers are at offset 0: two for each stage of the ring, two for each stage of the queries. */
DEVICE_INLINE struct attend_90_shape attend_90_shape(uint32_t d, uint32_t n_rows, uint32_t key_rank_max,
                                                     uint32_t block_bytes_max)
{
    uint32_t at = 0, n_row_tiles = n_rows / 8;
    struct attend_90_shape s;

    (void) attend_90_take(&at, 2 * (ATTEND_90_STAGES_MAX + ATTEND_90_QUERY_STAGES_MAX) * 8);
    s.narrow = attend_90_take(&at, 2 * 5 * 16);
    s.wide = attend_90_take(&at, 2 * 512 * 2);
    s.tiles = attend_90_take(&at, 3 * DEVICE_HALVES_MAX / 2 * 16);
    s.dec_k = attend_90_take(&at, d * key_rank_max * 2);
    s.query_bytes = ATTEND_90_SETS * d / 32 * ATTEND_90_STEP_WORDS(n_row_tiles) * 4;
    s.queries = attend_90_take(&at, ATTEND_90_QUERY_STAGES(d) * s.query_bytes);
    s.start = attend_90_take(&at, n_rows * d * 4);
    s.weights = attend_90_take(&at, 2 * n_rows * ATTEND_90_WEIGHT_LD * 4);
    s.rows = attend_90_take(&at, 2 * 4 * n_rows * 4);
    s.ring = at;
    s.stage_bytes = block_bytes_max > 0 ? (block_bytes_max + 127) / 128 * 128 : 128;
    s.n_stages = ATTEND_90_PREFETCH_BYTES / s.stage_bytes;
    if (s.n_stages > ATTEND_90_STAGES_MAX)
        s.n_stages = ATTEND_90_STAGES_MAX;
    if (s.n_stages < ATTEND_90_STAGES_GOOD)
        s.n_stages = ATTEND_90_STAGES_GOOD;
    while (s.n_stages > ATTEND_90_STAGES_GOOD && s.ring + s.n_stages * s.stage_bytes > ATTEND_90_SHARED_HALF)
        s.n_stages--;
    while (s.n_stages > ATTEND_90_STAGES_MIN && s.ring + s.n_stages * s.stage_bytes > ATTEND_90_SHARED_MAX)
        s.n_stages--;
    s.bytes = s.ring + s.n_stages * s.stage_bytes;
    return s;
}

#ifdef __cplusplus
}
#endif
