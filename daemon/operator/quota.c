/* See quota.h. */
#include "daemon/operator/quota.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/damage.h"
#include "daemon/config/account_name.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"
#include "daemon/store/evict.h"
#include "daemon/store/share.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables_files.h"

#define TITLE_1 "kvcobra quotas 1\n" /* lines begin with a uid */
#define TITLE "kvcobra quotas 2\n"
_Static_assert(sizeof(TITLE) == sizeof(TITLE_1), "titles of equal length");

enum { FILE_BYTES_MAX = 1 << 23 };

/* ---- the file ---- */

static void quota_print_bytes(FILE *f, bool is_set, uint64_t bytes)
{
    if (is_set)
        (void) fprintf(f, " %" PRIu64, bytes);
    else
        (void) fputs(" -", f);
}

static void quota_print_all(const void *ctx, FILE *f)
{
    const struct server *s = ctx;

    (void) fputs(TITLE, f);
    for (const struct tenant *t = NULL; (t = devices_next_tenant(s->devices, t));) {
        if (!t->quota_is_set && !t->guarantee_is_set)
            continue;

        (void) fputs(t->name, f);
        quota_print_bytes(f, t->quota_is_set, t->quota_bytes);
        quota_print_bytes(f, t->guarantee_is_set, t->guarantee_bytes);
        (void) fputc('\n', f);
    }
}

static bool quota_has_tenant(const struct device *d, const char *account)
{
    for (const struct tenant *t = d->store.tenants; t; t = t->next)
        if (strcmp(t->account->name, account) == 0)
            return true;
    return false;
}

/* Extents that @c guarantees to tenants that do not exist on @d now. */
static uint64_t quota_promised(const struct device *d, const struct config *c)
{
    uint32_t n_others = c->tenants_max > d->store.n_tenants ? c->tenants_max - d->store.n_tenants : 0;
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->tenants.n_sections; i++) {
        const char *name = c->tenants.sections[i].name;

        if (quota_has_tenant(d, name))
            continue;

        n += share_extents(&d->store.pool, devices_limit(d, c, name).guarantee_bytes);
        n_others -= n_others > 0;
    }

    return n + n_others * share_extents(&d->store.pool, d->guarantee_bytes);
}

static bool quota_fits(const struct server *s, const struct tenant *t, uint64_t guarantee)
{
    return share_fits(store_of(t), t, guarantee, quota_promised(t->device, s->config));
}

/*
 * The account and the device of "ACCOUNT" (in host memory) or "ACCOUNT@gpu0", of a user or of a section.
 * Return: 0; -EINVAL: no such name; -ENODEV: no such device.
 */
static int quota_parse_name(struct server *s, const char *text, char name[static ACCOUNT_NAME_BYTES],
                            struct device **ret, struct errmsg *e)
{
    const char *at = strchr(text, '@');
    size_t n = at ? (size_t) (at - text) : strlen(text);
    struct device *d;
    uint32_t uid;

    (void) snprintf(name, ACCOUNT_NAME_BYTES, "%.*s", n < ACCOUNT_NAME_BYTES ? (int) n : 0, text);
    if (!account_name_uid(name, &uid) && !tenant_rules_find(&s->config->tenants, name))
        return fail(e, -EINVAL,
                    "\"%.60s\" is neither uid-N nor a tenant of the configuration, with or without @gpuM",
                    text);

    d = devices_find_name(s->devices, at ? at + 1 : "cpu");
    if (!d || (at && d->number == 0))
        return fail(e, -ENODEV, "there is no device \"%.16s\"", at ? at + 1 : "cpu");

    *ret = d;
    return 0;
}

/* Finds or creates the tenant of that name. Return: see quota_parse_name() and devices_tenant(). */
static int quota_tenant_of(struct server *s, const char *text, struct tenant **ret, struct errmsg *e)
{
    char name[ACCOUNT_NAME_BYTES];
    struct account *a;
    struct device *d;
    int r = quota_parse_name(s, text, name, &d, e);

    if (r < 0)
        return r;

    r = accounts_get_named(&s->devices->accounts, name, &a, e);
    if (r < 0)
        return r;

    r = devices_tenant(s->devices, d, a, ret, e);
    (void) account_unref(a);
    return r;
}

