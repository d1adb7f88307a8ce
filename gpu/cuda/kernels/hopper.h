/*
 * What kernels for compute capability 9.0 use beyond device.h and pairs.h: barriers in shared memory that
 * copies complete, bulk copies, matrix products of a warpgroup, registers given from one warpgroup to
 * another. On a GPU the instructions (PTX ISA, sm_90a); in tests tests/cuda_on_cpu/hopper.h, which stops
 * where the instructions would hang or read what is not there yet.
 *
 * The order that wants keeping is the PTX ISA's: shared memory written by ordinary stores needs async_fence()
 * by its writer and a barrier before a product reads it; a product's registers, operands and sums alike, are
 * not touched between product() and products_wait(); products_begin() comes before the first product() after
 * registers were.
 */
#pragma once

#include "gpu/cuda/kernels/pairs.h"

/* A bulk copy's addresses and size are multiples of it. */
#define BULK_ALIGN 16

/* Operand B, [n][k] binary16 in blocks of 8 n by 8 k, 16 bytes after 16 bytes of a block: its descriptor,
 * without swizzle. */
DEVICE uint64_t describe_blocks(uint32_t start, uint32_t bytes_to_next_k, uint32_t bytes_to_next_n)
{
    return (uint64_t) (start >> 4) | (uint64_t) (bytes_to_next_k >> 4) << 16 |
           (uint64_t) (bytes_to_next_n >> 4) << 32;
}

#include "backend/hopper.h"
