/* See seq_pages.h. */
#include "client/sequence/seq_pages.h"

#include <errno.h>
#include <stdlib.h>

#include "client/sequence/seq_ops.h"

int seq_reserve_pages(struct kvc_seq *s, size_t n)
{
    size_t max = s->n_pages_max ? s->n_pages_max : 64;
    struct page **pages;
    const uint8_t **payloads;

    if (n <= s->n_pages_max)
        return 0;

    while (max < n)
        max *= 2;
    pages = realloc(s->pages, max * sizeof(*pages));
    if (!pages)
        return -ENOMEM;

    s->pages = pages;
    payloads = realloc(s->payloads, max * sizeof(*payloads));
    if (!payloads)
        return -ENOMEM;

    s->payloads = payloads;
    s->n_pages_max = max;
    return 0;
}

void seq_add_page(struct kvc_seq *s, struct page *p)
{
    s->payloads[s->n_pages] = page_payload(p);
    s->pages[s->n_pages++] = p;
}

static int seq_pages_no_space(const struct kvc_seq *s, size_t n_pages)
{
    struct kvc_client *c = s->model->client;
    size_t slot_bytes = s->table->layout.slot_bytes[PAGE_REST];

    if ((n_pages - s->n_pages) * slot_bytes > c->session.arena.bytes)
        return fail(&c->error, -ENOSPC,
                    "%zu pages of %zu bytes do not fit into the arena of %zu bytes: append in smaller pieces",
                    n_pages - s->n_pages, slot_bytes, c->session.arena.bytes);
    return fail(&c->error, -ENOSPC,
                "the arena is full: %zu of %zu bytes are free, %zu more pages of %zu bytes are needed; "
                "commit and try again",
                c->session.arena.free_bytes, c->session.arena.bytes, n_pages - s->n_pages, slot_bytes);
}

int seq_claim(struct kvc_seq *s, size_t n_pages)
{
    struct kvc_client *c = s->model->client;
    bool in_arena = s->ops->uses_arena && model_is_connected(s->model) && !s->on_heap;
    size_t before = s->n_pages;
    int r;

    r = seq_reserve_pages(s, n_pages);
    while (r == 0 && s->n_pages < n_pages) {
        struct page *p;

        r = page_claim(c, s->table, s->n_pages == 0 ? PAGE_FIRST : PAGE_REST, in_arena, &p);
        if (r == 0)
            seq_add_page(s, p);
    }
    if (r == 0)
        return 0;

    seq_drop_pages(s, before);
    if (r == -ENOSPC)
        return seq_pages_no_space(s, n_pages);
    if (c->gpu && c->error.text[0]) /* the sentence names the memory that is full: the host's or the GPU's */
        return r;

    return fail(&c->error, r, "out of memory for %zu pages", n_pages - before);
}

void seq_drop_pages(struct kvc_seq *s, size_t n)
{
    s->ops->pages_dropped(s, n);
    while (s->n_pages > n)
        page_unref(s->model->client, s->pages[--s->n_pages]);
}

const uint8_t *const *seq_payloads(struct kvc_seq *s)
{
    uint64_t moved = s->model->client->pages_moved;

    if (s->pages_moved != moved) {
        for (size_t i = 0; i < s->n_pages; i++)
            s->payloads[i] = page_payload(s->pages[i]);
        s->pages_moved = moved;
    }
    return s->payloads;
}

size_t seq_truncate_pages(struct kvc_seq *s, size_t n)
{
    size_t n_encoded, needed;

    n = seq_cut(s, n);
    n_encoded = seq_n_encoded_most(s);
    needed = seq_n_pages_needed(s, n);
    seq_drop_pages(s, n_encoded > needed ? n_encoded : needed);
    if (s->n_pages <= s->first_lost)
        s->first_lost = SIZE_MAX;

    return n;
}
