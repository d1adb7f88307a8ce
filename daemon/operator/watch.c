/* What operators watch: LIST_SESSIONS, LIST_EVENTS; and DISCONNECT_SESSION, which ends what they see. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/log_history.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/orphans.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/store/tenant_types.h"

/* ---- sessions ---- */

static int watch_by_number(const void *a, const void *b)
{
    const struct session *x = *(const struct session *const *) a, *y = *(const struct session *const *) b;

    return (x->serial > y->serial) - (x->serial < y->serial);
}

static void watch_fill_session(const struct session *x, uint64_t now_ms, Kvcobra__SessionInfo *info)
{
    kvcobra__session_info__init(info);
    info->session = x->serial;
    info->client_name = (char *) x->client_name;
    info->tenant = (char *) x->tenant->name;
    info->pid = (uint32_t) x->pid;
    info->uid = x->uid;
    info->connected = x->conn != NULL;
    info->age_ms = now_ms - x->opened_ms;
    info->idle_ms = now_ms > x->seen_ms ? now_ms - x->seen_ms : 0;
    info->models = x->n_models;
    info->leases = x->leases.n_leases;
    info->held_pages = x->leases.n_held + orphans_holds(x->sessions, x->number);
    info->reservations = x->n_reservations + x->n_copying;
    info->arena_bytes = x->arena ? x->sessions->config->arena_bytes : 0;
    info->hits = x->hits;
    info->misses = x->misses;
}

static int watch_handle_list_sessions(struct request *rq)
{
    struct server *s = rq->server;
    struct reply_scratch *scratch = s->scratch;
    Kvcobra__ListSessionsReply *reply = scratch->body;
    _cleanup_(freep) const struct session **found = calloc((size_t) s->sessions->n + 1, sizeof(*found));
    uint64_t after = rq->message->list_sessions->after, now_ms = ev_now_ms(s->ev);
    size_t n = 0;

    if (!found)
        return fail(&rq->error, -ENOMEM, "out of memory for a list of sessions");

    for (uint32_t i = 0; i < s->sessions->n_max; i++)
        if (s->sessions->list[i] && s->sessions->list[i]->serial > after)
            found[n++] = s->sessions->list[i];
    qsort(found, n, sizeof(*found), watch_by_number);

    kvcobra__list_sessions_reply__init(reply);
    reply->more = n > WIRE_SESSIONS_MAX;
    reply->n_sessions = reply->more ? WIRE_SESSIONS_MAX : n;
    reply->sessions = scratch->session_pointers;
    for (size_t i = 0; i < reply->n_sessions; i++) {
        watch_fill_session(found[i], now_ms, &scratch->sessions[i]);
        scratch->session_pointers[i] = &scratch->sessions[i];
    }

    rq->reply.body_case = KVCOBRA__REPLY__BODY_LIST_SESSIONS;
    rq->reply.list_sessions = reply;
    return 0;
}
REQUEST(request_list_sessions) = {.body = KVCOBRA__REQUEST__BODY_LIST_SESSIONS,
                                  .run = watch_handle_list_sessions,
                                  .needs = CONN_OPEN,
                                  .sockets = ON_OPERATOR};

static int watch_handle_disconnect(struct request *rq)
{
    struct server *s = rq->server;
    Kvcobra__DisconnectSessionReply *reply = s->scratch->body;
    uint64_t number = rq->message->disconnect_session->session;
    const struct session *x = NULL;

    for (uint32_t i = 0; i < s->sessions->n_max && !x; i++)
        if (s->sessions->list[i] && s->sessions->list[i]->serial == number)
            x = s->sessions->list[i];
    if (!x)
        return fail(&rq->error, -ENOENT, "there is no session %" PRIu64 ": \"kvcobra clients\" lists them",
                    number);
    if (!x->conn)
        return fail(&rq->error, -ENOTCONN,
                    "session %" PRIu64 " is not connected: its process %ld holds pages until it exits",
                    number, (long) x->pid);

    kvcobra__disconnect_session_reply__init(reply);
    reply->pid = (uint32_t) x->pid;
    log_event(LOG_NOTICE, "session-disconnected", "session=%" PRIu64 " pid=%ld tenant=%s message=\"%s\"",
              x->serial, (long) x->pid, x->tenant->name, "an operator closed its connection");
    conn_close(x->conn); /* may free the session */
    rq->reply.body_case = KVCOBRA__REPLY__BODY_DISCONNECT_SESSION;
    rq->reply.disconnect_session = reply;
    return 0;
}
REQUEST(request_disconnect_session) = {.body = KVCOBRA__REQUEST__BODY_DISCONNECT_SESSION,
                                       .run = watch_handle_disconnect,
                                       .needs = CONN_OPEN,
                                       .sockets = ON_OPERATOR};

/* ---- events ---- */

static int watch_handle_list_events(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__ListEventsReply *reply = scratch->body;
    struct log_history_line lines[WIRE_EVENTS_MAX];
    uint64_t last;
    size_t n = log_history_read(rq->message->list_events->after, lines, WIRE_EVENTS_MAX, &last);

    kvcobra__list_events_reply__init(reply);
    for (size_t i = 0; i < n; i++) {
        Kvcobra__LogEvent *to = &scratch->events[i];

        kvcobra__log_event__init(to);
        to->number = lines[i].number;
        to->time_us = lines[i].time_us;
        to->level = (uint32_t) lines[i].level;
        (void) snprintf(scratch->event_texts[i], sizeof(scratch->event_texts[i]), "%s", lines[i].json);
        to->json = bytes_view(scratch->event_texts[i], strlen(scratch->event_texts[i]));
        free(lines[i].json);
        scratch->event_pointers[i] = to;
    }

    reply->n_events = n;
    reply->events = scratch->event_pointers;
    reply->last = last;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_LIST_EVENTS;
    rq->reply.list_events = reply;
    return 0;
}
REQUEST(request_list_events) = {.body = KVCOBRA__REQUEST__BODY_LIST_EVENTS,
                                .run = watch_handle_list_events,
                                .needs = CONN_OPEN,
                                .sockets = ON_OPERATOR};
