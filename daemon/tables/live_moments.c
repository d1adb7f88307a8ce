/* See live_moments.h. */
#include "daemon/tables/live_moments.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

static struct live_moments *live_moments_find(const struct live_set *s, const char *tenant,
                                              const uint8_t *model_digest, bool joint)
{
    for (struct live_moments *x = s->first; x; x = x->next)
        if (strcmp(x->tenant, tenant) == 0 && memcmp(x->model_digest, model_digest, DIGEST_BYTES) == 0 &&
            x->joint == joint)
            return x;
    return NULL;
}

/*
 * Charges @bytes more to @tenant. It may have its first moments wherever they fit; with others it leaves as
 * much room to other tenants as it takes.
 */
static int live_moments_charge(struct live_set *s, const char *tenant, uint64_t bytes, uint64_t bytes_max,
                               struct errmsg *e)
{
    uint64_t room = bytes_max > s->bytes ? bytes_max - s->bytes : 0, own = 0;

    for (const struct live_moments *x = s->first; x; x = x->next)
        if (strcmp(x->tenant, tenant) == 0)
            own += x->bytes;
    if (bytes > room)
        return fail(e, -ENOSPC,
                    "moments of %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64 " (moments-bytes) are in use",
                    bytes, s->bytes, bytes_max);
    if (own > 0 && own + bytes > room - bytes)
        return fail(e, -EDQUOT,
                    "moments of %" PRIu64 " bytes: tenant %s has %" PRIu64 " of %" PRIu64
                    " (moments-bytes), and the rest is for others",
                    bytes, tenant, own, bytes_max);

    s->bytes += bytes;
    return 0;
}

/* Creates an entry and adds it to the list; its bytes are charged. */
static int live_moments_add_entry(struct live_set *s, const char *tenant, const uint8_t *model_digest,
                                  bool joint, uint64_t bytes, struct live_moments **ret, struct errmsg *e)
{
    struct live_moments *x = calloc(1, sizeof(*x));

    if (!x)
        return fail(e, -ENOMEM, "out of memory for moments");

    (void) pthread_mutex_init(&x->lock, NULL);
    (void) snprintf(x->tenant, sizeof(x->tenant), "%s", tenant);
    memcpy(x->model_digest, model_digest, DIGEST_BYTES);
    x->joint = joint;
    x->bytes = bytes;
    x->next = s->first;
    s->first = x;
    *ret = x;
    return 0;
}

int live_open(struct live_set *s, const char *tenant, const uint8_t *model_digest, bool joint, uint64_t bytes,
              uint64_t bytes_max, struct live_moments **ret, struct errmsg *e)
{
    struct live_moments *x = live_moments_find(s, tenant, model_digest, joint);
    uint64_t charged = x ? x->bytes : 0;
    int r = 0;

    if (bytes_max == 0)
        return fail(e, -EOPNOTSUPP, "this kvcobrad accepts no moments: moments-bytes is 0");
    /* until an entry has moments, any of the reports that are being read may be the one that it keeps */
    if (!x || (atomic_load(&x->reports) == 0 && bytes > charged))
        r = live_moments_charge(s, tenant, bytes - charged, bytes_max, e);
    if (r < 0)
        return r;

    if (!x)
        r = live_moments_add_entry(s, tenant, model_digest, joint, bytes, &x, e);
    if (r < 0) {
        s->bytes -= bytes;
        return r;
    }

    if (atomic_load(&x->reports) == 0 && bytes > x->bytes)
        x->bytes = bytes;

    x->n_users++;
    *ret = x;
    return 0;
}

static void live_moments_entry_free(struct live_moments *x)
{
    x->moments = moments_free(x->moments);
    (void) pthread_mutex_destroy(&x->lock);
    free(x);
}

void live_close(struct live_set *s, struct live_moments *x)
{
    struct live_moments **at = &s->first;

    if (--x->n_users > 0 || atomic_load(&x->reports) > 0)
        return;

    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    s->bytes -= x->bytes;
    live_moments_entry_free(x);
}

