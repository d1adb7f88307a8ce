/* staged.cu compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/staged.cu"
#include "tests/cuda_on_cpu/entries.h"

STAGED_KERNELS(ENTRY_DEFINE)
