/*
 * The record of one slot, and the memory object with the records of one extent.
 *
 * Records are in a memfd of their own beside each extent, in a fixed layout, never in the pages: the daemon
 * reads nothing back from memory that clients map. Offsets in the object:
 *
 *     0    struct extent_head
 *     64   struct span_head [n_units]             entry of the span's first unit
 *     ...  struct slot [n_units, unit_slots_max]  a span's slots begin at its first unit
 *
 * The object is sparse: only records of existing spans take memory.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"
#include "daemon/config/limits.h"
#include "proto/page.h"

struct errmsg;

#define SLOT_NONE UINT32_MAX
/* RESERVED by no session: on a GPU, after a restart, while the earlier mover may still write to the slot */
#define SLOT_WITHOUT_SESSION UINT32_MAX

/*
 * A stored generation above this is damage: an index has 56 bits for generations, and a daemon never uses up
 * half of them.
 */
#define SLOT_GENERATION_MAX (UINT64_C(1) << 55)

enum slot_state {
    SLOT_FREE = 0,      /* in the span's free list, by next */
    SLOT_RESERVED = 1,  /* in the session's list of reservations, by next and prev */
    SLOT_COMMITTED = 2, /* published; held while holds > 0, else in an eviction queue, by next and prev */
    SLOT_COPYING = 3,   /* reserved, and a job fills the slot: in no list until the job ends */
};

enum slot_queue_id {
    SLOT_QUEUE_NONE = 0,
    SLOT_QUEUE_SMALL = 1,
    SLOT_QUEUE_MAIN = 2,
};

struct slot {
    struct chunk_key key;
    /* from one counter for all pools, so unique; replaced before the slot is written again */
    uint64_t generation;
    uint32_t next, prev; /* slot numbers; see slot_state */
    uint32_t payload_crc32c;
    uint32_t holds; /* leases that name the page and were not released */
    union {
        uint32_t session; /* of a RESERVED slot: number of the session, or SLOT_WITHOUT_SESSION */
        uint32_t entered; /* of a slot in a queue: when it entered, see evict_queue.h */
    };
    uint8_t state, queue, uses;
    uint8_t was_main : 1;
    uint8_t unchecked : 1; /* COMMITTED by an earlier process: its checksum is compared before it is leased */
    /* of this process only; a restart clears them */
    uint8_t
        pinned : 1; /* a thread reads the page: it is neither dropped nor evicted, but stays in its queue */
    uint8_t is_on_disk : 1;   /* COMMITTED: a slower tier has it, or it is on its way there */
    uint8_t was_replaced : 1; /* COMMITTED: a slower tier had it, and took its place for another page */
    uint8_t is_refused : 1;   /* COMMITTED: a slower tier did not take it; it is tried again later */
    uint8_t is_kept : 1;      /* COMMITTED: one of its holds is that of an operator's pin: kept.h */
    uint8_t was_leased : 1;   /* COMMITTED: since its time to live in the cluster was refreshed last */
};
_Static_assert(sizeof(struct slot) == 48, "slot record");

#define RECORDS_MAGIC 0x5253564bu /* "KVSR" */
#define RECORDS_VERSION 2

struct extent_head {
    uint32_t magic, version;
    uint64_t extent;
    uint64_t extent_bytes;
    uint32_t unit_bytes, n_units;
    uint32_t uid;    /* of the account "uid-N" */
    uint32_t place;  /* of the device: see struct journal_place */
    uint8_t retired; /* on a GPU: 1: never takes a page again, see quarantine.h */
    uint8_t reserved[3];
    uint32_t account; /* of the tenant: see struct journal_name */
    uint8_t reserved2[16];
};
_Static_assert(sizeof(struct extent_head) == 64, "extent head");

struct span_head {
    uint8_t table_digest[DIGEST_BYTES];
    uint16_t first_head, n_heads;
    uint8_t in_use, page_class;
    uint16_t n_slots;
    uint32_t n_units;
    uint32_t number; /* of the span in the pool: the upper bits of its slots' numbers */
    uint64_t slot_bytes, page_bytes;
};
_Static_assert(sizeof(struct span_head) == 64, "span head");

struct slot_records {
    int fd;
    size_t bytes;
    uint8_t *data;
    uint32_t n_units, unit_slots_max;
};

int slot_records_init(struct slot_records *r, uint32_t n_units, uint64_t unit_bytes, struct errmsg *e);

/* Reads the head from @fd, which may not be slot records. Return: 0; -EBADMSG. */
int slot_records_peek(int fd, struct extent_head *ret, struct errmsg *e);

/*
 * Takes over the records that an earlier process wrote. @fd: transferred. Return: 0; -EBADMSG: not the
 * records of an extent of this size.
 */
int slot_records_adopt(struct slot_records *r, int fd, uint32_t n_units, uint64_t unit_bytes,
                       struct errmsg *e);

/*
 * Gives back the memory of the records from @first to @first + @n, which are FREE and read as FREE
 * afterwards. Does nothing after slot_records_freeze().
 */
void slot_records_discard(struct slot *first, uint32_t n);

/* See journal_freeze(). */
int slot_records_freeze(struct slot_records *r);
void slot_records_deinit(struct slot_records *r);

static inline struct extent_head *slot_records_head(const struct slot_records *r)
{
    return (struct extent_head *) r->data;
}

static inline struct span_head *slot_records_span(const struct slot_records *r, uint32_t unit)
{
    return (struct span_head *) (r->data + sizeof(struct extent_head)) + unit;
}

static inline struct slot *slot_records_slots(const struct slot_records *r, uint32_t unit)
{
    return (struct slot *) (r->data + sizeof(struct extent_head) + r->n_units * sizeof(struct span_head)) +
           (size_t) unit * r->unit_slots_max;
}