int live_check(const struct moments *m, const uint8_t *model_digest, const uint8_t *geometry_digest_expected,
               bool joint, struct errmsg *e)
{
    const struct moments_options *o = moments_get_options(m);
    uint8_t digest[DIGEST_BYTES];

    geometry_digest(&o->geometry, digest);
    if (memcmp(o->model_digest, model_digest, DIGEST_BYTES) != 0 ||
        memcmp(digest, geometry_digest_expected, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "the moments are of another model or geometry than the session's");
    if (o->joint != joint)
        return fail(e, -EINVAL, "the moments are %sjoint, but have the bytes of others",
                    o->joint ? "" : "not ");

    for (uint32_t layer = 0; layer < o->geometry.n_layers; layer++)
        for (uint32_t head = 0; head < o->geometry.n_kv_heads; head++)
            if (moments_count(m, layer, head) > LIVE_TOKENS_MAX)
                return fail(e, -EINVAL, "moments of %" PRIu64 " tokens in one report, at most %d",
                            moments_count(m, layer, head), LIVE_TOKENS_MAX);
    return 0;
}

int live_add(struct live_moments *x, struct moments *m, struct errmsg *e)
{
    int r = 0;

    (void) pthread_mutex_lock(&x->lock);
    if (!x->moments) {
        x->moments = m;
    } else {
        r = moments_merge(x->moments, m, e);
        if (r == 0)
            (void) moments_free(m);
    }
    if (r == 0 && moments_count(x->moments, 0, 0) > LIVE_TOKENS_KEPT)
        moments_halve(x->moments);

    (void) pthread_mutex_unlock(&x->lock);
    if (r == 0)
        atomic_fetch_add(&x->reports, 1);
    return r;
}

static bool live_moments_is_wanted(const struct live_moments *x, const uint8_t *model_digest,
                                   char *const *tenants, size_t n)
{
    bool found = n == 0;

    for (size_t i = 0; i < n && !found; i++)
        found = strcmp(tenants[i], x->tenant) == 0;
    return found && memcmp(x->model_digest, model_digest, DIGEST_BYTES) == 0 && atomic_load(&x->reports) > 0;
}

int live_select(struct live_set *s, const uint8_t *model_digest, char *const *tenants, size_t n, bool *joint,
                struct live_moments ***ret, size_t *ret_n, struct errmsg *e)
{
    struct live_moments **found;
    size_t n_found = 0, most = 0, n_joint = 0;

    for (const struct live_moments *x = s->first; x; x = x->next) {
        most++;
        n_joint += x->joint && live_moments_is_wanted(x, model_digest, tenants, n);
    }

    *joint = *joint && n_joint > 0;
    found = calloc(most + 1, sizeof(*found));
    if (!found)
        return fail(e, -ENOMEM, "out of memory for moments");

    for (struct live_moments *x = s->first; x; x = x->next)
        if (live_moments_is_wanted(x, model_digest, tenants, n) && x->joint >= *joint)
            found[n_found++] = x;
    if (n_found == 0) {
        free(found);
        return fail(e, -ENODATA, "no client reported moments of this model");
    }

    for (size_t i = 0; i < n_found; i++)
        found[i]->n_users++;
    *ret = found;
    *ret_n = n_found;
    return 0;
}

int live_sum(struct live_moments *x, bool joint, struct moments **sum, uint64_t *reports, struct errmsg *e)
{
    struct moments_options o;
    int r = 0;

    (void) pthread_mutex_lock(&x->lock);
    o = *moments_get_options(x->moments);
    o.joint = joint;
    if (!*sum)
        r = moments_new(&o, sum, e);
    if (r == 0)
        r = moments_merge(*sum, x->moments, e);
    (void) pthread_mutex_unlock(&x->lock);
    if (r == 0)
        *reports += atomic_load(&x->reports);
    return r;
}

void live_deinit(struct live_set *s)
{
    while (s->first) {
        struct live_moments *x = s->first;

        s->first = x->next;
        live_moments_entry_free(x);
    }
    s->bytes = 0;
}
