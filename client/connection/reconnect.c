/* Coming back to a daemon; see reconnect.h. */
#include "client/connection/reconnect.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"

/* ---- pages that nothing protects any more ---- */

/* Whether the page lies in the present pool without a lease that the daemon knows, or in memory that may be
 * anything. */
static bool reconnect_is_unprotected(const struct page *p)
{
    return p->place == PAGE_POOL && (p->extent->lost || (p->lease->forgotten && !p->extent->orphan));
}

static size_t reconnect_first_unprotected(const struct kvc_seq *s)
{
    for (size_t i = 0; i < s->n_pages; i++)
        if (reconnect_is_unprotected(s->pages[i]))
            return i;
    return SIZE_MAX;
}

static void reconnect_mark_lost(struct kvc_client *c)
{
    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct kvc_seq *s = m->seqs; s; s = s->next)
            s->first_lost = reconnect_first_unprotected(s);
}

/* The same slot and generation are the same bytes: a slot is given a new generation before it is written. */
static int reconnect_take_again(struct kvc_seq *s, size_t chunk, const Kvcobra__PageRef *ref,
                                struct lease *lease, uint32_t item)
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

/* LEASE of @n unprotected pages of the sequence. Return: 0: all of them are protected again. */
static int reconnect_lease_again(struct kvc_seq *s, const size_t *chunks, size_t n)
{
    struct kvc_client *c = s->model->client;
    _cleanup_(freep) Kvcobra__LeaseItem *items = calloc(n, sizeof(*items));
    _cleanup_(freep) Kvcobra__LeaseItem **pointers = calloc(n, sizeof(*pointers));
    struct lease *lease = leases_add(&c->leases);
    Kvcobra__Lease body = KVCOBRA__LEASE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
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
    body.model = s->model->remote.handle;
    body.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, s->table->table->digest};
    body.items = pointers;
    body.n_items = n;
    request.body_case = KVCOBRA__REQUEST__BODY_LEASE;
    request.lease = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_LEASE, &reply, &c->error);
    if (r < 0)
        return r;
    lease->id = reply.message->lease->lease;
    for (uint32_t i = 0; i < reply.message->lease->n_pages && i < n; i++) {
        if (r == 0)
            r = reconnect_take_again(s, chunks[i], reply.message->lease->pages[i], lease, i);
        if (r < 0)
            lease_drop(lease, i, 0);
    }
    if (r == 0 && reply.message->lease->n_pages < n)
        r = -ESTALE;
    reply_free(&reply);
    return r;
}

/* As many leading pages of the sequence as the daemon still has where they were. */
static void reconnect_find_again(struct kvc_seq *s)
{
    size_t most = s->model->client->connection.items_per_message;
    _cleanup_(freep) size_t *chunks = calloc(most, sizeof(*chunks));
    int r = chunks && s->pages[s->first_lost]->has_key ? 0 : -ESTALE;

    while (r == 0) {
        size_t n = 0;

        for (size_t i = 0; i < s->n_pages && n < most; i++) {
            if (!reconnect_is_unprotected(s->pages[i]))
                continue;
            if (s->pages[i]->extent->lost) /* nothing behind it is of use */
                break;
            chunks[n++] = i;
        }
        if (n == 0)
            break;
        r = reconnect_lease_again(s, chunks, n);
    }
    s->first_lost = reconnect_first_unprotected(s);
}

/* ---- models ---- */

static int reconnect_reopen(struct kvc_model *m)
{
    int r = model_remote_open(m);

    if (r < 0) {
        backoff_failed(&m->remote.backoff, clock_ms());
        return r;
    }
    m->remote.backoff = (struct backoff){0};
    model_tables_reference(m);
    for (struct kvc_seq *s = m->seqs; s; s = s->next)
        if (s->first_lost != SIZE_MAX)
            reconnect_find_again(s);
    return 0;
}

int model_connect(struct kvc_model *m)
{
    struct kvc_client *c = m->client;

    if (!m->remote.opened || client_revive(c) < 0)
        return -ENOTCONN;
    if (!model_is_connected(m) && backoff_is_over(&m->remote.backoff, clock_ms()))
        (void) reconnect_reopen(m);
    return model_is_connected(m) ? 0 : -ENOTCONN;
}

/* ---- the connection ---- */

/* The arena that the old session had is of no use to the new one. */
static int reconnect_leave_arena(struct kvc_client *c)
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

/* From what was before to what is now; then everything of ours is opened again as far as that goes. */
static int reconnect_settle(struct kvc_client *c, const struct resumption *how)
{
    bool same_session = how->resumed && how->same_daemon;
    int r = same_session ? 0 : reconnect_leave_arena(c);

    if (r < 0)
        return r;
    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct model_table *t = m->tables; t; t = t->next)
            t->referenced = t->referenced && same_session;
    if (!how->resumed)
        leases_forget(&c->leases);
    if (!how->same_pool || !how->same_daemon)
        extents_orphan(&c->extents, how->same_pool);
    reconnect_mark_lost(c);
    if (how->resumed)
        r = leases_confirm(&c->leases, &c->connection, &c->error);
    for (struct kvc_model *m = c->models; r == 0 && m; m = m->next)
        if (m->remote.opened)
            (void) reconnect_reopen(m); /* what the daemon has nothing for stays private */
    client_flush(c);
    return connection_is_open(&c->connection) ? r : -ENOTCONN;
}

int client_reconnect(struct kvc_client *c)
{
    struct resumption how;
    int r = connection_reopen(&c->connection, &how, &c->error);

    if (r < 0)
        return r;
    c->n_reconnects++;
    r = reconnect_settle(c, &how);
    if (r < 0) {
        connection_lose(&c->connection);
        return r;
    }
    errmsg_clear(&c->error);
    return 0;
}

int client_revive(struct kvc_client *c)
{
    struct connection *conn = &c->connection;
    int r;

    if (connection_is_open(conn))
        return 0;
    if (!conn->greeted)
        return fail(&c->error, -ENOTCONN, "not connected to kvcobrad: call kvc_client_connect() first");
    if (!backoff_is_over(&conn->backoff, clock_ms()))
        return fail(&c->error, -ENOTCONN,
                    "the connection to kvcobrad at %s is lost; %" PRIu32 " attempts to connect "
                    "again failed, the next one is due in %" PRId64 " ms",
                    conn->path, conn->backoff.n_failed, conn->backoff.next_ms - clock_ms());
    r = client_reconnect(c);
    return r < 0 ? (c->error.text[0] ? -ENOTCONN : fail(&c->error, -ENOTCONN, "kvcobrad is lost")) : 0;
}
