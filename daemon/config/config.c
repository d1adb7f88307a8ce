/* Defaults and checks of the configuration; see config.h. */
#include "daemon/config/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/gpu_uuid.h"
#include "daemon/config/limits.h"
#include "daemon/config/loopback.h"

#ifndef KVCOBRA_MOVER_PATH
#error "the build defines KVCOBRA_MOVER_PATH"
#endif

void config_init(struct config *c)
{
    *c = (struct config){
        .socket_path = CONFIG_SOCKET_DEFAULT,
        .operator_socket_path = CONFIG_OPERATOR_SOCKET_DEFAULT,
        .listen_fd = -1,
        .operator_fd = -1,
        .ready_fd = -1,
        .socket_mode = 0660,
        .metrics_socket_mode = 0600,
        .backend = EV_AUTO,
        .log_level = 6,
        .pool_bytes = UINT64_C(4) << 30,
        .extent_bytes = UINT64_C(64) << 20,
        .span_bytes = UINT64_C(2) << 20,
        .arena_bytes = UINT64_C(64) << 20,
        .quota_bytes = UINT64_C(4) << 30,
        .lendable_percent = 75,
        .ghosts_per_tenant = 16384,
        .gpu_pool_bytes = UINT64_C(1) << 30,
        .gpu_extent_bytes = UINT64_C(64) << 20,
        .gpu_span_bytes = UINT64_C(2) << 20,
        .gpu_quota_bytes = UINT64_C(1) << 30,
        .gpu_spare_extents = 1,
        .gpu_reuse_ms = 2000,
        .mover_path = KVCOBRA_MOVER_PATH,
        .lease_ms = 30000,
        .handshake_ms = 5000,
        .drain_ms = 600000,
        .work_threads = 2,
        .work_queue_max = 256,
        .work_inline_bytes = 65536,
        .connections_max = 1024,
        .connections_per_uid_max = 1024,
        .sessions_per_tenant_max = 1024,
        .tenants_max = 256,
        .models_per_session_max = 16,
        .leases_per_session_max = 65536,
        .reservations_per_session_max = 8192,
        .lent_extents_per_session_max = 256,
        .tables_max = 256,
        .table_bytes_max = UINT64_C(1) << 30,
    };
}

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

/* What the keys of one kind of pool say, and how they begin. */
struct pool_keys {
    const char *prefix;
    uint64_t pool_bytes, extent_bytes, span_bytes, quota_bytes, guarantee_bytes;
};

static int config_check_pool_bytes(const struct pool_keys *k, const char *what, uint64_t bytes, uint64_t unit,
                                   uint64_t max, struct errmsg *e)
{
    char option[32];

    (void) snprintf(option, sizeof(option), "%s%s", k->prefix, what);
    return config_check_bytes(option, bytes, unit, max, e);
}

static int config_check_pool(const struct config *c, const struct pool_keys *k, struct errmsg *e)
{
    uint64_t n_extents, each;
    int r = config_check_pool_bytes(k, "span-bytes", k->span_bytes, POOL_PAGE_BYTES, POOL_SPAN_BYTES_MAX, e);

    if (r == 0)
        r = config_check_pool_bytes(k, "extent-bytes", k->extent_bytes, k->span_bytes, UINT64_C(1) << 40, e);
    if (r == 0)
        r = config_check_pool_bytes(k, "pool-bytes", k->pool_bytes, k->extent_bytes,
                                    POOL_SPANS_MAX * k->span_bytes, e);
    if (r < 0)
        return r;
    if (k->guarantee_bytes > k->quota_bytes)
        return fail(e, -EINVAL, "--%sguarantee-bytes %" PRIu64 " is more than --%squota-bytes %" PRIu64,
                    k->prefix, k->guarantee_bytes, k->prefix, k->quota_bytes);
    n_extents = k->pool_bytes / k->extent_bytes;
    each = (k->guarantee_bytes + k->extent_bytes - 1) / k->extent_bytes;
    if (each > 0 && c->tenants_max > n_extents / each)
        return fail(e, -EINVAL,
                    "--%sguarantee-bytes %" PRIu64 " for each of --tenants %" PRIu32
                    " is more than --%spool-bytes %" PRIu64 " (a guarantee takes whole extents of %" PRIu64
                    " bytes)",
                    k->prefix, k->guarantee_bytes, c->tenants_max, k->prefix, k->pool_bytes, k->extent_bytes);
    return 0;
}

