/*
 * Messages to and from kvcobrad: one request, one reply, each with a deadline. Most calls wait for the reply;
 * a post does not. Appending and attending send no messages.
 *
 * After any failure the connection is closed: the pages that sequences hold are then private (DESIGN 6).
 * client_revive() opens it again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection/backoff.h"
#include "client/connection/reply.h"
#include "gpu/cuda/driver.h"
#include "proto/protocol.h"

struct errmsg;

/* Why a daemon that was found is silent, at the end of a sentence. */
#define CONNECTION_SILENT                                                                                    \
    "it is busy, or its process is stopped (T at 'ps -o pid,stat -C kvcobrad'; 'kill -CONT PID' continues "  \
    "it)"

/* How much of the old session a new connection still has. */
struct resumption {
    bool resumed;     /* the session is the same: its leases are still held */
    bool same_daemon; /* no restart of the daemon: models, table references and the arena are the same too */
    bool same_pool;   /* extents mapped before still hold the same memory */
};

/* A request whose reply is not waited for. */
enum post_state { POST_QUEUED, POST_SENT, POST_DONE };

struct connection_post {
    Kvcobra__Reply__BodyCase body; /* set by the caller: the body that success must have */
    /* Set by the caller: called once, when the state becomes POST_DONE. After that the connection does not
     * use the post, so this may free it; it must not use the connection. */
    void (*on_done)(struct connection_post *p);
    bool yields; /* set by the caller: sent after all others, and only two at a time */

    enum post_state state;
    int err;            /* DONE: 0; -ENOTCONN: the connection was lost before the reply */
    struct reply reply; /* DONE without err: the reply, which may have an errno of the daemon */
    struct connection_post *next;
    uint64_t id;
    int64_t deadline_ms; /* SENT: of the reply */
    uint8_t *packet;
    size_t packet_bytes;
};

struct connection {
    int fd;       /* -1: embedded, or lost */
    int hello_fd; /* of an attempt to connect again whose HELLO has no answer yet; -1: none */
    bool keeps_hello, hello_is_sent; /* connection_reopen(): a late answer is for the next attempt; it is */
    bool greeted;                    /* a greeting succeeded before */
    bool in_use;                     /* the greeting of this connection succeeded */
    uint64_t epoch;                  /* counts successful greetings; 0: never connected */
    uint64_t next_id;
    uint8_t boot_id[BOOT_ID_BYTES];
    uint8_t pool_id[BOOT_ID_BYTES];
    uint8_t token[SESSION_TOKEN_BYTES];
    uint64_t session;    /* its number in the daemon's log */
    bool resumed;        /* the last greeting resumed the session */
    bool is_leaving;     /* connection_bye() follows */
    uint32_t request_ms; /* time that the daemon has for a request */
    uint32_t grace_ms;   /* time that its reply may take beyond request_ms */
    int64_t opened_ms, checked_ms;
    struct backoff backoff;                 /* of attempts to connect again */
    char device[CUDA_UUID_CHARS];           /* where pages lie: a GPU's UUID; "": host memory */
    uint64_t extent_bytes;                  /* of the device, from the last greeting; 0: unknown */
    uint32_t items_per_message;             /* the daemon's limit, at most WIRE_ITEMS_MAX */
    uint8_t *packet;                        /* WIRE_PACKET_BYTES_MAX */
    struct connection_post *posts;          /* not done, oldest first */
    unsigned n_posts_sent, n_yielding_sent; /* the latter are some of the former */
    char *path;
    bool chosen; /* the caller gave the path */
};

void connection_init(struct connection *c);
void connection_deinit(struct connection *c);

/* Sessions are opened for GPU @uuid, shorter than CUDA_UUID_CHARS. Call it before connection_open(). */
void connection_set_device(struct connection *c, const char *uuid);

/* Waits for room in the daemon's queue, and for each reply, last at most @timeout_ms, which is above 0.
 * connection_init() sets 12 s. */
void connection_set_timeout(struct connection *c, uint32_t timeout_ms);

/* See kvc_client_connect(). Only for a connection that was never open. */
int connection_open(struct connection *c, const char *path, struct errmsg *e);

