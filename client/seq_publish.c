/*
 * Publishing: whole chunks, parents first, in batches of RESERVE, fill, COMMIT. A page that somebody else published
 * first is leased in place of ours. What the daemon refuses stays private, and the sequence goes on.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/client.h"
#include "client/pressure.h"
#include "client/reconnect.h"
#include "client/seq.h"
#include "client/seq_pool.h"
#include "gpu/device.h"

struct batch {
    size_t first, n;            /* chunks */
    size_t n_reserved;          /* leading ones that got a slot */
    int end_err;                /* why not all of them */
    bool *exists;
    Kvcobra__ReserveItem *reserve;
    Kvcobra__CommitItem *commit;
    size_t *staged;             /* arena place of a page that lives on the heap; SIZE_MAX: none */
    void **pointers;            /* protobuf-c wants arrays of pointers */
};

static void batch_deinit(struct batch *b)
{
    free(b->exists);
    free(b->reserve);
    free(b->commit);
    free(b->staged);
    free(b->pointers);
}

static int batch_init(struct batch *b, size_t first, size_t n)
{
    *b = (struct batch) {
        .first = first, .n = n,
        .exists = calloc(n, sizeof(*b->exists)),
        .reserve = calloc(n, sizeof(*b->reserve)),
        .commit = calloc(n, sizeof(*b->commit)),
        .staged = calloc(n, sizeof(*b->staged)),
        .pointers = calloc(n, sizeof(*b->pointers)),
    };
    if (!b->exists || !b->reserve || !b->commit || !b->staged || !b->pointers)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        kvcobra__reserve_item__init(&b->reserve[i]);
        kvcobra__commit_item__init(&b->commit[i]);
        b->staged[i] = SIZE_MAX;
    }
    return 0;
}

/* ---- steps of a batch -------------------------------------------------------------------------------------------- */

static int reserve(struct kvc_seq *s, struct batch *b)
{
    struct kvc_client *c = s->model->client;
    Kvcobra__Reserve body = KVCOBRA__RESERVE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    const Kvcobra__ReserveReply *got;
    struct reply reply;
    int r;

    for (size_t i = 0; i < b->n; i++) {
        b->reserve[i].key = (ProtobufCBinaryData) { CHUNK_KEY_BYTES, s->pages[b->first + i]->key.bytes };
        b->reserve[i].page_class = class_of_chunk(b->first + i);
        b->pointers[i] = &b->reserve[i];
    }
    body.model = s->model->remote.handle;
    body.table_digest = (ProtobufCBinaryData) { DIGEST_BYTES, s->table->table->digest };
    body.items = (Kvcobra__ReserveItem **) b->pointers;
    body.n_items = b->n;
    request.body_case = KVCOBRA__REQUEST__BODY_RESERVE;
    request.reserve = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_RESERVE, &reply, &c->error);
    if (r < 0)
        return r;
    got = reply.message->reserve;
    b->n_reserved = got->n_slots < b->n ? got->n_slots : b->n;
    b->end_err = b->n_reserved < b->n ? (got->end_err < 0 ? got->end_err : -ENOSPC) : 0;
    for (size_t i = 0; i < b->n_reserved; i++) {
        b->exists[i] = i < got->n_exists && got->exists[i];
        b->commit[i].slot = got->slots[i]->slot;
        b->commit[i].generation = got->slots[i]->generation;
        b->commit[i].key = b->reserve[i].key;
    }
    if (b->end_err < 0)
        (void) fail(&c->error, b->end_err, "kvcobrad takes %zu of %zu pages, the others stay private: %s",
                    b->n_reserved, b->n,
                    reply.message->message[0] ? reply.message->message : strerror(-b->end_err));
    reply_free(&reply);
    return 0;
}

/*
 * Pages that were made on the heap, or lie in a pool that is gone, are copied to the arena for the daemon to read:
 * leading pages of the batch for which there is a place.
 */
static size_t stage(struct kvc_seq *s, struct batch *b)
{
    struct kvc_client *c = s->model->client;
    const struct page_layout *layout = &s->table->layout;

    for (size_t i = 0; i < b->n; i++) {
        const struct page *p = s->pages[b->first + i];
        size_t off;

        if (p->place == PAGE_ARENA)
            continue;
        if (!arena_take(&c->session.arena, layout->slot_bytes[p->class], &off))
            return i;
        b->staged[i] = off;
        memcpy((uint8_t *) extent_data(c->session.arena_extent) + off, p->bytes, layout->page_bytes[p->class]);
    }
    return b->n;
}

static void unstage(struct kvc_seq *s, struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->staged[i] != SIZE_MAX)
            arena_give(&s->model->client->session.arena, b->staged[i],
                       s->table->layout.slot_bytes[class_of_chunk(b->first + i)]);
}

