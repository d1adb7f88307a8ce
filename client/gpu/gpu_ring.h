/*
 * Pinned memory of a client, through which bytes move between its GPU and memory of the host that the driver
 * does not know: the arena, the heap, and the daemon's pool. That memory is not registered with the driver:
 * pinned pages would outlive its accounts and the holes that are punched into it.
 *
 * A copy has a place in the ring while it is in flight. Copies of pages run on streams of the ring, beside
 * the caller's stream: one stream for each direction. A place, and the device memory that a page leaves,
 * are given back only after the event behind the copy: also if the page was dropped meanwhile.
 *
 * Nothing here waits for another process. Functions wait for copies of this ring only where they say so.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection/arena.h"
#include "client/gpu/gpu.h"
#include "client/kvcobra.h"

struct gpu_slots;
struct page;
struct workers;

#define GPU_RING_BYTES ((size_t) 64 << 20)    /* unless the caller says otherwise */
#define GPU_RING_BYTES_MIN ((size_t) 1 << 20) /* for a copy of any other kind than a page */
#define GPU_RING_BYTES_MAX ((size_t) 16 << 30)

enum { GPU_INPUTS = 2 }; /* groups of pages that are on their way to the GPU or being decoded */

/* A copy in flight, or a page that is being packed in device memory. */
struct gpu_copy {
    struct gpu_copy *next;
    cu_event done;
    size_t offset, bytes; /* its place in the ring; bytes 0: none yet */
    /* of a page that leaves the GPU; NULL: another copy, or the page was dropped */
    struct page *page;
    struct gpu_slots *slots; /* whose @slot is given back with the place; NULL: none */
    cu_ptr slot;
};

/* Device memory that pages are copied to. */
struct gpu_input {
    struct gpu_memory memory;
    cu_event read; /* behind the kernels that read it */
};

struct gpu_ring {
    uint8_t *memory;
    struct arena places;
    cu_stream out, in;             /* from and to the GPU */
    cu_event queued;               /* behind work of the caller's stream that a copy waits for */
    struct gpu_copy *first, **end; /* in flight, oldest first */
    struct gpu_copy *unused;
    struct gpu_input inputs[GPU_INPUTS];
    unsigned next_input;
    const struct workers *workers; /* copy between the ring and other memory of the host */
    const kvc_append_item **items; /* of the running append, whose launches follow */
    size_t n_items_max;
};

/* @bytes: of the ring. @workers: borrowed. gpu_ring_free() also after a failure.
 * Return: 0; -ENOMEM, as cuda_fail(). */
int gpu_ring_new(struct gpu *g, size_t bytes, const struct workers *workers, struct errmsg *e);

/* After all pages were dropped and the GPU was waited for. */
void gpu_ring_free(struct gpu *g);

/* Room for ring->items of a call. Return: 0; -ENOMEM. */
int gpu_ring_reserve_items(struct gpu *g, size_t n);

/* ---- pages that leave the GPU ---- */

/**
 * gpu_ring_stage() - device memory to pack a page in
 * @slots: of the page's class
 *
 * page->staging is the copy until the bytes are in the page. Return: 0; as gpu_slot_take().
 */
int gpu_ring_stage(struct gpu *g, struct gpu_slots *slots, struct page *page, struct errmsg *e);

/* The page is dropped: its bytes will not be copied to it. Its device memory is given back, now or after the
 * copy. */
void gpu_ring_unstage(struct gpu *g, struct page *page);

/**
 * gpu_ring_send() - begin to copy a page that is packed by work queued so far
 *
 * With @may_wait a full ring is emptied of copies that are done, and the call waits for the oldest ones.
 * Return: 0; -EAGAIN: the ring is full; -ENOMEM, -EIO.
 */
int gpu_ring_send(struct gpu *g, struct page *page, bool may_wait, struct errmsg *e);

/* Whether the copy of a staged page has begun. */
bool gpu_ring_is_sent(const struct page *page);

/* Stores the pages whose copies are done, and gives places back; waits for none. Return: 0; -EIO. */
int gpu_ring_collect(struct gpu *g, struct errmsg *e);

/* Waits for the oldest copy and collects. Return: 0; -EIO. */
int gpu_ring_wait(struct gpu *g, struct errmsg *e);

/* Waits for all copies. Return: 0; -EIO. */
int gpu_ring_finish(struct gpu *g, struct errmsg *e);

/* ---- bytes for the GPU ---- */

/**
 * gpu_ring_take() - a place to write @bytes to
 *
 * Waits for the oldest copies if the ring is full. gpu_ring_fetch(), gpu_ring_write() or gpu_ring_drop() ends
 * it. Return: 0; -ENOMEM: the ring is smaller; -EIO.
 */
int gpu_ring_take(struct gpu *g, size_t bytes, struct gpu_copy **ret, struct errmsg *e);
void *gpu_ring_at(const struct gpu *g, const struct gpu_copy *c);

/* Copies device memory to the place, behind the work of the caller's stream, and waits: for bytes that the
 * caller takes out of the place before gpu_ring_drop(). Return: 0; -EIO, and the copy has ended. */
int gpu_ring_read(struct gpu *g, struct gpu_copy *c, cu_ptr from, struct errmsg *e);
void gpu_ring_drop(struct gpu *g, struct gpu_copy *c);

/* Copies the place to device memory, in the order of the caller's stream. Return: 0; -EIO. */
int gpu_ring_write(struct gpu *g, struct gpu_copy *c, cu_ptr to, struct errmsg *e);

/**
 * gpu_ring_fetch() - copy the place to one of the inputs, beside the caller's stream
 * @ret: its device memory, for work queued later
 *
 * gpu_ring_end_fetch() follows when the work that reads the input was queued.
 * Return: 0; as gpu_alloc().
 */
int gpu_ring_fetch(struct gpu *g, struct gpu_copy *c, struct gpu_input **ret, struct errmsg *e);
int gpu_ring_end_fetch(struct gpu *g, struct gpu_input *in, struct errmsg *e);

/* Copies @n pieces between host memory and places, on the threads of the client. */
struct gpu_piece {
    void *to;
    const void *from;
    size_t bytes;
};
void gpu_ring_copy_pieces(const struct gpu *g, const struct gpu_piece *pieces, size_t n);
