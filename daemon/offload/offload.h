/*
 * Offloading: moves pages between the pool of the host's memory and slower tiers (tier/tier.h): the disk of
 * the host (tier/disk.h) and a cluster that hosts share (cluster/cluster_tier.h). Each may be missing.
 *
 * Out: pages are written ahead of their eviction, so eviction never waits. First come the pages that are next
 * to be evicted, tenant by tenant; then all others, in passes over the pool that end when a pass finds none.
 * While the disk is full, only pages that were used again are written. A page is pinned while a thread seals
 * it, not while the disk writes. The disk tells which pages it replaced: those that are next to be evicted
 * are written again if they were used. What it refused is tried again after a minute.
 *
 * In: offload_fetch() reserves a slot, which is COPYING until the page arrived, reads, opens and publishes
 * the page. There is one fetch per key, however many wait for it. The space is charged to the tenant like any
 * page. An arrived page is held until those who wait have leased it, or for a short time if none waits. A
 * page that the disk does not have comes from the cluster, if offload_look() found it there.
 *
 * To the cluster: pages are written when clients commit them (offload_publish.c), not when they are evicted.
 *
 * Only pages in host memory are offloaded. All calls are on the loop, and none waits for a disk or a thread.
 * A failure of a tier is a miss or a page that is not written, never an error of the pool.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/cluster/cluster_link.h"
#include "daemon/tier/disk.h"
#include "daemon/tier/tier.h"
#include "proto/page.h"
#include "proto/protocol.h"

struct account;
struct config;
struct devices;
struct disk_engine_ops;
struct errmsg;
struct ev;
struct group;
struct keyring;
struct offload;
struct offload_fetch;
struct offload_subject;
struct offload_tier;
struct page_handle;
struct space;
struct tenant;
struct work;

struct offload_rooms { /* borrowed */
    const struct config *config;
    struct ev *ev;
    struct work *work;
    struct devices *devices;
    const struct disk_engine_ops *const *engines;
};

struct offload_shared_counts {             /* of a shared tier, since the start */
    uint64_t n_asked, n_found;             /* names of offload_look() */
    uint64_t n_unanswered;                 /* calls of it without a whole answer */
    uint64_t n_read, read_bytes, n_missed; /* fetches of found pages; missed: they did not come */
    uint64_t n_written, written_bytes;
    uint64_t n_present;     /* writes of pages that the cluster had */
    uint64_t n_not_written; /* the cluster did not take them */
    uint64_t n_dropped;     /* no place in the queue, too large, or evicted before their turn */
    uint64_t n_refreshed;   /* names whose time to live was set anew */
    uint64_t n_refilled;    /* pages that the tier had lost, and that were queued again */
    uint64_t n_pauses;      /* of offload_look(), after pages that did not come */
};

struct offload_status {
    bool has_disk, has_cluster;
    struct disk_status disk;            /* has_disk */
    struct cluster_link_status cluster; /* has_cluster, as all that follows it */
    struct offload_shared_counts shared;
    uint64_t n_unopened_shared; /* pages from the cluster that did not open */
    uint64_t n_late_shared;     /* pages from the cluster that no thread opened in time */
    uint32_t n_to_publish;      /* pages that wait to be written to the cluster, or are on their way */
    uint64_t n_lost;            /* evicted pages that the disk did not have */
    uint32_t n_writing, n_fetching;
    uint64_t n_unopened;                      /* pages from the disk that did not open */
    uint64_t n_late;                          /* pages from the disk that no thread opened in time */
    uint64_t n_skipped, n_skipped_shared;     /* see offload_skips() */
    uint64_t bytes_per_s, bytes_per_s_shared; /* of fetches, lately; 0: not measured */
    bool has_written_all;                     /* offload_has_written_all() */
};

/*
 * Adds a tier: @admits: see struct offload_tier. Its self is set later. At most one tier of the host, and
 * OFFLOAD_SHARED_MAX shared ones. Return: 0; -ENOMEM.
 */
int offload_add_tier(struct offload *o, const struct tier_ops *ops,
                     bool (*admits)(const struct config *c, const char *tenant), struct offload_tier **ret);

