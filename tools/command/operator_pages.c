/* The memory of a daemon; see operator_pages.h. */
#include "tools/command/operator_pages.h"

#include <errno.h>
#include <stdbool.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

/* ---- status ---- */

/* The part of the lists from @cursor on. */
static int operator_get_some_status(kvc_client *c, uint64_t cursor, void *ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *got = NULL;
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    int r;

    get.cursor = cursor;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_GET_STATUS, &get.base, &got, e);
    for (size_t i = 0; r == 0 && i < got->n_spaces; i++)
        r = operator_check_is_digest(got->spaces[i]->table_digest, "a status", e);
    if (r < 0)
        return r;
    if (got->next_cursor != 0 && got->n_tenants + got->n_spaces == 0)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: its status does not end");

    *(Kvcobra__StatusReply **) ret = take_ptr(got);
    return 0;
}

int operator_get_status(kvc_client *c, Kvcobra__StatusReply **ret, struct errmsg *e)
{
    return operator_get_parts(c, operator_get_some_status, "the status", ret, e);
}

int operator_get_tenant(kvc_client *c, const char *tenant, Kvcobra__StatusReply **ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *got = NULL;
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    int r;

    if (tenant[0] == '\0') /* which GetStatus takes for all tenants */
        return fail(e, -ENOENT, "the name of a tenant is empty");

    get.tenant = (char *) tenant; /* packing only reads */
    r = operator_call(c, KVCOBRA__REQUEST__BODY_GET_STATUS, &get.base, &got, e);
    if (r < 0)
        return r;
    if (got->n_tenants != 1 || got->n_devices != 1)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: it is not about one tenant");

    *ret = take_ptr(got);
    return 0;
}

/* ---- eviction ---- */

int operator_evict(kvc_client *c, const char *tenant, const uint8_t *digest, Kvcobra__EvictReply *ret,
                   struct errmsg *e)
{
    Kvcobra__Evict evict = KVCOBRA__EVICT__INIT;
    Kvcobra__EvictReply sum = KVCOBRA__EVICT_REPLY__INIT;

    if (tenant)
        evict.tenant = (char *) tenant; /* packing only reads */
    evict.table_digest = operator_digest(digest);
    do { /* one request evicts some pages, so that no client waits long */
        _cleanup_(operator_message_freep) Kvcobra__EvictReply *got = NULL;
        int r = operator_call(c, KVCOBRA__REQUEST__BODY_EVICT, &evict.base, &got, e);

        if (r < 0)
            return r;
        if (got->more && got->pages == 0)
            return fail(e, -EPROTO, "kvcobrad's answer is not valid: more to evict, but no page evicted");

        sum.pages += got->pages;
        sum.bytes += got->bytes;
        sum.more = got->more;
    } while (sum.more);

    if (ret)
        *ret = sum;
    return 0;
}

/* ---- limits ---- */

int operator_set_quota(kvc_client *c, const char *tenant, uint64_t max_bytes, uint64_t guarantee_bytes,
                       Kvcobra__SetQuotaReply *ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__SetQuotaReply *got = NULL;
    Kvcobra__SetQuota quota = KVCOBRA__SET_QUOTA__INIT;
    int r;

    quota.tenant = (char *) tenant; /* packing only reads */
    quota.quota_bytes = max_bytes == OPERATOR_QUOTA_KEEP ? 0 : max_bytes;
    quota.set_guarantee = guarantee_bytes != OPERATOR_QUOTA_KEEP;
    quota.guarantee_bytes = quota.set_guarantee ? guarantee_bytes : 0;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_SET_QUOTA, &quota.base, &got, e);
    if (r < 0 || !ret)
        return r;

    *ret = *got; /* numbers alone, but for fields of a newer daemon, which are freed with @got */
    ret->base.n_unknown_fields = 0;
    ret->base.unknown_fields = NULL;
    return 0;
}
