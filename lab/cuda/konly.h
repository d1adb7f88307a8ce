/* Attention on packed keys beside binary16 values by kernels/konly.cu: the setting of the paper. */
#pragma once

#include "gpu/cuda/extent.h"
#include "gpu/cuda/images.h"
#include "gpu/page_layout.h"
#include "lab/cuda/kernels/konly.h"

extern const struct cuda_image cuda_image_konly;

struct cuda_konly;

/* Return: as cuda_kernels_new(). */
int cuda_konly_new(struct cuda_space *s, struct cuda_konly **ret_konly, struct errmsg *e);
struct cuda_konly *cuda_konly_free(struct cuda_konly *k);
static inline void cuda_konly_freep(struct cuda_konly **k)
{
    *k = cuda_konly_free(*k);
}

/* The kernel for a table, by number, and its shared memory; KONLY_ATTEND_COUNT: none takes it. */
enum {
#define KONLY_NUMBER(name, n_key_coords) number_of_##name,
    KONLY_ATTEND_KERNELS(KONLY_NUMBER)
#undef KONLY_NUMBER
        KONLY_ATTEND_COUNT
};
unsigned konly_kernel(const struct page_layout *l);
size_t konly_shared_bytes(const struct page_layout *l);

/**
 * cuda_konly_attend() - queue attention of one token per sequence
 * @a: its pointers are device pointers; may be freed when this returns
 *
 * Return: 0; -EOPNOTSUPP: a dimension other than 128, or more than 4 query
 * heads per KV head; else as cuda_fail().
 */
int cuda_konly_attend(struct cuda_konly *k, const struct page_layout *l, const struct konly_attend *a,
                      unsigned n_seqs, cu_stream stream, struct errmsg *e);
