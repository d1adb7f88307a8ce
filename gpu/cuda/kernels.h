/*
 * The kernels on a device: loaded from images that the build embeds, launched on the caller's stream. Nothing here waits for
 * the device or for another process, and no launch depends on anything read back: grids follow from arguments alone, plans
 * lie in device memory at places that stay (kernels/plan.h), so that launches can be captured in a CUDA graph.
 */
#pragma once

#include "gpu/cuda/extent.h"
#include "gpu/layout.h"

struct cuda_kernels;

/**
 * cuda_kernels_new() - load the kernels into a space's context
 * Return: 0; -EOPNOTSUPP: this build has no kernels (it was made without nvcc), or none for this GPU; else as cuda_fail().
 */
int cuda_kernels_new(struct cuda_space *s, struct cuda_kernels **ret_kernels, struct errmsg *e);
struct cuda_kernels *cuda_kernels_free(struct cuda_kernels *k);
static inline void cuda_kernels_freep(struct cuda_kernels **k)
{
    *k = cuda_kernels_free(*k);
}

/*
 * All three return once the work is queued on @stream (NULL: the default one). @plan is the device address of a struct
 * plan_attend, plan_encode, plan_decode over the table of @l. Return: 0; as cuda_fail().
 */

/* The kernel of attention that plan_attend_kernel() says, and kvc_merge. @n_splits and @n_q as in the plan. */
int cuda_attend(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_splits, unsigned n_q,
                unsigned n_seqs, cu_stream stream, struct errmsg *e);

/* Keys, then values, of @n_chunks. */
int cuda_encode(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_chunks, cu_stream stream,
                struct errmsg *e);
int cuda_decode(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_pages, cu_stream stream,
                struct errmsg *e);
