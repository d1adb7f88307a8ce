/*
 * The parameters of launches, which host and kernels share. Plain structs, the same in C, C++ and CUDA;
 * pointers are device pointers.
 *
 * Parameters travel by value, at most 4 KB of them. What changes from launch to launch without the host, the
 * lengths of sequences, lies in device memory and is advanced by kernels (device_table.h). So launches can be
 * captured in a CUDA graph and replayed.
 */
#pragma once

#include "gpu/cuda/kernels/device_table.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LAUNCH_THREADS = 128,         /* of most blocks */
    LAUNCH_ITEMS_MAX = 64,        /* sequences of one launch that attends or appends */
    LAUNCH_WRITE_WORDS_MAX = 240, /* of one launch of kvc_write_words */
    LAUNCH_CODING_LD = 68,        /* floats between columns in launch_coding_floats() */
    LAUNCH_TILE_ROWS = 32,        /* coordinates or dimensions per block that packs or reads */
    LAUNCH_SLICE = 16,            /* columns per block of kvc_append_rows */
    LAUNCH_SHARE_ROWS = 64,       /* new rows per block of kvc_append_rows, until there are */
    LAUNCH_SHARES_MAX = 16,       /* this many blocks */
    LAUNCH_CRC_THREADS = 256,
    LAUNCH_CRC_POWERS = 62, /* enough for the number of words of any uint64_t of bytes */
};

/* ---- attention ---- */

/* Queries of the n_q tokens before the newest n_behind of one sequence. Each
 * sees itself and all earlier tokens. */
struct launch_attend_item {
    const struct device_seq *seq;
    const float *q; /* [n_q][n_kv_heads * group][d] pre-RoPE */
    float *out;     /* same shape as q */
    uint32_t n_q;   /* may differ between items; 0: no work */
    /* tokens newer than those of the queries: a long prompt is divided into several items */
    uint32_t n_behind;
};

/* One launch; the number of items is in the grid. Kernels take this struct by value. */
struct launch_attend {
    const struct device_table *table;
    float *partials; /* [n_items][LAUNCH_TILES(group, n_q)][n_kv_heads][n_splits][LAUNCH_PARTIAL_FLOATS()] */
    uint32_t layer, n_splits;
    uint32_t n_q;    /* largest n_q of the items: 1 to decode, more to prefill */
    uint32_t window; /* a query sees n > its position - window; 0 = all */
    struct launch_attend_item items[LAUNCH_ITEMS_MAX];
};

/* X(name, coordinates of K, columns, rows): the kernels of attention, and the largest values of any head of
 * the table and of a tile that each takes. Ascending for equal rows. */
#define ATTEND_KERNELS(X)                                                                                    \
    X(kvc_attend_64_rows_8, 64, 128, 8)                                                                      \
    X(kvc_attend_128_rows_8, 128, 256, 8)                                                                    \
    X(kvc_attend_256_rows_8, 256, 512, 8)                                                                    \
    X(kvc_attend_64_rows_16, 64, 128, 16)                                                                    \
    X(kvc_attend_128_rows_16, 128, 256, 16)                                                                  \
    X(kvc_attend_256_rows_16, 256, 512, 16)

enum attend_kernel {
#define ATTEND_NUMBER(name, n_key_coords, n_columns, n_rows) number_of_##name,
    ATTEND_KERNELS(ATTEND_NUMBER)
#undef ATTEND_NUMBER
        ATTEND_COUNT
};

/* A block attends for the rows of a tile: as many whole queries, with all query heads of a KV head, as fit
 * in 16 rows. */
#define LAUNCH_TILE_QUERIES(group) (DEVICE_GROUP_MAX / (group))
#define LAUNCH_TILES(group, n_q) (((n_q) + LAUNCH_TILE_QUERIES(group) - 1) / LAUNCH_TILE_QUERIES(group))

/* Floats of one partial result: m and l per row, accumulators in rank space, exact values. */
#define LAUNCH_PARTIAL_FLOATS(columns_max, d) (DEVICE_GROUP_MAX * (2u + (columns_max) + (d)))

/* Shared memory of attention kernels for exact rows, see carve() of
 * kernels/queries.h: binary32 first, then binary16. */
DEVICE_INLINE uint32_t launch_exact_shared_bytes(uint32_t d, uint32_t n_planes)
{
    uint32_t planes = DEVICE_GROUP_MAX * 2 * n_planes;

    return (3 * planes + 2 * n_planes + 64 * (DEVICE_GROUP_MAX + 1) + 3 * DEVICE_GROUP_MAX +
            DEVICE_GROUP_MAX * d) *
               4 +
           (planes + DEVICE_GROUP_MAX * (64 + 8)) * 2;
}

