/*
 * One process's side of a GPU in tests of kernels: the stand-in's of tests/standin, or with TEST_GPU=1 in the
 * environment the machine's own (tests/gpu/run.sh). What fails prints its sentence and ends the program,
 * where nothing else is said.
 */
#pragma once

#include <stdbool.h>

#include "base/errmsg.h"
#include "gpu/cuda/kernels.h"

struct end {
    struct cuda_driver *driver;
    struct cuda_device_info device;
    struct cuda_space *space;
    struct cuda_kernels *kernels;
    cu_ptr allocations[512];
    unsigned n_allocations;
    struct errmsg e;
};

/* The first GPU, with @extent_bytes of addresses for extents. False: with the sentence in @d. */
bool end_init(struct end *d, size_t extent_bytes);

/* Also of what failed half-way; whether everything could be given back. */
bool end_deinit(struct end *d);

/* Memory with the bytes at @from, or undefined if that is NULL; until end_deinit(). */
cu_ptr end_put(struct end *d, const void *from, size_t bytes);
void end_set(struct end *d, cu_ptr to, const void *from, size_t bytes);
/* Waits for what was queued before. */
void end_get(struct end *d, void *to, cu_ptr from, size_t bytes);

/* A table as kernels read it. */
cu_ptr end_put_table(struct end *d, const struct page_layout *l);

/* What a call of gpu/cuda/ or of the driver itself must have been. */
void end_ok(const struct end *d, int r);
void end_cu_ok(struct end *d, cu_result r);
