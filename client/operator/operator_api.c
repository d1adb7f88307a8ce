/* What an operator changes while the daemon runs: roll a table back, retire one, evict pages, set a quota. */
#include <errno.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/connection/options.h"

static ProtobufCBinaryData operator_api_digest_view(const uint8_t *digest)
{
    return (ProtobufCBinaryData){digest ? KVC_DIGEST_BYTES : 0, (uint8_t *) digest};
}

/* 0 or 1, as the public calls return it; refusals came as the reply's errno. */
static int operator_api_read_outcome(kvc_client *c, Kvcobra__Outcome got)
{
    if (got == KVCOBRA__OUTCOME__OUTCOME_APPLIED || got == KVCOBRA__OUTCOME__OUTCOME_ALREADY)
        return got == KVCOBRA__OUTCOME__OUTCOME_ALREADY;
    return fail(&c->error, -EPROTO, "kvcobrad's answer makes no sense: outcome %d", (int) got);
}

int kvc_table_rollback(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                       uint8_t ret_active[KVC_DIGEST_BYTES], uint64_t *ret_revision)
{
    Kvcobra__RollbackTable rollback = KVCOBRA__ROLLBACK_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    const Kvcobra__RollbackTableReply *got;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!digest)
        return fail(&c->error, -EINVAL, "kvc_table_rollback: digest is NULL");
    rollback.digest = operator_api_digest_view(digest);
    rollback.revision = revision;
    request.body_case = KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE;
    request.rollback_table = &rollback;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_ROLLBACK_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    got = reply.message->rollback_table;
    r = operator_api_read_outcome(c, got->outcome);
    if (r >= 0 && !bytes_are(got->active, KVC_DIGEST_BYTES))
        r = fail(&c->error, -EPROTO, "kvcobrad did not say which table is active");
    if (r >= 0 && ret_active)
        memcpy(ret_active, got->active.data, KVC_DIGEST_BYTES);
    if (r >= 0 && ret_revision)
        *ret_revision = got->revision;
    reply_free(&reply);
    return r;
}

int kvc_table_retire(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                     enum kvc_table_state *ret_state)
{
    Kvcobra__RetireTable retire = KVCOBRA__RETIRE_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!digest)
        return fail(&c->error, -EINVAL, "kvc_table_retire: digest is NULL");
    retire.digest = operator_api_digest_view(digest);
    retire.revision = revision;
    request.body_case = KVCOBRA__REQUEST__BODY_RETIRE_TABLE;
    request.retire_table = &retire;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_RETIRE_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    r = operator_api_read_outcome(c, reply.message->retire_table->outcome);
    if (r >= 0 && ret_state)
        *ret_state = (enum kvc_table_state) reply.message->retire_table->state;
    reply_free(&reply);
    return r;
}

/* One message's worth. */
static int operator_api_evict_some(kvc_client *c, Kvcobra__Evict *evict, uint64_t *pages, uint64_t *bytes,
                                   bool *ret_more)
{
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    const Kvcobra__EvictReply *got;
    struct reply reply;
    int r;

    request.body_case = KVCOBRA__REQUEST__BODY_EVICT;
    request.evict = evict;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_EVICT, &reply, &c->error);
    if (r < 0)
        return r;
    got = reply.message->evict;
    if (got->more && got->pages == 0)
        r = fail(&c->error, -EPROTO, "kvcobrad evicts without end");
    *pages += got->pages;
    *bytes += got->bytes;
    *ret_more = got->more;
    reply_free(&reply);
    return r;
}

int kvc_evict(kvc_client *c, const char *tenant, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t *ret_pages,
              uint64_t *ret_bytes)
{
    Kvcobra__Evict evict = KVCOBRA__EVICT__INIT;
    uint64_t pages = 0, bytes = 0;
    bool more = true;
    int r = client_enter_connected(c);

    if (tenant)
        evict.tenant = (char *) tenant;
    evict.table_digest = operator_api_digest_view(digest);
    while (r == 0 && more)
        r = operator_api_evict_some(c, &evict, &pages, &bytes, &more);
    if (r < 0)
        return r;
    if (ret_pages)
        *ret_pages = pages;
    if (ret_bytes)
        *ret_bytes = bytes;
    return 0;
}

int kvc_quota_set(kvc_client *c, const char *tenant, uint64_t max_bytes, uint64_t guarantee_bytes,
                  kvc_quota_state *ret_state)
{
    Kvcobra__SetQuota quota = KVCOBRA__SET_QUOTA__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!tenant)
        return fail(&c->error, -EINVAL, "kvc_quota_set: tenant is NULL");
    if (ret_state && ret_state->struct_bytes != sizeof(*ret_state))
        return fail(&c->error, -EINVAL, "kvc_quota_set: struct_bytes is %zu, not %zu",
                    ret_state->struct_bytes, sizeof(*ret_state));
    if (max_bytes == 0)
        return fail(&c->error, -EINVAL, "a maximum of 0 bytes lets nobody in");
    quota.tenant = (char *) tenant;
    quota.quota_bytes = max_bytes == KVC_QUOTA_KEEP ? 0 : max_bytes;
    quota.set_guarantee = guarantee_bytes != KVC_QUOTA_KEEP;
    quota.guarantee_bytes = quota.set_guarantee ? guarantee_bytes : 0;
    request.body_case = KVCOBRA__REQUEST__BODY_SET_QUOTA;
    request.set_quota = &quota;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_SET_QUOTA, &reply,
                           &c->error);
    if (r < 0)
        return r;
    if (ret_state)
        *ret_state = (kvc_quota_state){
            .struct_bytes = sizeof(*ret_state),
            .max_bytes = reply.message->set_quota->quota_bytes,
            .guarantee_bytes = reply.message->set_quota->guarantee_bytes,
            .previous_max_bytes = reply.message->set_quota->previous_bytes,
            .previous_guarantee_bytes = reply.message->set_quota->previous_guarantee_bytes,
            .used_bytes = reply.message->set_quota->used_bytes,
        };
    reply_free(&reply);
    return 0;
}

int kvc_drain(kvc_client *c, enum kvc_drain what, kvc_drain_state *ret_state)
{
    Kvcobra__Drain drain = KVCOBRA__DRAIN__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    const Kvcobra__DrainReply *got;
    kvc_drain_state state;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (what != KVC_DRAIN_OFF && what != KVC_DRAIN_ON && what != KVC_DRAIN_ASK)
        return fail(&c->error, -EINVAL, "kvc_drain: %d is nothing to do", (int) what);
    drain.off = what == KVC_DRAIN_OFF;
    drain.ask = what == KVC_DRAIN_ASK;
    request.body_case = KVCOBRA__REQUEST__BODY_DRAIN;
    request.drain = &drain;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_DRAIN, &reply, &c->error);
    if (r < 0)
        return r;
    got = reply.message->drain;
    state = (kvc_drain_state){
        .draining = got->draining,
        .sessions = got->sessions,
        .reservations = got->reservations,
        .held_pages = got->held_pages,
    };
    reply_free(&reply);
    return ret_state
               ? options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_drain_state", &c->error)
               : 0;
}
