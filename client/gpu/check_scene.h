/*
 * What client/gpu/gpu_check.c has a GPU do with a table, and what the CPU makes of the same: one layer of a
 * short sequence, in host memory.
 *
 * Keys and values are drawn about the table's means, as far away as its codes reach, from the table's digest:
 * the same on every machine. Two chunks are packed, the rest stays exact. Of the layer's heads one or two are
 * looked at, the one that asks most of kernels and another; what values of these are predicted from is made
 * for all heads that it takes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/chunk.h"
#include "gpu/dtype.h"

enum {
    CHECK_PIECES = 3, /* appends, each in its number type; the last packs */
    CHECK_TOKENS = 204,
    CHECK_PACKED = 2, /* chunks */
    CHECK_EXACT = CHECK_TOKENS - CHECK_PACKED * CHUNK_TOKENS,
    CHECK_ROWS = 201,   /* of the tail's buffer: the last piece has rows moved to its front */
    CHECK_PAGES = 9,    /* that queries attend to, enough for kernels to come round in their rings: the second
                           one repeated */
    CHECK_WINDOW = 200, /* the exact rows, and of the packed ones a page and a part of two */
    CHECK_HEADS = 2,
};

struct check_scene {
    const struct page_layout *layout;
    uint32_t layer, n_heads, d, group;
    uint32_t heads[CHECK_HEADS], n_checked; /* from the shard's first */
    uint32_t n_q; /* of the prompt: a tile and one more, so that every kernel which the table selects has its
                     turn */
    uint64_t random;
    struct {
        uint32_t n_new;
        enum dtype dtype;
        size_t at; /* in new_rows, bytes */
    } pieces[CHECK_PIECES];
    void *new_rows[2]; /* by side: [n_new][n_heads][d] of every piece in its type */
    size_t new_bytes;  /* of one side */
    float *x[2];       /* [CHECK_TOKENS][n_heads][d] the same in binary32 */
    uint16_t *rows[2]; /* [n_heads][CHECK_TOKENS][d] binary16 of x - mean, of heads that are wanted */
    uint8_t *pages[CHECK_PACKED]; /* payloads; only blocks and sinks of wanted heads are written */
    float *q;                     /* [n_q][n_heads * group][d] */
    float *chunk;                 /* [64][d] */
    struct chunk_work work;
};

/* Draws and packs. Return: 0; -ENOMEM. */
int check_scene_init(struct check_scene *s, const struct page_layout *l);
void check_scene_deinit(struct check_scene *s);

/* Whether that side of a head is made: a head that is looked at, or one whose keys its values are predicted
 * from. */
bool check_scene_wants(const struct check_scene *s, uint32_t head, enum side side);

/* Floats that a token's vectors of one side have. */
static inline size_t check_scene_width(const struct check_scene *s)
{
    return (size_t) s->n_heads * s->d;
}

/* Positions @first .. @first + n - 1 of one head and side as kvc_seq_read() has them, [n][d]. */
void check_scene_read(struct check_scene *s, uint32_t head, enum side side, uint32_t first, uint32_t n,
                      float *ret);

/* Attention of the newest @n_q tokens over CHECK_PAGES pages and the exact rows, ret [n_q][group][d].
 * @window: as attend_args'. Return: 0; -ENOMEM. */
int check_scene_attend(struct check_scene *s, uint32_t head, uint32_t n_q, uint32_t window, float *ret);
