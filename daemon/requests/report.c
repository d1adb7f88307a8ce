/*
 * REPORT: the fit of tables and the moments that clients measured. Moments are megabytes, so threads copy
 * them from the arena and add them up.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/fd_io.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/requests/job.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/tenant_types.h"
#include "daemon/tables/fit.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/trial.h"
#include "gpu/device.h"

enum { REPORT_EVERY_MS = 1000 };

/* ---- REPORT ---- */

struct report_moments_job {
    struct job job;
    uint8_t model_digest[DIGEST_BYTES], geometry_digest[DIGEST_BYTES];
    int arena_fd; /* of the session, which outlives its jobs; borrowed */
    uint64_t offset, bytes;
    struct live_moments *live;
    bool joint;
    int err;
    struct errmsg why;
};

static int report_read_arena(struct report_moments_job *j, uint8_t *to)
{
    int r = fd_pread_all(j->arena_fd, to, (size_t) j->bytes, j->offset);

    if (r == -ENODATA)
        r = -EIO;
    if (r < 0)
        return fail(&j->why, r, "cannot read the arena: %s", strerror(-r));
    return 0;
}

static bool report_add_moments(struct work_item *i)
{
    struct report_moments_job *j = (struct report_moments_job *) i;
    _cleanup_(freep) uint8_t *copy = malloc((size_t) j->bytes);
    _cleanup_(moments_freep) struct moments *m = NULL;

    j->err = copy ? 0 : fail(&j->why, -ENOMEM, "out of memory for moments");
    if (j->err == 0)
        j->err = report_read_arena(j, copy);
    if (j->err == 0)
        j->err = moments_parse(copy, (size_t) j->bytes, &m, &j->why);
    if (j->err == 0)
        j->err = live_check(m, j->model_digest, j->geometry_digest, j->joint, &j->why);
    if (j->err == 0)
        j->err = live_add(j->live, m, &j->why);
    if (j->err == 0)
        (void) take_ptr(m);
    return false;
}

static int report_conclude_moments(struct job *job, struct request *rq)
{
    struct report_moments_job *j = (struct report_moments_job *) job;
    int r = 0;

    live_close(job->server->live, j->live);
    if (!rq) /* a report that was added stays */
        return 0;
    if (job->work.expired)
        return job_expired(rq);
    if (j->err < 0) {
        job->server->live->n_refused++;
        r = fail(&rq->error, j->err, "%.400s", j->why.text);
    }

    return r;
}

/* @joint: the moments have the bytes of joint ones. */
static int report_start_moments(struct request *rq, const struct session_model *model, bool joint)
{
    const Kvcobra__Report *m = rq->message->report;
    struct server *s = rq->server;
    _cleanup_(freep) struct report_moments_job *j = NULL;
    int r;

    if (s->config->moments_bytes_max == 0)
        return fail(&rq->error, -EOPNOTSUPP, "this kvcobrad accepts no moments: moments-bytes is 0");
    if (m->moments_bytes > s->config->moments_bytes_max || !rq->session->arena ||
        !range_inside(m->moments_offset, m->moments_bytes, extent_bytes(rq->session->arena)))
        return fail(&rq->error, -EINVAL,
                    "moments of %" PRIu64 " bytes at %" PRIu64 " are not inside the arena", m->moments_bytes,
                    m->moments_offset);

    j = malloc(sizeof(*j));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for moments");

    *j = (struct report_moments_job){
        .job.work.run = report_add_moments,
        .job.finish = report_conclude_moments,
        .arena_fd = extent_fd(rq->session->arena),
        .offset = m->moments_offset,
        .bytes = m->moments_bytes,
        .joint = joint,
    };
    memcpy(j->model_digest, model->digest, DIGEST_BYTES);
    memcpy(j->geometry_digest, model->geometry_digest, DIGEST_BYTES);
    r = live_open(s->live, rq->session->tenant->name, model->digest, joint, m->moments_bytes,
                  s->config->moments_bytes_max, &j->live, &rq->error);
    if (r < 0)
        return r;

    r = job_start(&j->job, rq);
    if (r == REQUEST_PENDING)
        (void) take_ptr(j);
    else
        live_close(s->live, j->live);
    return r;
}

/* A table's fit, created with its first report. */
static struct fit *report_fit_of(struct table_entry *t)
{
    if (!t->fit)
        t->fit = fit_new(t->table->geometry.n_layers);
    return t->fit;
}

/* The model's shadow, if the report names it; a shadow that ended meanwhile is ignored. */
static int report_find_shadow(struct request *rq, const struct table_entry *t, struct table_entry **ret)
{
    const ProtobufCBinaryData *digest = &rq->message->report->shadow_digest;
    const struct table_model *m = table_model_find(rq->server->tables, t->model_digest);
    const uint8_t *bytes;
    int r;

    *ret = NULL;
    if (digest->len == 0)
        return 0;

    r = request_digest(rq, digest, "shadow's digest", &bytes);
    if (r < 0)
        return r;

    if (m && m->active == t && m->trials.shadow && memcmp(m->trials.shadow->digest, bytes, DIGEST_BYTES) == 0)
        *ret = m->trials.shadow;
    return 0;
}

static int report_apply(struct request *rq)
{
    const Kvcobra__Report *m = rq->message->report;
    const struct session_model *model = session_model(rq->session, m->model);
    uint64_t now_ms = ev_now_ms(rq->server->ev);
    struct table_entry *t, *shadow = NULL;
    const struct geometry *g;
    int r;

    if (!model)
        return fail(&rq->error, -EINVAL, "this session has no model %" PRIu32, m->model);
    if (rq->session->reported_ms != 0 && now_ms - rq->session->reported_ms < REPORT_EVERY_MS)
        return fail(&rq->error, -EAGAIN, "a session may report once a second: merge reports");

    rq->session->reported_ms = now_ms;
    r = request_table(rq, &m->table_digest, &t);
    if (r < 0)
        return r;
    if (memcmp(t->model_digest, model->digest, DIGEST_BYTES) != 0)
        return fail(&rq->error, -EINVAL, "the table is of another model");

    r = fit_check(m, t->table->geometry.n_layers, &rq->error);
    if (r == 0)
        r = report_find_shadow(rq, t, &shadow);
    if (r < 0)
        return r;
    if (!report_fit_of(t) || (shadow && !report_fit_of(shadow)))
        return fail(&rq->error, -ENOMEM, "out of memory for a table's fit");

    fit_add(t->fit, shadow ? shadow->fit : NULL, m);
    rq->server->live->n_reports++;
    if (m->moments_bytes == 0)
        return 0;

    g = &t->table->geometry;
    return report_start_moments(rq, model, g->n_kv_heads > 1 && m->moments_bytes == moments_bytes(g, true));
}

static int report_handle(struct request *rq)
{
    int r = report_apply(rq);

    rq->server->live->n_refused += r < 0 && r != -EAGAIN;
    return r;
}
REQUEST(request_report) = {
    .body = KVCOBRA__REQUEST__BODY_REPORT, .run = report_handle, .needs = CONN_OPEN, .sockets = ON_CLIENT};
