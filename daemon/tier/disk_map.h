/*
 * What a disk tier has, in memory: which key is in which slot of which segment, and which segment is next to
 * be used again. The thread of the tier uses it alone. It does no input or output.
 *
 * A segment belongs to one group while it has pages. Its slots are filled in order, once each; a page that is
 * dropped leaves its slot unused. Room comes back when a segment is discarded as a whole, with all its pages:
 *
 *   - A tenant at its quota discards one of its own segments. If the tier is full, the tenant with the most
 *     segments does: so no tenant pushes another one below an equal part.
 *   - Of a tenant, a segment without pages goes first, then the one that began first. A segment of which a
 *     quarter of the pages was read since it began, or since it was last spared, is spared once: it moves to
 *     the end of the queue. FIFO writes a disk from one end to the other and keeps no order of uses; one
 *     second chance for a whole segment keeps what is read without copying a page.
 *
 * A segment with writes in flight is not discarded: a late write would damage the next page in the slot.
 * Reads in flight do not matter: the reader compares the generation when the read has ended, and the page
 * does not open otherwise.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/disk_format.h"
#include "proto/index.h"

struct errmsg;

enum disk_slot_state {
    DISK_SLOT_FREE = 0,
    DISK_SLOT_WRITING = 1,
    DISK_SLOT_PRESENT = 2,
    DISK_SLOT_DROPPED = 3,
};

struct disk_slot {
    struct chunk_key key;
    uint8_t state;
    bool was_read; /* since the segment began or was last spared */
};

struct disk_segment {
    uint32_t number;
    uint64_t generation; /* 0: the segment is unused */
    struct disk_group *group;
    uint32_t n_slots, n_filled, n_present, n_writing, n_read;
    bool ends;                        /* takes no new page, and is discarded when its writes have ended */
    struct disk_segment *prev, *next; /* of the tenant, the next one to discard first */
    struct disk_slot *slots;          /* [n_slots] */
};

struct disk_group {
    struct disk_group *next; /* of the tenant */
    struct disk_owner *owner;
    struct tier_group id;
    uint64_t slot_bytes;
    uint32_t n_segments;
    struct disk_segment *open; /* has free slots; NULL: none */
};

struct disk_owner { /* a tenant with segments */
    struct disk_owner *next, *prev;
    char name[TIER_TENANT_BYTES];
    struct disk_group *groups;
    struct disk_segment *first, *last;
    uint32_t n_segments;
    uint64_t n_pages;
    struct index_writer index; /* keys that are WRITING or PRESENT; slot: segment << 16 | slot */
};

struct disk_map {
    uint64_t segment_bytes;
    uint32_t align;
    uint32_t n_segments;     /* that exist on the disk */
    uint32_t n_segments_max; /* that may exist */
    uint32_t n_used, n_ending;
    struct disk_segment *segments; /* [n_segments_max] */
    struct disk_owner *owners;
    void *owner_tree;    /* the same by name, for tsearch(3) */
    uint64_t generation; /* the last one used */
    uint64_t n_pages;
    /*
     * Called before a segment and its pages leave the map. A tenant whose last segment it is ends with it.
     */
    void (*on_discard)(void *ctx, const struct disk_segment *s);
    void *ctx;
};

struct disk_place { /* of a page */
    uint32_t segment, slot;
    uint64_t generation;
    uint64_t offset, slot_bytes; /* in the file of pages */
    uint64_t page_bytes;
};

/* Return: 0; -ENOMEM. */
int disk_map_init(struct disk_map *m, uint32_t n_segments, uint32_t n_segments_max, uint64_t segment_bytes,
                  uint32_t align);
void disk_map_deinit(struct disk_map *m);

/* ---- pages ---- */

/* Whether the tier has the page, which does not count as read: its segment is not spared for that. */
bool disk_map_has(const struct disk_map *m, const struct tier_group *g, const struct chunk_key *key);

/* The place of a page that will be read. False: the tier does not have it, or has it in another group. */
bool disk_map_find(struct disk_map *m, const struct tier_group *g, const struct chunk_key *key,
                   struct disk_place *ret);

/* Whether the place still has the page that disk_map_find() found there. */
bool disk_map_is_current(const struct disk_map *m, const struct disk_place *p);

#define DISK_MAP_GROW 1

/**
 * disk_map_claim() - a place for a new page
 * @quota_bytes: of the tenant: whole segments count
 * @ret_began:   a segment begins with this page: its head is written before the page is published
 *
 * disk_map_publish() or disk_map_abandon() follows when the write has ended.
 *
 * Return: 0; DISK_MAP_GROW: the disk needs a segment more: call disk_map_grown() or disk_map_limit(), and
 * again; -EEXIST: the page is there, or is being written; -EFBIG: no slot is so large; -EDQUOT: the quota has
 * no room for a segment; -EBUSY: writes are in flight in all segments that could be discarded; -ENOSPC: the
 * index has no place for the key; -ENOMEM. *ret is untouched on failure.
 */
int disk_map_claim(struct disk_map *m, const struct tier_group *g, const struct chunk_key *key,
                   uint64_t quota_bytes, struct disk_place *ret, bool *ret_began);
void disk_map_grown(struct disk_map *m); /* one segment more exists */
void disk_map_limit(struct disk_map *m); /* no further segment can exist */

/* The head of a segment in use, for the file. */
void disk_map_head(const struct disk_map *m, uint32_t segment, struct disk_segment_head *ret);

/*
 * The write ended. Return: whether the page is there now. False: the segment ends, or the place was
 * abandoned.
 */
bool disk_map_publish(struct disk_map *m, const struct disk_place *p);
void disk_map_abandon(struct disk_map *m, const struct disk_place *p);

/* Removes a page. False: the place has another one by now. */
bool disk_map_drop(struct disk_map *m, const struct disk_place *p);

/* ---- segments ---- */

/*
 * Ends all segments of @tenant (NULL: all) and @table_digest (NULL: all): their pages are gone at once.
 * disk_map_take_ended() returns each one that has no write in flight. Return: how many there were.
 */
uint32_t disk_map_end(struct disk_map *m, const char *tenant, const uint8_t *table_digest);

/*
 * Discards the first ended segment from number *segment on, and stores its number. False: none can be
 * discarded now. The caller clears its head on the disk.
 */
bool disk_map_take_ended(struct disk_map *m, uint32_t *segment);

/* ---- the start ---- */

/* False: the segment cannot be used, and stays unused: alignment, memory. */
bool disk_map_adopt_segment(struct disk_map *m, const struct disk_segment_head *h);
/* A page of the segment that was adopted last. */
void disk_map_adopt_page(struct disk_map *m, uint32_t segment, const struct disk_record *r);
/* After the last page: orders the segments by age. Return: 0; -ENOMEM. */
int disk_map_adopt_done(struct disk_map *m);

/* See index_find_others(). */
void disk_map_find_others(const struct disk_map *m, const char *tenant, struct index_family *f);

uint64_t disk_map_n_pages(const struct disk_map *m, const char *tenant);

/* Calls @f with the key of each page of @tenant. */
void disk_map_for_each(const struct disk_map *m, const char *tenant,
                       void (*f)(void *ctx, const struct chunk_key *key), void *ctx);

/*
 * Pages from the place @from on, of the first segment there that has any: 0, or next of the part before.
 * False: there are none.
 */
bool disk_map_list(const struct disk_map *m, uint64_t from, struct tier_list *ret);

/* Checks the counts against each other. For tests. */
bool disk_map_is_valid(const struct disk_map *m, struct errmsg *e);
