/*
 * A shared tier below offloading: pages that hosts of a fleet share. For the files of this room.
 *
 *     offload_look.c     which pages of a request the shared tiers have
 *     offload_publish.c  the queue of pages that clients committed, on their way there
 *     offload_refresh.c  times to live of pages in use
 *     offload_refill.c   pages that the tier lost, and that are still in memory
 *     offload_copy.c     pages that the tier lost, and that only the tier of the host has
 *
 * Only tenants that the configuration names reach a shared tier, and only pages in host memory. What the tier
 * does not answer is a miss, or a page that is not written.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/offload/offload_state.h"

enum {
    OFFLOAD_PUBLISH_MAX = 4096, /* pages that wait to be written */
    OFFLOAD_PUTS_MAX = 8,       /* of them, being sealed or sent */
    OFFLOAD_BROKEN_MAX = 32,    /* each costs the room of a page in memory */
    OFFLOAD_LOOK_PAUSE_MS = 5000,
    OFFLOAD_TOUCHED_MAX = 1024,
};

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
    struct tier_touch touch;
    struct offload_touched touched[OFFLOAD_TOUCHED_MAX]; /* fetched pages, by their names */
};

struct offload_refill {
    struct offload_cursor at;
    bool runs, is_sent;
    bool repeats;     /* not all names were answered: another pass is due */
    uint64_t losses;  /* of the tier when the last pass began */
    uint64_t next_ms; /* when the next pass may begin */
    struct tier_look look;
    uint8_t names[TIER_NAMES_MAX][TIER_NAME_BYTES];
    bool found[TIER_NAMES_MAX];
    struct offload_published pages[TIER_NAMES_MAX]; /* by name */
};

struct offload_copies {
    struct offload_tier *tier;
    bool runs, repeats; /* another pass is due */
    bool is_asking;     /* the request or the look is on its way */
    bool has_looked;    /* @found is of @list */
    uint64_t from;
    struct tier_list *list; /* the present part; NULL: it is to be asked for */
    uint32_t at;            /* of its pages, the first that is not on its way */
    struct offload_copy *first;
    uint32_t n; /* on their way */
    struct tier_share share;
    struct tier_request request;
    struct tier_look look;
    uint8_t names[TIER_NAMES_MAX][TIER_NAME_BYTES];
    bool found[TIER_NAMES_MAX];
};

struct offload_shared {
    bool was_ready;                                      /* as the control pages of tenants say */
    struct offload_published queue[OFFLOAD_PUBLISH_MAX]; /* a ring */
    uint32_t first, n_queued;
    uint64_t n_failed; /* PUTs, but for those to a full tier */
    uint32_t n_broken; /* pages in a row that the tier said to have and did not give */
    uint64_t look_pause_until_ms;
    uint64_t came_ms; /* when a page came from it last */
    struct offload_refresh refresh;
    struct offload_refill refill;
    struct offload_copies copies;
    struct offload_shared_counts counts;
};

/* ---- offload_state.c ---- */

/* Whether the tier is asked for pages of a tenant now. */
bool offload_shared_looks(const struct offload_tier *t, const char *tenant);

/* ---- offload_look.c ---- */

/* Whether a page that the tier said to have came. After many that did not, it is not asked for a while. */
void offload_look_note(struct offload_tier *t, bool came);

/* ---- offload_publish.c ---- */

/* A part of the work of a shared tier: when it becomes ready, and regularly. */
void offload_shared_tick(struct offload_tier *t);

/* Adds a page to the queue, without beginning to write it. */
void offload_publish_append(struct offload_shared *x, struct offload_published page);
/* How the queue names the page. */
struct offload_published offload_publish_of(const struct page_handle *h);

/* Begins to write pages of the queue. */
void offload_publish_pump(struct offload_tier *t);

/* ---- offload_refresh.c ---- */

/* A part of a pass, if one is due. */
void offload_refresh_go_on(struct offload_tier *t);
/* The page was fetched, and may leave memory before the next pass. */
void offload_refresh_note(struct offload_tier *t, const uint8_t name[static TIER_NAME_BYTES]);

/* ---- offload_refill.c ---- */

/* A part of a pass, if one is due. */
void offload_refill_go_on(struct offload_tier *t);
/* The page came from another tier: this one is asked whether it has it, too. */
void offload_refill_note(struct offload_tier *t, const struct page_handle *h);

/* ---- offload_copy.c ---- */

/* A pass over the tier of the host is due. */
void offload_copies_start(struct offload_tier *t);
/* A part of it, if one is due. */
void offload_copies_go_on(struct offload_tier *t);
/* Copies of the page end without it, or the tier drops it after them. Return: how many there are. */
uint32_t offload_copies_flush(struct offload_tier *t, const struct offload_subject *s);
void offload_copies_deinit(struct offload_copies *c);

/* ---- offload_put.c ---- */

/* Counts a PUT to a shared tier that has ended. */
void offload_put_note_shared(struct offload_tier *t, uint64_t page_bytes, int result);
