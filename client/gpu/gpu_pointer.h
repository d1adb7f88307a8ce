/* Checks that pointers of the caller are memory of the GPU, for calls in which a pointer to host memory is a
 * likely mistake. */
#pragma once

#include "client/gpu/gpu.h"

/* Ranges that were found before are not looked up again: an engine's tensors lie in few of them.
 * Return: 0; -EINVAL with a sentence that names @name: no memory that the driver knows, or another GPU's. */
int gpu_check_pointer(struct gpu *g, const void *at, const char *name, struct errmsg *e);
