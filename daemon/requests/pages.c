/* See pages.h. */
#include "daemon/requests/pages.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables.h"

static int page_check_model(struct request *rq, uint32_t model, struct page_context *c)
{
    c->model = session_model(rq->session, model);
    if (!c->model)
        return fail(&rq->error, -EINVAL, "this session has no model %" PRIu32, model);
    return 0;
}

/* Whether the session has a reference on the context's table, and the table is of the context's model. */
static int page_check_table(struct request *rq, const struct page_context *c)
{
    int r = request_check_table(rq, c->table);

    if (r < 0)
        return r;
    if (memcmp(c->table->model_digest, c->model->digest, DIGEST_BYTES) != 0)
        return fail(&rq->error, -EINVAL, "the table is of another model");
    return 0;
}

int page_context(struct request *rq, uint32_t model, const ProtobufCBinaryData *table_digest,
                 struct page_context *ret)
{
    struct page_context c = {NULL};
    int r = page_check_model(rq, model, &c);

    if (r < 0)
        return r;

    r = request_find_table(rq, table_digest, &c.table);
    if (r < 0)
        return r;

    r = page_check_table(rq, &c);
    if (r < 0)
        return r;

    r = tables_space(rq->server->tables, c.table, c.model->shard, &c.space, &rq->error);
    if (r < 0)
        return r;

    *ret = c;
    return 0;
}

int page_context_of(struct request *rq, uint32_t model, struct space *space, struct page_context *ret)
{
    struct page_context c = {.table = space->table};
    const struct shard *shard = &space->layout.shard;
    int r = page_check_model(rq, model, &c);

    if (r < 0)
        return r;

    r = page_check_table(rq, &c);
    if (r < 0)
        return r;

    if (shard->first_head == c.model->shard.first_head && shard->n_heads == c.model->shard.n_heads)
        c.space = space;
    *ret = c;
    return 0;
}

int page_key(struct request *rq, const ProtobufCBinaryData *bytes, struct chunk_key *ret)
{
    int r = request_check_bytes(rq, bytes, CHUNK_KEY_BYTES, "chunk key");

    if (r < 0)
        return r;

    memcpy(ret->bytes, bytes->data, CHUNK_KEY_BYTES);
    return 0;
}

bool page_resolve(const struct request *rq, uint32_t number, uint64_t generation, struct page_handle *ret)
{
    return pool_resolve(&rq->store->pool, number, ret) && ret->slot->state != SLOT_FREE &&
           ret->slot->generation == generation && ret->group->tenant == rq->tenant;
}

struct page_handle page_of_item(const struct request *rq, const struct page_context *c,
                                const Kvcobra__LeaseItem *item, const struct chunk_key *key)
{
    struct page_handle h;

    /* compares the entry that the client read in the index with the daemon's own record */
    if (page_resolve(rq, item->slot, item->generation, &h) && h.slot->state == SLOT_COMMITTED &&
        memcmp(&h.slot->key, key, sizeof(*key)) == 0 && h.group->space == c->space)
        return h;
    if (rq->message->lease->fetch_ms == 0)
        return PAGE_NONE;

    h = page_find(rq, key);
    return h.slot && h.group->space == c->space ? h : PAGE_NONE;
}

struct page_handle page_find(const struct request *rq, const struct chunk_key *key)
{
    struct page_handle h = PAGE_NONE;

    (void) store_find(rq->store, rq->tenant, key, &h); /* not found: still PAGE_NONE */
    return h;
}

bool page_resolve_reservation(const struct request *rq, uint32_t number, uint64_t generation,
                              struct page_handle *ret)
{
    return page_resolve(rq, number, generation, ret) && ret->slot->state == SLOT_RESERVED &&
           ret->slot->session == rq->session->number;
}

void page_ref_fill(struct request *rq, size_t i, const struct page_handle *h)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__PageRef *ref = &scratch->pages[i];

    kvcobra__page_ref__init(ref);
    scratch->page_pointers[i] = ref;
    if (!h->slot)
        return;

    ref->slot = h->number;
    ref->generation = h->slot->generation;
    ref->extent = h->span->extent->id;
    ref->offset = pool_slot_offset(&rq->store->pool, h);
    ref->bytes = h->group->page_bytes;
}

int page_reservation_room(struct request *rq)
{
    const struct session *x = rq->session;

    if (x->n_reservations + x->n_copying >= rq->server->config->reservations_per_session_max)
        return fail(&rq->error, -EDQUOT,
                    "this session has %" PRIu32 " reservations, the maximum: commit or abort some",
                    x->n_reservations + x->n_copying);
    return 0;
}

int page_group(struct request *rq, struct space *space, unsigned page_class, struct group **ret)
{
    struct account *a = rq->tenant->account;
    uint32_t max = rq->server->config->groups_per_tenant_max;

    if (!tenant_group_find(rq->tenant, space, page_class) && a->n_groups >= max) {
        tenant_groups_drop_empty(rq->tenant);
        if (a->n_groups >= max)
            return fail(&rq->error, -EDQUOT,
                        "tenant %s has pages of %" PRIu32
                        " combinations of table, shard and class, the maximum: release pages, or raise "
                        "--groups-per-tenant",
                        a->name, a->n_groups);
    }

    if (tenant_group(rq->tenant, space, page_class, ret) < 0)
        return fail(&rq->error, -ENOMEM, "out of memory for a group of pages");
    return 0;
}

int page_lease_room(struct request *rq, size_t n)
{
    return lease_make_room(&rq->session->leases, (uint32_t) n, &rq->error);
}

uint64_t page_lease(struct request *rq, size_t n)
{
    const struct page_handle *pages = rq->server->scratch->found;
    struct leases *l = &rq->session->leases;

    for (size_t i = 0; i < n; i++)
        if (pages[i].slot)
            return lease_add(l, pages, (uint32_t) n);

    lease_drop_room(l);
    return 0;
}

Kvcobra__MissReason page_miss_reason(const struct request *rq, const struct space *space,
                                     const struct chunk_key *key)
{
    const struct page_handle h = page_find(rq, key);

    if (h.slot && h.group->space != space)
        return KVCOBRA__MISS_REASON__MISS_OTHER_TABLE;

    if (rq->steps.tier_is_slow || offload_has(rq->server->offload, rq->tenant, key))
        return KVCOBRA__MISS_REASON__MISS_SLOW_TIER;

    switch (ghosts_find(&rq->tenant->ghosts, key)) {
    case GHOST_EVICTED:
        return KVCOBRA__MISS_REASON__MISS_EVICTED;
    case GHOST_RETIRED_TABLE:
        return KVCOBRA__MISS_REASON__MISS_RETIRED_TABLE;
    case GHOST_NONE:
        break;
    }

    return KVCOBRA__MISS_REASON__MISS_UNKNOWN;
}

void page_count_miss(struct request *rq, Kvcobra__MissReason reason)
{
    rq->tenant->counters.misses_by[reason]++;
}

void page_note_lookup(struct request *rq, const struct space *space, unsigned page_class,
                      const struct chunk_key *key, bool found)
{
    device_note_lookup(rq->tenant, space, page_class, key, found, ev_now_ms(rq->server->ev));
}

int page_check_writable(struct request *rq, const struct table_entry *t)
{
    if (t->state == TABLE_DRAINING && ev_now_ms(rq->server->ev) >= t->drain_until_ms)
        return fail(&rq->error, -ESTALE,
                    "the table was replaced and its drain time is over: begin a new sequence, which uses the "
                    "active table");
    return 0;
}
