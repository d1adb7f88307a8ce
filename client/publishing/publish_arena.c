/* Publishing from host memory: the daemon copies pages out of the arena. See publish.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/publishing/publish.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"
#include "gpu/device.h"

struct publish_arena_staging {
    struct publish_batch b;
    size_t *staged; /* [b.n] arena offset of the copy of a page; SIZE_MAX: none */
};

/*
 * Copies pages from the heap, or from a pool that is gone, to the arena, from which the daemon reads.
 * Return: the number of leading pages of the batch that are in the arena. *@ret_err: why the next one is not:
 * -ENOSPC; -ENOMEM; 0: all are.
 */
static size_t publish_arena_stage(struct kvc_seq *s, struct publish_arena_staging *x, int *ret_err)
{
    struct kvc_client *c = s->model->client;
    const struct page_layout *layout = &s->table->layout;

    for (size_t i = 0; i < x->b.n; i++) {
        const struct page *p = s->pages[x->b.first + i];
        size_t off;

        if (p->place == PAGE_ARENA)
            continue;

        *ret_err = session_arena_take(&c->session, layout->slot_bytes[p->class], &off);
        if (*ret_err < 0)
            return i;

        x->staged[i] = off;
        memcpy((uint8_t *) extent_data(c->session.arena_extent) + off, p->bytes,
               layout->page_bytes[p->class]);
    }

    return x->b.n;
}

static void publish_arena_unstage(struct kvc_seq *s, struct publish_arena_staging *x)
{
    for (size_t i = 0; i < x->b.n; i++)
        if (x->staged[i] != SIZE_MAX)
            arena_give(&s->model->client->session.arena, x->staged[i],
                       s->table->layout.slot_bytes[class_of_chunk(x->b.first + i)]);
}

/* Writes headers and checksums of the pages that have a slot, into the arena, from which the daemon reads. */
static void publish_arena_fill(struct kvc_seq *s, struct publish_arena_staging *x)
{
    uint8_t *arena = extent_data(s->model->client->session.arena_extent);

    for (size_t i = 0; i < x->b.n_reserved; i++) {
        const struct page *p = s->pages[x->b.first + i];
        size_t off = x->staged[i] != SIZE_MAX ? x->staged[i] : p->arena_off;
        struct page_header h;

        if (x->b.exists[i])
            continue;

        seq_page_header(s, x->b.first + i, &p->key, &h);
        h.payload_crc32c = crc32c(arena + off + PAGE_HEADER_BYTES, (size_t) h.payload_bytes);
        page_header_store(&h, arena + off);
        x->b.commit[i].arena_offset = off;
    }
}

static int publish_arena_staged(struct kvc_seq *s, struct publish_arena_staging *x)
{
    struct errmsg *e = &s->model->client->error;
    int r = 0;

    x->b.n = publish_arena_stage(s, x, &r);
    if (x->b.n == 0 && r == -ENOSPC)
        return fail(
            e, r,
            "the arena has no room for a page to be published: commit the sequences whose pages fill it");
    if (x->b.n == 0)
        return fail(e, r, "out of memory for a page in the arena");

    r = publish_batch_reserve(s, &x->b);
    if (r < 0)
        return r;

    if (x->b.n_reserved > 0) {
        publish_arena_fill(s, x);
        r = publish_batch_commit(s, &x->b);
    }

    return r < 0 ? r : x->b.end_err;
}

int publish_arena(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n)
{
    struct publish_arena_staging x = {.staged = malloc(n * sizeof(*x.staged))};
    int r = publish_batch_init(&x.b, first, n);

    (void) until_ms; /* the daemon creates no extents in host memory on request */
    if (r < 0 || !x.staged) {
        r = fail(&s->model->client->error, -ENOMEM, "out of memory while publishing %zu pages", n);
    } else {
        for (size_t i = 0; i < n; i++)
            x.staged[i] = SIZE_MAX;
        r = publish_arena_staged(s, &x);
        publish_arena_unstage(s, &x);
        *ret_n = x.b.n;
    }

    publish_batch_deinit(&x.b);
    free(x.staged);
    return r;
}
