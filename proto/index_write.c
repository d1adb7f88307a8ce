/*
 * The index as the daemon writes it, from one thread. Entries never move between buckets, so a reader that finds
 * each bucket consistent finds every key that was there throughout its lookup.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "proto/index.h"
#include "proto/index_layout.h"

enum { OBJECT_ALIGN = 4096 };

/* Half load: with 14 expected entries per pair of buckets, eight full buckets in a row do not happen by chance. */
size_t index_object_bytes(uint64_t n_entries_max)
{
    uint64_t n_buckets = INDEX_PROBE_MAX, bytes;

    while (n_buckets < UINT64_MAX / 1024 && n_buckets * INDEX_BUCKET_ENTRIES / 2 < n_entries_max)
        n_buckets *= 2;
    bytes = sizeof(struct index_head) + n_buckets * sizeof(struct index_bucket);
    return (size_t) ((bytes + OBJECT_ALIGN - 1) & ~(uint64_t) (OBJECT_ALIGN - 1));
}

static struct index_bucket *bucket(const struct index_writer *w, const uint64_t key[2], unsigned probe)
{
    struct index_bucket *buckets = (struct index_bucket *) (w->object + sizeof(struct index_head));

    return &buckets[(key[0] + probe) & (w->n_buckets - 1)];
}

void index_writer_init(struct index_writer *w, void *object, size_t bytes)
{
    struct index_head h = { .magic = INDEX_MAGIC, .version = INDEX_VERSION };
    size_t room;

    assert(bytes >= sizeof(h) + sizeof(struct index_bucket));
    room = (bytes - sizeof(h)) / sizeof(struct index_bucket);
    h.n_buckets = 1;
    while (h.n_buckets <= room / 2)
        h.n_buckets *= 2;
    memset(object, 0, bytes);
    memcpy(object, &h, sizeof(h));
    *w = (struct index_writer) { .object = object, .bytes = bytes, .n_buckets = h.n_buckets };
}

static void bucket_open(struct index_bucket *b)
{
    __atomic_store_n(&b->sequence, b->sequence + 1, __ATOMIC_RELAXED); /* odd; kept first by the release stores */
}

static void bucket_close(struct index_bucket *b)
{
    INDEX_STORE(b->sequence, b->sequence + 1); /* even; after every data store */
}

/* Entry of @key in @b, or -1. The writer reads plainly: nobody else writes. */
static int find(const struct index_bucket *b, const uint64_t key[2])
{
    for (int i = 0; i < INDEX_BUCKET_ENTRIES; i++)
        if (b->used >> i & 1 && b->entries[i].key[0] == key[0] && b->entries[i].key[1] == key[1])
            return i;
    return -1;
}

static void write_entry(struct index_bucket *b, unsigned i, const uint64_t key[2], const struct index_hit *hit)
{
    struct index_entry *entry = &b->entries[i];

    bucket_open(b);
    INDEX_STORE(entry->key[0], key[0]);
    INDEX_STORE(entry->key[1], key[1]);
    INDEX_STORE(entry->slot, hit->slot);
    INDEX_STORE(entry->page_class, hit->page_class);
    INDEX_STORE(entry->generation, hit->generation);
    INDEX_STORE(b->used, b->used | 1u << i);
    bucket_close(b);
}

static void write_used(struct index_bucket *b, uint32_t used)
{
    bucket_open(b);
    INDEX_STORE(b->used, used);
    bucket_close(b);
}

/* In a small object the probe run wraps around: stop before meeting a bucket twice. */
static unsigned n_probes(const struct index_writer *w)
{
    return w->n_buckets < INDEX_PROBE_MAX ? (unsigned) w->n_buckets : INDEX_PROBE_MAX;
}

int index_insert(struct index_writer *w, const struct chunk_key *key, const struct index_hit *hit)
{
    struct index_bucket *target;
    uint64_t words[2];
    int room = -1;

    memcpy(words, key->bytes, sizeof(words));
    for (unsigned i = 0; i < n_probes(w); i++) {
        struct index_bucket *b = bucket(w, words, i);
        int at = find(b, words);

        if (at >= 0) {
            write_entry(b, (unsigned) at, words, hit);
            return 0;
        }
        if (room < 0 && (b->used & INDEX_USED_MASK) != INDEX_USED_MASK)
            room = (int) i;
        if (!(b->used & INDEX_OVERFLOWED) && room >= 0)
            break;
    }
    if (room < 0)
        return -ENOSPC;
    for (int i = 0; i < room; i++) {
        struct index_bucket *b = bucket(w, words, (unsigned) i);

        if (!(b->used & INDEX_OVERFLOWED))
            write_used(b, b->used | INDEX_OVERFLOWED);
    }
    target = bucket(w, words, (unsigned) room);
    write_entry(target, (unsigned) __builtin_ctz(~target->used & INDEX_USED_MASK), words, hit);
    w->n_entries++;
    return 0;
}

bool index_remove(struct index_writer *w, const struct chunk_key *key)
{
    uint64_t words[2];

    memcpy(words, key->bytes, sizeof(words));
    for (unsigned i = 0; i < n_probes(w); i++) {
        struct index_bucket *b = bucket(w, words, i);
        int at = find(b, words);

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

void index_mark_moved(struct index_writer *w)
{
    struct index_head *h = (struct index_head *) w->object;

    INDEX_STORE(h->moved, 1);
}
