/* append.cu compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/append.cu"
#include "tests/cuda_on_cpu/entries.h"

APPEND_KERNELS(ENTRY_DEFINE)