/* Headers and checksums of what has a slot now, where the daemon will read it. */
static void fill(struct kvc_seq *s, struct batch *b)
{
    uint8_t *arena = extent_data(s->model->client->session.arena_extent);

    for (size_t i = 0; i < b->n_reserved; i++) {
        const struct page *p = s->pages[b->first + i];
        size_t off = b->staged[i] != SIZE_MAX ? b->staged[i] : p->arena_off;
        struct page_header h;

        if (b->exists[i])
            continue;
        seq_page_header(s, b->first + i, &p->key, &h);
        h.payload_crc32c = crc32c(arena + off + PAGE_HEADER_BYTES, (size_t) h.payload_bytes);
        page_header_store(&h, arena + off);
        b->commit[i].arena_offset = off;
    }
}

/* A COMMIT that failed as a whole leaves reservations: given back, if there is still somebody to give them to. */
static void abort_all(struct kvc_seq *s, struct batch *b)
{
    _cleanup_(freep) Kvcobra__AbortItem *items = calloc(b->n, sizeof(*items));
    Kvcobra__Abort body = KVCOBRA__ABORT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

    if (!items || !model_is_connected(s->model))
        return; /* reservations expire */
    for (size_t i = 0; i < b->n_reserved; i++) {
        if (b->exists[i])
            continue;
        kvcobra__abort_item__init(&items[i]);
        items[i].slot = b->commit[i].slot;
        items[i].generation = b->commit[i].generation;
        b->pointers[body.n_items++] = &items[i];
    }
    if (body.n_items == 0)
        return;
    body.items = (Kvcobra__AbortItem **) b->pointers;
    request.body_case = KVCOBRA__REQUEST__BODY_ABORT;
    request.abort = &body;
    (void) connection_tell(&s->model->client->connection, &request, NULL);
}

/*
 * The first @n pages of the batch are the pool's now, as far as the daemon took them; @words: its sentence about one
 * that it did not. Return: the first error.
 */
static int take_committed(struct kvc_seq *s, struct batch *b, size_t n, const Kvcobra__CommitReply *reply,
                          const char *words, struct lease *lease)
{
    struct kvc_client *c = s->model->client;
    int first_err = 0;

    lease->id = reply->lease;
    for (uint32_t i = 0; i < n; i++) {
        struct page *p = s->pages[b->first + i];
        struct page_grant grant;
        int r;

        if (i >= reply->n_errs || i >= reply->n_pages)
            r = fail(&c->error, -EPROTO, "kvcobrad answered for %zu of %zu pages", reply->n_errs, n);
        else if (reply->errs[i] < 0)
            r = fail(&c->error, reply->errs[i], "kvcobrad refused chunk %zu, it stays private: %s", b->first + i,
                     words[0] ? words : strerror(-reply->errs[i]));
        else {
            r = seq_map_granted(s, b->first + i, &p->key, reply->pages[i], &grant);
            if (r < 0)
                lease_drop(lease, i, 0);
        }
        if (r == 0) {
            grant.lease = lease;
            grant.item = i;
            page_move_to_pool(c, p, &grant);
        } else if (first_err == 0) {
            first_err = r;
        }
    }
    return first_err;
}

static int commit_batch(struct kvc_seq *s, struct batch *b, size_t n)
{
    struct kvc_client *c = s->model->client;
    struct lease *lease = leases_add(&c->leases);
    Kvcobra__Commit body = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r;

    if (!lease)
        return fail(&c->error, -ENOMEM, "out of memory while publishing %zu pages", n);
    for (size_t i = 0; i < n; i++)
        b->pointers[i] = &b->commit[i];
    body.model = s->model->remote.handle;
    body.items = (Kvcobra__CommitItem **) b->pointers;
    body.n_items = n;
    request.body_case = KVCOBRA__REQUEST__BODY_COMMIT;
    request.commit = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_COMMIT, &reply, &c->error);
    if (r < 0) {
        abort_all(s, b);
        return r;
    }
    r = take_committed(s, b, n, reply.message->commit, reply.message->message, lease);
    reply_free(&reply);
    return r;
}

/* Publishes @n chunks, or the leading ones for which the arena has room. Return: 0 with *ret_n; else why not. */
static int publish_batch(struct kvc_seq *s, size_t first, size_t n, size_t *ret_n)
{
    struct errmsg *e = &s->model->client->error;
    struct batch b;
    int r = batch_init(&b, first, n);

    if (r < 0) {
        batch_deinit(&b);
        return fail(e, r, "out of memory while publishing %zu pages", n);
    }
    b.n = stage(s, &b);
    if (b.n == 0)
        r = fail(e, -ENOSPC, "the arena has no room for a page that waits to be published: commit the sequences that "
                 "fill it");
    if (r == 0)
        r = reserve(s, &b);
    if (r == 0 && b.n_reserved > 0) {
        fill(s, &b);
        r = commit_batch(s, &b, b.n_reserved);
    }
    if (r == 0)
        r = b.end_err;
    unstage(s, &b);
    *ret_n = b.n;
    batch_deinit(&b);
    return r;
}

