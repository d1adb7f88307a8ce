/* A GPU as one process uses it in tests of kernels: driver, device, space, kernels and allocations. The
 * GPU is the stand-in of tests/standin or, with TEST_GPU=1 in the environment, that of the machine
 * (tests/gpu/run.sh). Unless a comment says otherwise, a failure prints its sentence and ends the program. */
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

/* Opens the first GPU, with @extent_bytes of addresses for extents. False: the sentence is in @d. */
bool gpu_fixture_init(struct gpu_fixture *d, size_t extent_bytes);

/* Call this also after a failed gpu_fixture_init(). Returns whether everything could be freed. */
bool gpu_fixture_deinit(struct gpu_fixture *d);

/* Allocates memory with the bytes at @from, or undefined if that is NULL; freed by gpu_fixture_deinit(). */
cu_ptr gpu_fixture_put(struct gpu_fixture *d, const void *from, size_t bytes);
void gpu_fixture_set(struct gpu_fixture *d, cu_ptr to, const void *from, size_t bytes);
/* Copies memory to the host, after all work that was queued before. */
void gpu_fixture_get(struct gpu_fixture *d, void *to, cu_ptr from, size_t bytes);

/* The image of a table in device memory. */
cu_ptr gpu_fixture_put_table(struct gpu_fixture *d, const struct page_layout *l);

/* Asserts that a call of gpu/cuda/, or of the driver itself, succeeded. */
void gpu_fixture_ok(const struct gpu_fixture *d, int r);
void gpu_fixture_cu_ok(struct gpu_fixture *d, cu_result r);
