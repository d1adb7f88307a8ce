/*
 * What clients report about the fit of tables (REPORT), and what operators ask for (GET_FIT, FETCH_MOMENTS,
 * SHADOW_TABLE, CANARY_TABLE). Moments are megabytes: copied from the arena, checked and added up on threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/moments.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "daemon/requests/conn.h"
#include "daemon/tables/fit.h"
#include "daemon/requests/job.h"
#include "daemon/tables/live_moments.h"
#include "daemon/server.h"
#include "daemon/session/session.h"
#include "daemon/tables/trial.h"
#include "gpu/device.h"

enum { REPORT_EVERY_MS = 1000 };

/* ---- REPORT ---- */

struct moments_job {
    struct job job;
    uint8_t model_digest[DIGEST_BYTES], geometry_digest[DIGEST_BYTES];
    int arena_fd; /* borrowed of the session, which outlives its jobs */
    uint64_t offset, bytes;
    struct live_moments *live;
    int err;
    struct errmsg why;
};

static bool report_take_moments(struct work_item *i)
{
    struct moments_job *j = (struct moments_job *) i;
    _cleanup_(freep) uint8_t *copy = malloc((size_t) j->bytes);
    _cleanup_(moments_freep) struct moments *m = NULL;

    j->err = copy ? 0 : fail(&j->why, -ENOMEM, "out of memory for moments");
    for (size_t have = 0; j->err == 0 && have < j->bytes;) {
        ssize_t n = pread(j->arena_fd, copy + have, (size_t) j->bytes - have, (off_t) (j->offset + have));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            j->err = fail(&j->why, n < 0 ? -errno : -EIO, "cannot read the arena: %s",
                          strerror(n < 0 ? errno : EIO));
        else
            have += (size_t) n;
    }
    if (j->err == 0)
        j->err = moments_parse(copy, (size_t) j->bytes, &m, &j->why);
    if (j->err == 0)
        j->err = live_check(m, j->model_digest, j->geometry_digest, &j->why);
    if (j->err == 0)
        j->err = live_add(j->live, m, &j->why);
    if (j->err == 0)
        (void) take_ptr(m);
    return false;
}

static int report_moments_taken(struct job *job, struct request *rq)
{
    struct moments_job *j = (struct moments_job *) job;
    int r = 0;

    live_close(&job->server->live, j->live);
    if (!rq) /* what was added stays */
        return 0;
    if (job->work.expired)
        return job_expired(rq);
    if (j->err < 0) {
        job->server->refused_reports++;
        r = fail(&rq->error, j->err, "%.400s", j->why.text);
    }
    return r;
}

static int report_start_moments(struct request *rq, const struct session_model *model)
{
    const Kvcobra__Report *m = rq->message->report;
    struct server *s = rq->server;
    _cleanup_(freep) struct moments_job *j = NULL;
    int r;

    if (s->config->moments_bytes_max == 0)
        return fail(&rq->error, -EOPNOTSUPP, "this kvcobrad takes no moments: moments-bytes is 0");
    if (m->moments_bytes > s->config->moments_bytes_max || !rq->session->arena ||
        !range_inside(m->moments_offset, m->moments_bytes, extent_bytes(rq->session->arena)))
        return fail(&rq->error, -EINVAL,
                    "moments of %" PRIu64 " bytes at %" PRIu64 " are not inside the arena", m->moments_bytes,
                    m->moments_offset);
    j = malloc(sizeof(*j));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for moments");
    *j = (struct moments_job){
        .job.work.run = report_take_moments,
        .job.finish = report_moments_taken,
        .arena_fd = extent_fd(rq->session->arena),
        .offset = m->moments_offset,
        .bytes = m->moments_bytes,
    };
    memcpy(j->model_digest, model->digest, DIGEST_BYTES);
    memcpy(j->geometry_digest, model->geometry_digest, DIGEST_BYTES);
    r = live_open(&s->live, rq->session->tenant->name, model->digest, m->moments_bytes,
                  s->config->moments_bytes_max, &j->live, &rq->error);
    if (r < 0)
        return r;
    r = job_start(&j->job, rq);
    if (r == REQUEST_PENDING)
        (void) take_ptr(j);
    else
        live_close(&s->live, j->live);
    return r;
}

/* A table's fit, made if it is the first report of it. */
static struct fit *report_fit_of(struct table_entry *t)
{
    if (!t->fit)
        t->fit = fit_new(t->table->geometry.n_layers);
    return t->fit;
}

/* The model's shadow, if the report is about that; a shadow that ended meanwhile is left out of it. */
static int report_find_shadow(struct request *rq, const struct table_entry *t, struct table_entry **ret)
{
    const ProtobufCBinaryData *digest = &rq->message->report->shadow_digest;
    const struct table_model *m = tables_model(&rq->server->tables, t->model_digest);

    *ret = NULL;
    if (digest->len == 0)
        return 0;
    if (digest->len != DIGEST_BYTES)
        return fail(&rq->error, -EINVAL, "a shadow's digest of %zu bytes instead of %d", digest->len,
                    DIGEST_BYTES);
    if (m && m->active == t && m->trials.shadow &&
        memcmp(m->trials.shadow->digest, digest->data, DIGEST_BYTES) == 0)
        *ret = m->trials.shadow;
    return 0;
}

