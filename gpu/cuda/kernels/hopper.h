/*
 * Operations of kernels for compute capability 9.0 beyond device.h and pairs.h: barriers in shared memory
 * that copies complete, bulk copies, matrix products of a warpgroup, registers moved from one warpgroup to
 * another. See device.h for the files that define the operations.
 *
 * The order of operations that the PTX ISA demands:
 * - shared memory written by ordinary stores needs async_fence() by its writer and then a barrier before a
 *   product reads it;
 * - registers of a product, operands and sums alike, are not accessed between product() and products_wait();
 * - products_begin() comes before the first product() after such an access.
 */
#pragma once

#include "gpu/cuda/kernels/pairs.h"

/* Addresses and size of a bulk copy are multiples of this. */
#define BULK_ALIGN 16

/* Descriptor, without swizzle, of operand B [n][k] binary16 in blocks of 8 n by 8 k; a block is contiguous,
 * 16 bytes per n. */
DEVICE uint64_t describe_blocks(uint32_t start, uint32_t bytes_to_next_k, uint32_t bytes_to_next_n)
{
    return (uint64_t) (start >> 4) | (uint64_t) (bytes_to_next_k >> 4) << 16 |
           (uint64_t) (bytes_to_next_n >> 4) << 32;
}

#include "backend/hopper.h"
