/* LIST, FETCH, REF and UNREF; ACTIVATE, ROLLBACK and RETIRE for operators. STAGE is stage.c. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "alloc/table/table_exact.h"
#include "alloc/table/table_format.h"
#include "base/digest.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/tables/aliases.h"
#include "daemon/tables/fit.h"
#include "daemon/tables/table_copy.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables.h"
#include "daemon/tables/tables_activate.h"
#include "proto/hello_features.h"

static void tables_requests_fill_trial(const struct request *rq, const struct table_entry *t,
                                       Kvcobra__TableInfo *info)
{
    const struct table_model *m = table_model_find(rq->server->tables, t->model_digest);

    if (m && m->trials.shadow == t)
        info->shadow_ppm = m->trials.shadow_ppm;
    if (m && m->trials.canary == t) {
        info->canary_share = m->trials.canary_share;
        info->canary_tenants = m->trials.n_tenants;
    }
}

static int tables_requests_handle_list(struct request *rq)
{
    const Kvcobra__ListTables *m = rq->message->list_tables;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__ListTablesReply *reply = scratch->body;
    const uint8_t *model = NULL;
    size_t n = 0;

    if (m->model_digest.len > 0) {
        int r = request_digest(rq, &m->model_digest, "model digest", &model);

        if (r < 0)
            return r;

        model = aliases_resolve(rq->server->tables, model);
    }

    kvcobra__list_tables_reply__init(reply);
    for (struct table_entry *t = rq->server->tables->entries; t; t = t->next) {
        Kvcobra__TableInfo *info = &scratch->tables[n];

        /* what was refused as a table is none: the answer to STAGE said so */
        if (t->state == TABLE_REJECTED)
            continue;
        if (t->id < m->cursor || (model && memcmp(t->model_digest, model, DIGEST_BYTES) != 0))
            continue;
        if (n == WIRE_LIST_ITEMS_MAX) {
            reply->next_cursor = t->id;
            break;
        }

        kvcobra__table_info__init(info);
        info->digest = bytes_view(t->digest, DIGEST_BYTES);
        info->model_digest = bytes_view(t->model_digest, DIGEST_BYTES);
        info->state = (Kvcobra__TableState) t->state;
        info->bpd_code = t->bpd_code;
        info->exact = t->table ? exact_form_pack(&t->table->exact) : 0;
        info->file_bytes = t->file_bytes;
        info->references = t->n_refs;
        info->pages = table_entry_pages(t);
        info->revision = t->revision;
        info->reason = t->reason;
        tables_requests_fill_trial(rq, t, info);
        info->expected_error_k = t->expected.error[SIDE_K];
        info->expected_error_v = t->expected.error[SIDE_V];
        info->expected_saturated_k = t->expected.saturated[SIDE_K];
        info->expected_saturated_v = t->expected.saturated[SIDE_V];
        fit_fill(t->fit, &scratch->fits[n]);
        info->fit = &scratch->fits[n];
        scratch->table_pointers[n++] = info;
    }

    reply->n_tables = n;
    reply->tables = scratch->table_pointers;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_LIST_TABLES;
    rq->reply.list_tables = reply;
    return 0;
}
REQUEST(request_list_tables) = {.body = KVCOBRA__REQUEST__BODY_LIST_TABLES,
                                .run = tables_requests_handle_list,
                                .needs = CONN_OPEN,
                                .sockets = ON_BOTH};

/* Whether the client of a connection says that it reads tables of this one's format. */
static bool tables_requests_reads(const struct conn *c, const struct table_entry *t)
{
    return table_header(t->table)->version < TABLE_VERSION || (c->features & PROTO_FEATURE_TABLE_3);
}

static int tables_requests_handle_fetch(struct request *rq)
{
    Kvcobra__FetchTableReply *reply = rq->server->scratch->body;
    struct table_entry *t;
    int r = request_may_send_fds(rq);

    if (r == 0)
        r = request_find_table(rq, &rq->message->fetch_table->digest, &t);
    if (r != 0)
        return r;
    if (!t->table)
        return fail(&rq->error, -ESTALE, "the table is %s", table_state_name(t->state));
    if (!rq->conn->is_operator && !tables_requests_reads(rq->conn, t))
        return fail(&rq->error, -EOPNOTSUPP,
                    "the table has format %" PRIu32
                    ", which this client does not say that it reads: use a newer "
                    "libkvcobra, or activate a table of format 2 ('kvcobra solve --trellis 0')",
                    table_header(t->table)->version);

    r = table_copy_open(t->fd, &rq->fds[0], &rq->error);
    if (r < 0)
        return r;

    rq->n_fds = 1;
    rq->fds_are_owned = true;
    kvcobra__fetch_table_reply__init(reply);
    reply->bytes = t->table->n_bytes;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_FETCH_TABLE;
    rq->reply.fetch_table = reply;
    return 0;
}
REQUEST(request_fetch_table) = {.body = KVCOBRA__REQUEST__BODY_FETCH_TABLE,
                                .run = tables_requests_handle_fetch,
                                .needs = CONN_OPEN,
                                .sockets = ON_BOTH};