static int report(struct request *rq)
{
    const Kvcobra__Report *m = rq->message->report;
    const struct session_model *model = session_model(rq->session, m->model);
    uint64_t now_ms = ev_now_ms(rq->server->ev);
    struct table_entry *t, *shadow;
    int r;

    if (!model)
        return fail(&rq->error, -EINVAL, "this session has no model %" PRIu32, m->model);
    if (rq->session->reported_ms != 0 && now_ms - rq->session->reported_ms < REPORT_EVERY_MS)
        return fail(&rq->error, -EAGAIN,
                    "a session is heard once a second: report together what comes together");
    rq->session->reported_ms = now_ms;
    r = request_table(rq, &m->table_digest, &t);
    if (r < 0)
        return r;
    if (memcmp(t->model_digest, model->digest, DIGEST_BYTES) != 0)
        return fail(&rq->error, -EINVAL, "the table is one of another model");
    r = fit_check(m, t->table->geometry.n_layers, &rq->error);
    if (r == 0)
        r = report_find_shadow(rq, t, &shadow);
    if (r < 0)
        return r;
    if (!report_fit_of(t) || (shadow && !report_fit_of(shadow)))
        return fail(&rq->error, -ENOMEM, "out of memory for a table's fit");
    fit_add(t->fit, shadow ? shadow->fit : NULL, m);
    rq->server->reports++;
    return m->moments_bytes > 0 ? report_start_moments(rq, model) : 0;
}

int handle_report(struct request *rq)
{
    int r = report(rq);

    rq->server->refused_reports += r < 0 && r != -EAGAIN;
    return r;
}

/* ---- operator ---- */

static int report_find_table(struct request *rq, const ProtobufCBinaryData *digest, struct table_entry **ret)
{
    if (digest->len != DIGEST_BYTES)
        return fail(&rq->error, -EINVAL, "a table digest of %zu bytes instead of %d", digest->len,
                    DIGEST_BYTES);
    *ret = tables_find(&rq->server->tables, digest->data);
    return *ret ? 0 : fail(&rq->error, -ENOENT, "no such table here");
}

int handle_get_fit(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__GetFitReply *reply = &scratch->body.get_fit;
    struct table_entry *t;
    uint32_t n;
    int r = report_find_table(rq, &rq->message->get_fit->digest, &t);

    if (r < 0)
        return r;
    kvcobra__get_fit_reply__init(reply);
    fit_fill(t->fit, &scratch->fits[0]);
    reply->fit = &scratch->fits[0];
    n = t->fit ? t->fit->n_layers : 0;
    if (n > WIRE_ITEMS_MAX)
        n = WIRE_ITEMS_MAX;
    for (uint32_t i = 0; i < n; i++) {
        fit_fill_layer(t->fit, i, &scratch->live[i], &scratch->shadow[i]);
        scratch->live_pointers[i] = &scratch->live[i];
        scratch->shadow_pointers[i] = &scratch->shadow[i];
    }
    reply->n_live = reply->n_shadow = n;
    reply->live = scratch->live_pointers;
    reply->shadow = scratch->shadow_pointers;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_GET_FIT;
    rq->reply.get_fit = reply;
    return 0;
}

