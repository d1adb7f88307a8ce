/* The encoding and decoding kernels, compiled for the CPU; see kernels.h. */
#include "gpu/cuda/kernels/codec.cu"
#include "tests/cuda_on_cpu/entries.h"

PLAN_CODEC_KERNELS(ENTRY_DEFINE)
