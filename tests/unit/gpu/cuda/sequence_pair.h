/* One layer of a sequence twice, for tests of the kernels that append and read: in GPU memory, and on the
 * CPU. The CPU keeps every token, and makes pages with gpu/chunk.h by the rules of DESIGN section 4 and
 * client/sequence/seq_append.c. */
#pragma once

#include "gpu/chunk.h"
#include "tests/unit/gpu/cuda/gpu_fixture.h"
#include "tests/unit/gpu/memory_table.h"

enum { SEQUENCE_PAIR_LAYER = 1, SEQUENCE_PAIR_LAYERS = 2 };

struct sequence_pair_shape {
    uint32_t d, n_kv_heads, group, n_sink;
    int bits; /* see memory_table.h */
    enum prediction v_from;
    enum launch_dtype dtype;
    uint32_t tokens_max; /* that are ever appended */
    uint32_t tail_rows;  /* of the buffer in GPU memory */
};

struct sequence_pair {
    struct sequence_pair_shape shape;
    struct memory_table memory;
    struct page_layout layout;
    /* on the CPU */
    float *x[2];       /* [tokens_max][n_kv_heads][d] as they were appended */
    uint16_t *rows[2]; /* [n_kv_heads][tokens_max][d] binary16 of x - mean */
    uint8_t **pages;   /* [chunks] payloads of packed chunks */
    uint32_t length, n_packed;
    struct encode_counts own_counts[2], *counts; /* by side; counts: shared by sequences of one table */
    struct chunk_work work;
    /* in GPU memory */
    struct gpu_fixture *gpu;
    cu_ptr table, seq, flag, saturated, payloads, new_rows[2];
    cu_ptr *slots;            /* [chunks] */
    struct device_seq mirror; /* the host's copy of the lengths */
    bool is_beside;           /* the table belongs to another sequence_pair */
};

void sequence_pair_init(struct sequence_pair *s, struct gpu_fixture *d,
                        const struct sequence_pair_shape *shape);
/* Another sequence with the table of @first and a tail of @tail_rows
 * rows; for launches that append to both. */
void sequence_pair_init_beside(struct sequence_pair *s, const struct sequence_pair *first,
                               uint32_t tail_rows);
void sequence_pair_deinit(struct sequence_pair *s);

/* Draws @n_new tokens and appends them on both sides. The launch may pack @n_pack chunks or, if that is -1,
 * as many as are due. */
void sequence_pair_append(struct sequence_pair *s, uint32_t n_new, int n_pack, cu_stream stream);

/* The parts of sequence_pair_append(): draws tokens and puts them where a launch of @ret, of one item,
 * reads them; then does what CPU and host do with them. */
void sequence_pair_draw(struct sequence_pair *s, uint32_t n_new, int n_pack, struct launch_append *ret);
void sequence_pair_append_on_cpu(struct sequence_pair *s, const struct launch_append *a);

/* Whether lengths, tail, pages and counts have the same bits on both sides. Prints each difference. */
bool sequence_pair_compare(struct sequence_pair *s);

/* Rows of one side as kvc_seq_read() returns them, [n][n_kv_heads][d]. */
void sequence_pair_read_on_cpu(struct sequence_pair *s, enum side side, uint32_t first, uint32_t n,
                               float *ret);
bool sequence_pair_compare_reading(struct sequence_pair *s, enum side side, uint32_t first, uint32_t n);
