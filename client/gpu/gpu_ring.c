/* See gpu_ring.h. */
#include "client/gpu/gpu_ring.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/workers.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_slots.h"
#include "client/model/model.h"
#include "client/sequence/pages.h"

enum { COLLECT_MAX = 64 }; /* pages that are stored together, on all threads */

/* ---- handles ---- */

/* Without a place; the event is made once and used again. */
static int gpu_ring_new_copy(struct gpu *g, struct gpu_copy **ret, struct errmsg *e)
{
    struct gpu_copy *c = g->ring->unused;
    int r;

    if (c) {
        g->ring->unused = c->next;
        c->next = NULL;
        *ret = c;
        return 0;
    }

    c = calloc(1, sizeof(*c));
    if (!c)
        return fail(e, -ENOMEM, "out of memory");

    r = gpu_enter(g, e);
    if (r == 0) {
        r = gpu_cu_result(g, g->driver->event_create(&c->done, CU_EVENT_UNTIMED), e,
                          "cannot make an event of the GPU");
        cuda_space_leave(g->space);
    }
    if (r < 0) {
        free(c);
        return r;
    }

    *ret = c;
    return 0;
}

/* The place and the device memory are given back; no copy uses them. */
static void gpu_ring_end_copy(struct gpu_ring *ring, struct gpu_copy *c)
{
    if (c->bytes > 0)
        arena_give(&ring->places, c->offset, c->bytes);
    if (c->slots)
        gpu_slot_give(c->slots, c->slot);
    if (c->page)
        c->page->staging = NULL;
    *c = (struct gpu_copy){.done = c->done, .next = ring->unused};
    ring->unused = c;
}

static void gpu_ring_add(struct gpu_ring *ring, struct gpu_copy *c)
{
    c->next = NULL;
    *ring->end = c;
    ring->end = &c->next;
}

/* ---- collecting ---- */

static void gpu_ring_copy_piece(void *arg, size_t i, unsigned worker)
{
    const struct gpu_piece *p = (const struct gpu_piece *) arg + i;

    (void) worker;
    memcpy(p->to, p->from, p->bytes);
}

void gpu_ring_copy_pieces(const struct gpu *g, const struct gpu_piece *pieces, size_t n)
{
    workers_run(g->ring->workers, gpu_ring_copy_piece, (void *) (uintptr_t) pieces, n);
}

/* Whether the copy has ended. Return: 1: yes; 0: no; -EIO. */
static int gpu_ring_is_done(struct gpu *g, const struct gpu_copy *c, struct errmsg *e)
{
    cu_result result = g->driver->event_query(c->done);

    if (result == CU_NOT_READY)
        return 0;

    return result == CU_SUCCESS ? 1 : gpu_cu_result(g, result, e, "a copy of a page failed");
}

/* Takes copies that have ended out of the list, at most COLLECT_MAX. Those of one direction end in order; a
 * list of some dozens is searched whole, since one direction must not wait for the other. */
static int gpu_ring_take_done(struct gpu *g, struct gpu_copy **done, size_t *ret_n, struct errmsg *e)
{
    struct gpu_ring *ring = g->ring;
    int r = gpu_enter(g, e);

    if (r < 0)
        return r;
    for (struct gpu_copy **at = &ring->first; *at && *ret_n < COLLECT_MAX && r >= 0;) {
        struct gpu_copy *c = *at;

        r = gpu_ring_is_done(g, c, e);
        if (r == 1) {
            *at = c->next;
            done[(*ret_n)++] = c;
        } else {
            at = &c->next;
        }
    }
    ring->end = &ring->first;
    while (*ring->end)
        ring->end = &(*ring->end)->next;
    cuda_space_leave(g->space);
    return r < 0 ? r : 0;
}

int gpu_ring_collect(struct gpu *g, struct errmsg *e)
{
    struct gpu_ring *ring = g->ring;
    struct gpu_copy *done[COLLECT_MAX] = {NULL};
    struct gpu_piece pieces[COLLECT_MAX];
    size_t n = 0, n_pieces = 0;
    int r;

    if (!ring->first)
        return 0;

    r = gpu_ring_take_done(g, done, &n, e);
    for (size_t i = 0; i < n; i++)
        if (done[i]->page)
            pieces[n_pieces++] =
                (struct gpu_piece){done[i]->page->bytes + PAGE_HEADER_BYTES, ring->memory + done[i]->offset,
                                   done[i]->page->table->layout.payload_bytes[done[i]->page->class]};
    gpu_ring_copy_pieces(g, pieces, n_pieces);
    for (size_t i = 0; i < n; i++)
        gpu_ring_end_copy(ring, done[i]);
    return r;
}

