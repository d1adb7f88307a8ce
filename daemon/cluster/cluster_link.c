/* See cluster_link.h. */
#include "daemon/cluster/cluster_link_state.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/listen.h"
#include "daemon/loop/log.h"
#include "daemon/tier/disk_buffers.h"
#include "gpu/device.h"

enum { STATUS_PAUSE_MS = 900 }; /* less than a tick */

const char *const cluster_link_state_names[] = {
    [CLUSTER_LINK_ABSENT] = "absent",     [CLUSTER_LINK_JOINING] = "joining", [CLUSTER_LINK_READY] = "ready",
    [CLUSTER_LINK_DEGRADED] = "degraded", [CLUSTER_LINK_REFUSED] = "refused",
};

/* ---- the end of a connection ---- */

static void cluster_link_close(struct cluster_link *l, const char *why)
{
    l->stream = ev_source_free(l->stream);
    l->is_greeted = false;
    l->asked_ms = 0;
    l->status.state = CLUSTER_LINK_ABSENT;
    memset(l->status.counters, 0, sizeof(l->status.counters));
    (void) snprintf(l->status.sentence, sizeof(l->status.sentence), "%s", why);

    cluster_calls_end(l);
    cluster_calls_set_timer(l);
}

static void cluster_link_drop(struct cluster_link *l, const char *why)
{
    if (log_is_due(++l->status.n_faults))
        log_event(LOG_WARNING, "cluster-tier-gone",
                  "faults=%" PRIu64
                  " message=\"%s\", pages of the cluster are misses until it connects again",
                  l->status.n_faults, why);
    cluster_link_close(l, why);
}

static void cluster_link_ask_status(struct cluster_link *l, uint64_t now_ms)
{
    struct cluster_request q = {.kind = CLUSTER_STATUS,
                                .id = ++l->serial * CLUSTER_REQUESTS_MAX +
                                      CLUSTER_SENT_MAX}; /* a place of its own */

    if (cluster_calls_send(l, &q, NULL, 0) < 0)
        return; /* at the next tick */

    l->status_id = q.id;
    l->asked_ms = now_ms;
}

/* ---- replies ---- */

static void cluster_link_enter(struct cluster_link *l, enum cluster_link_state state, const char *sentence)
{
    bool is_new = l->status.state != state, has_joined = cluster_link_is_ready(l);

    l->status.state = state;
    (void) snprintf(l->status.sentence, sizeof(l->status.sentence), "%s", sentence);
    if (!is_new)
        return;

    l->status.n_joined += cluster_link_is_ready(l) && !has_joined;
    if (state == CLUSTER_LINK_READY) {
        if (log_is_due(has_joined ? l->status.n_degraded : l->status.n_joined))
            log_event(LOG_NOTICE, "cluster-tier-ready", "joined=%" PRIu64 " nodes=%" PRIu64,
                      l->status.n_joined, l->status.counters[CLUSTER_COUNTER_NODES]);
    } else if (state == CLUSTER_LINK_DEGRADED && log_is_due(++l->status.n_degraded)) {
        log_event(LOG_WARNING, "cluster-tier-degraded",
                  "degraded=%" PRIu64 " nodes=%" PRIu64 " answer=%" PRIu64 " message=\"%s\"",
                  l->status.n_degraded, l->status.counters[CLUSTER_COUNTER_NODES],
                  l->status.counters[CLUSTER_COUNTER_NODES_READY], sentence);
    } else if (state == CLUSTER_LINK_REFUSED && log_is_due(++l->status.n_refused)) {
        log_event(LOG_ERR, "cluster-tier-refused",
                  "refused=%" PRIu64 " message=\"%s\", pages of the cluster are misses", l->status.n_refused,
                  sentence);
    }
}

/* A sentence of the process goes to the log and to operators: in one line, without quotes. */
static void cluster_link_clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char) *text < ' ' || (unsigned char) *text >= 0x7f || *text == '"' || *text == '\\')
            *text = '?';
}

static void cluster_link_note_status(struct cluster_link *l, const struct cluster_reply *r)
{
    static const enum cluster_link_state states[] = {[CLUSTER_JOINING] = CLUSTER_LINK_JOINING,
                                                     [CLUSTER_READY] = CLUSTER_LINK_READY,
                                                     [CLUSTER_DEGRADED] = CLUSTER_LINK_DEGRADED,
                                                     [CLUSTER_REFUSED] = CLUSTER_LINK_REFUSED};
    char sentence[CLUSTER_SENTENCE_BYTES];

    l->asked_ms = 0;
    l->answered_ms = ev_now_ms(l->ev);
    memcpy(l->status.counters, r->counters, sizeof(l->status.counters));
    memcpy(sentence, r->sentence, sizeof(sentence));
    cluster_link_clean(sentence);
    cluster_link_enter(l, states[r->counters[CLUSTER_COUNTER_STATE]], sentence);
}

