/*
 * The conversation with kvcobrad: one request, one reply, each with a deadline. Never used on the path of
 * appending or attending.
 *
 * A connection that failed in any way is closed: what sequences hold is then private (DESIGN 6). reconnect.h
 * says how a client comes back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection/backoff.h"
#include "gpu/cuda/driver.h"
#include "proto/protocol.h"
#include "proto/wire.h"

struct errmsg;

/* What became of the session when a lost connection was opened again. */
struct resumption {
    bool resumed;     /* the session goes on: its leases are ours still */
    bool same_daemon; /* not restarted in between: so do its models, references and its arena */
    bool same_pool;   /* extents of before mean the same memory now */
};

struct connection {
    int fd;         /* -1: embedded, or lost */
    bool greeted;   /* was connected once */
    bool in_use;    /* the greeting of this connection is over */
    uint64_t epoch; /* of successful greetings; 0: never connected */
    uint64_t next_id;
    uint8_t boot_id[BOOT_ID_BYTES];
    uint8_t pool_id[BOOT_ID_BYTES];
    uint8_t token[SESSION_TOKEN_BYTES];
    uint32_t session; /* its number in the daemon's log */
    bool resumed;     /* by the last greeting */
    uint32_t request_ms,
        grace_ms; /* what the daemon is given for a request, and what its answer may take on top */
    int64_t opened_ms, checked_ms;
    struct backoff backoff;       /* of attempts to connect again */
    char device[CUDA_UUID_CHARS]; /* where pages lie: a GPU's UUID; "" the host's memory */
    uint64_t extent_bytes;        /* of the device, as the last greeting said; 0: it did not */
    uint32_t items_per_message;   /* what the daemon takes, at most WIRE_ITEMS_MAX */
    uint8_t *packet;              /* WIRE_PACKET_BYTES_MAX */
    char *path;
};

struct reply {
    Kvcobra__Reply *message;
    struct wire_packet packet; /* its descriptors; whoever uses one takes it with reply_take_fd() */
};

void connection_init(struct connection *c);
void connection_deinit(struct connection *c);

/* Sessions are to be on GPU @uuid, shorter than CUDA_UUID_CHARS; before connection_open(). */
void connection_set_device(struct connection *c, const char *uuid);

/* See kvc_client_connect(). Only for a connection that was never open. */
int connection_open(struct connection *c, const char *path, struct errmsg *e);

/**
 * connection_reopen() - greet the daemon again, with the token of the session that was lost
 *
 * Takes RECONNECT_MS at most. Whether it is time to try is the caller's to ask (@c->backoff).
 *
 * Return: 0; -ENOTCONN with a sentence: nobody there, or not in time; -EPROTO: nothing that we can talk to.
 */
#define RECONNECT_MS 1000
int connection_reopen(struct connection *c, struct resumption *ret, struct errmsg *e);

/* Whether @path (NULL: the default) is the one that it was opened with. */
bool connection_is_to(const struct connection *c, const char *path);

/* Looks whether the daemon hung up, unless @now at most once a second: who only makes sequences has no other
 * way to know. */
void connection_check(struct connection *c, bool now);

static inline bool connection_is_open(const struct connection *c)
{
    return c->fd >= 0;
}

/* Closes the socket: the daemon ends the session. */
void connection_lose(struct connection *c);

/**
 * connection_request() - send @request, wait for its reply
 * @request:  id and timeout are set here
 * @fds:      borrowed, sent along
 * @body:     the reply's body case that success must have; KVCOBRA__REPLY__BODY__NOT_SET: none
 * @ret:      starts empty, _cleanup_(reply_deinit); untouched on failure
 *
 * Return: 0; the daemon's errno with its sentence; -ENOTCONN: the connection is lost (or never was); -EPROTO:
 * an answer that makes no sense, the connection is lost; -EMSGSIZE.
 */
int connection_request(struct connection *c, Kvcobra__Request *request, const int *fds, size_t n_fds,
                       Kvcobra__Reply__BodyCase body, struct reply *ret, struct errmsg *e);

/* A request whose reply has no body. */
int connection_tell(struct connection *c, Kvcobra__Request *request, struct errmsg *e);

/* Says goodbye, if there is somebody to say it to. */
void connection_bye(struct connection *c);

/* An empty reply, {.message = NULL}, is fine: for _cleanup_(). */
void reply_deinit(struct reply *r);

/* The same for callers that deinitialise by hand. */
static inline void reply_free(struct reply *r)
{
    reply_deinit(r);
}

/* Descriptor @i of the reply, now the caller's; -1 if the reply brought fewer. */
int reply_take_fd(struct reply *r, size_t i);

static inline bool bytes_are(ProtobufCBinaryData b, size_t n)
{
    return b.len == n;
}
