/* The state of offloading. For the files of this room. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop/work.h"
#include "daemon/offload/offload.h"
#include "daemon/offload/offload_rate.h"

struct ev_source;
struct offload_forget;
struct offload_put;
struct offload_shared;
struct pool;
struct slot;
struct store;

enum {
    OFFLOAD_WRITES_MAX = 16,      /* pages that are being sealed or written for the tier of the host */
    OFFLOAD_REWRITES_MAX = 64,    /* see struct offload */
    OFFLOAD_PUT_MS = 10000,       /* of a PUT, its wait for a thread and the rate of a tier included */
    OFFLOAD_READ_MS = 5000,       /* of a fetch, which may outlive those who wait */
    OFFLOAD_PROTECT_MS = 2000,    /* how long an arrived page stays for which no request waits */
    OFFLOAD_PROTECTED_MAX = 2048, /* such pages, each with a record of 1 KB; further ones do not stay */
    OFFLOAD_PAUSE_MS = 1000,      /* of all PUTs to a tier, after one failed */
    OFFLOAD_BUSY_MS = 100,        /* of the writes of a group for which the disk had no room at the moment */
    OFFLOAD_REFUSED_MS = 60000,   /* before what the disk refused is tried again */
    OFFLOAD_TIMER_MS = 10,        /* while something is on its way */
};

struct offload_cursor { /* the next slot of the pool, in the order of their numbers */
    uint32_t span, index;
};

/*
 * A pass over the slots of the pool. It begins where the one before it ended, so that slots with high numbers
 * have their turn also if passes are cut short.
 */
struct offload_pass {
    struct offload_cursor at;
    uint32_t n_spans_left;
    uint32_t n_found;   /* pages to write, now or after a short pause */
    uint32_t n_entered; /* the clock of the queues when the pass began */
    bool forgives;      /* pages that were refused are tried again */
    bool rewrites;      /* a flush: also pages of which the disk had a copy that it replaced */
    bool rests;         /* the last pass found none */
};

/*
 * Forgets what the disk has: it may have lost any page. Nothing is written meanwhile, so that no page next to
 * be evicted is taken for one on the disk.
 */
struct offload_sweep {
    struct offload_cursor at;
    bool runs;
};

struct offload_tier {
    const struct tier_ops *ops;
    void *self;
    /* Whether it gets pages of a tenant, by the configuration; NULL: of all. */
    bool (*admits)(const struct config *c, const char *tenant);
    void (*pump)(struct offload_tier *t); /* begins to write further pages */
    struct offload *offload;
    unsigned number;           /* of the tier, and of its share of an account */
    unsigned number_of_shared; /* of the shared ones */
    struct offload_put *puts;  /* [n_puts], a list: being sealed or sent */
    uint32_t n_puts;
    uint64_t pause_until_ms; /* of PUTs, after one failed */
    struct offload_forget *forgets;
    uint64_t n_unopened;
    uint64_t n_late;    /* pages that were read, and that no thread opened in time */
    uint64_t n_skipped; /* see offload_skips() */
    struct offload_rate rate;
    struct offload_shared *shared; /* NULL: a tier of the host */
};

struct offload {
    struct offload_rooms rooms;
    struct store *store; /* of the host's memory */
    struct keyring *keyring;
    struct offload_tier tiers[TIERS_MAX];
    unsigned n_tiers, n_shared;
    struct offload_tier *host; /* the tier of the host; NULL: there is none */
    /* for operators, who see more of them than the interface has; NULL: there is no such tier */
    struct offload_tier *disk, *cluster;
    bool stopping;
    enum tier_state state; /* of the tier of the host, when it was looked at last; TIER_OFF without one */
    uint64_t n_openings;   /* then */

    int timer_fd;
    struct ev_source *timer;
    bool timer_runs;

    struct work_share seals; /* of the threads: all pages on their way out */
    struct tier_share drops; /* of the disk: requests of operators */
    uint64_t forgive_at_ms;  /* when refused pages are tried again; 0: none was refused */
    /*
     * Pages next to be evicted whose copy on the disk was replaced, and that may be written again: more with
     * each eviction. Without a limit, pages of a tier that is smaller than memory would replace each other
     * for ever.
     */
    uint32_t n_rewrites_left;
    uint64_t n_evicted; /* of the store, when the limit was raised last */
    uint64_t scanned_ms;
    uint32_t turn; /* which tenant's queues are looked at first */
    struct offload_pass pass;
    struct offload_sweep sweep;
    struct tier_removed *removed; /* being worked on, up to n_removed_done */
    uint32_t n_removed_done;

