/*
 * Persists the pool over a restart (DESIGN 5.5): each new extent is stored with the supervisor, and the next
 * process takes the extents over. restore_pools() rebuilds pages and sessions from them. Names in the
 * supervisor's store:
 *
 *     kvc-journal-0   the journal
 *     kvc-pages-ID    memory of extent ID, on the host
 *     kvc-gpu-ID      memory of extent ID, on a GPU
 *     kvc-slots-ID    slot records of extent ID
 *     kvc-pid-SERIAL  pidfd of a session's process
 *
 * A full store does not take an extent: the log has the limit to set, STATUS says restart=volatile, and the
 * pages of that extent are lost at the next start.
 *
 * An extent is created, stored (with a barrier), written to the journal, then used. A thread does the first
 * two before a tenant needs the extent (extent_maker.h). Removal has the opposite order. A descriptor that is
 * stored but not in the journal was being added or removed: the next start removes it.
 */
#pragma once

#include <stdint.h>

#include "daemon/store/journal.h"
#include "daemon/store/pool.h"

struct device;
struct devices;
struct errmsg;
struct supervisor;

#define PERSIST_NAME_BYTES 48

struct persist {
    struct supervisor *supervisor;
    struct devices *devices;
    struct journal journal;
    struct pool_keeper keeper; /* called by each pool when it adds or removes an extent */
    uint64_t *list;            /* [n_list_max] room for the journal's list: writing it must not fail */
    uint32_t n_list_max;
    uint64_t n_not_stored; /* extents for which the store had no room */
};

/* "kvc-WHAT-NUMBER" */
const char *persist_name(char ret[static PERSIST_NAME_BYTES], const char *what, uint64_t number);

/**
 * persist_open() - take over the journal and the pools of an earlier process, or create empty ones
 * @supervisor, @devices: borrowed
 *
 * The event loop exists, the tables do not yet. A journal or pool that fails validation is emptied, with
 * event=pool-lost in the log: that is not an error. Return: 0; errno of the memory.
 */
int persist_open(struct persist *p, struct supervisor *supervisor, struct devices *devices, struct errmsg *e);
void persist_deinit(struct persist *p);

/* Stops writing changes to the stored pool. Return: 0; errno: the caller must exit without cleaning up. */
int persist_freeze(struct persist *p);

/* Random bytes that name the stored pool of @d; they change when the pool was lost. [BOOT_ID_BYTES] */
const uint8_t *persist_pool_id(const struct persist *p, const struct device *d);

/* Gives every device whose UUID is known a place in the journal, and removes the places of all others. */
void persist_write_places(struct persist *p);

/* Writes the list of extents of all pools to the journal. */
void persist_write_list(struct persist *p);

/* Removes from the supervisor's store the descriptors that no part of the restore has taken. */
void persist_drop_unknown(struct persist *p);
