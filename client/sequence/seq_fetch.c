/*
 * A match without waiting (kvc_fetch_start()): the steps of seq_match.h, each LEASE as a post of the
 * connection (connection_post()).
 *
 * The caller polls an epoll descriptor. It has the socket, where replies arrive, and a timer, which expires
 * at once when another call received the reply or the connection was closed, and otherwise when the reply is
 * overdue. Every event leads to kvc_fetch_result(), which collects replies and goes on.
 */
#include "client/sequence/seq_match.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fd_number.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"

/* A LEASE on its way. It outlives its fetch if that is cancelled. */
struct seq_fetch_request {
    struct connection_post post; /* first member */
    uint64_t epoch;              /* of the connection that it was posted on */
    struct kvc_fetch *fetch;     /* NULL: cancelled */
    struct client_lease *lease;  /* cancelled: what the reply grants is given back */
};

struct kvc_fetch {
    struct kvc_fetch *prev, *next;
    struct kvc_client *client;
    struct kvc_seq *seq; /* NULL: it was freed */
    struct seq_match match;
    struct seq_fetch_request *request; /* NULL: the fetch has ended */
    int epoll, timer;
    int result; /* once it has ended */
    size_t n_tokens;
    struct errmsg why;
};

/* ---- the descriptor ---- */

/* Makes the descriptor readable after @ms; 0: at once. */
static void seq_fetch_arm(const struct kvc_fetch *f, uint32_t ms)
{
    const struct itimerspec t = {
        .it_value = {.tv_sec = ms / 1000, .tv_nsec = ms > 0 ? (long) (ms % 1000) * 1000000 : 1}};

    (void) timerfd_settime(f->timer, 0, &t, NULL); /* cannot fail with these arguments */
}

static void seq_fetch_arm_deadline(const struct kvc_fetch *f)
{
    const struct connection *c = &f->client->connection;

    seq_fetch_arm(f, c->request_ms + c->grace_ms);
}

