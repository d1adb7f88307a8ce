/*
 * A table as kernels read it: made from a page layout, in one piece of memory whose inner pointers are those
 * of the place where it will lie. kernels/launch.h says what is in it.
 */
#pragma once

#include <stddef.h>

#include "gpu/cuda/abi.h"
#include "gpu/cuda/kernels/device_table.h"
#include "gpu/page_layout.h"

struct errmsg;

/**
 * device_table_check() - whether the kernels take a table
 * Return: 0; -EOPNOTSUPP with a sentence that names what they do not take: query heads per KV head,
 * coordinates or heads that values are decoded from.
 */
int device_table_check(const struct page_layout *l, struct errmsg *e);

/* Bytes of a plan of @l, which device_table_check() accepted. */
size_t device_table_bytes(const struct page_layout *l);

/**
 * device_table_fill() - write the plan
 * @image:   [device_table_bytes()], aligned to 16
 * @address: where it will be read; struct device_table stands first
 */
void device_table_fill(const struct page_layout *l, void *image, cu_ptr address);

/* Dynamic shared memory of the kernels of attention and of kvc_merge. */
size_t device_table_attend_shared_bytes(const struct page_layout *l);
size_t device_table_merge_shared_bytes(const struct page_layout *l);
size_t
device_table_coding_shared_bytes(const struct page_layout *l); /* kvc_pack_keys, kvc_pack_values, kvc_read */

/* Largest r of any head, of one side. A multiple of 16. */
uint32_t device_table_rank_max(const struct page_layout *l, enum side side);

/* Widest r_in of any head: device_table.columns_max. A multiple of 16. */
uint32_t device_table_columns_max(const struct page_layout *l);

/* Bytes of the largest block of a head. */
uint32_t device_table_block_bytes_max(const struct page_layout *l);