int gpu_ring_wait(struct gpu *g, struct errmsg *e)
{
    int r;

    if (!g->ring->first)
        return 0;

    r = gpu_enter(g, e);
    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->event_synchronize(g->ring->first->done), e, "cannot wait for a copy");
    cuda_space_leave(g->space);
    return r < 0 ? r : gpu_ring_collect(g, e);
}

int gpu_ring_finish(struct gpu *g, struct errmsg *e)
{
    int r = 0;

    while (r == 0 && g->ring->first)
        r = gpu_ring_wait(g, e);
    return r;
}

/* ---- places ---- */

static int gpu_ring_find_place(struct gpu *g, struct gpu_copy *c, size_t bytes, bool may_wait,
                               struct errmsg *e)
{
    struct gpu_ring *ring = g->ring;
    int r = 0;

    if (bytes > ring->places.bytes)
        return fail(e, -ENOMEM, "%zu bytes do not fit into the %zu of kvc_gpu_options.ring_bytes", bytes,
                    ring->places.bytes);
    if (arena_take(&ring->places, bytes, &c->offset)) {
        c->bytes = bytes;
        return 0;
    }

    if (!may_wait)
        return -EAGAIN;

    r = gpu_ring_collect(g, e);
    while (r == 0 && !arena_take(&ring->places, bytes, &c->offset)) {
        assert(ring->first); /* all bytes are in places, which copies in flight have */
        r = gpu_ring_wait(g, e);
    }
    if (r == 0)
        c->bytes = bytes;
    return r;
}

/* ---- pages that leave the GPU ---- */

int gpu_ring_stage(struct gpu *g, struct gpu_slots *slots, struct page *page, struct errmsg *e)
{
    struct gpu_copy *c = NULL;
    int r = gpu_ring_new_copy(g, &c, e);

    if (r < 0)
        return r;

    r = gpu_slot_take(g, slots, &c->slot, e);
    if (r < 0) {
        gpu_ring_end_copy(g->ring, c);
        return r;
    }

    c->slots = slots;
    c->page = page;
    page->staging = c;
    return 0;
}

bool gpu_ring_is_sent(const struct page *page)
{
    return page->staging && page->staging->bytes > 0;
}

void gpu_ring_unstage(struct gpu *g, struct page *page)
{
    struct gpu_copy *c = page->staging;

    if (!c)
        return;

    c->page = NULL;
    page->staging = NULL;
    if (c->bytes == 0) /* only work of the caller's stream uses its memory, and so will the next page */
        gpu_ring_end_copy(g->ring, c);
}

/* The context is current. */
static cu_result gpu_ring_queue_out(struct gpu *g, const struct gpu_copy *c, size_t bytes)
{
    const struct cuda_driver *d = g->driver;
    struct gpu_ring *ring = g->ring;
    cu_result result = d->event_record(ring->queued, g->stream);

    if (result == CU_SUCCESS)
        result = d->stream_wait_event(ring->out, ring->queued, 0);
    if (result == CU_SUCCESS)
        result =
            d->copy_to_host_async(ring->memory + c->offset, c->slot + PAGE_HEADER_BYTES, bytes, ring->out);
    return result == CU_SUCCESS ? d->event_record(c->done, ring->out) : result;
}

int gpu_ring_send(struct gpu *g, struct page *page, bool may_wait, struct errmsg *e)
{
    size_t bytes = page->table->layout.payload_bytes[page->class];
    struct gpu_copy *c = page->staging;
    int r;

    assert(c && c->bytes == 0);
    r = gpu_ring_find_place(g, c, bytes, may_wait, e);
    if (r < 0)
        return r;

    r = gpu_enter(g, e);
    if (r == 0) {
        r = gpu_cu_result(g, gpu_ring_queue_out(g, c, bytes), e, "cannot copy a page from the GPU");
        cuda_space_leave(g->space);
    }
    gpu_ring_add(g->ring, c); /* after an error too: the place is in use until the GPU is waited for */
    return r;
}

