/*
 * Holds of an earlier process's sessions that could not be given back to them: a session or a lease could not
 * be made, for lack of memory or because its process cannot be watched. The process lives and may read there,
 * so the pages stay held (DESIGN 5.5), without anybody who could release them, until the process is known to
 * be gone. Record, cells and pidfd stay where they are kept: the next start tries again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct server;
struct store;

struct ownerless { /* by number of the session */
    uint64_t n_holds;
    bool alone; /* there is no session of this number; its process is looked after here */
    int pidfd;  /* alone: of the process, or -1: asked for again at each tick */
};

/* @pidfd: taken over, or -1. Says it loudly in the log. */
void ownerless_begin(struct server *s, uint32_t number, int pidfd, const char *why);

/* Its cell stays in the journal; the page's count of holds is the caller's. */
void ownerless_add(struct server *s, uint32_t number);

/* Where the pages of session @number are, by its record; NULL: on a device that is not here. */
struct store *ownerless_store(struct server *s, uint32_t number);

bool ownerless_is_alone(const struct server *s, uint32_t number);
uint64_t ownerless_holds(const struct server *s, uint32_t number);

/* The process of session @number is gone, or says that it dropped its mappings: the holds end. */
void ownerless_end(struct server *s, uint32_t number);

/* Looks whether processes are gone. */
void ownerless_tick(struct server *s);
