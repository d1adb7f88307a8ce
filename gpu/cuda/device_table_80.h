/* Parts of a device table that only attend_80.cu reads, in the order of its
 * fragments. Used by device_table.c alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/kernels/attend_80.h"
#include "gpu/page_layout.h"

enum { DEVICE_TABLE_80_NARROW_WORDS = 3 * 5 * 4 };

static inline size_t device_table_80_dec_fragment_words(uint32_t n_planes, uint32_t r)
{
    return (size_t) n_planes / 8 * (r / 16) * 32 * 4;
}

/* @dec: [2][n_planes][r] binary16. */
void device_table_80_fill_dec_fragments(uint32_t n_planes, uint32_t r, const uint16_t *dec, uint32_t *ret);

/* @freq: [n_planes]; @ret: [n_planes][2]. */
void device_table_80_fill_page_rotation(uint32_t n_planes, const double *freq, float *ret);

/* @levels: [2][9][256] binary16. */
void device_table_80_fill_narrow(const uint16_t *levels, uint32_t *ret);
void device_table_80_fill_wide(const uint16_t *levels, uint16_t *ret);

/* Whether values of any head are products of binary16: half-tiles of more than four bits, or values
 * predicted from other heads. */
bool device_table_80_wide_values(const struct page_layout *l);
