/* The daemon's extents on a GPU: client/connection/extents.h with the CUDA driver. */
#pragma once

#include "client/connection/extents.h"

extern const struct extent_ops gpu_extent_ops;
