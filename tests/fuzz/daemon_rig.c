/* See daemon_rig.h. */
#include "tests/fuzz/daemon_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/listen.h"
#include "daemon/loop/supervisor.h"
#include "daemon/loop/work.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/state.h"
#include "daemon/server.h"

enum { PROCESSES_MAX = 3 };

struct queued_reply {
    struct queued_reply *next;
    struct rig_reply reply;
};

static struct queued_reply *replies, **last_reply = &replies;
static struct ucred connecting; /* of the peer whose connection is being accepted */
static struct rig_link *connecting_link;

void rig_broken(const char *rule, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken: %s\n", file, line, rule);
    abort();
}

/* ---- the loop ---- */

struct ev {
    uint64_t now_ms;
    uint64_t period_ms, demand_ms;
    ev_tick_fn on_tick;
    void *ctx;
};

struct ev_source {
    struct ev_stream_callbacks stream;
    ev_readable_fn on_readable;
    void *ctx;
    int fd; /* of a listener or stream; -1: borrowed */
    struct rig_link *link;
};

static struct ev loop;

int ev_new(struct ev **ret_ev, struct errmsg *e)
{
    (void) e;
    loop = (struct ev){.now_ms = loop.now_ms + 1000};
    *ret_ev = &loop;
    return 0;
}

struct ev *ev_free(struct ev *ev)
{
    (void) ev;
    return NULL;
}

uint64_t ev_now_ms(const struct ev *ev)
{
    return ev->now_ms;
}

int ev_run(struct ev *ev)
{
    (void) ev;
    return -ENOSYS;
}

void ev_stop(struct ev *ev)
{
    (void) ev;
}

static int new_source(const struct ev_source *with, struct ev_source **ret)
{
    struct ev_source *s = malloc(sizeof(*s));

    rig_check(s != NULL);
    *s = *with;
    *ret = s;
    return 0;
}

int ev_listen(struct ev *ev, int fd, ev_accept_fn on_accept, void *ctx, struct ev_source **ret)
{
    (void) ev;
    (void) on_accept;
    return new_source(&(struct ev_source){.fd = fd, .ctx = ctx}, ret);
}

int ev_stream_new(struct ev *ev, int fd, const struct ev_stream_callbacks *cb, void *ctx,
                  struct ev_source **ret)
{
    (void) ev;
    new_source(&(struct ev_source){.fd = fd, .stream = *cb, .ctx = ctx, .link = connecting_link}, ret);
    connecting_link->stream = *ret;
    return 0;
}

int ev_stream_send(struct ev_source *s, const void *data, size_t bytes, const int *fds, size_t n_fds)
{
    struct queued_reply *q = calloc(1, sizeof(*q));

    rig_check(q && n_fds <= RIG_FDS_MAX);
    rig_check(wire_reply_unpack(data, bytes, &q->reply.message) == 0);
    q->reply.link = s->link;
    q->reply.n_fds = n_fds;
    if (n_fds > 0)
        memcpy(q->reply.fds, fds, n_fds * sizeof(fds[0]));
    *last_reply = q;
    last_reply = &q->next;
    return 0;
}

bool ev_stream_drained(const struct ev_source *s)
{
    (void) s;
    return true;
}

int ev_source_set_share(struct ev_source *s, struct fair_share *share)
{
    (void) s;
    (void) share;
    return 0;
}

void ev_refuse(struct ev *ev, int fd)
{
    (void) ev;
    (void) close(fd);
}

uint32_t ev_n_closing(const struct ev *ev, uid_t uid)
{
    (void) ev;
    (void) uid;
    return 0;
}

int ev_watch(struct ev *ev, int fd, ev_readable_fn on_readable, void *ctx, struct ev_source **ret)
{
    (void) ev;
    (void) fd;
    return new_source(&(struct ev_source){.fd = -1, .on_readable = on_readable, .ctx = ctx}, ret);
}

void ev_watch_rouse(struct ev_source *s)
{
    (void) s; /* the rig serves no metrics */
}

void ev_watch_pause(struct ev_source *s)
{
    (void) s;
}

