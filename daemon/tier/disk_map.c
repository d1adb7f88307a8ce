/* See disk_map.h. */
#include "daemon/tier/disk_map.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/tier/disk_segment.h"

int disk_map_init(struct disk_map *m, uint32_t n_segments, uint32_t n_segments_max, uint64_t segment_bytes,
                  uint32_t align)
{
    struct disk_segment *segments = calloc(n_segments_max, sizeof(*segments));

    if (!segments)
        return -ENOMEM;

    for (uint32_t i = 0; i < n_segments_max; i++)
        segments[i].number = i;
    *m = (struct disk_map){.segment_bytes = segment_bytes,
                           .align = align,
                           .n_segments = n_segments,
                           .n_segments_max = n_segments_max,
                           .segments = segments};
    return 0;
}

void disk_map_deinit(struct disk_map *m)
{
    m->on_discard = NULL;
    for (uint32_t i = 0; i < m->n_segments && m->segments; i++)
        if (m->segments[i].generation != 0)
            disk_segment_discard(m, &m->segments[i]);
    free(m->segments);
    *m = (struct disk_map){.segments = NULL};
}

uint64_t disk_map_n_pages(const struct disk_map *m, const char *tenant)
{
    const struct disk_owner *o = disk_segment_find_owner(m, tenant);

    return o ? o->n_pages : 0;
}

void disk_map_find_others(const struct disk_map *m, const char *tenant, struct index_family *f)
{
    const struct disk_owner *o = disk_segment_find_owner(m, tenant);

    if (o)
        index_find_others(&o->index, f, 1);
}

void disk_map_for_each(const struct disk_map *m, const char *tenant,
                       void (*f)(void *ctx, const struct chunk_key *key), void *ctx)
{
    const struct disk_owner *o = disk_segment_find_owner(m, tenant);

    for (const struct disk_segment *s = o ? o->first : NULL; s; s = s->next)
        for (uint32_t i = 0; i < s->n_filled; i++)
            if (s->slots[i].state == DISK_SLOT_PRESENT)
                f(ctx, &s->slots[i].key);
}

/* ---- pages ---- */

static void disk_map_fill_place(const struct disk_map *m, const struct disk_segment *s, uint32_t slot,
                                struct disk_place *ret)
{
    *ret = (struct disk_place){.segment = s->number,
                               .slot = slot,
                               .generation = s->generation,
                               .offset = s->number * m->segment_bytes + slot * s->group->slot_bytes,
                               .slot_bytes = s->group->slot_bytes,
                               .page_bytes = s->group->id.page_bytes};
}

static bool disk_map_look_up(const struct disk_map *m, const struct tier_group *g,
                             const struct chunk_key *key, struct disk_segment **ret_segment,
                             uint32_t *ret_slot)
{
    const struct disk_owner *o = disk_segment_find_owner(m, g->tenant);

    return o && disk_segment_find_slot(m, o, key, ret_segment, ret_slot) &&
           (*ret_segment)->slots[*ret_slot].state == DISK_SLOT_PRESENT &&
           tier_group_equal(&(*ret_segment)->group->id, g);
}

bool disk_map_has(const struct disk_map *m, const struct tier_group *g, const struct chunk_key *key)
{
    struct disk_segment *s;
    uint32_t slot;

    return disk_map_look_up(m, g, key, &s, &slot);
}

bool disk_map_find(struct disk_map *m, const struct tier_group *g, const struct chunk_key *key,
                   struct disk_place *ret)
{
    struct disk_segment *s;
    uint32_t slot;

    if (!disk_map_look_up(m, g, key, &s, &slot))
        return false;

    if (!s->slots[slot].was_read) {
        s->slots[slot].was_read = true;
        s->n_read++;
    }
    disk_map_fill_place(m, s, slot, ret);
    return true;
}

/* The segment of a place; NULL: it has another life by now. */
static struct disk_segment *disk_map_segment_of(const struct disk_map *m, const struct disk_place *p)
{
    struct disk_segment *s = &m->segments[p->segment];

    return s->generation == p->generation ? s : NULL;
}

bool disk_map_is_current(const struct disk_map *m, const struct disk_place *p)
{
    const struct disk_segment *s = disk_map_segment_of(m, p);

    return s && s->slots[p->slot].state == DISK_SLOT_PRESENT;
}