static int seq_fetch_watch(const struct kvc_fetch *f, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

    return epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static int seq_fetch_open_descriptors(struct kvc_fetch *f)
{
    const struct connection *c = &f->client->connection;
    int r = 0;

    f->epoll = fd_above_standard(epoll_create1(EPOLL_CLOEXEC));
    if (f->epoll >= 0)
        f->timer = fd_above_standard(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (f->timer < 0)
        r = -errno;
    if (r == 0)
        r = seq_fetch_watch(f, f->timer);
    if (r == 0 && connection_is_open(c))
        r = seq_fetch_watch(f, c->fd);
    if (r < 0)
        return fail(&f->client->error, r, "cannot create the descriptor of a fetch: %s", strerror(-r));

    return 0;
}

/* ---- requests ---- */

/* What a cancelled request was granted is released by the next flush. */
static void seq_fetch_refuse(struct seq_fetch_request *q)
{
    const Kvcobra__Reply *m = q->post.err == 0 ? q->post.reply.message : NULL;

    if (m && m->err == 0)
        client_lease_refuse(q->lease, m->lease->lease, m->lease->n_pages);
    else
        client_lease_refuse(q->lease, 0, 0);
    reply_deinit(&q->post.reply);
    free(q);
}

static void seq_fetch_on_done(struct connection_post *p)
{
    struct seq_fetch_request *q = (struct seq_fetch_request *) p;

    if (q->fetch)
        seq_fetch_arm(q->fetch, 0);
    else
        seq_fetch_refuse(q);
}

/* Takes the request from the fetch: nothing more arrives for it. */
static void seq_fetch_drop_request(struct kvc_fetch *f)
{
    struct seq_fetch_request *q = take_ptr(f->request);

    if (!q)
        return;

    q->fetch = NULL;
    q->lease = take_ptr(f->match.lease);
    if (q->post.state == POST_DONE || connection_cancel_post(&f->client->connection, &q->post))
        seq_fetch_refuse(q);
}

/* ---- the end ---- */

static void seq_fetch_end(struct kvc_fetch *f, int r, const struct errmsg *why)
{
    f->result = r;
    f->why = *why;
    if (r == 0)
        f->n_tokens = f->seq->n_matched * CHUNK_TOKENS;
    seq_match_deinit(&f->match);
    seq_fetch_arm(f, 0);
}

/* @r: the error that ended the match; 0: none. */
static void seq_fetch_finish(struct kvc_fetch *f, int r)
{
    r = seq_match_finish(&f->match, r);
    seq_fetch_end(f, r, &f->client->error);
}

/* The sequence gets back what it had before. */
static void seq_fetch_undo(struct kvc_fetch *f)
{
    struct kvc_seq *s = f->seq;

    seq_drop_pages(s, f->match.first);
    if (s->n_pages <= s->first_lost)
        s->first_lost = SIZE_MAX;
}

/* The connection was lost: the same as a match without a daemon, also if pages were granted before. */
static void seq_fetch_end_lost(struct kvc_fetch *f)
{
    seq_fetch_undo(f);
    seq_fetch_finish(f, -ENOTCONN);
}

void seq_fetch_cancel(struct kvc_fetch *f)
{
    if (f->request) {
        struct errmsg why; /* not the client's: kvc_seq_free() keeps the last sentence */

        seq_fetch_drop_request(f);
        seq_fetch_undo(f);
        seq_fetch_end(f, fail(&why, -ECANCELED, "the sequence of the fetch was freed"), &why);
    }

    f->seq->fetch = NULL;
    f->seq = NULL;
}

/* ---- the steps ---- */

/* Posts the next LEASE, or ends the fetch. @r: the error of the step before; 0: none. */
static void seq_fetch_go_on(struct kvc_fetch *f, struct seq_fetch_request *q, int r)
{
    struct connection *c = &f->client->connection;
    Kvcobra__Lease lease;

    if (r == 0)
        r = seq_match_request(&f->match, &lease);
    if (r == 1) {
        *q = (struct seq_fetch_request){
            .post = {.body = KVCOBRA__REPLY__BODY_LEASE, .on_done = seq_fetch_on_done},
            .epoch = c->epoch,
            .fetch = f,
        };
        seq_fetch_arm_deadline(f);
        r = connection_post(c, KVCOBRA__REQUEST__BODY_LEASE, &lease, &q->post, &f->client->error);
        if (r == 0) {
            f->request = q;
            return;
        }
    }

    free(q);
    if (r == -ENOTCONN)
        seq_fetch_end_lost(f);
    else
        seq_fetch_finish(f, r);
}

/*
 * The reply is there, or will not come. A reply of an earlier connection grants nothing: when the client
 * connected again, it did not yet know the lease, so the daemon released it.
 */
static void seq_fetch_take_reply(struct kvc_fetch *f)
{
    struct seq_fetch_request *q = take_ptr(f->request);
    _cleanup_(reply_deinit) struct reply reply = q->post.reply;
    struct errmsg *e = &f->client->error;
    int r = q->epoch == f->client->connection.epoch ? q->post.err : -ENOTCONN;

    if (r == 0 && reply.message->err < 0) {
        r = reply.message->err;
        (void) fail(e, r, "%s", reply.message->message[0] ? reply.message->message : strerror(-r));
    } else if (r == 0)
        r = seq_match_add_reply(&f->match, reply.message->lease);
    seq_fetch_go_on(f, q, r);
}

static void seq_fetch_begin(struct kvc_fetch *f, struct seq_fetch_request *q, const uint32_t *tokens)
{
    struct seq_match *m = &f->match;

    if (m->n_chunks > m->first && model_is_connected(f->seq->model)) {
        seq_fetch_go_on(f, q, seq_match_look_up(m, tokens));
        return;
    }

    free(q);
    seq_fetch_end(f, 0, &(struct errmsg){""});
}

/* ---- the calls ---- */

static void seq_fetch_free(struct kvc_fetch *f)
{
    closep(&f->epoll);
    closep(&f->timer);
    seq_match_deinit(&f->match);
    free(f);
}

static void seq_fetch_freep(struct kvc_fetch **f)
{
    if (*f)
        seq_fetch_free(*f);
}

static void seq_fetch_add_to_client(struct kvc_fetch *f)
{
    f->next = f->client->fetches;
    if (f->next)
        f->next->prev = f;
    f->client->fetches = f;
}

int kvc_fetch_start(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t n_leave,
                    kvc_fetch **ret_fetch)
{
    _cleanup_(seq_fetch_freep) struct kvc_fetch *f = NULL;
    _cleanup_(freep) struct seq_fetch_request *q = NULL;
    struct kvc_client *c;
    int r = seq_enter(s);

    if (r < 0)
        return r;

    c = s->model->client;
    if (!ret_fetch)
        return fail(&c->error, -EINVAL, "kvc_fetch_start: ret_fetch is NULL");

    f = calloc(1, sizeof(*f));
    q = calloc(1, sizeof(*q));
    if (!f || !q) {
        free(take_ptr(f));
        return fail(&c->error, -ENOMEM, "out of memory for a fetch");
    }

    f->client = c;
    f->seq = s;
    f->epoll = f->timer = -1;
    r = seq_match_init(s, tokens, n_tokens, n_leave, &f->match);
    if (r == 0)
        r = seq_fetch_open_descriptors(f);
    if (r < 0)
        return r;

    s->fetch = f;
    seq_fetch_add_to_client(f);
    seq_fetch_begin(f, take_ptr(q), tokens);
    errmsg_clear(&c->error);
    *ret_fetch = take_ptr(f);
    return 0;
}

int kvc_fetch_fd(const kvc_fetch *f)
{
    return f ? f->epoll : -EINVAL;
}

int kvc_fetch_result(kvc_fetch *f, size_t *ret_n)
{
    struct errmsg *e;
    int r;

    if (!f)
        return -EINVAL;

    r = client_enter(f->client);
    if (r < 0)
        return r;

    e = &f->client->error;
    if (!ret_n)
        return fail(e, -EINVAL, "kvc_fetch_result: ret_n is NULL");

    if (f->request)
        connection_collect(&f->client->connection);
    if (f->request && f->request->post.state == POST_DONE) {
        r = f->seq->ops->check_idle(f->seq);
        if (r < 0)
            return r;

        seq_fetch_take_reply(f);
    }
    if (f->request) {
        if (f->request->post.state != POST_DONE)
            seq_fetch_arm_deadline(f);
        return fail(e, -EINPROGRESS, "the fetch has not finished: poll its descriptor");
    }

    *e = f->why;
    if (f->result == 0)
        *ret_n = f->n_tokens;
    return f->result;
}

kvc_fetch *kvc_fetch_free(kvc_fetch *f)
{
    struct kvc_client *c;

    if (!f || !client_is_ours(f->client))
        return NULL;

    c = f->client;
    if (f->seq)
        seq_fetch_cancel(f);
    if (f->prev)
        f->prev->next = f->next;
    else
        c->fetches = f->next;
    if (f->next)
        f->next->prev = f->prev;
    seq_fetch_free(f);
    client_flush(c);
    return NULL;
}
