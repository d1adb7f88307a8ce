/* memory.cu, which writes words and computes checksums, compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/memory.cu"
#include "tests/cuda_on_cpu/entries.h"

MEMORY_KERNELS(ENTRY_DEFINE)