/* ---- append and read ---- */

enum launch_dtype { LAUNCH_F32 = 0, LAUNCH_F16 = 1, LAUNCH_BF16 = 2 };

/* New tokens of one layer of one sequence: chunks that are due are packed, then the tokens are stored
 * behind the tail. */
struct launch_append_item {
    struct device_seq *seq; /* may not appear in another item */
    const void *k, *v;      /* [n_new][n_kv_heads][d] pre-RoPE, aligned as their type */
    uint32_t n_new;         /* may differ between items; 0: packs only */
    /* pack at most this many chunks, below 65536; 0 if the host counted that none is due */
    uint32_t n_pack;
};

/* The launches of one append; the numbers of items are in the grids. */
struct launch_append {
    const struct device_table *table;
    unsigned long long *saturated; /* [2] coordinates by side, added to; NULL = not counted */
    enum launch_dtype dtype;
    uint32_t layer;
    uint32_t given; /* pack n_pack chunks, due or not: see append_step() */
    struct launch_append_item items[LAUNCH_ITEMS_MAX];
};

/* Blocks of kvc_append_rows that share @n_new rows of one head, side and slice. */
DEVICE_INLINE uint32_t launch_append_shares(uint32_t n_new)
{
    uint32_t n = n_new / LAUNCH_SHARE_ROWS + (n_new % LAUNCH_SHARE_ROWS > 0);

    if (n < 1)
        return 1;

    return n < LAUNCH_SHARES_MAX ? n : (uint32_t) LAUNCH_SHARES_MAX;
}

/* Positions first .. first + n - 1 of one layer and side: decoded from pages; exact for sinks and tail. */
struct launch_read {
    const struct device_table *table;
    const struct device_seq *seq;
    float *out;           /* [n][n_kv_heads][d] */
    uint32_t layer, side; /* 0 = K, 1 = V */
    uint32_t first, n;
};

/* Floats of shared memory of the kernels that pack and read: 64 tokens of a vector or of the levels of one
 * head and side. The codes of a tile follow. */
DEVICE_INLINE uint32_t launch_coding_floats(uint32_t d, uint32_t rank_max)
{
    return (d > rank_max ? d : rank_max) * LAUNCH_CODING_LD;
}

/* ---- pages in host memory (staged.cu) ---- */

/*
 * The host knows the lengths of these sequences and passes them by value: their launches are not captured in
 * graphs. Pages are encoded into device memory, from which the host copies them, and decoded from there.
 */

enum {
    LAUNCH_ROWS_ITEMS_MAX = 32,    /* sequences of one launch that stores rows */
    LAUNCH_CHUNKS_MAX = 96,        /* chunks of one launch that encodes */
    LAUNCH_DECODE_CHUNKS_MAX = 64, /* chunks of one launch that decodes */
    LAUNCH_COPY_BLOCKS_MAX = 256,  /* of the caller that one launch copies from or to */
    LAUNCH_TILE_PLANES = 16,       /* planes per block of kvc_decode */
    LAUNCH_AFTER_ROPE = 1,         /* form: the caller's keys are after RoPE */
    LAUNCH_INTERLEAVED = 2,        /* form: dimensions (2 i, 2 i + 1) of the caller's keys rotate together */
};

/* Binary16 rows of x - mean of one layer, by side [n_kv_heads][n_rows][d]. The row of a position is its
 * remainder by n_rows, a multiple of 64: the rows of a chunk are neighbours, and rows never move. */
struct launch_row_buffer {
    uint16_t *rows[2];
    uint32_t n_rows, unused;
};

/* Cosines and sines of the host, in blocks of 64 positions: [n_blocks][2 (cos, sin)][64][n_rot / 2]. Block i
 * of positions is at the remainder of i by n_blocks. */
struct launch_angles {
    const float *blocks;
    uint32_t n_blocks, unused;
};

/* New tokens of one layer of one sequence in the caller's form. */
struct launch_rows_item {
    const void *vectors[2];                   /* by side, aligned as their type */
    uint64_t token_stride[2], head_stride[2]; /* in numbers, by side */
    struct launch_row_buffer to;
    uint32_t *faults;  /* [1] as in struct device_seq */
    uint32_t first, n; /* positions */
    uint32_t form, unused;
};

struct launch_rows {
    const struct device_table *table;
    struct launch_angles angles; /* of all positions of items with LAUNCH_AFTER_ROPE */
    enum launch_dtype dtype;
    uint32_t layer;
    struct launch_rows_item items[LAUNCH_ROWS_ITEMS_MAX];
};

