/*
 * The structs in device memory that host and kernels share: an allocation table (device_table, made by
 * gpu/cuda/device_table.h) and sequences. They are plain structs, the same in C, C++ and CUDA; pointers are
 * device pointers.
 *
 * Planes: the dimensions of a key in pairs that RoPE rotates together, (i, i + n_rot/2) for i < n_rot/2,
 * then pairs that are not rotated, padded with zero planes to a multiple of 16. Keys, key means and queries
 * are stored in planes [2 (lo, hi)][n_planes].
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DEVICE_HALVES_MAX = 32,    /* half-tiles of a head-side */
    DEVICE_GROUP_MAX = 16,     /* query heads per KV head, rows of a block */
    DEVICE_PREDICTORS_MAX = 8, /* KV heads that a value is predicted from */
    DEVICE_COLUMNS_MAX = 512,  /* coordinates that a value is decoded from */
    DEVICE_SINKS_MAX = 16,
};

#ifdef __CUDACC__
#define DEVICE_INLINE static __host__ __device__ inline
#else
#define DEVICE_INLINE static inline
#endif

/* The codes of one head and side: widths, and where each half-tile begins in the block of its head. */
struct device_codes {
    uint16_t n_half, r;
    uint8_t bits[DEVICE_HALVES_MAX];
    uint32_t offset[DEVICE_HALVES_MAX];
};

/* z = enc (x - mean) - enc_k c, where c are the levels of the K codes that a value is predicted from. */
struct device_encoder {
    const float *mean;  /* [d] */
    const float *enc;   /* [r][d] */
    const float *enc_k; /* [r][n_pred]; NULL without prediction */
    uint32_t n_pred;
};

/* One (layer, KV head). */
struct device_head {
    struct device_codes k, v;
    uint32_t block, block_bytes; /* its block in a payload: offset, a multiple of 64, and size */
    /* byte offsets in a payload of class first, [n_sink][d] binary16 of x - mean */
    uint32_t sinks_k, sinks_v;
    uint32_t n_predictors; /* heads first_predictor .. first_predictor + n_predictors - 1 of the layer */
    uint32_t first_predictor;
    uint32_t r_in;         /* columns of dec_v: K coordinates of the predictors, then those of V */
    float dec_k_scale;     /* dec of K = dec_k * dec_k_scale */
    const uint16_t *dec_k; /* [2][n_planes][k.r] binary16 */
    /* dec_k as operands B: [n_planes / 8][k.r / 16][32 lanes], words of lo, lo, hi, hi */
    const uint32_t *dec_k_fragments;
    const float *mean_k; /* [2][n_planes] */
    float mean_scale;    /* a power of two; mean_k / mean_scale is at most 1 */
    /* two bits per 16 planes: how exactly their part of the mean's scores is computed, DEVICE_MEAN_* */
    uint32_t mean_steps;
    const float *dec_v;  /* [d][r_in] */
    float dec_v_scale;   /* a power of two that is above all of dec_v */
    const float *mean_v; /* [d] */
    struct device_encoder encode_k, encode_v;
    /* [d][k.r], [d]: dec and mean of keys in binary32, as in the table */
    const float *decode_k, *decode_mean_k;
};

/*
 * Kinds of products of binary16 that compute the scores of the key mean:
 *
 *     DEVICE_MEAN_NONE      the mean is zero: no product
 *     DEVICE_MEAN_ROUNDED   factors and cosines are rounded to binary16 once, as keys are; for a mean that is
 *                           no larger than what codes add to it
 *     DEVICE_MEAN_EXACT     both factors with their rounding residuals
 */
enum { DEVICE_MEAN_NONE = 0, DEVICE_MEAN_ROUNDED = 1, DEVICE_MEAN_EXACT = 3 };

