/* See device.h. */
#include "daemon/store/device.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/loop/log.h"

void devices_init(struct devices *d, const struct config *c)
{
    char uuids[DEVICES_MAX - 1][GPU_UUID_BYTES];
    uint32_t n_gpus = 0;

    d->config = c;
    d->serials = (struct pool_serials){.next_extent = 1};
    d->list[0] = (struct device){
        .store.place = PLACE_NONE,
        .name = "cpu",
        .pool_bytes = c->pool_bytes,
        .extent_bytes = c->extent_bytes,
        .unit_bytes = c->span_bytes,
        .state = DEVICE_READY,
    };
    (void) gpu_uuid_list(c->gpu, DEVICES_MAX - 1, uuids, &n_gpus, NULL);
    for (uint32_t i = 0; i < n_gpus; i++) {
        struct device *x = &d->list[i + 1];

        *x = (struct device){
            .number = i + 1,
            .store.place = PLACE_NONE,
            .pool_bytes = c->gpu_pool_bytes,
            .extent_bytes = c->gpu_extent_bytes,
            .unit_bytes = c->gpu_span_bytes,
            .state = DEVICE_OPENING,
        };
        (void) snprintf(x->name, sizeof(x->name), "gpu%" PRIu32, i);
        memcpy(x->uuid, uuids[i], sizeof(x->uuid));
    }

    d->n = 1 + n_gpus;
    devices_configure(d, c);
}

void devices_deinit(struct devices *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        pool_deinit(&d->list[i].store.pool);
    d->n = 0;
}

void devices_configure(struct devices *d, const struct config *c)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct device *x = &d->list[i];

        x->quota_bytes = i > 0 ? c->gpu_quota_bytes : c->quota_bytes;
        x->guarantee_bytes = i > 0 ? c->gpu_guarantee_bytes : c->guarantee_bytes;
        x->store.lendable_percent = c->lendable_percent;
    }
}

struct device *devices_find_uuid(struct devices *d, const char *uuid)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (i == 0 ? uuid[0] == '\0' : gpu_uuid_equal(d->list[i].uuid, uuid))
            return &d->list[i];
    return NULL;
}

struct device *devices_unknown(struct devices *d)
{
    return d->n > 1 && d->list[1].uuid[0] == '\0' ? &d->list[1] : NULL; /* "first" is the only entry then */
}

struct device *devices_find_name(struct devices *d, const char *name)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (strcmp(d->list[i].name, name) == 0)
            return &d->list[i];
    return NULL;
}

struct device *devices_find_place(struct devices *d, uint32_t place)
{
    for (uint32_t i = 0; place != PLACE_NONE && i < d->n; i++)
        if (d->list[i].store.place == place)
            return &d->list[i];
    return NULL;
}

struct tenant *devices_next_tenant(const struct devices *d, const struct tenant *t)
{
    if (t && t->next)
        return t->next;

    for (uint32_t i = t ? t->device->number + 1 : 0; i < d->n; i++)
        if (d->list[i].store.tenants)
            return d->list[i].store.tenants;
    return NULL;
}

int devices_tenant(struct devices *d, struct device *x, uid_t uid, struct tenant **ret, struct errmsg *e)
{
    const struct tenant_options o = {
        .uid = uid,
        .device = x,
        .device_name = device_is_gpu(x) ? x->name : NULL,
        .quota_bytes = x->quota_bytes,
        .guarantee_bytes = x->guarantee_bytes,
        .secret = d->secret,
        .boot_id = d->boot_id,
        .n_ghosts = d->config->ghosts_per_tenant,
    };
    struct store *st = &x->store;
    struct tenant *t;
    int r;

    for (t = st->tenants; t; t = t->next) {
        if (t->uid == uid) {
            *ret = t;
            return 0;
        }
    }

    if (st->n_tenants >= d->config->tenants_max)
        return fail(e, -EDQUOT, "%s has %" PRIu32 " tenants, the maximum: raise --tenants", x->name,
                    st->n_tenants);

    r = tenant_new(&o, &t, e);
    if (r < 0)
        return r;

    t->number = d->n_tenants++;
    t->next = st->tenants;
    st->tenants = t;
    st->n_tenants++;
    if (!t->isolated)
        log_event(LOG_NOTICE, "not-isolated",
                  "tenant=%s isolation=none"
                  " message=\"this uid can write memory that kvcobrad shares: run kvcobrad as its own user\"",
                  t->name);
    *ret = t;
    return 0;
}

struct tenant *devices_find_tenant(const struct devices *d, const char *name)
{
    for (struct tenant *t = NULL; (t = devices_next_tenant(d, t));)
        if (strcmp(t->name, name) == 0)
            return t;
    return NULL;
}

bool devices_are_valid(const struct devices *d, struct errmsg *e)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (!store_is_valid(&d->list[i].store, e))
            return false;
    return true;
}
