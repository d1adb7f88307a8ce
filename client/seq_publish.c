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
        (void) fail(&c->error, b->end_err, b->end_err == -EDQUOT
                    ? "the quota of this tenant is used up: %zu of %zu pages of this text stay private"
                    : "the daemon's pool has no room: %zu of %zu pages of this text stay private",
                    b->n - b->n_reserved, b->n);
    reply_free(&reply);
    return 0;
}

/* A page that was made on the heap is copied to the arena for the daemon to read. */
static bool stage(struct kvc_seq *s, struct batch *b, size_t i)
{
    struct kvc_client *c = s->model->client;
    const struct page *p = s->pages[b->first + i];
    const struct page_layout *layout = &s->table->layout;

    if (!arena_take(&c->session.arena, layout->slot_bytes[p->class], &b->staged[i])) {
        b->staged[i] = SIZE_MAX;
        return false;
    }
    memcpy((uint8_t *) extent_data(c->session.arena_extent) + b->staged[i], p->bytes, layout->page_bytes[p->class]);
    return true;
}

static void unstage(struct kvc_seq *s, struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->staged[i] != SIZE_MAX)
            arena_give(&s->model->client->session.arena, b->staged[i],
                       s->table->layout.slot_bytes[class_of_chunk(b->first + i)]);
}

/* Headers and checksums; leading pages that lie where the daemon can read them. */
static size_t fill(struct kvc_seq *s, struct batch *b)
{
    for (size_t i = 0; i < b->n_reserved; i++) {
        struct page *p = s->pages[b->first + i];
        struct page_header h;

        if (b->exists[i])
            continue;
        seq_page_header(s, b->first + i, &p->key, &h);
        h.payload_crc32c = crc32c(page_payload(p), (size_t) h.payload_bytes);
        page_header_store(&h, p->bytes);
        if (p->place == PAGE_HEAP && !stage(s, b, i))
            return i;
        b->commit[i].arena_offset = p->place == PAGE_HEAP ? b->staged[i] : p->arena_off;
    }
    return b->n_reserved;
}

static void abort_from(struct kvc_seq *s, struct batch *b, size_t from)
{
    _cleanup_(freep) Kvcobra__AbortItem *items = calloc(b->n, sizeof(*items));
    Kvcobra__Abort body = KVCOBRA__ABORT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

    if (!items)
        return; /* reservations expire */
    for (size_t i = from; i < b->n_reserved; i++) {
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

/* The first @n pages of the batch are the pool's now, as far as the daemon took them. Return: the first error. */
static int take_committed(struct kvc_seq *s, struct batch *b, size_t n, const Kvcobra__CommitReply *reply,
                          struct lease *lease)
{
    struct kvc_client *c = s->model->client;
    int first_err = 0;

    lease->id = reply->lease;
    for (uint32_t i = 0; i < n; i++) {
        struct page *p = s->pages[b->first + i];
        struct mapped_extent *x;
        uint64_t offset;
        int r;

        if (i >= reply->n_errs || i >= reply->n_pages)
            r = fail(&c->error, -EPROTO, "kvcobrad answered for %zu of %zu pages", reply->n_errs, n);
        else if (reply->errs[i] < 0)
            r = fail(&c->error, reply->errs[i], "kvcobrad refused chunk %zu: %s", b->first + i,
                     strerror(-reply->errs[i]));
        else {
            r = seq_map_granted(s, b->first + i, &p->key, reply->pages[i], &x, &offset);
            if (r < 0)
                lease_drop(lease, i, 0);
        }
        if (r == 0)
            page_move_to_pool(c, p, x, offset, lease, i);
        else if (first_err == 0)
            first_err = r;
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
    if (r < 0)
        return r;
    r = take_committed(s, b, n, reply.message->commit, lease);
    reply_free(&reply);
    return r;
}

/* Return: 0: all of the batch is published; else why not, with the sentence set. */
static int publish_batch(struct kvc_seq *s, size_t first, size_t n)
{
    struct errmsg *e = &s->model->client->error;
    struct batch b;
    size_t n_filled = 0;
    int r = batch_init(&b, first, n);

    if (r < 0)
        (void) fail(e, r, "out of memory while publishing %zu pages", n);
    if (r == 0)
        r = reserve(s, &b);
    if (r == 0) {
        n_filled = fill(s, &b);
        if (n_filled < b.n_reserved)
            b.end_err = fail(e, -ENOSPC, "the arena is full: %zu private pages wait to be published",
                             b.n_reserved - n_filled);
    }
    if (r == 0 && n_filled > 0)
        r = commit_batch(s, &b, n_filled);
    if (n_filled < b.n_reserved && model_is_connected(s->model))
        abort_from(s, &b, n_filled);
    unstage(s, &b);
    batch_deinit(&b);
    return r < 0 ? r : b.end_err;
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

    while (n < s->n_pages && s->pages[n]->place == PAGE_POOL)
        n++;
    return n;
}

static int publish(struct kvc_seq *s, const uint32_t *tokens, size_t n_chunks)
{
    size_t batch = s->model->client->connection.items_per_message;
    int r = derive_keys(s, tokens, n_chunks);

    for (size_t at = n_published(s); r == 0 && at < n_chunks;) {
        size_t n = 0;

        while (n < batch && at + n < n_chunks && s->pages[at + n]->place != PAGE_POOL)
            n++;
        if (n > 0)
            r = publish_batch(s, at, n);
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
    r = commit(s, tokens, n_tokens);
    seq_trim_tail(s);
    if (r < 0 && r != -EINVAL)
        s->on_heap = true; /* go on privately; -ENOSPC of an append would never end otherwise */
    if (r == 0)
        s->on_heap = false;
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
