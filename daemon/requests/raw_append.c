/*
 * APPEND_RAW: encodes a chunk of vectors in the arena to a page; for clients without the library.
 *
 *     handle    on the loop: find the key, or reserve a slot, which is COPYING and in no list; only_find may
 *               wait for a page on the disk
 *     encode    on a thread: one layer per slice, then header and checksum
 *     (copy)    by the mover, to a slot on a GPU, from the host's memory, to which the thread wrote
 *     conclude  on the loop: publish, or lease the page that another client published meanwhile
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "daemon/config/config.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/extent_wait.h"
#include "daemon/requests/job.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/raw_codec.h"
#include "daemon/requests/raw_gpu.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/request_steps.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"
#include "daemon/store/evict_queue.h"
#include "daemon/store/reserve.h"
#include "daemon/store/retire.h"
#include "daemon/store/space.h"
#include "gpu/device.h"
#include "gpu/dtype.h"

struct raw_append_job {
    struct job job;
    const struct page_layout *layout; /* of a space in use, which stays */
    struct raw_place k, v;
    struct page_header header;
    bool first;
    struct page_handle slot; /* COPYING; PAGE_NONE: published, or discarded */
    uint32_t next_layer;
    uint8_t *page;          /* the slot's memory, or the stage's */
    struct raw_stage stage; /* on a GPU */
    struct encode_counts counts[2];
    int err;
    struct errmsg error;
};

/* ---- the message ---- */

static int raw_append_check_message(struct request *rq, const Kvcobra__AppendRaw *m)
{
    if (m->n_tokens != CHUNK_TOKENS)
        return fail(&rq->error, -EINVAL, "%zu tokens: a chunk has %d", m->n_tokens, CHUNK_TOKENS);
    if (m->parent_key.len != 0 && m->parent_key.len != CHUNK_KEY_BYTES)
        return fail(&rq->error, -EINVAL, "a parent key of %zu bytes instead of %d, or 0 for the first chunk",
                    m->parent_key.len, CHUNK_KEY_BYTES);
    if (m->salt.len > CHUNK_SALT_BYTES_MAX)
        return fail(&rq->error, -EINVAL, "a salt of %zu bytes, at most %d", m->salt.len,
                    CHUNK_SALT_BYTES_MAX);
    if (m->first_position % CHUNK_TOKENS != 0 || (m->first_position == 0) != (m->parent_key.len == 0))
        return fail(
            &rq->error, -EINVAL,
            "position %" PRIu64 " %s: chunks begin at multiples of %d, and only the one at 0 has no parent",
            m->first_position, m->parent_key.len ? "with a parent" : "without a parent", CHUNK_TOKENS);
    return 0;
}

/*
 * Whether one side of the chunk is in the arena, with the length that the client believes it has: a client
 * that means another model or number type would publish other numbers than its own.
 */
static int raw_append_check_side(struct request *rq, const struct page_layout *l, unsigned dtype,
                                 uint64_t offset, uint64_t bytes, const char *what)
{
    const struct extent *arena = rq->session->arena;
    uint64_t want;

    if (!raw_codec_bytes(l, dtype, l->table->geometry.n_layers, &want))
        return fail(&rq->error, -EOVERFLOW, "the vectors of a chunk have too many bytes");
    if (bytes != want)
        return fail(&rq->error, -EINVAL,
                    "%s_bytes is %" PRIu64 ", but a chunk of this model and number type has %" PRIu64, what,
                    bytes, want);
    if (!arena || !range_inside(offset, bytes, extent_bytes(arena)))
        return fail(&rq->error, -EINVAL, "%s: %" PRIu64 " bytes at %" PRIu64 " are not inside the arena",
                    what, bytes, offset);
    return 0;
}

static int raw_append_check_vectors(struct request *rq, const Kvcobra__AppendRaw *m,
                                    const struct page_layout *l)
{
    unsigned dtype = (unsigned) m->type;
    int r;

    if (table_is_exact(l->table))
        return fail(
            &rq->error, -EOPNOTSUPP,
            "the model has an exact table, whose pages hold an engine's own bytes: reserve and commit "
            "them, or activate a calibrated table");
    if (dtype_bytes(dtype) == 0)
        return fail(&rq->error, -EINVAL, "number type %d is unknown", (int) m->type);

    r = raw_append_check_side(rq, l, dtype, m->k_offset, m->k_bytes, "k");
    return r < 0 ? r : raw_append_check_side(rq, l, dtype, m->v_offset, m->v_bytes, "v");
}

