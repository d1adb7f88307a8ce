/* Defaults, and the checks of settings against each other; see config.h. */
#include "daemon/config/config.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/account_name.h"
#include "daemon/config/gpu_uuid.h"
#include "daemon/config/id_lookup.h"
#include "daemon/config/limits.h"
#include "daemon/config/loopback.h"
#include "daemon/config/settings.h"

void config_init(struct config *c)
{
    *c = (struct config){.listen_fd = -1, .operator_fd = -1, .ready_fd = -1, .operator_gid = (gid_t) -1};
    settings_init(settings, settings_n, c);
}

/*
 * An extent is one tenant's, so a pool of few extents is a pool for few tenants. A pool of 4 GiB or more has
 * extents of 64 MiB; a smaller one has at least 64 extents, unless that would be less than a span.
 */
static uint64_t config_extent_bytes(uint64_t pool_bytes, uint64_t span_bytes)
{
    const uint64_t largest = UINT64_C(64) << 20;
    uint64_t n_spans = pool_bytes / span_bytes, n = n_spans / CONFIG_EXTENTS_MANY;

    if (pool_bytes / CONFIG_EXTENTS_MANY >= largest)
        return largest;
    while (n > 1 && n_spans % n != 0) /* extents fill the pool exactly */
        n--;
    return n > 1 ? n * span_bytes : span_bytes;
}

bool config_has_few_extents(const struct config *c, struct errmsg *e)
{
    uint64_t n = c->pool_bytes / c->extent_bytes;

    if (n >= CONFIG_EXTENTS_FEW || n >= c->tenants_max)
        return false;
    (void) fail(
        e, 0,
        "the pool has %" PRIu64 " extents, and an extent has pages of one tenant: at most %" PRIu64
        " tenants can have pages at a time. Raise --pool-bytes or lower --extent-bytes, or lower --tenants",
        n, n);
    return true;
}

void config_fill_derived(struct config *c)
{
    if (c->extent_bytes == 0 && c->span_bytes > 0) /* config_check() refuses a span of 0 bytes */
        c->extent_bytes = config_extent_bytes(c->pool_bytes, c->span_bytes);
    if (c->quota_bytes == 0)
        c->quota_bytes = c->pool_bytes > c->arena_bytes ? c->pool_bytes : c->pool_bytes + c->arena_bytes;
    if (c->gpu_quota_bytes == 0)
        c->gpu_quota_bytes = c->gpu_pool_bytes;
    if (c->disk_quota_bytes == 0)
        c->disk_quota_bytes = c->disk_bytes;
}

static int config_resolve_cluster_user(struct config *c, struct errmsg *e)
{
    struct errmsg why = {""};
    uint32_t uid;
    int r;

    c->cluster_uid = geteuid();
    if (!c->cluster_user)
        return 0;

    r = id_lookup_user(c->cluster_user, &uid, &why);
    if (r < 0)
        return fail(e, r, "--cluster-user: %s", why.text);

    c->cluster_uid = uid;
    return 0;
}

int config_resolve(struct config *c, struct errmsg *e)
{
    struct errmsg why = {""};
    uint32_t gid;
    int r = config_resolve_cluster_user(c, e);

    if (r < 0 || !c->operator_group)
        return r;

    r = id_lookup_group(c->operator_group, &gid, &why);
    if (r < 0)
        return fail(e, r, "--operator-group: %s", why.text);

    c->operator_gid = gid;
    return 0;
}

/* ---- pools ---- */

static int config_check_bytes(const char *option, uint64_t bytes, uint64_t unit, uint64_t max,
                              struct errmsg *e)
{
    if (bytes == 0 || bytes % unit != 0)
        return fail(e, -EINVAL, "--%s %" PRIu64 " is not a positive multiple of %" PRIu64, option, bytes,
                    unit);
    if (bytes > max)
        return fail(e, -EINVAL, "--%s %" PRIu64 " is more than %" PRIu64, option, bytes, max);
    return 0;
}

/* The settings of one pool, and the prefix of their names. */
struct config_pool_keys {
    const char *prefix;
    uint64_t pool_bytes, extent_bytes, span_bytes, quota_bytes, guarantee_bytes;
};

static int config_check_pool_bytes(const struct config_pool_keys *k, const char *key, uint64_t bytes,
                                   uint64_t unit, uint64_t max, struct errmsg *e)
{
    char option[32];

    (void) snprintf(option, sizeof(option), "%s%s", k->prefix, key);
    return config_check_bytes(option, bytes, unit, max, e);
}