/* An unused segment that exists. */
static struct disk_segment *disk_map_find_unused(const struct disk_map *m)
{
    for (uint32_t i = 0; m->n_used < m->n_segments && i < m->n_segments; i++)
        if (m->segments[i].generation == 0)
            return &m->segments[i];
    return NULL;
}

/* Makes the tenant's quota have room for one segment more. Return: 0; -EDQUOT; -EBUSY. */
static int disk_map_make_quota_room(struct disk_map *m, const char *tenant, uint64_t quota_bytes)
{
    uint64_t n_max = quota_bytes / m->segment_bytes;
    struct disk_owner *o;

    if (n_max == 0)
        return -EDQUOT;

    while ((o = disk_segment_find_owner(m, tenant)) && o->n_segments >= n_max) {
        struct disk_segment *s = disk_segment_victim(o);

        if (!s)
            return -EBUSY;
        disk_segment_discard(m, s);
    }

    return 0;
}

/* An unused segment. Return: 0; DISK_MAP_GROW; -EBUSY. */
static int disk_map_take_segment(struct disk_map *m, const char *tenant, struct disk_segment **ret)
{
    struct disk_segment *s = disk_map_find_unused(m);
    struct disk_owner *giver;

    if (!s && m->n_segments < m->n_segments_max)
        return DISK_MAP_GROW;
    if (!s) {
        giver = disk_segment_giver(m, disk_segment_find_owner(m, tenant));
        s = giver ? disk_segment_victim(giver) : NULL;
        if (!s)
            return -EBUSY;
        disk_segment_discard(m, s);
    }

    *ret = s;
    return 0;
}

/* A group with an open segment. Return: as disk_map_claim(). */
static int disk_map_open_group(struct disk_map *m, const struct tier_group *id, uint64_t quota_bytes,
                               struct disk_group **ret, bool *ret_began)
{
    uint64_t slot_bytes = disk_slot_bytes(id->page_bytes, m->align, m->segment_bytes), n_slots;
    const struct disk_owner *o = disk_segment_find_owner(m, id->tenant);
    struct disk_group *g = o ? disk_segment_find_group(o, id) : NULL;
    struct disk_segment *s;
    int r;

    *ret_began = false;
    *ret = g;
    if (g && g->open)
        return 0;
    if (slot_bytes == 0)
        return -EFBIG;

    r = disk_map_make_quota_room(m, id->tenant, quota_bytes);
    if (r == 0)
        r = disk_map_take_segment(m, id->tenant, &s);
    if (r != 0)
        return r;

    n_slots = m->segment_bytes / slot_bytes;
    g = disk_segment_make_group(m, id, slot_bytes); /* a discarded segment may have been its last one */
    if (!g)
        return -ENOMEM;

    r = disk_segment_begin(m, s, g, n_slots < DISK_SLOTS_MAX ? (uint32_t) n_slots : DISK_SLOTS_MAX,
                           m->generation + 1);
    if (r < 0) {
        disk_segment_free_unused(m, g);
        return r;
    }

    disk_segment_enqueue(s);
    *ret = g;
    *ret_began = true;
    return 0;
}

int disk_map_claim(struct disk_map *m, const struct tier_group *g, const struct chunk_key *key,
                   uint64_t quota_bytes, struct disk_place *ret, bool *ret_began)
{
    const struct disk_owner *o = disk_segment_find_owner(m, g->tenant);
    struct disk_group *group;
    struct disk_segment *s;
    uint32_t slot;
    bool began;
    int r;

    if (o && disk_segment_find_slot(m, o, key, &s, &slot))
        return -EEXIST;

    r = disk_map_open_group(m, g, quota_bytes, &group, &began);
    if (r != 0)
        return r;

    s = group->open;
    slot = s->n_filled;
    s->slots[slot].key = *key;
    r = disk_segment_index_slot(m, s, slot);
    if (r < 0) {
        if (began)
            disk_segment_discard(m, s);
        return r;
    }

    s->slots[slot].state = DISK_SLOT_WRITING;
    s->n_filled++;
    s->n_writing++;
    if (s->n_filled == s->n_slots)
        group->open = NULL;
    disk_map_fill_place(m, s, slot, ret);
    *ret_began = began;
    return 0;
}

void disk_map_grown(struct disk_map *m)
{
    assert(m->n_segments < m->n_segments_max);
    m->n_segments++;
}

void disk_map_limit(struct disk_map *m)
{
    m->n_segments_max = m->n_segments;
}

