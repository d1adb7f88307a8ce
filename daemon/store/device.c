/* See device.h. */
#include "daemon/store/device.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/share.h"
#include "daemon/store/space.h"
#include "proto/page.h"

_Static_assert(crypto_shorthash_KEYBYTES == ADVICE_HASH_KEY_BYTES, "SipHash-2-4");
_Static_assert(crypto_shorthash_BYTES == sizeof(uint64_t), "SipHash-2-4");

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
    for (uint32_t i = 0; i < d->n; i++)
        randombytes_buf(d->list[i].advice_hash_key, sizeof(d->list[i].advice_hash_key));
    devices_configure(d, c);
}

void devices_deinit(struct devices *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        d->list[i].advice = advice_free(d->list[i].advice);
        pool_deinit(&d->list[i].store.pool);
    }
    d->n = 0;
}

void devices_configure(struct devices *d, const struct config *c)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct device *x = &d->list[i];

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

int devices_account(struct devices *d, const struct tenant_peer *peer, struct account **ret, struct errmsg *e)
{
    const struct tenant_rules *rules = &d->config->tenants;
    const struct tenant_section *s = tenant_rules_match(rules, peer);
    int r;

    if (!s)
        return accounts_get(&d->accounts, peer->uid, ret, e);

    r = accounts_get_named(&d->accounts, s->name, ret, e);
    if (r < 0)
        return r;

    account_note_member(*ret, peer->uid);
    if (tenant_rules_has_user(rules, s, 0) || tenant_rules_has_user(rules, s, getuid()))
        account_note_member(*ret, 0);
    return 0;
}

/* ---- forgetting ---- */

static bool devices_is_idle(const struct devices *d, const struct tenant *t)
{
    const struct tenant_section *s;

    if (t->n_refs > 0 || t->page_bytes > 0 || t->arena_bytes > 0 || t->awaited_extent != 0 ||
        t->quota_is_set || t->guarantee_is_set)
        return false;

    s = tenant_rules_find(&d->config->tenants, t->account->name);
    return !s || device_section_guarantee(t->device, s) == 0;
}

/*
 * @link: to an idle tenant without extents. A process that still maps its index or control page has no
 * session, so it asks for new ones.
 */
static void devices_forget(struct devices *d, struct store *st, struct tenant **link)
{
    struct tenant *t = *link;

    d->forgotten_evictions += t->counters.evictions;
    if (!t->has_series) {
        d->forgotten_others.hits += t->counters.hits;
        d->forgotten_others.misses += t->counters.misses;
        d->forgotten_others.evictions += t->counters.evictions;
        for (size_t i = 0; i < sizeof(t->counters.misses_by) / sizeof(t->counters.misses_by[0]); i++)
            d->forgotten_others.misses_by[i] += t->counters.misses_by[i];
    }

    d->n_series -= t->has_series;
    d->n_advised -= t->has_advice;
    st->n_tenants--;
    *link = t->next;
    (void) tenant_free(t);
}

/* False: no tenant of @st is idle and without extents. One extent of an idle tenant is destroyed then. */
static bool devices_forget_oldest(struct devices *d, struct store *st)
{
    struct tenant **oldest = NULL, *with_extents = NULL;

    for (struct tenant **link = &st->tenants; *link; link = &(*link)->next) {
        if (!devices_is_idle(d, *link))
            continue;
        if ((*link)->n_extents > 0)
            with_extents = *link;
        else if (!oldest || (*link)->number < (*oldest)->number)
            oldest = link;
    }

    if (oldest)
        devices_forget(d, st, oldest);
    else if (with_extents)
        (void) share_destroy_one(st, with_extents);
    return oldest != NULL;
}

static bool devices_forget_idle_of(struct devices *d, struct store *st, uint64_t now_ms, uint64_t idle_ms)
{
    bool is_left = false, destroyed = false;

    for (struct tenant **link = &st->tenants; *link;) {
        struct tenant *t = *link;
        bool idle = devices_is_idle(d, t);

        if (!idle)
            t->idle_since_ms = 0;
        else if (t->idle_since_ms == 0)
            t->idle_since_ms = now_ms;
        if (idle && t->n_extents == 0 && now_ms - t->idle_since_ms >= idle_ms) {
            devices_forget(d, st, link);
            continue;
        }

        if (idle && t->n_extents > 0 && !destroyed)
            destroyed = share_destroy_one(st, t);
        is_left |= idle;
        link = &t->next;
    }

    return is_left;
}