static uint64_t config_extents(const struct config_pool_keys *k, uint64_t bytes)
{
    return bytes / k->extent_bytes + (bytes % k->extent_bytes > 0);
}

/* Adds the extents of the section's guarantee to *@n_guaranteed. */
static int config_check_section(const struct config_pool_keys *k, const struct tenant_section *s,
                                uint64_t *n_guaranteed, struct errmsg *e)
{
    const struct tenant_limit *l = k->prefix[0] == '\0' ? &s->host : &s->gpu;
    uint64_t quota = l->has_quota ? l->quota_bytes : k->quota_bytes;
    uint64_t guarantee = l->has_guarantee ? l->guarantee_bytes : k->guarantee_bytes;

    if (guarantee > quota)
        return fail(e, -EINVAL,
                    "[tenant %s]: its %sguarantee-bytes %" PRIu64 " is more than its %squota-bytes %" PRIu64,
                    s->name, k->prefix, guarantee, k->prefix, quota);
    *n_guaranteed += config_extents(k, guarantee);
    return 0;
}

/* A guarantee takes whole extents. The guarantees of all tenants together must fit the pool. */
static int config_check_guarantees(const struct config *c, const struct config_pool_keys *k, struct errmsg *e)
{
    uint64_t n_extents = k->pool_bytes / k->extent_bytes, n_guaranteed = 0, n_each;
    uint32_t n_others = c->tenants_max - c->tenants.n_sections; /* config_check_tenants() */

    if (k->guarantee_bytes > k->quota_bytes)
        return fail(e, -EINVAL, "--%sguarantee-bytes %" PRIu64 " is more than --%squota-bytes %" PRIu64,
                    k->prefix, k->guarantee_bytes, k->prefix, k->quota_bytes);

    for (uint32_t i = 0; i < c->tenants.n_sections; i++) {
        int r = config_check_section(k, &c->tenants.sections[i], &n_guaranteed, e);

        if (r < 0)
            return r;
    }

    if (n_guaranteed > n_extents)
        return fail(e, -EINVAL,
                    "the %sguarantee-bytes of the tenants in the file are %" PRIu64
                    " extents, and --%spool-bytes %" PRIu64 " has %" PRIu64,
                    k->prefix, n_guaranteed, k->prefix, k->pool_bytes, n_extents);

    n_each = config_extents(k, k->guarantee_bytes);
    if (n_each > 0 && n_others > (n_extents - n_guaranteed) / n_each)
        return fail(e, -EINVAL,
                    "--%sguarantee-bytes %" PRIu64 " for each of %" PRIu32
                    " other tenants of --tenants %" PRIu32 " is more than --%spool-bytes %" PRIu64
                    " has beside the %" PRIu64
                    " extents of tenants in the file (a guarantee takes whole extents of %" PRIu64 " bytes)",
                    k->prefix, k->guarantee_bytes, n_others, c->tenants_max, k->prefix, k->pool_bytes,
                    n_guaranteed, k->extent_bytes);
    return 0;
}

static int config_check_pool(const struct config *c, const struct config_pool_keys *k, struct errmsg *e)
{
    int r = config_check_pool_bytes(k, "span-bytes", k->span_bytes, POOL_PAGE_BYTES, POOL_SPAN_BYTES_MAX, e);

    if (r < 0)
        return r;

    r = config_check_pool_bytes(k, "extent-bytes", k->extent_bytes, k->span_bytes, UINT64_C(1) << 40, e);
    if (r < 0)
        return r;

    r = config_check_pool_bytes(k, "pool-bytes", k->pool_bytes, k->extent_bytes,
                                POOL_SPANS_MAX * k->span_bytes, e);
    if (r < 0)
        return r;

    return config_check_guarantees(c, k, e);
}

static int config_check_memory(const struct config *c, struct errmsg *e)
{
    const struct config_pool_keys host = {
        "", c->pool_bytes, c->extent_bytes, c->span_bytes, c->quota_bytes, c->guarantee_bytes,
    };
    int r = config_check_pool(c, &host, e);

    if (r < 0)
        return r;

    r = config_check_bytes("arena-bytes", c->arena_bytes, POOL_PAGE_BYTES, UINT64_C(1) << 40, e);
    if (r < 0)
        return r;

    if (c->arenas_bytes < c->arena_bytes)
        return fail(e, -EINVAL,
                    "--arenas-bytes %" PRIu64
                    ", of all clients, is less than one client's arena (--arena-bytes "
                    "%" PRIu64 "): raise it or make arenas smaller",
                    c->arenas_bytes, c->arena_bytes);

    if (c->quota_bytes <= c->arena_bytes)
        return fail(e, -EINVAL,
                    "--quota-bytes %" PRIu64
                    " has no room for a page beside one client's arena (--arena-bytes %" PRIu64
                    "): raise the quota or make arenas smaller",
                    c->quota_bytes, c->arena_bytes);

    return 0;
}

