/*
 * Tables whose matrices are binary16 with a scale for each row: half the bytes of a file. A number keeps 11
 * of its 24 bits, an error far below that of the quantiser.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;

struct table;

bool table_has_half_matrices(const struct table *t);

/**
 * table_half_round() - what a row of a matrix has in such a table
 * @row: [n], finite in binary32
 */
void table_half_round(double *row, size_t n);

/**
 * table_half_convert() - a table with its matrices as binary16, from one with binary32
 * @bytes:     [n_bytes] of a table that table_build() made
 * @ret_bytes: malloc'ed, caller frees; golden vectors are computed again, all else is as it was
 *
 * Return: 0; -EINVAL: a table that has them already, or would have too many bytes; -ENOMEM.
 */
int table_half_convert(const void *bytes, size_t n_bytes, void **ret_bytes, size_t *ret_n_bytes,
                       struct errmsg *e);
