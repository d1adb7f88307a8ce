/* attend_80.cu compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/attend_80.cu"
#include "tests/cuda_on_cpu/entries.h"

#define DEFINE_ATTEND(kernel, d, n_key_coords, n_columns, n_rows) ENTRY_DEFINE(kernel, launch_attend)
ATTEND_80_KERNELS(DEFINE_ATTEND)
