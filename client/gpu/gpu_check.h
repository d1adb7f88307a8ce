/* The check of a GPU's kernels against the CPU, before a table is used on it: see gpu_check.c. */
#pragma once

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
