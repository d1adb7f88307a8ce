/*
 * Holds of an earlier process's sessions that could not be restored: there was no memory for the session or
 * the lease, or its process cannot be watched. The process lives and may read the pages, so they stay held
 * (DESIGN 5.5) until the process is known to be gone; no client can release them. The journal keeps the
 * record and the cells, and the supervisor keeps the pidfd, so that the next start can try again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sessions;
struct store;

struct orphan { /* by number of the session */
    uint64_t n_holds;
    bool is_watched; /* no session has this number: its process is watched here */
    int pidfd;       /* watched: of the process; -1: opened again at each tick */
};

/* Watches the process of session @number from now on, and logs @why. @pidfd: taken over, or -1. */
void orphans_begin(struct sessions *ss, uint32_t number, int pidfd, const char *why);

/* Counts one hold. Its cell stays in the journal; the caller counts it at the page. */
void orphans_add_hold(struct sessions *ss, uint32_t number);

/* The store that the record of session @number names; NULL: its device is not configured. */
struct store *orphans_store(struct sessions *ss, uint32_t number);

bool orphans_is_watched(const struct sessions *ss, uint32_t number);
uint64_t orphans_holds(const struct sessions *ss, uint32_t number);

/* Ends the orphaned holds of session @number. Its process is gone, or has sent BYE, so it maps no page. */
void orphans_end(struct sessions *ss, uint32_t number);

/* Ends the holds of processes that have exited. */
void orphans_tick(struct sessions *ss);
