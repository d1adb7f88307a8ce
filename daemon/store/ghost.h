/*
 * What a tenant remembers of pages that are gone: a bounded ring of keys with the reason. Serves two
 * questions: why is this chunk missing, and was this page evicted a moment ago (then it goes straight to the
 * main queue).
 */
#pragma once

#include <stdint.h>

#include "proto/page.h"

enum ghost_reason {
    GHOST_NONE = 0, /* unknown: never here, or forgotten */
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

/* Forgets the oldest one when the ring is full. */
void ghosts_add(struct ghosts *g, const struct chunk_key *key, enum ghost_reason reason);
enum ghost_reason ghosts_find(const struct ghosts *g, const struct chunk_key *key);
void ghosts_remove(struct ghosts *g, const struct chunk_key *key); /* it is back */
