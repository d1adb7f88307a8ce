/*
 * One process's side of a GPU in tests of kernels: the stand-in's of tests/standin, or with TEST_GPU=1 in the
 * environment the machine's own (tests/gpu/run.sh). What fails prints its sentence and ends the program,
 * where nothing else is said.
 */
#pragma once

#include <stdbool.h>

#include "base/errmsg.h"
#include "gpu/cuda/kernels.h"

struct gpu_fixture {
    struct cuda_driver *driver;
    struct cuda_device_info device;
    struct cuda_space *space;
    struct cuda_kernels *kernels;
    cu_ptr allocations[512];
    unsigned n_allocations;
    struct errmsg e;
};

/* The first GPU, with @extent_bytes of addresses for extents. False: with the sentence in @d. */
bool gpu_fixture_init(struct gpu_fixture *d, size_t extent_bytes);

/* Also of what failed half-way; whether everything could be given back. */
bool gpu_fixture_deinit(struct gpu_fixture *d);

/* Memory with the bytes at @from, or undefined if that is NULL; until gpu_fixture_deinit(). */
cu_ptr gpu_fixture_put(struct gpu_fixture *d, const void *from, size_t bytes);
void gpu_fixture_set(struct gpu_fixture *d, cu_ptr to, const void *from, size_t bytes);
/* Waits for what was queued before. */
void gpu_fixture_get(struct gpu_fixture *d, void *to, cu_ptr from, size_t bytes);

/* A table as kernels read it. */
cu_ptr gpu_fixture_put_table(struct gpu_fixture *d, const struct page_layout *l);

/* What a call of gpu/cuda/ or of the driver itself must have been. */
void gpu_fixture_ok(const struct gpu_fixture *d, int r);
void gpu_fixture_cu_ok(struct gpu_fixture *d, cu_result r);
