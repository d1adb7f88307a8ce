/* attend_90.cu compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/attend_90.cu"
#include "tests/cuda_on_cpu/entries.h"

#define DEFINE_ATTEND(kernel, d, n_rows) ENTRY_DEFINE(kernel, launch_attend)
ATTEND_90_KERNELS(DEFINE_ATTEND)
