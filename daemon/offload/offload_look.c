/* Which pages of a request the shared tiers have: one question to each of them. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>

#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/account.h"
#include "daemon/store/tenant_types.h"

void offload_look_init(struct offload_look *l, uint32_t n_max, void *memory)
{
    uint8_t *at = memory;

    *l = (struct offload_look){.found = memory};
    at += n_max * sizeof(*l->found);
    for (unsigned i = 0; i < OFFLOAD_SHARED_MAX; i++) {
        l->parts[i].look.names = (uint8_t(*)[TIER_NAME_BYTES]) at;
        at += n_max * sizeof(*l->parts[i].look.names);
    }
    for (unsigned i = 0; i < OFFLOAD_SHARED_MAX; i++) {
        l->parts[i].look.found = (bool *) at;
        at += n_max * sizeof(*l->parts[i].look.found);
    }
}

void offload_look_add_page(struct offload *o, struct offload_look *l, const struct offload_subject *s)
{
    for (unsigned i = 0; i < o->n_tiers; i++) {
        struct offload_tier *t = &o->tiers[i];
        struct offload_look_part *p = &l->parts[t->number_of_shared];

        if (!offload_shared_looks(t, s->group.tenant))
            continue;
        p->look.n = l->n + 1;
        p->tier = t;
        t->ops->make_name(t->self, &s->group, &s->key, p->look.names[l->n]);
    }
    l->n++;
}

void offload_look_add(struct offload *o, struct offload_look *l, const struct offload_place *place,
                      const struct chunk_key *key)
{
    struct offload_subject s = {.account = place->tenant->account, .key = *key};

    offload_place_id(place, &s.group);
    offload_look_add_page(o, l, &s);
}

static void offload_look_on_done(struct tier_look *look)
{
    struct offload_look_part *p =
        (struct offload_look_part *) ((char *) look - offsetof(struct offload_look_part, look));
    struct offload_shared_counts *n = &p->tier->shared->counts;
    struct offload_look *l = p->of;

    for (uint32_t i = 0; i < look->n; i++) {
        n->n_found += look->found[i];
        if (look->found[i] && !l->found[i])
            l->found[i] = p->tier;
    }
    n->n_asked += look->n;
    n->n_unanswered += look->result < 0;
    if (look->result < 0)
        l->result = look->result;
    if (--l->n_pending == 0)
        l->ended(l);
}

void offload_look_note(struct offload_tier *t, bool came)
{
    struct offload_shared *x = t->shared;

    if (came)
        x->came_ms = ev_now_ms(t->offload->rooms.ev);
    x->n_broken = came ? 0 : x->n_broken + 1;
    if (x->n_broken < OFFLOAD_BROKEN_MAX)
        return;

    x->n_broken = 0;
    x->look_pause_until_ms = ev_now_ms(t->offload->rooms.ev) + OFFLOAD_LOOK_PAUSE_MS;
    if (log_is_due(++x->counts.n_pauses))
        log_event(LOG_WARNING, "cluster-tier-broken",
                  "pauses=%" PRIu64 " message=\"the %s said to have %d pages in a row and did not give "
                  "them: it is not asked for %d s\"",
                  x->counts.n_pauses, t->ops->name, OFFLOAD_BROKEN_MAX, OFFLOAD_LOOK_PAUSE_MS / 1000);
}

/* How long a question to the tier may take. While pages come from it, it works and is busy: twice as long,
 * since computing a prompt again takes longer still. */
static uint32_t offload_look_answer_ms(const struct offload *o, const struct offload_tier *t)
{
    uint32_t answer_ms = o->rooms.config->cluster_answer_ms;
    uint64_t came_ms = t->shared->came_ms;

    return came_ms > 0 && ev_now_ms(o->rooms.ev) - came_ms < answer_ms ? 2 * answer_ms : answer_ms;
}

int offload_look(struct offload *o, struct offload_look *l, uint32_t most_ms)
{
    int r = -ENODEV;

    for (unsigned i = 0; i < OFFLOAD_SHARED_MAX; i++) {
        struct offload_look_part *p = &l->parts[i];
        uint32_t answer_ms;
        int err;

        if (!p->tier)
            continue;
        answer_ms = offload_look_answer_ms(o, p->tier);
        p->of = l;
        p->look.share = l->account ? &l->account->tier_shares[p->tier->number] : NULL;
        p->look.timeout_ms = answer_ms < most_ms ? answer_ms : most_ms;
        p->look.done = offload_look_on_done;
        err = p->tier->ops->look(p->tier->self, &p->look);
        l->n_pending += err == 0;
        r = err == 0 || r == 0 ? 0 : err;
    }
    return r;
}
