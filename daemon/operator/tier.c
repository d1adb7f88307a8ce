/* CONTROL_TIER: slower tiers for operators: their state; write, resume and drop of the disk tier. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/job.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"

struct tier_job { /* waits for a DROP */
    struct job job;
    struct offload_drop drop;
};

static void tier_fill_cluster(const struct offload_status *o, Kvcobra__ControlTierReply *reply)
{
    reply->cluster_state = (char *) (o->has_cluster ? cluster_link_state_names[o->cluster.state] : "none");
    reply->cluster_message = (char *) o->cluster.sentence;
    reply->cluster_nodes = o->cluster.counters[CLUSTER_COUNTER_NODES];
    reply->cluster_nodes_ready = o->cluster.counters[CLUSTER_COUNTER_NODES_READY];
    reply->cluster_waiting = o->n_to_publish;
    reply->cluster_asked = o->shared.n_asked;
    reply->cluster_found = o->shared.n_found;
    reply->cluster_read_pages = o->shared.n_read;
    reply->cluster_read_bytes = o->shared.read_bytes;
    reply->cluster_missed = o->shared.n_missed;
    reply->cluster_unopened = o->n_unopened_shared;
    reply->cluster_written_pages = o->shared.n_written;
    reply->cluster_written_bytes = o->shared.written_bytes;
    reply->cluster_failed = o->shared.n_not_written;
    reply->cluster_dropped = o->shared.n_dropped;
    reply->cluster_late = o->cluster.n_late;
    reply->cluster_refreshed = o->shared.n_refreshed;
    reply->cluster_opened_late = o->n_late_shared;
    reply->cluster_refilled = o->shared.n_refilled;
    reply->cluster_skipped = o->n_skipped_shared;
    reply->cluster_read_bytes_per_second = o->bytes_per_s_shared;
}

static void tier_fill(struct request *rq)
{
    const struct server *s = rq->server;
    Kvcobra__ControlTierReply *reply = s->scratch->body;
    struct offload_status *o = &s->scratch->tier;

    offload_status(s->offload, o);
    kvcobra__control_tier_reply__init(reply);
    reply->state = (char *) (o->has_disk ? tier_state_names[o->disk.state] : "none");
    reply->message = o->disk.sentence;
    reply->folder = (char *) (o->has_disk ? s->config->disk_dir : "");
    tier_fill_cluster(o, reply);
    reply->all_written = o->has_written_all;
    reply->locked = o->disk.is_locked;
    reply->segment_bytes = o->disk.segment_bytes;
    reply->segments = o->disk.n_segments_used;
    reply->segments_max = o->disk.n_segments_max;
    reply->physical_bytes = o->disk.physical_bytes;
    reply->pages = o->disk.n_pages;
    reply->writing = o->n_writing;
    reply->fetching = o->n_fetching;
    reply->written_pages = o->disk.n_written;
    reply->written_bytes = o->disk.written_bytes;
    reply->read_pages = o->disk.n_read;
    reply->read_bytes = o->disk.read_bytes;
    reply->missed = o->disk.n_missed;
    reply->refused = o->disk.n_refused;
    reply->timeouts = o->disk.n_timeouts;
    reply->failed = o->disk.n_failed;
    reply->unopened = o->n_unopened;
    reply->opened_late = o->n_late;
    reply->discarded = o->disk.n_discarded;
    reply->lost = o->n_lost;
    reply->skipped = o->n_skipped;
    reply->read_bytes_per_second = o->bytes_per_s;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_CONTROL_TIER;
    rq->reply.control_tier = reply;
}

static int tier_conclude_drop(struct job *job, struct request *rq)
{
    const struct tier_job *j = (const struct tier_job *) job;
    const Kvcobra__ControlTier *m;
    int r = j->drop.request.result;

    if (!rq)
        return 0;

    m = rq->message->control_tier;
    if (r == -ENOENT && m->tenant[0])
        return fail(&rq->error, r, "the disk has no pages of tenant %s%s", m->tenant,
                    m->table_digest.len > 0 ? " with this table" : "");
    if (r == -ENOENT && m->table_digest.len > 0)
        return fail(&rq->error, r, "the disk has no pages of this table");
    if (r < 0 && r != -ENOENT) /* -ENOENT: all pages were to go, and there is none */
        return fail(&rq->error, r, "the disk tier did not drop the pages: %s",
                    r == -ENODEV ? "it is off" : "the disk did not answer in time");

    log_event(LOG_NOTICE, "disk-tier-dropped", "tenant=%s", m->tenant[0] ? m->tenant : "all");
    tier_fill(rq);
    return 0;
}

static void tier_on_dropped(struct offload_drop *d)
{
    struct tier_job *j = (struct tier_job *) ((char *) d - offsetof(struct tier_job, drop));

    job_end(&j->job);
}

static int tier_drop(struct request *rq)
{
    const Kvcobra__ControlTier *m = rq->message->control_tier;
    _cleanup_(freep) struct tier_job *j = NULL;
    const uint8_t *digest = NULL;
    int r = 0;

    if (strlen(m->tenant) >= ACCOUNT_NAME_BYTES)
        return fail(&rq->error, -EINVAL, "\"%.40s\" is not the name of a tenant", m->tenant);
    if (m->table_digest.len > 0)
        r = request_digest(rq, &m->table_digest, "table digest", &digest);
    if (r < 0)
        return r;

    j = calloc(1, sizeof(*j));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for a request");

    j->job.finish = tier_conclude_drop;
    j->drop.done = tier_on_dropped;
    r = job_begin(&j->job, rq);
    if (r < 0)
        return r;

    r = offload_drop(rq->server->offload, m->tenant[0] ? m->tenant : NULL, digest, &j->drop);
    if (r < 0) {
        job_cancel(&j->job);
        return fail(&rq->error, r, "the disk tier is off or has too many requests: see its state");
    }

    (void) take_ptr(j);
    return REQUEST_PENDING;
}

static int tier_resume(struct request *rq)
{
    if (offload_resume(rq->server->offload) < 0)
        return fail(&rq->error, -EALREADY, "the disk tier is not off");

    log_event(LOG_NOTICE, "disk-tier-resume", "folder=%s", rq->server->config->disk_dir);
    tier_fill(rq);
    return 0;
}

static int tier_handle_control(struct request *rq)
{
    bool asks = rq->message->control_tier->action == KVCOBRA__TIER_ACTION__TIER_ASK;

    if (!rq->server->offload || (!asks && !rq->server->config->disk_dir))
        return fail(&rq->error, -EOPNOTSUPP, "this kvcobrad has no disk tier: set disk-dir and restart it");

    switch (rq->message->control_tier->action) {
    case KVCOBRA__TIER_ACTION__TIER_ASK:
        break;
    case KVCOBRA__TIER_ACTION__TIER_WRITE_ALL:
        offload_write_all(rq->server->offload);
        break;
    case KVCOBRA__TIER_ACTION__TIER_RESUME:
        return tier_resume(rq);
    case KVCOBRA__TIER_ACTION__TIER_DROP:
        return tier_drop(rq);
    default:
        return fail(&rq->error, -EOPNOTSUPP, "this kvcobrad does not know action %d of the disk tier",
                    (int) rq->message->control_tier->action);
    }

    tier_fill(rq);
    return 0;
}
REQUEST(request_control_tier) = {.body = KVCOBRA__REQUEST__BODY_CONTROL_TIER,
                                 .run = tier_handle_control,
                                 .needs = CONN_OPEN,
                                 .sockets = ON_OPERATOR};
