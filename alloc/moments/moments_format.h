/*
 * The members of struct moments and the header of the moments file, which alloc/README.md draws. Shared by
 * moments.c and moments_file.c; callers use moments.h.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/moments/moments.h"

#define MOMENTS_MAGIC "KVCMOMEN"
#define MOMENTS_VERSION 1
#define MOMENTS_VERSION_JOINT 2        /* with the scatters between heads */
#define MOMENTS_KEY_ORDER_HALF_SPLIT 1 /* rotary dimensions first, plane i = (i, i + n_rot/2) */
/* tokens: binary64 holds such counts and their products with small numbers exactly */
#define MOMENTS_COUNT_MAX ((uint64_t) 1 << 48)
#define MOMENTS_FILE_BYTES_MAX ((size_t) 16 << 30)
#define MOMENTS_ALIGN 64

struct moments {
    struct moments_options o;
    uint64_t *count; /* [n_layers, n_kv_heads] */
    double *mean;    /* [n_layers, n_kv_heads, 2d] */
    double *scatter; /* [n_layers, n_kv_heads, d (2d + 1)] lower triangles */
    double *joint;   /* [n_layers, moments_joint_numbers()], or NULL */
    double *rows;    /* scratch: a block of tokens [BLOCK_ROWS, 2d], then its mean [2d] */
    double *block;   /* scratch: its scatter */
    double *wide;    /* scratch with joint: a block of tokens of all heads [BLOCK_ROWS, n_kv_heads, 2d] */
    double *delta;   /* scratch with joint: [n_kv_heads, 2d] */
};

struct moments_header {
    char magic[8];
    uint32_t version, zero;
    uint64_t file_bytes;
    uint8_t model_digest[DIGEST_BYTES], geometry_digest[DIGEST_BYTES];
    char model_name[MOMENTS_NAME_BYTES];
    uint32_t n_layers, n_heads, n_kv_heads, d, n_rot, key_order;
    double attn_scale;
    uint32_t n_sink, zero2;
};

_Static_assert(sizeof(struct moments_header) == 256, "README draws 256 bytes, without holes");

/* Numbers in the lower triangle of a 2d x 2d matrix. */
static inline size_t moments_triangle(const struct geometry *g)
{
    return (size_t) g->d * (2 * g->d + 1);
}

/* Numbers of the joint part of a layer: three blocks [d, d] for each pair of heads (moments_joint.c). */
static inline size_t moments_joint_numbers(const struct geometry *g)
{
    return (size_t) g->n_kv_heads * (g->n_kv_heads - 1) / 2 * 3 * g->d * g->d;
}

/* Place of a head in @scatter. */
static inline size_t moments_scatter_at(const struct moments *m, uint32_t layer, uint32_t head)
{
    const struct geometry *g = &m->o.geometry;

    return ((size_t) layer * g->n_kv_heads + head) * moments_triangle(g);
}

/* ---- moments_joint.c ---- */

/* Adds the scatters between heads of @n <= BLOCK_ROWS tokens, or of @other's tokens of one layer, before the
 * counts and means of the layer change. */
void moments_joint_add(struct moments *m, uint32_t layer, size_t n, const float *k, const float *v);
void moments_joint_merge(struct moments *m, const struct moments *other, uint32_t layer);

/* Whether tokens can have the joint part of one layer, whose heads are checked already. Return: 0;
 * -EBADMSG with a sentence. */
int moments_joint_check(const struct moments *m, uint32_t layer, struct errmsg *e);