static void raw_append_derive_key(const struct request *rq, const struct page_context *c,
                                  const Kvcobra__AppendRaw *m, struct chunk_key *ret)
{
    struct chunk_identity id = {
        .table_digest = c->table->digest,
        .model_digest = c->model->digest,
        .first_head = c->model->shard.first_head,
        .n_heads = c->model->shard.n_heads,
        .salt = m->salt.data,
        .salt_bytes = m->salt.len,
    };
    struct chunk_key parent;

    if (m->parent_key.len > 0)
        memcpy(parent.bytes, m->parent_key.data, CHUNK_KEY_BYTES);
    chunk_key_derive(rq->tenant->index_key, &id, m->parent_key.len > 0 ? &parent : NULL, m->tokens, ret);
}

/* ---- the answer ---- */

/* The page is held already. */
static void raw_append_answer(struct request *rq, const struct page_handle *h, bool existed)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__AppendRawReply *reply = scratch->body;

    kvcobra__append_raw_reply__init(reply);
    scratch->found[0] = *h;
    memcpy(scratch->digest, h->slot->key.bytes, CHUNK_KEY_BYTES);
    page_ref_fill(rq, 0, h);
    reply->lease = page_lease(rq, 1);
    reply->key = bytes_view(scratch->digest, CHUNK_KEY_BYTES);
    reply->page = scratch->page_pointers[0];
    reply->lease_ms = (uint32_t) rq->server->config->lease_ms;
    reply->existed = existed;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_APPEND_RAW;
    rq->reply.append_raw = reply;
}

static void raw_append_answer_present(struct request *rq, const struct page_handle *h)
{
    store_hold(rq->store, h);
    evict_queue_note_use(h->slot);
    h->group->space->n_leased++;
    raw_append_answer(rq, h, true);
}

/* ---- encode ---- */

static bool raw_append_encode_slice(struct work_item *work)
{
    struct raw_append_job *j = (struct raw_append_job *) work;
    uint8_t *payload = j->page + PAGE_HEADER_BYTES;

    j->err =
        raw_codec_encode(j->layout, j->next_layer++, &j->k, &j->v, j->first, payload, j->counts, &j->error);
    if (j->err == 0 && j->next_layer < j->layout->table->geometry.n_layers)
        return true;
    if (j->err == 0) {
        j->header.payload_crc32c = crc32c(payload, (size_t) j->header.payload_bytes);
        page_header_store(&j->header, j->page);
    }

    return false;
}

/*
 * A write that the mover began before it died could still arrive: its slot, and the extent around it, are
 * not used again.
 */
static void raw_append_on_copied(void *ctx, struct mover_reply *reply)
{
    struct raw_append_job *j = ctx;

    j->err = raw_gpu_stage_result(reply, &j->error);
    if (reply->err == -ECONNRESET || reply->err == -EIO)
        retire_extent(store_of(j->job.session->tenant), j->slot.span->extent);
    job_end(&j->job);
}

static bool raw_append_copy_to_gpu(struct job *job)
{
    struct raw_append_job *j = (struct raw_append_job *) job;

    if (j->err < 0)
        return false;

    j->err = raw_gpu_stage_copy(&j->stage, true, raw_append_on_copied, j, &j->error);
    return j->err == 0;
}

static void raw_append_discard_slot(struct raw_append_job *j)
{
    raw_gpu_stage_deinit(&j->stage);
    if (!j->slot.slot)
        return;

    j->job.session->n_copying--;
    store_discard(store_of(j->job.session->tenant), &j->slot);
    j->slot = PAGE_NONE;
}

static void raw_append_count(struct server *s, const struct raw_append_job *j)
{
    for (unsigned side = 0; side < 2; side++) {
        s->raw->coords[side] += j->counts[side].coords;
        s->raw->saturated[side] += j->counts[side].saturated;
    }
}

