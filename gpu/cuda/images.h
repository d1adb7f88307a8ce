/* The kernels as nvcc compiled them, one file for all kinds of GPU. In a build
 * without nvcc: text that no driver loads. */
#pragma once

#include <stddef.h>

struct cuda_image {
    const unsigned char *data; /* aligned to 16 */
    size_t bytes;
};

extern const struct cuda_image cuda_image_attend, cuda_image_attend_80;
extern const struct cuda_image cuda_image_append, cuda_image_read, cuda_image_staged, cuda_image_memory;