void disk_map_head(const struct disk_map *m, uint32_t segment, struct disk_segment_head *ret)
{
    const struct disk_segment *s = &m->segments[segment];

    *ret = (struct disk_segment_head){.number = segment,
                                      .generation = s->generation,
                                      .slot_bytes = s->group->slot_bytes,
                                      .n_slots = s->n_slots,
                                      .group = s->group->id};
}

bool disk_map_publish(struct disk_map *m, const struct disk_place *p)
{
    struct disk_segment *s = disk_map_segment_of(m, p);

    assert(s && s->n_writing > 0); /* segments with writes in flight are not discarded */
    if (s->ends || s->slots[p->slot].state != DISK_SLOT_WRITING) {
        disk_map_abandon(m, p);
        return false;
    }

    s->n_writing--;
    s->slots[p->slot].state = DISK_SLOT_PRESENT;
    s->n_present++;
    s->group->owner->n_pages++;
    m->n_pages++;
    return true;
}

void disk_map_abandon(struct disk_map *m, const struct disk_place *p)
{
    struct disk_segment *s = disk_map_segment_of(m, p);

    assert(s && s->n_writing > 0);
    disk_segment_unindex_slot(s, p->slot);
    s->slots[p->slot].state = DISK_SLOT_DROPPED;
    s->n_writing--;
}

static void disk_map_drop_slot(struct disk_map *m, struct disk_segment *s, uint32_t slot)
{
    disk_segment_unindex_slot(s, slot);
    s->slots[slot].state = DISK_SLOT_DROPPED;
    s->n_present--;
    s->group->owner->n_pages--;
    m->n_pages--;
}

bool disk_map_drop(struct disk_map *m, const struct disk_place *p)
{
    if (!disk_map_is_current(m, p))
        return false;

    disk_map_drop_slot(m, &m->segments[p->segment], p->slot);
    return true;
}

/* ---- segments ---- */

uint32_t disk_map_end(struct disk_map *m, const char *tenant, const uint8_t *table_digest)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_segments; i++) {
        struct disk_segment *s = &m->segments[i];

        if (s->generation == 0 || s->ends || (tenant && strcmp(s->group->id.tenant, tenant) != 0) ||
            (table_digest && memcmp(s->group->id.table_digest, table_digest, TIER_TABLE_BYTES) != 0))
            continue;

        n++;
        s->ends = true;
        m->n_ending++;
        if (s->group->open == s)
            s->group->open = NULL;
        for (uint32_t k = 0; k < s->n_filled; k++)
            if (s->slots[k].state == DISK_SLOT_PRESENT)
                disk_map_drop_slot(m, s, k);
    }

    return n;
}

bool disk_map_take_ended(struct disk_map *m, uint32_t *segment)
{
    for (; m->n_ending > 0 && *segment < m->n_segments; (*segment)++) {
        struct disk_segment *s = &m->segments[*segment];

        if (s->generation == 0 || !s->ends || s->n_writing > 0)
            continue;
        disk_segment_discard(m, s);
        return true;
    }

    return false;
}

/* ---- the start ---- */

bool disk_map_adopt_segment(struct disk_map *m, const struct disk_segment_head *h)
{
    struct disk_segment *s = &m->segments[h->number];
    struct disk_group *g;

    if (h->slot_bytes % m->align != 0)
        return false;

    g = disk_segment_make_group(m, &h->group, h->slot_bytes);
    if (!g)
        return false;
    if (g->slot_bytes != h->slot_bytes || disk_segment_begin(m, s, g, h->n_slots, h->generation) < 0) {
        disk_segment_free_unused(m, g);
        return false;
    }

    disk_segment_enqueue(s);
    g->open = NULL;
    return true;
}

/* The key has an older page, or a newer one. Return: whether the older one was dropped. */
static bool disk_map_replace(struct disk_map *m, struct disk_segment *s, const struct chunk_key *key)
{
    struct disk_segment *other;
    uint32_t slot;

    if (!disk_segment_find_slot(m, s->group->owner, key, &other, &slot))
        return true;
    if (other->generation > s->generation)
        return false;

    disk_map_drop_slot(m, other, slot);
    return true;
}

