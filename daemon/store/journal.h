/*
 * The journal has the data that a restart needs beside the slot records: the extents, which session holds
 * which page, and counters that never decrease. It is one memory object, written in place while the daemon
 * runs. It outlives the process in a supervisor's descriptor store (supervisor.h).
 *
 *     0      struct journal_head      constants under a checksum, then live words, each written by one
 *                                     aligned store; places: the devices
 *     4096   struct journal_copy [2]  the list of extents, double-buffered: always the older copy is
 *                                     rewritten, its checksum last
 *     ...    struct session_record [JOURNAL_SESSIONS_MAX]
 *     ...    struct journal_name [JOURNAL_NAMES_MAX]
 *     ...    struct hold_cell [JOURNAL_HOLDS_MAX]
 *
 * The object is sparse: only used records take memory. The last-written word of a record or cell marks it as
 * in use, so a process that dies between two stores leaves no half-written record. The object is private to
 * the daemon, mode 0600. Its contents are validated all the same.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/config/limits.h"
#include "proto/protocol.h"

struct errmsg;

#define JOURNAL_MAGIC 0x4c4e4a4bu /* "KJNL" */
#define JOURNAL_VERSION 3
#define JOURNAL_VERSION_MIN 2 /* adopted, too: the same layout without names of accounts */
#define JOURNAL_UUID_BYTES 48
#define PLACE_NONE UINT32_MAX
#define JOURNAL_SESSIONS_MAX ((1u << 21) - 512) /* version 2 had records where the names are */
#define JOURNAL_HOLDS_MAX (1u << 24)
#define JOURNAL_ITEM_BITS 10 /* of a lease: WIRE_ITEMS_MAX and more */
#define CELL_NONE UINT32_MAX
/* A stored serial above this is damage: the number of a lease has 44 bits for its serial. */
#define JOURNAL_SERIAL_MAX (UINT64_C(1) << 43)

/*
 * The pool of one device. Session records and heads of extents have the number of this entry. The number
 * belongs to the same device as long as anything of that device is stored, in whatever order the
 * configuration lists devices.
 */
struct journal_place {
    char uuid[JOURNAL_UUID_BYTES];  /* "": the host's memory */
    uint8_t pool_id[BOOT_ID_BYTES]; /* random; a client that reconnects compares it to detect another pool */
    uint64_t extent_bytes, unit_bytes; /* a pool of other sizes is another pool */
    uint32_t crc32c;                   /* of all fields above */
    uint32_t reserved;
    uint64_t pool_bytes; /* may grow; 0: unused; written last */
};

struct journal_head {
    uint32_t magic, version;
    uint32_t n_sessions; /* records that were ever used */
    uint32_t reserved;
    uint64_t generation; /* the last one used */
    uint64_t lease_serial, session_serial;
    uint64_t n_holds; /* cells that were ever used */
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

/*
 * The name of an account. Session records and heads of extents have the number of this entry, from 1. Their
 * number 0 means the account "uid-N", which needs no entry: N is the uid of the record.
 */
struct journal_name {
    char name[ACCOUNT_NAME_BYTES];
    uint32_t crc32c; /* of the name */
    uint32_t in_use; /* 0: unused; written last */
    uint8_t reserved[24];
};
_Static_assert(sizeof(struct journal_name) == 64, "journal name");

struct session_record {
    uint64_t serial;   /* 0: unused; written last */
    uint32_t pid, uid; /* of the process */
    uint8_t token[SESSION_TOKEN_BYTES];
    char client_name[WIRE_CLIENT_NAME_BYTES_MAX + 1];
    uint8_t place; /* of its device */
    uint8_t reserved[2];
    uint32_t account; /* see struct journal_name */
    uint8_t reserved2[8];
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
    struct journal_name *names;
    struct hold_cell *holds;
    uint32_t adopted_version; /* that an earlier process wrote; 0: the journal is new */
    uint32_t n_damaged_names; /* entries that were not adopted */
    uint64_t sequence;        /* of the newer copy */
    uint32_t unused_hold;     /* list of unused cells */
    uint32_t n_holds;         /* cells in use */
};

int journal_new(struct journal *j, struct errmsg *e);
uint64_t journal_object_bytes(void);

/**
 * journal_adopt() - take over what an earlier process wrote
 * @fd: borrowed
 *
 * Return: 0; -EBADMSG with a sentence: not a journal, another version, or both copies are damaged.
 */
int journal_adopt(struct journal *j, int fd, struct errmsg *e);
void journal_deinit(struct journal *j);

/* Makes later writes private to this process: its cleanup at exit does not change the stored journal. */
int journal_freeze(struct journal *j);

/* The device's number; PLACE_NONE: nothing of it is stored. @uuid: shorter than JOURNAL_UUID_BYTES. */
uint32_t journal_place_find(const struct journal *j, const char *uuid);

/* Adds a device. Return: its number; PLACE_NONE: all numbers are in use. */
uint32_t journal_place_add(struct journal *j, const char *uuid, uint64_t pool_bytes, uint64_t extent_bytes,
                           uint64_t unit_bytes);
void journal_place_remove(struct journal *j, uint32_t place); /* no session and no extent names it */

/* The number of an account's name, from 1; 0: it has none. */
uint32_t journal_name_find(const struct journal *j, const char *name);

/* Adds a name, which account_name_check() accepts. Return: its number; 0: all numbers are in use. */
uint32_t journal_name_add(struct journal *j, const char *name);
void journal_name_remove(struct journal *j, uint32_t number); /* no session and no extent names it */

/* The name with this number, or NULL. */
const char *journal_name(const struct journal *j, uint32_t number);

/* The list of extents. */
const struct journal_copy *journal_read(const struct journal *j);
void journal_write(struct journal *j, const uint64_t *extents, uint32_t n_extents, uint64_t next_extent);

/* How many cells may be written before one is removed. */
static inline uint32_t journal_holds_free(const struct journal *j)
{
    return JOURNAL_HOLDS_MAX - j->n_holds;
}

/* Writes a cell; there is a free one. Return: its number. */
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

/* Writes the record of session @number, with a new serial. */
void journal_session_add(struct journal *j, uint32_t number, const struct session_record *r);
void journal_session_remove(struct journal *j, uint32_t number);