/* Checked without a GPU, too: a mistake is reported now, not when the host gets its first GPU. */
static int config_check_gpus(const struct config *c, struct errmsg *e)
{
    const struct config_pool_keys gpu = {
        "gpu-",
        c->gpu_pool_bytes,
        c->gpu_extent_bytes,
        c->gpu_span_bytes,
        c->gpu_quota_bytes,
        c->gpu_guarantee_bytes,
    };
    char uuids[CONFIG_GPUS_MAX][GPU_UUID_BYTES];
    struct errmsg why;
    uint32_t n = 0;
    int r = config_check_pool(c, &gpu, e);

    if (r < 0)
        return r;

    if (gpu_uuid_list(c->gpu, CONFIG_GPUS_MAX, uuids, &n, &why) < 0)
        return fail(e, -EINVAL, "--gpu: %s", why.text);
    if (n > 0 && !c->mover_path)
        return fail(e, -EINVAL,
                    "--gpu needs kvcobra-mover, and --mover is none: give the path of kvcobra-mover");

    if (c->pool_bytes / c->extent_bytes + n * (c->gpu_pool_bytes / c->gpu_extent_bytes) > JOURNAL_EXTENTS_MAX)
        return fail(e, -EINVAL,
                    "--pool-bytes and --gpu-pool-bytes of %" PRIu32
                    " GPUs make more than %u extents: raise --gpu-extent-bytes",
                    n, JOURNAL_EXTENTS_MAX);

    return 0;
}

/* ---- tenants ---- */

static bool config_has_members(const struct tenant_rules *t, uint32_t section)
{
    for (uint32_t i = 0; i < t->n_users; i++)
        if (t->users[i].section == section)
            return true;
    for (uint32_t i = 0; i < t->n_groups; i++)
        if (t->groups[i].section == section)
            return true;
    return false;
}

/* Before the checks of the pools, which need room for the sections in tenants_max. */
static int config_check_tenants(const struct config *c, struct errmsg *e)
{
    if (c->tenants.n_sections > c->tenants_max)
        return fail(e, -EINVAL, "the file has %" PRIu32 " tenants, and --tenants is %" PRIu32,
                    c->tenants.n_sections, c->tenants_max);

    for (uint32_t i = 0; i < c->tenants.n_sections; i++) {
        const struct tenant_section *s = &c->tenants.sections[i];

        if (!config_has_members(&c->tenants, i))
            return fail(e, -EINVAL, "[tenant %s] has neither users nor groups", s->name);
        if (s->host.has_quota && s->host.quota_bytes <= c->arena_bytes)
            return fail(e, -EINVAL,
                        "[tenant %s]: its quota-bytes %" PRIu64
                        " has no room for a page beside one client's arena (--arena-bytes %" PRIu64 ")",
                        s->name, s->host.quota_bytes, c->arena_bytes);
    }

    return 0;
}

/* ---- sockets ---- */

static int config_check_metrics(const struct config *c, struct errmsg *e)
{
    const char *path = c->metrics_socket_path;
    struct sockaddr_storage address;
    socklen_t bytes;
    struct errmsg why;

    if (path && c->metrics_address)
        return fail(e, -EINVAL,
                    "--metrics-socket and --metrics-address exclude each other: give one of them");

    if (path && ((c->socket_path && strcmp(path, c->socket_path) == 0) ||
                 (c->operator_socket_path && strcmp(path, c->operator_socket_path) == 0)))
        return fail(e, -EINVAL, "--metrics-socket is the path of another socket: %s", path);

    if (c->metrics_address && loopback_parse(c->metrics_address, &address, &bytes, &why) < 0)
        return fail(e, -EINVAL, "--metrics-address: %s", why.text);

    return 0;
}

static int config_check_sockets(const struct config *c, struct errmsg *e)
{
    if (!c->socket_path && c->listen_fd < 0)
        return fail(e, -EINVAL, "there is no client socket: give --socket or --listen-fd");
    if (c->socket_path && c->operator_socket_path && strcmp(c->socket_path, c->operator_socket_path) == 0)
        return fail(e, -EINVAL, "--socket and --operator-socket are the same path: %s", c->socket_path);
    return config_check_metrics(c, e);
}

/* ---- restart, ranges ---- */

