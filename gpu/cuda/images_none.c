/* A build without nvcc has no kernels; see images.h. */
#include "gpu/cuda/images.h"

const struct cuda_image cuda_image_attend = { NULL, 0 };
const struct cuda_image cuda_image_codec = { NULL, 0 };
