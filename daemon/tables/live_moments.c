/* See live_moments.h. */
#include "daemon/tables/live_moments.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

static struct live_moments *live_moments_find(const struct live_set *s, const char *tenant,
                                              const uint8_t *model_digest)
{
    for (struct live_moments *x = s->first; x; x = x->next)
        if (strcmp(x->tenant, tenant) == 0 && memcmp(x->model_digest, model_digest, DIGEST_BYTES) == 0)
            return x;
    return NULL;
}

/* Creates an entry, adds it to the list and charges its bytes. */
static int live_moments_add_entry(struct live_set *s, const char *tenant, const uint8_t *model_digest,
                                  uint64_t bytes, struct live_moments **ret, struct errmsg *e)
{
    struct live_moments *x = calloc(1, sizeof(*x));

    if (!x)
        return fail(e, -ENOMEM, "out of memory for moments");

    (void) pthread_mutex_init(&x->lock, NULL);
    (void) snprintf(x->tenant, sizeof(x->tenant), "%s", tenant);
    memcpy(x->model_digest, model_digest, DIGEST_BYTES);
    x->bytes = bytes;
    x->next = s->first;
    s->first = x;
    s->bytes += bytes;
    *ret = x;
    return 0;
}

int live_open(struct live_set *s, const char *tenant, const uint8_t *model_digest, uint64_t bytes,
              uint64_t bytes_max, struct live_moments **ret, struct errmsg *e)
{
    struct live_moments *x = live_moments_find(s, tenant, model_digest);
    int r;

    if (bytes_max == 0)
        return fail(e, -EOPNOTSUPP, "this kvcobrad accepts no moments: moments-bytes is 0");
    if (!x) {
        if (s->bytes > bytes_max || bytes > bytes_max - s->bytes)
            return fail(e, -ENOSPC,
                        "moments of %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64 " (moments-bytes) are in use",
                        bytes, s->bytes, bytes_max);

        r = live_moments_add_entry(s, tenant, model_digest, bytes, &x, e);
        if (r < 0)
            return r;
    }

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
               struct errmsg *e)
{
    const struct moments_options *o = moments_get_options(m);
    uint8_t digest[DIGEST_BYTES];

    geometry_digest(&o->geometry, digest);
    if (memcmp(o->model_digest, model_digest, DIGEST_BYTES) != 0 ||
        memcmp(digest, geometry_digest_expected, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "the moments are of another model or geometry than the session's");

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

    (void) pthread_mutex_unlock(&x->lock);
    if (r == 0)
        atomic_fetch_add(&x->reports, 1);
    return r;
}

static bool live_moments_is_wanted(const char *tenant, char *const *tenants, size_t n)
{
    bool found = n == 0;

    for (size_t i = 0; i < n && !found; i++)
        found = strcmp(tenants[i], tenant) == 0;
    return found;
}

int live_select(struct live_set *s, const uint8_t *model_digest, char *const *tenants, size_t n,
                struct live_moments ***ret, size_t *ret_n, struct errmsg *e)
{
    struct live_moments **found;
    size_t n_found = 0, most = 0;

    for (const struct live_moments *x = s->first; x; x = x->next)
        most++;
    found = calloc(most + 1, sizeof(*found));
    if (!found)
        return fail(e, -ENOMEM, "out of memory for moments");

    for (struct live_moments *x = s->first; x; x = x->next)
        if (memcmp(x->model_digest, model_digest, DIGEST_BYTES) == 0 &&
            live_moments_is_wanted(x->tenant, tenants, n) && atomic_load(&x->reports) > 0)
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

int live_sum(struct live_moments *x, struct moments **sum, uint64_t *reports, struct errmsg *e)
{
    int r = 0;

    (void) pthread_mutex_lock(&x->lock);
    if (!*sum)
        r = moments_new(moments_get_options(x->moments), sum, e);
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
