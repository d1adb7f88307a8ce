/*
 * Codes of vectors as a table will store them, in units of z: solve_coder for one head-side, solve_keys for
 * the keys that values are predicted from. Both are made once for many blocks of rows. Once keys have their
 * levels, solve_store_keys() keeps the codes of all rows, since five steps read them: a byte for each number.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solve/solver.h"

struct errmsg;
struct solve_rows;

struct stored_order {
    uint32_t n_bands;                    /* with bits */
    uint32_t n_coords;                   /* their coordinates, padding left out */
    uint32_t band[TABLE_HALF_TILES_MAX]; /* descending bits, stable: the order of codes in the table */
};
void solve_stored_order(const struct head *h, struct stored_order *ret);

struct solve_coder {
    const struct solver *v;
    uint32_t hs;
    struct stored_order order;
    float *enc;                          /* [order.n_coords, d] rows in stored order */
    float (*level)[1 << TABLE_BITS_MAX]; /* [order.n_bands] of codes that are kept; NULL: none are */
};

/* For the current bits and v->levels. Return: 0; -ENOMEM. */
int solve_coder_init(struct solve_coder *c, const struct solver *v, uint32_t hs);
void solve_coder_deinit(struct solve_coder *c);

/* Keeps the codes of every K, under the current bits and v->levels, which stay from here on, for those who
 * read all rows.
 * Return: 0; -EINVAL, -ENOMEM with a sentence. */
int solve_store_keys(struct solver *v, struct errmsg *e);

/* ret_c [r->n, order.n_coords], row stride @stride, := decoded codes of these rows, as they were kept or of
 * u [r->n, d] as in solve_coder_encode(). Return: 0; -EDOM. */
int solve_coder_decode(const struct solve_coder *c, const struct solve_rows *r, const float *u, float *ret_c,
                       size_t stride);

/* ret_c [n, order.n_coords], row stride @stride, := decoded codes of u [n, d], the centred input of the
 * encoder. Return: 0; -EDOM: a coordinate is not finite in binary32. */
int solve_coder_encode(const struct solve_coder *c, const float *u, size_t n, float *ret_c, size_t stride);

/* The K codes that V of one (layer, head) is predicted from. */
struct solve_keys {
    uint32_t n_heads;
    size_t m;                   /* coordinates of all of them */
    struct solve_coder *coders; /* [n_heads] */
    float *u;                   /* [SOLVE_BLOCK, d] scratch: centred keys whose codes were not kept */
};

/* @head: layer * n_kv_heads + head. Return: 0; -ENOMEM. */
int solve_keys_init(struct solve_keys *k, const struct solver *v, uint32_t head);
void solve_keys_deinit(struct solve_keys *k);

/* ret_c [r->n, k->m], row stride @stride. Return: 0; -EDOM. */
int solve_keys_read(struct solve_keys *k, const struct solve_rows *r, float *ret_c, size_t stride);