/**
 * connection_reopen() - greet the daemon again, with the token of the lost session
 *
 * Takes RECONNECT_MS at most, since it is a part of calls with another purpose. A HELLO that a daemon did not
 * answer in that time, because it is starting or its host is busy, stays sent: the next attempt waits for its
 * answer. So a daemon that needs longer for an answer is reached, too. The caller checks @c->backoff first.
 *
 * Return: 0; -ENOTCONN with a sentence: no daemon replied in time; -EPROTO: the
 * peer does not use our protocol.
 */
#define RECONNECT_MS 100
int connection_reopen(struct connection *c, struct resumption *ret, struct errmsg *e);

/* Whether @path (NULL: found, not given) is what the connection was opened with. */
bool connection_is_to(const struct connection *c, const char *path);

/* Closes the connection if the daemon closed its end. Checks at most once a second unless @now. For calls
 * that send nothing and would not notice the loss otherwise. */
void connection_check(struct connection *c, bool now);

static inline bool connection_is_open(const struct connection *c)
{
    return c->fd >= 0;
}

/* Closes the descriptor of the parent's connection in a child process, and nothing else. */
void connection_leave(struct connection *c);

/* Closes the socket: the daemon ends the session. */
void connection_close(struct connection *c);

/**
 * connection_request() - send @request, wait for its reply
 * @request:  id and timeout are set here
 * @fds:      borrowed, sent along
 * @body:     the reply's body case that success must have; KVCOBRA__REPLY__BODY__NOT_SET: none
 * @ret:      declared with _cleanup_(reply_deinit); untouched on failure
 *
 * Return: 0; the daemon's errno with its sentence; -ENOTCONN: the connection is lost (or never was); -EPROTO:
 * the reply is invalid, the connection is lost; -EMSGSIZE.
 */
int connection_request(struct connection *c, Kvcobra__Request *request, const int *fds, size_t n_fds,
                       Kvcobra__Reply__BodyCase body, struct reply *ret, struct errmsg *e);

/**
 * connection_call() - connection_request() with one message and without descriptors
 * @kind:    which member of the request's union @message is
 * @message: the protobuf-c struct of that kind
 */
int connection_call(struct connection *c, Kvcobra__Request__BodyCase kind, void *message,
                    Kvcobra__Reply__BodyCase body, struct reply *ret, struct errmsg *e);

/* connection_call() for a request whose reply has no body that the caller reads. */
int connection_send(struct connection *c, Kvcobra__Request__BodyCase kind, void *message, struct errmsg *e);

/**
 * connection_post() - send a request and return at once
 * @message: as in connection_call(); not used after the call
 * @p:       body, on_done and yields are set, the rest is zeros. It belongs to the connection until on_done()
 *
 * Only a few posts are sent at a time; the others are queued until replies arrive. Other calls may use the
 * connection meanwhile.
 *
 * Return: 0: on_done() will be called, or was; -ENOTCONN, -EMSGSIZE, -ENOMEM: it is not posted.
 */
int connection_post(struct connection *c, Kvcobra__Request__BodyCase kind, void *message,
                    struct connection_post *p, struct errmsg *e);

/* Takes back a post that was not sent. Return: false: it was, and on_done() will be called, or was. */
bool connection_cancel_post(struct connection *c, struct connection_post *p);

/* Receives the replies that have arrived, and sends queued posts, without waiting. Closes the connection if
 * it ended, or if a reply is overdue or not valid. Nothing happens on a closed connection. */
void connection_collect(struct connection *c);

/* Ends all posts; the connection is closed. */
void connection_end_posts(struct connection *c);

/*
 * The client is being freed: connection_send() sends nothing from now on, since BYE gives back everything
 * that the session has.
 */
void connection_leave_soon(struct connection *c);

/* Sends BYE if the connection is open, and closes it: the daemon then ends the session at once. Waits a
 * second for the answer at most: a daemon that is busy or stopped finds the message when it goes on. */
void connection_bye(struct connection *c);

static inline bool bytes_are(ProtobufCBinaryData b, size_t n)
{
    return b.len == n;
}
