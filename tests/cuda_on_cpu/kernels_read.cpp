/* read.cu compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/read.cu"
#include "tests/cuda_on_cpu/entries.h"

READ_KERNELS(ENTRY_DEFINE)
