/*
 * The case that gpu_check.c runs on a GPU and on the CPU: one layer of a short sequence, in host memory, and
 * the CPU's results for it.
 *
 * Keys and values are drawn about the table's means, as far away as its codes reach, from the table's digest:
 * the same on every machine. Two chunks are packed, the rest stays exact. One or two heads of the layer are
 * checked: the one whose codes need most of the kernels, and another. Keys of other heads are drawn too where
 * the values of checked heads are predicted from them.
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
    CHECK_ROWS = 201, /* of the tail's buffer: before the last piece is stored, rows move to its front */
    /* pages that queries attend to, the second one repeated: enough for kernels to
     * reuse their ring buffers */
    CHECK_PAGES = 9,
    CHECK_WINDOW = 200, /* the exact rows, one whole page and parts of two */
    CHECK_HEADS = 2,
};

struct gpu_check_case {
    const struct page_layout *layout;
    uint32_t layer, n_heads, d, group;
    uint32_t heads[CHECK_HEADS], n_checked; /* from the shard's first */
    uint32_t n_q; /* of the prompt: a tile and one more, so that every kernel which the table selects runs */
    uint64_t random;
    struct {
        uint32_t n_new;
        enum dtype dtype;
        size_t at; /* in new_rows, bytes */
    } pieces[CHECK_PIECES];
    void *new_rows[2]; /* by side: [n_new][n_heads][d] of every piece in its type */
    size_t new_bytes;  /* of one side */
    float *x[2];       /* [CHECK_TOKENS][n_heads][d] the same in binary32 */
    uint16_t *rows[2]; /* [n_heads][CHECK_TOKENS][d] binary16 of x - mean, of heads that are used */
    uint8_t *pages[CHECK_PACKED]; /* payloads; only blocks and sinks of used heads are written */
    float *q;                     /* [n_q][n_heads * group][d] */
    float *chunk;                 /* [64][d] */
    struct chunk_work work;
};

/* Draws and packs. Return: 0; -ENOMEM. */
int gpu_check_case_init(struct gpu_check_case *s, const struct page_layout *l);
void gpu_check_case_deinit(struct gpu_check_case *s);

/* Whether that side of a head is drawn: of a checked head, or keys that the values of a
 * checked head are predicted from. */
bool gpu_check_case_uses(const struct gpu_check_case *s, uint32_t head, enum side side);

/* Floats of one side of a token. */
static inline size_t gpu_check_case_width(const struct gpu_check_case *s)
{
    return (size_t) s->n_heads * s->d;
}

/* Positions @first .. @first + n - 1 of one head and side, as kvc_seq_read() returns them, [n][d]. */
void gpu_check_case_read(struct gpu_check_case *s, uint32_t head, enum side side, uint32_t first, uint32_t n,
                         float *ret);

/* Attention of the newest @n_q tokens over CHECK_PAGES pages and the exact rows, ret [n_q][group][d].
 * @window: as attend_args'. Return: 0; -ENOMEM. */
int gpu_check_case_attend(struct gpu_check_case *s, uint32_t head, uint32_t n_q, uint32_t window, float *ret);
