/* SHADOW_TABLE, CANARY_TABLE and GET_FIT: tables tried beside the active one, for operators. */
#include <errno.h>

#include "daemon/loop/ev.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/tables/fit.h"
#include "daemon/tables/trial.h"

static int trials_requests_handle_shadow(struct request *rq)
{
    const Kvcobra__ShadowTable *m = rq->message->shadow_table;
    Kvcobra__ShadowTableReply *reply = rq->server->scratch->body;
    enum table_outcome outcome;
    struct table_entry *t;
    uint64_t revision;
    int r = request_find_table(rq, &m->digest, &t);

    if (r == 0)
        r = trial_shadow(rq->server->tables, t->digest, m->ppm, m->revision, &outcome, &revision, &rq->error);
    if (r != 0)
        return r;

    kvcobra__shadow_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    reply->revision = revision;
    reply->state = (Kvcobra__TableState) t->state;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_SHADOW_TABLE;
    rq->reply.shadow_table = reply;
    return request_outcome(rq, outcome, m->revision, revision, "changed something else");
}
REQUEST(request_shadow_table) = {.body = KVCOBRA__REQUEST__BODY_SHADOW_TABLE,
                                 .run = trials_requests_handle_shadow,
                                 .needs = CONN_OPEN,
                                 .sockets = ON_OPERATOR,
                                 .changes_state = true};

static int trials_requests_handle_canary(struct request *rq)
{
    const Kvcobra__CanaryTable *m = rq->message->canary_table;
    Kvcobra__CanaryTableReply *reply = rq->server->scratch->body;
    enum table_outcome outcome;
    struct table_entry *t;
    uint64_t revision;
    int r = request_find_table(rq, &m->digest, &t);

    if (r == 0)
        r = trial_canary(rq->server->tables, t->digest, m->share, (const char *const *) m->tenants,
                         m->n_tenants, m->revision, ev_now_ms(rq->server->ev), &outcome, &revision,
                         &rq->error);
    if (r != 0)
        return r;

    kvcobra__canary_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    reply->revision = revision;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_CANARY_TABLE;
    rq->reply.canary_table = reply;
    return request_outcome(rq, outcome, m->revision, revision, "changed something else");
}
REQUEST(request_canary_table) = {.body = KVCOBRA__REQUEST__BODY_CANARY_TABLE,
                                 .run = trials_requests_handle_canary,
                                 .needs = CONN_OPEN,
                                 .sockets = ON_OPERATOR,
                                 .changes_state = true};

static int trials_requests_handle_get_fit(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__GetFitReply *reply = scratch->body;
    struct table_entry *t;
    uint32_t n;
    int r = request_find_table(rq, &rq->message->get_fit->digest, &t);

    if (r < 0)
        return r;

    kvcobra__get_fit_reply__init(reply);
    fit_fill(t->fit, &scratch->fits[0]);
    reply->fit = &scratch->fits[0];
    n = t->fit ? t->fit->n_layers : 0;
    if (n > WIRE_ITEMS_MAX)
        n = WIRE_ITEMS_MAX;
    for (uint32_t i = 0; i < n; i++) {
        fit_fill_layer(t->fit, i, &scratch->live[i], &scratch->shadow[i]);
        scratch->live_pointers[i] = &scratch->live[i];
        scratch->shadow_pointers[i] = &scratch->shadow[i];
    }

    reply->n_live = reply->n_shadow = n;
    reply->live = scratch->live_pointers;
    reply->shadow = scratch->shadow_pointers;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_GET_FIT;
    rq->reply.get_fit = reply;
    return 0;
}
REQUEST(request_get_fit) = {.body = KVCOBRA__REQUEST__BODY_GET_FIT,
                            .run = trials_requests_handle_get_fit,
                            .needs = CONN_OPEN,
                            .sockets = ON_OPERATOR};
