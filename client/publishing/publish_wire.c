/* What publishing says and hears; see publish.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/publishing/publish.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"

void batch_deinit(struct batch *b)
{
    free(b->exists);
    free(b->reserve);
    free(b->commit);
    free(b->places);
    free(b->pointers);
}

int batch_init(struct batch *b, size_t first, size_t n)
{
    *b = (struct batch){
        .first = first,
        .n = n,
        .exists = calloc(n, sizeof(*b->exists)),
        .reserve = calloc(n, sizeof(*b->reserve)),
        .commit = calloc(n, sizeof(*b->commit)),
        .places = calloc(n, sizeof(*b->places)),
        .pointers = calloc(n, sizeof(*b->pointers)),
    };
    if (!b->exists || !b->reserve || !b->commit || !b->places || !b->pointers)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        kvcobra__reserve_item__init(&b->reserve[i]);
        kvcobra__commit_item__init(&b->commit[i]);
    }
    return 0;
}

/* ---- messages ---- */

int batch_reserve(struct kvc_seq *s, struct batch *b)
{
    struct kvc_client *c = s->model->client;
    Kvcobra__Reserve body = KVCOBRA__RESERVE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    const Kvcobra__ReserveReply *got;
    struct reply reply;
    int r;

    for (size_t i = 0; i < b->n; i++) {
        b->reserve[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, s->pages[b->first + i]->key.bytes};
        b->reserve[i].page_class = class_of_chunk(b->first + i);
        b->pointers[i] = &b->reserve[i];
    }
    body.model = s->model->remote.handle;
    body.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, s->table->table->digest};
    body.items = (Kvcobra__ReserveItem **) b->pointers;
    body.n_items = b->n;
    request.body_case = KVCOBRA__REQUEST__BODY_RESERVE;
    request.reserve = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_RESERVE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    got = reply.message->reserve;
    b->n_reserved = got->n_slots < b->n ? got->n_slots : b->n;
    b->awaited_bytes = got->awaited_bytes;
    b->end_err = b->n_reserved < b->n ? (got->end_err < 0 ? got->end_err : -ENOSPC) : 0;
    for (size_t i = 0; i < b->n_reserved; i++) {
        b->exists[i] = i < got->n_exists && got->exists[i];
        b->commit[i].slot = got->slots[i]->slot;
        b->commit[i].generation = got->slots[i]->generation;
        b->commit[i].key = b->reserve[i].key;
        b->places[i] =
            (struct slot_place){got->slots[i]->extent, got->slots[i]->offset, got->slots[i]->bytes};
    }
    if (b->end_err < 0)
        (void) fail(&c->error, b->end_err, "kvcobrad takes %zu of %zu pages, the others stay private: %s",
                    b->n_reserved, b->n,
                    reply.message->message[0] ? reply.message->message : strerror(-b->end_err));
    reply_free(&reply);
    return 0;
}

void batch_abort(struct kvc_seq *s, struct batch *b)
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
 * The first @n pages of the batch are the pool's now, as far as the daemon took them; @words: its sentence
 * about one that it did not. Return: the first error.
 */
static int publish_wire_take_committed(struct kvc_seq *s, struct batch *b, size_t n,
                                       const Kvcobra__CommitReply *reply, const char *words,
                                       struct lease *lease)
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
            r = fail(&c->error, reply->errs[i], "kvcobrad refused chunk %zu, it stays private: %s",
                     b->first + i, words[0] ? words : strerror(-reply->errs[i]));
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

int batch_commit(struct kvc_seq *s, struct batch *b)
{
    struct kvc_client *c = s->model->client;
    struct lease *lease = leases_add(&c->leases);
    size_t n = b->n_reserved;
    Kvcobra__Commit body = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r;

    if (!lease) {
        batch_abort(s, b);
        return fail(&c->error, -ENOMEM, "out of memory while publishing %zu pages", n);
    }
    for (size_t i = 0; i < n; i++)
        b->pointers[i] = &b->commit[i];
    body.model = s->model->remote.handle;
    body.items = (Kvcobra__CommitItem **) b->pointers;
    body.n_items = n;
    request.body_case = KVCOBRA__REQUEST__BODY_COMMIT;
    request.commit = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_COMMIT, &reply, &c->error);
    if (r < 0) {
        batch_abort(s, b);
        return r;
    }
    r = publish_wire_take_committed(s, b, n, reply.message->commit, reply.message->message, lease);
    reply_free(&reply);
    return r;
}