static int config_check_keep(const struct config *c, struct errmsg *e)
{
    if (c->keep_pool != KEEP_YES)
        return 0;
    if (!c->state_dir)
        return fail(e, -EINVAL,
                    "--keep-pool yes needs --state-dir: without tables and keys, pages cannot be read");
#ifndef HAVE_SYSTEMD
    return fail(e, -EOPNOTSUPP, "--keep-pool yes: this kvcobrad was built without libsystemd");
#else
    return 0;
#endif
}

static int config_check_tier(const struct config *c, struct errmsg *e)
{
    if (c->disk_dir && !c->state_dir && !c->key_file)
        return fail(e, -EINVAL,
                    "--disk-dir needs --state-dir or --key-file: with keys that end with kvcobrad, no later "
                    "one can read the disk");
    if (c->disk_dir && c->state_dir && strcmp(c->disk_dir, c->state_dir) == 0)
        return fail(e, -EINVAL, "--disk-dir and --state-dir are the same folder: %s", c->disk_dir);
    return 0;
}

bool config_has_cluster_tenant(const struct config *c, const char *tenant)
{
    const char *at = c->cluster_tenants;
    size_t bytes = strlen(tenant);

    while (at && *at) {
        size_t n = strcspn(at, ",");

        if (n == bytes && memcmp(at, tenant, n) == 0)
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* Each name is one that a tenant can have. */
static int config_check_cluster_tenants(const struct config *c, struct errmsg *e)
{
    for (const char *at = c->cluster_tenants; at;) {
        size_t n = strcspn(at, ",");
        char name[ACCOUNT_NAME_BYTES];
        uint32_t uid;

        if (n > 0 && n < sizeof(name)) {
            memcpy(name, at, n);
            name[n] = '\0';
        }
        if (n == 0 || n >= sizeof(name) ||
            (!account_name_uid(name, &uid) && !tenant_rules_find(&c->tenants, name)))
            return fail(e, -EINVAL,
                        "--cluster-tenants: \"%.*s\" is not a tenant: give \"uid-N\" or names of sections "
                        "[tenant NAME] of the configuration, with commas between them",
                        n < 60 ? (int) n : 60, at);
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    return 0;
}

static int config_check_cluster(const struct config *c, struct errmsg *e)
{
    if (!c->cluster_socket)
        return 0;
    if (!c->key_file)
        return fail(e, -EINVAL,
                    "--cluster-socket needs --key-file: with the secret that this host made for itself, no "
                    "other host finds or opens its pages");
    if (!c->cluster_tenants || c->cluster_tenants[0] == '\0')
        return fail(e, -EINVAL,
                    "--cluster-socket needs --cluster-tenants: only tenants that it names reach the "
                    "cluster");
    if ((c->socket_path && strcmp(c->cluster_socket, c->socket_path) == 0) ||
        (c->operator_socket_path && strcmp(c->cluster_socket, c->operator_socket_path) == 0) ||
        (c->metrics_socket_path && strcmp(c->cluster_socket, c->metrics_socket_path) == 0))
        return fail(e, -EINVAL, "--cluster-socket is the path of another socket: %s", c->cluster_socket);
    return config_check_cluster_tenants(c, e);
}

/* The value of a setting that has a range. */
static uint64_t config_number(const struct config *c, const struct setting *s)
{
    const char *at = (const char *) c + s->offset;

    assert(settings_has_range(s));
    return s->kind == SETTING_U32 ? *(const uint32_t *) at : *(const uint64_t *) at;
}

static int config_check_ranges(const struct config *c, struct errmsg *e)
{
    for (size_t i = 0; i < settings_n; i++) {
        const struct setting *s = &settings[i];
        uint64_t v;

        if (!settings_has_range(s))
            continue;

        v = config_number(c, s);
        if (v < s->min || v > s->max)
            return fail(e, -EINVAL, "--%s %" PRIu64 " is not between %" PRIu64 " and %" PRIu64, s->name, v,
                        s->min, s->max);
    }

    return 0;
}

int config_check(const struct config *c, struct errmsg *e)
{
    int r = config_check_sockets(c, e);

    if (r < 0)
        return r;

    r = config_check_tenants(c, e);
    if (r < 0)
        return r;

    r = config_check_memory(c, e);
    if (r < 0)
        return r;

    r = config_check_gpus(c, e);
    if (r < 0)
        return r;

    r = config_check_keep(c, e);
    if (r == 0)
        r = config_check_tier(c, e);
    if (r == 0)
        r = config_check_cluster(c, e);
    if (r < 0)
        return r;

    return config_check_ranges(c, e);
}
