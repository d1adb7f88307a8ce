/* The check of a GPU's kernels against the CPU, before a table is used on it: see gpu_check.c. */
#pragma once

#include "client/gpu/gpu.h"
#include "gpu/page_layout.h"

/**
 * gpu_check_table() - whether the GPU computes with a table what the CPU does
 * @table: its image on the device, of @l
 *
 * Runs every kernel that the table selects once, on a made-up sequence. Waits. Return: 0; -EOPNOTSUPP with a
 * sentence: device, kernel, what differs and by how much; -EBUSY: the stream is being captured; as
 * gpu_alloc().
 */
int gpu_check_table(struct gpu *g, const struct page_layout *l, cu_ptr table, struct errmsg *e);
