/* The check of a GPU's kernels against the CPU, before a table is used on it: see gpu_check.c. */
#pragma once

#include <stddef.h>

#include "client/gpu/gpu.h"
#include "gpu/page_layout.h"

/**
 * gpu_check_table() - compare the GPU's results with a table with those of the CPU
 * @table: image on the device of the table of @l
 *
 * Runs every kernel that the table selects once, on a made-up sequence, and waits for them.
 * Return: 0; -EOPNOTSUPP with a sentence: device, kernel, what differs and by how much; -EBUSY: the
 * stream is being captured; as gpu_alloc().
 */
int gpu_check_table(struct gpu *g, const struct page_layout *l, cu_ptr table, struct errmsg *e);

/* The same for the kernels of sequences with pages in host memory (gpu_check_staged.c). */
int gpu_check_table_staged(struct gpu *g, const struct page_layout *l, cu_ptr table, struct errmsg *e);

/* Return: -EOPNOTSUPP, not the -EIO of a lost GPU: the client can still use other tables. The sentence names
 * device and kernel; @fmt: what is wrong. */
__attribute__((format(printf, 4, 5))) int gpu_check_refuse(const struct gpu *g, struct errmsg *e,
                                                           const char *kernel, const char *fmt, ...);

/* Bytes that differ. */
size_t gpu_check_count_other(const void *a, const void *b, size_t bytes);