static int tables_requests_handle_ref(struct request *rq)
{
    const Kvcobra__RefTable *m = rq->message->ref_table;
    const struct session_model *model = session_model(rq->session, m->model);
    Kvcobra__RefTableReply *reply = rq->server->scratch->body;
    struct table_entry *t;
    int r = request_find_table(rq, &m->digest, &t);

    if (r < 0)
        return r;
    if (!model)
        return fail(&rq->error, -EINVAL, "this session has no model %" PRIu32, m->model);

    /* A session with a reference may take another one: its sequences fork. */
    if (!t->table || (!tables_may_ref(rq->server->tables, t, ev_now_ms(rq->server->ev)) &&
                      !session_has_table(rq->session, t)))
        return fail(&rq->error, -ESTALE, "the table is %s, not active: read the control page again",
                    table_state_name(t->state));
    if (memcmp(t->model_digest, model->digest, DIGEST_BYTES) != 0)
        return fail(&rq->error, -EINVAL, "the table is of another model");

    r = session_ref_table(rq->session, t);
    if (r < 0)
        return r;

    kvcobra__ref_table_reply__init(reply);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_REF_TABLE;
    rq->reply.ref_table = reply;
    return 0;
}
REQUEST(request_ref_table) = {.body = KVCOBRA__REQUEST__BODY_REF_TABLE,
                              .run = tables_requests_handle_ref,
                              .needs = CONN_OPEN,
                              .sockets = ON_CLIENT};

static int tables_requests_handle_unref(struct request *rq)
{
    struct table_entry *t;
    int r = request_find_table(rq, &rq->message->unref_table->digest, &t);

    if (r < 0)
        return r;
    if (session_unref_table(rq->session, t) < 0)
        return fail(&rq->error, -ENOENT, "this session has no reference on the table");
    return 0;
}
REQUEST(request_unref_table) = {.body = KVCOBRA__REQUEST__BODY_UNREF_TABLE,
                                .run = tables_requests_handle_unref,
                                .needs = CONN_OPEN,
                                .sockets = ON_CLIENT};

/* ---- operator ---- */

/* Says which clients cannot follow to a table: their running sequences keep the earlier one, new ones
 * fail. */
static void tables_requests_warn_readers(const struct server *s, const uint8_t digest[static DIGEST_BYTES])
{
    const struct table_entry *t = table_find(s->tables, digest);
    char hex[DIGEST_HEX_BYTES];

    if (!t || !t->table)
        return;

    for (uint32_t i = 0; i < s->sessions->n_max; i++) {
        const struct session *x = s->sessions->list[i];

        if (x && x->conn && !tables_requests_reads(x->conn, t))
            log_event(LOG_WARNING, "table-unread",
                      "digest=%s format=%" PRIu32 " session=%" PRIu64 " client=\"%s\" pid=%ld",
                      digest_hex(t->digest, hex), table_header(t->table)->version, x->serial, x->client_name,
                      (long) x->pid);
    }
}

/* The tables of an ACTIVATE, the first one and the others. */
static int tables_requests_read_set(struct request *rq, struct table_activation *set)
{
    const Kvcobra__ActivateTable *m = rq->message->activate_table;
    int r = request_digest(rq, &m->digest, "table digest", &set[0].digest);

    if (m->n_others >= WIRE_TABLES_MAX)
        return fail(&rq->error, -EINVAL, "%zu tables; at most %d change together", m->n_others + 1,
                    WIRE_TABLES_MAX);
    if (m->n_others > 0 && m->revision != 0)
        return fail(&rq->error, -EINVAL, "a revision is of one model, and the tables are of %zu",
                    m->n_others + 1);

    set[0].revision = m->revision;
    for (size_t i = 0; r == 0 && i < m->n_others; i++)
        r = request_digest(rq, &m->others[i], "table digest", &set[i + 1].digest);
    return r;
}

