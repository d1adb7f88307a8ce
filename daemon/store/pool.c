/* Extents of the pool, and the validation of all its records. See pool.h. */
#include "daemon/store/pool.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/store/host_memory.h"
#include "daemon/store/span.h"
#include "daemon/store/tenant_types.h"
#include "gpu/device.h"

int pool_init(struct pool *p, struct pool_serials *serials, uint64_t pool_bytes, uint64_t extent_bytes,
              uint64_t unit_bytes, struct errmsg *e)
{
    uint64_t n_extents = pool_bytes / extent_bytes, n_spans = pool_bytes / unit_bytes;

    assert(unit_bytes <= POOL_SPAN_BYTES_MAX && extent_bytes % unit_bytes == 0 && n_spans <= POOL_SPANS_MAX);
    *p = (struct pool){
        .pool_bytes = pool_bytes,
        .extent_bytes = extent_bytes,
        .unit_bytes = unit_bytes,
        .serials = serials,
        .n_extents_max = (uint32_t) n_extents,
        .n_spans_max = (uint32_t) n_spans,
    };
    p->extents = calloc(n_extents, sizeof(struct pool_extent *));
    p->spans = calloc(n_spans, sizeof(struct span *));
    p->free_numbers = calloc(n_spans, sizeof(uint32_t));
    if (!p->extents || !p->spans || !p->free_numbers) {
        pool_deinit(p);
        return fail(e, -ENOMEM, "out of memory for the tables of a pool of %" PRIu64 " bytes", pool_bytes);
    }

    for (uint32_t i = 0; i < p->n_spans_max; i++) /* number 0 on top */
        p->free_numbers[p->n_free_numbers++] = p->n_spans_max - 1 - i;
    return 0;
}

static struct pool_extent *pool_extent_free(struct pool_extent *x)
{
    if (!x)
        return NULL;

    x->memory = extent_free(x->memory);
    closep(&x->gpu_fd);
    slot_records_deinit(&x->records);
    free(x->span_of_unit);
    free(x);
    return NULL;
}

static void pool_extent_freep(struct pool_extent **x)
{
    *x = pool_extent_free(*x);
}

void pool_deinit(struct pool *p)
{
    for (uint32_t i = 0; p->spans && i < p->n_spans_max; i++)
        free(p->spans[i]);
    for (uint32_t i = 0; p->extents && i < p->n_extents; i++)
        p->extents[i] = pool_extent_free(p->extents[i]);
    free(p->extents);
    free(p->spans);
    free(p->free_numbers);
    *p = (struct pool){0};
}

void pool_group_init(struct group *g, struct tenant *tenant, struct space *space, unsigned page_class,
                     size_t slot_bytes, size_t page_bytes)
{
    assert(slot_bytes >= SLOT_ALIGN && slot_bytes % SLOT_ALIGN == 0 && page_bytes <= slot_bytes);
    *g = (struct group){
        .tenant = tenant,
        .space = space,
        .page_class = page_class,
        .slot_bytes = slot_bytes,
        .page_bytes = page_bytes,
        .small_queue = {SLOT_NONE, SLOT_NONE, 0},
        .main_queue = {SLOT_NONE, SLOT_NONE, 0},
    };
}

/* ---- extents ---- */

void pool_memory_deinit(struct pool_memory *m)
{
    m->memory = extent_free(m->memory);
    closep(&m->gpu_fd);
    slot_records_deinit(&m->records);
    *m = POOL_MEMORY_NONE;
}

bool pool_can_grow(const struct pool *p)
{
    return p->n_extents < p->n_extents_max;
}

static struct pool_extent *pool_extent_alloc(const struct pool *p, struct tenant *tenant, uint64_t id)
{
    _cleanup_(pool_extent_freep) struct pool_extent *x = calloc(1, sizeof(*x));

    if (!x)
        return NULL;

    x->records.fd = x->gpu_fd = -1;
    x->id = id;
    x->tenant = tenant;
    x->n_units = (uint32_t) (p->extent_bytes / p->unit_bytes);
    x->span_of_unit = malloc(x->n_units * sizeof(uint32_t));
    if (!x->span_of_unit)
        return NULL;

    memset(x->span_of_unit, 0xff, x->n_units * sizeof(uint32_t));
    return take_ptr(x);
}

static void pool_append_extent(struct pool *p, struct pool_extent *x)
{
    x->tenant->n_extents++;
    p->extents[p->n_extents++] = x;
}

