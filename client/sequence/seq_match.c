/* Starting a sequence from published pages: keys, the index, one LEASE per batch. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/model/model_tables.h"
#include "client/sequence/reclaim.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_pool.h"

/* A chunk that the index has. */
struct seq_match_found {
    struct chunk_key key;
    struct index_hit hit;
};

/* Finds the leading chunks that the index has. A moved index is opened again, once. */
static int seq_match_look_up(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks,
                             struct seq_match_found *found, size_t *ret_n)
{
    struct kvc_model *m = s->model;
    bool reopened = false;
    size_t n = 0;

    while (n < n_chunks) {
        enum index_result result;

        seq_chunk_key(s, n > 0 ? &found[n - 1].key : NULL, tokens + n * CHUNK_TOKENS, &found[n].key);
        result = index_lookup(&m->remote.reader, &found[n].key, &found[n].hit);
        if (result == INDEX_MOVED && !reopened) {
            int r = model_remote_open(m);

            if (r < 0)
                return r;

            reopened = true;
            continue;
        }

        if (result != INDEX_FOUND || found[n].hit.page_class != (uint32_t) class_of_chunk(n))
            break;

        n++;
    }

    *ret_n = n;
    return 0;
}

/* Adds the pages of a LEASE reply. The first page that cannot be used, and all after it, are released. */
static int seq_match_add_granted(struct kvc_seq *s, const Kvcobra__LeaseReply *reply,
                                 const struct seq_match_found *found, size_t n, struct client_lease *lease)
{
    struct kvc_client *c = s->model->client;
    size_t n_granted = reply->n_pages < n ? reply->n_pages : n;
    int r = 0;

    lease->id = reply->lease;
    for (uint32_t i = 0; i < n_granted; i++) {
        size_t chunk = s->n_pages;
        struct page_grant grant;
        struct page *p;

        if (r == 0)
            r = seq_map_granted(s, chunk, &found[i].key, reply->pages[i], &grant);
        if (r == 0) {
            grant.lease = lease;
            grant.item = i;
            r = page_leased(c, s->table, class_of_chunk(chunk), &found[i].key, &grant, &p);
            if (r < 0)
                extents_put(&c->extents, grant.extent);
        }
        if (r == 0)
            seq_add_page(s, p);
        else
            client_lease_drop(lease, i, 0);
    }

    return r;
}

/* @n_items: n, or n + 1: the daemon counts the reason why the chunk after the found ones is missing. */
static int seq_match_lease_batch(struct kvc_seq *s, const struct seq_match_found *found, size_t n,
                                 size_t n_items)
{
    struct kvc_client *c = s->model->client;
    _cleanup_(freep) Kvcobra__LeaseItem *items = calloc(n_items, sizeof(*items));
    _cleanup_(freep) Kvcobra__LeaseItem **pointers = calloc(n_items, sizeof(*pointers));
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    struct client_lease *lease = client_leases_add(&c->leases);
    int r;

    if (!items || !pointers || !lease)
        return fail(&c->error, -ENOMEM, "out of memory while leasing %zu pages", n);

    for (size_t i = 0; i < n_items; i++) {
        kvcobra__lease_item__init(&items[i]);
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) found[i].key.bytes};
        items[i].slot = i < n ? found[i].hit.slot : UINT32_MAX;
        items[i].generation = i < n ? found[i].hit.generation : 0;
        pointers[i] = &items[i];
    }

    r = seq_pool_lease(s, pointers, n_items, &reply);
    if (r < 0)
        return r;

    return seq_match_add_granted(s, reply.message->lease, found, n, lease);
}

/*
 * Leases the @n found pages of @n_chunks in batches, until a batch is granted only in part. Pages granted
 * before an error stay. The first missing chunk is added to the last batch if there is room: it costs no
 * message of its own.
 */
static int seq_match_lease_found(struct kvc_seq *s, const struct seq_match_found *found, size_t n,
                                 size_t n_chunks)
{
    size_t batch = s->model->client->connection.items_per_message;

    for (size_t at = 0; at < n; at += batch) {
        size_t n_items = n - at < batch ? n - at : batch;
        bool adds_missing = at + n_items == n && n < n_chunks && n_items < batch;
        int r = seq_match_lease_batch(s, found + at, n_items, n_items + adds_missing);

        if (r < 0 || s->n_pages < at + n_items)
            return r;
    }
    return 0;
}

static void seq_match_count_chunks(struct kvc_client *c, size_t n_hit, size_t n_missed)
{
    struct session_page *page = session_page(&c->session);

    if (!page)
        return;
    atomic_fetch_add_explicit(&page->chunks_hit, n_hit, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->chunks_missed, n_missed, memory_order_relaxed);
}

static int seq_match_chunks(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks)
{
    struct kvc_client *c = s->model->client;
    _cleanup_(freep) struct seq_match_found *found = calloc(n_chunks, sizeof(*found));
    size_t n = 0;
    int r;

    if (!found || seq_reserve_pages(s, n_chunks) < 0)
        return fail(&c->error, -ENOMEM, "out of memory while matching %zu chunks", n_chunks);

    if (reclaim_yield(s->model)) {
        client_flush(c);
        seq_match_count_chunks(c, 0, n_chunks);
        return 0;
    }

    r = seq_match_look_up(s, tokens, n_chunks, found, &n);
    if (r == 0)
        r = seq_match_lease_found(s, found, n, n_chunks);
    for (uint32_t i = 0; i < seq_n_layers(s); i++) {
        s->layers[i].n_packed = s->n_pages;
        s->layers[i].length = s->n_pages * CHUNK_TOKENS;
    }

    seq_match_count_chunks(c, s->n_pages, n_chunks - s->n_pages);
    client_flush(c);
    if (s->ops->lengths_changed(s) == -EIO) /* after -ENOMEM it is repeated before the sequence is used */
        return -EIO;

    return r;
}

int kvc_seq_match(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_n)
{
    int r = seq_enter(s);
    struct errmsg *e;
    size_t n_chunks;

    if (r < 0)
        return r;

    e = &s->model->client->error;
    if (!ret_n || (n_tokens > 0 && !tokens))
        return fail(e, -EINVAL, "kvc_seq_match: tokens or ret_n is NULL");
    if (!s->ops->is_shareable)
        return fail(e, -EINVAL, "an evaluation sequence cannot start from published pages");

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length > 0)
            return fail(e, -EINVAL, "the sequence has tokens already: match before the first append");
    r = s->ops->check_idle(s);
    if (r < 0)
        return r;

    n_chunks = n_tokens > 0 ? (n_tokens - 1) / CHUNK_TOKENS : 0; /* the caller computes at least one token */
    if (n_chunks > 0 && model_connect(s->model) == 0)
        r = seq_match_chunks(s, tokens, n_chunks);
    if (r == -ENOTCONN && s->n_pages == 0 && model_connect(s->model) == 0) /* lost, and open again */
        r = seq_match_chunks(s, tokens, n_chunks);
    /* Granted pages are used also after an error. Without any the caller gets the error, but a page in
     * external memory that this client cannot use is a miss. */
    if (r < 0 && r != -ENOTCONN && r != -EXDEV && (s->n_pages == 0 || r == -EIO))
        return r;

    errmsg_clear(e);
    *ret_n = s->n_pages * CHUNK_TOKENS;
    return 0;
}
