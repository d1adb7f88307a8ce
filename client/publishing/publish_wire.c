/* RESERVE, COMMIT and ABORT of a batch of chunks. See publish.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/publishing/publish.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"

void publish_batch_deinit(struct publish_batch *b)
{
    free(b->exists);
    free(b->reserve);
    free(b->commit);
    free(b->slots);
    free(b->pointers);
}

int publish_batch_init(struct publish_batch *b, size_t first, size_t n)
{
    *b = (struct publish_batch){
        .first = first,
        .n = n,
        .exists = calloc(n, sizeof(*b->exists)),
        .slots = calloc(n, sizeof(*b->slots)),
        .reserve = calloc(n, sizeof(*b->reserve)),
        .commit = calloc(n, sizeof(*b->commit)),
        .pointers = calloc(n, sizeof(*b->pointers)),
    };
    if (!b->exists || !b->reserve || !b->commit || !b->slots || !b->pointers)
        return -ENOMEM;

    for (size_t i = 0; i < n; i++) {
        kvcobra__reserve_item__init(&b->reserve[i]);
        kvcobra__commit_item__init(&b->commit[i]);
    }

    return 0;
}

/* ---- RESERVE ---- */

static void publish_wire_store_slots(struct publish_batch *b, const Kvcobra__ReserveReply *got)
{
    b->n_reserved = got->n_slots < b->n ? got->n_slots : b->n;
    b->awaited_bytes = got->awaited_bytes;
    b->end_err = 0;
    if (b->n_reserved < b->n)
        b->end_err = got->end_err < 0 ? got->end_err : -ENOSPC;

    for (size_t i = 0; i < b->n_reserved; i++) {
        b->exists[i] = i < got->n_exists && got->exists[i];
        b->commit[i].slot = got->slots[i]->slot;
        b->commit[i].generation = got->slots[i]->generation;
        b->commit[i].key = b->reserve[i].key;
        b->slots[i] =
            (struct publish_slot){got->slots[i]->extent, got->slots[i]->offset, got->slots[i]->bytes};
    }
}

int publish_batch_reserve(struct kvc_seq *s, struct publish_batch *b)
{
    struct kvc_client *c = s->model->client;
    Kvcobra__Reserve reserve = KVCOBRA__RESERVE__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    const char *sentence;
    int r;

    for (size_t i = 0; i < b->n; i++) {
        b->reserve[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, s->pages[b->first + i]->key.bytes};
        b->reserve[i].page_class = class_of_chunk(b->first + i);
        b->pointers[i] = &b->reserve[i];
    }

    reserve.model = s->model->remote.handle;
    reserve.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, s->table->table->digest};
    reserve.items = (Kvcobra__ReserveItem **) b->pointers;
    reserve.n_items = b->n;
    r = connection_call(&c->connection, KVCOBRA__REQUEST__BODY_RESERVE, &reserve,
                        KVCOBRA__REPLY__BODY_RESERVE, &reply, &c->error);
    if (r < 0)
        return r;

    publish_wire_store_slots(b, reply.message->reserve);
    sentence = reply.message->message[0] ? reply.message->message : strerror(-b->end_err);
    if (b->end_err < 0)
        (void) fail(&c->error, b->end_err, "kvcobrad accepts %zu of %zu pages, the others stay private: %s",
                    b->n_reserved, b->n, sentence);
    return 0;
}

/* ---- ABORT ---- */

void publish_batch_abort(struct kvc_seq *s, struct publish_batch *b)
{
    _cleanup_(freep) Kvcobra__AbortItem *items = calloc(b->n, sizeof(*items));
    Kvcobra__Abort abort = KVCOBRA__ABORT__INIT;

    if (!items || !model_is_connected(s->model))
        return; /* reservations expire */

    for (size_t i = 0; i < b->n_reserved; i++) {
        if (b->exists[i])
            continue;

        kvcobra__abort_item__init(&items[i]);
        items[i].slot = b->commit[i].slot;
        items[i].generation = b->commit[i].generation;
        b->pointers[abort.n_items++] = &items[i];
    }

    if (abort.n_items == 0)
        return;

    abort.items = (Kvcobra__AbortItem **) b->pointers;
    (void) connection_send(&s->model->client->connection, KVCOBRA__REQUEST__BODY_ABORT, &abort, NULL);
}

