/* See tenant.h. The control page is control.c. */
#include "daemon/store/tenant.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/store/control.h"
#include "daemon/store/pool.h"
#include "daemon/store/space.h"
#include "gpu/device.h"

enum {
    INDEX_ENTRIES_FIRST = 1024,
    /* smaller indexes are doubled, since each new object costs every client a message */
    INDEX_ENTRIES_DOUBLE_BELOW = 65536,
    /*
     * Slots copied per insertion while a larger index is filled: about 10 us. The copy is complete before the
     * present index is 1 % fuller.
     */
    INDEX_SLOTS_PER_STEP = 128,
};

/*
 * The key is BLAKE2b of the uid, keyed with the daemon's secret. It is equal on all hosts with that secret.
 * The secret cannot be derived from it.
 */
static void tenant_derive_index_key(uid_t uid, const uint8_t secret[static 32],
                                    uint8_t ret[static INDEX_KEY_BYTES])
{
    char text[64];
    int n = snprintf(text, sizeof(text), "kvcobra index key 1 uid %lu", (unsigned long) uid);

    (void) crypto_generichash(ret, INDEX_KEY_BYTES, (const unsigned char *) text, (size_t) n, secret, 32);
}

static int tenant_build_index(uint64_t n_entries_max, struct extent **ret_memory, struct index_writer *ret,
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

int tenant_new(const struct tenant_options *o, struct tenant **ret, struct errmsg *e)
{
    _cleanup_(tenant_freep) struct tenant *t = calloc(1, sizeof(*t));
    const char *name = o->device_name;
    int r;

    if (!t)
        return fail(e, -ENOMEM, "out of memory for a tenant");

    t->uid = o->uid;
    t->device = o->device;
    t->quota_bytes = o->quota_bytes;
    t->guarantee_bytes = o->guarantee_bytes;
    t->isolated = o->uid != 0 && o->uid != getuid();
    (void) snprintf(t->name, sizeof(t->name), "uid-%lu%s%s", (unsigned long) o->uid, name ? "@" : "",
                    name ? name : "");
    memcpy(t->boot_id, o->boot_id, BOOT_ID_BYTES);
    tenant_derive_index_key(o->uid, o->secret, t->index_key);
    if (ghosts_init(&t->ghosts, o->n_ghosts) < 0)
        return fail(e, -ENOMEM, "out of memory for the ghosts of tenant %s", t->name);

    r = tenant_build_index(INDEX_ENTRIES_FIRST, &t->index_memory, &t->index, e);
    if (r < 0)
        return r;

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
    t->next_memory = extent_free(t->next_memory);
    t->control_memory = extent_free(t->control_memory);
    ghosts_deinit(&t->ghosts);
    sodium_memzero(t->index_key, sizeof(t->index_key));
    free(t);
    return NULL;
}

/* ---- groups ---- */

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

        pool_group_init(g, t, space, page_class, space->layout.slot_bytes[page_class],
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

/* ---- index ---- */

static void tenant_replace_index(struct tenant *t, struct extent *memory, const struct index_writer *writer)
{
    index_mark_moved(&t->index);
    (void) extent_free(t->index_memory);
    t->index_memory = memory;
    t->index = *writer;
    t->index_object++;
}

static void tenant_drop_next(struct tenant *t)
{
    t->next_memory = extent_free(t->next_memory);
    t->next_span = t->next_slot = 0;
}

static int tenant_begin_next(struct tenant *t, struct errmsg *e)
{
    uint64_t n = index_capacity(&t->index);

    n += n < INDEX_ENTRIES_DOUBLE_BELOW ? n : n / 4;
    return tenant_build_index(n, &t->next_memory, &t->next_index, e);
}

/* Copies at most @budget slots of one span. Return: 0; -ENOSPC: @t->next_index has no room. */
static int tenant_copy_span(struct tenant *t, const struct pool *p, const struct span *s, uint32_t *budget)
{
    for (; *budget > 0 && t->next_slot < s->n_fresh_from; t->next_slot++, --*budget) {
        const struct slot *slot = &s->slots[t->next_slot];
        struct index_hit hit = {
            .slot = s->number << POOL_SLOT_BITS | t->next_slot,
            .page_class = s->group->page_class,
            .generation = slot->generation,
        };
        int r = 0;

        /* a page that is being added or removed is not in the present index: the caller changes both */
        if (slot->state == SLOT_COMMITTED && tenant_index_find(t, p, &slot->key) == hit.slot)
            r = index_insert(&t->next_index, &slot->key, &hit);
        if (r < 0)
            return r;
    }

    if (t->next_slot < s->n_fresh_from)
        return 0;

    t->next_span++;
    t->next_slot = 0;
    return 0;
}

/*
 * Fills the next index from the slot records, never from memory that clients map, and replaces the present
 * one when all pages were copied. Return: 0; -ENOSPC: too many keys share a bucket; the next index was
 * dropped.
 */
static int tenant_continue_next(struct tenant *t, const struct pool *p, uint32_t budget)
{
    while (t->next_memory && t->next_span < p->n_spans_max && budget > 0) {
        const struct span *s = p->spans[t->next_span];
        int r = 0;

        if (s && s->group->tenant == t) {
            r = tenant_copy_span(t, p, s, &budget);
        } else {
            t->next_span++;
            t->next_slot = 0;
            budget--;
        }
        if (r < 0) {
            tenant_drop_next(t);
            return r;
        }
    }

    if (t->next_memory && t->next_span >= p->n_spans_max) {
        tenant_replace_index(t, t->next_memory, &t->next_index);
        t->next_memory = NULL;
        t->next_span = t->next_slot = 0;
    }

    return 0;
}

/* The present index has no place for a key: completes the next one at once. */
static int tenant_force_next(struct tenant *t, struct pool *p, struct errmsg *e)
{
    int r = t->next_memory ? 0 : tenant_begin_next(t, e);

    if (r == 0)
        r = tenant_continue_next(t, p, UINT32_MAX);
    return r < 0 ? fail(e, r, "cannot build a larger index for tenant %s: %s", t->name, strerror(-r)) : 0;
}

int tenant_index_insert(struct tenant *t, struct pool *p, const struct chunk_key *key, uint32_t slot,
                        unsigned page_class, uint64_t generation, struct errmsg *e)
{
    struct index_hit hit = {.slot = slot, .page_class = page_class, .generation = generation};
    int r;

    /* a failure is ignored: the present index still takes some keys */
    if (!t->next_memory && t->index.n_entries >= index_capacity(&t->index))
        (void) tenant_begin_next(t, NULL);
    (void) tenant_continue_next(t, p, INDEX_SLOTS_PER_STEP);
    r = index_insert(&t->index, key, &hit);
    if (r == -ENOSPC) {
        r = tenant_force_next(t, p, e);
        if (r == 0)
            r = index_insert(&t->index, key, &hit);
        return r < 0 ? fail(e, r, "no place for a page in the index of tenant %s", t->name) : 0;
    }

    if (t->next_memory && index_insert(&t->next_index, key, &hit) < 0)
        tenant_drop_next(t); /* the next insertion starts another one */
    return r;
}

int tenant_index_reserve(struct tenant *t, uint64_t n_pages, struct errmsg *e)
{
    struct extent *memory;
    struct index_writer writer;
    int r;

    assert(t->index.n_entries == 0 && !t->next_memory);
    if (n_pages < index_capacity(&t->index))
        return 0;

    r = tenant_build_index(n_pages + n_pages / 8, &memory, &writer, e); /* with room for new pages */
    if (r == 0)
        tenant_replace_index(t, memory, &writer);
    return r;
}

void tenant_index_remove(struct tenant *t, const struct chunk_key *key)
{
    (void) index_remove(&t->index, key);
    if (t->next_memory)
        (void) index_remove(&t->next_index, key);
}

uint32_t tenant_index_find(const struct tenant *t, const struct pool *p, const struct chunk_key *key)
{
    struct index_reader reader = {t->index.object, t->index.bytes, t->index.n_buckets};
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
