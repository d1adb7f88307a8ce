/*
 * The kernels on a device: loaded from images that the build embeds, launched on a stream of the caller. No
 * function here waits for the device or for another process, and no launch depends on data read back: grids
 * follow from arguments alone, parameters are passed by value, lengths of sequences lie in device memory
 * and are advanced there (kernels/device_table.h). So launches can be captured in a CUDA graph.
 */
#pragma once

#include "gpu/cuda/extent.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/page_layout.h"

struct cuda_kernels;

/**
 * cuda_kernels_new() - load the kernels into the context of a space
 *
 * Return: 0; -EOPNOTSUPP: this build has no kernels (it was made without nvcc), or none for this GPU; else
 *         as cuda_fail().
 */
int cuda_kernels_new(struct cuda_space *s, struct cuda_kernels **ret_kernels, struct errmsg *e);
struct cuda_kernels *cuda_kernels_free(struct cuda_kernels *k);
static inline void cuda_kernels_freep(struct cuda_kernels **k)
{
    *k = cuda_kernels_free(*k);
}

/* ---- launches ---- */

/* All functions below that take @stream (NULL: the default stream) return when the work is queued;
 * parameters may be freed then. Pointers in parameters are device pointers, and their table is that of @l.
 * Return: 0; as cuda_fail(). */

/* Name of the kernel that attends for calls of @n_q > 0 queries: one of kernels/attend_80.h or a general
 * one. Static storage. */
const char *cuda_attend_name(const struct cuda_kernels *k, const struct page_layout *l, unsigned n_q);

/* Selects kernels from now on as on a device of an older compute capability, 10 * major + minor; below 80
 * the general kernels attend. For benches. */
void cuda_kernels_limit(struct cuda_kernels *k, int compute);

/* Blocks of the kernel of cuda_attend_name() that run on a multiprocessor at a time. Launch this number
 * times the number of multiprocessors at once. */
unsigned cuda_attend_blocks(const struct cuda_kernels *k, const struct page_layout *l, unsigned n_q);

/* Attention of a->items[0 .. n_items - 1], n_items <= LAUNCH_ITEMS_MAX, by the kernel that
 * cuda_attend_name() names and kvc_merge. */
int cuda_attend(struct cuda_kernels *k, const struct page_layout *l, const struct launch_attend *a,
                unsigned n_items, cu_stream stream, struct errmsg *e);

/*
 * For each of a->items[0 .. n_items - 1], n_items <= LAUNCH_ITEMS_MAX: packs the chunks that are due by
 * append_step(), with the codes of the CPU, then stores n_new rows behind the tail and sets the lengths.
 *
 * One launch if no item may pack, otherwise three. Two of the three have a grid for the items up to the
 * last one that may pack: put those items first.
 *
 * An error sets bits in seq->faults of the item: numbers that are not finite, missing memory. The other
 * items are stored.
 */
int cuda_append(struct cuda_kernels *k, const struct page_layout *l, const struct launch_append *a,
                unsigned n_items, cu_stream stream, struct errmsg *e);

/* Writes the same bits as kvc_seq_read(). The range must lie within the
 * sequence at the time when this runs. */
int cuda_read(struct cuda_kernels *k, const struct page_layout *l, const struct launch_read *r,
              cu_stream stream, struct errmsg *e);

/*
 * For sequences whose pages are in host memory (LAUNCH_* of kernels/launch.h).
 *
 * cuda_store_rows() stores new tokens of a->items[0 .. n_items - 1] as rows, and sets bits in item->faults
 * if a number is not finite. cuda_encode() packs a->chunks[0 .. n_chunks - 1], whose rows are there, keys
 * before values: two launches, the codes of the CPU. cuda_decode() writes decoded and exact vectors, with the
 * bits of kvc_seq_read_blocks() on the CPU for binary32; numbers of 16 bits differ by at most one unit in the
 * last place, where a vector's number is not far smaller than the terms that it is the sum of.
 */
int cuda_store_rows(struct cuda_kernels *k, const struct page_layout *l, const struct launch_rows *a,
                    unsigned n_items, cu_stream stream, struct errmsg *e);
int cuda_move_rows(struct cuda_kernels *k, const struct page_layout *l, const struct launch_move *a,
                   cu_stream stream, struct errmsg *e);
int cuda_encode(struct cuda_kernels *k, const struct page_layout *l, const struct launch_encode *a,
                unsigned n_chunks, cu_stream stream, struct errmsg *e);
int cuda_decode(struct cuda_kernels *k, const struct page_layout *l, const struct launch_decode *a,
                cu_stream stream, struct errmsg *e);

/* Copies numbers between the caller's memory and an array without gaps, for any table. */
int cuda_copy_numbers(struct cuda_kernels *k, const struct launch_copy *a, cu_stream stream,
                      struct errmsg *e);

/*
 * Writes @bytes at @from to @to. @from may be freed at once: the words are passed as parameters. @to and
 * @bytes are multiples of 4.
 */
int cuda_write_words(struct cuda_kernels *k, cu_ptr to, const void *from, size_t bytes, cu_stream stream,
                     struct errmsg *e);

/* CRC32C of payloads, as crc32c() of proto/page.h. */
int cuda_crc(struct cuda_kernels *k, const struct launch_crc *c, cu_stream stream, struct errmsg *e);
