/*
 * A connection: packets in, replies out, and the handshake that verifies the client.
 *
 *     NEW --HELLO--> GREETED --CONFIRM--> OPEN
 *
 * HELLO's packet carries the sender's pid, verified by the kernel and equal to the socket's peer; then a
 * pidfd of it is opened. CONFIRM, a second packet from the same pid, proves that the process still lived
 * after that, so the pidfd is of that process. Nothing is granted before.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "daemon/loop/fair.h"
#include "daemon/loop/work.h"
#include "proto/protocol.h"

struct account;
struct device;
struct errmsg;
struct ev_source;
struct server;
struct session;

/* All connections of a server. */
struct conns {
    struct conn *first;
    uint32_t n_clients, n_operators;
    struct fair_share operator_share; /* of the loop: all connections of operators */
    struct work_share operator_work;  /* of the threads: their requests */
    uint64_t refused_connections, refused_packets;
};

enum conn_state { CONN_NEW = 0, CONN_GREETED = 1, CONN_OPEN = 2 };

struct conn {
    struct conn *next, *prev;
    struct server *server;
    struct ev_source *stream;
    bool is_operator; /* accepted on the operator socket */
    enum conn_state state;
    struct ucred peer; /* SO_PEERCRED */
    struct account *account;
    int fd;             /* of the stream, which owns it */
    uint32_t n_reloads; /* the state of the configuration that @account follows from */
    int pidfd;          /* from HELLO until CONFIRM gives it to the session; operators' connections keep it */
    uint64_t accepted_ms;
    uint8_t token[SESSION_TOKEN_BYTES];
    char client_name[WIRE_CLIENT_NAME_BYTES_MAX + 1];
    uint64_t features;       /* GREETED: those of proto/hello_features.h that both ends have */
    struct device *device;   /* GREETED: the device that HELLO named */
    struct session *resume;  /* GREETED: the session that HELLO's token named; NULL: a new one */
    struct session *session; /* OPEN, not an operator's */
    bool fds_sent;           /* a packet with descriptors may still be unread */
    uint32_t n_jobs;         /* requests that threads work on */
    bool closed;             /* closed; the memory stays for its jobs */
};

/* Serves a new connection. @fd: owned from now on. */
void conn_accept(struct server *s, int fd, bool is_operator);

/* Sends why the connection on @fd will be closed, in a reply to no request, if the socket has room for it. */
void conn_tell_reason(struct server *s, int fd, int err, struct errmsg *e);

/*
 * At HELLO: finds the account again if the configuration was read again since the connection was accepted.
 * Return: 0; -EDQUOT: the account has too many connections; see peer_identify().
 */
int conn_identify(struct conn *c, struct errmsg *e);

/* Closes the connection and detaches its session, if it still has one. */
void conn_close(struct conn *c);

/* The last job of a closed connection is done: frees it. */
void conn_reap(struct conn *c);

/* The callbacks that sessions call when they end, or when their process has exited. */
struct session_owner conn_session_owner(struct server *s);

/* ---- the process at the other end (peer.c) ---- */

/*
 * The credentials and the account of the peer of @fd, by the present configuration. @ret_account: with a
 * reference for the caller. Return: 0; -EPERM: @is_operator, and the peer is not one; -ENOSPC, -ENOMEM: of
 * the account; errno of the socket.
 */
int peer_identify(struct server *s, int fd, bool is_operator, struct ucred *ret, struct account **ret_account,
                  struct errmsg *e);