static int config_check_memory(const struct config *c, struct errmsg *e)
{
    const struct pool_keys host = {
        "", c->pool_bytes, c->extent_bytes, c->span_bytes, c->quota_bytes, c->guarantee_bytes,
    };
    int r = config_check_pool(c, &host, e);

    if (r == 0)
        r = config_check_bytes("arena-bytes", c->arena_bytes, POOL_PAGE_BYTES, UINT64_C(1) << 40, e);
    if (r == 0 && c->quota_bytes <= c->arena_bytes)
        return fail(e, -EINVAL,
                    "--quota-bytes %" PRIu64
                    " has no room for a page beside one client's arena (--arena-bytes %" PRIu64
                    "): raise the quota or make arenas smaller",
                    c->quota_bytes, c->arena_bytes);
    return r;
}

/* Also without a GPU: what is wrong today would be found when one is bought. */
static int config_check_gpus(const struct config *c, struct errmsg *e)
{
    const struct pool_keys gpu = {
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
        return fail(e, -EINVAL, "--gpu needs kvcobra-mover, and --mover says none");
    if (c->gpu_lend && c->gpu_extent_bytes % EXTERNAL_MEMORY_UNIT != 0)
        return fail(e, -EINVAL,
                    "--gpu-lend yes: memory is lent in multiples of %d bytes, --gpu-extent-bytes is %" PRIu64,
                    EXTERNAL_MEMORY_UNIT, c->gpu_extent_bytes);
    if (c->pool_bytes / c->extent_bytes + n * (c->gpu_pool_bytes / c->gpu_extent_bytes) > JOURNAL_EXTENTS_MAX)
        return fail(e, -EINVAL,
                    "--pool-bytes and --gpu-pool-bytes of %" PRIu32 " GPUs make more than %u extents: raise "
                    "--gpu-extent-bytes",
                    n, JOURNAL_EXTENTS_MAX);
    return 0;
}

static int config_check_metrics(const struct config *c, struct errmsg *e)
{
    const char *path = c->metrics_socket_path;
    struct sockaddr_storage address;
    socklen_t bytes;
    struct errmsg why;

    if (path && c->metrics_address)
        return fail(e, -EINVAL,
                    "--metrics-socket and --metrics-address are two places for one thing: give one of them");
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

static int config_check_keep(const struct config *c, struct errmsg *e)
{
    if (c->keep_pool != KEEP_YES)
        return 0;
    if (!c->state_dir)
        return fail(e, -EINVAL,
                    "--keep-pool yes needs --state-dir: pages are of no use without their tables and keys");
#ifndef HAVE_SYSTEMD
    return fail(e, -EOPNOTSUPP, "--keep-pool yes: this kvcobrad was built without libsystemd");
#else
    return 0;
#endif
}

int config_parse_keep(const char *text, enum supervisor_keep *ret)
{
    static const char *const names[] = {[KEEP_AUTO] = "auto", [KEEP_YES] = "yes", [KEEP_NO] = "no"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum supervisor_keep) i;
            return 0;
        }
    }
    return -EINVAL;
}

int config_check(const struct config *c, struct errmsg *e)
{
    int r = config_check_sockets(c, e);

    if (r == 0)
        r = config_check_memory(c, e);
    if (r == 0)
        r = config_check_gpus(c, e);
    if (r == 0)
        r = config_check_keep(c, e);
    if (r < 0)
        return r;
    if (c->lease_ms < 100 || c->lease_ms > 86400000)
        return fail(e, -EINVAL, "--lease-ms %" PRIu64 " is not between 100 and 86400000 (a day)",
                    c->lease_ms);
    if (c->ghosts_per_tenant < 16 || c->ghosts_per_tenant > 1u << 24)
        return fail(e, -EINVAL, "--ghosts %" PRIu32 " is not between 16 and 16777216", c->ghosts_per_tenant);
    if (c->connections_max == 0)
        return fail(e, -EINVAL, "--connections 0 would serve nobody");
    return 0;
}

int config_parse_bytes(const char *text, uint64_t *ret)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    unsigned shift = 0;
    uint64_t v;
    char *end;

    if (*text < '0' || *text > '9') /* strtoull takes signs and blanks */
        return -EINVAL;
    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno == ERANGE)
        return -ERANGE;
    if (*end != '\0') {
        suffix = strchr(suffixes, *end);
        if (!suffix || end[1] != '\0')
            return -EINVAL;
        shift = 10 * (unsigned) (suffix - suffixes + 1);
    }
    if (v > UINT64_MAX >> shift)
        return -ERANGE;
    *ret = v << shift;
    return 0;
}
