/*
 * Operations on registers beyond device.h: bytes picked out of two words, pairs of binary16, lanes that
 * exchange, products of whole numbers, copies that go on while a block computes. On a GPU of compute
 * capability 8.0 and later the instructions, in tests tests/cuda_on_cpu/pairs.h, where a copy arrives when it
 * was waited for and not before.
 */
#pragma once

#include "gpu/cuda/kernels/device.h"

#include "backend/pairs.h"
