/*
 * STATUS: values of the daemon for operators; a client gets those of its own tenant. Each value of
 * proto/status_fields.def is assigned here, once.
 */
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "daemon/config/config.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/gpu/mover.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/names.h"
#include "daemon/loop/supervisor.h"
#include "daemon/loop/usage.h"
#include "daemon/loop/work.h"
#include "daemon/offload/offload.h"
#include "daemon/operator/quota.h"
#include "daemon/operator/status.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/store/advice.h"
#include "daemon/store/device.h"
#include "daemon/store/persist.h"
#include "daemon/store/share.h"
#include "daemon/store/space.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/table_entry.h"
#include "gpu/device.h"

#ifndef KVCOBRA_VERSION
#error "the build defines KVCOBRA_VERSION"
#endif

/*
 * A cursor names the list with which the next part of the answer begins, and a number in that list. Both only
 * grow, so parts never overlap.
 */
enum { CURSOR_TENANTS = 0, CURSOR_SPACES = 1 };
#define CURSOR(kind, number) ((uint64_t) (kind) << 56 | (number))
#define CURSOR_KIND(cursor) ((cursor) >> 56)
#define CURSOR_NUMBER(cursor) ((cursor) & ((UINT64_C(1) << 56) - 1))

/* ---- the daemon ---- */

/* Memory that the daemon needs beside pages and arenas. */
static void status_fill_memory(const struct server *s, Kvcobra__StatusReply *reply)
{
    for (uint32_t i = 0; i < s->devices->n; i++) {
        const struct pool *p = &s->devices->list[i].store.pool;

        for (uint32_t k = 0; k < p->n_extents; k++)
            reply->slot_record_bytes += usage_of_fd(p->extents[k]->records.fd);
    }
    for (const struct tenant *t = NULL; (t = devices_next_tenant(s->devices, t));)
        reply->index_bytes += usage_of_fd(extent_fd(t->index_memory)) +
                              (t->next_memory ? usage_of_fd(extent_fd(t->next_memory)) : 0);
    reply->hold_bytes = usage_of_fd(s->persist->journal.fd);
    reply->heap_bytes = usage_of_process();
}

static void status_fill_work(const struct server *s, Kvcobra__StatusReply *reply)
{
    struct work_metrics f;

    work_metrics(s->work, &f);
    reply->work_threads = f.n_threads;
    reply->work_waiting = f.n_waiting;
    reply->work_done = f.n_done;
    reply->work_refused = f.n_refused;
    reply->work_expired = f.n_expired;
}

/* The pool in host memory. */
static void status_fill_pool(const struct store *st, Kvcobra__StatusReply *reply)
{
    reply->pool_bytes = st->pool.pool_bytes;
    reply->extent_bytes = st->pool.n_extents * st->pool.extent_bytes;
    reply->waste_bytes = pool_waste_bytes(&st->pool);
    for (const struct tenant *t = st->tenants; t; t = t->next) {
        reply->guaranteed_bytes += share_extents(&st->pool, t->guarantee_bytes) * st->pool.extent_bytes;
        for (const struct group *g = t->groups; g; g = g->next)
            reply->page_bytes += g->n_pages * (uint64_t) g->slot_bytes;
    }
}

static void status_fill_tiers(const struct server *s, Kvcobra__StatusReply *reply)
{
    struct offload_status o = {.has_disk = false};

    if (s->offload)
        offload_status(s->offload, &o);
    reply->disk_tier = (char *) (o.has_disk ? tier_state_names[o.disk.state] : "none");
    reply->cluster_tier = (char *) (o.has_cluster ? cluster_link_state_names[o.cluster.state] : "none");
}

void status_fill_totals(const struct server *s, Kvcobra__StatusReply *reply)
{
    reply->pid = (uint64_t) getpid();
    reply->uptime_ms = ev_now_ms(s->ev) - s->started_ms;
    reply->version = (char *) KVCOBRA_VERSION;
    reply->restart =
        (char *) (s->supervisor->keeps && !supervisor_has_failed(s->supervisor) ? "kept" : "volatile");
    reply->sessions = s->sessions->n;
    reply->refused_packets = s->conns->refused_packets;
    reply->moments_bytes = s->live->bytes;
    reply->reports = s->live->n_reports;
    reply->refused_reports = s->live->n_refused;
    reply->draining = s->draining;
    status_fill_tiers(s, reply);
    reply->lost_names = names_n_lost(s->names);

    status_fill_pool(&s->devices->list[0].store, reply);
    status_fill_work(s, reply);

    for (uint32_t i = 0; i < s->sessions->n_max; i++) {
        const struct session *x = s->sessions->list[i];

        if (x)
            reply->leases += x->leases.n_granted;
    }

    reply->evictions = s->devices->forgotten_evictions;
    for (const struct tenant *t = NULL; (t = devices_next_tenant(s->devices, t));) {
        reply->evictions += t->counters.evictions;
        for (const struct group *g = t->groups; g; g = g->next)
            reply->held_pages += (uint64_t) g->n_pages - g->small_queue.n - g->main_queue.n;
    }
}

