/*
 * A table as kernels read it: made from a page layout, in one piece of memory whose inner pointers are those
 * of the place where it will lie. kernels/plan.h says what is in it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/cuda/abi.h"
#include "gpu/cuda/kernels/attend_80.h"
#include "gpu/cuda/kernels/attend_90.h"
#include "gpu/cuda/kernels/plan.h"
#include "gpu/page_layout.h"

struct errmsg;

/**
 * plan_table_check() - whether the kernels take a table
 * Return: 0; -EOPNOTSUPP with a sentence that names what they do not take: query heads per KV head,
 * coordinates or heads that values are decoded from.
 */
int plan_table_check(const struct page_layout *l, struct errmsg *e);

/* Bytes of a plan of @l, which plan_table_check() accepted. */
size_t plan_table_bytes(const struct page_layout *l);

/**
 * plan_table_fill() - write the plan
 * @image:   [plan_table_bytes()], aligned to 16
 * @address: where it will be read; struct plan_table stands first
 */
void plan_table_fill(const struct page_layout *l, void *image, cu_ptr address);

/* The smallest kernel of attention that takes the table and calls of @n_q > 0 queries. */
enum plan_attend_kernel plan_attend_kernel(const struct page_layout *l, uint32_t n_q);

/* Whether a kernel takes them. */
bool plan_attend_takes(enum plan_attend_kernel kernel, const struct page_layout *l, uint32_t n_q);

/*
 * The kernel for compute capability 9.0 that takes the table and calls of @n_q > 0 queries; PLAN_90_COUNT:
 * none, the general ones must. They take head dimensions 64, 128 and 256, values predicted from their own
 * head's keys at most, and what fits into shared memory, which all ranks do up to 128 and most above.
 */
enum plan_90_kernel plan_90_kernel(const struct page_layout *l, uint32_t n_q);
bool plan_90_takes(enum plan_90_kernel kernel, const struct page_layout *l, uint32_t n_q);
size_t plan_90_shared_bytes(enum plan_90_kernel kernel, const struct page_layout *l); /* dynamic */

/*
 * The kernel for compute capability 8.0 and later that takes them; PLAN_80_COUNT: none. They take head
 * dimensions 64, 128 and 256 and what fits into the shared memory that every such GPU has: at 4 bits all
 * ranks up to 128 where rows are no more than 8.
 */
enum plan_80_kernel plan_80_kernel(const struct page_layout *l, uint32_t n_q);
bool plan_80_takes(enum plan_80_kernel kernel, const struct page_layout *l, uint32_t n_q);
size_t plan_80_shared_bytes(enum plan_80_kernel kernel, const struct page_layout *l); /* dynamic */

/* Dynamic shared memory of the kernels of attention and of kvc_merge. */
size_t plan_attend_shared_bytes(const struct page_layout *l);
size_t plan_merge_shared_bytes(const struct page_layout *l);
size_t plan_coding_shared_bytes(const struct page_layout *l); /* kvc_pack_keys, kvc_pack_values, kvc_read */

/* Largest r of any head, of one side. A multiple of 16. */
uint32_t plan_rank_max(const struct page_layout *l, enum side side);

/* Widest r_in of any head: plan_table.columns_max. A multiple of 16. */
uint32_t plan_columns_max(const struct page_layout *l);

/* Bytes of the largest block of a head. */
uint32_t plan_block_bytes_max(const struct page_layout *l);
