/* f16.cu, the binary16 baseline, compiled for the CPU; see kernels.h. */
#include "lab/cuda/kernels/f16.cu"
#include "tests/cuda_on_cpu/entries.h"

F16_KERNELS(ENTRY_DEFINE)