void disk_map_adopt_page(struct disk_map *m, uint32_t segment, const struct disk_record *r)
{
    struct disk_segment *s = &m->segments[segment];
    struct disk_slot *x = &s->slots[r->slot];

    /* slots without a record before it were dropped, or not written: they stay unused */
    while (s->n_filled < r->slot)
        s->slots[s->n_filled++].state = DISK_SLOT_DROPPED;
    s->n_filled = r->slot + 1;
    x->state = DISK_SLOT_DROPPED;
    x->key = r->key;
    if (!disk_map_replace(m, s, &r->key) || disk_segment_index_slot(m, s, r->slot) < 0)
        return;

    x->state = DISK_SLOT_PRESENT;
    s->n_present++;
    s->group->owner->n_pages++;
    m->n_pages++;
}

static int disk_map_compare_age(const void *a, const void *b)
{
    const struct disk_segment *x = *(struct disk_segment *const *) a, *y = *(struct disk_segment *const *) b;

    return (x->generation > y->generation) - (x->generation < y->generation);
}

int disk_map_adopt_done(struct disk_map *m)
{
    _cleanup_(freep) struct disk_segment **used = calloc(m->n_used + 1, sizeof(*used));
    uint32_t n = 0;

    if (!used)
        return -ENOMEM;

    for (uint32_t i = 0; i < m->n_segments; i++)
        if (m->segments[i].generation != 0)
            used[n++] = &m->segments[i];
    for (struct disk_owner *o = m->owners; o; o = o->next)
        o->first = o->last = NULL;
    qsort(used, n, sizeof(struct disk_segment *), disk_map_compare_age);
    for (uint32_t i = 0; i < n; i++) {
        disk_segment_enqueue(used[i]);
        if (used[i]->n_filled < used[i]->n_slots) /* the newest such segment of the group goes on */
            used[i]->group->open = used[i];
    }

    return 0;
}

/* ---- all pages ---- */

bool disk_map_list(const struct disk_map *m, uint64_t from, struct tier_list *ret)
{
    uint32_t slot = (uint32_t) (from & 0xffff);

    ret->n = 0;
    for (uint64_t i = from >> 16; i < m->n_segments && ret->n == 0; i++, slot = 0) {
        const struct disk_segment *s = &m->segments[i];

        if (s->generation == 0 || s->ends)
            continue;
        for (; slot < s->n_filled && ret->n < TIER_NAMES_MAX; slot++)
            if (s->slots[slot].state == DISK_SLOT_PRESENT)
                ret->keys[ret->n++] = s->slots[slot].key;
        ret->group = s->group->id;
        ret->next = slot < s->n_filled ? i << 16 | slot : (i + 1) << 16;
    }
    return ret->n > 0;
}

/* ---- checks ---- */

static bool disk_segment_is_valid(const struct disk_segment *s)
{
    uint32_t n_present = 0, n_writing = 0, n_read = 0;

    for (uint32_t i = 0; i < s->n_slots; i++) {
        if ((i < s->n_filled) != (s->slots[i].state != DISK_SLOT_FREE))
            return false;
        n_present += s->slots[i].state == DISK_SLOT_PRESENT;
        n_writing += s->slots[i].state == DISK_SLOT_WRITING;
        n_read += s->slots[i].was_read;
    }

    return n_present == s->n_present && n_writing == s->n_writing && n_read == s->n_read &&
           (s->group->open != s || s->n_filled < s->n_slots);
}

static bool disk_owner_is_valid(const struct disk_owner *o, struct errmsg *e)
{
    uint64_t n_pages = 0, n_indexed = 0;
    uint32_t n = 0;

    for (const struct disk_segment *s = o->first; s; s = s->next) {
        if (!disk_segment_is_valid(s)) {
            (void) fail(e, -EBADMSG, "counts of segment %" PRIu32 " are wrong", s->number);
            return false;
        }
        n++;
        n_pages += s->n_present;
        n_indexed += s->n_present + s->n_writing;
    }
    if (n != o->n_segments || n_pages != o->n_pages || n_indexed != o->index.n_entries) {
        (void) fail(e, -EBADMSG, "counts of tenant %s are wrong", o->name);
        return false;
    }
    return true;
}

bool disk_map_is_valid(const struct disk_map *m, struct errmsg *e)
{
    uint64_t n_pages = 0;
    uint32_t n_segments = 0;

    for (const struct disk_owner *o = m->owners; o; o = o->next) {
        if (!disk_owner_is_valid(o, e))
            return false;
        n_pages += o->n_pages;
        n_segments += o->n_segments;
    }
    if (n_pages == m->n_pages && n_segments == m->n_used)
        return true;

    (void) fail(e, -EBADMSG, "the tenants have %" PRIu64 " of %" PRIu64 " pages", n_pages, m->n_pages);
    return false;
}
