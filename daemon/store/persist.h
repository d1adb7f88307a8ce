/*
 * The pool over a restart (DESIGN 5.5): extents go to the supervisor's store as they are made, a start takes
 * them back.
 *
 * Names in the store: kvc-journal-0; kvc-pages-ID (kvc-gpu-ID on a GPU) and kvc-slots-ID of extent ID;
 * kvc-pid-SERIAL of a session's process. Order: create, store, barrier, journal, first use; removal the other
 * way round. What is in the store and not in the journal was on its way in or out, and is removed at the next
 * start.
 */
#pragma once

#include <stdint.h>

struct device;
struct errmsg;
struct server;

#define KEEP_NAME_BYTES 48

/* "kvc-WHAT-NUMBER" */
const char *keep_name(char ret[static KEEP_NAME_BYTES], const char *what, uint64_t number);

/**
 * keep_open() - the journal and the pools, from what an earlier process left or empty
 *
 * The event loop runs already, tables do not exist yet. A store that cannot be believed is emptied, with a
 * loud line in the log: that is not an error. Return: 0; errno of the memory.
 */
int keep_open(struct server *s, struct errmsg *e);

/* Pages, holds and sessions of an earlier process, if keep_open() found some. The tables are loaded. */
void keep_restore(struct server *s);

/* The rest of this process's life leaves no trace in what is kept. Return: 0; errno: leave at once, without
 * cleaning up. */
int keep_freeze(struct server *s);

/* Random bytes that mean the pool of @d: others after it was lost. [BOOT_ID_BYTES] */
const uint8_t *keep_pool_id(const struct server *s, const struct device *d);

/* Every device that is known has a place in the journal, nobody else has one. */
void keep_write_places(struct server *s);

/* Between keep.c and restore.c: the journal's list of extents; what nobody took goes out of the store. */
void keep_write_list(struct server *s);
void keep_drop_unknown(struct server *s);