static int raw_append_publish(struct raw_append_job *j, struct request *rq)
{
    struct store *st = rq->store;
    struct page_handle present, page = j->slot;
    int r = page_lease_room(rq, 1);

    if (r == 0)
        r = store_find_whole(st, rq->tenant, &j->header.key, &present, &rq->error);
    if (r != 0)
        return r;
    if (present.slot) {
        raw_append_answer_present(rq, &present); /* the first page stays; ours is discarded */
        return 0;
    }

    r = store_publish(st, &page, &j->header.key, j->header.payload_crc32c, &rq->error);
    if (r < 0)
        return r;

    j->job.session->n_copying--;
    j->slot = PAGE_NONE;
    offload_note_published(rq->server->offload, &page);
    raw_append_answer(rq, &page, false);
    return 0;
}

static int raw_append_conclude(struct job *job, struct request *rq)
{
    struct raw_append_job *j = (struct raw_append_job *) job;
    int r = 0;

    if (rq && job->work.expired) {
        r = job_expired(rq);
    } else if (rq && j->err < 0) {
        rq->error = j->error;
        r = j->err;
    } else if (rq) {
        raw_append_count(job->server, j);
        r = raw_append_publish(j, rq);
    }

    raw_append_discard_slot(j);
    return r;
}

/* ---- begin ---- */

static int raw_append_take_slot(struct request *rq, const struct page_context *c, unsigned page_class,
                                struct page_handle *ret)
{
    struct session *x = rq->session;
    struct group *g;
    int r;

    r = page_reservation_room(rq);
    if (r < 0)
        return r;

    r = page_group(rq, c->space, page_class, &g);
    if (r == 0)
        r = reserve_slot(rq->store, g, x->number, ret, &rq->error);
    if (r < 0)
        return r;

    store_claim(ret);
    x->n_copying++;
    return 0;
}

static struct page_header raw_append_header_of(const struct page_context *c, const Kvcobra__AppendRaw *m,
                                               const struct chunk_key *key)
{
    const struct page_layout *l = &c->space->layout;
    bool first = m->first_position == 0;
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = PAGE_CODEC_HALF_TILES,
        .key = *key,
        .first_head = l->shard.first_head,
        .n_heads = l->shard.n_heads,
        .first_position = m->first_position,
        .n_tokens = CHUNK_TOKENS,
        .flags = first ? PAGE_FLAG_FIRST : 0,
        .payload_bytes = l->payload_bytes[first ? PAGE_FIRST : PAGE_REST],
    };

    memcpy(h.table_digest, c->table->digest, DIGEST_BYTES);
    memcpy(h.model_digest, c->model->digest, DIGEST_BYTES);
    return h;
}

/* Where the thread writes the page: the slot, or on a GPU memory of the host that the mover copies from. */
static int raw_append_choose_memory(struct request *rq, struct raw_append_job *j)
{
    int r;

    if (!rq->store->pool.on_gpu) {
        j->page = pool_slot_data(&rq->store->pool, &j->slot);
        return 0;
    }

    r = raw_gpu_stage_init(rq, &j->slot, &j->stage);
    if (r < 0)
        return r;

    j->page = raw_gpu_stage_data(&j->stage);
    j->job.resume_elsewhere = raw_append_copy_to_gpu;
    return 0;
}

static int raw_append_begin(struct request *rq, const struct page_context *c, const Kvcobra__AppendRaw *m,
                            const struct chunk_key *key)
{
    _cleanup_(freep) struct raw_append_job *j = calloc(1, sizeof(*j));
    bool first = m->first_position == 0;
    int fd = extent_fd(rq->session->arena), r; /* lives as long as the job */

    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for an append");

    j->job.server = rq->server;
    j->job.session = rq->session;
    j->job.work.run = raw_append_encode_slice;
    j->job.finish = raw_append_conclude;
    j->layout = &c->space->layout;
    j->k = (struct raw_place){.fd = fd, .dtype = (unsigned) m->type, .offset = m->k_offset};
    j->v = (struct raw_place){.fd = fd, .dtype = (unsigned) m->type, .offset = m->v_offset};
    j->first = first;
    j->header = raw_append_header_of(c, m, key);
    r = raw_append_take_slot(rq, c, first ? PAGE_FIRST : PAGE_REST, &j->slot);
    if (r < 0)
        return r;

    r = raw_append_choose_memory(rq, j);
    if (r == 0)
        r = job_start(&j->job, rq);
    if (r < 0)
        raw_append_discard_slot(j);
    else
        (void) take_ptr(j);
    return r;
}

