/* See disk_segment.h. */
#include "daemon/tier/disk_segment.h"

#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/tier/disk_map.h"

enum {
    SLOT_BITS = 16,      /* of a number in the index: the slot in its segment */
    INDEX_KEYS_MIN = 64, /* of a tenant's first index */
    SPARED_PART = 4,     /* a segment is spared if one page in so many was read */
};
_Static_assert(DISK_SLOTS_MAX <= 1u << SLOT_BITS && DISK_SEGMENTS_MAX <= 1u << (32 - SLOT_BITS), "numbers");

/* ---- tenants and groups ---- */

/* Order of the tree. */
static int disk_segment_compare_owners(const void *a, const void *b)
{
    const struct disk_owner *x = a, *y = b;

    return strcmp(x->name, y->name);
}

struct disk_owner *disk_segment_find_owner(const struct disk_map *m, const char *tenant)
{
    struct disk_owner key = {.next = NULL};
    struct disk_owner *const *node;

    (void) snprintf(key.name, sizeof(key.name), "%s", tenant);
    node = tfind(&key, &m->owner_tree, disk_segment_compare_owners);
    return node ? *node : NULL;
}

struct disk_group *disk_segment_find_group(const struct disk_owner *o, const struct tier_group *id)
{
    struct disk_group *g = o->groups;

    while (g && !tier_group_equal(&g->id, id))
        g = g->next;
    return g;
}

static void disk_segment_free_owner(struct disk_map *m, struct disk_owner *o)
{
    (void) tdelete(o, &m->owner_tree, disk_segment_compare_owners);
    *(o->prev ? &o->prev->next : &m->owners) = o->next;
    if (o->next)
        o->next->prev = o->prev;
    free(o->index.object);
    free(o);
}

void disk_segment_free_unused(struct disk_map *m, struct disk_group *g)
{
    struct disk_owner *o = g->owner;
    struct disk_group **link = &o->groups;

    if (g->n_segments > 0)
        return;
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    free(g);
    if (!o->groups)
        disk_segment_free_owner(m, o);
}

static int disk_segment_index_init(struct index_writer *w, uint64_t n_keys)
{
    size_t bytes = index_object_bytes(n_keys);
    void *object = calloc(1, bytes);

    if (!object)
        return -ENOMEM;
    index_writer_init(w, object, bytes);
    return 0;
}

static struct disk_owner *disk_segment_make_owner(struct disk_map *m, const char *name)
{
    struct disk_owner *o = calloc(1, sizeof(*o));

    if (!o || disk_segment_index_init(&o->index, INDEX_KEYS_MIN) < 0) {
        free(o);
        return NULL;
    }

    (void) snprintf(o->name, sizeof(o->name), "%s", name);
    if (!tsearch(o, &m->owner_tree, disk_segment_compare_owners)) {
        free(o->index.object);
        free(o);
        return NULL;
    }

    o->next = m->owners;
    if (o->next)
        o->next->prev = o;
    m->owners = o;
    return o;
}

struct disk_group *disk_segment_make_group(struct disk_map *m, const struct tier_group *id,
                                           uint64_t slot_bytes)
{
    struct disk_owner *o = disk_segment_find_owner(m, id->tenant);
    struct disk_group *g = o ? disk_segment_find_group(o, id) : NULL;

    if (g)
        return g;

    g = calloc(1, sizeof(*g));
    if (g && !o)
        o = disk_segment_make_owner(m, id->tenant);
    if (!g || !o) {
        free(g);
        return NULL;
    }

    *g = (struct disk_group){.next = o->groups, .owner = o, .id = *id, .slot_bytes = slot_bytes};
    o->groups = g;
    return g;
}

/* ---- the queue of a tenant ---- */

void disk_segment_enqueue(struct disk_segment *s)
{
    struct disk_owner *o = s->group->owner;

    s->prev = o->last;
    s->next = NULL;
    if (o->last)
        o->last->next = s;
    else
        o->first = s;
    o->last = s;
}

static void disk_segment_dequeue(struct disk_segment *s)
{
    struct disk_owner *o = s->group->owner;

    if (s->prev)
        s->prev->next = s->next;
    else if (o->first == s)
        o->first = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else if (o->last == s)
        o->last = s->prev;
    s->prev = s->next = NULL;
}

int disk_segment_begin(struct disk_map *m, struct disk_segment *s, struct disk_group *g, uint32_t n_slots,
                       uint64_t generation)
{
    struct disk_slot *slots = calloc(n_slots, sizeof(*slots));

    if (!slots)
        return -ENOMEM;

    *s = (struct disk_segment){
        .number = s->number, .generation = generation, .group = g, .n_slots = n_slots, .slots = slots};
    if (generation > m->generation)
        m->generation = generation;
    g->open = s;
    g->n_segments++;
    g->owner->n_segments++;
    m->n_used++;
    return 0;
}

