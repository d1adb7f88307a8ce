/*
 * READ_RAW: a thread decodes one side of one layer of a leased page to the arena. A page on a GPU is first
 * copied to the host by the mover, and its checksum compared: any process of the tenant can write there.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/requests/job.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/raw_codec.h"
#include "daemon/requests/raw_gpu.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/request_steps.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "gpu/device.h"
#include "gpu/dtype.h"

struct raw_read_job {
    struct job job;
    const struct page_layout *layout; /* of a space in use, which stays while the job holds the page */
    struct raw_place to;
    struct page_handle page; /* held by the job */
    uint32_t layer, crc;
    enum side side;
    bool first;
    const uint8_t *payload;
    struct raw_stage stage; /* on a GPU */
    uint64_t bytes, first_position;
    int err;
    struct errmsg error;
};

static bool raw_read_decode(struct work_item *work)
{
    struct raw_read_job *j = (struct raw_read_job *) work;

    if (j->stage.memory && crc32c(j->payload, j->stage.page_bytes - PAGE_HEADER_BYTES) != j->crc) {
        j->err = fail(&j->error, -EBADMSG,
                      "the page was overwritten on the GPU by a process of this tenant: release it");
        return false;
    }
    j->err = raw_codec_decode(j->layout, j->payload, j->first, j->layer, j->side, &j->to, &j->error);
    return false;
}

static int raw_read_conclude(struct job *job, struct request *rq)
{
    struct raw_read_job *j = (struct raw_read_job *) job;
    Kvcobra__ReadRawReply *reply = job->server->scratch->body;

    raw_gpu_stage_deinit(&j->stage);
    store_unhold(store_of(job->session->tenant), &j->page);
    if (!rq)
        return 0;
    if (job->work.expired)
        return job_expired(rq);
    if (j->err < 0) {
        rq->error = j->error;
        return j->err;
    }

    kvcobra__read_raw_reply__init(reply);
    reply->bytes = j->bytes;
    reply->first_position = j->first_position;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_READ_RAW;
    rq->reply.read_raw = reply;
    return 0;
}

/* ---- begin ---- */

/* Checks the message against the page, which is whole. */
static int raw_read_fill(struct request *rq, const Kvcobra__ReadRaw *m, const struct page_handle *h,
                         struct raw_read_job *j)
{
    const struct page_layout *l = &h->group->space->layout;
    const struct extent *arena = rq->session->arena;

    if (!l->table)
        return fail(&rq->error, -ESTALE, "the page's table is missing");
    if (table_is_exact(l->table))
        return fail(&rq->error, -EOPNOTSUPP,
                    "the page has the bytes of an engine's cache: lease it and read them");
    if (m->layer >= l->table->geometry.n_layers || m->side > SIDE_V)
        return fail(&rq->error, -EINVAL,
                    "layer %" PRIu32 ", side %" PRIu32 ": the model has %" PRIu32 " layers and two sides",
                    m->layer, m->side, l->table->geometry.n_layers);
    if (dtype_bytes((unsigned) m->type) == 0 || !raw_codec_bytes(l, (unsigned) m->type, 1, &j->bytes))
        return fail(&rq->error, -EINVAL, "number type %d is unknown", (int) m->type);
    if (!arena || m->arena_offset > extent_bytes(arena) || j->bytes > extent_bytes(arena) - m->arena_offset)
        return fail(&rq->error, -EINVAL, "%" PRIu64 " bytes at %" PRIu64 " are not inside the arena",
                    j->bytes, m->arena_offset);

    j->layout = l;
    j->to =
        (struct raw_place){.fd = extent_fd(arena), .dtype = (unsigned) m->type, .offset = m->arena_offset};
    j->page = *h;
    j->layer = m->layer;
    j->side = (enum side) m->side;
    j->first = h->group->page_class == PAGE_FIRST;
    j->crc = h->slot->payload_crc32c;
    j->job.work.run = raw_read_decode;
    j->job.finish = raw_read_conclude;
    return 0;
}

