/*
 * What must be known after a restart besides the slot records: which extents there are, who holds which page,
 * and the counters that never go back. One memory object, written in place while the daemon runs; it outlives
 * the process in a supervisor's descriptor store (supervisor.h).
 *
 *   0            struct journal_head      constants under a checksum, then live words, each of them one
 * aligned store; places: which devices there are 4096         struct journal_copy [2]  the list of extents,
 * double-buffered: a copy is written whole, its checksum last, and always the older one
 *   ...          struct session_record [JOURNAL_SESSIONS_MAX]
 *   ...          struct hold_cell [JOURNAL_HOLDS_MAX]
 *
 * Sparse: only what is used takes memory. A record or cell is in use when its last-written word says so, so
 * that a process that dies between two stores leaves nothing half-done. Private to the daemon, mode 0600;
 * what it holds is checked all the same before it is believed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/config/limits.h"
#include "proto/protocol.h"

struct errmsg;

#define JOURNAL_MAGIC 0x4c4e4a4bu /* "KJNL" */
#define JOURNAL_VERSION 2
#define JOURNAL_UUID_BYTES 48
#define PLACE_NONE UINT32_MAX
#define JOURNAL_SESSIONS_MAX (1u << 21)
#define JOURNAL_HOLDS_MAX (1u << 24)
#define JOURNAL_ITEM_BITS 10 /* of a lease: WIRE_ITEMS_MAX and more */
#define CELL_NONE UINT32_MAX

/*
 * One device's pool. Its number here stands in session records and in the heads of extents; it means the same
 * device as long as anything of it is kept, however the configuration orders its devices.
 */
struct journal_place {
    char uuid[JOURNAL_UUID_BYTES]; /* "": the host's memory */
    uint8_t
        pool_id[BOOT_ID_BYTES]; /* random: a client that comes back asks whether this is the pool it knew */
    uint64_t extent_bytes, unit_bytes; /* another geometry is another pool */
    uint32_t crc32c;                   /* of all above */
    uint32_t reserved;
    uint64_t pool_bytes; /* may grow; 0: unused; written last */
};

struct journal_head {
    uint32_t magic, version;
    uint32_t n_sessions; /* records ever used */
    uint32_t reserved;
    uint64_t generation; /* last one given */
    uint64_t lease_serial, session_serial;
    uint64_t n_holds; /* cells ever used */
    uint64_t n_starts;
    struct journal_place places[JOURNAL_PLACES_MAX];
};

struct journal_copy {
    uint64_t sequence; /* 0: never written */
    uint64_t next_extent;
    uint32_t n_extents;
    uint32_t crc32c; /* of sequence, next_extent, n_extents and the ids */
    uint64_t extents[JOURNAL_EXTENTS_MAX];
};

struct session_record {
    uint64_t serial; /* 0: unused; written last */
    uint32_t pid, uid;
    uint8_t token[SESSION_TOKEN_BYTES];
    char client_name[WIRE_CLIENT_NAME_BYTES_MAX + 1];
    uint8_t place; /* of its device */
    uint8_t reserved[14];
};
_Static_assert(sizeof(struct session_record) == 128, "session record");

struct hold_cell {         /* one lease's hold on one page */
    uint64_t lease;        /* in use: its id; unused: the next unused cell */
    uint32_t slot;         /* SLOT_NONE: unused; written last */
    uint32_t session_item; /* session number << JOURNAL_ITEM_BITS | item of the lease */
};
_Static_assert(sizeof(struct hold_cell) == 16, "hold cell");

struct journal {
    int fd;
    uint8_t *data;
    struct journal_head *head;
    struct journal_copy *copies; /* [2] */
    struct session_record *sessions;
    struct hold_cell *holds;
    uint64_t sequence;    /* of the newer copy */
    uint32_t unused_hold; /* list of cells to use again */
};

int journal_new(struct journal *j, struct errmsg *e);

/**
 * journal_adopt() - take over what an earlier process wrote
 * @fd: borrowed
 *
 * Return: 0; -EBADMSG with a sentence: not a journal, of another version, or both copies are damaged.
 */
int journal_adopt(struct journal *j, int fd, struct errmsg *e);
void journal_deinit(struct journal *j);

/* From now on what is written stays private to this process: the end of it must not look like the end of its
 * pages. */
int journal_freeze(struct journal *j);

/* The device's number, PLACE_NONE if nothing of it is kept. @uuid: shorter than JOURNAL_UUID_BYTES. */
uint32_t journal_place_find(const struct journal *j, const char *uuid);

/* A number for a device that has none. Return: PLACE_NONE: all are in use. */
uint32_t journal_place_add(struct journal *j, const char *uuid, uint64_t pool_bytes, uint64_t extent_bytes,
                           uint64_t unit_bytes);
void journal_place_remove(struct journal *j, uint32_t place); /* no session, no extent names it any more */

/* The list of extents. */
const struct journal_copy *journal_read(const struct journal *j);
void journal_write(struct journal *j, const uint64_t *extents, uint32_t n_extents, uint64_t next_extent);

/* Makes the cell in use. Return: its number, or CELL_NONE: all are in use. */
uint32_t journal_hold_add(struct journal *j, uint32_t session, uint32_t item, uint64_t lease, uint32_t slot);
void journal_hold_remove(struct journal *j, uint32_t cell);

static inline uint32_t hold_session(const struct hold_cell *c)
{
    return c->session_item >> JOURNAL_ITEM_BITS;
}

static inline uint32_t hold_item(const struct hold_cell *c)
{
    return c->session_item & ((1u << JOURNAL_ITEM_BITS) - 1);
}

/* Writes the record of session @number; @r->serial is chosen here. */
void journal_session_add(struct journal *j, uint32_t number, const struct session_record *r);
void journal_session_remove(struct journal *j, uint32_t number);
