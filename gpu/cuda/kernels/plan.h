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
    PLAN_HALVES_MAX = 32,    /* half-tiles of a head-side */
    PLAN_GROUP_MAX = 16,     /* query heads per KV head, rows of a block */
    PLAN_PREDICTORS_MAX = 8, /* KV heads that a value is predicted from */
    PLAN_COLUMNS_MAX = 512,  /* coordinates that a value is decoded from */
    PLAN_SINKS_MAX = 16,
    PLAN_THREADS = 128,    /* of most blocks */
    PLAN_ITEMS_MAX = 64,   /* sequences of one launch that attends or appends */
    PLAN_POKE_WORDS = 240, /* of one kvc_poke */
    PLAN_CODING_LD = 68,   /* floats between columns in plan_coding_floats() */
    PLAN_TILE_ROWS = 32,   /* coordinates or dimensions of a block that packs or reads */
    PLAN_SLICE = 16,       /* columns of a block of kvc_append_rows, */
    PLAN_SHARE_ROWS = 64,  /* new rows of it, until there are */
    PLAN_SHARES_MAX = 16,  /* such blocks */
    PLAN_CRC_THREADS = 256,
    PLAN_CRC_POWERS = 62, /* words of 4 bytes: any uint64_t of bytes */
};

#ifdef __CUDACC__
#define PLAN_INLINE static __host__ __device__ inline
#else
#define PLAN_INLINE static inline
#endif

/* One head-side's codes: widths, and where each half-tile begins in the block of its head. */
struct plan_codes {
    uint16_t n_half, r;
    uint8_t bits[PLAN_HALVES_MAX];
    uint32_t offset[PLAN_HALVES_MAX];
};

/* z = enc (x - mean) - enc_k c, with c the levels of the K codes that a value is predicted from. */
struct plan_encoder {
    const float *mean;  /* [d] */
    const float *enc;   /* [r][d] */
    const float *enc_k; /* [r][n_pred]; NULL without prediction */
    uint32_t n_pred;
};

/* One (layer, KV head). */
struct plan_head {
    struct plan_codes k, v;
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
                            PLAN_MEAN_* */
    const float *dec_v;  /* [d][r_in] */
    const float *mean_v; /* [d] */
    struct plan_encoder encode_k, encode_v;
    const float *decode_k, *decode_mean_k; /* [d][k.r], [d]: dec and mean of keys as the table has them */
};

/*
 * Scores of the key mean as products of binary16: none where it is zero; factors and cosines rounded to ten
 * bits once, which is what rounding does to keys, where the mean is no larger than what codes add to it; else
 * both with what rounding lost.
 */
enum { PLAN_MEAN_NONE = 0, PLAN_MEAN_ROUNDED = 1, PLAN_MEAN_EXACT = 3 };

struct plan_table {
    uint32_t d, n_rot, n_planes, group, n_kv_heads, n_sink;
    uint32_t columns_max;                   /* largest r_in */
    uint32_t rank_max;                      /* largest r of a head-side */
    uint32_t key_rank_max, block_bytes_max; /* largest k.r; bytes of the largest block of a head */
    float attn_scale;
    const uint16_t *levels;     /* [2 (K, V)][9 (b)][256] binary16, as dec expects them */
    const float *thresholds;    /* [2][9][256] ascending, in units of z; the first 2^b - 1 count */
    const float *limits;        /* [2][9][2] beyond which a coordinate is saturated (gpu/codec.h) */
    const float *cosine, *sine; /* [n_planes][64] in-page offsets; 1 and 0 where nothing turns */
    const uint32_t *turns;      /* the same as operand A, [2 (rounded, what that lost)][n_planes / 16][2][4
                                   (warps)][32 (lanes)][4] */
    const double *freq;         /* [n_planes] radians per position; 0 where nothing turns */
    const float *page_turn;     /* [n_planes][2] cosine and sine of 64 positions */
    const uint32_t *narrow;     /* [3 (K + 128, K, V)][5 (b)][4] levels as bytes, b <= 4 */
    const uint32_t *wide;       /* [2 (K, V)][512 / 2] binary16, those of b bits begin at 2^b */
    uint32_t wide_values; /* whether weights are wanted in binary16: half-tiles of more than 4 bits, keys of
                             other heads */
    const struct plan_head *heads; /* [n_layers][n_kv_heads] */
};

