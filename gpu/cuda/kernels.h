/*
 * The kernels on a device: loaded from images that the build embeds, launched on the caller's stream. Nothing
 * here waits for the device or for another process, and no launch depends on anything read back: grids follow
 * from arguments alone, parameters travel by value, lengths of sequences lie in device memory and are
 * advanced there (kernels/launch.h). So launches can be captured in a CUDA graph.
 */
#pragma once

#include "gpu/cuda/extent.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/page_layout.h"

struct cuda_kernels;

/**
 * cuda_kernels_new() - load the kernels into a space's context
 * Return: 0; -EOPNOTSUPP: this build has no kernels (it was made without nvcc), or none for this GPU; else as
 * cuda_fail().
 */
int cuda_kernels_new(struct cuda_space *s, struct cuda_kernels **ret_kernels, struct errmsg *e);
struct cuda_kernels *cuda_kernels_free(struct cuda_kernels *k);
static inline void cuda_kernels_freep(struct cuda_kernels **k)
{
    *k = cuda_kernels_free(*k);
}

/*
 * All of these return once the work is queued on @stream (NULL: the default one); parameters may go then.
 * Their pointers are device pointers, their table is that of @l. Return: 0; as cuda_fail().
 */

/* Of the kernel that attends for calls of @n_q > 0 queries: the device's own (kernels/attend_90.h) or a
 * general one. Static. */
const char *cuda_attend_name(const struct cuda_kernels *k, const struct page_layout *l, unsigned n_q);

/* From now on as on a device of an older compute capability, 10 * major + minor; below 80 the general kernels
 * attend. For benches. */
void cuda_kernels_limit(struct cuda_kernels *k, int compute);

/* Its blocks that a multiprocessor has at work at a time: as many times its multiprocessors are worth
 * launching at once. */
unsigned cuda_attend_blocks(const struct cuda_kernels *k, const struct page_layout *l, unsigned n_q);

/* Attention of a->items[0 .. n_items - 1], n_items <= LAUNCH_ITEMS_MAX: the kernel that cuda_attend_name()
 * says, and kvc_merge. */
int cuda_attend(struct cuda_kernels *k, const struct page_layout *l, const struct launch_attend *a,
                unsigned n_items, cu_stream stream, struct errmsg *e);

/*
 * Of each of a->items[0 .. n_items - 1], n_items <= LAUNCH_ITEMS_MAX: packs the chunks that are due by
 * append_step(), with the CPU's codes, then stores n_new rows behind the tail and sets the lengths. One
 * launch if no item may pack, three otherwise, of which two are as large as the items up to the last that
 * may: those should stand first. What goes wrong raises an item's seq->faults: numbers that are not finite,
 * memory that is not there; the other items are stored.
 */
int cuda_append(struct cuda_kernels *k, const struct page_layout *l, const struct launch_append *a,
                unsigned n_items, cu_stream stream, struct errmsg *e);

/* The bits of kvc_seq_read(). The range lies within the sequence as it will be when this runs. */
int cuda_read(struct cuda_kernels *k, const struct page_layout *l, const struct launch_read *r,
              cu_stream stream, struct errmsg *e);

/* @bytes at @from, which may go at once: they travel as parameters. @to and @bytes are multiples of 4. */
int cuda_write_words(struct cuda_kernels *k, cu_ptr to, const void *from, size_t bytes, cu_stream stream,
                     struct errmsg *e);

/* CRC32C of payloads, as crc32c() of proto/page.h. */
int cuda_crc(struct cuda_kernels *k, const struct launch_crc *c, cu_stream stream, struct errmsg *e);