struct device_table {
    uint32_t d, n_rot, n_planes, group, n_kv_heads, n_sink;
    uint32_t columns_max;                   /* largest r_in */
    uint32_t rank_max;                      /* largest r of a head-side */
    uint32_t key_rank_max, block_bytes_max; /* largest k.r; bytes of the largest block of a head */
    float attn_scale;
    const uint16_t *levels;     /* [2 (K, V)][9 (b)][256] binary16, as dec expects them */
    const float *thresholds;    /* [2][9][256] ascending, in units of z; the first 2^b - 1 are used */
    const float *limits;        /* [2][9][2] limits beyond which a coordinate is saturated (gpu/codec.h) */
    const float *cosine, *sine; /* [n_planes][64] in-page offsets; 1 and 0 for planes without rotation */
    /* cosines and sines as operand A, [2 (rounded, residual)][n_planes / 16][2][4 (warps)][32 (lanes)][4] */
    const uint32_t *rotations;
    const double *freq;         /* [n_planes] radians per position; 0 without rotation */
    const float *page_rotation; /* [n_planes][2] cosine and sine of the rotation by 64 positions */
    const uint32_t *narrow;     /* [3 (K + 128, K, V)][5 (b)][4] levels as bytes, b <= 4 */
    const uint32_t *wide;       /* [2 (K, V)][512 / 2] binary16, the levels of b bits begin at 2^b */
    /* whether weights are needed in binary16: there are half-tiles of more than 4 bits, or values predicted
     * from other heads */
    uint32_t wide_values;
    const struct device_head *heads; /* [n_layers][n_kv_heads] */
};

/* The first (@hi 0) or second dimension of plane @i of a key. */
DEVICE_INLINE uint32_t device_plane_dim(uint32_t n_rot, uint32_t i, uint32_t hi)
{
    return i < n_rot / 2 ? i + hi * (n_rot / 2) : 2 * i + hi;
}

/* ---- sequences ---- */

/* One layer of one sequence, in device memory. The host writes it once, and later only page pointers and
 * truncations. Appending kernels keep the lengths up to date. Positions follow from the lengths: the newest
 * token is at 64 n_pages + n_exact - 1. */
struct device_seq {
    uint8_t *const *payloads; /* [n_claimed] of pages: the packed ones, then memory for later ones */
    uint32_t n_claimed;       /* no page is packed beyond these */
    uint32_t n_pages;         /* packed pages of this layer */
    uint32_t n_exact;         /* exact rows behind them */
    uint32_t first_row;       /* where those rows begin in the buffer */
    uint32_t exact_ld;        /* rows of the buffer per KV head */
    /* of append.cu: blocks of the running launch that have finished; 0 between launches */
    uint32_t n_done;
    /* the buffer of the tail, [n_kv_heads][exact_ld][d] binary16 of x - mean, aligned to 16 */
    uint16_t *exact_k, *exact_v;
    /* [1] of the sequence: DEVICE_NOT_FINITE, DEVICE_NO_ROOM; appending
     * sets the bits and never clears them */
    uint32_t *faults;
};

enum {
    DEVICE_NOT_FINITE = 1, /* NaN, infinite, or too far from the mean of the table for binary16 */
    DEVICE_NO_ROOM = 2,    /* the memory that the host announced is missing: nothing was stored */
};

/* The changes that appending makes to the lengths of a layer. */
struct append_step {
    uint32_t n_pack; /* chunks that move from the tail to pages first */
    /* lengths afterwards; rows move to the front of the buffer if first_row is 0 and was not before */
    uint32_t first_row, n_exact;
};

/*
 * The one rule of when chunks are packed and when the tail moves, for kernels and
 * for the host's copy of the lengths.
 *
 * Chunk c is packed once there are 64 (c + 2) tokens, counting the first new one, so that a decode step
 * sees 64 to 127 exact tokens; at most @n_most chunks are packed. If @given, @n_most whole chunks are
 * packed, due or not: the host has counted them, as it does at a commit or where layers must be alike.
 *
 * The tail moves to the front of its buffer of @exact_ld rows if the @n_new rows do not fit behind it. The
 * caller makes sure that they fit then: n_exact <= exact_ld afterwards.
 */
DEVICE_INLINE struct append_step append_step(uint32_t n_pages, uint32_t n_exact, uint32_t first_row,
                                             uint32_t exact_ld, uint32_t n_new, uint32_t n_most,
                                             uint32_t given)
{
    uint32_t full = (64 * n_pages + n_exact + 1) / 64, due = full > n_pages + 1 ? full - n_pages - 1 : 0;
    struct append_step step;

    if (given)
        due = n_exact / 64;
    step.n_pack = due < n_most ? due : n_most;
    step.n_exact = n_exact - 64 * step.n_pack + n_new;
    step.first_row = first_row + 64 * step.n_pack;
    if (step.first_row + step.n_exact > exact_ld)
        step.first_row = 0;
    return step;
}

#ifdef __cplusplus
}
#endif