struct ev_source *ev_source_free(struct ev_source *s)
{
    if (!s)
        return NULL;
    closep(&s->fd);
    if (s->link) {
        s->link->closed = true;
        s->link->stream = NULL;
    }
    free(s);
    return NULL;
}

void ev_tick_every(struct ev *ev, uint64_t period_ms, ev_tick_fn on_tick, void *ctx)
{
    ev->period_ms = period_ms;
    ev->on_tick = on_tick;
    ev->ctx = ctx;
}

void ev_tick_set_demand(struct ev *ev, uint64_t period_ms)
{
    ev->demand_ms = period_ms;
}

void ev_tick_demand(struct ev *ev)
{
    if (ev->period_ms == 0 || ev->period_ms > ev->demand_ms)
        ev->period_ms = ev->demand_ms;
}

/* ---- threads ---- */

struct work {
    struct work_item *first, **last;
    struct work_metrics counts;
    uint32_t n_items_max;
};

static struct work queue;

int work_new(struct ev *ev, uint32_t n_threads, uint32_t n_items_max, struct work **ret, struct errmsg *e)
{
    (void) ev;
    (void) e;
    queue =
        (struct work){.last = &queue.first, .counts = {.n_threads = n_threads}, .n_items_max = n_items_max};
    *ret = &queue;
    return 0;
}

static void append_item(struct work_item *i)
{
    i->next_late = NULL;
    *queue.last = i;
    queue.last = &i->next_late;
    queue.counts.n_waiting++;
}

static struct work_item *take_item(struct work_item **at)
{
    struct work_item *i = *at;

    *at = i->next_late;
    if (!i->next_late)
        queue.last = at;
    queue.counts.n_waiting--;
    return i;
}

int work_submit(struct work *w, struct work_share *s, struct work_item *i)
{
    (void) s;
    if (w->counts.n_waiting >= w->n_items_max) {
        w->counts.n_refused++;
        return -EAGAIN;
    }
    i->expired = false;
    append_item(i);
    return 0;
}

bool rig_work(void)
{
    struct work_item *i;

    if (!queue.first)
        return false;
    i = take_item(&queue.first);
    if (i->run(i)) {
        append_item(i);
    } else {
        queue.counts.n_done++;
        i->done(i);
    }
    return true;
}

static void expire_item(struct work_item **at)
{
    struct work_item *i = take_item(at);

    i->expired = true;
    queue.counts.n_expired++;
    i->done(i);
}

void work_expire(struct work *w, uint64_t now_ms)
{
    struct work_item **at = &w->first;

    while (*at) {
        if ((*at)->deadline_ms <= now_ms) {
            expire_item(at);
            at = &w->first; /* done() may submit items */
        } else {
            at = &(*at)->next_late;
        }
    }
}

struct work *work_free(struct work *w)
{
    while (w && w->first)
        expire_item(&w->first);
    return NULL;
}

void work_metrics(struct work *w, struct work_metrics *ret)
{
    *ret = w->counts;
}

uint64_t work_clock_ms(void)
{
    return loop.now_ms;
}

/* ---- sockets ---- */

void listen_init(struct listen_socket *l)
{
    *l = (struct listen_socket){.fd = -1};
}

void listen_deinit(struct listen_socket *l)
{
    closep(&l->fd);
    l->fd = -1;
}

static int open_nothing(void)
{
    return fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
}

int listen_at(struct listen_socket *l, int type, const char *path, mode_t mode, gid_t group, struct errmsg *e)
{
    (void) group;
    (void) type;
    (void) path;
    (void) mode;
    (void) e;
    l->fd = open_nothing();
    return 0;
}

int listen_watch(const struct listen_socket *l, struct names *n, const char *what, const char *path,
                 struct errmsg *e)
{
    (void) l;
    (void) n;
    (void) what;
    (void) path;
    (void) e;
    return 0;
}

void listen_refuse_descriptors(struct listen_socket *l)
{
    (void) l;
}

int listen_adopt(struct listen_socket *l, int fd, const char *option, struct errmsg *e)
{
    (void) option;
    (void) e;
    l->fd = fd;
    return 0;
}

void listen_path(int fd, char ret[static LISTEN_PATH_BYTES])
{
    (void) fd;
    ret[0] = '\0';
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);
int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);