/* ---- sequences ---- */

/*
 * One layer of one sequence, in device memory. The host writes it once and pokes pages and truncations;
 * appending kernels keep lengths up to date. Positions follow: the newest token is at 64 n_pages + n_exact
 * - 1.
 */
struct plan_seq {
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
    uint32_t *faults; /* [1] of the sequence: PLAN_NOT_FINITE, PLAN_NO_ROOM, raised by appending and never
                         lowered */
};

enum {
    PLAN_NOT_FINITE = 1, /* NaN, infinite, or too far from the table's mean for binary16 */
    PLAN_NO_ROOM = 2,    /* the host promised memory that is not there: nothing was stored */
};

/* What appending does to the lengths of a layer. */
struct plan_step {
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
PLAN_INLINE struct plan_step plan_step(uint32_t n_pages, uint32_t n_exact, uint32_t first_row,
                                       uint32_t exact_ld, uint32_t n_new, uint32_t n_most, uint32_t given)
{
    uint32_t full = (64 * n_pages + n_exact + 1) / 64, due = full > n_pages + 1 ? full - n_pages - 1 : 0;
    struct plan_step step;

    if (given)
        due = n_exact / 64;
    step.n_pack = due < n_most ? due : n_most;
    step.n_exact = n_exact - 64 * step.n_pack + n_new;
    step.first_row = first_row + 64 * step.n_pack;
    if (step.first_row + step.n_exact > exact_ld)
        step.first_row = 0;
    return step;
}

/* ---- attention ---- */

/* Queries of the newest n_q tokens but n_behind of one sequence, each sees itself and what is before it. */
struct plan_item {
    const struct plan_seq *seq;
    const float *q;    /* [n_q][n_kv_heads * group][d] pre-RoPE */
    float *out;        /* likewise */
    uint32_t n_q;      /* may differ from item to item; 0: nothing to do */
    uint32_t n_behind; /* newer tokens than those of the queries: a long prompt takes several items */
};

/* One launch: the grid says of how many items. Kernels take all of this by value. */
struct plan_attend {
    const struct plan_table *table;
    float *partials; /* [n_items][PLAN_TILES(group, n_q)][n_kv_heads][n_splits][PLAN_PARTIAL_FLOATS()] */
    uint32_t layer, n_splits;
    uint32_t n_q;    /* largest of the items: 1 to decode, more to prefill */
    uint32_t window; /* a query sees n > its position - window; 0 = all */
    struct plan_item items[PLAN_ITEMS_MAX];
};

/*
 * X(name, coordinates of K, columns, rows): the kernels of attention and the most that each takes, of any
 * head of the table and of a tile. From small to large within a number of rows.
 */
#define PLAN_ATTEND_KERNELS(X)                                                                               \
    X(kvc_attend_64_rows_8, 64, 128, 8)                                                                      \
    X(kvc_attend_128_rows_8, 128, 256, 8)                                                                    \
    X(kvc_attend_256_rows_8, 256, 512, 8)                                                                    \
    X(kvc_attend_64_rows_16, 64, 128, 16)                                                                    \
    X(kvc_attend_128_rows_16, 128, 256, 16)                                                                  \
    X(kvc_attend_256_rows_16, 256, 512, 16)

enum plan_attend_kernel {
#define PLAN_ATTEND_NUMBER(name, n_key_coords, n_columns, n_rows) number_of_##name,
    PLAN_ATTEND_KERNELS(PLAN_ATTEND_NUMBER)
#undef PLAN_ATTEND_NUMBER
        PLAN_ATTEND_COUNT
};

/* A block attends for the rows of a tile: as many whole queries, with all query heads of a KV head, as 16
 * rows take. */
#define PLAN_TILE_QUERIES(group) (PLAN_GROUP_MAX / (group))
#define PLAN_TILES(group, n_q) (((n_q) + PLAN_TILE_QUERIES(group) - 1) / PLAN_TILE_QUERIES(group))

/* Floats of one partial result: m and l per row, accumulators in rank space, exact values. */
#define PLAN_PARTIAL_FLOATS(columns_max, d) (PLAN_GROUP_MAX * (2u + (columns_max) + (d)))

/* Shared memory of what attention kernels have for exact rows: kernels/queries.h's carve(), binary32 first,
 * then binary16. */
PLAN_INLINE uint32_t plan_exact_shared_bytes(uint32_t d, uint32_t n_planes)
{
    uint32_t planes = PLAN_GROUP_MAX * 2 * n_planes;

    return (3 * planes + 2 * n_planes + 64 * (PLAN_GROUP_MAX + 1) + 3 * PLAN_GROUP_MAX + PLAN_GROUP_MAX * d) *
               4 +
           (planes + PLAN_GROUP_MAX * (64 + 8)) * 2;
}

/* ---- codes ---- */

enum plan_dtype { PLAN_F32 = 0, PLAN_F16 = 1, PLAN_BF16 = 2 };

/* New tokens of one layer of one sequence: what is due is packed, then they are stored behind the tail. */
struct plan_append_item {
    struct plan_seq *seq; /* of no other item */
    const void *k, *v;    /* [n_new][n_kv_heads][d] pre-RoPE, aligned as their type */
    uint32_t n_new;       /* may differ from item to item; 0: packs only */
    uint32_t n_pack;      /* at most so many chunks, below 65536: 0 where the host knows that none is due */
};

/* The launches of one append: the grids say of how many items. */
struct plan_append {
    const struct plan_table *table;
    unsigned long long *saturated; /* [2] coordinates by side, added to; NULL = not counted */
    enum plan_dtype dtype;
    uint32_t layer;
    uint32_t given; /* n_pack chunks, due or not: see plan_step() */
    struct plan_append_item items[PLAN_ITEMS_MAX];
};

/* Blocks of kvc_append_rows that share @n_new rows of one head's side's slice. */
PLAN_INLINE uint32_t plan_append_shares(uint32_t n_new)
{
    uint32_t n = n_new / PLAN_SHARE_ROWS + (n_new % PLAN_SHARE_ROWS > 0);

    return n < 1 ? 1u : n < PLAN_SHARES_MAX ? n : (uint32_t) PLAN_SHARES_MAX;
}

/* Positions first .. of one layer and side: decoded where packed, exact where sinks or tail are. */
struct plan_read {
    const struct plan_table *table;
    const struct plan_seq *seq;
    float *out;           /* [n][n_kv_heads][d] */
    uint32_t layer, side; /* 0 = K, 1 = V */
    uint32_t first, n;
};

/* Shared memory of the kernels that pack and read: 64 tokens of a vector or of a head-side's levels, then
 * codes of a tile. */
PLAN_INLINE uint32_t plan_coding_floats(uint32_t d, uint32_t rank_max)
{
    return (d > rank_max ? d : rank_max) * PLAN_CODING_LD;
}

/* ---- memory ---- */

struct plan_poke {
    uint32_t *to;
    uint32_t n_words;
    uint32_t words[PLAN_POKE_WORDS];
};

/* CRC32C (Castagnoli) of @n payloads. */
struct plan_crc {
    const uint8_t *const *payloads; /* [n], aligned to 4 */
    uint32_t *crc32c;               /* [n] */
    uint64_t bytes;                 /* of each, a multiple of 4 */
    uint32_t n;
    uint32_t begin;                   /* cuda_crc() fills this in: the sum of no words, moved over all */
    uint32_t powers[PLAN_CRC_POWERS]; /* and this: kernels/crc.h's */
};

/* ---- kernels ---- */

/* X(name, parameters) of the other kernels, by the file that has them. */
#define PLAN_MERGE_KERNELS(X) X(kvc_merge, plan_attend)
#define PLAN_APPEND_KERNELS(X)                                                                               \
    X(kvc_pack_keys, plan_append) X(kvc_pack_values, plan_append) X(kvc_append_rows, plan_append)
#define PLAN_READ_KERNELS(X) X(kvc_read, plan_read)
#define PLAN_MEMORY_KERNELS(X) X(kvc_poke, plan_poke) X(kvc_crc_begin, plan_crc) X(kvc_crc, plan_crc)

#ifdef __cplusplus
}
#endif