/* Item @i of the run. */
static int raw_append_fetch_item(struct request *rq, const struct page_context *c, size_t i,
                                 struct fetch_wait_item *ret)
{
    const Kvcobra__AppendRaw *m = rq->message->append_raw;

    (void) i; /* the message has one chunk */
    raw_append_derive_key(rq, c, m, &ret->key);
    ret->page_class = m->first_position == 0 ? PAGE_FIRST : PAGE_REST;
    ret->page = page_find(rq, &ret->key);
    return 0;
}

/* Whether a chunk without a page may be encoded. */
static int raw_append_check_new(struct request *rq, const Kvcobra__AppendRaw *m, const struct page_context *c,
                                const struct chunk_key *key)
{
    if (m->only_find) {
        Kvcobra__MissReason why = page_miss_reason(rq, c->space, key);

        page_count_miss(rq, why);
        if (why == KVCOBRA__MISS_REASON__MISS_SLOW_TIER)
            return fail(&rq->error, -ENODATA,
                        "the disk or the cluster probably has this chunk, but it did not arrive within "
                        "fetch_ms=%" PRIu32 ": wait longer, or compute it",
                        m->fetch_ms);
        return fail(&rq->error, -ENODATA, "no client published this chunk, or it was evicted");
    }

    return page_check_writable(rq, c->table);
}

static int raw_append_resolve(struct request *rq, struct page_context *ret)
{
    const Kvcobra__AppendRaw *m = rq->message->append_raw;
    int r = raw_append_check_message(rq, m);

    if (r == 0)
        r = page_context(rq, m->model, &m->table_digest, ret);
    if (r == 0 && !m->only_find)
        r = raw_append_check_vectors(rq, m, &ret->space->layout);
    return r < 0 ? r : page_lease_room(rq, 1);
}

static size_t raw_append_find(struct request *rq, const struct page_context *c)
{
    struct chunk_key key;

    raw_append_derive_key(rq, c, rq->message->append_raw, &key);
    rq->server->scratch->found[0] = page_find(rq, &key);
    return 1;
}

static struct fetch_wait_run raw_append_run(const struct request *rq)
{
    const Kvcobra__AppendRaw *m = rq->message->append_raw;

    return (struct fetch_wait_run){
        .n = 1, .fetch_ms = m->only_find ? m->fetch_ms : 0, .item = raw_append_fetch_item};
}

static int raw_append_act(struct request *rq, const struct page_context *c)
{
    const Kvcobra__AppendRaw *m = rq->message->append_raw;
    unsigned page_class = m->first_position == 0 ? PAGE_FIRST : PAGE_REST;
    struct page_handle present;
    struct chunk_key key;
    int r;

    raw_append_derive_key(rq, c, m, &key);
    r = store_find_whole(rq->store, rq->tenant, &key, &present, &rq->error);
    if (r < 0)
        return r;
    if (present.slot) {
        page_note_lookup(rq, c->space, page_class, &key, true);
        raw_append_answer_present(rq, &present);
        return 0;
    }

    r = raw_append_check_new(rq, m, c, &key);
    if (r < 0)
        return r;

    r = raw_append_begin(rq, c, m, &key);
    if (r == REQUEST_PENDING)
        page_note_lookup(rq, c->space, page_class, &key, false);
    return r == -EINPROGRESS ? extent_wait_begin(rq) : r;
}

static int raw_append_handle(struct request *rq)
{
    static const struct step_plan plan = {
        .resolve = raw_append_resolve,
        .find = raw_append_find,
        .run = raw_append_run,
        .act = raw_append_act,
    };

    return request_steps_run(rq, &plan);
}
REQUEST(request_append_raw) = {.body = KVCOBRA__REQUEST__BODY_APPEND_RAW,
                               .run = raw_append_handle,
                               .needs = CONN_OPEN,
                               .sockets = ON_CLIENT};
