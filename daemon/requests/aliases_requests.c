/* ALIAS_MODEL and UNALIAS_MODEL for operators, LIST_ALIASES for everybody. */
#include <string.h>

#include "base/digest.h"
#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/tables/aliases.h"
#include "daemon/tables/table_entry.h"

static void aliases_requests_log(const char *event, const uint8_t *alias, const uint8_t *model)
{
    char a[DIGEST_HEX_BYTES], m[DIGEST_HEX_BYTES];

    log_event(LOG_NOTICE, event, "alias=%s model=%s", digest_hex(alias, a), digest_hex(model, m));
}

static int aliases_requests_handle_alias(struct request *rq)
{
    const Kvcobra__AliasModel *m = rq->message->alias_model;
    Kvcobra__AliasModelReply *reply = rq->server->scratch->body;
    enum table_outcome outcome = OUTCOME_APPLIED;
    const uint8_t *alias, *model;
    int r;

    r = request_digest(rq, &m->alias, "digest of an alias", &alias);
    if (r == 0)
        r = request_digest(rq, &m->model, "model digest", &model);
    if (r == 0)
        r = aliases_add(rq->server->tables, alias, model, &outcome, &rq->error);
    if (r != 0)
        return r;

    kvcobra__alias_model_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_ALIAS_MODEL;
    rq->reply.alias_model = reply;
    if (outcome == OUTCOME_APPLIED)
        aliases_requests_log("alias", alias, model);
    return 0;
}
REQUEST(request_alias_model) = {.body = KVCOBRA__REQUEST__BODY_ALIAS_MODEL,
                                .run = aliases_requests_handle_alias,
                                .needs = CONN_OPEN,
                                .sockets = ON_OPERATOR,
                                .changes_state = true};

static int aliases_requests_handle_unalias(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__UnaliasModelReply *reply = scratch->body;
    const uint8_t *alias;
    int r;

    r = request_digest(rq, &rq->message->unalias_model->alias, "digest of an alias", &alias);
    if (r == 0)
        r = aliases_remove(rq->server->tables, alias, scratch->digest, &rq->error);
    if (r < 0)
        return r;

    kvcobra__unalias_model_reply__init(reply);
    reply->model = bytes_view(scratch->digest, DIGEST_BYTES);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_UNALIAS_MODEL;
    rq->reply.unalias_model = reply;
    aliases_requests_log("unalias", alias, scratch->digest);
    return 0;
}
REQUEST(request_unalias_model) = {.body = KVCOBRA__REQUEST__BODY_UNALIAS_MODEL,
                                  .run = aliases_requests_handle_unalias,
                                  .needs = CONN_OPEN,
                                  .sockets = ON_OPERATOR,
                                  .changes_state = true};

static int aliases_requests_handle_list(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__ListAliasesReply *reply = scratch->body;
    const struct tables *ts = rq->server->tables;

    kvcobra__list_aliases_reply__init(reply);
    for (uint32_t i = 0; i < ts->n_aliases; i++) {
        Kvcobra__ModelAlias *x = &scratch->aliases[i];

        kvcobra__model_alias__init(x);
        x->alias = bytes_view(ts->aliases[i].alias, DIGEST_BYTES);
        x->model = bytes_view(ts->aliases[i].model, DIGEST_BYTES);
        scratch->alias_pointers[i] = x;
    }

    reply->n_aliases = ts->n_aliases;
    reply->aliases = scratch->alias_pointers;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_LIST_ALIASES;
    rq->reply.list_aliases = reply;
    return 0;
}
REQUEST(request_list_aliases) = {.body = KVCOBRA__REQUEST__BODY_LIST_ALIASES,
                                 .run = aliases_requests_handle_list,
                                 .needs = CONN_OPEN,
                                 .sockets = ON_BOTH};