/* ---- the sequence ------------------------------------------------------------------------------------------------ */

/* Keys of the first @n chunks; those that a page has already must agree. */
static int derive_keys(struct kvc_seq *s, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct page *p = s->pages[i];
        struct chunk_key key;

        seq_chunk_key(s, i > 0 ? &s->pages[i - 1]->key : NULL, tokens + i * CHUNK_TOKENS, &key);
        if (p->has_key && memcmp(&p->key, &key, sizeof(key)) != 0)
            return fail(&s->model->client->error, -EINVAL, "tokens %zu to %zu are not those that this chunk was "
                        "published or matched with", i * CHUNK_TOKENS, (i + 1) * CHUNK_TOKENS - 1);
        p->key = key;
        p->has_key = true;
    }
    return 0;
}

static size_t n_published(const struct kvc_seq *s)
{
    size_t n = 0;

    while (n < s->n_pages && page_is_shared(s->pages[n]))
        n++;
    return n;
}

static int publish(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks)
{
    size_t batch = s->model->client->connection.items_per_message;
    int r = model_table_reference(s->model, s->table);

    if (r == 0)
        r = derive_keys(s, tokens, n_chunks);
    else if (r == -ENOENT)
        r = fail(&s->model->client->error, -ESTALE, "kvcobrad does not have the table of this sequence any more");

    for (size_t at = n_published(s); r == 0 && at < n_chunks;) {
        size_t n = 0;

        while (n < batch && at + n < n_chunks && !page_is_shared(s->pages[at + n]))
            n++;
        if (n > 0)
            r = publish_batch(s, at, n, &n);
        at += n > 0 ? n : 1;
    }
    return r;
}

/*
 * Packs in all layers what is due, as far as there is space for it: chunks that were claimed by an append always,
 * those of a fork only if the arena has room. Return: chunks that every layer has.
 */
static size_t pack_due(struct kvc_seq *s)
{
    size_t due = chunks_due(seq_length(s));

    while (due > s->n_pages && seq_claim(s, due) < 0)
        due--;
    errmsg_clear(&s->model->client->error);
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        seq_pack_layer(s, i, due);
    return seq_n_packed(s);
}

/*
 * The daemon takes no more of this sequence, for now. It goes on on the heap and leaves the arena to others: a full
 * arena that nobody can empty would refuse every append of the client.
 */
static void go_private(struct kvc_seq *s)
{
    s->on_heap = true;
    for (size_t i = 0; i < s->n_pages; i++)
        if (s->pages[i]->place == PAGE_ARENA)
            (void) page_move_to_heap(s->model->client, s->pages[i]); /* out of memory: it stays where it is */
}

/* Publishing frees arena space, which lets a fork pack more: repeat while that helps. */
static int commit(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens)
{
    size_t n_due = chunks_due(seq_length(s)), n;
    int r = 0;

    do {
        size_t before = seq_n_packed(s);

        n = pack_due(s);
        if (!model_is_connected(s->model))
            break;
        if (pressure_yield(s->model)) {
            go_private(s);
            break;
        }
        r = publish(s, tokens, n < n_tokens / CHUNK_TOKENS ? n : n_tokens / CHUNK_TOKENS);
        if (n == before)
            break;
    } while (r == 0 && n < n_due);
    leases_flush(&s->model->client->leases, &s->model->client->connection);
    return r;
}

int kvc_seq_commit(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_published)
{
    int r = seq_enter(s);
    struct errmsg *e;

    if (r < 0)
        return r;
    e = &s->model->client->error;
    if (n_tokens > 0 && !tokens)
        return fail(e, -EINVAL, "kvc_seq_commit: tokens is NULL");
    if (s->eval)
        return fail(e, -EINVAL, "an evaluation sequence cannot be published");
    if (!seq_is_between_steps(s))
        return fail(e, -EINVAL, "layers differ in length: commit between steps");
    r = seq_check_whole(s);
    if (r < 0)
        return r;
    connection_check(&s->model->client->connection, false); /* there may be nothing to say, yet something to know */
    (void) model_connect(s->model);
    r = commit(s, tokens, n_tokens);
    if (r == -ENOTCONN && model_connect(s->model) == 0) { /* it was lost, and is back */
        r = seq_check_whole(s);
        if (r == 0)
            r = commit(s, tokens, n_tokens);
    }
    if (r == 0) {
        watch_follow(s->model);
        watch_report(s->model);
    }
    seq_trim_tail(s);
    if (r < 0 && r != -EINVAL)
        go_private(s);
    if (r == 0)
        s->on_heap = pressure_extent(s->model) != 0;
    if (r == -ENOTCONN) {
        errmsg_clear(e);
        r = 0;
    }
    if (r < 0)
        return r;
    if (ret_published)
        *ret_published = model_is_connected(s->model) ? n_published(s) * CHUNK_TOKENS : 0;
    return 0;
}