/* The image in a memory object that goes with the reply and then belongs to the operator alone. */
static int report_write_image(const struct moments *m, size_t bytes, int *ret_fd, struct errmsg *e)
{
    _cleanup_(closep) int fd = memfd_create("kvcobra-moments", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *p;

    if (fd < 0 || ftruncate(fd, (off_t) bytes) < 0)
        return fail(e, -errno, "cannot make room for %zu bytes of moments: %s", bytes, strerror(errno));
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return fail(e, -errno, "cannot map %zu bytes of moments: %s", bytes, strerror(errno));
    moments_write(m, p);
    (void) munmap(p, bytes);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return fail(e, -errno, "cannot seal the moments: %s", strerror(errno));
    *ret_fd = take_fd(&fd);
    return 0;
}

struct fetch_job {
    struct job job;
    struct live_moments **live; /* [n_live], open */
    size_t n_live, next;
    struct moments *sum;
    uint64_t reports;
    int fd; /* the image */
    int err;
    struct errmsg why;
};

/* One slice: one tenant's, and at the end the image. */
static bool report_add_up(struct work_item *i)
{
    struct fetch_job *j = (struct fetch_job *) i;

    j->err = live_sum(j->live[j->next++], &j->sum, &j->reports, &j->why);
    if (j->err == 0 && j->next < j->n_live)
        return true;
    if (j->err == 0)
        j->err = report_write_image(j->sum, moments_bytes(&moments_get_options(j->sum)->geometry), &j->fd,
                                    &j->why);
    return false;
}

static void report_end_fetch(struct fetch_job *j)
{
    for (size_t i = 0; i < j->n_live; i++)
        live_close(&j->job.server->live, j->live[i]);
    free(j->live);
    j->sum = moments_free(j->sum);
    closep(&j->fd);
}

static void report_fill_moments(struct request *rq, const struct fetch_job *j)
{
    Kvcobra__FetchMomentsReply *reply = &rq->server->scratch->body.fetch_moments;
    const struct geometry *g = &moments_get_options(j->sum)->geometry;

    kvcobra__fetch_moments_reply__init(reply);
    for (uint32_t head = 0; head < g->n_kv_heads; head++)
        if (moments_count(j->sum, 0, head) > reply->tokens)
            reply->tokens = moments_count(j->sum, 0, head);
    reply->bytes = moments_bytes(g);
    reply->reports = j->reports;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_FETCH_MOMENTS;
    rq->reply.fetch_moments = reply;
}

static int report_added_up(struct job *job, struct request *rq)
{
    struct fetch_job *j = (struct fetch_job *) job;
    struct server *s = job->server;
    int r = rq && job->work.expired ? job_expired(rq) : 0;

    if (rq && r == 0 && j->err < 0)
        r = fail(&rq->error, j->err, "%.400s", j->why.text);
    if (rq && r == 0)
        r = request_may_send_fds(rq);
    if (rq && r == 0) {
        report_fill_moments(rq, j);
        closep(&s->moments_fd); /* of the last answer: it was sent as a copy */
        s->moments_fd = take_fd(&j->fd);
        rq->fds[0] = s->moments_fd;
        rq->n_fds = 1;
    }
    report_end_fetch(j);
    return r;
}

int handle_fetch_moments(struct request *rq)
{
    const Kvcobra__FetchMoments *m = rq->message->fetch_moments;
    struct fetch_job *j;
    int r = request_may_send_fds(rq);

    if (r < 0)
        return r;
    if (m->model_digest.len != DIGEST_BYTES)
        return fail(&rq->error, -EINVAL, "a model digest of %zu bytes instead of %d", m->model_digest.len,
                    DIGEST_BYTES);
    j = calloc(1, sizeof(*j));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for moments");
    j->job.server = rq->server;
    j->job.work.run = report_add_up;
    j->job.finish = report_added_up;
    j->fd = -1;
    r = live_select(&rq->server->live, m->model_digest.data, m->tenants, m->n_tenants, &j->live, &j->n_live,
                    &rq->error);
    if (r == 0)
        r = job_start(&j->job, rq);
    if (r != REQUEST_PENDING) {
        report_end_fetch(j);
        free(j);
    }
    return r;
}

static int report_outcome_error(struct request *rq, enum table_outcome outcome, uint64_t asked,
                                uint64_t present)
{
    if (outcome == OUTCOME_STALE)
        return fail(&rq->error, -ESTALE, "revision %" PRIu64 " is older than the model's, %" PRIu64, asked,
                    present);
    if (outcome == OUTCOME_CONFLICT)
        return fail(&rq->error, -EEXIST, "revision %" PRIu64 " changed something else", present);
    return 0;
}

int handle_shadow_table(struct request *rq)
{
    const Kvcobra__ShadowTable *m = rq->message->shadow_table;
    Kvcobra__ShadowTableReply *reply = &rq->server->scratch->body.shadow_table;
    enum table_outcome outcome;
    struct table_entry *t;
    uint64_t revision;
    int r = report_find_table(rq, &m->digest, &t);

    if (r == 0)
        r = tables_shadow(&rq->server->tables, t->digest, m->ppm, m->revision, &outcome, &revision,
                          &rq->error);
    if (r < 0)
        return r;
    kvcobra__shadow_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    reply->revision = revision;
    reply->state = (Kvcobra__TableState) t->state;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_SHADOW_TABLE;
    rq->reply.shadow_table = reply;
    return report_outcome_error(rq, outcome, m->revision, revision);
}

int handle_canary_table(struct request *rq)
{
    const Kvcobra__CanaryTable *m = rq->message->canary_table;
    Kvcobra__CanaryTableReply *reply = &rq->server->scratch->body.canary_table;
    enum table_outcome outcome;
    struct table_entry *t;
    uint64_t revision;
    int r = report_find_table(rq, &m->digest, &t);

    if (r == 0)
        r = tables_canary(&rq->server->tables, t->digest, m->share, (const char *const *) m->tenants,
                          m->n_tenants, m->revision, ev_now_ms(rq->server->ev), &outcome, &revision,
                          &rq->error);
    if (r < 0)
        return r;
    kvcobra__canary_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    reply->revision = revision;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_CANARY_TABLE;
    rq->reply.canary_table = reply;
    return report_outcome_error(rq, outcome, m->revision, revision);
}
