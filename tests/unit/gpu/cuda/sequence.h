/*
 * One layer of a sequence twice, for tests of the kernels that append and read: in GPU memory, and on the
 * CPU, where every token that came stays and pages are what gpu/chunk.h makes of them by the words of DESIGN
 * section 4 and client/seq_append.c.
 */
#pragma once

#include "gpu/chunk.h"
#include "tests/unit/gpu/cuda/end.h"
#include "tests/unit/gpu/view.h"

enum { SEQUENCE_LAYER = 1, SEQUENCE_LAYERS = 2 };

struct sequence_shape {
    uint32_t d, n_kv_heads, group, n_sink;
    int bits; /* view.h */
    enum prediction v_from;
    enum launch_dtype dtype;
    uint32_t tokens_max; /* that are ever appended */
    uint32_t tail_rows;  /* of the buffer in GPU memory */
};

struct sequence {
    struct sequence_shape shape;
    struct view view;
    struct page_layout layout;
    /* on the CPU */
    float *x[2];       /* [tokens_max][n_kv_heads][d] as they were appended */
    uint16_t *rows[2]; /* [n_kv_heads][tokens_max][d] binary16 of x - mean */
    uint8_t **pages;   /* [chunks] payloads of packed ones */
    uint32_t length, n_packed;
    struct encode_counts own_counts[2], *counts; /* by side; of all that are beside one another */
    struct chunk_work work;
    /* in GPU memory */
    struct end *end;
    cu_ptr table, seq, flag, saturated, payloads, new_rows[2];
    cu_ptr *slots;            /* [chunks] */
    struct device_seq mirror; /* what the host knows of it */
    bool is_beside;           /* the view is another's */
};

void sequence_init(struct sequence *s, struct end *d, const struct sequence_shape *shape);
/* Another sequence of the table of @first, with a tail of @tail_rows rows; for launches that append to both.
 */
void sequence_init_beside(struct sequence *s, const struct sequence *first, uint32_t tail_rows);
void sequence_deinit(struct sequence *s);

/* Draws @n_new tokens and appends them on both sides; the launch may pack @n_pack chunks or, if that is -1,
 * as many as are due. */
void sequence_append(struct sequence *s, uint32_t n_new, int n_pack, cu_stream stream);

/* The same in its parts: draws tokens and puts them where a launch of @ret, of one item, reads them; what CPU
 * and host do with them. */
void sequence_draw(struct sequence *s, uint32_t n_new, int n_pack, struct launch_append *ret);
void sequence_append_on_cpu(struct sequence *s, const struct launch_append *a);

/* Lengths, tail, pages, counts: the same bits on both sides. False, and what differs printed. */
bool sequence_compare(struct sequence *s);

/* Rows of one side as kvc_seq_read() has them, [n][n_kv_heads][d]. */
void sequence_read_on_cpu(struct sequence *s, enum side side, uint32_t first, uint32_t n, float *ret);
bool sequence_compare_reading(struct sequence *s, enum side side, uint32_t first, uint32_t n);
