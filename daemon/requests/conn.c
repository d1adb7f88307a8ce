/* See conn.h. The handshake's messages are handshake.c. */
#include "daemon/requests/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/limits.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/heap.h"
#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/account.h"
#include "daemon/store/device.h"
#include "daemon/tables/tables.h"

/* What ends with a connection, roughly: its session with leases, and replies that were not read. */
enum { CONN_HEAP_BYTES = 64 << 10 };

static void conn_on_packet(void *ctx, const void *data, struct wire_packet *p)
{
    struct conn *c = ctx;
    int r;

    if (p->pid != c->peer.pid) {
        /* A forked child, or another process that got the socket: not the process that was verified. */
        if (log_is_due(++c->server->conns->refused_packets))
            log_event(LOG_NOTICE, "foreign-packet",
                      "pid=%ld sender=%ld uid=%ld refused=%" PRIu64 ", closing the connection",
                      (long) c->peer.pid, (long) p->pid, (long) c->peer.uid,
                      c->server->conns->refused_packets);
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

    if ((err == -EBADMSG || err == -EPERM) && log_is_due(++c->server->conns->refused_packets))
        log_event(LOG_NOTICE, err == -EPERM ? "packet-with-descriptors" : "packet-truncated",
                  "pid=%ld uid=%ld refused=%" PRIu64 ", closing the connection", (long) c->peer.pid,
                  (long) c->peer.uid, c->server->conns->refused_packets);
    conn_close(c);
}

/* Only operators send descriptors (STAGE). */
static const struct ev_stream_callbacks client_callbacks = {.on_packet = conn_on_packet,
                                                            .on_end = conn_on_end};
static const struct ev_stream_callbacks operator_callbacks = {
    .on_packet = conn_on_packet,
    .on_end = conn_on_end,
    .takes_fds = true,
};

static int conn_admit_operator(const struct server *s, struct errmsg *e)
{
    if (s->conns->n_operators >= OPERATOR_CONNECTIONS_MAX)
        return fail(e, -EDQUOT, "operators have %d connections, the maximum: close one",
                    OPERATOR_CONNECTIONS_MAX);
    return 0;
}

/* @n_closing: connections of the peer that are ended, but still have a descriptor */
static int conn_admit_client(const struct server *s, const struct account *a, uint32_t n_closing,
                             struct errmsg *e)
{
    const struct config *c = s->config;

    if (account_may_take(a->n_connections + n_closing, s->conns->n_clients, c->connections_max,
                         c->connections_per_tenant_max))
        return 0;
    if (s->conns->n_clients >= c->connections_max)
        return fail(e, -EDQUOT,
                    "kvcobrad has %" PRIu32 " connections, the maximum (--connections): retry later",
                    s->conns->n_clients);
    return fail(e, -EDQUOT,
                "tenant %s has %" PRIu32 " of kvcobrad's %" PRIu32
                " connections, its maximum (--connections-per-tenant; --connections is %" PRIu32
                "): close one, or retry later",
                a->name, a->n_connections, s->conns->n_clients, c->connections_max);
}

/* Whether the peer may connect. @ret_account: with a reference for the caller. */
static int conn_admit(struct server *s, int fd, bool is_operator, struct ucred *ret_peer,
                      struct account **ret_account, struct errmsg *e)
{
    struct account *a;
    int r = peer_identify(s, fd, is_operator, ret_peer, &a, e);

    if (r < 0)
        return r;

    r = is_operator ? conn_admit_operator(s, e)
                    : conn_admit_client(s, a, ev_n_closing(s->ev, ret_peer->uid), e);
    if (r < 0) {
        (void) account_unref(a);
        return r;
    }

    *ret_account = a;
    return 0;
}

static void conn_log_refusal(struct server *s, const struct ucred *peer, const char *why)
{
    if (log_is_due(++s->conns->refused_connections))
        log_event(LOG_NOTICE, "connection-refused", "pid=%ld uid=%ld refused=%" PRIu64 " message=\"%s\"",
                  (long) peer->pid, (long) peer->uid, s->conns->refused_connections, why);
}

void conn_tell_reason(struct server *s, int fd, int err, struct errmsg *e)
{
    Kvcobra__Reply reply = KVCOBRA__REPLY__INIT;
    ssize_t bytes;

    reply.err = err;
    reply.message = e->text;
    reply.boot_id = bytes_view(s->devices->boot_id, BOOT_ID_BYTES);
    bytes = wire_reply_pack(&reply, s->scratch->packet);
    if (bytes > 0)
        (void) !send(fd, s->scratch->packet, (size_t) bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Sends the peer the reason of its refusal, the only packet of the connection: its queue has room. */
static void conn_refuse(struct server *s, int fd, int err, const struct ucred *peer, struct errmsg *e)
{
    conn_log_refusal(s, peer, e->text);
    conn_tell_reason(s, fd, err, e);
    ev_refuse(s->ev, fd);
}

static uint32_t *conn_count(struct conn *c)
{
    return c->is_operator ? &c->server->conns->n_operators : &c->server->conns->n_clients;
}

static void conn_link(struct conn *c)
{
    struct server *s = c->server;

    c->next = s->conns->first;
    if (s->conns->first)
        s->conns->first->prev = c;
    s->conns->first = c;
    ++*conn_count(c);
    c->account->n_connections += !c->is_operator;
}

static void conn_unlink(struct conn *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        c->server->conns->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    --*conn_count(c);
    c->account->n_connections -= !c->is_operator;
}

int conn_identify(struct conn *c, struct errmsg *e)
{
    struct account *a = NULL;
    struct ucred peer;
    int r;

    if (c->n_reloads == c->server->n_reloads)
        return 0;

    r = peer_identify(c->server, c->fd, c->is_operator, &peer, &a, e);
    if (r < 0)
        return r;

    conn_unlink(c); /* so that it does not count for the limits */
    if (!c->is_operator && a != c->account) {
        r = conn_admit_client(c->server, a, ev_n_closing(c->server->ev, peer.uid), e);
        if (r == 0)
            r = ev_source_set_share(c->stream, &a->loop_share);
    }
    if (r == 0) {
        (void) account_unref(c->account);
        c->account = a;
        c->n_reloads = c->server->n_reloads;
    } else {
        (void) account_unref(a);
    }
    conn_link(c);
    return r;
}

void conn_accept(struct server *s, int fd, bool is_operator)
{
    struct ucred peer = {0};
    struct account *account = NULL;
    struct errmsg e = {""};
    struct conn *c;
    int r = conn_admit(s, fd, is_operator, &peer, &account, &e);

    if (r < 0) {
        conn_refuse(s, fd, r, &peer, &e);
        return;
    }

    c = calloc(1, sizeof(*c));
    if (!c) {
        (void) account_unref(account);
        (void) fail(&e, -ENOMEM, "kvcobrad has no memory for a connection: retry later");
        conn_refuse(s, fd, -ENOMEM, &peer, &e);
        return;
    }

    *c = (struct conn){
        .server = s,
        .is_operator = is_operator,
        .peer = peer,
        .account = account,
        .fd = fd,
        .n_reloads = s->n_reloads,
        .pidfd = -1,
        .accepted_ms = ev_now_ms(s->ev),
    };
    r = ev_stream_new(s->ev, fd, is_operator ? &operator_callbacks : &client_callbacks, c, &c->stream);
    if (r == 0)
        r = ev_source_set_share(c->stream, is_operator ? &s->conns->operator_share : &account->loop_share);
    if (r < 0) {
        c->stream = ev_source_free(c->stream);
        conn_log_refusal(s, &peer, strerror(-r));
        (void) account_unref(account);
        free(c);
        return;
    }

    conn_link(c);
    ev_tick_demand(s->ev);
}

void conn_close(struct conn *c)
{
    struct server *s = c->server;

    conn_unlink(c);
    c->stream = ev_source_free(c->stream);
    closep(&c->pidfd);
    if (c->session)
        session_detach(c->session);
    c->session = NULL;
    c->closed = true;
    if (c->n_jobs == 0)
        conn_reap(c);
    tables_retire_idle(s->tables, ev_now_ms(s->ev));
}

void conn_reap(struct conn *c)
{
    heap_note_freed(c->server->heap, CONN_HEAP_BYTES);
    (void) account_unref(c->account);
    free(c);
}

static void conn_forget_session(void *ctx, const struct session *x)
{
    const struct server *s = ctx;

    for (struct conn *c = s->conns->first; c; c = c->next) {
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
