/*
 * Which pages of a request the cluster has: one EXISTS for all of them, which kvcobra-cluster sends in one
 * write per server.
 */
#include <inttypes.h>

#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/offload/offload_cluster.h"

void offload_look_add(const struct offload *o, struct offload_look *l, const struct offload_place *p,
                      const struct chunk_key *key)
{
    struct tier_group id;

    offload_place_id(p, &id);
    offload_cluster_name(o->cluster, &id, key, l->names[l->n++]);
}

void offload_look_add_page(const struct offload *o, struct offload_look *l, const struct offload_subject *s)
{
    offload_cluster_name(o->cluster, &s->group, &s->key, l->names[l->n++]);
}

static void offload_look_on_done(struct cluster_call *call)
{
    struct offload_look *l = (struct offload_look *) call;
    struct offload_cluster_counts *n = &l->offload->cluster->counts;

    for (uint32_t i = 0; i < l->n; i++) {
        l->found[i] = call->reply && cluster_bit(call->reply, i);
        n->n_found += l->found[i];
    }
    n->n_asked += l->n;
    n->n_unanswered += call->result < 0;
    l->ended(l);
}

void offload_look_note(struct offload *o, bool came)
{
    struct offload_cluster *c = o->cluster;

    c->n_broken = came ? 0 : c->n_broken + 1;
    if (c->n_broken < OFFLOAD_BROKEN_MAX)
        return;

    c->n_broken = 0;
    c->look_pause_until_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_LOOK_PAUSE_MS;
    if (log_is_due(++c->counts.n_pauses))
        log_event(LOG_WARNING, "cluster-tier-broken",
                  "pauses=%" PRIu64 " message=\"the cluster said to have %d pages in a row and did not give "
                  "them: it is not asked for %d s\"",
                  c->counts.n_pauses, OFFLOAD_BROKEN_MAX, OFFLOAD_LOOK_PAUSE_MS / 1000);
}

int offload_look(struct offload *o, struct offload_look *l, uint32_t most_ms)
{
    uint32_t answer_ms = o->rooms.config->cluster_answer_ms;

    l->offload = o;
    l->call = (struct cluster_call){
        .kind = CLUSTER_EXISTS,
        .share = l->share,
        .timeout_ms = answer_ms < most_ms ? answer_ms : most_ms,
        .n_names = l->n,
        .names = l->names[0],
        .done = offload_look_on_done,
    };
    return cluster_link_submit(o->cluster->link, &l->call);
}
