/* The daemon's numbers, for an operator. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/connection/client.h"

static int status_api_add_tenants(kvc_status *s, const Kvcobra__StatusReply *got)
{
    kvc_tenant_status *more = realloc(s->tenants, (s->n_tenants + got->n_tenants + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    s->tenants = more;
    for (size_t i = 0; i < got->n_tenants; i++) {
        const Kvcobra__TenantStatus *t = got->tenants[i];
        kvc_tenant_status *to = &more[s->n_tenants++];

        *to = (kvc_tenant_status){
            .quota_bytes = t->quota_bytes,
            .used_bytes = t->used_bytes,
            .held_bytes = t->held_bytes,
            .arena_bytes = t->arena_bytes,
            .pages = t->pages,
            .sessions = t->sessions,
            .hits = t->hits,
            .misses = t->misses,
            .evictions = t->evictions,
            .isolated = t->isolated,
            .leases = t->leases,
            .guarantee_bytes = t->guarantee_bytes,
            .extent_bytes = t->extent_bytes,
            .asked_back_bytes = t->asked_back_bytes,
            .misses_unknown = t->misses_unknown,
            .misses_evicted = t->misses_evicted,
            .misses_other_table = t->misses_other_table,
            .misses_retired_table = t->misses_retired_table,
        };
        (void) snprintf(to->name, sizeof(to->name), "%s", t->name);
    }
    return 0;
}

static int status_api_add_spaces(kvc_status *s, const Kvcobra__StatusReply *got)
{
    kvc_space_status *more = realloc(s->spaces, (s->n_spaces + got->n_spaces + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    s->spaces = more;
    for (size_t i = 0; i < got->n_spaces; i++) {
        const Kvcobra__SpaceStatus *space = got->spaces[i];
        kvc_space_status *to = &more[s->n_spaces];

        if (!bytes_are(space->table_digest, KVC_DIGEST_BYTES))
            return -EPROTO;
        *to = (kvc_space_status){
            .first_kv_head = space->first_head,
            .n_kv_heads = space->n_heads,
            .pages = space->pages,
            .page_bytes = space->page_bytes,
            .tokens = space->tokens,
            .tokens_free = space->tokens_free,
            .held_pages = space->held_pages,
            .leased = space->leased,
            .evictions = space->evictions,
        };
        memcpy(to->table_digest, space->table_digest.data, KVC_DIGEST_BYTES);
        s->n_spaces++;
    }
    return 0;
}

static int status_api_add_devices(kvc_status *s, const Kvcobra__StatusReply *got)
{
    kvc_device_status *more = realloc(s->devices, (s->n_devices + got->n_devices + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    s->devices = more;
    for (size_t i = 0; i < got->n_devices; i++) {
        const Kvcobra__DeviceStatus *d = got->devices[i];
        kvc_device_status *to = &more[s->n_devices++];

        *to = (kvc_device_status){
            .state = (int) d->state,
            .pool_bytes = d->pool_bytes,
            .extent_bytes = d->extent_bytes,
            .page_bytes = d->page_bytes,
            .waste_bytes = d->waste_bytes,
            .held_bytes = d->held_bytes,
            .guaranteed_bytes = d->guaranteed_bytes,
            .pages = d->pages,
            .sessions = d->sessions,
            .spare_extents = d->spare_extents,
            .retired_extents = d->retired_extents,
            .quarantined_slots = d->quarantined_slots,
            .lent_extents = d->lent_extents,
        };
        (void) snprintf(to->name, sizeof(to->name), "%s", d->name);
        (void) snprintf(to->uuid, sizeof(to->uuid), "%s", d->uuid);
        (void) snprintf(to->product, sizeof(to->product), "%s", d->product);
        (void) snprintf(to->message, sizeof(to->message), "%s", d->message);
    }
    return 0;
}

static void status_api_read_totals(kvc_status *s, const Kvcobra__StatusReply *got)
{
    s->pid = got->pid;
    s->uptime_ms = got->uptime_ms;
    s->pool_bytes = got->pool_bytes;
    s->extent_bytes = got->extent_bytes;
    s->page_bytes = got->page_bytes;
    s->waste_bytes = got->waste_bytes;
    s->sessions = got->sessions;
    s->leases = got->leases;
    s->held_pages = got->held_pages;
    s->refused_packets = got->refused_packets;
    s->draining = got->draining;
    s->evictions = got->evictions;
    s->slot_record_bytes = got->slot_record_bytes;
    s->index_bytes = got->index_bytes;
    s->hold_bytes = got->hold_bytes;
    s->heap_bytes = got->heap_bytes;
    s->work_threads = got->work_threads;
    s->work_waiting = got->work_waiting;
    s->work_done = got->work_done;
    s->work_refused = got->work_refused;
    s->work_expired = got->work_expired;
    s->guaranteed_bytes = got->guaranteed_bytes;
    s->mover_pid = got->mover_pid;
    s->mover_restarts = got->mover_restarts;
    (void) snprintf(s->version, sizeof(s->version), "%s", got->version);
    (void) snprintf(s->event_backend, sizeof(s->event_backend), "%s", got->event_backend);
    (void) snprintf(s->restart, sizeof(s->restart), "%s", got->restart);
}

static int status_page(kvc_client *c, uint64_t *cursor, kvc_status *s)
{
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    const Kvcobra__StatusReply *got;
    struct reply reply;
    int r;

    get.cursor = *cursor;
    request.body_case = KVCOBRA__REQUEST__BODY_GET_STATUS;
    request.get_status = &get;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_STATUS, &reply, &c->error);
    if (r < 0)
        return r;
    got = reply.message->status;
    if (*cursor == 0)
        status_api_read_totals(s, got);
    r = status_api_add_devices(s, got);
    if (r == 0)
        r = status_api_add_tenants(s, got);
    if (r == 0)
        r = status_api_add_spaces(s, got);
    if (r == 0 && got->next_cursor != 0 && got->n_tenants + got->n_spaces == 0)
        r = -EPROTO;
    *cursor = got->next_cursor;
    reply_free(&reply);
    return r < 0 ? fail(&c->error, r,
                        r == -ENOMEM ? "out of memory for kvcobrad's status"
                                     : "kvcobrad's status makes no sense")
                 : 0;
}

static void status_freep(kvc_status **s)
{
    *s = kvc_status_free(*s);
}

int kvc_status_get(kvc_client *c, kvc_status **ret_status)
{
    _cleanup_(status_freep) kvc_status *s = NULL;
    uint64_t cursor = 0;
    int r = c ? client_enter(c) : -EINVAL;

    if (r < 0)
        return r;
    if (!ret_status)
        return fail(&c->error, -EINVAL, "kvc_status_get: ret_status is NULL");
    s = calloc(1, sizeof(*s));
    if (!s)
        return fail(&c->error, -ENOMEM, "out of memory for kvcobrad's status");
    do
        r = status_page(c, &cursor, s);
    while (r == 0 && cursor != 0);
    if (r < 0)
        return r;
    *ret_status = take_ptr(s);
    return 0;
}

kvc_status *kvc_status_free(kvc_status *s)
{
    if (s) {
        free(s->devices);
        free(s->tenants);
        free(s->spaces);
        free(s);
    }
    return NULL;
}