/* Return: 0; -EPROTO: it answers no request; -EREMOTEIO: the process cannot use the memory object. */
static int cluster_link_take_reply(struct cluster_link *l, const struct cluster_reply *r)
{
    if ((r->kind == CLUSTER_HELLO) == l->is_greeted)
        return -EPROTO;
    if (r->kind == CLUSTER_HELLO) {
        if (r->version != CLUSTER_WIRE_VERSION)
            return -EPROTO;
        if (r->result < 0)
            return -EREMOTEIO;
        l->is_greeted = true;
        cluster_link_ask_status(l, ev_now_ms(l->ev));
        return 0;
    }
    if (r->kind == CLUSTER_STATUS) {
        if (l->asked_ms == 0 || r->id != l->status_id)
            return -EPROTO;
        cluster_link_note_status(l, r);
        return 0;
    }

    return cluster_calls_take_reply(l, r);
}

static void cluster_link_on_packet(void *ctx, const void *data, struct wire_packet *p)
{
    struct cluster_link *l = ctx;
    uint64_t n_joined = l->status.n_joined;
    struct cluster_reply reply;
    int r = cluster_reply_decode(data, p->bytes, &reply);

    if (r == 0)
        r = cluster_link_take_reply(l, &reply);
    if (r == -EREMOTEIO)
        cluster_link_drop(l, "kvcobra-cluster cannot use the memory that it got: its log has the reason");
    else if (r < 0)
        cluster_link_drop(l, "kvcobra-cluster sent a packet that answers no request: install kvcobrad and "
                             "kvcobra-cluster of one version");
    else
        cluster_calls_pump(l);
    if (l->status.n_joined != n_joined && l->options.tick)
        l->options.tick(l->options.ctx);
}

/* ---- the connection ---- */

static void cluster_link_on_end(void *ctx, int err)
{
    struct cluster_link *l = ctx;

    if (err == 0) {
        if (log_is_due(++l->status.n_closed))
            log_event(LOG_NOTICE, "cluster-tier-absent",
                      "closed=%" PRIu64 " message=\"kvcobra-cluster closed its connection\"",
                      l->status.n_closed);
        cluster_link_close(l, "kvcobra-cluster is not connected");
    } else {
        cluster_link_drop(l, err == -EPERM ? "kvcobra-cluster sent a descriptor" : strerror(-err));
    }
}

static int cluster_link_greet(struct cluster_link *l)
{
    struct cluster_request q = {
        .kind = CLUSTER_HELLO, .version = CLUSTER_WIRE_VERSION, .bytes = extent_bytes(l->memory)};
    int fd = fcntl(extent_fd(l->memory), F_DUPFD_CLOEXEC, 3);

    if (fd < 0)
        return -errno;

    memcpy(q.fleet, l->fleet, sizeof(q.fleet));
    return cluster_calls_send(l, &q, &fd, 1);
}

/* Whether the other end is a process of the user that may connect. */
static bool cluster_link_admits(struct cluster_link *l, int fd)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == l->options.uid)
        return true;
    if (log_is_due(++l->status.n_strangers))
        log_event(LOG_WARNING, "cluster-tier-stranger",
                  "uid=%ld refused=%" PRIu64 " message=\"only uid %ld may connect: see cluster-user\"",
                  (long) peer.uid, l->status.n_strangers, (long) l->options.uid);
    return false;
}

static void cluster_link_on_accept(void *ctx, int fd)
{
    static const struct ev_stream_callbacks callbacks = {.on_packet = cluster_link_on_packet,
                                                         .on_end = cluster_link_on_end};
    struct cluster_link *l = ctx;
    int r;

    /* one at a time: a second process tries again, and finds the place free when the first one has ended */
    if (l->stream || !cluster_link_admits(l, fd)) {
        ev_refuse(l->ev, fd);
        return;
    }

    r = ev_stream_new(l->ev, fd, &callbacks, l, &l->stream);
    if (r < 0) {
        l->stream = NULL;
        return;
    }
    r = cluster_link_greet(l);
    if (r < 0) {
        cluster_link_drop(l, strerror(-r));
        return;
    }

    l->asked_ms = ev_now_ms(l->ev);
    cluster_link_enter(l, CLUSTER_LINK_JOINING, "kvcobra-cluster has not joined the cluster yet");
    cluster_calls_set_timer(l);
}