bool devices_forget_idle(struct devices *d, uint64_t now_ms, uint64_t idle_ms)
{
    bool is_left = false;

    for (uint32_t i = 0; i < d->n; i++)
        is_left |= devices_forget_idle_of(d, &d->list[i].store, now_ms, idle_ms);
    return is_left;
}

/* ---- tenants ---- */

struct tenant_limit devices_limit(const struct device *x, const struct config *c, const char *account)
{
    const struct tenant_section *s = tenant_rules_find(&c->tenants, account);
    struct tenant_limit l = {0};

    if (s)
        l = device_is_gpu(x) ? s->gpu : s->host;
    if (!l.has_quota)
        l.quota_bytes = device_is_gpu(x) ? c->gpu_quota_bytes : c->quota_bytes;
    if (!l.has_guarantee)
        l.guarantee_bytes = x->guarantee_bytes;
    return l;
}

int devices_tenant(struct devices *d, struct device *x, struct account *a, struct tenant **ret,
                   struct errmsg *e)
{
    const struct tenant_limit limit = devices_limit(x, d->config, a->name);
    const struct tenant_options o = {
        .number = d->n_tenants,
        .account = a,
        .device = x,
        .device_name = device_is_gpu(x) ? x->name : NULL,
        .quota_bytes = limit.quota_bytes,
        .guarantee_bytes = limit.guarantee_bytes,
        .secret = d->secret,
        .boot_id = d->boot_id,
        .n_ghosts = d->config->ghosts_per_tenant,
    };
    struct store *st = &x->store;
    struct tenant *t;
    int r;

    for (t = st->tenants; t; t = t->next) {
        if (t->account == a) {
            *ret = t;
            return 0;
        }
    }

    if (!d->is_restoring && st->n_tenants >= d->config->tenants_max && !devices_forget_oldest(d, st))
        return fail(e, -EDQUOT,
                    "%s has %" PRIu32
                    " tenants with sessions, pages or quotas of their own, the maximum: raise --tenants",
                    x->name, st->n_tenants);

    r = tenant_new(&o, &t, e);
    if (r < 0)
        return r;

    d->n_tenants++;
    t->has_series = d->n_series < TENANT_SERIES_MAX;
    d->n_series += t->has_series;
    t->has_advice = d->n_advised < ADVICE_TENANTS_MAX;
    d->n_advised += t->has_advice;
    t->next = st->tenants;
    st->tenants = t;
    st->n_tenants++;
    /* of a socket that only its owner may use, as that of --user, it is true of each tenant */
    if (!a->isolated && (d->config->socket_mode & (S_IRWXG | S_IRWXO)) != 0)
        log_event(LOG_NOTICE, "not-isolated",
                  "tenant=%s isolation=none"
                  " message=\"a client of root or of the user of kvcobrad can write the memory that kvcobrad "
                  "shares with this tenant: run such clients and kvcobrad as different users, not root\"",
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

void device_note_lookup(struct tenant *t, const struct space *space, unsigned page_class,
                        const struct chunk_key *key, bool found, uint64_t now_ms)
{
    const struct page_layout *l = &space->layout;
    const struct geometry *g = &l->table->geometry;
    uint64_t numbers = (uint64_t) CHUNK_TOKENS * g->n_layers * l->shard.n_heads * g->d * 2, hash;
    uint64_t bytes = l->slot_bytes[page_class];

    (void) crypto_shorthash((unsigned char *) &hash, key->bytes, sizeof(key->bytes),
                            t->device->advice_hash_key);
    if (t->has_advice)
        advice_count_first(&t->advice, hash, numbers, bytes, found, now_ms);
    advice_count_first(&t->device->advice, hash, numbers, bytes, found, now_ms);
}
