/* A build without nvcc has no baseline for benches; see gpu/cuda/images_none.c. */
#include "lab/cuda/f16.h"

static const unsigned char text[] __attribute__((aligned(16))) =
    "kvcobra was built without nvcc: it has no kernels";

const struct cuda_image cuda_image_f16 = {text, sizeof(text)};
