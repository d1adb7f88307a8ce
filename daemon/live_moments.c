/* Moments of live traffic; see live_moments.h. */
#include "daemon/live_moments.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

static struct live_moments *find(const struct live_set *s, const char *tenant, const uint8_t *model_digest)
{
    for (struct live_moments *x = s->first; x; x = x->next)
        if (strcmp(x->tenant, tenant) == 0 && memcmp(x->model_digest, model_digest, DIGEST_BYTES) == 0)
            return x;
    return NULL;
}

int live_room(const struct live_set *s, const char *tenant, const uint8_t *model_digest, uint64_t bytes, uint64_t bytes_max,
              struct errmsg *e)
{
    if (bytes_max == 0)
        return fail(e, -EOPNOTSUPP, "this kvcobrad takes no moments: moments-bytes is 0");
    if (find(s, tenant, model_digest))
        return 0;
    if (s->bytes > bytes_max || bytes > bytes_max - s->bytes)
        return fail(e, -ENOSPC, "moments of %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64 " (moments-bytes) are in use", bytes,
                    s->bytes, bytes_max);
    return 0;
}

int live_check(const struct moments *m, const uint8_t *model_digest, const uint8_t *geometry_digest_expected,
               struct errmsg *e)
{
    const struct moments_options *o = moments_get_options(m);
    uint8_t digest[DIGEST_BYTES];

    geometry_digest(&o->geometry, digest);
    if (memcmp(o->model_digest, model_digest, DIGEST_BYTES) != 0 || memcmp(digest, geometry_digest_expected, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "the moments are of another model or geometry than the session's");
    for (uint32_t layer = 0; layer < o->geometry.n_layers; layer++)
        for (uint32_t head = 0; head < o->geometry.n_kv_heads; head++)
            if (moments_count(m, layer, head) > LIVE_TOKENS_MAX)
                return fail(e, -EINVAL, "moments of %" PRIu64 " tokens in one report, at most %d",
                            moments_count(m, layer, head), LIVE_TOKENS_MAX);
    return 0;
}

int live_add(struct live_set *s, const char *tenant, struct moments *m, uint64_t bytes_max, struct errmsg *e)
{
    const struct moments_options *o = moments_get_options(m);
    uint64_t bytes = moments_bytes(&o->geometry);
    struct live_moments *x = find(s, tenant, o->model_digest);
    int r;

    if (x) {
        r = moments_merge(x->moments, m, e);
        if (r < 0)
            return r;
        (void) moments_free(m);
        x->reports++;
        return 0;
    }
    r = live_room(s, tenant, o->model_digest, bytes, bytes_max, e);
    if (r < 0)
        return r;
    x = calloc(1, sizeof(*x));
    if (!x)
        return fail(e, -ENOMEM, "out of memory for moments");
    (void) snprintf(x->tenant, sizeof(x->tenant), "%s", tenant);
    memcpy(x->model_digest, o->model_digest, DIGEST_BYTES);
    x->bytes = bytes;
    x->reports = 1;
    x->moments = m;
    x->next = s->first;
    s->first = x;
    s->bytes += bytes;
    return 0;
}

static bool is_wanted(const char *tenant, char *const *tenants, size_t n)
{
    bool found = n == 0;

    for (size_t i = 0; i < n && !found; i++)
        found = strcmp(tenants[i], tenant) == 0;
    return found;
}

int live_merge(const struct live_set *s, const uint8_t *model_digest, char *const *tenants, size_t n,
               struct moments **ret_moments, uint64_t *ret_reports, struct errmsg *e)
{
    _cleanup_(moments_freep) struct moments *sum = NULL;
    uint64_t reports = 0;

    for (const struct live_moments *x = s->first; x; x = x->next) {
        int r = 0;

        if (memcmp(x->model_digest, model_digest, DIGEST_BYTES) != 0 || !is_wanted(x->tenant, tenants, n))
            continue;
        if (!sum)
            r = moments_new(moments_get_options(x->moments), &sum, e);
        if (r == 0)
            r = moments_merge(sum, x->moments, e);
        if (r < 0)
            return r;
        reports += x->reports;
    }
    if (!sum)
        return fail(e, -ENODATA, "nobody reported moments of this model");
    *ret_moments = take_ptr(sum);
    *ret_reports = reports;
    return 0;
}

void live_deinit(struct live_set *s)
{
    while (s->first) {
        struct live_moments *x = s->first;

        s->first = x->next;
        x->moments = moments_free(x->moments);
        free(x);
    }
    s->bytes = 0;
}