static bool quota_read_bytes(const char *text, bool *ret_is_set, uint64_t *ret)
{
    char *end;

    *ret_is_set = strcmp(text, "-") != 0;
    if (!*ret_is_set)
        return true;
    if (*text < '0' || *text > '9')
        return false;

    errno = 0;
    *ret = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* @prefix: what the line leaves out at its beginning. */
static int quota_load_line(struct server *s, const char *prefix, const char *line, struct errmsg *e)
{
    char name[TENANT_NAME_BYTES], rest[40], quota_text[24], guarantee_text[24], after;
    uint64_t quota = 0, guarantee = 0;
    bool has_quota, has_guarantee;
    struct tenant *t;
    int r;

    if (sscanf(line, "%39s %23s %23s%c", rest, quota_text, guarantee_text, &after) != 3 ||
        !quota_read_bytes(quota_text, &has_quota, &quota) ||
        !quota_read_bytes(guarantee_text, &has_guarantee, &guarantee) || (has_quota && quota == 0))
        return fail(e, -EBADMSG, "bad line \"%.60s\"", line);

    (void) snprintf(name, sizeof(name), "%s%s", prefix, rest);
    r = quota_tenant_of(s, name, &t, e);
    if (r < 0)
        return r;
    if (has_quota) {
        t->quota_bytes = quota;
        t->quota_is_set = true;
    }

    if (!has_guarantee)
        return 0;
    if (!quota_fits(s, t, guarantee))
        return fail(e, -EBADMSG, "the guarantee of %" PRIu64 " bytes of tenant %s no longer fits the pool",
                    guarantee, t->name);

    t->guarantee_bytes = guarantee;
    t->guarantee_is_set = true;
    return 0;
}

static int quota_load_file(struct server *s, struct errmsg *e)
{
    _cleanup_(freep) char *path = NULL;
    _cleanup_(freep) char *text = NULL;
    const char *prefix = "";
    char *save_ptr = NULL;
    int r = 0;

    if (s->config->state_dir)
        r = tables_files_read_text(s->config, "quotas", FILE_BYTES_MAX, &path, &text, e);
    if (r < 0 || !text)
        return r;

    if (strncmp(text, TITLE_1, strlen(TITLE_1)) == 0) {
        prefix = ACCOUNT_UID_PREFIX;
    } else if (strncmp(text, TITLE, strlen(TITLE)) != 0) {
        log_event(LOG_ERR, "quotas-unreadable", "message=\"not quotas of this version\", ignoring");
        return 0;
    }

    for (char *line = strtok_r(text + strlen(TITLE), "\n", &save_ptr); line;
         line = strtok_r(NULL, "\n", &save_ptr)) {
        r = quota_load_line(s, prefix, line, e);
        if (r < 0 && !damage_is_cause(r))
            return r;
        if (r < 0)
            log_event(LOG_ERR, "quota-ignored", "path=%s message=\"%s\"", path, e->text);
    }
    return 0;
}

/* ---- the configuration ---- */

/* So that the guarantee of a section is kept back for it before its first process connects. */
static void quota_create_guaranteed(struct server *s)
{
    const struct tenant_rules *rules = &s->config->tenants;

    for (uint32_t i = 0; i < rules->n_sections * s->devices->n; i++) {
        struct device *d = &s->devices->list[i % s->devices->n];
        const struct tenant_section *x = &rules->sections[i / s->devices->n];
        char name[TENANT_NAME_BYTES];
        struct errmsg e = {""};
        struct tenant *t;

        (void) snprintf(name, sizeof(name), "%s%s%s", x->name, d->number > 0 ? "@" : "",
                        d->number > 0 ? d->name : "");
        if (device_section_guarantee(d, x) > 0 && quota_tenant_of(s, name, &t, &e) < 0)
            log_event(LOG_ERR, "tenant-not-created", "tenant=%s message=\"%s\"", name, e.text);
    }
}

int quota_load(struct server *s, struct errmsg *e)
{
    int r = quota_load_file(s, e);

    state_writer_set_printer(&s->tables->state, STATE_QUOTAS, quota_print_all, s);
    if (r == 0)
        quota_create_guaranteed(s);
    return r;
}

int quota_check_reload(const struct server *s, const struct config *fresh, struct errmsg *e)
{
    for (uint32_t i = 0; i < s->devices->n; i++) {
        const struct device *d = &s->devices->list[i];
        uint64_t n = quota_promised(d, fresh);

        for (const struct tenant *t = d->store.tenants; t; t = t->next)
            n += share_extents(&d->store.pool,
                               t->guarantee_is_set
                                   ? t->guarantee_bytes
                                   : devices_limit(d, fresh, t->account->name).guarantee_bytes);
        if (n > d->store.pool.n_extents_max)
            return fail(e, -ENOSPC,
                        "all guarantees on %s, with those that operators set, are %" PRIu64
                        " extents, and the pool has %" PRIu32,
                        d->name, n, d->store.pool.n_extents_max);
    }

    return 0;
}

void quota_reload(struct server *s)
{
    devices_configure(s->devices, s->config);
    for (struct tenant *t = NULL; (t = devices_next_tenant(s->devices, t));) {
        struct tenant_limit limit = devices_limit(t->device, s->config, t->account->name);

        if (!t->quota_is_set)
            t->quota_bytes = limit.quota_bytes;
        if (!t->guarantee_is_set)
            t->guarantee_bytes = limit.guarantee_bytes;
    }
    quota_create_guaranteed(s);
}

/* ---- one tenant ---- */

int quota_find(struct server *s, const char *text, struct quota_subject *ret, struct errmsg *e)
{
    struct tenant *t = devices_find_tenant(s->devices, text);
    char name[ACCOUNT_NAME_BYTES];
    struct device *d;

    if (t) {
        *ret = (struct quota_subject){
            .tenant = t,
            .device = t->device,
            .limit = {.quota_bytes = t->quota_bytes, .guarantee_bytes = t->guarantee_bytes},
        };
        return 0;
    }
    if (quota_parse_name(s, text, name, &d, e) < 0)
        return -ENOENT;

    *ret = (struct quota_subject){NULL, d, devices_limit(d, s->config, name)};
    return 0;
}

/* ---- SET_QUOTA ---- */

/* The tenant of that name, which is created if it has not connected yet. */
static int quota_find_or_create(struct request *rq, const char *name, struct tenant **ret)
{
    int r;

    *ret = devices_find_tenant(rq->server->devices, name);
    if (*ret)
        return 0;

    r = quota_tenant_of(rq->server, name, ret, &rq->error);
    return r == -EINVAL || r == -ENODEV ? -ENOENT : r;
}

static int quota_check(struct request *rq, const struct tenant *t, uint64_t quota, uint64_t guarantee)
{
    if (guarantee > quota)
        return fail(&rq->error, -EINVAL,
                    "tenant %s: a guarantee of %" PRIu64 " bytes above its maximum of %" PRIu64, t->name,
                    guarantee, quota);
    if (!quota_fits(rq->server, t, guarantee))
        return fail(&rq->error, -ENOSPC,
                    "a guarantee of %" PRIu64 " bytes (in whole extents of %" PRIu64
                    ") for tenant %s does not fit the pool beside those of others",
                    guarantee, store_of(t)->pool.extent_bytes, t->name);
    return 0;
}

/* Writes the file first: if that fails, nothing has changed. */
static int quota_change(struct request *rq, struct tenant *t, const Kvcobra__SetQuota *m)
{
    struct tenant before = *t;
    int r;

    if (m->quota_bytes != 0) {
        t->quota_bytes = m->quota_bytes;
        t->quota_is_set = true;
    }

    if (m->set_guarantee) {
        t->guarantee_bytes = m->guarantee_bytes;
        t->guarantee_is_set = true;
    }

    r = quota_check(rq, t, t->quota_bytes, t->guarantee_bytes);
    if (r == 0)
        r = state_writer_write(&rq->server->tables->state, STATE_QUOTAS, &rq->error);
    if (r < 0) {
        t->quota_bytes = before.quota_bytes;
        t->quota_is_set = before.quota_is_set;
        t->guarantee_bytes = before.guarantee_bytes;
        t->guarantee_is_set = before.guarantee_is_set;
    }

    return r;
}

static int quota_handle_set(struct request *rq)
{
    const Kvcobra__SetQuota *m = rq->message->set_quota;
    Kvcobra__SetQuotaReply *reply = rq->server->scratch->body;
    struct tenant *t;
    int r;

    if (m->quota_bytes == 0 && !m->set_guarantee)
        return fail(&rq->error, -EINVAL, "no limit of tenant \"%.60s\" is given", m->tenant);

    r = quota_find_or_create(rq, m->tenant, &t);
    if (r < 0)
        return r;

    kvcobra__set_quota_reply__init(reply);
    reply->previous_bytes = t->quota_bytes;
    reply->previous_guarantee_bytes = t->guarantee_bytes;
    r = quota_change(rq, t, m);
    if (r < 0)
        return r;

    /*
     * Held pages and arenas stay above a lowered quota until they are released; new
     * pages are refused meanwhile.
     */
    (void) evict_for_quota(store_of(t), t, 0);
    reply->used_bytes = tenant_used_bytes(t);
    reply->quota_bytes = t->quota_bytes;
    reply->guarantee_bytes = t->guarantee_bytes;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_SET_QUOTA;
    rq->reply.set_quota = reply;
    log_event(LOG_NOTICE, "quota",
              "tenant=%s bytes=%" PRIu64 " bytes_before=%" PRIu64 " guarantee=%" PRIu64
              " guarantee_before=%" PRIu64 " used=%" PRIu64,
              t->name, t->quota_bytes, reply->previous_bytes, t->guarantee_bytes,
              reply->previous_guarantee_bytes, reply->used_bytes);
    return 0;
}
REQUEST(request_set_quota) = {.body = KVCOBRA__REQUEST__BODY_SET_QUOTA,
                              .run = quota_handle_set,
                              .needs = CONN_OPEN,
                              .sockets = ON_OPERATOR,
                              .changes_state = true};