void status_fill_mover(const struct server *s, Kvcobra__StatusReply *reply)
{
    pid_t pid = 0;

    if (s->gpus->mover)
        mover_get_info(s->gpus->mover, &pid, &reply->mover_restarts);
    reply->mover_pid = (uint64_t) pid;
}

/* ---- capacity ---- */

bool status_fill_advice(const struct server *s, struct advice *a, uint64_t capacity_bytes,
                        Kvcobra__Advice *out)
{
    struct advice_figures f;

    advice_read(a, capacity_bytes, ev_now_ms(s->ev), &f);
    if (f.lookups == 0 && f.windows[ADVICE_DAY].lookups == 0)
        return false;

    kvcobra__advice__init(out);
    out->hour_lookups = f.windows[ADVICE_HOUR].lookups;
    out->hour_found = f.windows[ADVICE_HOUR].found;
    out->hour_distinct = f.windows[ADVICE_HOUR].distinct;
    out->day_lookups = f.windows[ADVICE_DAY].lookups;
    out->day_found = f.windows[ADVICE_DAY].found;
    out->day_distinct = f.windows[ADVICE_DAY].distinct;
    out->lookups = f.lookups;
    out->capacity_bytes = capacity_bytes;
    out->millibits = (uint64_t) llround(f.bits * 1000);
    out->hits_pool_half = f.pool_hits[0];
    out->hits_pool_same = f.pool_hits[1];
    out->hits_pool_2x = f.pool_hits[2];
    out->hits_pool_4x = f.pool_hits[3];
    out->hits_pool_8x = f.pool_hits[4];
    out->hits_bits_16 = f.bit_hits[0];
    out->hits_bits_4_5 = f.bit_hits[1];
    out->hits_bits_3 = f.bit_hits[2];
    out->hits_bits_2 = f.bit_hits[3];
    return true;
}

/* ---- devices ---- */

/* Why the device is unavailable, or why its last extent could not be allocated. */
static const char *status_error_of(const struct device *d)
{
    if (d->state == DEVICE_UNAVAILABLE)
        return d->why.text;
    return d->gpu && d->gpu->preallocated.err < 0 ? d->gpu->preallocated.why.text : "";
}

static void status_fill_gpu(const struct gpu_pool *g, Kvcobra__DeviceStatus *out)
{
    struct gpu_pool_metrics m;

    gpu_pool_metrics(g, &m);
    out->spare_extents = m.spare_extents;
    out->retired_extents = m.retired_extents;
    out->quarantined_slots = m.quarantined_slots;
}

void status_fill_device(const struct device *d, Kvcobra__DeviceStatus *out)
{
    const struct store *st = &d->store;

    kvcobra__device_status__init(out);
    out->name = (char *) d->name;
    out->uuid = (char *) d->uuid;
    out->product = (char *) d->product;
    out->state = (Kvcobra__DeviceState) d->state;
    out->message = (char *) status_error_of(d);
    out->pool_bytes = st->pool.pool_bytes;
    out->extent_bytes = st->pool.n_extents * st->pool.extent_bytes;
    out->waste_bytes = pool_waste_bytes(&st->pool);
    if (d->gpu)
        status_fill_gpu(d->gpu, out);

    for (const struct tenant *t = st->tenants; t; t = t->next) {
        out->guaranteed_bytes += share_extents(&st->pool, t->guarantee_bytes) * st->pool.extent_bytes;
        out->held_bytes += t->held_bytes;
        out->pages += t->n_pages;
        out->sessions += t->n_sessions;
        for (const struct group *g = t->groups; g; g = g->next)
            out->page_bytes += g->n_pages * (uint64_t) g->slot_bytes;
    }
}

static void status_add_device(const struct server *s, const struct device *d, Kvcobra__StatusReply *reply)
{
    struct reply_scratch *scratch = s->scratch;
    size_t i = reply->n_devices++;

    status_fill_device(d, &scratch->devices[i]);
    if (status_fill_advice(s, d->advice, d->store.pool.pool_bytes, &scratch->device_advice[i]))
        scratch->devices[i].advice = &scratch->device_advice[i];
    scratch->device_pointers[i] = &scratch->devices[i];
    reply->devices = scratch->device_pointers;
}

/* ---- tenants ---- */

static uint64_t status_leases_of(const struct server *s, const struct tenant *t)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->sessions->n_max; i++)
        if (s->sessions->list[i] && s->sessions->list[i]->tenant == t)
            n += s->sessions->list[i]->leases.n_granted;
    return n;
}

