/*
 * What host and kernels agree on: a table as it lies in GPU memory, sequences there, and the parameters of
 * launches. Plain structs, the same in C, C++ and CUDA; pointers are device pointers.
 *
 * Parameters travel by value, at most 4 KB of them; what changes from launch to launch without the host, the
 * lengths of sequences, lies in device memory and is advanced by kernels. So launches can be captured in a
 * CUDA graph and replayed.
 *
 * Planes: a key's dimensions in pairs that RoPE turns together, (i, i + n_rot/2) for i < n_rot/2 and pairs
 * that do not turn behind them, padded with zero planes to a multiple of 16. Keys, key means and queries
 * stand in planes [2 (lo, hi)][n_planes].
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

/* One head-side's codes: widths, and where each half-tile begins in the block of its head. */
struct device_codes {
    uint16_t n_half, r;
    uint8_t bits[DEVICE_HALVES_MAX];
    uint32_t offset[DEVICE_HALVES_MAX];
};

/* z = enc (x - mean) - enc_k c, with c the levels of the K codes that a value is predicted from. */
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
    uint32_t sinks_k,
        sinks_v;           /* byte offsets in a payload of class first, [n_sink][d] binary16 of x - mean */
    uint32_t n_predictors; /* heads, first_predictor .. of the layer */
    uint32_t first_predictor;
    uint32_t r_in;                   /* columns of dec_v: predictors' K coordinates, then V's */
    float dec_k_scale;               /* what 1 in dec_k stands for */
    const uint16_t *dec_k;           /* [2][n_planes][k.r] binary16 */
    const uint32_t *dec_k_fragments; /* the same as operands B: [n_planes / 8][k.r / 16][32 lanes], words of
                                        lo, lo, hi, hi */
    const float *mean_k;             /* [2][n_planes] */
    float mean_scale;                /* a power of two: mean_k / it is at most 1 */
    uint32_t mean_steps; /* two bits per 16 planes: how exactly their part of the mean's scores is formed,
                            DEVICE_MEAN_* */
    const float *dec_v;  /* [d][r_in] */
    const float *mean_v; /* [d] */
    struct device_encoder encode_k, encode_v;
    const float *decode_k, *decode_mean_k; /* [d][k.r], [d]: dec and mean of keys as the table has them */
};

/*
 * Scores of the key mean as products of binary16: none where it is zero; factors and cosines rounded to ten
 * bits once, which is what rounding does to keys, where the mean is no larger than what codes add to it; else
 * both with what rounding lost.
 */
enum { DEVICE_MEAN_NONE = 0, DEVICE_MEAN_ROUNDED = 1, DEVICE_MEAN_EXACT = 3 };

struct device_table {
    uint32_t d, n_rot, n_planes, group, n_kv_heads, n_sink;
    uint32_t columns_max;                   /* largest r_in */
    uint32_t rank_max;                      /* largest r of a head-side */
    uint32_t key_rank_max, block_bytes_max; /* largest k.r; bytes of the largest block of a head */
    float attn_scale;
    const uint16_t *levels;     /* [2 (K, V)][9 (b)][256] binary16, as dec expects them */
    const float *thresholds;    /* [2][9][256] ascending, in units of z; the first 2^b - 1 count */
    const float *limits;        /* [2][9][2] beyond which a coordinate is saturated (gpu/codec.h) */
    const float *cosine, *sine; /* [n_planes][64] in-page offsets; 1 and 0 where nothing turns */
    const uint32_t *rotations;  /* the same as operand A, [2 (rounded, what that lost)][n_planes / 16][2][4
                               (warps)][32 (lanes)][4] */
    const double *freq;         /* [n_planes] radians per position; 0 where nothing turns */
    const float *page_rotation; /* [n_planes][2] cosine and sine of 64 positions */
    const uint32_t *narrow;     /* [3 (K + 128, K, V)][5 (b)][4] levels as bytes, b <= 4 */
    const uint32_t *wide;       /* [2 (K, V)][512 / 2] binary16, those of b bits begin at 2^b */
    uint32_t wide_values; /* whether weights are wanted in binary16: half-tiles of more than 4 bits, keys of
                             other heads */
    const struct device_head *heads; /* [n_layers][n_kv_heads] */
};

/* ---- sequences ---- */

/*
 * One layer of one sequence, in device memory. The host writes it once and pokes pages and truncations;
 * appending kernels keep lengths up to date. Positions follow: the newest token is at 64 n_pages + n_exact
 * - 1.
 */
struct device_seq {
    uint8_t *const
        *payloads;      /* [n_claimed] of pages: packed ones, then memory that later ones are written to */
    uint32_t n_claimed; /* nothing is packed beyond */
    uint32_t n_pages;   /* packed in this layer */
    uint32_t n_exact;   /* rows behind them */
    uint32_t first_row; /* where those begin in the buffer */
    uint32_t exact_ld;  /* rows of the buffer per KV head */
    uint32_t n_done;    /* of append.cu: blocks of the running launch that are through; 0 between launches */
    uint16_t *exact_k,
        *exact_v;     /* the tail's buffer, [n_kv_heads][exact_ld][d] binary16 of x - mean, aligned to 16 */
    uint32_t *faults; /* [1] of the sequence: DEVICE_NOT_FINITE, DEVICE_NO_ROOM, raised by appending and never
                         lowered */
};

enum {
    DEVICE_NOT_FINITE = 1, /* NaN, infinite, or too far from the table's mean for binary16 */
    DEVICE_NO_ROOM = 2,    /* the host promised memory that is not there: nothing was stored */
};

/* What appending does to the lengths of a layer. */
struct append_step {
    uint32_t n_pack; /* chunks that go from the tail to pages first */
    uint32_t first_row,
        n_exact; /* afterwards; rows move to the front of the buffer if first_row is 0 and was not */
};

/*
 * The one rule of when chunks are packed and when the tail moves, for kernels and for the host's mirror of
 * the lengths: chunk c leaves the tail once 64 (c + 2) tokens are there, counting the first new one, so that
 * a decode step sees 64 to 127 exact ones; at most @n_most chunks. With @given @n_most whole chunks leave it,
 * due or not: the host has counted, as it does at a commit or where layers are to be alike. The tail moves to
 * the front of its buffer of @exact_ld rows when the @n_new rows do not fit behind it, and then they must
 * fit: n_exact <= exact_ld, afterwards.
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
