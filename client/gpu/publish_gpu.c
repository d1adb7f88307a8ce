/*
 * Publishing from GPU memory: the client copies pages into their slots on its stream, device to device,
 * and sends their checksums to the daemon (client/publishing/publish.h). The daemon reads none of the
 * bytes, so the client sends COMMIT and ABORT only after the copies have ended: from then on other
 * clients may read or write the slots.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "client/connection/clock.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/seq_gpu.h"
#include "client/publishing/publish.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"
#include "gpu/cuda/extent.h"

enum { STEP_MS = 5, STEP_MS_MAX = 80 };

struct publish_gpu_filling {
    struct publish_batch b;
    struct mapped_extent **extents; /* [b.n] of the slots, one page counted in each; NULL: none */
    const uint8_t **payloads;       /* [n_filled] in slots, on the device */
    size_t n_filled;                /* pages that did not exist already */
    struct gpu_memory work;         /* payloads, then uint32_t [n_filled] of checksums */
};

static void publish_gpu_filling_deinit(struct kvc_seq *s, struct publish_gpu_filling *f)
{
    struct kvc_client *c = s->model->client;

    for (size_t i = 0; f->extents && i < f->b.n_reserved; i++)
        if (f->extents[i])
            extents_put(&c->extents, f->extents[i]);
    gpu_free(c->gpu, &f->work);
    free(f->extents);
    free(f->payloads);
    publish_batch_deinit(&f->b);
}

/* ---- filling slots ---- */

/* Queues the copy of chunk @i of the batch into its slot. */
static int publish_gpu_fill_slot(struct kvc_seq *s, struct publish_gpu_filling *f, size_t i)
{
    struct kvc_client *c = s->model->client;
    const struct publish_slot *slot = &f->b.slots[i];
    enum page_class class = class_of_chunk(f->b.first + i);
    size_t page_bytes = s->table->layout.page_bytes[class];
    struct mapped_extent *x;
    cu_ptr to;
    int r;

    r = extents_get(&c->extents, &c->connection, slot->extent, &x, &c->error);
    if (r < 0)
        return r;

    f->extents[i] = x;
    if (slot->bytes != page_bytes || slot->offset % PAGE_ALIGN != 0 ||
        !range_inside(slot->offset, page_bytes, x->bytes))
        return fail(&c->error, -EPROTO,
                    "kvcobrad reserved %" PRIu64 " bytes at %" PRIu64 " of an extent of %zu: a page has %zu",
                    slot->bytes, slot->offset, x->bytes, page_bytes);

    r = gpu_result(c->gpu, cuda_extent_allow_write(x->cuda_extent, &c->error), &c->error);
    if (r < 0)
        return r;

    to = x->device + slot->offset + PAGE_HEADER_BYTES;
    f->payloads[f->n_filled++] = (const uint8_t *) (uintptr_t) to;
    return gpu_copy(c->gpu, to, s->pages[f->b.first + i]->device + PAGE_HEADER_BYTES,
                    page_bytes - PAGE_HEADER_BYTES, &c->error);
}

/* Queues the checksums of @n payloads of one class, from the @at-th on. */
static int publish_gpu_queue_crc(struct kvc_seq *s, struct publish_gpu_filling *f, size_t at, size_t n,
                                 enum page_class class)
{
    struct kvc_client *c = s->model->client;
    cu_ptr payloads = f->work.at, sums = payloads + f->n_filled * sizeof(*f->payloads);
    struct launch_crc p = {
        .payloads = (const uint8_t *const *) (uintptr_t) (payloads + at * sizeof(*f->payloads)),
        .crc32c = (uint32_t *) (uintptr_t) (sums + at * sizeof(uint32_t)),
        .bytes = s->table->layout.payload_bytes[class],
        .n = (uint32_t) n,
    };

    if (n == 0)
        return 0;

    return gpu_result(c->gpu, cuda_crc(c->gpu->kernels, &p, c->gpu->stream, &c->error), &c->error);
}

/* Checksums of the payloads in the slots; waits for the copies. */
static int publish_gpu_checksums(struct kvc_seq *s, struct publish_gpu_filling *f, uint32_t *ret)
{
    struct kvc_client *c = s->model->client;
    size_t n_first = f->b.first == 0 && !f->b.exists[0]; /* the first page has sinks, its payload is longer */
    cu_ptr sums;
    int r;

    r = gpu_alloc(c->gpu, f->n_filled * (sizeof(*f->payloads) + sizeof(uint32_t)), &f->work, &c->error);
    if (r < 0)
        return r;

    sums = f->work.at + f->n_filled * sizeof(*f->payloads);
    r = gpu_write(c->gpu, f->work.at, f->payloads, f->n_filled * sizeof(*f->payloads), &c->error);
    if (r == 0)
        r = publish_gpu_queue_crc(s, f, 0, n_first, PAGE_FIRST);
    if (r == 0)
        r = publish_gpu_queue_crc(s, f, n_first, f->n_filled - n_first, PAGE_REST);
    return r < 0 ? r : gpu_read(c->gpu, ret, sums, f->n_filled * sizeof(*ret), &c->error);
}

