/* Attention on a binary16 cache by kernels/f16.cu: the baseline for benches of packed attention. */
#pragma once

#include "gpu/cuda/extent.h"
#include "gpu/cuda/images.h"
#include "lab/cuda/kernels/f16.h"

extern const struct cuda_image cuda_image_f16;

struct cuda_f16;

/* Return: as cuda_kernels_new(). */
int cuda_f16_new(struct cuda_space *s, struct cuda_f16 **ret_f16, struct errmsg *e);
struct cuda_f16 *cuda_f16_free(struct cuda_f16 *f);
static inline void cuda_f16_freep(struct cuda_f16 **f)
{
    *f = cuda_f16_free(*f);
}

/**
 * cuda_f16_attend() - queue attention of one token per sequence
 * @a: its pointers are device pointers; may be freed when this returns
 *
 * Return: 0; -EOPNOTSUPP: a dimension or a group that the kernels do not take,
 * with its number; else as cuda_fail().
 */
int cuda_f16_attend(struct cuda_f16 *f, const struct f16_attend *a, unsigned n_seqs, cu_stream stream,
                    struct errmsg *e);
