/*
 * The connection to kvcobra-cluster (proto/cluster_wire.h): the socket at which one process of one user may
 * connect, the memory object for values, the requests without a reply.
 *
 * The process is trusted with nothing. A packet that does not answer a request ends the connection, and so
 * does a process that answers no STATUS. It may write to the memory object at any time: who uses a value
 * copies it first, and seals a page in memory of its own before it copies it there.
 *
 *     ABSENT --connect, HELLO--> JOINING --STATUS--> READY, DEGRADED or REFUSED --its end--> ABSENT
 *
 * All calls are on the loop, and none waits. A call always ends: with the reply, at its deadline, or with the
 * connection. The range of a call that ended at its deadline stays with the process until its reply comes.
 * GETs wait here for room in memory; those of a tenant take turns with those of other tenants
 * (loop/fair.h). Other calls are sent at once or refused.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/errmsg.h"
#include "daemon/tier/tier.h"
#include "proto/cluster_wire.h"

struct cluster_link;
struct ev;
struct listen_socket;

enum cluster_link_state {
    CLUSTER_LINK_ABSENT = 0,  /* no process is connected */
    CLUSTER_LINK_JOINING = 1, /* it has not joined the cluster */
    CLUSTER_LINK_READY = 2,
    CLUSTER_LINK_DEGRADED = 3, /* ready, but a part of the cluster does not answer: the sentence says why */
    CLUSTER_LINK_REFUSED = 4,  /* it may not join: the sentence has the reason */
};
extern const char *const cluster_link_state_names[]; /* by enum cluster_link_state */

struct cluster_link_options {
    const char *socket_path; /* copied */
    uid_t uid;               /* of the process */
    const uint8_t *fleet;    /* [CLUSTER_FLEET_BYTES], copied */
    uint64_t memory_bytes;   /* of the memory object, at most DISK_BUFFERS_BYTES_MAX */
    /* On the loop: when the process has joined, each second, every 10 ms while calls are on their way */
    void (*tick)(void *ctx);
    void *ctx;
};

struct cluster_call { /* embedded; belongs to the caller before cluster_link_submit() and from done() on */
    struct fair_item item;            /* first member */
    struct cluster_call *next, *prev; /* of the link: all GETs that wait */
    struct tier_share *share;         /* GET; EXISTS: may be NULL */
    enum cluster_kind kind;           /* EXISTS, GET, PUT, TOUCH, REMOVE */
    uint32_t timeout_ms;              /* from the call on */
    uint64_t ttl_ms;                  /* PUT, TOUCH */
    uint64_t bytes;                   /* GET: the most that the value may have; PUT: of the value */
    /*
     * PUT: a range of cluster_link_take(), transferred. GET: the value, if the result is 0; the caller gives
     * it back with cluster_link_give_back().
     */
    uint8_t *data;
    uint32_t n_names;
    const uint8_t *names; /* [n_names * CLUSTER_NAME_BYTES], borrowed until done() */
    uint64_t deadline_ms;
    /* As in struct cluster_reply; -ENODEV: the connection ended, or the process is not ready. */
    int result;
    uint64_t value_bytes; /* GET, result 0: at most @bytes */
    const struct cluster_reply
        *reply; /* EXISTS, TOUCH, REMOVE, during done(): the bits; NULL: there are none */
    void (*done)(struct cluster_call *c); /* on the loop; may free the call */
};

struct cluster_link_status {
    enum cluster_link_state state;
    char sentence[ERRMSG_BYTES];           /* why it is not READY, or empty */
    uint64_t counters[CLUSTER_N_COUNTERS]; /* of the process, as it reported them last */
    uint32_t n_waiting, n_sent;
    uint64_t n_joined;              /* how often the process joined the cluster */
    uint64_t n_degraded;            /* how often the state became DEGRADED */
    uint64_t n_late;                /* calls that ended at their deadline */
    uint64_t n_strangers, n_faults; /* refused connections; connections ended for what the process did */
    uint64_t n_closed, n_refused;   /* connections that the process closed; how often it may not join */
};

/*
 * Listens at the socket. Return: 0; -EINVAL, -ENOMEM, errno of the socket, each with a sentence: another
 * path, or another daemon.
 */
int cluster_link_new(struct ev *ev, const struct cluster_link_options *options, struct cluster_link **ret,
                     struct errmsg *e);

/* Ends all calls; done() of each runs before the call returns. NULL is allowed; returns NULL. */
struct cluster_link *cluster_link_free(struct cluster_link *l);

static inline void cluster_link_freep(struct cluster_link **l)
{
    *l = cluster_link_free(*l);
}

/* Where it listens. */
const struct listen_socket *cluster_link_socket(const struct cluster_link *l);

/* Whether it takes requests: READY or DEGRADED. NULL is allowed: false. */
bool cluster_link_is_ready(const struct cluster_link *l);

/* Whether a value of @bytes fits the memory object. */
bool cluster_link_fits(const struct cluster_link *l, uint64_t bytes);

/* A range for the value of a PUT. NULL: none is free now, or @bytes do not fit. */
uint8_t *cluster_link_take(struct cluster_link *l, uint64_t bytes);
void cluster_link_give_back(struct cluster_link *l, uint8_t *data);

/*
 * Return: 0; -ENODEV: the process is not ready; -EAGAIN: too many calls; -EFBIG: a GET that does not fit;
 * -ENOMEM. On failure @c was not submitted, and its range is the caller's.
 */
int cluster_link_submit(struct cluster_link *l, struct cluster_call *c);

void cluster_link_status(const struct cluster_link *l, struct cluster_link_status *ret);