static int pool_take_memory(struct pool *p, struct pool_extent *x, struct errmsg *e)
{
    struct pool_memory m;
    int r = p->source->take(p->source->ctx, &m, e);

    if (r < 0)
        return r;

    x->id = m.id;
    x->memory = m.memory;
    x->gpu_fd = m.gpu_fd;
    x->records = m.records;
    return 0;
}

static int pool_extent_add(struct pool *p, struct tenant *tenant, const struct span_owner *owner,
                           struct pool_extent **ret, struct errmsg *e)
{
    _cleanup_(pool_extent_freep) struct pool_extent *x =
        pool_extent_alloc(p, tenant, p->serials->next_extent);
    int r;

    if (!x)
        return fail(e, -ENOMEM, "out of memory for an extent");

    r = pool_take_memory(p, x, e);
    if (r < 0)
        return r;

    *slot_records_head(&x->records) = (struct extent_head){
        .magic = RECORDS_MAGIC,
        .version = RECORDS_VERSION,
        .extent = x->id,
        .extent_bytes = p->extent_bytes,
        .unit_bytes = (uint32_t) p->unit_bytes,
        .n_units = x->n_units,
        .uid = tenant->account->uid,
        .account = tenant->account->number,
        .place = owner->place,
    };
    *ret = take_ptr(x);
    pool_append_extent(p, *ret);
    if (p->keeper)
        p->keeper->added(p->keeper->ctx, *ret);
    return 0;
}

int pool_extent_adopt(struct pool *p, struct tenant *tenant, uint64_t id, struct extent *memory, int gpu_fd,
                      struct slot_records *records, struct pool_extent **ret, struct errmsg *e)
{
    struct pool_extent *x;

    assert(p->on_gpu ? !memory && gpu_fd >= 0 : memory && gpu_fd < 0);
    if (p->n_extents == p->n_extents_max)
        return fail(e, -EBADMSG, "the stored extents are more than the maximum of the pool");

    x = pool_extent_alloc(p, tenant, id);
    if (!x)
        return fail(e, -ENOMEM, "out of memory for an extent");

    x->memory = memory;
    x->gpu_fd = gpu_fd;
    x->records = *records;
    x->retired = slot_records_head(records)->retired;
    pool_append_extent(p, x);
    *ret = x;
    return 0;
}

struct pool_extent *pool_extent_find(const struct pool *p, uint64_t id)
{
    for (uint32_t i = 0; i < p->n_extents; i++)
        if (p->extents[i]->id == id)
            return p->extents[i];
    return NULL;
}

bool pool_extent_is_idle(const struct pool *p, const struct pool_extent *x)
{
    for (uint32_t i = 0; i < x->n_units; i++)
        if (x->span_of_unit[i] != UINT32_MAX && p->spans[x->span_of_unit[i]]->n_busy > 0)
            return false;
    return true;
}

static void pool_file_spans(struct pool *p, struct pool_extent *x)
{
    for (uint32_t i = 0; i < x->n_units; i++)
        if (x->span_of_unit[i] != UINT32_MAX)
            span_file(p->spans[x->span_of_unit[i]]);
}

void pool_extent_set_reclaimed(struct pool *p, struct pool_extent *x, bool reclaimed)
{
    x->reclaimed = reclaimed;
    pool_file_spans(p, x);
}

void pool_extent_retire(struct pool *p, struct pool_extent *x)
{
    slot_records_head(&x->records)->retired = 1; /* so that a later process does not use it either */
    x->retired = true;
    pool_file_spans(p, x);
}

void pool_extent_destroy(struct pool *p, struct pool_extent *x)
{
    assert(x->n_units_used == 0);
    x->tenant->n_extents--;
    for (uint32_t i = 0; i < p->n_extents; i++) {
        if (p->extents[i] == x) {
            p->extents[i] = p->extents[--p->n_extents];
            break;
        }
    }
    if (p->keeper)
        p->keeper->removed(p->keeper->ctx, x);
    if (p->freeing) {
        /* clients may keep the descriptor, but not the memory: it would be beyond every quota */
        host_memory_free(p->freeing, x->memory, !p->is_frozen, NULL);
        x->memory = NULL;
    }
    (void) pool_extent_free(x);
}

/* ---- slots ---- */

