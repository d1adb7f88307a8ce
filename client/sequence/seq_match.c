/* See seq_match.h. */
#include "client/sequence/seq_match.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/model/model_filter.h"
#include "client/model/model_tables.h"
#include "client/sequence/reclaim.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_pool.h"
#include "client/sequence/seq_window.h"

enum { MATCH_LOOKUPS_MAX = 4 }; /* after LEASEs that granted a part of a window: each costs a message */

/* ---- checks and memory ---- */

/* Whether the sequence holds nothing but the matched chunks. */
static bool seq_match_is_unmixed(const struct kvc_seq *s)
{
    if (s->n_pages != s->n_matched)
        return false;
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length != s->n_matched * CHUNK_TOKENS)
            return false;
    return true;
}

static int seq_match_check(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens)
{
    struct errmsg *e = &s->model->client->error;
    int r;

    if (n_tokens > 0 && !tokens)
        return fail(e, -EINVAL, "kvc_seq_match: tokens is NULL");
    if (!s->ops->is_shareable)
        return fail(e, -EINVAL, "an evaluation sequence cannot start from published pages");
    if (!seq_match_is_unmixed(s))
        return fail(e, -EINVAL, "the sequence has tokens already: match before the first append");
    if (n_tokens < s->n_matched * CHUNK_TOKENS)
        return fail(e, -EINVAL, "the sequence holds %zu matched tokens, but the text has only %zu",
                    s->n_matched * CHUNK_TOKENS, n_tokens);

    r = s->ops->check_idle(s);
    if (r < 0)
        return r;

    r = seq_check_whole(s);
    if (r < 0)
        return r;

    return seq_derive_keys(s, tokens, s->n_matched);
}

int seq_match_init(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t n_leave,
                   struct seq_match *ret)
{
    size_t n, n_items;
    int r;

    *ret = (struct seq_match){.seq = s};
    r = seq_match_check(s, tokens, n_tokens);
    if (r < 0)
        return r;

    ret->first = ret->needed = ret->n_found = ret->n_chunks = s->n_matched;
    if (n_tokens > n_leave && (n_tokens - n_leave) / CHUNK_TOKENS > ret->first)
        ret->n_chunks = (n_tokens - n_leave) / CHUNK_TOKENS;
    if (ret->n_chunks == ret->first)
        return 0;

    n = ret->n_chunks - ret->first;
    n_items = n < WIRE_ITEMS_MAX ? n : WIRE_ITEMS_MAX;
    ret->found = calloc(n, sizeof(*ret->found));
    ret->items = calloc(n_items, sizeof(*ret->items));
    ret->pointers = calloc(n_items, sizeof(*ret->pointers));
    if (!ret->found || !ret->items || !ret->pointers || seq_reserve_pages(s, ret->n_chunks) < 0)
        return fail(&s->model->client->error, -ENOMEM, "out of memory while matching %zu chunks", n);

    return 0;
}

/* The reply of a LEASE does not come: the next flush frees its record. */
static void seq_match_forget_request(struct seq_match *m)
{
    if (m->lease)
        m->lease->is_awaited = false;
    m->lease = NULL;
}

void seq_match_deinit(struct seq_match *m)
{
    seq_match_forget_request(m);
    free(m->found);
    free(m->items);
    free(m->pointers);
    *m = (struct seq_match){.seq = NULL};
}

/* ---- the index ---- */

/* Whether chunk @i, whose key is known, is published. A moved index is opened again, once. */
static bool seq_match_has(struct seq_match *m, size_t i)
{
    struct kvc_model *model = m->seq->model;
    struct seq_match_found *f = &m->found[i - m->first];
    enum index_result result = index_lookup(&model->remote.reader, &f->key, &f->hit);

    if (result == INDEX_MOVED && !m->has_reopened) {
        m->err = model_remote_open(model);
        if (m->err < 0)
            return false;

        m->has_reopened = true;
        result = index_lookup(&model->remote.reader, &f->key, &f->hit);
    }

    if (result == INDEX_FOUND)
        return f->hit.page_class == (uint32_t) class_of_chunk(i);
    if (m->seq->fetch_ms == 0 || !model_filter_asks(model, &f->key))
        return false;

    f->hit = (struct index_hit){.slot = UINT32_MAX};
    return true;
}

static void seq_match_derive_key(struct seq_match *m, size_t i)
{
    const struct chunk_key *parent = NULL;

    if (i > m->first)
        parent = &m->found[i - m->first - 1].key;
    else if (i > 0)
        parent = &m->seq->pages[i - 1]->key;
    seq_chunk_key(m->seq, parent, m->tokens + i * CHUNK_TOKENS, &m->found[i - m->first].key);
}

static bool seq_match_has_next(void *ctx, size_t i)
{
    struct seq_match *m = ctx;

    seq_match_derive_key(m, i);
    return m->err == 0 && seq_match_has(m, i);
}

static bool seq_match_has_in_window(void *ctx, size_t i)
{
    struct seq_match *m = ctx;

    return m->err == 0 && seq_match_has(m, i);
}