static int tables_requests_handle_activate(struct request *rq)
{
    const Kvcobra__ActivateTable *m = rq->message->activate_table;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__ActivateTableReply *reply = scratch->body;
    struct table_activation set[WIRE_TABLES_MAX] = {{0}};
    enum table_outcome outcome;
    int r;

    r = tables_requests_read_set(rq, set);
    if (r == 0)
        r = tables_activate(rq->server->tables, set, m->n_others + 1, ev_now_ms(rq->server->ev), &rq->error);
    if (r < 0)
        return r;

    for (size_t i = 0; i <= m->n_others; i++)
        tables_requests_warn_readers(rq->server, set[i].digest);
    outcome = set[0].outcome;
    for (size_t i = 0; i < m->n_others; i++) {
        scratch->revisions[i] = set[i + 1].revision;
        if (set[i + 1].outcome == OUTCOME_APPLIED)
            outcome = OUTCOME_APPLIED;
    }

    memcpy(scratch->digest, set[0].previous, DIGEST_BYTES);
    kvcobra__activate_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    reply->revision = set[0].revision;
    reply->previous = bytes_view(scratch->digest, DIGEST_BYTES);
    reply->other_revisions = scratch->revisions;
    reply->n_other_revisions = m->n_others;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_ACTIVATE_TABLE;
    rq->reply.activate_table = reply;
    return request_outcome(rq, outcome, m->revision, set[0].revision, "activated another table");
}
REQUEST(request_activate_table) = {.body = KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE,
                                   .run = tables_requests_handle_activate,
                                   .needs = CONN_OPEN,
                                   .sockets = ON_OPERATOR,
                                   .changes_state = true};

static int tables_requests_handle_rollback(struct request *rq)
{
    const Kvcobra__RollbackTable *m = rq->message->rollback_table;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__RollbackTableReply *reply = scratch->body;
    enum table_outcome outcome;
    const uint8_t *digest;
    uint64_t revision;
    int r;

    r = request_digest(rq, &m->digest, "table digest", &digest);
    if (r < 0)
        return r;

    r = tables_rollback(rq->server->tables, digest, m->revision, ev_now_ms(rq->server->ev), &outcome,
                        &revision, scratch->digest, &rq->error);
    if (r < 0)
        return r;

    kvcobra__rollback_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    reply->revision = revision;
    reply->active = bytes_view(scratch->digest, DIGEST_BYTES);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_ROLLBACK_TABLE;
    rq->reply.rollback_table = reply;
    return request_outcome(rq, outcome, m->revision, revision, "activated another table");
}
REQUEST(request_rollback_table) = {.body = KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE,
                                   .run = tables_requests_handle_rollback,
                                   .needs = CONN_OPEN,
                                   .sockets = ON_OPERATOR,
                                   .changes_state = true};

static int tables_requests_handle_retire(struct request *rq)
{
    const Kvcobra__RetireTable *m = rq->message->retire_table;
    Kvcobra__RetireTableReply *reply = rq->server->scratch->body;
    const struct table_model *model;
    enum table_outcome outcome;
    const uint8_t *digest;
    struct table_entry *t;
    int r;

    r = request_digest(rq, &m->digest, "table digest", &digest);
    if (r < 0)
        return r;

    r = tables_retire(rq->server->tables, digest, m->revision, ev_now_ms(rq->server->ev), &outcome, &t,
                      &rq->error);
    if (r < 0)
        return r;

    kvcobra__retire_table_reply__init(reply);
    reply->outcome = (Kvcobra__Outcome) outcome;
    reply->state = (Kvcobra__TableState) t->state;
    reply->references = t->n_refs;
    reply->pages = table_entry_pages(t);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_RETIRE_TABLE;
    rq->reply.retire_table = reply;
    model = table_model_find(rq->server->tables, t->model_digest);
    table_forget_rejected(rq->server->tables, t);
    return request_outcome(rq, outcome, m->revision, model ? model->revision : 0, "activated another table");
}
REQUEST(request_retire_table) = {.body = KVCOBRA__REQUEST__BODY_RETIRE_TABLE,
                                 .run = tables_requests_handle_retire,
                                 .needs = CONN_OPEN,
                                 .sockets = ON_OPERATOR,
                                 .changes_state = true};
