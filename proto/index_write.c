/*
 * Writes the index in the daemon, from one thread. Entries never move between buckets, so a reader with a
 * consistent copy of each bucket finds every key that stays in the index during its lookup. See index.h.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "proto/index.h"
#include "proto/index_layout.h"

enum { OBJECT_ALIGN = 4096 };

size_t index_object_bytes(uint64_t n_entries_max)
{
    uint64_t n_buckets, bytes;

    if (n_entries_max > (uint64_t) UINT32_MAX * 6)
        n_entries_max = (uint64_t) UINT32_MAX * 6;
    n_buckets = n_entries_max * 100 / (INDEX_BUCKET_ENTRIES * INDEX_LOAD_PERCENT) + 1;
    if (n_buckets < INDEX_PROBE_MAX)
        n_buckets = INDEX_PROBE_MAX;
    bytes = sizeof(struct index_head) + n_buckets * sizeof(struct index_bucket);
    return (size_t) ((bytes + OBJECT_ALIGN - 1) & ~(uint64_t) (OBJECT_ALIGN - 1));
}

uint64_t index_capacity(const struct index_writer *w)
{
    return w->n_buckets * INDEX_BUCKET_ENTRIES * INDEX_LOAD_PERCENT / 100;
}

static struct index_bucket *index_write_bucket(const struct index_writer *w, const uint64_t key[2],
                                               unsigned probe)
{
    struct index_bucket *buckets = (struct index_bucket *) (w->object + sizeof(struct index_head));

    return &buckets[index_probe(key, probe, w->n_buckets)];
}

void index_writer_init(struct index_writer *w, void *object, size_t bytes)
{
    struct index_head h = {.magic = INDEX_MAGIC, .version = INDEX_VERSION};

    assert(bytes >= sizeof(h) + sizeof(struct index_bucket));
    h.n_buckets = (bytes - sizeof(h)) / sizeof(struct index_bucket);
    assert(h.n_buckets <= UINT32_MAX);
    memcpy(object, &h, sizeof(h));
    *w = (struct index_writer){.object = object, .bytes = bytes, .n_buckets = h.n_buckets};
}

static void index_write_bucket_open(struct index_bucket *b)
{
    /* odd; the release stores of the data words keep it first */
    __atomic_store_n(&b->sequence, b->sequence + 1, __ATOMIC_RELAXED);
}

static void index_write_bucket_close(struct index_bucket *b)
{
    INDEX_STORE(b->sequence, b->sequence + 1); /* even; after every data store */
}

/* Entry of @key in @b, or -1. Plain loads: no other thread writes. */
static int index_write_find(const struct index_bucket *b, const uint64_t key[2])
{
    for (int i = 0; i < INDEX_BUCKET_ENTRIES; i++)
        if (b->used >> i & 1 && b->keys[i][0] == key[0] && b->keys[i][1] == key[1])
            return i;
    return -1;
}

static void write_entry(struct index_bucket *b, unsigned i, const uint64_t key[2],
                        const struct index_hit *hit)
{
    index_write_bucket_open(b);
    INDEX_STORE(b->keys[i][0], key[0]);
    INDEX_STORE(b->keys[i][1], key[1]);
    INDEX_STORE(b->slots[i], hit->slot);
    INDEX_STORE(b->generations[i], hit->generation << INDEX_CLASS_BITS | hit->page_class);
    INDEX_STORE(b->used, b->used | 1u << i);
    index_write_bucket_close(b);
}

static void write_used(struct index_bucket *b, uint32_t used)
{
    index_write_bucket_open(b);
    INDEX_STORE(b->used, used);
    index_write_bucket_close(b);
}

static unsigned index_write_n_used(const struct index_bucket *b)
{
    return (unsigned) __builtin_popcount(b->used & INDEX_USED_MASK);
}

/* The emptier home, else the first of the others with room; INDEX_PROBE_MAX: none. */
static unsigned index_write_choose(const struct index_writer *w, const uint64_t key[2])
{
    unsigned first = index_write_n_used(index_write_bucket(w, key, 0)),
             second = index_write_n_used(index_write_bucket(w, key, 1));

    if (first < INDEX_BUCKET_ENTRIES || second < INDEX_BUCKET_ENTRIES)
        return first <= second ? 0 : 1;

    for (unsigned i = 2; i < INDEX_PROBE_MAX; i++)
        if (index_write_n_used(index_write_bucket(w, key, i)) < INDEX_BUCKET_ENTRIES)
            return i;
    return INDEX_PROBE_MAX;
}