static int raw_read_begin_on_host(struct request *rq, const struct page_handle *page_of,
                                  struct raw_read_job *j)
{
    const uint8_t *page = pool_slot_data(&rq->store->pool, page_of);
    struct page_header h;
    int r = page_header_load(page, &h, &rq->error);

    if (r < 0)
        return r;

    j->payload = page + PAGE_HEADER_BYTES;
    j->first_position = h.first_position;
    return job_start(&j->job, rq);
}

/* ---- on a GPU ---- */

/*
 * A page that the library wrote has no header, only room for one, in which the header of an earlier page
 * may be. The header counts if it names this page; else the position is unknown.
 */
static void raw_read_find_position(struct raw_read_job *j)
{
    const uint8_t *page = raw_gpu_stage_data(&j->stage);
    struct page_header header;

    j->payload = page + PAGE_HEADER_BYTES;
    if (page_header_load(page, &header, NULL) == 0 &&
        memcmp(&header.key, &j->page.slot->key, sizeof(header.key)) == 0)
        j->first_position = header.first_position;
}

static void raw_read_on_copied(void *ctx, struct mover_reply *reply)
{
    struct raw_read_job *j = ctx;

    int r = raw_gpu_stage_result(reply, &j->error);

    if (r == 0) {
        raw_read_find_position(j);
        r = job_work(&j->job, &j->error);
        if (r == 0)
            return; /* from here on a thread owns the job */
    }

    j->err = r;
    job_end(&j->job);
}

static int raw_read_begin_on_gpu(struct request *rq, const struct page_handle *h, struct raw_read_job *j)
{
    int r = raw_gpu_stage_init(rq, h, &j->stage);

    if (r < 0)
        return r;

    r = job_begin(&j->job, rq);
    if (r >= 0) {
        int copying = raw_gpu_stage_copy(&j->stage, false, raw_read_on_copied, j, &rq->error);

        if (copying == 0)
            return r;

        job_cancel(&j->job);
        r = copying;
    }

    raw_gpu_stage_deinit(&j->stage);
    return r;
}

/* ---- the message ---- */

/* The leased page, in scratch->found. */
static int raw_read_resolve(struct request *rq, struct page_context *ret)
{
    const Kvcobra__ReadRaw *m = rq->message->read_raw;
    int r = lease_find(&rq->session->leases, rq->store, m->lease, m->item, &rq->server->scratch->found[0]);

    (void) ret; /* its table is that of the page */
    if (r < 0)
        return fail(&rq->error, r,
                    "lease %" PRIu64 " of this session has no page %" PRIu32 ", or released it", m->lease,
                    m->item);
    return 0;
}

static size_t raw_read_find(struct request *rq, const struct page_context *c)
{
    (void) rq;
    (void) c;
    return 1;
}

static int raw_read_act(struct request *rq, const struct page_context *c)
{
    const struct page_handle *h = &rq->server->scratch->found[0];
    _cleanup_(freep) struct raw_read_job *j = NULL;
    struct store *st = rq->store;
    int r;

    (void) c;
    if (!store_page_is_whole(st, h))
        return fail(&rq->error, -EBADMSG, "the page was damaged over a restart: release it");

    j = calloc(1, sizeof(*j));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for reading a page");

    r = raw_read_fill(rq, rq->message->read_raw, h, j);
    if (r < 0)
        return r;

    rq->session->arena_is_filled = true;
    store_hold(st, h); /* a release meanwhile does not free the page that is being read */
    if (st->pool.on_gpu)
        r = raw_read_begin_on_gpu(rq, h, j);
    else
        r = raw_read_begin_on_host(rq, h, j);
    if (r < 0)
        store_unhold(st, h);
    else
        (void) take_ptr(j);
    return r;
}

static int raw_read_handle(struct request *rq)
{
    static const struct step_plan plan = {
        .resolve = raw_read_resolve,
        .find = raw_read_find,
        .act = raw_read_act,
    };

    return request_steps_run(rq, &plan);
}
REQUEST(request_read_raw) = {.body = KVCOBRA__REQUEST__BODY_READ_RAW,
                             .run = raw_read_handle,
                             .needs = CONN_OPEN,
                             .sockets = ON_CLIENT};
