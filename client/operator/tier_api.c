/* The disk tier of the daemon: kvc_tier_control(). */
#include <errno.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/kvcobra-tiers.h"
#include "client/operator/operator_call.h"

static void tier_api_read(const Kvcobra__ControlTierReply *from, kvc_tier_state *to)
{
    *to = (kvc_tier_state){
        .flushed = from->flushed,
        .locked = from->locked,
        .segment_bytes = from->segment_bytes,
        .segments = from->segments,
        .segments_max = from->segments_max,
        .physical_bytes = from->physical_bytes,
        .pages = from->pages,
        .writing = from->writing,
        .fetching = from->fetching,
        .written_pages = from->written_pages,
        .written_bytes = from->written_bytes,
        .read_pages = from->read_pages,
        .read_bytes = from->read_bytes,
        .missed = from->missed,
        .refused = from->refused,
        .timeouts = from->timeouts,
        .failed = from->failed,
        .unopened = from->unopened,
        .discarded = from->discarded,
        .lost = from->lost,
        .cluster_nodes = from->cluster_nodes,
        .cluster_nodes_ready = from->cluster_nodes_ready,
        .cluster_waiting = from->cluster_waiting,
        .cluster_asked = from->cluster_asked,
        .cluster_found = from->cluster_found,
        .cluster_read_pages = from->cluster_read_pages,
        .cluster_read_bytes = from->cluster_read_bytes,
        .cluster_missed = from->cluster_missed,
        .cluster_unopened = from->cluster_unopened,
        .cluster_written_pages = from->cluster_written_pages,
        .cluster_written_bytes = from->cluster_written_bytes,
        .cluster_failed = from->cluster_failed,
        .cluster_dropped = from->cluster_dropped,
        .cluster_late = from->cluster_late,
        .cluster_refreshed = from->cluster_refreshed,
    };
    (void) snprintf(to->state, sizeof(to->state), "%s", from->state);
    (void) snprintf(to->message, sizeof(to->message), "%s", from->message);
    (void) snprintf(to->folder, sizeof(to->folder), "%s", from->folder);
    /* empty from a daemon before the cluster tier */
    (void) snprintf(to->cluster_state, sizeof(to->cluster_state), "%s",
                    from->cluster_state[0] ? from->cluster_state : "none");
    (void) snprintf(to->cluster_message, sizeof(to->cluster_message), "%s", from->cluster_message);
}

int kvc_tier_control(kvc_client *c, enum kvc_tier_action action, const char *tenant,
                     const uint8_t digest[KVC_DIGEST_BYTES], kvc_tier_state *ret_state)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ControlTier control = KVCOBRA__CONTROL_TIER__INIT;
    bool is_drop = action == KVC_TIER_DROP;
    kvc_tier_state state;
    int r =
        operator_enter(c, (unsigned) action <= KVC_TIER_DROP && (is_drop || (!tenant && !digest)),
                       "kvc_tier_control: action is no enum kvc_tier_action, or not KVC_TIER_DROP and has "
                       "a tenant or a digest");

    if (r < 0)
        return r;

    /* before the request: -EINVAL must not leave a tier that was dropped */
    r = ret_state ? options_check(ret_state->struct_bytes, sizeof(state), "kvc_tier_state", &c->error) : 0;
    if (r < 0)
        return r;

    control.action = (Kvcobra__TierAction) action;
    if (tenant)
        control.tenant = (char *) tenant;
    control.table_digest = operator_bytes(digest);
    r = operator_request(c, KVCOBRA__REQUEST__BODY_CONTROL_TIER, &control.base, -1, &reply);
    if (r < 0 || !ret_state)
        return r;

    tier_api_read(reply.message->control_tier, &state);
    return options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_tier_state", &c->error);
}
