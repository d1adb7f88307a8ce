/* The operations that kernels need beyond C. nvcc compiles kernels with gpu/cuda/backend/device.h, where
 * they are instructions. Another backend/device.h on the include path can compute the same on the CPU, lane
 * by lane. Everything else in the kernels is plain code that both compilers take. */
#pragma once

#include <stdint.h>

struct words4 {
    uint32_t word[4];
};

struct floats2 {
    float x, y;
};

#include "backend/device.h"
