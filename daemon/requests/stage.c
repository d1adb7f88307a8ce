/*
 * STAGE: adds a table that an operator sends. Parsing it and syncing its file to the state folder take
 * milliseconds to seconds, so threads do both (tables_stage.h has the steps). One table at a time, since
 * two writers of one file would need an order.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"
#include "daemon/requests/job.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables_stage.h"

struct stage_job {
    struct job job;
    const struct config *config; /* state_dir does not change while the daemon runs */
    struct staging staging;
};

/*
 * Maps a memfd that is sealed against writing and resizing, so the operator cannot
 * change the bytes meanwhile.
 */
static int stage_map_staged(struct request *rq, uint64_t bytes, void **ret)
{
    const int need = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    struct stat st;
    int fd, seals;
    void *p;

    if (rq->packet->n_fds != 1)
        return fail(&rq->error, -EINVAL, "stage_table with %zu descriptors instead of one",
                    rq->packet->n_fds);

    fd = rq->packet->fds[0];
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & need) != need)
        return fail(&rq->error, -EINVAL, "the staged table is not a memfd sealed SHRINK, GROW and WRITE");
    if (fstat(fd, &st) < 0)
        return fail(&rq->error, -errno, "cannot stat the staged table: %s", strerror(errno));
    if ((uint64_t) st.st_size != bytes || bytes == 0)
        return fail(&rq->error, -EINVAL, "the staged table has %lld bytes, not %" PRIu64,
                    (long long) st.st_size, bytes);
    if (bytes > rq->server->config->table_bytes_max)
        return fail(&rq->error, -EFBIG, "a table of %" PRIu64 " bytes: kvcobrad accepts %" PRIu64, bytes,
                    rq->server->config->table_bytes_max);

    p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return fail(&rq->error, -errno, "cannot map the staged table: %s", strerror(errno));

    *ret = p;
    return 0;
}

static int stage_fill_reply(struct request *rq, int r, enum table_outcome outcome,
                            const struct table_entry *t)
{
    Kvcobra__StageTableReply *reply = rq->server->scratch->body;

    if (r < 0 && r != -EBADMSG && r != -ESTALE)
        return r;

    kvcobra__stage_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) (r == -ESTALE ? OUTCOME_STALE : outcome);
    if (t) {
        reply->digest = bytes_view(t->digest, DIGEST_BYTES);
        reply->state = (Kvcobra__TableState) t->state;
        reply->reason = (char *) t->reason;
    }

    rq->reply.body_case = KVCOBRA__REPLY__BODY_STAGE_TABLE;
    rq->reply.stage_table = reply;
    return r;
}

/* Frees the bytes, and allows the next STAGE. */
static void stage_release(struct server *s, struct staging *staging)
{
    (void) munmap((void *) staging->bytes, staging->n_bytes);
    tables_stage_deinit(staging);
    s->is_staging = false;
}

static bool stage_parse(struct work_item *i)
{
    tables_stage_parse(&((struct stage_job *) i)->staging);
    return false;
}

static bool stage_write_file(struct work_item *i)
{
    struct stage_job *j = (struct stage_job *) i;

    tables_stage_write(j->config, &j->staging);
    return false;
}

/* The file is written: adds the table, even if the operator that sent it is gone. */
static int stage_conclude_write(struct job *job, struct request *rq)
{
    struct stage_job *j = (struct stage_job *) job;
    enum table_outcome outcome = OUTCOME_APPLIED;
    struct errmsg ignored;
    struct table_entry *t = NULL;
    int r;

    if (job->work.expired)
        r = rq ? job_expired(rq) : 0;
    else
        r = tables_stage_accept(job->server->tables, &j->staging, &outcome, &t, rq ? &rq->error : &ignored);
    stage_release(job->server, &j->staging);
    return rq ? stage_fill_reply(rq, r, outcome, t) : 0;
}

static int stage_conclude_parse(struct job *job, struct request *rq)
{
    struct stage_job *j = (struct stage_job *) job;
    enum table_outcome outcome = OUTCOME_APPLIED;
    _cleanup_(freep) struct stage_job *next = NULL;
    struct table_entry *t = NULL;
    int r = -ECANCELED;

    if (rq)
        r = job->work.expired
                ? job_expired(rq)
                : tables_stage_decide(job->server->tables, &j->staging, &outcome, &t, &rq->error);
    if (r == STAGING_WRITE && !j->config->state_dir) {
        r = tables_stage_accept(job->server->tables, &j->staging, &outcome, &t, &rq->error);
    } else if (r == STAGING_WRITE) {
        next = malloc(sizeof(*next));
        r = next ? 0 : fail(&rq->error, -ENOMEM, "out of memory for a table");
        if (next) {
            *next = (struct stage_job){
                .job.work.run = stage_write_file,
                .job.finish = stage_conclude_write,
                .config = j->config,
                .staging = j->staging,
            };
            r = job_start(&next->job, rq);
        }
        if (r == REQUEST_PENDING) {
            (void) take_ptr(next);
            return r;
        }
    }

    stage_release(job->server, &j->staging);
    return rq ? stage_fill_reply(rq, r, outcome, t) : 0;
}

static int stage_handle(struct request *rq)
{
    const Kvcobra__StageTable *m = rq->message->stage_table;
    _cleanup_(freep) struct stage_job *j = NULL;
    void *bytes = NULL;
    int r;

    if (rq->server->is_staging)
        return fail(&rq->error, -EAGAIN, "another table is being staged: retry when it is done");

    r = stage_map_staged(rq, m->bytes, &bytes);
    if (r < 0)
        return r;

    j = malloc(sizeof(*j));
    if (!j) {
        (void) munmap(bytes, m->bytes);
        return fail(&rq->error, -ENOMEM, "out of memory for a table");
    }

    *j = (struct stage_job){
        .job.work.run = stage_parse,
        .job.finish = stage_conclude_parse,
        .config = rq->server->config,
        .staging = {.bytes = bytes, .n_bytes = m->bytes, .revision = m->revision, .copy = -1},
    };
    rq->server->is_staging = true;
    r = job_start(&j->job, rq);
    if (r < 0)
        stage_release(rq->server, &j->staging);
    else
        (void) take_ptr(j);
    return r;
}
REQUEST(request_stage_table) = {.body = KVCOBRA__REQUEST__BODY_STAGE_TABLE,
                                .run = stage_handle,
                                .needs = CONN_OPEN,
                                .sockets = ON_OPERATOR};