/* ---- bytes for the GPU ---- */

int gpu_ring_take(struct gpu *g, size_t bytes, struct gpu_copy **ret, struct errmsg *e)
{
    struct gpu_copy *c = NULL;
    int r = gpu_ring_new_copy(g, &c, e);

    if (r < 0)
        return r;

    r = gpu_ring_find_place(g, c, bytes, true, e);
    if (r < 0) {
        gpu_ring_end_copy(g->ring, c);
        return r;
    }

    *ret = c;
    return 0;
}

void *gpu_ring_at(const struct gpu *g, const struct gpu_copy *c)
{
    return g->ring->memory + c->offset;
}

static int gpu_ring_queue_in(struct gpu *g, struct gpu_copy *c, cu_ptr to, cu_stream stream, struct errmsg *e)
{
    cu_result result = g->driver->copy_to_device_async(to, gpu_ring_at(g, c), c->bytes, stream);

    if (result == CU_SUCCESS)
        result = g->driver->event_record(c->done, stream);
    gpu_ring_add(g->ring, c);
    return gpu_cu_result(g, result, e, "cannot copy to the GPU");
}

int gpu_ring_write(struct gpu *g, struct gpu_copy *c, cu_ptr to, struct errmsg *e)
{
    int r = gpu_enter(g, e);

    if (r < 0) {
        gpu_ring_end_copy(g->ring, c);
        return r;
    }
    r = gpu_ring_queue_in(g, c, to, g->stream, e);
    cuda_space_leave(g->space);
    return r;
}

int gpu_ring_read(struct gpu *g, struct gpu_copy *c, cu_ptr from, struct errmsg *e)
{
    const struct cuda_driver *d = g->driver;
    cu_result result;
    int r = gpu_enter(g, e);

    if (r < 0) {
        gpu_ring_end_copy(g->ring, c);
        return r;
    }

    result = d->copy_to_host_async(gpu_ring_at(g, c), from, c->bytes, g->stream);
    if (result == CU_SUCCESS)
        result = d->event_record(c->done, g->stream);
    if (result == CU_SUCCESS)
        result = d->event_synchronize(c->done);
    r = gpu_cu_result(g, result, e, "cannot copy from the GPU");
    cuda_space_leave(g->space);
    if (r < 0)
        gpu_ring_add(g->ring, c); /* the place is in use until the GPU is waited for */
    return r;
}

void gpu_ring_drop(struct gpu *g, struct gpu_copy *c)
{
    gpu_ring_end_copy(g->ring, c);
}

/* An input of at least @bytes. Memory that is new to it may have been used by queued work: then @in->read is
 * behind that. */
static int gpu_ring_grow_input(struct gpu *g, struct gpu_input *in, size_t bytes, struct errmsg *e)
{
    int r;

    if (in->memory.bytes >= bytes)
        return 0;

    gpu_free(g, &in->memory); /* the caller's stream has waited for the copies to it */
    r = gpu_alloc(g, bytes, &in->memory, e);
    return r < 0 ? r : gpu_ring_end_fetch(g, in, e);
}

int gpu_ring_end_fetch(struct gpu *g, struct gpu_input *in, struct errmsg *e)
{
    int r = gpu_enter(g, e);

    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->event_record(in->read, g->stream), e, "cannot record an event");
    cuda_space_leave(g->space);
    return r;
}

int gpu_ring_fetch(struct gpu *g, struct gpu_copy *c, struct gpu_input **ret, struct errmsg *e)
{
    struct gpu_ring *ring = g->ring;
    struct gpu_input *in = &ring->inputs[ring->next_input];
    int r = gpu_ring_grow_input(g, in, c->bytes, e);

    if (r == 0)
        r = gpu_enter(g, e);
    if (r < 0) {
        gpu_ring_end_copy(ring, c);
        return r;
    }

    r = gpu_cu_result(g, g->driver->stream_wait_event(ring->in, in->read, 0), e, "cannot order copies");
    if (r == 0)
        r = gpu_ring_queue_in(g, c, in->memory.at, ring->in, e);
    else
        gpu_ring_end_copy(ring, c);
    if (r == 0)
        r = gpu_cu_result(g, g->driver->stream_wait_event(g->stream, c->done, 0), e, "cannot order copies");
    cuda_space_leave(g->space);
    ring->next_input = (ring->next_input + 1) % GPU_INPUTS;
    *ret = in;
    return r;
}

