/*
 * What host and kernels agree on: a table as it lies in GPU memory, the sequences of one attention call, its workspace. Plain
 * structs, the same in C, C++ and CUDA; pointers are device pointers.
 *
 * Planes: a key's dimensions in pairs that RoPE turns together, (i, i + n_rot/2) for i < n_rot/2 and pairs that do not turn
 * behind them, padded with zero planes to a multiple of 16. Keys, key means and queries stand in planes [2 (lo, hi)][n_planes].
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
    PLAN_THREADS = 128,      /* of an attention block */
};

/* One head-side's codes: widths, and where each half-tile begins in the block of its head. */
struct plan_codes {
    uint16_t n_half, r;
    uint8_t bits[PLAN_HALVES_MAX];
    uint32_t offset[PLAN_HALVES_MAX];
};

/* z = enc (x - mean) - enc_k c, with c the levels of the K codes that a value is predicted from. */
struct plan_encoder {
    const float *mean;          /* [d] */
    const float *enc;           /* [r][d] */
    const float *enc_k;         /* [r][n_pred]; NULL without prediction */
    uint32_t n_pred;
};

/* One (layer, KV head). */
struct plan_head {
    struct plan_codes k, v;
    uint32_t block;             /* byte offset of its block in a payload */
    uint32_t sinks_k, sinks_v;  /* byte offsets in a payload of class first, [n_sink][d] binary16 of x - mean */
    uint32_t n_predictors;      /* heads, first_predictor .. of the layer */
    uint32_t first_predictor;
    uint32_t r_in;              /* columns of dec_v: predictors' K coordinates, then V's */
    float dec_k_scale;          /* what 1 in dec_k stands for */
    const uint16_t *dec_k;      /* [2][n_planes][k.r] binary16 */
    const float *mean_k;        /* [2][n_planes] */
    const float *dec_v;         /* [d][r_in] */
    const float *mean_v;        /* [d] */
    struct plan_encoder encode_k, encode_v;
    const float *decode_k, *decode_mean_k; /* [d][k.r], [d]: dec and mean of keys as the table has them */
};

struct plan_table {
    uint32_t d, n_rot, n_planes, group, n_kv_heads, n_sink;
    uint32_t columns_max;       /* largest r_in */
    float attn_scale;
    const uint16_t *levels;     /* [2 (K, V)][9 (b)][256] binary16, as dec expects them */
    const float *thresholds;    /* [2][9][256] ascending, in units of z; the first 2^b - 1 count */
    const float *limits;        /* [2][9][2] beyond which a coordinate is saturated (gpu/codec.h) */
    const float *cosine, *sine; /* [n_planes][64] in-page offsets; 1 and 0 where nothing turns */
    const double *freq;         /* [n_planes] radians per position; 0 where nothing turns */
    const struct plan_head *heads; /* [n_layers][n_kv_heads] */
};

struct plan_seq {
    const uint8_t *const *payloads; /* [n_pages] */
    uint32_t n_pages;
    uint32_t n_exact;
    const uint16_t *exact_k, *exact_v; /* [n_kv_heads][exact_ld][d] binary16 of x - mean, position 64 n_pages + i */
    uint32_t exact_ld;
    uint32_t position;          /* of the first query; every query sees itself and what is before it */
};

struct plan_attend {
    const struct plan_table *table;
    const struct plan_seq *seqs;   /* [n_seqs] */
    uint32_t layer, n_splits;
    uint32_t n_q;               /* queries of every sequence, one after the other: 1 to decode, more to prefill */
    uint32_t window;            /* a query sees n > its position - window; 0 = all */
    const float *q;             /* [n_seqs][n_q][n_kv_heads * group][d] pre-RoPE */
    float *out;                 /* likewise */
    float *partials;            /* [n_seqs][PLAN_TILES()][n_kv_heads][n_splits][PLAN_PARTIAL_FLOATS()] */
};

/*
 * X(name, coordinates of K, columns, rows): the kernels of attention and the most that each takes, of any head of the table and
 * of a tile. From small to large within a number of rows.
 */
#define PLAN_ATTEND_KERNELS(X)            \
    X(kvc_attend_64_rows_8, 64, 128, 8)     \
    X(kvc_attend_128_rows_8, 128, 256, 8)   \
    X(kvc_attend_256_rows_8, 256, 512, 8)   \
    X(kvc_attend_64_rows_16, 64, 128, 16)   \
    X(kvc_attend_128_rows_16, 128, 256, 16) \
    X(kvc_attend_256_rows_16, 256, 512, 16)

enum plan_attend_kernel {
#define PLAN_ATTEND_NUMBER(name, n_key_coords, n_columns, n_rows) number_of_##name,
    PLAN_ATTEND_KERNELS(PLAN_ATTEND_NUMBER)
#undef PLAN_ATTEND_NUMBER
    PLAN_ATTEND_COUNT
};

/* A block attends for the rows of a tile: as many whole queries, with all query heads of a KV head, as 16 rows take. */
#define PLAN_TILE_QUERIES(group) (PLAN_GROUP_MAX / (group))
#define PLAN_TILES(group, n_q) (((n_q) + PLAN_TILE_QUERIES(group) - 1) / PLAN_TILE_QUERIES(group))

/* Floats of one partial result: m and l per row, accumulators in rank space, exact values. */
#define PLAN_PARTIAL_FLOATS(columns_max, d) (PLAN_GROUP_MAX * (2u + (columns_max) + (d)))

enum plan_dtype { PLAN_F32 = 0, PLAN_F16 = 1, PLAN_BF16 = 2 };

/* 64 tokens of one layer to be encoded into a page. */
struct plan_chunk {
    uint8_t *payload;
    const void *k, *v;          /* [64][n_kv_heads][d] pre-RoPE */
    uint32_t n_exact;           /* sinks: their code positions, which readers mask, hold the codes of the mean */
};

struct plan_encode {
    const struct plan_table *table;
    const struct plan_chunk *chunks;
    uint32_t layer;
    enum plan_dtype dtype;
    uint32_t *not_finite;       /* raised where an input is NaN or infinite; the page is then not to be published */
    unsigned long long *saturated; /* [2] coordinates by side, added to; NULL = not counted */
};

/* Vectors of one page as they decode. */
struct plan_decode {
    const struct plan_table *table;
    const uint8_t *const *payloads;
    uint32_t layer, side;       /* 0 = K, 1 = V */
    float *out;                 /* [pages][64][n_kv_heads][d] */
};

#ifdef __cplusplus
}
#endif
