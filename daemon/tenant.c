/* Tenants: shared index, groups, accounts. See tenant.h; the control page is control.c. */
#include "daemon/tenant.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/control.h"
#include "daemon/space.h"
#include "gpu/device.h"

enum { INDEX_ENTRIES_FIRST = 1024 };

/* BLAKE2b keyed with the daemon's secret: the same on every host that has the secret, and no way back to it. */
static void derive_index_key(uid_t uid, const uint8_t secret[static 32], uint8_t ret[static INDEX_KEY_BYTES])
{
    char text[64];
    int n = snprintf(text, sizeof(text), "kvcobra index key 1 uid %lu", (unsigned long) uid);

    (void) crypto_generichash(ret, INDEX_KEY_BYTES, (const unsigned char *) text, (size_t) n, secret, 32);
}

static int build_index(uint64_t n_entries_max, struct extent **ret_memory, struct index_writer *ret,
                       struct errmsg *e)
{
    size_t bytes = index_object_bytes(n_entries_max);
    struct extent *memory;
    int r = extent_new("kvcobra-index", bytes, EXTENT_READ, &memory, e);

    if (r < 0)
        return r;
    index_writer_init(ret, extent_data(memory), bytes);
    *ret_memory = memory;
    return 0;
}

int tenant_new(uid_t uid, const uint8_t secret[static 32], const uint8_t boot_id[static BOOT_ID_BYTES],
               uint64_t quota_bytes, uint32_t n_ghosts, struct tenant **ret, struct errmsg *e)
{
    _cleanup_(tenant_freep) struct tenant *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return fail(e, -ENOMEM, "out of memory for a tenant");
    t->uid = uid;
    t->quota_bytes = quota_bytes;
    t->isolated = uid != 0 && uid != getuid();
    (void) snprintf(t->name, sizeof(t->name), "uid-%lu", (unsigned long) uid);
    memcpy(t->boot_id, boot_id, BOOT_ID_BYTES);
    derive_index_key(uid, secret, t->index_key);
    if (ghosts_init(&t->ghosts, n_ghosts) < 0)
        return fail(e, -ENOMEM, "out of memory for the ghosts of tenant %s", t->name);
    r = build_index(INDEX_ENTRIES_FIRST, &t->index_memory, &t->index, e);
    if (r == 0)
        r = control_build(t, e);
    if (r < 0)
        return r;
    t->index_object = 1;
    *ret = take_ptr(t);
    return 0;
}

struct tenant *tenant_free(struct tenant *t)
{
    if (!t)
        return NULL;
    tenant_groups_free(t, NULL);
    t->index_memory = extent_free(t->index_memory);
    t->control_memory = extent_free(t->control_memory);
    ghosts_deinit(&t->ghosts);
    sodium_memzero(t->index_key, sizeof(t->index_key));
    free(t);
    return NULL;
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

struct group *tenant_group_find(const struct tenant *t, const struct space *space, unsigned page_class)
{
    for (struct group *g = t->groups; g; g = g->next)
        if (g->space == space && g->page_class == page_class)
            return g;
    return NULL;
}

int tenant_group(struct tenant *t, struct space *space, unsigned page_class, struct group **ret_group)
{
    struct group *g = tenant_group_find(t, space, page_class);

    if (!g) {
        g = malloc(sizeof(*g));
        if (!g)
            return -ENOMEM;
        group_init(g, t, space, page_class, space->layout.slot_bytes[page_class],
                   space->layout.page_bytes[page_class]);
        g->next = t->groups;
        t->groups = g;
    }
    *ret_group = g;
    return 0;
}

void tenant_groups_free(struct tenant *t, const struct space *space)
{
    struct group **link = &t->groups;

    while (*link) {
        struct group *g = *link;

        if (space && g->space != space) {
            link = &g->next;
            continue;
        }
        assert(g->n_used == 0);
        *link = g->next;
        free(g);
    }
}

/* ---- index ------------------------------------------------------------------------------------------------------ */

struct rebuild {
    const struct pool *pool;
    struct index_writer *writer;
    int r;
};

static void reinsert(void *ctx, uint32_t number)
{
    struct rebuild *b = ctx;
    const struct slot *slot = pool_slot(b->pool, number);
    struct index_hit hit = {
        .slot = number, .page_class = pool_slot_span(b->pool, number)->group->page_class,
        .generation = slot->generation,
    };

    if (b->r == 0 && slot->state == SLOT_COMMITTED)
        b->r = index_insert(b->writer, &slot->key, &hit);
}

/* Builds from the slot records, never from what clients could have touched, and swaps. */
static int grow_index(struct tenant *t, struct pool *p, struct errmsg *e)
{
    struct extent *memory = NULL;
    struct index_writer writer;
    struct rebuild b = { .pool = p, .writer = &writer, .r = -ENOSPC };
    uint64_t n_max = t->index.n_entries + 1;

    for (int attempt = 0; attempt < 4 && b.r == -ENOSPC; attempt++) { /* -ENOSPC again: keys in one corner */
        int r;

        n_max *= 2;
        memory = extent_free(memory);
        r = build_index(n_max, &memory, &writer, e);
        if (r < 0)
            return r;
        b.r = 0;
        for (struct group *g = t->groups; g; g = g->next)
            group_visit(p, g, reinsert, &b);
    }
    if (b.r < 0) {
        (void) extent_free(memory);
        return fail(e, b.r, "cannot build a larger index for tenant %s", t->name);
    }
    index_mark_moved(&t->index);
    (void) extent_free(t->index_memory);
    t->index_memory = memory;
    t->index = writer;
    t->index_object++;
    return 0;
}

int tenant_index_insert(struct tenant *t, struct pool *p, const struct chunk_key *key, uint32_t slot, unsigned page_class,
                        uint64_t generation, struct errmsg *e)
{
    struct index_hit hit = { .slot = slot, .page_class = page_class, .generation = generation };
    bool crowded = index_object_bytes(t->index.n_entries + 1) > t->index.bytes;
    int r = crowded ? -ENOSPC : index_insert(&t->index, key, &hit);

    if (r != -ENOSPC)
        return r;
    r = grow_index(t, p, e);
    if (r < 0) {
        /* Above half load it still works, only with longer probes: better than refusing the page. */
        if (index_insert(&t->index, key, &hit) == 0)
            return 0;
        return r;
    }
    return index_insert(&t->index, key, &hit);
}

void tenant_index_remove(struct tenant *t, const struct chunk_key *key)
{
    (void) index_remove(&t->index, key);
}

uint32_t tenant_index_find(const struct tenant *t, const struct pool *p, const struct chunk_key *key)
{
    struct index_reader reader = { t->index.object, t->index.bytes, t->index.n_buckets };
    struct index_hit hit;
    const struct slot *slot;

    if (index_lookup(&reader, key, &hit) != INDEX_FOUND)
        return SLOT_NONE;
    slot = pool_slot(p, hit.slot);
    if (!slot || slot->state != SLOT_COMMITTED || slot->generation != hit.generation ||
        memcmp(&slot->key, key, sizeof(*key)) != 0 || pool_slot_span(p, hit.slot)->group->tenant != t)
        return SLOT_NONE;
    return hit.slot;
}
