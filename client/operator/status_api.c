/* The state of the daemon: kvc_status_get(). Copies the daemon's answer, which comes in pages, into public
 * structs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/connection/options.h"
#include "client/kvcobra-operator.h"
#include "client/operator/operator_call.h"

/* A status in the making. Lists have items of the caller's size. */
struct status_api_build {
    kvc_status *status;
    struct options_list tenants, spaces, devices;
};

static int status_api_add_tenants(struct options_list *list, const Kvcobra__StatusReply *got)
{
    if (list->item_bytes == 0)
        return 0;
    if (options_list_reserve(list, got->n_tenants) < 0)
        return -ENOMEM;

    for (size_t i = 0; i < got->n_tenants; i++) {
        const Kvcobra__TenantStatus *t = got->tenants[i];
        kvc_tenant_status to = {
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

        (void) snprintf(to.name, sizeof(to.name), "%s", t->name);
        options_list_add(list, &to, sizeof(to));
    }
    return 0;
}

static int status_api_add_spaces(struct options_list *list, const Kvcobra__StatusReply *got)
{
    if (list->item_bytes == 0)
        return 0;
    if (options_list_reserve(list, got->n_spaces) < 0)
        return -ENOMEM;

    for (size_t i = 0; i < got->n_spaces; i++) {
        const Kvcobra__SpaceStatus *space = got->spaces[i];
        kvc_space_status to = {
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

        if (!bytes_are(space->table_digest, KVC_DIGEST_BYTES))
            return -EPROTO;

        memcpy(to.table_digest, space->table_digest.data, KVC_DIGEST_BYTES);
        options_list_add(list, &to, sizeof(to));
    }
    return 0;
}

static int status_api_add_devices(struct options_list *list, const Kvcobra__StatusReply *got)
{
    if (list->item_bytes == 0)
        return 0;
    if (options_list_reserve(list, got->n_devices) < 0)
        return -ENOMEM;

    for (size_t i = 0; i < got->n_devices; i++) {
        const Kvcobra__DeviceStatus *d = got->devices[i];
        kvc_device_status to = {
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

        (void) snprintf(to.name, sizeof(to.name), "%s", d->name);
        (void) snprintf(to.uuid, sizeof(to.uuid), "%s", d->uuid);
        (void) snprintf(to.product, sizeof(to.product), "%s", d->product);
        (void) snprintf(to.message, sizeof(to.message), "%s", d->message);
        options_list_add(list, &to, sizeof(to));
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

static int status_api_add_page(struct status_api_build *b, uint64_t cursor, const Kvcobra__StatusReply *got)
{
    int r;

    if (cursor == 0)
        status_api_read_totals(b->status, got);

    r = status_api_add_devices(&b->devices, got);
    if (r < 0)
        return r;

    r = status_api_add_tenants(&b->tenants, got);
    if (r < 0)
        return r;

    r = status_api_add_spaces(&b->spaces, got);
    if (r < 0)
        return r;

    return got->next_cursor != 0 && got->n_tenants + got->n_spaces == 0 ? -EPROTO : 0;
}

/* Gets one page; *cursor becomes 0 after the last. */
static int status_api_get_page(kvc_client *c, uint64_t *cursor, struct status_api_build *b)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    int r;

    get.cursor = *cursor;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_GET_STATUS, &get.base, -1, &reply);
    if (r < 0)
        return r;

    r = status_api_add_page(b, *cursor, reply.message->status);
    if (r == -ENOMEM)
        return fail(&c->error, r, "out of memory for kvcobrad's status");
    if (r < 0)
        return fail(&c->error, r, "kvcobrad's answer is not valid: its status has no digest or no end");

    *cursor = reply.message->status->next_cursor;
    return 0;
}

static int status_api_check_list(size_t item_bytes, size_t oldest, const char *name, struct errmsg *e)
{
    return item_bytes == 0 ? 0 : options_check(item_bytes, oldest, name, e);
}

static int status_api_read_sizes(const kvc_status_sizes *from, kvc_status_sizes *ret, struct errmsg *e)
{
    int r;

    r = options_read(ret, sizeof(*ret), from, sizeof(*ret), "kvc_status_sizes", e);
    if (r < 0)
        return r;

    r = options_check(ret->status_bytes, sizeof(kvc_status), "kvc_status", e);
    if (r < 0)
        return r;

    r = status_api_check_list(ret->tenant_bytes, sizeof(kvc_tenant_status), "kvc_tenant_status", e);
    if (r < 0)
        return r;

    r = status_api_check_list(ret->space_bytes, sizeof(kvc_space_status), "kvc_space_status", e);
    if (r < 0)
        return r;

    return status_api_check_list(ret->device_bytes, sizeof(kvc_device_status), "kvc_device_status", e);
}

static void status_api_build_deinit(struct status_api_build *b)
{
    options_list_deinit(&b->tenants);
    options_list_deinit(&b->spaces);
    options_list_deinit(&b->devices);
    free(b->status);
}

/* The finished status, which owns its lists from here on. */
static kvc_status *status_api_take(struct status_api_build *b)
{
    kvc_status *s = take_ptr(b->status);

    s->n_tenants = b->tenants.n;
    s->n_spaces = b->spaces.n;
    s->n_devices = b->devices.n;
    s->tenants = take_ptr(b->tenants.items);
    s->spaces = take_ptr(b->spaces.items);
    s->devices = take_ptr(b->devices.items);
    return s;
}

int kvc_status_get(kvc_client *c, const kvc_status_sizes *sizes, kvc_status **ret_status)
{
    _cleanup_(status_api_build_deinit) struct status_api_build b = {.status = NULL};
    kvc_status_sizes s;
    uint64_t cursor = 0;
    int r;

    r = operator_enter(c, sizes && ret_status, "kvc_status_get: sizes or ret_status is NULL");
    if (r < 0)
        return r;

    r = status_api_read_sizes(sizes, &s, &c->error);
    if (r < 0)
        return r;

    /* as large as the caller's struct or ours: members that this library does not know stay 0 */
    b.status = calloc(1, s.status_bytes > sizeof(*b.status) ? s.status_bytes : sizeof(*b.status));
    if (!b.status)
        return fail(&c->error, -ENOMEM, "out of memory for kvcobrad's status");

    b.status->struct_bytes = s.status_bytes;
    b.tenants.item_bytes = s.tenant_bytes;
    b.spaces.item_bytes = s.space_bytes;
    b.devices.item_bytes = s.device_bytes;
    do {
        r = status_api_get_page(c, &cursor, &b);
        if (r < 0)
            return r;
    } while (cursor != 0);

    *ret_status = status_api_take(&b);
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
