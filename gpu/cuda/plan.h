/*
 * A table as kernels read it: made from a page layout, in one piece of memory whose inner pointers are those of the place
 * where it will lie. kernels/plan.h says what is in it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/cuda/abi.h"
#include "gpu/cuda/kernels/attend_80.h"
#include "gpu/cuda/kernels/plan.h"
#include "gpu/layout.h"

struct errmsg;

/**
 * plan_table_check() - whether the kernels take a table
 * Return: 0; -EOPNOTSUPP with a sentence that names what they do not take: query heads per KV head, coordinates or heads that
 * values are decoded from.
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

/* Kernels of attention, by number: those of attend_80.cu, then those of attend.cu, which take everything between them. */
enum { PLAN_KERNELS = PLAN_80_COUNT + PLAN_ATTEND_COUNT };

/* Whether kernel @kernel takes the table and calls of @n_q > 0 queries. */
bool plan_attend_takes(unsigned kernel, const struct page_layout *l, uint32_t n_q);

/* The first that takes them. */
unsigned plan_attend_kernel(const struct page_layout *l, uint32_t n_q);

/* The kernel's name in its image, and for people. */
const char *plan_attend_name(unsigned kernel);
const char *plan_attend_path(unsigned kernel);

/* Dynamic shared memory of kernel @kernel, which takes the table, and of kvc_merge. */
size_t plan_attend_shared_bytes(unsigned kernel, const struct page_layout *l);
size_t plan_merge_shared_bytes(const struct page_layout *l);
size_t plan_coding_shared_bytes(const struct page_layout *l); /* kvc_pack_keys, kvc_pack_values, kvc_read */

/* Largest r of any head, of one side. A multiple of 16. */
uint32_t plan_rank_max(const struct page_layout *l, enum side side);

/* Widest r_in of any head: plan_table.columns_max. A multiple of 16. */
uint32_t plan_columns_max(const struct page_layout *l);
