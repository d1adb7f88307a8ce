/*
 * Selects the kernel of attention for a table and a call, and computes the dynamic shared memory that the
 * kernel needs. Used by kernels.c, which launches the kernel, and by tests and benches. Every rule here
 * follows from the page layout and the number of queries alone; kernels.c decides which kernels a device
 * can run at all.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/cuda/kernels/attend_80.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/page_layout.h"

/* The smallest kernel of attention that takes the table and calls of @n_q > 0 queries. */
enum attend_kernel select_attend(const struct page_layout *l, uint32_t n_q);

/* Whether @kernel takes the table and calls of @n_q queries. */
bool select_attend_takes(enum attend_kernel kernel, const struct page_layout *l, uint32_t n_q);

/* The kernel for compute capability 8.0 and later that takes the table and calls of @n_q > 0 queries;
 * ATTEND_80_COUNT: none. They take head dimensions 64, 128 and 256 and tables that fit into the shared
 * memory that every such GPU has: at 4 bits, all ranks up to 128 if there are at most 8 rows. */
enum attend_80_kernel select_attend_80(const struct page_layout *l, uint32_t n_q);
bool select_attend_80_takes(enum attend_80_kernel kernel, const struct page_layout *l, uint32_t n_q);
size_t select_attend_80_shared_bytes(enum attend_80_kernel kernel, const struct page_layout *l); /* dynamic */