    void *fetch_tree; /* of tsearch(): those on their way, by tenant and key */
    struct offload_fetch *fetches;
    struct offload_fetch *first_read, *last_read; /* that were read and wait for a thread, in this order */
    uint32_t n_fetches;                           /* in the list: on their way, or arrived and protected */
    uint32_t n_protected;
};

/* ---- offload_state.c ---- */

/* How tiers name the pages of a group. */
void offload_place_id(const struct offload_place *p, struct tier_group *ret);
void offload_group_id(const struct group *g, struct tier_group *ret);

/* Whether the tier gets pages of the tenant. */
bool offload_admits(const struct offload_tier *t, const struct tenant *x);

void offload_set_timer(struct offload *o, long ms); /* 0: off */
void offload_start_timer(struct offload *o);        /* something is on its way */

/* ---- offload.c ---- */

/* Writes as many pages as may be on their way. */
void offload_pump(struct offload *o);

/* ---- offload_announce.c ---- */

/* The state of the tier of the host may have changed. Return: whether it has. */
bool offload_note_state(struct offload *o);

/* ---- offload_disk.c ---- */

/* Starts the tier. Return: see disk_new(). */
int offload_disk_start(struct offload_tier *t, struct errmsg *e);
void offload_disk_status(const struct offload *o, struct offload_status *ret);

/* ---- offload_pick.c ---- */

struct offload_choice { /* of one offload_pump() */
    struct offload *o;
    uint64_t now_ms;
    bool has_room;                       /* the disk has a segment that is not in use */
    bool no_victim;                      /* no page that is next to be evicted is left to be written */
    uint32_t victim_budget, pass_budget; /* slots that may still be looked at */
};

void offload_choice_init(struct offload_choice *c, struct offload *o);

/* The next page to write. False: none was found; a pass may not have ended. */
bool offload_pick(struct offload_choice *c, struct page_handle *ret);

/* The next slot of the pool. False: a span ends here, or there is none. */
bool offload_cursor_next(const struct pool *p, struct offload_cursor *at, struct page_handle *ret);

void offload_pass_begin(struct offload *o);

/* Pages are to be written that the present pass may have passed over. */
void offload_pass_demand(struct offload *o);

void offload_sweep_begin(struct offload *o);
bool offload_sweep_go_on(struct offload *o); /* one part of it. Return: whether nothing is left to forget */

/* ---- offload_removed.c ---- */

/* Takes notice of pages that left the disk, and begins a sweep if not all are named. */
void offload_note_removed(struct offload *o);

/* ---- offload_put.c ---- */

/* Return: 0; -EAGAIN: no buffer or thread is free; -EFBIG: no buffer is so large; -ENOMEM. */
int offload_put_begin(struct offload_tier *t, const struct page_handle *h);

/* PUTs of the page end without it, or the tier drops it after them. Return: how many there are. */
uint32_t offload_put_flush(struct offload_tier *t, const struct offload_subject *s);

/* ---- offload_cluster.c ---- */

/* Listens for kvcobra-cluster. Return: see cluster_link_new(); -ENOMEM. */
int offload_cluster_start(struct offload_tier *t, struct errmsg *e);
void offload_cluster_status(const struct offload *o, struct offload_status *ret);

/* ---- offload_fetch.c ---- */

/* The page is not on the disk any longer: one that is on its way from there is written again. */
void offload_fetch_note_removed(struct offload *o, struct tenant *t, const struct chunk_key *key);

void offload_fetch_expire(struct offload *o, uint64_t now_ms);

/* Gives pages that were read to threads, as many as have a place; drops those that waited for too long, and
 * all once the offloading stops. */
void offload_fetch_open_read(struct offload *o);

/* A fetch of the page finds nothing. */
void offload_fetch_flush(struct offload *o, const struct tenant *t, const struct chunk_key *key);

/* ---- offload_forget.c ---- */

/**
 * offload_forget() - a tier drops a page, or is asked for it
 * @kind: TIER_FORGET, TIER_REMOVE, TIER_ASK or TIER_ASK_OTHERS
 * @done: called on the loop, once, with 0 or the errno of the request; NULL: no function. A page that the
 *        tier does not have is 0, and -ENOENT with TIER_ASK and TIER_ASK_OTHERS.
 *
 * Return: 0; errors of submit(), -ENOMEM: done() is not called.
 */
int offload_forget(struct offload_tier *t, const struct offload_subject *s, enum tier_kind kind,
                   void (*done)(void *ctx, int err), void *ctx);

/* Whether the tier is dropping the page, and may still have it: it is not fetched. */
bool offload_is_forgetting(const struct offload_tier *t, const struct tier_group *g,
                           const struct chunk_key *key);
