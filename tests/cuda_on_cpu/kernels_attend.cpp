/* attend.cu compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/attend.cu"
#include "tests/cuda_on_cpu/entries.h"

#define DEFINE_ATTEND(kernel, n_key_coords, n_columns, n_rows) ENTRY_DEFINE(kernel, launch_attend)
ATTEND_KERNELS(DEFINE_ATTEND)
MERGE_KERNELS(ENTRY_DEFINE)