void disk_segment_discard(struct disk_map *m, struct disk_segment *s)
{
    struct disk_group *g = s->group;
    struct disk_owner *o = g->owner;

    if (m->on_discard)
        m->on_discard(m->ctx, s);
    for (uint32_t i = 0; i < s->n_filled; i++)
        disk_segment_unindex_slot(s, i);
    o->n_pages -= s->n_present;
    m->n_pages -= s->n_present;
    m->n_ending -= s->ends;
    disk_segment_dequeue(s);
    if (g->open == s)
        g->open = NULL;
    g->n_segments--;
    o->n_segments--;
    m->n_used--;
    free(s->slots);
    *s = (struct disk_segment){.number = s->number};
    disk_segment_free_unused(m, g);
}

/* Gives a segment that was read its second chance. */
static void disk_segment_spare(struct disk_segment *s)
{
    for (uint32_t i = 0; i < s->n_filled; i++)
        s->slots[i].was_read = false;
    s->n_read = 0;
    disk_segment_dequeue(s);
    disk_segment_enqueue(s);
}

static struct disk_segment *disk_segment_first_idle(const struct disk_owner *o)
{
    struct disk_segment *s = o->first;

    while (s && s->n_writing > 0)
        s = s->next;
    return s;
}

struct disk_segment *disk_segment_victim(struct disk_owner *o)
{
    struct disk_segment *s;

    for (s = o->first; s; s = s->next)
        if (s->n_present == 0 && s->n_writing == 0 && s->n_filled == s->n_slots)
            return s;

    for (uint32_t n = o->n_segments; n > 0; n--) {
        s = disk_segment_first_idle(o);
        if (!s || s->n_read == 0 || s->n_read < s->n_present / SPARED_PART)
            return s;
        disk_segment_spare(s);
    }

    return disk_segment_first_idle(o);
}

struct disk_owner *disk_segment_giver(const struct disk_map *m, struct disk_owner *asker)
{
    struct disk_owner *most = asker;

    for (struct disk_owner *o = m->owners; o; o = o->next)
        if (!most || o->n_segments > most->n_segments)
            most = o;
    return most;
}

/* ---- the index of a tenant ---- */

bool disk_segment_find_slot(const struct disk_map *m, const struct disk_owner *o, const struct chunk_key *key,
                            struct disk_segment **ret_segment, uint32_t *ret_slot)
{
    struct index_reader r = {
        .object = o->index.object, .bytes = o->index.bytes, .n_buckets = o->index.n_buckets};
    struct index_hit hit;

    if (index_lookup(&r, key, &hit) != INDEX_FOUND)
        return false;

    *ret_segment = &m->segments[hit.slot >> SLOT_BITS];
    *ret_slot = hit.slot & ((1u << SLOT_BITS) - 1);
    return true;
}

static int disk_segment_put(struct index_writer *w, const struct disk_segment *s, uint32_t slot)
{
    struct index_hit hit = {.slot = s->number << SLOT_BITS | slot,
                            .page_class = s->group->id.page_class,
                            .generation = s->generation};

    return index_insert(w, &s->slots[slot].key, &hit);
}

static bool disk_slot_is_indexed(const struct disk_slot *x)
{
    return x->state == DISK_SLOT_WRITING || x->state == DISK_SLOT_PRESENT;
}

/*
 * An index of twice the size. The thread of the tier does it at one go: a million pages take some 30 ms, in
 * which no page is lost and the loop continues. A key that finds no place leaves the tier's map.
 */
static int disk_segment_grow_index(struct disk_map *m, struct disk_owner *o)
{
    struct index_writer w;
    int r = disk_segment_index_init(&w, 2 * index_capacity(&o->index));

    if (r < 0)
        return r;

    free(o->index.object);
    o->index = w;
    for (struct disk_segment *s = o->first; s; s = s->next) {
        for (uint32_t i = 0; i < s->n_filled; i++) {
            struct disk_slot *x = &s->slots[i];

            if (!disk_slot_is_indexed(x) || disk_segment_put(&o->index, s, i) == 0)
                continue;
            if (x->state == DISK_SLOT_PRESENT) {
                s->n_present--;
                o->n_pages--;
                m->n_pages--;
            }
            x->state = DISK_SLOT_DROPPED;
        }
    }

    return 0;
}

int disk_segment_index_slot(struct disk_map *m, struct disk_segment *s, uint32_t slot)
{
    struct disk_owner *o = s->group->owner;

    if (o->index.n_entries >= index_capacity(&o->index)) {
        int r = disk_segment_grow_index(m, o);

        if (r < 0)
            return r;
    }

    return disk_segment_put(&o->index, s, slot);
}

void disk_segment_unindex_slot(struct disk_segment *s, uint32_t slot)
{
    if (disk_slot_is_indexed(&s->slots[slot]))
        (void) index_remove(&s->group->owner->index, &s->slots[slot].key);
}
