/* FETCH_MOMENTS: the sum of the moments that clients reported for a model, as a file. Threads add them up. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/moments/moments.h"
#include "base/cleanup.h"
#include "base/memory_file.h"
#include "daemon/requests/job.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/tables/aliases.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/table_entry.h"

/* Writes the image to a memory object that is sent with the reply and then belongs to the operator alone. */
static int moments_write_image(const struct moments *m, size_t bytes, int *ret_fd, struct errmsg *e)
{
    _cleanup_(closep) int fd = memory_file_open("kvcobra-moments");
    void *p;

    if (fd < 0)
        return fail(e, fd, "cannot create a memory object for moments: %s", strerror(-fd));
    if (ftruncate(fd, (off_t) bytes) < 0)
        return fail(e, -errno, "cannot allocate %zu bytes of moments: %s", bytes, strerror(errno));

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

struct moments_fetch_job {
    struct job job;
    struct live_moments **live; /* [n_live], open */
    size_t n_live, next;
    bool joint;
    struct moments *sum;
    uint64_t reports;
    int fd; /* the image */
    int err;
    struct errmsg why;
};

/* One slice: adds one tenant's moments; the last one writes the image. */
static bool moments_sum_slice(struct work_item *i)
{
    struct moments_fetch_job *j = (struct moments_fetch_job *) i;

    j->err = live_sum(j->live[j->next++], j->joint, &j->sum, &j->reports, &j->why);
    if (j->err == 0 && j->next < j->n_live)
        return true;
    if (j->err == 0)
        j->err = moments_write_image(j->sum, moments_bytes(&moments_get_options(j->sum)->geometry, j->joint),
                                     &j->fd, &j->why);
    return false;
}

static void moments_end_fetch(struct moments_fetch_job *j)
{
    for (size_t i = 0; i < j->n_live; i++)
        live_close(j->job.server->live, j->live[i]);
    free(j->live);
    j->sum = moments_free(j->sum);
    closep(&j->fd);
}

static void moments_fill_reply(struct request *rq, const struct moments_fetch_job *j)
{
    Kvcobra__FetchMomentsReply *reply = rq->server->scratch->body;
    const struct geometry *g = &moments_get_options(j->sum)->geometry;

    kvcobra__fetch_moments_reply__init(reply);
    for (uint32_t head = 0; head < g->n_kv_heads; head++)
        if (moments_count(j->sum, 0, head) > reply->tokens)
            reply->tokens = moments_count(j->sum, 0, head);
    reply->bytes = moments_bytes(g, j->joint);
    reply->reports = j->reports;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_FETCH_MOMENTS;
    rq->reply.fetch_moments = reply;
}

static int moments_conclude_fetch(struct job *job, struct request *rq)
{
    struct moments_fetch_job *j = (struct moments_fetch_job *) job;
    struct server *s = job->server;
    int r = rq && job->work.expired ? job_expired(rq) : 0;

    if (rq && r == 0 && j->err < 0)
        r = fail(&rq->error, j->err, "%.400s", j->why.text);
    if (rq && r == 0)
        r = request_may_send_fds(rq);
    if (rq && r == 0) {
        moments_fill_reply(rq, j);
        closep(&s->moments_fd); /* of the last answer, which was sent as a copy */
        s->moments_fd = take_fd(&j->fd);
        rq->fds[0] = s->moments_fd;
        rq->n_fds = 1;
    }

    moments_end_fetch(j);
    return r;
}

static int moments_handle_fetch(struct request *rq)
{
    const Kvcobra__FetchMoments *m = rq->message->fetch_moments;
    const struct table_model *model;
    const uint8_t *model_digest;
    struct moments_fetch_job *j;
    int r = request_may_send_fds(rq);

    if (r < 0)
        return r;

    r = request_digest(rq, &m->model_digest, "model digest", &model_digest);
    if (r < 0)
        return r;

    j = calloc(1, sizeof(*j));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for moments");

    j->job.server = rq->server;
    j->job.work.run = moments_sum_slice;
    j->job.finish = moments_conclude_fetch;
    j->fd = -1;
    model_digest = aliases_resolve(rq->server->tables, model_digest);
    model = table_model_find(rq->server->tables, model_digest);
    j->joint = model && model->active->table->v_from == PREDICT_LAYER;
    r = live_select(rq->server->live, model_digest, m->tenants, m->n_tenants, &j->joint, &j->live, &j->n_live,
                    &rq->error);
    if (r == 0)
        r = job_start(&j->job, rq);
    if (r != REQUEST_PENDING) {
        moments_end_fetch(j);
        free(j);
    }

    return r;
}
REQUEST(request_fetch_moments) = {.body = KVCOBRA__REQUEST__BODY_FETCH_MOMENTS,
                                  .run = moments_handle_fetch,
                                  .needs = CONN_OPEN,
                                  .sockets = ON_OPERATOR};
