/* konly.cu, packed keys beside binary16 values, compiled for the CPU; see kernels.h. */
#include "lab/cuda/kernels/konly.cu"
#include "tests/cuda_on_cpu/entries.h"

#define DEFINE_KONLY(kernel, n_key_coords) ENTRY_DEFINE(kernel, konly_attend)
KONLY_ATTEND_KERNELS(DEFINE_KONLY)
KONLY_MERGE_KERNELS(ENTRY_DEFINE)