/* Copies the rows of positions first .. first + n - 1. */
struct launch_move {
    const struct device_table *table;
    struct launch_row_buffer from, to;
    uint32_t first, n;
};

/* A chunk of one layer of a sequence that is encoded into its page. */
struct launch_chunk {
    uint8_t *payload;
    struct launch_row_buffer rows;
    uint32_t number; /* in the sequence: chunk 0 has the sinks */
    uint32_t layer;
};

struct launch_encode {
    const struct device_table *table;
    struct launch_chunk chunks[LAUNCH_CHUNKS_MAX];
};

/* A layer that is decoded, in device memory. */
struct launch_decode_layer {
    void *to[2]; /* by side; NULL: not decoded */
    struct launch_row_buffer rows;
    uint32_t n_packed; /* chunks that are in pages; later ones are rows */
    uint32_t unused;
};

/* Positions first .. first + n - 1 of several layers, in LAUNCH_DECODE_CHUNKS_MAX chunks at most, to the
 * caller's memory in the caller's form. */
struct launch_decode {
    const struct device_table *table;
    const struct launch_decode_layer *layers; /* [n_layers], from first_layer on */
    const int64_t *blocks; /* by (position / block_tokens) - first_block; NULL: see below */
    struct launch_angles angles;
    uint64_t dim_stride, token_stride, head_stride, block_stride; /* in numbers */
    /* position p is token (p - origin) % block_tokens of block (p - origin) / block_tokens or, with blocks,
     * of the one that they have for this number; then origin is 0 */
    uint64_t block_tokens, origin, first_block;
    uint32_t first_layer, n_layers;
    uint32_t first, n;
    uint32_t form;
    enum launch_dtype dtype;
    const uint8_t
        *payloads[LAUNCH_DECODE_CHUNKS_MAX]; /* from the chunk of @first on, of those that are packed */
};

/*
 * Numbers of one layer and side between the caller's memory and an array without gaps, unchanged: for tables
 * whose codes no kernel knows, which the host encodes and decodes.
 */
struct launch_copy {
    void *caller, *dense;                                         /* dense: [n][n_heads][d] */
    uint64_t dim_stride, token_stride, head_stride, block_stride; /* of the caller, in numbers */
    uint64_t block_tokens;
    uint32_t first, n; /* token i is first + i of the tokens that @blocks have */
    uint32_t n_heads, d;
    uint32_t number_bytes; /* 2 or 4 */
    uint32_t to_caller;    /* 0: from the caller to @dense */
    int64_t blocks[LAUNCH_COPY_BLOCKS_MAX];
};

/* Shared memory of kvc_decode_16: places of 64 tokens, and levels of @n_columns coordinates in binary16. */
DEVICE_INLINE uint32_t launch_decode_16_shared_bytes(uint32_t n_columns)
{
    return 64 * 8 + n_columns * 64 * 2;
}

/* ---- memory ---- */

struct launch_write_words {
    uint32_t *to;
    uint32_t n_words;
    uint32_t words[LAUNCH_WRITE_WORDS_MAX];
};

/* CRC32C (Castagnoli) of @n payloads. */
struct launch_crc {
    const uint8_t *const *payloads; /* [n], aligned to 4 */
    uint32_t *crc32c;               /* [n] */
    uint64_t bytes;                 /* of each, a multiple of 4 */
    uint32_t n;
    /* filled in by cuda_crc(): the CRC of an empty message, shifted over all words */
    uint32_t begin;
    uint32_t powers[LAUNCH_CRC_POWERS]; /* filled in by cuda_crc(): see crc_shift() of kernels/crc.h */
};

/* ---- kernels ---- */

/* X(name, parameters) of the other kernels, by the file that defines them. */
#define MERGE_KERNELS(X) X(kvc_merge, launch_attend)
#define APPEND_KERNELS(X)                                                                                    \
    X(kvc_pack_keys, launch_append) X(kvc_pack_values, launch_append) X(kvc_append_rows, launch_append)
#define READ_KERNELS(X) X(kvc_read, launch_read)
#define STAGED_KERNELS(X)                                                                                    \
    X(kvc_store_rows, launch_rows)                                                                           \
    X(kvc_move_rows, launch_move)                                                                            \
    X(kvc_encode_keys, launch_encode)                                                                        \
    X(kvc_encode_values, launch_encode)                                                                      \
    X(kvc_decode, launch_decode) X(kvc_decode_16, launch_decode) X(kvc_copy_numbers, launch_copy)
#define MEMORY_KERNELS(X)                                                                                    \
    X(kvc_write_words, launch_write_words) X(kvc_crc_begin, launch_crc) X(kvc_crc, launch_crc)

#ifdef __cplusplus
}
#endif
