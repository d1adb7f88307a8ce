/*
 * The bytes of the index object, for index_read.c and index_write.c only. Clients and daemon use index.h,
 * which also draws these bytes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define INDEX_MAGIC 0x5844494bu /* "KIDX" little-endian */
#define INDEX_VERSION 2
#define INDEX_BUCKET_ENTRIES 8
#define INDEX_USED_MASK 0xffu
#define INDEX_CLASS_BITS 8
/* In `used`: an insertion skipped this full bucket; lookups continue with the next. */
#define INDEX_OVERFLOWED 0x80000000u

struct index_head {
    uint32_t magic;
    uint32_t version;
    uint64_t n_buckets;
    uint64_t moved;
    uint8_t reserved[104];
};
_Static_assert(sizeof(struct index_head) == 128, "index head");

struct index_bucket {
    uint32_t sequence;
    uint32_t used;
    uint64_t keys[INDEX_BUCKET_ENTRIES][2];     /* the key's bytes, read as two little-endian words */
    uint64_t generations[INDEX_BUCKET_ENTRIES]; /* generation << INDEX_CLASS_BITS | page class */
    uint32_t slots[INDEX_BUCKET_ENTRIES];
    uint8_t reserved[24];
};
_Static_assert(sizeof(struct index_bucket) == 256, "index bucket");

/* The bucket of probe @i of a key: one home by each half of the key, then the buckets behind the second. */
static inline uint64_t index_probe(const uint64_t key[2], unsigned i, uint64_t n_buckets)
{
    uint64_t home = (key[i > 0] >> 32) * n_buckets >> 32; /* n_buckets fits 32 bits */

    return i < 2 ? home : (home + i - 1) % n_buckets;
}

/*
 * The seqlock. Every word of a bucket is read and written atomically: no word tears, and the compiler reads
 * each once. Data words use acquire loads and release stores instead of relaxed ones between fences:
 *   - a release store of a data word keeps the odd sequence before it,
 *   - an acquire load of a data word keeps the second load of the sequence after it.
 * On x86-64 both are plain moves, and ThreadSanitizer understands them (it does not understand fences).
 */
#define INDEX_LOAD(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define INDEX_STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)