void status_fill_counters(const struct tenant_counters *c, Kvcobra__TenantStatus *out)
{
    out->hits = c->hits;
    out->misses = c->misses;
    out->evictions = c->evictions;
    out->misses_unknown = c->misses_by[KVCOBRA__MISS_REASON__MISS_UNKNOWN];
    out->misses_evicted = c->misses_by[KVCOBRA__MISS_REASON__MISS_EVICTED];
    out->misses_other_table = c->misses_by[KVCOBRA__MISS_REASON__MISS_OTHER_TABLE];
    out->misses_retired_table = c->misses_by[KVCOBRA__MISS_REASON__MISS_RETIRED_TABLE];
    out->misses_slow_tier = c->misses_by[KVCOBRA__MISS_REASON__MISS_SLOW_TIER];
}

void status_fill_tenant(const struct tenant *t, Kvcobra__TenantStatus *out)
{
    kvcobra__tenant_status__init(out);
    out->name = (char *) t->name;
    out->quota_bytes = t->quota_bytes;
    out->used_bytes = tenant_used_bytes(t);
    out->held_bytes = t->held_bytes;
    out->arena_bytes = t->arena_bytes;
    out->pages = t->n_pages;
    out->sessions = t->n_sessions;
    out->isolated = t->account->isolated;
    out->guarantee_bytes = t->guarantee_bytes;
    out->extent_bytes = t->n_extents * store_of(t)->pool.extent_bytes;
    out->asked_back_bytes = share_reclaimed_bytes(store_of(t), t);
    out->pinned_bytes = t->kept.bytes;
    status_fill_counters(&t->counters, out);
}

/*
 * The tenant with the least number that is at least @from, or NULL. Lists of tenants are not in
 * the order of numbers.
 */
static const struct tenant *status_tenant_from(const struct server *s, uint64_t from)
{
    const struct tenant *best = NULL;

    for (const struct tenant *t = NULL; (t = devices_next_tenant(s->devices, t));)
        if (t->number >= from && (!best || t->number < best->number))
            best = t;
    return best;
}

/* ---- tables and their shards ---- */

static const struct space *status_space_from(const struct server *s, uint64_t from)
{
    const struct space *best = NULL;

    for (const struct table_entry *t = s->tables->entries; t; t = t->next)
        for (const struct space *x = t->spaces; x; x = x->next)
            if (x->id >= from && (!best || x->id < best->id))
                best = x;
    return best;
}

/* Pages of class rest that the pool and the quota of @t have room for. */
static uint64_t status_pages_free(const struct tenant *t, const struct space *x)
{
    const struct pool *p = &store_of(t)->pool;
    const struct group *g = tenant_group_find(t, x, PAGE_REST);
    uint64_t by_pool = 0, by_quota = tenant_room_bytes(t) / x->layout.slot_bytes[PAGE_REST];
    struct group empty;

    if (!g) {
        pool_group_init(&empty, (struct tenant *) t, (struct space *) x, PAGE_REST,
                        x->layout.slot_bytes[PAGE_REST], x->layout.page_bytes[PAGE_REST]);
        g = &empty;
    }

    if (g->slot_bytes <= p->extent_bytes)
        by_pool = pool_group_room(p, g);
    return by_pool < by_quota ? by_pool : by_quota;
}

/* Counts the tenant with the most room, since tenants share the part of the pool that is not allocated. */
static uint64_t status_tokens_free(const struct server *s, const struct space *x)
{
    uint64_t most = 0;

    for (const struct tenant *t = NULL; (t = devices_next_tenant(s->devices, t));) {
        uint64_t n = status_pages_free(t, x);

        most = n > most ? n : most;
    }
    return most * CHUNK_TOKENS;
}

void status_fill_space(const struct server *s, const struct space *x, Kvcobra__SpaceStatus *out)
{
    kvcobra__space_status__init(out);
    out->table_digest = bytes_view(x->table_digest, DIGEST_BYTES);
    out->first_head = x->layout.shard.first_head;
    out->n_heads = x->layout.shard.n_heads;
    out->pages = x->n_pages;
    out->page_bytes = x->layout.page_bytes[PAGE_REST];
    out->tokens = x->n_pages * CHUNK_TOKENS;
    out->tokens_free = status_tokens_free(s, x);
    out->held_pages = x->n_busy;
    out->leased = x->n_leased;
    out->evictions = x->n_evictions;
}