int index_insert(struct index_writer *w, const struct chunk_key *key, const struct index_hit *hit)
{
    struct index_bucket *target;
    uint64_t words[2];
    unsigned at;

    assert(hit->page_class < 1u << INDEX_CLASS_BITS && hit->generation >> (64 - INDEX_CLASS_BITS) == 0);
    memcpy(words, key->bytes, sizeof(words));
    for (unsigned i = 0; i < INDEX_PROBE_MAX; i++) {
        struct index_bucket *b = index_write_bucket(w, words, i);
        int entry = index_write_find(b, words);

        if (entry >= 0) {
            write_entry(b, (unsigned) entry, words, hit);
            return 0;
        }

        if (!(b->used & INDEX_OVERFLOWED))
            break;
    }

    at = index_write_choose(w, words);
    if (at == INDEX_PROBE_MAX)
        return -ENOSPC;

    for (unsigned i = 0; i < at; i++) {
        struct index_bucket *b = index_write_bucket(w, words, i);

        if (!(b->used & INDEX_OVERFLOWED))
            write_used(b, b->used | INDEX_OVERFLOWED);
    }

    target = index_write_bucket(w, words, at);
    write_entry(target, (unsigned) __builtin_ctz(~target->used & INDEX_USED_MASK), words, hit);
    w->n_entries++;
    return 0;
}

bool index_remove(struct index_writer *w, const struct chunk_key *key)
{
    uint64_t words[2];

    memcpy(words, key->bytes, sizeof(words));
    for (unsigned i = 0; i < INDEX_PROBE_MAX; i++) {
        struct index_bucket *b = index_write_bucket(w, words, i);
        int at = index_write_find(b, words);

        if (at >= 0) {
            write_used(b, b->used & ~(1u << at));
            w->n_entries--;
            return true;
        }

        if (!(b->used & INDEX_OVERFLOWED))
            break;
    }

    return false;
}

/* ---- pages that continue a page ---- */

static uint32_t index_mark_of_child(const uint64_t key[2])
{
    uint8_t bytes[CHUNK_KEY_BYTES];
    uint32_t mark;

    memcpy(bytes, key, sizeof(bytes));
    memcpy(&mark, bytes + CHUNK_KEY_MARK_OFFSET, sizeof(mark));
    return mark;
}

static uint32_t index_mark_of_parent(const struct chunk_key *parent)
{
    uint32_t mark;

    memcpy(&mark, parent->bytes, sizeof(mark));
    return mark;
}

static void index_compare_child(const uint64_t key[2], struct index_family *f, size_t n)
{
    uint32_t mark = index_mark_of_child(key);

    for (size_t i = 0; i < n; i++) {
        if (index_mark_of_parent(&f[i].parent) != mark)
            continue;
        if (f[i].has_known) {
            f[i].has_other |= memcmp(f[i].known.bytes, key, sizeof(f[i].known.bytes)) != 0;
        } else {
            memcpy(f[i].known.bytes, key, sizeof(f[i].known.bytes));
            f[i].has_known = true;
        }
    }
}

void index_find_others(const struct index_writer *w, struct index_family *f, size_t n)
{
    const struct index_bucket *b = (const struct index_bucket *) (w->object + sizeof(struct index_head));
    uint64_t may_have = 0; /* bits of marks: most keys are none of the families' */

    assert(n <= INDEX_FAMILIES_MAX);
    for (size_t i = 0; i < n; i++)
        may_have |= UINT64_C(1) << (index_mark_of_parent(&f[i].parent) % 64);

    for (uint64_t k = 0; k < w->n_buckets; k++, b++)
        for (int i = 0; i < INDEX_BUCKET_ENTRIES; i++)
            if (b->used >> i & 1 && may_have >> (index_mark_of_child(b->keys[i]) % 64) & 1)
                index_compare_child(b->keys[i], f, n);
}

void index_mark_moved(struct index_writer *w)
{
    struct index_head *h = (struct index_head *) w->object;

    INDEX_STORE(h->moved, 1);
}
