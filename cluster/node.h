/*
 * One connection to a server of the cluster: the commands that wait for its replies, and its circuit breaker.
 *
 *     OFF --time--> LOOKING_UP --> CONNECTING --> SECURING (TLS) --> GREETING (AUTH, PING) --> READY
 *      ^                                                                                         |
 *      +--- any failure, or nothing heard while commands wait -----------------------------------+
 *
 * Only a READY node takes commands, so every failure opens the breaker: commands fail at once until a new
 * connection has answered the greeting. The pause before it doubles, from NODE_PAUSE_MS to NODE_PAUSE_MS_MAX,
 * until a command is answered.
 *
 * Commands are sent in one pipeline, and servers reply in order. A command that its caller gave up keeps its
 * place until the reply has come. Bytes to send, bytes of a reply and commands have limits.
 *
 * No call of this file waits, and none but node_tick(), node_serve() and node_close() calls back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "cluster/slots.h"

struct ev;
struct node;
struct reply;
struct resolver;
struct tls_client;

#define NODE_COMMANDS_MAX 16384 /* without a reply */
#define NODE_PAUSE_MS 250
#define NODE_PAUSE_MS_MAX 10000
#define NODE_LATE_MAX 8 /* times that commands were given up without a reply in time between them */

enum { COMMAND_KEY_BYTES = 72 };

enum command_kind {
    COMMAND_EXISTS,
    COMMAND_GET,
    COMMAND_SET, /* the first value stays */
    COMMAND_EXPIRE,
    COMMAND_UNLINK,
    COMMAND_SLOTS
};

struct command { /* embedded; belongs to the node from node_put() to the callback or node_forget() */
    enum command_kind kind;
    bool asks;       /* ASKING is sent first */
    uint8_t n_tries; /* of router.c */
    uint16_t key_bytes;
    char key[COMMAND_KEY_BYTES];
    const uint8_t *value; /* SET: [value_bytes], copied by node_put() */
    uint8_t *to;          /* GET: where the value goes, [value_bytes]; NULL: into the reply */
    uint64_t value_bytes; /* SET; GET: at most one byte more is asked for */
    uint64_t ttl_ms;      /* SET, 0: for ever; EXPIRE */
    struct node *node;    /* NULL: waits for no reply */
    uint64_t place;
    void (*done)(struct command *c, int result, const struct reply *r); /* of router.c */
    void *ctx;
};

struct node_settings {
    const char *user, *password; /* NULL: none */
    struct tls_client *tls;      /* borrowed; NULL: in clear */
    bool allows_clear_password;  /* to addresses that other machines may have */
    uint64_t buffer_bytes;       /* to send, and of one reply: at most so many each */
    uint64_t connect_ms;         /* from the connection to the end of the greeting */
    uint64_t stall_ms;           /* commands wait, and no byte comes or goes */
};

struct node_env { /* common to all nodes; outlives them */
    const struct node_settings *settings;
    struct ev *ev; /* its clock */
    struct resolver *resolver;
    int epoll_fd; /* data.ptr is the node */
    void (*replied)(void *ctx, struct node *n, struct command *c, const struct reply *r);
    void (*failed)(void *ctx, struct command *c, int err); /* the connection ended */
    void (*changed)(void *ctx, struct node *n);            /* it became READY or OFF */
    void *ctx;
};

enum node_state { NODE_OFF, NODE_LOOKING_UP, NODE_CONNECTING, NODE_SECURING, NODE_GREETING, NODE_READY };

/* OFF, and connects at the next tick. NULL: out of memory. */
struct node *node_new(const struct node_env *env, const char *host, uint16_t port);
/* Its commands are forgotten without a callback. NULL is allowed; returns NULL. */
struct node *node_free(struct node *n);

bool node_is(const struct node *n, const char *host, uint16_t port);
const char *node_host(const struct node *n);
uint16_t node_port(const struct node *n);
enum node_state node_state(const struct node *n);
const char *node_why(const struct node *n); /* why it was closed last; "" */
uint64_t node_n_failures(const struct node *n);

/* Return: 0; -EHOSTDOWN: it is not READY; -ENOBUFS: too much waits; -ENOMEM. */
int node_put(struct node *n, struct command *c);
/* The caller of @c waits no longer. @is_late: since its deadline passed. */
void node_forget(struct command *c, bool is_late);

/* Sends what waits. A failure is found by node_serve(). */
void node_flush(struct node *n);

/* @events: of epoll. */
void node_serve(struct node *n, uint32_t events);
void node_tick(struct node *n);

/* Ends the connection. Commands fail with @err. */
__attribute__((format(printf, 3, 4))) void node_close(struct node *n, int err, const char *fmt, ...);