static void status_fill_spaces(struct request *rq, Kvcobra__StatusReply *reply, uint64_t from, size_t n)
{
    struct reply_scratch *scratch = rq->server->scratch;
    const struct space *x = status_space_from(rq->server, from);
    size_t k = 0;

    for (; x && n < WIRE_LIST_ITEMS_MAX; n++, x = status_space_from(rq->server, from)) {
        status_fill_space(rq->server, x, &scratch->spaces[k]);
        scratch->space_pointers[k] = &scratch->spaces[k];
        k++;
        from = x->id + 1;
    }

    reply->n_spaces = k;
    reply->spaces = scratch->space_pointers;
    reply->next_cursor = x ? CURSOR(CURSOR_SPACES, from) : 0;
}

/* ---- parts of the answer ---- */

/* Fills tenant @n of the answer. */
static void status_add_tenant(const struct server *s, const struct tenant *t, size_t n)
{
    struct reply_scratch *scratch = s->scratch;

    status_fill_tenant(t, &scratch->tenants[n]);
    scratch->tenants[n].leases = status_leases_of(s, t);
    if (status_fill_advice(s, t->advice, device_tenant_capacity(t), &scratch->tenant_advice[n]))
        scratch->tenants[n].advice = &scratch->tenant_advice[n];
    scratch->tenant_pointers[n] = &scratch->tenants[n];
}

/* Return: whether tenants are left for the next part. */
static bool status_fill_tenants(const struct server *s, Kvcobra__StatusReply *reply, uint64_t from)
{
    struct reply_scratch *scratch = s->scratch;
    const struct tenant *t = status_tenant_from(s, from);
    size_t n = 0;

    for (; t && n < WIRE_LIST_ITEMS_MAX; n++, t = status_tenant_from(s, from)) {
        status_add_tenant(s, t, n);
        from = t->number + 1;
    }

    reply->n_tenants = n;
    reply->tenants = scratch->tenant_pointers;
    if (t)
        reply->next_cursor = CURSOR(CURSOR_TENANTS, from);
    return t != NULL;
}

/* @t NULL: a tenant without values, which no client has yet. */
static void status_fill_one(const struct server *s, const struct tenant *t, Kvcobra__StatusReply *reply)
{
    struct reply_scratch *scratch = s->scratch;

    reply->version = (char *) KVCOBRA_VERSION;
    reply->draining = s->draining;
    if (t)
        status_add_tenant(s, t, 0);
    else
        kvcobra__tenant_status__init(&scratch->tenants[0]);
    scratch->tenant_pointers[0] = &scratch->tenants[0];
    reply->n_tenants = 1;
    reply->tenants = scratch->tenant_pointers;
}

/* The tenant that an operator names, and its device. */
static int status_fill_named(struct request *rq, const char *name, Kvcobra__StatusReply *reply)
{
    struct server *s = rq->server;
    struct quota_subject q;
    int r = quota_find(s, name, &q, &rq->error);

    if (r < 0)
        return r;

    status_fill_one(s, q.tenant, reply);
    if (!q.tenant) {
        reply->tenants[0]->name = (char *) name;
        reply->tenants[0]->quota_bytes = q.limit.quota_bytes;
        reply->tenants[0]->guarantee_bytes = q.limit.guarantee_bytes;
    }
    reply->tenants[0]->client_arena_bytes = q.device->number == 0 ? s->config->arena_bytes : 0;
    status_add_device(s, q.device, reply);
    return 0;
}

static int status_handle(struct request *rq)
{
    const struct server *s = rq->server;
    const Kvcobra__GetStatus *get = rq->message->get_status;
    Kvcobra__StatusReply *reply = s->scratch->body;
    uint64_t from = CURSOR_NUMBER(get->cursor);

    kvcobra__status_reply__init(reply);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_STATUS;
    rq->reply.status = reply;
    if (!rq->conn->is_operator) { /* it learns nothing about others, nor what the daemon has in all */
        if (get->tenant[0])
            return fail(&rq->error, -EPERM,
                        "this is the socket of clients, which has the status of the client's own tenant: use "
                        "the socket of operators%s%s",
                        s->operator_path[0] ? ", " : "", s->operator_path);
        status_fill_one(s, rq->tenant, reply);
        return 0;
    }
    if (get->tenant[0])
        return status_fill_named(rq, get->tenant, reply);

    status_fill_totals(s, reply);
    status_fill_memory(s, reply);
    if (get->cursor == 0) {
        for (uint32_t i = 0; i < s->devices->n; i++)
            status_add_device(s, &s->devices->list[i], reply);
        status_fill_mover(s, reply);
    }

    if (CURSOR_KIND(get->cursor) == CURSOR_TENANTS) {
        if (status_fill_tenants(s, reply, from))
            return 0;

        from = 0;
    }

    status_fill_spaces(rq, reply, from, reply->n_tenants);
    return 0;
}
REQUEST(request_get_status) = {
    .body = KVCOBRA__REQUEST__BODY_GET_STATUS, .run = status_handle, .needs = CONN_OPEN, .sockets = ON_BOTH};