/* The credentials of the peer whose connection is being accepted. */
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
    if (level != SOL_SOCKET || name != SO_PEERCRED)
        return __real_getsockopt(fd, level, name, value, bytes);
    memcpy(value, &connecting, sizeof(connecting));
    return 0;
}

/* ---- the daemon ---- */

static int refuse_reload(struct config *fresh, struct errmsg *e)
{
    config_init(fresh);
    return fail(e, -EINVAL, "no file");
}

struct server *rig_start(struct config *c, bool keep)
{
    struct errmsg e = {""};
    struct server *s = rig_try_start(c, keep, &e);

    if (!s)
        fprintf(stderr, "the daemon does not start: %s\n", e.text);
    rig_check(s != NULL);
    return s;
}

struct server *rig_try_start(struct config *c, bool keep, struct errmsg *e)
{
    struct server *s = NULL;
    sigset_t before;

    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        (void) rig_process(i); /* before the daemon opens what they must not hold open: its lock */

    c->keep_pool = keep ? KEEP_YES : KEEP_NO;
    (void) sigprocmask(SIG_BLOCK, NULL, &before);
    if (server_new(c, refuse_reload, &s, e) < 0)
        s = NULL;
    (void) sigprocmask(SIG_SETMASK, &before, NULL); /* libFuzzer handles SIGINT and SIGTERM */
    return s;
}

void rig_stop(struct server *s)
{
    struct rig_reply r;

    (void) server_free(s);
    while (rig_take_reply(&r))
        rig_reply_free(&r);
}

pid_t rig_process(unsigned number)
{
    static pid_t processes[PROCESSES_MAX];
    pid_t *p = &processes[number % PROCESSES_MAX];

    if (*p == 0) {
        *p = fork();
        rig_check(*p >= 0);
        if (*p == 0) {
            (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
            (void) close_range(0, ~0u, 0); /* nothing of the daemon stays open here: no lock, no memory */
            for (;;)
                (void) pause();
        }
    }
    return *p;
}

struct rig_link *rig_connect(struct server *s, uid_t uid, pid_t pid, bool is_operator)
{
    struct rig_link *l = calloc(1, sizeof(*l));

    rig_check(l != NULL);
    *l = (struct rig_link){.pid = pid, .uid = uid};
    connecting = (struct ucred){.pid = pid, .uid = uid, .gid = uid};
    connecting_link = l;
    conn_accept(s, open_nothing(), is_operator);
    connecting_link = NULL;
    l->closed = !l->stream;
    return l;
}

void rig_close(struct rig_link *l)
{
    if (l->stream)
        l->stream->stream.on_end(l->stream->ctx, 0);
    rig_check(l->closed);
}

struct rig_link *rig_link_free(struct rig_link *l)
{
    if (l)
        rig_check(l->closed);
    free(l);
    return NULL;
}

void rig_send(struct rig_link *l, const void *packet, size_t bytes, const int *fds, size_t n_fds)
{
    struct wire_packet p = {.bytes = bytes, .n_fds = n_fds, .pid = l->pid, .uid = l->uid, .gid = l->uid};

    rig_check(n_fds <= WIRE_FDS_MAX);
    if (n_fds > 0)
        memcpy(p.fds, fds, n_fds * sizeof(fds[0]));
    if (l->stream)
        l->stream->stream.on_packet(l->stream->ctx, packet, &p);
    else
        wire_packet_close_fds(&p);
}

bool rig_take_reply(struct rig_reply *ret)
{
    struct queued_reply *q = replies;

    if (!q)
        return false;
    replies = q->next;
    if (!replies)
        last_reply = &replies;
    *ret = q->reply;
    free(q);
    return true;
}

void rig_reply_free(struct rig_reply *r)
{
    for (size_t i = 0; i < r->n_fds; i++)
        closep(&r->fds[i]);
    wire_reply_free(r->message);
    *r = (struct rig_reply){.message = NULL};
}

void rig_pass_time(uint64_t ms)
{
    loop.now_ms += ms;
    if (loop.period_ms > 0)
        loop.on_tick(loop.ctx);
}

void rig_wake(struct ev_source *watch)
{
    watch->on_readable(watch->ctx);
}