static int pool_add_span(struct pool *p, struct group *g, const struct span_owner *owner, struct span **ret,
                         struct errmsg *e)
{
    struct pool_extent *x = NULL;
    uint32_t n_units = span_units(p, g);
    int r;

    for (uint32_t i = 0; i < p->n_extents; i++) {
        if (p->extents[i]->tenant != g->tenant || pool_extent_is_closed(p->extents[i]))
            continue;

        r = span_new(p, p->extents[i], g, n_units, owner, ret);
        if (r != -ENOSPC)
            return r;
    }

    if (!owner->may_grow || !pool_can_grow(p))
        return fail(e, -ENOSPC,
                    "the pool of %" PRIu64 " bytes is full, or the rest of it is guaranteed to others",
                    p->pool_bytes);

    r = pool_extent_add(p, g->tenant, owner, &x, e);
    if (r == 0)
        r = span_new(p, x, g, n_units, owner, ret);
    return r;
}

int pool_slot_take(struct pool *p, struct group *g, const struct span_owner *owner, struct page_handle *ret,
                   struct errmsg *e)
{
    struct span *s = g->partial.head;

    assert(g->slot_bytes <= p->extent_bytes);
    if (!s) {
        int r = pool_add_span(p, g, owner, &s, e);

        if (r < 0)
            return r;
    }

    span_slot_take(p, s, ret);
    return 0;
}

struct slot *pool_slot(const struct pool *p, uint32_t number)
{
    uint32_t span = number >> POOL_SLOT_BITS, index = number & (POOL_SLOTS_PER_SPAN_MAX - 1);

    if (span >= p->n_spans_max || !p->spans[span] || index >= p->spans[span]->n_fresh_from)
        return NULL;
    return &p->spans[span]->slots[index];
}

bool pool_resolve(const struct pool *p, uint32_t number, struct page_handle *ret)
{
    struct slot *slot = pool_slot(p, number);
    struct span *s;

    if (!slot)
        return false;

    s = p->spans[number >> POOL_SLOT_BITS];
    *ret = (struct page_handle){number, slot, s, s->group};
    return true;
}

struct page_handle pool_handle(const struct pool *p, uint32_t number)
{
    struct page_handle h = PAGE_NONE;
    bool exists = pool_resolve(p, number, &h);

    assert(exists);
    (void) exists;
    return h;
}

void pool_slot_give(struct pool *p, const struct page_handle *h)
{
    span_slot_give(p, h);
}

void pool_slot_set_busy(const struct page_handle *h, bool busy)
{
    assert(busy || h->span->n_busy > 0);
    h->span->n_busy += busy ? 1u : (uint32_t) -1;
}

uint64_t pool_slot_offset(const struct pool *p, const struct page_handle *h)
{
    return h->span->first_unit * p->unit_bytes +
           (h->number & (POOL_SLOTS_PER_SPAN_MAX - 1)) * (uint64_t) h->group->slot_bytes;
}

uint8_t *pool_slot_data(const struct pool *p, const struct page_handle *h)
{
    assert(h->span->extent->memory); /* pages on a GPU are never mapped here */
    return (uint8_t *) extent_data(h->span->extent->memory) + pool_slot_offset(p, h);
}

/* ---- counts for STATUS ---- */

/* Spans of @n units that fit in the free runs of @x. */
static uint64_t pool_runs_of(const struct pool_extent *x, uint32_t n)
{
    uint64_t spans = 0;
    uint32_t run = 0;

    for (uint32_t i = 0; i < x->n_units; i++) {
        run = x->span_of_unit[i] == UINT32_MAX ? run + 1 : 0;
        if (run == n) {
            spans++;
            run = 0;
        }
    }
    return spans;
}

uint64_t pool_group_room(const struct pool *p, const struct group *g)
{
    uint64_t spans = 0, slots = 0;
    uint32_t n_units = span_units(p, g);

    for (const struct span *s = g->partial.head; s; s = s->next)
        slots += s->n_slots - s->n_used;
    for (uint32_t i = 0; i < p->n_extents; i++)
        if (p->extents[i]->tenant == g->tenant && !pool_extent_is_closed(p->extents[i]))
            spans += pool_runs_of(p->extents[i], n_units);
    spans += (uint64_t) (p->n_extents_max - p->n_extents) * (p->extent_bytes / p->unit_bytes / n_units);
    return slots + spans * (n_units * p->unit_bytes / g->slot_bytes);
}

