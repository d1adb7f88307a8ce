/*
 * The shared index of one tenant: chunk key -> (slot, generation). Read-only for clients, one writer thread.
 *
 * Layout of the object (little-endian, offsets from its start):
 *   0    struct index_head, 128 bytes
 *   128  buckets[n_buckets], 256 bytes each: sequence (u32), used bitmap (u32), then for 8 entries their keys
 *        (16 bytes each), generations (u64: generation << 8 | page class), slots (u32), and 24 bytes of zero
 *
 * A key has two homes, by the upper 32 bits x of each of its halves (little-endian): x * n_buckets >> 32. It
 * goes to the emptier home; if both are full, to one of the six buckets behind the second. An insertion sets
 * bit 31 of the bitmap in every full bucket that it skips, and the bit stays set: a lookup continues only
 * behind such a bucket. A bucket's sequence is odd while it is written. Two choices fill buckets evenly, so
 * that 80 % load works: 40 bytes per entry then, 50 after growing by a quarter.
 *
 * An entry is a hint: LEASE sends the slot and generation found, and the
 * daemon compares them with its own record.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/page.h"

#define INDEX_PROBE_MAX 8
#define INDEX_RETRIES_MAX 64
#define INDEX_LOAD_PERCENT 80

struct errmsg;

struct index_hit {
    uint32_t slot;
    uint32_t page_class;
    uint64_t generation;
};

enum index_result {
    INDEX_MISS = 0,
    INDEX_FOUND = 1,
    INDEX_BUSY = 2,  /* a writer kept a bucket odd for INDEX_RETRIES_MAX reads: treat as a miss */
    INDEX_MOVED = 3, /* this object is obsolete, or was given back: send OPEN_MODEL for the new one */
};

/* Reader. @object is mapped read-only, @bytes its fstat'ed size. Return: 0;
 * -EBADMSG. Lookups make no system calls. */
struct index_reader {
    const uint8_t *object;
    size_t bytes;
    uint64_t n_buckets;
};
int index_reader_init(struct index_reader *r, const void *object, size_t bytes, struct errmsg *e);
enum index_result index_lookup(const struct index_reader *r, const struct chunk_key *key,
                               struct index_hit *ret_hit);

/* Writer: the daemon's loop thread. */
struct index_writer {
    uint8_t *object;
    size_t bytes;
    uint64_t n_buckets;
    uint64_t n_entries;
};
size_t index_object_bytes(uint64_t n_entries_max);     /* for that many entries at INDEX_LOAD_PERCENT */
uint64_t index_capacity(const struct index_writer *w); /* entries at INDEX_LOAD_PERCENT */
/* Formats an empty index. @object: zeros; only its head is written, so that a large one costs nothing now. */
void index_writer_init(struct index_writer *w, void *object, size_t bytes);

/**
 * index_insert() - add a key, or replace the entry of an equal key
 *
 * Return: 0; -ENOSPC: all buckets that may have the key are full, and nothing changed.
 *
 * Up to INDEX_LOAD_PERCENT, random keys practically always find a place: with 80 % of the entries in use,
 * 8.8 % of the buckets are full, and the measured share of runs of n full buckets falls about tenfold with
 * each n, from 8.3e-3 for two to 4.0e-6 for five. A key needs a full first home and a run of seven behind it,
 * which is once in some 1e9 insertions (at 85 %: once in 1e5). So a failure below the load limit is a
 * sign of keys that were chosen to share homes. A larger object does not help then: keys with equal upper
 * halves of both words have the same homes in an index of any size.
 */
int index_insert(struct index_writer *w, const struct chunk_key *key, const struct index_hit *hit);
bool index_remove(struct index_writer *w, const struct chunk_key *key);
void index_mark_moved(struct index_writer *w);

/* A page, and one that is known to continue it: does another one continue it, too? */
struct index_family {
    struct chunk_key parent, known;
    bool has_known; /* false: the first one that is found becomes it */
    bool has_other;
};

#define INDEX_FAMILIES_MAX 64

/*
 * Sets has_other where a key of the index, other than @known, has the mark of @parent (chunk_key_derive()). A
 * family can be looked for in several indexes, one after the other.
 * Reads the whole index, some 5 ns an entry. @n: at most INDEX_FAMILIES_MAX.
 */
void index_find_others(const struct index_writer *w, struct index_family *f, size_t n);
