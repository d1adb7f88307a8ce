/* A build without nvcc: text in place of the images. A driver refuses to load it; the stand-in driver of
 * the tests does not read images. */
#include "gpu/cuda/images.h"

static const unsigned char text[] __attribute__((aligned(16))) =
    "kvcobra was built without nvcc: it has no kernels";

const struct cuda_image cuda_image_attend_80 = {text, sizeof(text)};
const struct cuda_image cuda_image_attend = {text, sizeof(text)};
const struct cuda_image cuda_image_append = {text, sizeof(text)};
const struct cuda_image cuda_image_read = {text, sizeof(text)};
const struct cuda_image cuda_image_staged = {text, sizeof(text)};
const struct cuda_image cuda_image_memory = {text, sizeof(text)};