/* Finds the longest text of at most @n_chunks. Return: 0; as model_remote_open(). */
static int seq_match_search(struct seq_match *m, size_t n_chunks)
{
    uint32_t window = m->seq->window;

    m->err = 0;
    m->has_reopened = false;
    m->n_found = seq_window_longest(window, m->first, n_chunks,
                                    window > 0 ? seq_match_has_in_window : seq_match_has_next, m, &m->needed);
    m->fetches = false;
    for (size_t i = m->needed; i < m->n_found; i++)
        m->fetches |= m->found[i - m->first].hit.slot == UINT32_MAX;
    return m->err;
}

int seq_match_look_up(struct seq_match *m, const uint32_t *tokens)
{
    struct kvc_seq *s = m->seq;
    int r;

    m->n_found = m->needed = m->first;
    m->n_lookups = 0;
    m->fetches = false;
    r = seq_check_whole(s); /* opening the connection again may have lost pages, and changed the keys */
    if (r == 0)
        r = seq_derive_keys(s, tokens, m->first);
    if (r != 0 || m->n_chunks == m->first || reclaim_yield(s->model))
        return r;

    m->tokens = tokens;
    for (size_t i = m->first; s->window > 0 && i < m->n_chunks; i++)
        seq_match_derive_key(m, i);
    r = seq_match_search(m, m->n_chunks);
    m->tokens = NULL;
    return r;
}

/* ---- leases ---- */

/* Whether the sequence has a part of a window. A query needs all of it. */
static bool seq_match_is_partial(const struct seq_match *m)
{
    size_t n = m->seq->n_pages;

    return m->needed > m->first && n > m->first && n < m->n_found &&
           seq_window_first(m->seq->window, n * CHUNK_TOKENS) < m->needed;
}

/* Gives up the granted part of a window, and finds a text that does without the chunk behind it. */
static int seq_match_shorten(struct seq_match *m)
{
    size_t n = m->seq->n_pages;

    seq_drop_pages(m->seq, m->first);
    m->has_ended = ++m->n_lookups >= MATCH_LOOKUPS_MAX;
    m->n_found = m->needed = m->first;
    return m->has_ended ? 0 : seq_match_search(m, n);
}

/* Pages without bytes in place of the chunks that are left out. */
static int seq_match_leave_out(struct seq_match *m)
{
    struct kvc_seq *s = m->seq;

    while (s->n_pages < m->needed) {
        struct page *p;

        if (page_absent(s->model->client, s->table, class_of_chunk(s->n_pages),
                        &m->found[s->n_pages - m->first].key, &p) < 0)
            return fail(&s->model->client->error, -ENOMEM, "out of memory while matching %zu chunks",
                        m->n_found);

        seq_add_page(s, p);
    }
    return 0;
}

int seq_match_request(struct seq_match *m, Kvcobra__Lease *ret)
{
    struct kvc_seq *s = m->seq;
    struct kvc_client *c = s->model->client;
    size_t batch = c->connection.items_per_message, n, n_items;
    int r = m->has_ended && seq_match_is_partial(m) ? seq_match_shorten(m) : 0;

    if (r == 0)
        r = seq_match_leave_out(m);
    if (r < 0)
        return r;

    n = m->n_found - s->n_pages;
    if (m->has_ended || n == 0)
        return 0;

    m->n_asked = n < batch ? n : batch;
    n_items = m->n_asked + (n < batch && m->n_found < m->n_chunks && m->n_lookups == 0);
    seq_match_forget_request(m);
    m->lease = client_leases_add(&c->leases);
    if (!m->lease)
        return fail(&c->error, -ENOMEM, "out of memory while leasing %zu pages", n);

    m->lease->is_awaited = true;
    for (size_t i = 0; i < n_items; i++) {
        struct seq_match_found *f = &m->found[s->n_pages - m->first + i];

        kvcobra__lease_item__init(&m->items[i]);
        m->items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, f->key.bytes};
        m->items[i].slot = i < n ? f->hit.slot : UINT32_MAX;
        m->items[i].generation = i < n ? f->hit.generation : 0;
        m->items[i].page_class = (uint32_t) class_of_chunk(s->n_pages + i);
        m->pointers[i] = &m->items[i];
    }

    seq_pool_lease_request(s, m->pointers, n_items, ret);
    ret->fetch_ms = m->fetches ? s->fetch_ms : 0;
    ret->compute_tokens_per_s = s->compute_tokens_per_s;
    ret->is_counted = (s->flags & KVC_SEQ_COUNTED) != 0;
    if (ret->fetch_ms > c->connection.request_ms / 5 * 4) /* a reply that is overdue ends the connection */
        ret->fetch_ms = c->connection.request_ms / 5 * 4;
    return 1;
}

