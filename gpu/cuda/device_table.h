/* Makes the image of an allocation table that kernels read, from a page layout. The image is one piece of
 * memory; its inner pointers are addresses in device memory, where it will lie. kernels/device_table.h
 * describes the contents. This file also has the sizes that launches need and that follow from a table. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/cuda/abi.h"
#include "gpu/cuda/kernels/device_table.h"
#include "gpu/page_layout.h"

struct errmsg;

/* Whether kernels encode and decode the codes of a table: scalar levels, but no trellises. */
bool device_table_has_kernels(const struct table *t);

/**
 * device_table_check() - whether the kernels take a table
 *
 * Return: 0; -EOPNOTSUPP with a sentence that names the excess: query heads per KV head, or coordinates
 *         that a value is decoded from.
 */
int device_table_check(const struct page_layout *l, struct errmsg *e);

/* Bytes of the image of @l, which device_table_check() accepted. */
size_t device_table_bytes(const struct page_layout *l);

/**
 * device_table_fill() - write the image
 * @image:   [device_table_bytes()], aligned to 16
 * @address: its place in device memory; struct device_table is at the beginning
 */
void device_table_fill(const struct page_layout *l, void *image, cu_ptr address);

/* Dynamic shared memory of the kernels of attention and of kvc_merge. */
size_t device_table_attend_shared_bytes(const struct page_layout *l);
size_t device_table_merge_shared_bytes(const struct page_layout *l);

/* Dynamic shared memory of kvc_pack_keys, kvc_pack_values and kvc_read. */
size_t device_table_coding_shared_bytes(const struct page_layout *l);

/* Largest r of any head of one side. A multiple of 16. */
uint32_t device_table_rank_max(const struct page_layout *l, enum side side);

/* Largest r_in of any head: device_table.columns_max. A multiple of 16. */
uint32_t device_table_columns_max(const struct page_layout *l);

/* Bytes of the largest block of a head. */
uint32_t device_table_block_bytes_max(const struct page_layout *l);
