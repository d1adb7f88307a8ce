/* Attention for compute capability 8.0 and later: the list of its kernels, and how a block
 * divides its shared memory. Used by the host, which launches the kernels, and by
 * attend_80.cu, which defines them. Plain C. */
#pragma once

#include "gpu/cuda/kernels/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ATTEND_80_COMPUTE = 80,          /* 10 * major + minor of the oldest devices that run them */
    ATTEND_80_SHARED_MAX = 99 << 10, /* bytes of a block that every GPU of 8.0 and later has */
    /* so that three blocks share a multiprocessor of 9.0; above this, less is prefetched */
    ATTEND_80_SHARED_GOOD = 74 << 10,
    /* of all blocks of a multiprocessor of 8.0; a block takes 1 KB besides its own */
    ATTEND_80_SHARED_ALL = 164 << 10,
    ATTEND_80_STAGES_MAX = 3, /* pairs of page blocks that have arrived or are being copied */
    ATTEND_80_STAGES_MIN = 2,
    ATTEND_80_WIDE_LEVELS = 512, /* binary16, of all widths: the levels of b bits begin at 2^b */
    /* steps of 16 coordinates of K whose levels pass through shared memory at a time */
    ATTEND_80_LEVEL_STEPS = 4,
    /* exact rows that take about as long as a page; used to divide work (not measured) */
    ATTEND_80_EXACT_ROWS = 16,
};

/* X(name, d, coordinates of K, columns, rows): head dimension, and the largest values of any head and of a
 * tile that a kernel takes. */
#define ATTEND_80_KERNELS(X)                                                                                 \
    X(kvc_attend80_64_rows_4, 64, 64, 128, 4)                                                                \
    X(kvc_attend80_64_rows_8, 64, 64, 128, 8)                                                                \
    X(kvc_attend80_64_rows_16, 64, 64, 128, 16)                                                              \
    X(kvc_attend80_128_rank_64_rows_4, 128, 64, 256, 4)                                                      \
    X(kvc_attend80_128_rows_4, 128, 128, 256, 4)                                                             \
    X(kvc_attend80_128_rank_64_rows_8, 128, 64, 256, 8)                                                      \
    X(kvc_attend80_128_rows_8, 128, 128, 256, 8)                                                             \
    X(kvc_attend80_128_rows_16, 128, 128, 256, 16)                                                           \
    X(kvc_attend80_256_rows_4, 256, 128, 384, 4)                                                             \
    X(kvc_attend80_256_rows_8, 256, 128, 384, 8)

/* Blocks of a kernel on one multiprocessor that its register count is chosen for. */
#define ATTEND_80_BLOCKS(d, n_key_coords, n_rows) ((d) < 256 && (n_key_coords) == 64 && (n_rows) <= 8 ? 3 : 2)

enum attend_80_kernel {
#define ATTEND_80_NUMBER(name, d, n_key_coords, n_columns, n_rows) number_of_##name,
    ATTEND_80_KERNELS(ATTEND_80_NUMBER)
#undef ATTEND_80_NUMBER
        ATTEND_80_COUNT
};

/* Offsets in the shared memory of a block, multiples of 16. */
struct attend_80_shape {
    uint32_t narrow; /* [3 (K + 128, K, V)][5 (b)][16] bytes */
    uint32_t wide;   /* [2][ATTEND_80_WIDE_LEVELS] binary16 */
    uint32_t halves; /* [DEVICE_HALVES_MAX] of K: offset in the block, bits << 24 */
    uint32_t tiles;  /* [columns_max / 16][4] words, of each tile of values */
    /* [columns_max / 16][row tiles of 8][32 lanes][4] binary32, running sums of weights times values */
    uint32_t sums;
    uint32_t maxima; /* [4 warps][rows] */
    uint32_t exact;  /* what exact rows need (queries.h), after everything below is no longer used */
    uint32_t dec_k;  /* operand B, as device_head.dec_k_fragments */
    /* three operands B: queries; factors of the mean's cosines and sines; rounding residuals of those
     * factors */
    uint32_t queries;
    uint32_t weights;   /* operand B of bytes, [2 pages][][32][4] words */
    uint32_t weights16; /* [2 pages][rows][ATTEND_80_WEIGHT_LD] binary16 */
    /* [4 warps][key_rank_max / 16, ATTEND_80_LEVEL_STEPS at most][32 lanes][4] words, operands A */
    uint32_t levels;
    uint32_t ring; /* [n_stages][2 pages][block_bytes] */
    uint32_t block_bytes, n_stages, bytes;
};

#define ATTEND_80_WEIGHT_LD 72

DEVICE_INLINE uint32_t attend_80_take(uint32_t *at, uint32_t bytes)
{
    uint32_t from = *at;

    *at = (from + bytes + 15) / 16 * 16;
    return from;
}

/* @exact_bytes: size of what carve() of queries.h takes. */
DEVICE_INLINE struct attend_80_shape attend_80_shape(uint32_t d, uint32_t n_rows, uint32_t key_rank_max,
                                                     uint32_t columns_max, uint32_t block_bytes_max,
                                                     uint32_t exact_bytes)
{
    uint32_t at = 0, n_sets = n_rows == 4 ? 1 : n_rows / 4, left;
    struct attend_80_shape s;

    s.narrow = attend_80_take(&at, 3 * 5 * 16); /* first, where the offset is a constant of the kernel */
    s.wide = attend_80_take(&at, 2 * ATTEND_80_WIDE_LEVELS * 2);
    s.maxima = attend_80_take(&at, 4 * n_rows * 4);
    s.halves = attend_80_take(&at, DEVICE_HALVES_MAX * 4);
    s.sums = attend_80_take(&at, columns_max / 16 * (n_rows == 16 ? 2 : 1) * 512);
    s.exact = at;
    s.queries = attend_80_take(&at, 3 * n_sets * d / 32 * 512);
    s.weights = attend_80_take(&at, 2 * n_sets * 512);
    s.weights16 = attend_80_take(&at, 2 * n_rows * ATTEND_80_WEIGHT_LD * 2);
    s.dec_k = attend_80_take(&at, 2 * d * key_rank_max);
    s.tiles = attend_80_take(&at, columns_max);
    s.levels = attend_80_take(
        &at, 4 * (key_rank_max < 64 ? key_rank_max / 16 : (uint32_t) ATTEND_80_LEVEL_STEPS) * 512);
    s.ring = at;
    s.block_bytes = (block_bytes_max + 15) / 16 * 16;
    s.n_stages = ATTEND_80_STAGES_MAX;
    left = at < ATTEND_80_SHARED_GOOD ? ATTEND_80_SHARED_GOOD - at : 0;
    if (2 * s.n_stages * s.block_bytes > left)
        s.n_stages = ATTEND_80_STAGES_MIN;
    s.bytes = s.ring + 2 * s.n_stages * s.block_bytes;
    if (s.bytes < s.exact + exact_bytes)
        s.bytes = s.exact + exact_bytes;
    return s;
}

#ifdef __cplusplus
}
#endif