static int seq_match_add_page(struct seq_match *m, uint32_t i, const Kvcobra__PageRef *ref)
{
    struct kvc_seq *s = m->seq;
    struct kvc_client *c = s->model->client;
    const struct chunk_key *key = &m->found[s->n_pages - m->first].key;
    struct page_grant grant;
    struct page *p;
    int r = seq_map_granted(s, s->n_pages, key, ref, &grant);

    if (r < 0)
        return r;

    grant.lease = m->lease;
    grant.item = i;
    r = page_leased(c, s->table, class_of_chunk(s->n_pages), key, &grant, &p);
    if (r < 0) {
        extents_put(&c->extents, grant.extent);
        return fail(&c->error, r, "out of memory for a leased page");
    }

    seq_add_page(s, p);
    return 0;
}

int seq_match_add_reply(struct seq_match *m, const Kvcobra__LeaseReply *reply)
{
    size_t n_granted = reply->n_pages < m->n_asked ? reply->n_pages : m->n_asked;
    int r = 0;

    m->lease->id = reply->lease;
    for (uint32_t i = 0; i < n_granted; i++) {
        if (r == 0)
            r = seq_match_add_page(m, i, reply->pages[i]);
        if (r < 0)
            client_lease_drop(m->lease, i, 0);
    }
    for (size_t i = n_granted; i < reply->n_pages && i < WIRE_ITEMS_MAX; i++)
        client_lease_drop(m->lease, (uint32_t) i, 0); /* the chunk after those asked for was there, too */

    m->has_ended = n_granted < m->n_asked || r < 0;
    seq_match_forget_request(m);
    return r;
}

/* ---- the result ---- */

static void seq_match_count_chunks(const struct seq_match *m)
{
    struct session_page *page = session_page(&m->seq->model->client->session);
    size_t n_hit = m->seq->n_pages > m->first ? m->seq->n_pages - m->needed : 0;

    if (!page || m->seq->flags & KVC_SEQ_COUNTED)
        return;
    atomic_fetch_add_explicit(&page->chunks_hit, n_hit, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->chunks_missed, m->n_chunks - m->seq->n_pages, memory_order_relaxed);
}

int seq_match_finish(struct seq_match *m, int r)
{
    struct kvc_seq *s = m->seq;
    struct kvc_client *c = s->model->client;
    bool added;

    if (seq_match_is_partial(m))
        seq_drop_pages(s, m->first);
    added = s->n_pages > m->first;
    s->n_matched = s->n_pages;
    if (added && m->needed > m->first)
        s->first_read = m->needed;
    for (uint32_t i = 0; added && i < seq_n_layers(s); i++) {
        s->layers[i].n_packed = s->n_pages;
        s->layers[i].length = s->n_pages * CHUNK_TOKENS;
    }

    seq_match_count_chunks(m);
    seq_match_forget_request(m);
    client_flush(c);
    if (added && s->ops->lengths_changed(s) == -EIO) /* after -ENOMEM it is repeated before it is used */
        return -EIO;
    if (r < 0 && r != -ENOTCONN && (!added || r == -EIO)) /* without a page the caller gets the error */
        return r;

    errmsg_clear(&c->error);
    return 0;
}

/* ---- the call that waits ---- */

static int seq_match_lease(struct seq_match *m, const uint32_t *tokens)
{
    struct kvc_client *c = m->seq->model->client;
    int r = seq_match_look_up(m, tokens);

    while (r == 0) {
        _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
        Kvcobra__Lease lease;

        r = seq_match_request(m, &lease);
        if (r <= 0)
            break;

        r = connection_call(&c->connection, KVCOBRA__REQUEST__BODY_LEASE, &lease, KVCOBRA__REPLY__BODY_LEASE,
                            &reply, &c->error);
        if (r == 0)
            r = seq_match_add_reply(m, reply.message->lease);
    }

    return r;
}

static int seq_match_run(struct seq_match *m, const uint32_t *tokens)
{
    struct kvc_seq *s = m->seq;
    int r;

    if (m->n_chunks == m->first)
        return 0;
    if (model_connect(s->model) < 0) {
        errmsg_clear(&s->model->client->error);
        return 0;
    }

    r = seq_match_lease(m, tokens);
    if (r == -ENOTCONN && seq_match_is_partial(m))
        seq_drop_pages(s, m->first);
    if (r == -ENOTCONN && s->n_pages == m->first && model_connect(s->model) == 0) /* lost, and open again */
        r = seq_match_lease(m, tokens);
    return seq_match_finish(m, r);
}

int kvc_seq_match(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_n)
{
    _cleanup_(seq_match_deinit) struct seq_match m = {.seq = NULL};
    int r = seq_enter(s);

    if (r < 0)
        return r;
    if (!ret_n)
        return fail(&s->model->client->error, -EINVAL, "kvc_seq_match: ret_n is NULL");

    r = seq_match_init(s, tokens, n_tokens, 1, &m); /* the caller computes at least one token */
    if (r < 0)
        return r;

    r = seq_match_run(&m, tokens);
    if (r < 0)
        return r;

    *ret_n = s->n_matched * CHUNK_TOKENS;
    return 0;
}
