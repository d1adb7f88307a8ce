/* Configuration by name; see config_keys.h. The file's syntax is inih's. */
#include "daemon/config/config_keys.h"

#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/limits.h"
#include "daemon/loop/log.h"

enum config_keys_kind {
    KIND_PATH,
    KIND_TEXT,
    KIND_BYTES,
    KIND_U64,
    KIND_U32,
    KIND_INT,
    KIND_MODE,
    KIND_BACKEND,
    KIND_KEEP,
    KIND_BOOL
};

#define DAY_MS UINT64_C(86400000)

static const struct key {
    const char *name;
    enum config_keys_kind kind;
    size_t offset;
    uint64_t min, max;
    bool reloads;
} keys[] = {
#define AT(field) offsetof(struct config, field)
    {"socket", KIND_PATH, AT(socket_path), 0, 0, false},
    {"socket-mode", KIND_MODE, AT(socket_mode), 0, 0777, false},
    {"operator-socket", KIND_PATH, AT(operator_socket_path), 0, 0, false},
    {"metrics-socket", KIND_PATH, AT(metrics_socket_path), 0, 0, false},
    {"metrics-socket-mode", KIND_MODE, AT(metrics_socket_mode), 0, 0777, false},
    {"metrics-address", KIND_TEXT, AT(metrics_address), 0, 0, false},
    {"state-dir", KIND_PATH, AT(state_dir), 0, 0, false},
    {"keep-pool", KIND_KEEP, AT(keep_pool), 0, 0, false},
    {"event-backend", KIND_BACKEND, AT(backend), 0, 0, false},
    {"log-level", KIND_INT, AT(log_level), 0, 7, true},
    {"pool-bytes", KIND_BYTES, AT(pool_bytes), 1, UINT64_MAX, false},
    {"extent-bytes", KIND_BYTES, AT(extent_bytes), 1, UINT64_MAX, false},
    {"span-bytes", KIND_BYTES, AT(span_bytes), 1, UINT64_MAX, false},
    {"arena-bytes", KIND_BYTES, AT(arena_bytes), 1, UINT64_MAX, false},
    {"quota-bytes", KIND_BYTES, AT(quota_bytes), 1, UINT64_MAX, true},
    {"guarantee-bytes", KIND_BYTES, AT(guarantee_bytes), 0, UINT64_C(1) << 50, false},
    {"lendable", KIND_U32, AT(lendable_percent), 0, 100, true},
    {"table-bytes", KIND_BYTES, AT(table_bytes_max), 1, UINT64_MAX, true},
    {"moments-bytes", KIND_BYTES, AT(moments_bytes_max), 0, UINT64_MAX, true},
    {"ghosts", KIND_U32, AT(ghosts_per_tenant), 16, 1u << 24, false},
    {"gpu", KIND_TEXT, AT(gpu), 0, 0, false},
    {"gpu-pool-bytes", KIND_BYTES, AT(gpu_pool_bytes), 1, UINT64_MAX, false},
    {"gpu-extent-bytes", KIND_BYTES, AT(gpu_extent_bytes), 1, UINT64_MAX, false},
    {"gpu-span-bytes", KIND_BYTES, AT(gpu_span_bytes), 1, UINT64_MAX, false},
    {"gpu-quota-bytes", KIND_BYTES, AT(gpu_quota_bytes), 1, UINT64_MAX, true},
    {"gpu-guarantee-bytes", KIND_BYTES, AT(gpu_guarantee_bytes), 0, UINT64_C(1) << 50, false},
    {"gpu-spare-extents", KIND_U32, AT(gpu_spare_extents), 0, PREALLOCATED_MAX, false},
    {"gpu-lend", KIND_BOOL, AT(gpu_lend), 0, 0, true},
    {"gpu-reuse-ms", KIND_U64, AT(gpu_reuse_ms), 0, DAY_MS, false},
    {"mover", KIND_PATH, AT(mover_path), 0, 0, false},
    {"lease-ms", KIND_U64, AT(lease_ms), 100, DAY_MS, true},
    {"handshake-ms", KIND_U64, AT(handshake_ms), 100, DAY_MS, true},
    {"drain-ms", KIND_U64, AT(drain_ms), 0, 365 * DAY_MS, true},
    {"work-threads", KIND_U32, AT(work_threads), 1, 64, false},
    {"work-queue", KIND_U32, AT(work_queue_max), 1, 1u << 16, false},
    {"work-inline-bytes", KIND_BYTES, AT(work_inline_bytes), 0, UINT64_C(1) << 30, true},
    {"connections", KIND_U32, AT(connections_max), 1, 1u << 20, false},
    {"connections-per-uid", KIND_U32, AT(connections_per_uid_max), 1, 1u << 20, true},
    {"sessions-per-tenant", KIND_U32, AT(sessions_per_tenant_max), 1, 1u << 20, false},
    {"tenants", KIND_U32, AT(tenants_max), 1, 1u << 16, true},
    {"models-per-session", KIND_U32, AT(models_per_session_max), 1, 1u << 16, true},
    {"leases-per-session", KIND_U32, AT(leases_per_session_max), 1, 1u << LEASE_INDEX_BITS, true},
    {"reservations-per-session", KIND_U32, AT(reservations_per_session_max), 1, 1u << 24, true},
    {"lent-extents-per-session", KIND_U32, AT(lent_extents_per_session_max), 1, 1u << 16, true},
    {"tables", KIND_U32, AT(tables_max), 1, 1u << 16, true},
#undef AT
};

enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

static const struct key *config_keys_find(const char *name)
{
    for (size_t i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

/* ---- values ---- */

/* Texts live as long as the configuration. */
static int config_keys_set_text(struct config *c, const struct key *k, const char *value, struct errmsg *e)
{
    const char **at = (const char **) ((char *) c + k->offset);
    char **owned, *copy;

    if (strcmp(value, "none") == 0) {
        *at = NULL;
        return 0;
    }
    if (k->kind == KIND_PATH && value[0] != '/' && value[0] != '.' && !strchr(value, '/'))
        return fail(e, -EINVAL, "%s: \"%s\" is not a path with a folder in it, nor \"none\"", k->name, value);
    copy = strdup(value);
    owned = copy ? reallocarray(c->owned, c->n_owned + 1, sizeof(*owned)) : NULL;
    if (!owned) {
        free(copy);
        return fail(e, -ENOMEM, "out of memory");
    }
    c->owned = owned;
    owned[c->n_owned++] = copy;
    *at = copy;
    return 0;
}

static int config_keys_set_number(struct config *c, const struct key *k, const char *value, struct errmsg *e)
{
    char *at = (char *) c + k->offset;
    uint64_t v;

    if (config_parse_bytes(value, &v) < 0 || v < k->min || v > k->max) {
        if (k->kind == KIND_BYTES)
            return fail(e, -EINVAL, "%s: \"%s\" is not a size such as 65536, 64K, 64M or 2G", k->name, value);
        return fail(e, -EINVAL, "%s: \"%s\" is not a number from %" PRIu64 " to %" PRIu64, k->name, value,
                    k->min, k->max);
    }
    if (k->kind == KIND_BYTES || k->kind == KIND_U64)
        *(uint64_t *) at = v;
    else if (k->kind == KIND_U32)
        *(uint32_t *) at = (uint32_t) v;
    else
        *(int *) at = (int) v;
    return 0;
}

static int config_keys_set_mode(struct config *c, const struct key *k, const char *value, struct errmsg *e)
{
    char *end;
    unsigned long v = strtoul(value, &end, 8);

    if (*value < '0' || *value > '7' || *end != '\0' || v > k->max)
        return fail(e, -EINVAL, "%s: \"%s\" is not an octal mode up to 0777", k->name, value);
    *(mode_t *) ((char *) c + k->offset) = (mode_t) v;
    return 0;
}

static int config_keys_set_bool(struct config *c, const struct key *k, const char *value, struct errmsg *e)
{
    bool yes = strcmp(value, "yes") == 0;

    if (!yes && strcmp(value, "no") != 0)
        return fail(e, -EINVAL, "%s: \"%s\" is neither yes nor no", k->name, value);
    *(bool *) ((char *) c + k->offset) = yes;
    return 0;
}

int config_set(struct config *c, const char *name, const char *value, struct errmsg *e)
{
    const struct key *k = config_keys_find(name);

    if (!k)
        return fail(e, -ENOENT, "there is no setting \"%.60s\"; kvcobrad.conf(5) has them all", name);
    switch (k->kind) {
    case KIND_PATH:
    case KIND_TEXT:
        return config_keys_set_text(c, k, value, e);
    case KIND_MODE:
        return config_keys_set_mode(c, k, value, e);
    case KIND_BACKEND:
        if (ev_backend_from_name(value, &c->backend) < 0)
            return fail(e, -EINVAL, "%s: \"%s\" is none of auto, io_uring, epoll", name, value);
        return 0;
    case KIND_KEEP:
        if (config_parse_keep(value, &c->keep_pool) < 0)
            return fail(e, -EINVAL, "%s: \"%s\" is none of auto, yes, no", name, value);
        return 0;
    case KIND_BOOL:
        return config_keys_set_bool(c, k, value, e);
    case KIND_BYTES:
    case KIND_U64:
    case KIND_U32:
    case KIND_INT:
        break;
    }
    return config_keys_set_number(c, k, value, e);
}

void config_deinit(struct config *c)
{
    for (size_t i = 0; i < c->n_owned; i++)
        free(c->owned[i]);
    free(c->owned);
    c->owned = NULL;
    c->n_owned = 0;
}

/* ---- the file ---- */

struct reading {
    struct config *config;
    bool seen[N_KEYS];
    struct errmsg error;
    int r;
};

/* inih's convention: 0 is failure; it goes on, the first one counts. */
static int config_keys_on_line(void *user, const char *section, const char *name, const char *value)
{
    struct reading *f = user;
    const struct key *k = config_keys_find(name);

    if (f->r < 0)
        return 0;
    if (section[0] != '\0')
        f->r = fail(&f->error, -EINVAL, "there are no sections in this file, so no [%.60s]", section);
    else if (k && f->seen[k - keys])
        f->r = fail(&f->error, -EINVAL, "%s is set a second time", name);
    else
        f->r = config_set(f->config, name, value ? value : "", &f->error);
    if (f->r == -ENOENT)
        f->r = -EINVAL;
    if (k)
        f->seen[k - keys] = true;
    return f->r == 0;
}

int config_load(struct config *c, const char *path, struct errmsg *e)
{
    struct reading f = {.config = c};
    int line;

    errno = 0;
    line = ini_parse(path, config_keys_on_line, &f);
    if (line < 0)
        return fail(e, errno ? -errno : -EIO, "cannot read %s: %s", path, strerror(errno ? errno : EIO));
    if (line > 0)
        return fail(e, f.r < 0 ? f.r : -EINVAL, "%s, line %d: %.300s", path, line,
                    f.error.text[0] ? f.error.text : "this is not \"key = value\"");
    return 0;
}

/* ---- reload ---- */

static size_t config_keys_value_bytes(const struct key *k)
{
    switch (k->kind) {
    case KIND_BYTES:
    case KIND_U64:
        return sizeof(uint64_t);
    case KIND_MODE:
        return sizeof(mode_t);
    case KIND_BACKEND:
        return sizeof(enum ev_backend);
    case KIND_KEEP:
        return sizeof(enum supervisor_keep);
    case KIND_BOOL:
        return sizeof(bool);
    case KIND_U32:
    case KIND_INT:
    case KIND_PATH:
    case KIND_TEXT:
        break;
    }
    return sizeof(uint32_t);
}

static bool config_keys_differs(const struct config *a, const struct config *b, const struct key *k)
{
    const char *pa = (const char *) a + k->offset, *pb = (const char *) b + k->offset;
    const char *ta, *tb;

    if (k->kind != KIND_PATH && k->kind != KIND_TEXT)
        return memcmp(pa, pb, config_keys_value_bytes(k)) != 0;
    ta = *(const char *const *) pa;
    tb = *(const char *const *) pb;
    return ta && tb ? strcmp(ta, tb) != 0 : ta != tb;
}

void config_reload(struct config *c, const struct config *fresh)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *k = &keys[i];

        if (!config_keys_differs(c, fresh, k))
            continue;
        if (k->reloads)
            memcpy((char *) c + k->offset, (const char *) fresh + k->offset, config_keys_value_bytes(k));
        log_event(k->reloads ? LOG_INFO : LOG_WARNING,
                  k->reloads ? "setting-changed" : "setting-needs-restart", "key=%s", k->name);
    }
}
