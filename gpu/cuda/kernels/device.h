/*
 * The operations that kernels need beyond C: on a GPU the instructions, in tests the same on the CPU, lane by
 * lane (tests/cuda_on_cpu/). Everything else in the kernels is plain code that both compile.
 */
#pragma once

#include <stdint.h>

struct words4 {
    uint32_t word[4];
};

struct floats2 {
    float x, y;
};

#include "backend/device.h"