/* ---- time ---- */

static void cluster_link_on_timer(void *ctx)
{
    struct cluster_link *l = ctx;
    uint64_t now_ms = ev_now_ms(l->ev), n_times;
    uint64_t pause_ms = cluster_link_is_ready(l) ? STATUS_PAUSE_MS : 0;

    if (read(l->timer_fd, &n_times, sizeof(n_times)) != sizeof(n_times) || !l->stream)
        return;

    if ((l->asked_ms > 0 && now_ms - l->asked_ms > CLUSTER_ANSWER_MS) || cluster_calls_are_stuck(l, now_ms)) {
        cluster_link_drop(l, "kvcobra-cluster does not answer");
        return;
    }
    if (l->is_greeted && l->asked_ms == 0 && now_ms - l->answered_ms >= pause_ms)
        cluster_link_ask_status(l, now_ms);
    cluster_calls_expire(l, now_ms);
    cluster_calls_pump(l);
    if (l->options.tick)
        l->options.tick(l->options.ctx);
}

/* ---- for callers ---- */

const struct listen_socket *cluster_link_socket(const struct cluster_link *l)
{
    return &l->socket;
}

bool cluster_link_is_ready(const struct cluster_link *l)
{
    return l && (l->status.state == CLUSTER_LINK_READY || l->status.state == CLUSTER_LINK_DEGRADED);
}

void cluster_link_status(const struct cluster_link *l, struct cluster_link_status *ret)
{
    *ret = l->status;
}

/* ---- start and end ---- */

static int cluster_link_make_memory(struct cluster_link *l, struct errmsg *e)
{
    int r = extent_new("kvc-cluster", l->options.memory_bytes, EXTENT_READ_WRITE, &l->memory, e);

    if (r < 0)
        return r;
    return disk_buffers_init_at(&l->ranges, extent_data(l->memory), extent_bytes(l->memory), e);
}

static int cluster_link_listen(struct cluster_link *l, struct errmsg *e)
{
    /* the folder says who reaches the socket; the credentials of the process say who may connect */
    int r = listen_at(&l->socket, SOCK_SEQPACKET, l->options.socket_path, 0666, (gid_t) -1, e);

    if (r < 0)
        return r;

    listen_refuse_descriptors(&l->socket);
    r = ev_listen(l->ev, take_fd(&l->socket.fd), cluster_link_on_accept, l, &l->listener);
    return r < 0 ? fail(e, r, "cannot wait for kvcobra-cluster: %s", strerror(-r)) : 0;
}

int cluster_link_new(struct ev *ev, const struct cluster_link_options *options, struct cluster_link **ret,
                     struct errmsg *e)
{
    _cleanup_(cluster_link_freep) struct cluster_link *l = calloc(1, sizeof(*l));
    int r;

    if (!l)
        return fail(e, -ENOMEM, "out of memory for the cluster tier");

    l->ev = ev;
    l->options = *options;
    listen_init(&l->socket);
    memcpy(l->fleet, options->fleet, sizeof(l->fleet));
    (void) snprintf(l->status.sentence, sizeof(l->status.sentence), "kvcobra-cluster is not connected");
    l->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (l->timer_fd < 0)
        return fail(e, -errno, "cannot create a timer: %s", strerror(errno));

    r = ev_watch(ev, l->timer_fd, cluster_link_on_timer, l, &l->timer);
    if (r < 0)
        return fail(e, r, "cannot watch a timer: %s", strerror(-r));

    r = cluster_link_make_memory(l, e);
    if (r < 0)
        return r;

    r = cluster_link_listen(l, e);
    if (r < 0)
        return r;

    *ret = take_ptr(l);
    return 0;
}

struct cluster_link *cluster_link_free(struct cluster_link *l)
{
    if (!l)
        return NULL;

    if (l->stream)
        cluster_link_close(l, "");
    assert(l->n_calls == 0 && l->status.n_sent == 0);
    l->listener = ev_source_free(l->listener);
    l->timer = ev_source_free(l->timer);
    closep(&l->timer_fd);
    listen_deinit(&l->socket);
    disk_buffers_deinit(&l->ranges);
    l->memory = extent_free(l->memory);
    fair_deinit(&l->waiting);
    free(l);
    return NULL;
}
