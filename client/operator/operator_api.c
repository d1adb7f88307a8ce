/* Memory and load of the daemon: kvc_evict(), kvc_quota_set(), kvc_drain(). */
#include <errno.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/kvcobra-operator.h"
#include "client/operator/operator_call.h"

/* ---- eviction ---- */

/* One request. More pages to evict may remain after it. */
static int operator_evict_some(kvc_client *c, Kvcobra__Evict *evict, uint64_t *pages, uint64_t *bytes,
                               bool *ret_more)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    const Kvcobra__EvictReply *got;
    int r;

    r = operator_request(c, KVCOBRA__REQUEST__BODY_EVICT, &evict->base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->evict;
    *pages += got->pages;
    *bytes += got->bytes;
    *ret_more = got->more;
    if (got->more && got->pages == 0)
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: more to evict, but no page evicted");

    return 0;
}

int kvc_evict(kvc_client *c, const char *tenant, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t *ret_pages,
              uint64_t *ret_bytes)
{
    Kvcobra__Evict evict = KVCOBRA__EVICT__INIT;
    uint64_t pages = 0, bytes = 0;
    bool more = true;
    int r;

    r = operator_enter(c, true, "");
    if (r < 0)
        return r;

    if (tenant)
        evict.tenant = (char *) tenant;
    evict.table_digest = operator_bytes(digest);
    while (more) {
        r = operator_evict_some(c, &evict, &pages, &bytes, &more);
        if (r < 0)
            return r;
    }

    if (ret_pages)
        *ret_pages = pages;
    if (ret_bytes)
        *ret_bytes = bytes;
    return 0;
}

/* ---- quotas ---- */

static int operator_check_quota(kvc_client *c, uint64_t max_bytes, const kvc_quota_state *state)
{
    if (max_bytes == 0)
        return fail(&c->error, -EINVAL, "kvc_quota_set: with a maximum of 0 bytes no client could connect");

    return state ? options_check(state->struct_bytes, sizeof(*state), "kvc_quota_state", &c->error) : 0;
}

int kvc_quota_set(kvc_client *c, const char *tenant, uint64_t max_bytes, uint64_t guarantee_bytes,
                  kvc_quota_state *ret_state)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__SetQuota quota = KVCOBRA__SET_QUOTA__INIT;
    const Kvcobra__SetQuotaReply *got;
    kvc_quota_state state;
    int r;

    r = operator_enter(c, tenant != NULL, "kvc_quota_set: tenant is NULL");
    if (r < 0)
        return r;

    r = operator_check_quota(c, max_bytes, ret_state);
    if (r < 0)
        return r;

    quota.tenant = (char *) tenant;
    quota.quota_bytes = max_bytes == KVC_QUOTA_KEEP ? 0 : max_bytes;
    quota.set_guarantee = guarantee_bytes != KVC_QUOTA_KEEP;
    quota.guarantee_bytes = quota.set_guarantee ? guarantee_bytes : 0;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_SET_QUOTA, &quota.base, -1, &reply);
    if (r < 0 || !ret_state)
        return r;

    got = reply.message->set_quota;
    state = (kvc_quota_state){
        .max_bytes = got->quota_bytes,
        .guarantee_bytes = got->guarantee_bytes,
        .previous_max_bytes = got->previous_bytes,
        .previous_guarantee_bytes = got->previous_guarantee_bytes,
        .used_bytes = got->used_bytes,
        .client_arena_bytes = got->client_arena_bytes,
        .pool_bytes = got->pool_bytes,
    };
    return options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_quota_state", &c->error);
}

/* ---- draining ---- */

int kvc_drain(kvc_client *c, enum kvc_drain what, kvc_drain_state *ret_state)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__Drain drain = KVCOBRA__DRAIN__INIT;
    const Kvcobra__DrainReply *got;
    kvc_drain_state state;
    int r;

    r = operator_enter(c, what == KVC_DRAIN_OFF || what == KVC_DRAIN_ON || what == KVC_DRAIN_ASK,
                       "kvc_drain: what is not KVC_DRAIN_OFF, _ON or _ASK");
    if (r < 0)
        return r;

    /* before the request: -EINVAL must not leave a daemon that drains */
    r = ret_state ? options_check(ret_state->struct_bytes, sizeof(state), "kvc_drain_state", &c->error) : 0;
    if (r < 0)
        return r;

    drain.off = what == KVC_DRAIN_OFF;
    drain.ask = what == KVC_DRAIN_ASK;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_DRAIN, &drain.base, -1, &reply);
    if (r < 0 || !ret_state)
        return r;

    got = reply.message->drain;
    state = (kvc_drain_state){
        .draining = got->draining,
        .sessions = got->sessions,
        .reservations = got->reservations,
        .held_pages = got->held_pages,
    };
    return options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_drain_state", &c->error);
}
