/*
 * Ghosts: keys of pages that a tenant no longer has, in a bounded ring, with the reason. They answer why a
 * chunk is missing, and whether a page was evicted a short time ago, in which case it enters the main queue
 * directly.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/page.h"

enum ghost_reason {
    GHOST_NONE = 0, /* never stored, or forgotten since */
    GHOST_EVICTED = 1,
    GHOST_RETIRED_TABLE = 2,
};

struct ghost;

struct ghosts {
    struct ghost *ring; /* [n_max] */
    uint32_t *heads;    /* [n_heads], a power of two: chains of ring entries */
    uint32_t n_max, n_heads, next;
};

int ghosts_init(struct ghosts *g, uint32_t n_max);
void ghosts_deinit(struct ghosts *g);

/* Forgets the oldest ghost when the ring is full. */
void ghosts_add(struct ghosts *g, const struct chunk_key *key, enum ghost_reason reason);
enum ghost_reason ghosts_find(const struct ghosts *g, const struct chunk_key *key);

/* Whether the page was evicted, and fewer than @n others were dropped since then. */
bool ghosts_was_evicted(const struct ghosts *g, const struct chunk_key *key, uint64_t n);
void ghosts_remove(struct ghosts *g, const struct chunk_key *key); /* the page is stored again */