/*
 * Starts the tiers that the configuration has. @ring: a reference is taken. Return: 0; -ENOMEM; errno of
 * descriptors, sockets and threads. A folder that cannot be used is no failure: the disk tier is off then,
 * and the log has the reason. Nor is a kvcobra-cluster that does not connect.
 */
int offload_new(const struct offload_rooms *rooms, struct keyring *ring, struct offload **ret,
                struct errmsg *e);

/*
 * Nothing new begins. Before work_free(), which ends what threads do; offload_free() follows it, ends
 * all fetches and leaves a disk that does not answer for @wait_ms. NULL is allowed.
 */
void offload_stop(struct offload *o);
struct offload *offload_free(struct offload *o, uint64_t wait_ms);

/* At each tick, and after a request, if pages came to the eviction queues since. NULL is allowed. */
void offload_tick(struct offload *o);
void offload_note_requests(struct offload *o);

/* Pages are sealed with @ring from now on; a reference is taken. */
void offload_set_keyring(struct offload *o, struct keyring *ring);

/* ---- fetches ---- */

struct offload_waiter { /* embedded by who waits for a page; zeros at first */
    struct offload_waiter *next, *prev;
    struct offload_fetch *fetch; /* NULL: does not wait */
    uint64_t deadline_ms;
    /*
     * @page: held during the call; PAGE_NONE: it did not arrive, or not before the deadline.
     * @w does not wait any longer.
     */
    void (*ended)(struct offload_waiter *w, const struct page_handle *page);
};

/* A page by what it belongs to, also if there is no group yet. */
struct offload_place { /* borrowed */
    const struct tenant *tenant;
    const struct space *space;
    unsigned page_class;
};

/* False: the disk does not have the page. NULL is allowed. */
bool offload_has(const struct offload *o, const struct tenant *t, const struct chunk_key *key);

/* Whether a shared tier may have pages of the tenant, and answers now. NULL is allowed. */
bool offload_may_look(const struct offload *o, const struct tenant *t);

/*
 * Whether no tier of the host, or no shared one, gives pages as fast as the client computes them, by its
 * measured rate: none is asked for the request, which is counted. @client_bytes_per_s: 0: it does not say.
 */
bool offload_skips(struct offload *o, bool is_shared, uint64_t client_bytes_per_s);

enum { OFFLOAD_SHARED_MAX = 2 }; /* shared tiers */

struct offload_look_part { /* of one tier */
    struct tier_look look;
    struct offload_look *of;
    struct offload_tier *tier; /* NULL: it is not asked */
};

/* Which of some pages of a tenant shared tiers have. Embedded by who waits. */
struct offload_look {
    struct account *account; /* for which they are asked; NULL: for an operator */
    uint32_t n;
    unsigned n_pending;
    int result;                  /* errno: a tier did not answer for all pages */
    struct offload_tier **found; /* [n] the first tier that has the page; NULL: none */
    struct offload_look_part parts[OFFLOAD_SHARED_MAX];
    void (*ended)(struct offload_look *l); /* on the loop */
};

/* Memory of a look for @n pages, beside its struct: zeros, aligned for pointers. */
#define OFFLOAD_LOOK_BYTES(n)                                                                                \
    ((n) * (sizeof(struct offload_tier *) + OFFLOAD_SHARED_MAX * (TIER_NAME_BYTES + sizeof(bool))))

/* @memory: [OFFLOAD_LOOK_BYTES(@n_max)], borrowed until ended(). */
void offload_look_init(struct offload_look *l, uint32_t n_max, void *memory);

/* Adds a page, one of n_max. offload_may_look() is true for its tenant. */
void offload_look_add(struct offload *o, struct offload_look *l, const struct offload_place *p,
                      const struct chunk_key *key);
void offload_look_add_page(struct offload *o, struct offload_look *l, const struct offload_subject *s);

/*
 * Asks the tiers, which have @most_ms to answer, or less by the configuration. What they do not answer counts
 * as not found. Return: 0: ended() is called later; errors of submit().
 */
int offload_look(struct offload *o, struct offload_look *l, uint32_t most_ms);

