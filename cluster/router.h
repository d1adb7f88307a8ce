/*
 * The cluster: its servers, which of them has which slot, and the way of a command to its server. A server
 * that is no cluster has all slots, if it is the only one in the configuration.
 *
 * MOVED and ASK are followed, ROUTER_TRIES_MAX times in all. MOVED, CLUSTERDOWN, a closed connection and time
 * lead to a new map of slots, at most one per ROUTER_REFRESH_MS_MIN. Replicas are not used: a page that only
 * a replica has is a miss until the cluster makes it a master.
 *
 * Servers are hostile: nothing that they send makes more than ROUTER_NODES_MAX nodes, a loop or a wait.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cluster/node.h"

struct ev;
struct router;

#define ROUTER_NODES_MAX 128
#define ROUTER_TRIES_MAX 3
#define ROUTER_REFRESH_MS 30000
#define ROUTER_REFRESH_MS_MIN 500

struct router_server {
    char host[HOST_BYTES];
    uint16_t port;
};

struct router_settings {
    struct node_settings node;
    const struct router_server *servers; /* [n_servers], at least 1, at most ROUTER_NODES_MAX / 2 */
    unsigned n_servers;
};

enum router_mode {
    ROUTER_UNKNOWN, /* no map yet */
    ROUTER_CLUSTER,
    ROUTER_SINGLE,     /* one server that is no cluster */
    ROUTER_IMPOSSIBLE, /* several servers, one of which is no cluster */
};

struct router_counts {
    unsigned n_nodes, n_ready;
    uint64_t n_redirected, n_refreshed, n_node_failures, n_node_joins;
};

/* @s: borrowed. Return: 0; errno with a sentence. */
int router_new(struct ev *ev, const struct router_settings *s, struct router **ret, struct errmsg *e);

/* Commands are forgotten. NULL is allowed; returns NULL. */
struct router *router_free(struct router *r);
/* A look-up of a name runs: router_free() would wait for it. */
bool router_is_busy(const struct router *r);

/*
 * Sends @c, whose done() may run before the call returns. Its result is 0 with a reply that is no error, or a
 * code of cluster_reply.result.
 */
void router_submit(struct router *r, struct command *c);
/* Sends what router_submit() queued: once after many commands. */
void router_flush(struct router *r);

void router_tick(struct router *r);

enum router_mode router_mode(const struct router *r);
/* The last failure of a node, of a command or of the map; "" */
const char *router_why(const struct router *r);
/* How many slots have no node, and why; "": all have one. It changes with the map. */
const char *router_gap(const struct router *r);
/*
 * Whether all slots have a node that answers. Else *ret says how many do not, and why. It looks at each slot.
 */
bool router_is_whole(const struct router *r, struct errmsg *ret);
void router_count(const struct router *r, struct router_counts *ret);

/* The errno of a server's error: see cluster_reply.result. */
int router_errno(const struct reply *error);
