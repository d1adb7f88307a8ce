/* Starting from what others published: keys, the index, one LEASE per batch. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/connection/reclaim.h"
#include "client/connection/reconnect.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"
#include "client/sequence/seq_pool.h"

struct found {
    struct chunk_key key;
    struct index_hit hit;
};

/* Leading chunks that the index has. A moved index is opened once more. */
static int seq_match_look_up(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks, struct found *found,
                             size_t *ret_n)
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

/* Adds the pages of a LEASE reply; those behind one that cannot be used are given back. */
static int seq_match_take_granted(struct kvc_seq *s, const Kvcobra__LeaseReply *reply,
                                  const struct found *found, size_t n, struct lease *lease)
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
            lease_drop(lease, i, 0);
    }
    return r;
}

/* @n_asked: n, or n + 1: the daemon counts why the chunk behind the found ones is missing. */
static int seq_match_lease_batch(struct kvc_seq *s, const struct found *found, size_t n, size_t n_asked)
{
    struct kvc_client *c = s->model->client;
    _cleanup_(freep) Kvcobra__LeaseItem *items = calloc(n_asked, sizeof(*items));
    _cleanup_(freep) Kvcobra__LeaseItem **pointers = calloc(n_asked, sizeof(*pointers));
    struct lease *lease = leases_add(&c->leases);
    Kvcobra__Lease body = KVCOBRA__LEASE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r;

    if (!items || !pointers || !lease)
        return fail(&c->error, -ENOMEM, "out of memory while leasing %zu pages", n);
    for (size_t i = 0; i < n_asked; i++) {
        kvcobra__lease_item__init(&items[i]);
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) found[i].key.bytes};
        items[i].slot = i < n ? found[i].hit.slot : UINT32_MAX;
        items[i].generation = i < n ? found[i].hit.generation : 0;
        pointers[i] = &items[i];
    }
    body.model = s->model->remote.handle;
    body.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, s->table->table->digest};
    body.items = pointers;
    body.n_items = n_asked;
    request.body_case = KVCOBRA__REQUEST__BODY_LEASE;
    request.lease = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_LEASE, &reply, &c->error);
    if (r < 0)
        return r;
    r = seq_match_take_granted(s, reply.message->lease, found, n, lease);
    reply_free(&reply);
    return r;
}

/*
 * Leases the @n found pages of @n_chunks in batches until one is granted short. What was granted before an
 * error stays. The first missing chunk goes along if there is room: it costs no message of its own.
 */
static int seq_match_lease_found(struct kvc_seq *s, const struct found *found, size_t n, size_t n_chunks)
{
    size_t batch = s->model->client->connection.items_per_message;

    for (size_t at = 0; at < n; at += batch) {
        size_t n_items = n - at < batch ? n - at : batch;
        bool ask = at + n_items == n && n < n_chunks && n_items < batch;
        int r = seq_match_lease_batch(s, found + at, n_items, n_items + ask);

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

static int match(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks)
{
    struct kvc_client *c = s->model->client;
    _cleanup_(freep) struct found *found = calloc(n_chunks, sizeof(*found));
    size_t n = 0;
    int r;

    if (!found || seq_reserve_pages(s, n_chunks) < 0)
        return fail(&c->error, -ENOMEM, "out of memory while matching %zu chunks", n_chunks);
    if (pressure_yield(s->model)) {
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
    if (s->gpu && seq_gpu_lengths_changed(s) ==
                      -EIO) /* what is only short of memory is tried again before it is used */
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
    if (s->eval)
        return fail(e, -EINVAL, "an evaluation sequence cannot start from published pages");
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length > 0)
            return fail(e, -EINVAL, "the sequence has tokens already: match before the first append");
    r = s->gpu ? gpu_check_not_capturing(s->model->client->gpu, e) : 0;
    if (r < 0)
        return r;
    n_chunks = n_tokens > 0 ? (n_tokens - 1) / CHUNK_TOKENS : 0; /* one token is left to compute */
    if (n_chunks > 0 && model_connect(s->model) == 0)
        r = match(s, tokens, n_chunks);
    if (r == -ENOTCONN && s->n_pages == 0 && model_connect(s->model) == 0) /* it was lost, and is back */
        r = match(s, tokens, n_chunks);
    /* pages that were granted are used whatever ended the run; without any, an error is the caller's to know,
     * but a page in lent memory that cannot be used here is a miss */
    if (r < 0 && r != -ENOTCONN && r != -EXDEV && (s->n_pages == 0 || r == -EIO))
        return r;
    errmsg_clear(e);
    *ret_n = s->n_pages * CHUNK_TOKENS;
    return 0;
}
