/*
 * Reads the index in a client: no system call, no lock, no trust in the object. A lookup reads only inside
 * the object and ends after a bounded number of reads, whatever bytes it holds. See index.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/errmsg.h"
#include "proto/index.h"
#include "proto/index_layout.h"

int index_reader_init(struct index_reader *r, const void *object, size_t bytes, struct errmsg *e)
{
    struct index_head h;
    size_t room;

    if (bytes < sizeof(h) + sizeof(struct index_bucket))
        return fail(e, -EBADMSG, "index object: %zu bytes are too few", bytes);

    memcpy(&h, object, sizeof(h));
    if (h.magic != INDEX_MAGIC || h.version != INDEX_VERSION)
        return fail(e, -EBADMSG, "index object: magic %08x version %u, this library reads version %u",
                    h.magic, h.version, INDEX_VERSION);

    room = (bytes - sizeof(h)) / sizeof(struct index_bucket);
    if (h.n_buckets == 0 || h.n_buckets > room || h.n_buckets > UINT32_MAX)
        return fail(e, -EBADMSG, "index object: %" PRIu64 " buckets in %zu bytes", h.n_buckets, bytes);

    *r = (struct index_reader){.object = object, .bytes = bytes, .n_buckets = h.n_buckets};
    return 0;
}

/* One consistent read of a bucket. */
static enum index_result index_read_bucket(const struct index_bucket *b, const uint64_t key[2],
                                           struct index_hit *ret_hit, bool *ret_overflowed)
{
    for (unsigned attempt = 0; attempt < INDEX_RETRIES_MAX; attempt++) {
        enum index_result result = INDEX_MISS;
        struct index_hit hit = {0};
        uint32_t before = INDEX_LOAD(b->sequence), used;

        if (before & 1)
            continue;

        used = INDEX_LOAD(b->used);
        for (unsigned i = 0; i < INDEX_BUCKET_ENTRIES; i++) {
            uint64_t generation;

            if (!(used >> i & 1) || INDEX_LOAD(b->keys[i][0]) != key[0] ||
                INDEX_LOAD(b->keys[i][1]) != key[1])
                continue;

            hit.slot = INDEX_LOAD(b->slots[i]);
            generation = INDEX_LOAD(b->generations[i]);
            hit.page_class = (uint32_t) (generation & ((1u << INDEX_CLASS_BITS) - 1));
            hit.generation = generation >> INDEX_CLASS_BITS;
            result = INDEX_FOUND;
            break;
        }

        /* after the acquire loads above: a change of the entry meanwhile has changed the sequence */
        if (__atomic_load_n(&b->sequence, __ATOMIC_RELAXED) != before)
            continue;

        *ret_overflowed = used & INDEX_OVERFLOWED;
        if (result == INDEX_FOUND)
            *ret_hit = hit;
        return result;
    }

    return INDEX_BUSY;
}

enum index_result index_lookup(const struct index_reader *r, const struct chunk_key *key,
                               struct index_hit *ret_hit)
{
    const struct index_head *head = (const struct index_head *) r->object;
    const struct index_bucket *buckets = (const struct index_bucket *) (r->object + sizeof(*head));
    uint64_t words[2];

    memcpy(words, key->bytes, sizeof(words));
    /* zeros: the daemon gave the memory back some time after the index was moved */
    if (INDEX_LOAD(head->moved) != 0 || INDEX_LOAD(head->magic) != INDEX_MAGIC)
        return INDEX_MOVED;

    for (unsigned i = 0; i < INDEX_PROBE_MAX; i++) {
        const struct index_bucket *b = &buckets[index_probe(words, i, r->n_buckets)];
        bool overflowed = false;
        enum index_result result = index_read_bucket(b, words, ret_hit, &overflowed);

        if (result != INDEX_MISS || !overflowed)
            return result;
    }

    return INDEX_MISS;
}
