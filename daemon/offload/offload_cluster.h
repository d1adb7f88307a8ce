/*
 * The cluster tier below offloading: pages that hosts of a fleet share. For the files of this room.
 *
 *     offload_look.c     which pages of a request the cluster has: one EXISTS for all of them
 *     offload_fetch.c    pages on their way to memory, from the disk or from the cluster
 *     offload_publish.c  pages that clients committed, on their way to the cluster
 *     offload_refresh.c  times to live of pages in use
 *
 * Only tenants that the configuration names reach the cluster, and only pages in host memory. What the
 * cluster does not answer is a miss, or a page that is not written.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/cluster/cluster_link.h"
#include "daemon/cluster/cluster_name.h"
#include "daemon/offload/offload_state.h"

enum {
    OFFLOAD_PUBLISH_MAX = 4096, /* pages that wait to be written to the cluster */
    OFFLOAD_PUTS_MAX = 8,       /* of them, being sealed or sent */
    OFFLOAD_PUT_MS = 10000,     /* kvcobra-cluster limits the rate: a PUT waits there */
    OFFLOAD_BROKEN_MAX = 32,    /* each costs the room of a page in memory */
    OFFLOAD_LOOK_PAUSE_MS = 5000,
    OFFLOAD_TOUCHED_MAX = 1024,
};

struct offload_put;
struct offload_remove;

struct offload_published { /* a page in the queue; it may have left its slot, or have been flushed */
    uint32_t slot;
    uint32_t key_start; /* first bytes of its key: a held page that is flushed gets another */
    uint64_t generation;
};

struct offload_touched {
    uint64_t name; /* first bytes of the page's name */
    uint64_t ms;   /* when it was refreshed; 0: the entry is empty */
};

struct offload_refresh {
    struct offload_cursor at;
    bool runs, is_sent;
    uint64_t next_ms; /* when the next pass over the pool begins */
    uint32_t n;
    uint8_t names[CLUSTER_NAMES_MAX][CLUSTER_NAME_BYTES];
    struct cluster_call call;
    struct offload_touched touched[OFFLOAD_TOUCHED_MAX]; /* fetched pages, by their names */
};

struct offload_cluster {
    struct cluster_link *link;
    bool was_ready; /* as the control pages of tenants say */
    uint8_t name_key[CLUSTER_NAME_KEY_BYTES];
    struct offload_published queue[OFFLOAD_PUBLISH_MAX]; /* a ring */
    uint32_t first, n_queued, n_puts;
    struct offload_put *puts;        /* [n_puts], a list */
    uint64_t pause_until_ms;         /* of writes, after one failed */
    struct offload_remove *removing; /* without an answer: these pages are not fetched */
    uint32_t n_broken;               /* pages in a row that the cluster said to have and did not give */
    uint64_t look_pause_until_ms;
    struct offload_refresh refresh;
    struct offload_cluster_counts counts;
};

/* ---- offload_cluster.c ---- */

/* Listens for kvcobra-cluster. Return: see cluster_link_new(); -ENOMEM. */
int offload_cluster_start(struct offload *o, struct errmsg *e);
void offload_cluster_end(struct offload *o);

/* ---- offload_shared.c ---- */

/* Whether pages of the tenant are shared. */
bool offload_is_shared(const struct offload *o, const struct tenant *t);

void offload_cluster_name(const struct offload_cluster *c, const struct tier_group *id,
                          const struct chunk_key *key, uint8_t ret[static CLUSTER_NAME_BYTES]);

/* ---- offload_remove.c ---- */

/*
 * The cluster forgets the page. @done: on the loop, once, with the result; NULL: no function. Return: 0;
 * errors of cluster_link_submit(), -ENOMEM: done() is not called.
 */
int offload_cluster_remove(struct offload_cluster *c, const uint8_t name[static CLUSTER_NAME_BYTES],
                           void (*done)(void *ctx, int err), void *ctx);

/* Whether the page is being removed, and the cluster may still have it. */
bool offload_cluster_is_removing(const struct offload_cluster *c,
                                 const uint8_t name[static CLUSTER_NAME_BYTES]);

/* ---- offload_look.c ---- */

/* Whether a page that the cluster said to have came. After many that did not, it is not asked for a while. */
void offload_look_note(struct offload *o, bool came);

/* ---- offload_publish.c ---- */

void offload_publish_pump(struct offload *o);
/* Writes of the page that were not sent yet end without it. Return: how many there are, sent ones too. */
uint32_t offload_publish_flush(struct offload *o, const uint8_t name[static CLUSTER_NAME_BYTES]);

/* ---- offload_refresh.c ---- */

/* A part of a pass, if one is due. */
void offload_refresh_go_on(struct offload *o);
/* The page was fetched, and may leave memory before the next pass. */
void offload_refresh_note(struct offload *o, const uint8_t name[static CLUSTER_NAME_BYTES]);