/* ---- the ring ---- */

/* The context is current. */
static cu_result gpu_ring_make(struct gpu *g, size_t bytes)
{
    const struct cuda_driver *d = g->driver;
    struct gpu_ring *ring = g->ring;
    void *memory = NULL;
    cu_result result = d->host_alloc(&memory, bytes, 0);

    ring->memory = memory;
    if (result == CU_SUCCESS)
        result = d->stream_create(&ring->out, CU_STREAM_UNORDERED);
    if (result == CU_SUCCESS)
        result = d->stream_create(&ring->in, CU_STREAM_UNORDERED);
    if (result == CU_SUCCESS)
        result = d->event_create(&ring->queued, CU_EVENT_UNTIMED);
    for (unsigned i = 0; result == CU_SUCCESS && i < GPU_INPUTS; i++)
        result = d->event_create(&ring->inputs[i].read, CU_EVENT_UNTIMED);
    return result;
}

int gpu_ring_new(struct gpu *g, size_t bytes, const struct workers *workers, struct errmsg *e)
{
    struct gpu_ring *ring = calloc(1, sizeof(*ring));
    cu_result result;
    int r;

    if (!ring || arena_init(&ring->places, bytes) < 0) {
        free(ring);
        return fail(e, -ENOMEM, "out of memory");
    }

    ring->end = &ring->first;
    ring->workers = workers;
    g->ring = ring;
    r = gpu_enter(g, e);
    if (r < 0)
        return r;
    result = gpu_ring_make(g, bytes);
    cuda_space_leave(g->space);
    if (result == CU_OUT_OF_MEMORY && !ring->memory)
        return fail(e, -ENOMEM,
                    "the driver cannot pin %zu bytes of memory: make kvc_gpu_options.ring_bytes smaller",
                    bytes);

    return gpu_cu_result(g, result, e, "cannot make the ring of copies");
}

int gpu_ring_reserve_items(struct gpu *g, size_t n)
{
    struct gpu_ring *ring = g->ring;
    const kvc_append_item **items;

    if (n <= ring->n_items_max)
        return 0;

    items = reallocarray(ring->items, n, sizeof(const kvc_append_item *));
    if (!items)
        return -ENOMEM;

    ring->items = items;
    ring->n_items_max = n;
    return 0;
}

static void gpu_ring_free_copies(struct gpu *g, struct gpu_copy *c, bool entered)
{
    while (c) {
        struct gpu_copy *next = c->next;

        if (entered)
            (void) g->driver->event_destroy(c->done);
        free(c);
        c = next;
    }
}

static void gpu_ring_destroy(struct gpu *g)
{
    const struct cuda_driver *d = g->driver;
    struct gpu_ring *ring = g->ring;

    for (unsigned i = 0; i < GPU_INPUTS; i++)
        if (ring->inputs[i].read)
            (void) d->event_destroy(ring->inputs[i].read);
    if (ring->queued)
        (void) d->event_destroy(ring->queued);
    if (ring->out)
        (void) d->stream_destroy(ring->out);
    if (ring->in)
        (void) d->stream_destroy(ring->in);
    if (ring->memory)
        (void) d->host_free(ring->memory);
}

void gpu_ring_free(struct gpu *g)
{
    struct gpu_ring *ring = g->ring;
    bool entered;

    if (!ring)
        return;

    (void) gpu_ring_finish(g, NULL);
    entered = cuda_space_enter(g->space, NULL) == 0;
    gpu_ring_free_copies(g, ring->first, entered);
    gpu_ring_free_copies(g, ring->unused, entered);
    if (entered) {
        gpu_ring_destroy(g);
        cuda_space_leave(g->space);
    }
    for (unsigned i = 0; i < GPU_INPUTS; i++)
        gpu_free(g, &ring->inputs[i].memory);
    arena_deinit(&ring->places);
    free(ring->items);
    free(ring);
    g->ring = NULL;
}