/* ---- COMMIT ---- */

/* Moves page @i of the batch to the pool if the daemon accepted it. @sentence: the
 * daemon's, about a refused page. */
static int publish_wire_finish_page(struct kvc_seq *s, const struct publish_batch *b, uint32_t i,
                                    const Kvcobra__CommitReply *reply, const char *sentence,
                                    struct client_lease *lease)
{
    struct kvc_client *c = s->model->client;
    struct page *p = s->pages[b->first + i];
    struct page_grant grant;
    int r;

    if (i >= reply->n_errs || i >= reply->n_pages)
        return fail(&c->error, -EPROTO, "kvcobrad replied for %zu of %zu pages", reply->n_errs,
                    b->n_reserved);
    if (reply->errs[i] < 0)
        return fail(&c->error, reply->errs[i], "kvcobrad refused chunk %zu, it stays private: %s",
                    b->first + i, sentence[0] ? sentence : strerror(-reply->errs[i]));

    r = seq_map_granted(s, b->first + i, &p->key, reply->pages[i], &grant);
    if (r < 0) {
        client_lease_drop(lease, i, 0);
        return r;
    }

    grant.lease = lease;
    grant.item = i;
    page_move_to_pool(c, p, &grant);
    return 0;
}

/* Pages that were not refused are no reservations any longer: the others' slots are given back. */
static void publish_wire_abort_refused(struct kvc_seq *s, struct publish_batch *b,
                                       const Kvcobra__CommitReply *reply)
{
    bool any = false;

    for (uint32_t i = 0; i < b->n_reserved; i++) {
        bool refused = i < reply->n_errs && reply->errs[i] < 0;

        any |= refused && !b->exists[i];
        b->exists[i] |= !refused;
    }
    if (any)
        publish_batch_abort(s, b);
}

/* Return: the first error; pages after it are handled too. */
static int publish_wire_finish_pages(struct kvc_seq *s, struct publish_batch *b,
                                     const Kvcobra__Reply *message, struct client_lease *lease)
{
    int first_err = 0;

    lease->id = message->commit->lease;
    for (uint32_t i = 0; i < b->n_reserved; i++) {
        int r = publish_wire_finish_page(s, b, i, message->commit, message->message, lease);

        if (first_err == 0)
            first_err = r;
    }

    publish_wire_abort_refused(s, b, message->commit);
    return first_err;
}

int publish_batch_commit(struct kvc_seq *s, struct publish_batch *b)
{
    struct kvc_client *c = s->model->client;
    struct client_lease *lease = client_leases_add(&c->leases);
    Kvcobra__Commit commit = KVCOBRA__COMMIT__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    int r;

    if (!lease) {
        publish_batch_abort(s, b);
        return fail(&c->error, -ENOMEM, "out of memory while publishing %zu pages", b->n_reserved);
    }

    for (size_t i = 0; i < b->n_reserved; i++)
        b->pointers[i] = &b->commit[i];
    commit.model = s->model->remote.handle;
    commit.items = (Kvcobra__CommitItem **) b->pointers;
    commit.n_items = b->n_reserved;
    r = connection_call(&c->connection, KVCOBRA__REQUEST__BODY_COMMIT, &commit, KVCOBRA__REPLY__BODY_COMMIT,
                        &reply, &c->error);
    if (r < 0) {
        publish_batch_abort(s, b);
        return r;
    }

    return publish_wire_finish_pages(s, b, reply.message, lease);
}
