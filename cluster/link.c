/* See link.h. */
#include "cluster/link.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cluster/router.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"

static void link_end(struct link *l)
{
    struct requests *s = &l->requests;

    l->stream = ev_source_free(l->stream);
    l->is_greeted = l->is_broken = false;
    l->retry_ms = ev_now_ms(l->ev) + LINK_RETRY_MS;
    requests_drop(s);
    fleet_clear(&l->fleet);
    if (s->memory)
        (void) munmap(s->memory, s->memory_bytes);
    s->memory = NULL;
    s->memory_bytes = 0;
}

static void link_drop(struct link *l, const char *why)
{
    log_event(LOG_WARNING, "kvcobrad-gone", "message=\"%s\"", why);
    link_end(l);
}

/* ---- replies ---- */

/* The connection is dropped at the next tick: requests are on the stack now. */
static void link_reply(void *ctx, const struct cluster_reply *r)
{
    struct link *l = ctx;
    uint8_t packet[CLUSTER_REPLY_BYTES_MAX];
    size_t bytes = cluster_reply_encode(r, packet);

    if (l->stream && !l->is_broken && ev_stream_send(l->stream, packet, bytes, NULL, 0) < 0)
        l->is_broken = true;
}

static enum cluster_state link_state(const struct link *l)
{
    return router_mode(l->router) == ROUTER_IMPOSSIBLE ? CLUSTER_REFUSED : l->fleet.state;
}

/* The state as kvcobrad and operators see it. @ret_why: "": the cluster is ready. */
static enum cluster_state link_look(const struct link *l, struct errmsg *ret_why)
{
    enum cluster_state state = link_state(l);

    errmsg_clear(ret_why);
    if (state == CLUSTER_READY)
        return router_is_whole(l->router, ret_why) ? CLUSTER_READY : CLUSTER_DEGRADED;

    errmsg_set(ret_why, "%s", l->fleet.why.text[0] ? l->fleet.why.text : router_why(l->router));
    return state;
}

static void link_reply_status(struct link *l, uint64_t id)
{
    struct cluster_reply r = {.kind = CLUSTER_STATUS, .id = id};
    struct router_counts counts;
    struct errmsg why;

    router_count(l->router, &counts);
    memcpy(r.counters, l->requests.counters, sizeof(r.counters));
    r.counters[CLUSTER_COUNTER_STATE] = link_look(l, &why);
    r.counters[CLUSTER_COUNTER_NODES] = counts.n_nodes;
    r.counters[CLUSTER_COUNTER_NODES_READY] = counts.n_ready;
    r.counters[CLUSTER_COUNTER_WAITING] = l->requests.n;
    r.counters[CLUSTER_COUNTER_REDIRECTED] = counts.n_redirected;
    r.counters[CLUSTER_COUNTER_REFRESHED] = counts.n_refreshed;
    r.counters[CLUSTER_COUNTER_NODE_FAILURES] = counts.n_node_failures;
    r.counters[CLUSTER_COUNTER_LOSSES] = counts.n_node_joins + l->fleet.n_missing;
    (void) snprintf(r.sentence, sizeof(r.sentence), "%.255s", why.text);
    link_reply(l, &r);
}

/* ---- requests ---- */

/* Return: 0; -EINVAL: not a memory object of that size which stays so. */
static int link_map(struct link *l, int fd, uint64_t bytes)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;
    void *p;

    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 || (uint64_t) st.st_size != bytes)
        return -EINVAL;

    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -EINVAL;
    l->requests.memory = p;
    l->requests.memory_bytes = bytes;
    return 0;
}

static int link_greet(struct link *l, const struct cluster_request *q, const struct wire_packet *p)
{
    struct cluster_reply r = {.kind = CLUSTER_HELLO, .version = CLUSTER_WIRE_VERSION, .result = -EINVAL};

    if (q->version == CLUSTER_WIRE_VERSION && p->n_fds == 1)
        r.result = link_map(l, p->fds[0], q->bytes);
    if (r.result == 0) {
        l->is_greeted = true;
        fleet_set(&l->fleet, q->fleet);
        log_event(LOG_INFO, "kvcobrad-connected", "memory_bytes=%llu", (unsigned long long) q->bytes);
    }
    link_reply(l, &r);
    return r.result;
}

static void link_refuse(struct link *l, const struct cluster_request *q, int result)
{
    struct cluster_reply r = {.kind = q->kind, .id = q->id, .result = result};

    if (cluster_kind_has_bits(q->kind))
        r.n_bits = q->n_names;
    l->requests.counters[CLUSTER_COUNTER_FAILED]++;
    link_reply(l, &r);
}

static void link_serve(struct link *l, const struct cluster_request *q)
{
    enum cluster_state state = link_state(l);

    if (q->kind == CLUSTER_STATUS)
        link_reply_status(l, q->id);
    else if (state != CLUSTER_READY)
        link_refuse(l, q, state == CLUSTER_REFUSED ? -EPERM : -EAGAIN);
    else
        requests_start(&l->requests, q);
}

static void link_on_packet(void *ctx, const void *data, struct wire_packet *p)
{
    struct link *l = ctx;
    struct cluster_request q;
    int r = cluster_request_decode(data, p->bytes, &q);

    if (r == 0 && (q.kind == CLUSTER_HELLO) == l->is_greeted)
        r = -EPROTO;
    if (r == 0 && q.kind == CLUSTER_HELLO)
        r = link_greet(l, &q, p);
    else if (r == 0 && p->n_fds > 0)
        r = -EPROTO;
    else if (r == 0)
        link_serve(l, &q);
    wire_packet_close_fds(p);
    if (r < 0)
        link_drop(l, "it sent a packet that this version does not understand: install kvcobrad and "
                     "kvcobra-cluster of one version");
    else
        router_flush(l->router);
    if (link_is_busy(l))
        l->hurry(l->ctx);
}

/* ---- the connection ---- */

static void link_on_end(void *ctx, int err)
{
    link_drop(ctx, err == 0 ? "it closed the connection" : strerror(-err));
}

static int link_connect(struct link *l)
{
    static const struct ev_stream_callbacks callbacks = {
        .on_packet = link_on_packet, .on_end = link_on_end, .takes_fds = true};
    _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (fd < 0)
        return -errno;
    assert(strlen(l->path) < sizeof(a.sun_path));
    memcpy(a.sun_path, l->path, strlen(l->path));
    if (connect(fd, (const struct sockaddr *) &a, sizeof(a)) < 0)
        return -errno;
    return ev_stream_new(l->ev, take_fd(&fd), &callbacks, l, &l->stream);
}

void link_tick(struct link *l)
{
    uint64_t now_ms = ev_now_ms(l->ev);

    l->requests.reply = link_reply;
    l->requests.ctx = l;
    if (l->is_broken)
        link_drop(l, "it does not read replies");
    if (!l->stream && now_ms >= l->retry_ms) {
        int r = link_connect(l);

        if (r < 0 && r != l->last_error)
            log_event(LOG_WARNING, "no-kvcobrad", "socket=\"%s\" message=\"%s\", trying again every %d ms",
                      l->path, strerror(-r), LINK_RETRY_MS);
        l->last_error = r;
        l->retry_ms = now_ms + LINK_RETRY_MS;
    }

    requests_tick(&l->requests);
    fleet_tick(&l->fleet);
}

bool link_is_busy(const struct link *l)
{
    return l->requests.n > 0 || l->fleet.runs;
}

void link_deinit(struct link *l)
{
    if (l->stream)
        link_end(l);
}