uint64_t pool_waste_bytes(const struct pool *p)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < p->n_spans_max; i++) {
        const struct span *s = p->spans[i];

        if (s)
            bytes += s->n_units * p->unit_bytes - (uint64_t) s->n_used * s->group->slot_bytes;
    }
    return bytes;
}

/* ---- validation ---- */

static bool pool_span_is_valid(const struct pool *p, const struct span *s, struct errmsg *e)
{
    uint32_t n_used = 0, n_busy = 0, n_free = 0;

    for (uint32_t i = 0; i < s->n_fresh_from; i++) {
        const struct slot *slot = &s->slots[i];

        n_used += slot->state != SLOT_FREE;
        n_busy +=
            slot->state == SLOT_RESERVED || slot->state == SLOT_COPYING || slot->holds > 0 || slot->pinned;
        if (slot->state > SLOT_COPYING ||
            (slot->state != SLOT_COMMITTED && (slot->holds > 0 || slot->pinned)) ||
            (slot->generation == 0 && slot->state != SLOT_FREE) || slot->generation > p->serials->generation)
            return refute(e, "slot %u of span %u is in an impossible state", i, s->number);
    }

    for (uint32_t at = s->free; at != SLOT_NONE && n_free <= s->n_slots; n_free++) {
        const struct slot *slot = pool_slot(p, at);

        if (!slot || at >> POOL_SLOT_BITS != s->number || slot->state != SLOT_FREE)
            return refute(e, "free list of span %u leads to slot %u", s->number, at);

        at = slot->next;
    }

    if (n_used != s->n_used || n_busy != s->n_busy || n_free + n_used != s->n_fresh_from || n_used == 0)
        return refute(e, "span %u counts %u used, %u busy, %u free of %u", s->number, n_used, n_busy, n_free,
                      s->n_fresh_from);
    if (s->n_slots * (uint64_t) s->group->slot_bytes > s->n_units * p->unit_bytes ||
        s->extent->tenant != s->group->tenant)
        return refute(e, "span %u is larger than its units or of another tenant", s->number);
    if ((s->list == &s->group->partial) != (s->n_used < s->n_slots && !pool_extent_is_closed(s->extent)))
        return refute(e, "span %u stands in the wrong list of its group", s->number);

    return true;
}

static bool pool_extent_is_valid(const struct pool *p, const struct pool_extent *x, struct errmsg *e)
{
    uint32_t n = 0;

    if (p->on_gpu ? x->memory || x->gpu_fd < 0 : !x->memory || x->gpu_fd >= 0)
        return refute(e, "extent %" PRIu64 " is not in the memory that the pool is for", x->id);
    if (x->retired != (slot_records_head(&x->records)->retired != 0) || (x->retired && !p->on_gpu))
        return refute(e, "extent %" PRIu64 " is retired, or its record says so, without reason", x->id);

    for (uint32_t i = 0; i < x->n_units; i++) {
        uint32_t number = x->span_of_unit[i];

        if (number == UINT32_MAX)
            continue;

        n++;
        if (number >= p->n_spans_max || !p->spans[number] || p->spans[number]->extent != x ||
            i - p->spans[number]->first_unit >= p->spans[number]->n_units)
            return refute(e, "unit %u of extent %" PRIu64 " names span %u", i, x->id, number);
    }

    if (n != x->n_units_used)
        return refute(e, "extent %" PRIu64 " counts %u used units, has %u", x->id, x->n_units_used, n);

    return true;
}

bool pool_is_valid(const struct pool *p, struct errmsg *e)
{
    uint32_t n_spans = 0, n_units = 0;

    if (p->n_extents > p->n_extents_max)
        return refute(e, "%u extents in a pool of %u", p->n_extents, p->n_extents_max);

    for (uint32_t i = 0; i < p->n_extents; i++)
        if (!pool_extent_is_valid(p, p->extents[i], e))
            return false;
    for (uint32_t i = 0; i < p->n_spans_max; i++) {
        if (!p->spans[i])
            continue;

        n_spans++;
        n_units += p->spans[i]->n_units;
        if (p->spans[i]->number != i || !pool_span_is_valid(p, p->spans[i], e))
            return false;
    }

    for (uint32_t i = 0; i < p->n_extents; i++)
        n_units -= p->extents[i]->n_units_used;
    if (n_spans + p->n_free_numbers != p->n_spans_max || n_units != 0)
        return refute(e, "spans and units do not add up");

    return true;
}