/*
 * Fetches a page of @g that its tenant does not have in memory. @found: what offload_look() found; the page
 * comes from there unless the tier of the host has it; or NULL. @w: NULL: no request waits. This function
 * does not call ended(). Return: 0; -ENODATA: no tier has the page; -EBUSY: the key is being fetched as a
 * page of another group, as only a faulty client asks for it; -EAGAIN, -ENODEV, -EFBIG: submit(); errors of
 * reserve_slot(), with a sentence; -ENOMEM.
 */
int offload_fetch(struct offload *o, struct group *g, const struct chunk_key *key, struct offload_tier *found,
                  struct offload_waiter *w, struct errmsg *e);

/* @w stops waiting; the fetch continues. */
void offload_waiter_leave(struct offload_waiter *w);

/* A client committed a page. @o: NULL is allowed. */
void offload_note_published(struct offload *o, const struct page_handle *h);

/* How the disk names one page. */
struct offload_subject {
    struct account *account; /* borrowed */
    struct tier_group group;
    struct chunk_key key;
    struct index_family family; /* offload_ask_others() */
};

/**
 * offload_flush_page() - an operator flushes a page: neither a tier nor what is on its way to memory has it
 * @t:              whose pages are in host memory; store_forget() was called for the page in memory
 * @done:           called on the loop, once for each tier, when it has answered
 * @ret_pending:    how often done() will be called
 * @ret_on_the_way: PUTs of the page on their way, which are undone
 *
 * Other hosts may have the page, and write it to a shared tier again. Return: 0; errno of a tier that takes
 * no request now, and may still have the page.
 */
int offload_flush_page(struct offload *o, const struct tenant *t, const struct offload_subject *s,
                       void (*done)(void *ctx, int err), void *ctx, unsigned *ret_pending,
                       uint32_t *ret_on_the_way);

/**
 * offload_ask() - whether the disk has a page, not only its filter
 * @done: called on the loop, once; @err: 0: it has the page; -ENOENT; -ETIMEDOUT, -ENODEV: unknown
 *
 * Return: 0; -ENOENT; errors of submit() and -ENOMEM: done() is not called.
 */
int offload_ask(struct offload *o, const struct tenant *t, const struct offload_subject *s,
                void (*done)(void *ctx, int err), void *ctx);

/*
 * The same for whether the disk has further pages that continue a page, see index_find_others(). Return: 0;
 * -ENODEV: there is no disk; errors of submit() and -ENOMEM.
 */
int offload_ask_others(struct offload *o, const struct offload_subject *s, void (*done)(void *ctx, int err),
                       void *ctx);

/* ---- what clients see ---- */

/*
 * Writes to the tenant's control page the number of its filter, and whether the cluster is asked. NULL is
 * allowed.
 */
void offload_announce_filter(struct offload *o, struct tenant *t);

/* See open_filter() in tier.h. NULL is allowed: -ENOENT. */
int offload_open_filter(const struct offload *o, const struct tenant *t, int *ret_fd, size_t *ret_bytes,
                        uint64_t *ret_object);

/* Where kvcobra-cluster connects; NULL: nowhere. @o: NULL is allowed. */
const struct listen_socket *offload_cluster_socket(const struct offload *o);

/* ---- operators ---- */

void offload_status(const struct offload *o, struct offload_status *ret);

/* Begins a pass over all pages, also held ones. */
void offload_write_all(struct offload *o);
/*
 * Whether no page is left to be written since the last offload_write_all(), or the tier is off. Pages that
 * the disk refused are not waited for.
 */
bool offload_has_written_all(const struct offload *o);

/* Opens the tier of the host. Return: 0; -EALREADY: it is not off, or there is none. */
int offload_resume(struct offload *o);

struct offload_drop { /* embedded by who waits; belongs to the tier until done() is called */
    struct tier_request request;
    struct offload *offload;
    void (*done)(struct offload_drop *d); /* request.result */
};

/* Drops the pages of a tenant and of a table from the disk; NULL: of all. Return: see submit() in tier.h. */
int offload_drop(struct offload *o, const char *tenant, const uint8_t *table_digest, struct offload_drop *d);

/* The same for a table that retired, without a callback. NULL is allowed. */
void offload_drop_table(struct offload *o, const uint8_t *table_digest);
