/* Operations on registers beyond device.h: bytes selected from two words, pairs of binary16, exchange
 * between lanes, products of whole numbers, asynchronous copies to shared memory. Instructions exist from
 * compute capability 8.0. See device.h for where the operations are defined. */
#pragma once

#include "gpu/cuda/kernels/device.h"

#include "backend/pairs.h"