static int publish_gpu_fill(struct kvc_seq *s, struct publish_gpu_filling *f)
{
    uint32_t sums[WIRE_ITEMS_MAX] = {0};
    size_t at = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < f->b.n_reserved; i++)
        if (!f->b.exists[i])
            r = publish_gpu_fill_slot(s, f, i);
    if (r == 0 && f->n_filled > 0)
        r = publish_gpu_checksums(s, f, sums);
    for (size_t i = 0; r == 0 && i < f->b.n_reserved; i++)
        if (!f->b.exists[i])
            f->b.commit[i].payload_crc32c = sums[at++];
    return r;
}

/* ---- the batch ---- */

/* Whether the daemon is creating an extent for the batch. */
static bool publish_gpu_awaits_extent(int r, const struct publish_batch *b)
{
    return r == -EAGAIN || (r == 0 && b->n_reserved == 0 && b->end_err == -EAGAIN && b->awaited_bytes == 0);
}

/*
 * The daemon needs some milliseconds to create an extent, and RESERVE returns -EAGAIN meanwhile: the
 * client repeats it until @until_ms. After a wait without success later commits do not wait for some
 * time: the -EAGAIN has another cause.
 */
static int publish_gpu_reserve(struct kvc_seq *s, struct publish_batch *b, int64_t until_ms)
{
    struct backoff *creation = &s->model->client->extent_creation;
    bool may_wait = backoff_is_over(creation, clock_ms());
    int step_ms = STEP_MS, r = publish_batch_reserve(s, b);

    while (publish_gpu_awaits_extent(r, b) && may_wait && clock_ms() + step_ms <= until_ms) {
        (void) poll(NULL, 0, step_ms);
        step_ms = step_ms < STEP_MS_MAX ? 2 * step_ms : STEP_MS_MAX;
        r = publish_batch_reserve(s, b);
    }

    if (!publish_gpu_awaits_extent(r, b))
        *creation = (struct backoff){0};
    else if (may_wait)
        backoff_failed(creation, clock_ms());
    return r;
}

/* The slots must not go to another client while a copy into them runs. If the GPU cannot be waited for, they
 * stay reserved until this process ends. */
static void publish_gpu_give_back(struct kvc_seq *s, struct publish_batch *b)
{
    if (gpu_synchronize(s->model->client->gpu, NULL) == 0)
        publish_batch_abort(s, b);
}

/* Waits for the kernels that store inputs and check them, so that copies begin as
 * soon as slots are reserved. */
static int publish_gpu_check_inputs(struct kvc_seq *s)
{
    int r = gpu_flags_read(s->model->client->gpu, &s->model->client->error);

    return r < 0 ? r : seq_sound_update(s, &s->gpu->sound);
}

static int publish_gpu_batch(struct kvc_seq *s, struct publish_gpu_filling *f, int64_t until_ms)
{
    int r = publish_gpu_check_inputs(s);

    if (r == 0)
        r = publish_gpu_reserve(s, &f->b, until_ms);
    if (r < 0 || f->b.n_reserved == 0)
        return r < 0 ? r : f->b.end_err;

    r = publish_gpu_fill(s, f);
    if (r < 0) {
        publish_gpu_give_back(s, &f->b);
        return r;
    }

    r = publish_batch_commit(s, &f->b);
    /* the caller publishes the other chunks, and waits for an extent */
    if (r == 0 && f->b.end_err == -EAGAIN && f->b.awaited_bytes == 0)
        f->b.n = f->b.n_reserved;
    else if (r == 0)
        r = f->b.end_err;
    return r;
}

int publish_gpu(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n)
{
    struct publish_gpu_filling f = {.extents = calloc(n, sizeof(struct mapped_extent *)),
                                    .payloads = calloc(n, sizeof(uint8_t *))};
    int r = publish_batch_init(&f.b, first, n);

    if (r == 0 && f.extents && f.payloads)
        r = publish_gpu_batch(s, &f, until_ms);
    else
        r = fail(&s->model->client->error, -ENOMEM, "out of memory while publishing %zu pages", n);
    *ret_n = f.b.n;
    publish_gpu_filling_deinit(s, &f);
    return r;
}
