/* See conn.h. The handshake's messages are handshake.c. */
#include "daemon/requests/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/tables/tables.h"

static void conn_on_packet(void *ctx, const void *data, struct wire_packet *p)
{
    struct conn *c = ctx;
    int r;

    if (p->pid != c->peer.pid) {
        /* A forked child, or another process that got the socket: not the process that was verified. */
        if (log_is_due(++c->server->refused_packets))
            log_event(LOG_NOTICE, "foreign-packet",
                      "pid=%ld sender=%ld uid=%ld refused=%" PRIu64 ", closing the connection",
                      (long) c->peer.pid, (long) p->pid, (long) c->peer.uid, c->server->refused_packets);
        r = -EPERM;
    } else {
        r = c->server->dispatch(c, data, p);
    }

    wire_packet_close_fds(p); /* if the packet was not answered */
    if (r < 0)
        conn_close(c);
}

static void conn_on_end(void *ctx, int err)
{
    struct conn *c = ctx;

    if (err == -EBADMSG && log_is_due(++c->server->refused_packets))
        log_event(LOG_NOTICE, "packet-truncated",
                  "pid=%ld uid=%ld refused=%" PRIu64 ", closing the connection", (long) c->peer.pid,
                  (long) c->peer.uid, c->server->refused_packets);
    conn_close(c);
}

static const struct ev_stream_callbacks callbacks = {.on_packet = conn_on_packet, .on_end = conn_on_end};

static uint32_t conn_connections_of(const struct server *s, uid_t uid)
{
    uint32_t n = 0;

    for (const struct conn *c = s->conns; c; c = c->next)
        n += c->peer.uid == uid;
    return n;
}

/* Whether the peer may connect; a refused one sees the connection closed. */
static int conn_admit(struct server *s, int fd, bool is_operator, struct ucred *ret_peer)
{
    socklen_t bytes = sizeof(*ret_peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret_peer, &bytes) < 0)
        return -errno;
    if (s->n_conns >= s->config->connections_max)
        return -EMFILE;
    if (conn_connections_of(s, ret_peer->uid) >= s->config->connections_per_uid_max)
        return -EDQUOT;
    if (is_operator && ret_peer->uid != 0 && ret_peer->uid != getuid())
        return -EPERM; /* the socket's mode forbids it already, but an adopted socket may have another mode */
    return 0;
}

void conn_accept(struct server *s, int fd, bool is_operator)
{
    struct ucred peer = {0};
    struct conn *c = NULL;
    int r = conn_admit(s, fd, is_operator, &peer);

    if (r == 0) {
        c = calloc(1, sizeof(*c));
        r = c ? 0 : -ENOMEM;
    }
    if (r == 0) {
        *c = (struct conn){
            .server = s,
            .is_operator = is_operator,
            .peer = peer,
            .pidfd = -1,
            .accepted_ms = ev_now_ms(s->ev),
        };
        r = ev_stream_new(s->ev, fd, &callbacks, c, &c->stream);
    } else {
        (void) close(fd);
    }
    if (r < 0) {
        if (log_is_due(++s->refused_connections))
            log_event(LOG_NOTICE, "connection-refused", "pid=%ld uid=%ld refused=%" PRIu64 " message=\"%s\"",
                      (long) peer.pid, (long) peer.uid, s->refused_connections, strerror(-r));
        free(c);
        return;
    }

    c->next = s->conns;
    if (s->conns)
        s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
    ev_tick_demand(s->ev);
}

void conn_close(struct conn *c)
{
    struct server *s = c->server;

    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_conns--;
    c->stream = ev_source_free(c->stream);
    closep(&c->pidfd);
    if (c->session)
        session_detach(c->session);
    c->session = NULL;
    c->closed = true;
    if (c->n_jobs == 0)
        conn_reap(c);
    tables_retire_idle(&s->tables, ev_now_ms(s->ev));
}

void conn_reap(struct conn *c)
{
    free(c);
}

static void conn_forget_session(void *ctx, const struct session *x)
{
    const struct server *s = ctx;

    for (struct conn *c = s->conns; c; c = c->next) {
        if (c->resume == x)
            c->resume = NULL;
        if (c->session == x)
            c->session = NULL;
    }
}

static void conn_on_process_gone(void *ctx, struct conn *c)
{
    (void) ctx;
    conn_close(c);
}

struct session_owner conn_session_owner(struct server *s)
{
    return (struct session_owner){conn_forget_session, conn_on_process_gone, s};
}
