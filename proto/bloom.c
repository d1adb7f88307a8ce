/* See bloom.h. */
#include "proto/bloom.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/errmsg.h"

enum { OBJECT_ALIGN = 4096, BITS_OF_POSITION = 6 };

struct bloom_head {
    uint32_t magic, version;
    uint64_t n_blocks;
    uint64_t moved;
    uint8_t reserved[104];
};
_Static_assert(sizeof(struct bloom_head) == 128, "head of a filter");

struct bloom_block {
    uint64_t words[BLOOM_BLOCK_WORDS];
};

/* The block of @key, and the key's word with the positions of its bits. */
static size_t bloom_block_offset(const struct chunk_key *key, uint64_t n_blocks, uint64_t *ret_positions)
{
    uint64_t words[2];

    memcpy(words, key->bytes, sizeof(words));
    *ret_positions = words[0];
    return sizeof(struct bloom_head) + ((words[1] >> 32) * n_blocks >> 32) * sizeof(struct bloom_block);
}

static uint64_t bloom_bit(uint64_t positions, unsigned word)
{
    return UINT64_C(1) << (positions >> (word * BITS_OF_POSITION) & 63);
}

/* ---- reader ---- */

int bloom_reader_init(struct bloom_reader *r, const void *object, size_t bytes, struct errmsg *e)
{
    struct bloom_head h;

    if (bytes < sizeof(h) + sizeof(struct bloom_block))
        return fail(e, -EBADMSG, "the filter of a tier has %zu bytes", bytes);

    memcpy(&h, object, sizeof(h));
    if (h.magic != BLOOM_MAGIC || h.version != BLOOM_VERSION)
        return fail(e, -EBADMSG, "the filter of a tier has magic %08" PRIx32 " and version %" PRIu32, h.magic,
                    h.version);
    if (h.n_blocks == 0 || h.n_blocks > UINT32_MAX ||
        h.n_blocks > (bytes - sizeof(h)) / sizeof(struct bloom_block))
        return fail(e, -EBADMSG, "the filter of a tier names %" PRIu64 " blocks in %zu bytes", h.n_blocks,
                    bytes);

    *r = (struct bloom_reader){.object = object, .n_blocks = h.n_blocks};
    return 0;
}

enum bloom_result bloom_lookup(const struct bloom_reader *r, const struct chunk_key *key)
{
    const struct bloom_head *h = (const struct bloom_head *) r->object;
    uint64_t positions;
    const struct bloom_block *b =
        (const struct bloom_block *) (r->object + bloom_block_offset(key, r->n_blocks, &positions));

    for (unsigned i = 0; i < BLOOM_BLOCK_WORDS; i++) {
        if (__atomic_load_n(&b->words[i], __ATOMIC_RELAXED) & bloom_bit(positions, i))
            continue;
        /* memory that was given back reads as zeros, the magic too */
        if (__atomic_load_n(&h->magic, __ATOMIC_RELAXED) != BLOOM_MAGIC)
            return BLOOM_MOVED;
        return __atomic_load_n(&h->moved, __ATOMIC_RELAXED) ? BLOOM_MOVED : BLOOM_NO;
    }

    return __atomic_load_n(&h->moved, __ATOMIC_RELAXED) ? BLOOM_MOVED : BLOOM_PROBABLY;
}

/* ---- writer ---- */

size_t bloom_object_bytes(uint64_t n_keys)
{
    uint64_t n_blocks, bytes;

    if (n_keys > (uint64_t) UINT32_MAX * BLOOM_KEYS_PER_BLOCK)
        n_keys = (uint64_t) UINT32_MAX * BLOOM_KEYS_PER_BLOCK;
    n_blocks = n_keys / BLOOM_KEYS_PER_BLOCK + 1;
    bytes = sizeof(struct bloom_head) + n_blocks * sizeof(struct bloom_block);
    return (size_t) ((bytes + OBJECT_ALIGN - 1) & ~(uint64_t) (OBJECT_ALIGN - 1));
}

uint64_t bloom_capacity(const struct bloom_writer *w)
{
    return w->n_blocks * BLOOM_KEYS_PER_BLOCK;
}

void bloom_writer_init(struct bloom_writer *w, void *object, size_t bytes)
{
    struct bloom_head h = {.magic = BLOOM_MAGIC, .version = BLOOM_VERSION};

    assert(bytes >= sizeof(h) + sizeof(struct bloom_block));
    h.n_blocks = (bytes - sizeof(h)) / sizeof(struct bloom_block);
    if (h.n_blocks > UINT32_MAX)
        h.n_blocks = UINT32_MAX;
    memcpy(object, &h, sizeof(h));
    *w = (struct bloom_writer){.object = object, .n_blocks = h.n_blocks};
}

void bloom_add(struct bloom_writer *w, const struct chunk_key *key)
{
    uint64_t positions;
    struct bloom_block *b =
        (struct bloom_block *) (w->object + bloom_block_offset(key, w->n_blocks, &positions));

    for (unsigned i = 0; i < BLOOM_BLOCK_WORDS; i++)
        (void) __atomic_fetch_or(&b->words[i], bloom_bit(positions, i), __ATOMIC_RELAXED);
    w->n_added++;
}

void bloom_mark_moved(struct bloom_writer *w)
{
    struct bloom_head *h = (struct bloom_head *) w->object;

    __atomic_store_n(&h->moved, 1, __ATOMIC_RELAXED);
}
