/* See seq_resume.h. */
#include "client/sequence/seq_resume.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"

/* ---- unprotected pages ---- */

/* Whether the page lies in the present pool without a lease that the daemon has. */
static bool seq_resume_is_unprotected(const struct page *p)
{
    return p->place == PAGE_POOL && p->lease->forgotten && !p->extent->orphan;
}

static size_t seq_resume_first_unprotected(const struct kvc_seq *s)
{
    for (size_t i = 0; i < s->n_pages; i++)
        if (seq_resume_is_unprotected(s->pages[i]))
            return i;
    return SIZE_MAX;
}

static void seq_resume_mark_lost(struct kvc_client *c)
{
    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct kvc_seq *s = m->seqs; s; s = s->next)
            s->first_lost = seq_resume_first_unprotected(s);
}

/* ---- leasing them again ---- */

/* The same slot and generation hold the same bytes: the daemon raises the
 * generation before it writes a slot. */
static int seq_resume_protect_page(struct kvc_seq *s, size_t chunk, const Kvcobra__PageRef *ref,
                                   struct client_lease *lease, uint32_t item)
{
    struct page *p = s->pages[chunk];
    struct page_grant grant;
    int r;

    if (ref->slot != p->slot || ref->generation != p->generation)
        return -ESTALE;

    r = seq_map_granted(s, chunk, &p->key, ref, &grant);
    if (r < 0)
        return r;

    grant.lease = lease;
    grant.item = item;
    page_move_to_pool(s->model->client, p, &grant);
    return 0;
}

/* Uses the pages of a LEASE reply for @chunks; after the first that cannot be used all are given back. */
static int seq_resume_protect_granted(struct kvc_seq *s, const size_t *chunks, size_t n,
                                      const Kvcobra__LeaseReply *reply, struct client_lease *lease)
{
    int r = 0;

    lease->id = reply->lease;
    for (uint32_t i = 0; i < reply->n_pages && i < n; i++) {
        if (r == 0)
            r = seq_resume_protect_page(s, chunks[i], reply->pages[i], lease, i);
        if (r < 0)
            client_lease_drop(lease, i, 0);
    }
    if (r < 0)
        return r;

    return reply->n_pages < n ? -ESTALE : 0;
}

/* LEASE of @n unprotected pages of the sequence. Return: 0: all of them are protected. */
static int seq_resume_lease(struct kvc_seq *s, const size_t *chunks, size_t n)
{
    struct kvc_client *c = s->model->client;
    _cleanup_(freep) Kvcobra__LeaseItem *items = calloc(n, sizeof(*items));
    _cleanup_(freep) Kvcobra__LeaseItem **pointers = calloc(n, sizeof(*pointers));
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    struct client_lease *lease = client_leases_add(&c->leases);
    int r;

    if (!items || !pointers || !lease)
        return -ENOMEM;

    for (size_t i = 0; i < n; i++) {
        struct page *p = s->pages[chunks[i]];

        kvcobra__lease_item__init(&items[i]);
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, p->key.bytes};
        items[i].slot = p->slot;
        items[i].generation = p->generation;
        pointers[i] = &items[i];
    }

    r = seq_pool_lease(s, pointers, n, &reply);
    if (r < 0)
        return r;

    return seq_resume_protect_granted(s, chunks, n, reply.message->lease, lease);
}

/* Protects as many leading pages of the sequence as the daemon still has in their slots. */
static void seq_resume_protect(struct kvc_seq *s)
{
    size_t most = s->model->client->connection.items_per_message;
    _cleanup_(freep) size_t *chunks = calloc(most, sizeof(*chunks));
    int r = chunks && s->pages[s->first_lost]->has_key ? 0 : -ESTALE;

    while (r == 0) {
        size_t n = 0;

        for (size_t i = 0; i < s->n_pages && n < most; i++)
            if (seq_resume_is_unprotected(s->pages[i]))
                chunks[n++] = i;

        if (n == 0)
            break;

        r = seq_resume_lease(s, chunks, n);
    }

    s->first_lost = seq_resume_first_unprotected(s);
}

/* ---- the hooks ---- */

static void seq_resume_model_reopened(struct kvc_model *m)
{
    for (struct kvc_seq *s = m->seqs; s; s = s->next)
        if (s->first_lost != SIZE_MAX)
            seq_resume_protect(s);
}

static void seq_resume_index_key_changed(struct kvc_model *m)
{
    for (struct kvc_seq *s = m->seqs; s; s = s->next)
        for (size_t i = 0; i < s->n_pages; i++)
            s->pages[i]->has_key = false;
}

/* The new session has another arena: pages in the old one move to the heap. */
static int seq_resume_leave_arena(struct kvc_client *c)
{
    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct kvc_seq *s = m->seqs; s; s = s->next)
            for (size_t i = 0; i < s->n_pages; i++)
                if (s->pages[i]->place == PAGE_ARENA && page_move_to_heap(c, s->pages[i]) < 0)
                    return fail(&c->error, -ENOMEM,
                                "out of memory for pages that were in the arena of a lost session");
    session_deinit(&c->session);
    return 0;
}

static void seq_resume_update_references(struct kvc_client *c, bool same_session)
{
    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct model_table *t = m->tables; t; t = t->next)
            t->referenced = t->referenced && same_session;
}

static int seq_resume_reconnected(struct kvc_client *c, const struct resumption *how)
{
    bool same_session = how->resumed && how->same_daemon;
    int r = same_session ? 0 : seq_resume_leave_arena(c);

    if (r < 0)
        return r;

    seq_resume_update_references(c, same_session);
    if (!how->resumed)
        client_leases_forget(&c->leases);
    if (!how->same_pool)
        extents_orphan(&c->extents);
    seq_resume_mark_lost(c);
    if (how->resumed)
        r = client_leases_confirm(&c->leases, &c->connection, &c->error);
    for (struct kvc_model *m = c->models; r == 0 && m; m = m->next)
        if (m->remote.opened)
            (void) model_reopen(m); /* a model that the daemon cannot open now stays private */
    client_flush(c);

    return connection_is_open(&c->connection) ? r : -ENOTCONN;
}

const struct client_hooks seq_resume_hooks = {
    .reconnected = seq_resume_reconnected,
    .model_reopened = seq_resume_model_reopened,
    .index_key_changed = seq_resume_index_key_changed,
};
