/* See quota.h. */
#include "daemon/operator/quota.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "daemon/loop/log.h"
#include "daemon/operator/handlers.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/store/evict.h"
#include "daemon/store/share.h"

#define TITLE "kvcobra quotas 1\n"
#define PREFIX "uid-" /* of tenants' names; lines of the file leave it out */

enum { LINE_BYTES = 32 + 2 * 21, FILE_BYTES_MAX = 1 << 23 };

/* ---- the file ---- */

static char *quota_file_path(const struct server *s)
{
    char *path;

    return asprintf(&path, "%s/quotas", s->config->state_dir) < 0 ? NULL : path;
}

static void quota_print_bytes(char *to, size_t room, bool is_set, uint64_t bytes)
{
    if (is_set)
        (void) snprintf(to, room, "%" PRIu64, bytes);
    else
        (void) snprintf(to, room, "-");
}

static int quota_save(const struct server *s, struct errmsg *e)
{
    _cleanup_(freep) char *path = quota_file_path(s);
    size_t room = strlen(TITLE) + s->devices.n_tenants * (size_t) LINE_BYTES + 1, at = strlen(TITLE);
    _cleanup_(freep) char *text = malloc(room);

    if (!path || !text)
        return fail(e, -ENOMEM, "out of memory");

    memcpy(text, TITLE, at + 1);
    for (const struct tenant *t = NULL; (t = devices_next_tenant(&s->devices, t));) {
        char quota[24], guarantee[24];

        if (!t->quota_is_set && !t->guarantee_is_set)
            continue;

        quota_print_bytes(quota, sizeof(quota), t->quota_is_set, t->quota_bytes);
        quota_print_bytes(guarantee, sizeof(guarantee), t->guarantee_is_set, t->guarantee_bytes);
        at +=
            (size_t) snprintf(text + at, room - at, "%s %s %s\n", t->name + strlen(PREFIX), quota, guarantee);
    }

    return atomic_file_write(path, text, at, e);
}

/* The number of tenants that may still connect, each with the default guarantee. */
static uint64_t quota_n_unseen(const struct server *s, const struct store *st)
{
    return s->config->tenants_max > st->n_tenants ? s->config->tenants_max - st->n_tenants : 0;
}

static bool quota_fits(const struct server *s, const struct tenant *t, uint64_t guarantee)
{
    return share_fits(store_of(t), t, guarantee, quota_n_unseen(s, store_of(t)), t->device->guarantee_bytes);
}

/*
 * Finds or creates the tenant of "1000" (in host memory) or "1000@gpu0". Return: 0; -EINVAL: another form;
 * -ENODEV: no such device; see devices_tenant().
 */
static int quota_tenant_of(struct server *s, const char *text, struct tenant **ret, struct errmsg *e)
{
    char device[DEVICE_NAME_BYTES] = "cpu", after;
    struct device *d;
    uint32_t uid;
    int n = sscanf(text, "%" SCNu32 "@%15[a-z0-9]%c", &uid, device, &after);

    if (n != 2 && !(n == 1 && text[strspn(text, "0123456789")] == '\0'))
        return fail(e, -EINVAL, "\"%.60s\" is not of the form " PREFIX "N or " PREFIX "N@gpuM", text);

    d = devices_find_name(&s->devices, device);
    if (!d || (n == 2 && d->number == 0))
        return fail(e, -ENODEV, "there is no device %s", device);
    return devices_tenant(&s->devices, d, uid, ret, e);
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

static int quota_load_line(struct server *s, const char *line, struct errmsg *e)
{
    char name[40], quota_text[24], guarantee_text[24], after;
    uint64_t quota = 0, guarantee = 0;
    bool has_quota, has_guarantee;
    struct tenant *t;
    int r;

    if (sscanf(line, "%39s %23s %23s%c", name, quota_text, guarantee_text, &after) != 3 ||
        !quota_read_bytes(quota_text, &has_quota, &quota) ||
        !quota_read_bytes(guarantee_text, &has_guarantee, &guarantee) || (has_quota && quota == 0))
        return fail(e, -EBADMSG, "bad line \"%.60s\"", line);

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
        return fail(e, -ENOSPC, "the guarantee of %" PRIu64 " bytes of tenant %s no longer fits the pool",
                    guarantee, t->name);

    t->guarantee_bytes = guarantee;
    t->guarantee_is_set = true;
    return 0;
}

void quota_load(struct server *s)
{
    _cleanup_(freep) char *path = s->config->state_dir ? quota_file_path(s) : NULL;
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(freep) char *text = NULL;
    struct errmsg e = {"out of memory"};
    char *save_ptr = NULL;
    size_t n;
    int r;

    if (!s->config->state_dir)
        return;

    r = path ? atomic_file_read(path, FILE_BYTES_MAX, &bytes, &n, &e) : -ENOMEM;
    if (r == -ENOENT)
        return;

    text = r == 0 ? strndup(bytes, n) : NULL;
    if (!text || strncmp(text, TITLE, strlen(TITLE)) != 0) {
        log_event(LOG_ERR, "quotas-unreadable", "message=\"%s\", ignoring",
                  text ? "not quotas of this version" : e.text);
        return;
    }

    for (char *line = strtok_r(text + strlen(TITLE), "\n", &save_ptr); line;
         line = strtok_r(NULL, "\n", &save_ptr))
        if (quota_load_line(s, line, &e) < 0)
            log_event(LOG_ERR, "quota-ignored", "path=%s message=\"%s\"", path, e.text);
}

void quota_reload(struct server *s)
{
    devices_configure(&s->devices, s->config);
    for (struct tenant *t = NULL; (t = devices_next_tenant(&s->devices, t));)
        if (!t->quota_is_set)
            t->quota_bytes = t->device->quota_bytes;
}

/* ---- SET_QUOTA ---- */

/* The tenant of that name, which is created if it has not connected yet. */
static int quota_find_or_create(struct request *rq, const char *name, struct tenant **ret)
{
    int r;

    *ret = devices_find_tenant(&rq->server->devices, name);
    if (*ret)
        return 0;
    if (strncmp(name, PREFIX, strlen(PREFIX)) == 0)
        r = quota_tenant_of(rq->server, name + strlen(PREFIX), ret, &rq->error);
    else
        r = -EINVAL;
    if (r != -EINVAL)
        return r == -ENODEV ? -ENOENT : r;

    return fail(&rq->error, -ENOENT,
                "tenant \"%.40s\" does not exist, and its name is not of the form uid-N or uid-N@gpuM", name);
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
    if (r == 0 && rq->server->config->state_dir)
        r = quota_save(rq->server, &rq->error);
    if (r < 0) {
        t->quota_bytes = before.quota_bytes;
        t->quota_is_set = before.quota_is_set;
        t->guarantee_bytes = before.guarantee_bytes;
        t->guarantee_is_set = before.guarantee_is_set;
    }

    return r;
}

int quota_handle_set(struct request *rq)
{
    const Kvcobra__SetQuota *m = rq->message->set_quota;
    Kvcobra__SetQuotaReply *reply = &rq->server->scratch->body.set_quota;
    struct tenant *t;
    int r;

    if (m->quota_bytes == 0 && !m->set_guarantee)
        return fail(&rq->error, -EINVAL, "neither a maximum above 0 nor a guarantee is given");

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
              "tenant=%s bytes=%" PRIu64 " before=%" PRIu64 " guarantee=%" PRIu64 " before=%" PRIu64
              " used=%" PRIu64,
              t->name, t->quota_bytes, reply->previous_bytes, t->guarantee_bytes,
              reply->previous_guarantee_bytes, reply->used_bytes);
    return 0;
}
