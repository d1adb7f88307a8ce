/* Sessions of the daemon's clients, and its log. */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/kvcobra-operator.h"
#include "client/operator/operator_call.h"

/* ---- sessions ---- */

static void sessions_read(const Kvcobra__SessionInfo *from, kvc_session_info *to)
{
    *to = (kvc_session_info){
        .struct_bytes = sizeof(*to),
        .session = from->session,
        .pid = from->pid,
        .uid = from->uid,
        .connected = from->connected,
        .models = from->models,
        .age_ms = from->age_ms,
        .idle_ms = from->idle_ms,
        .leases = from->leases,
        .held_pages = from->held_pages,
        .reservations = from->reservations,
        .arena_bytes = from->arena_bytes,
        .hits = from->hits,
        .misses = from->misses,
    };
    (void) snprintf(to->client_name, sizeof(to->client_name), "%s", from->client_name);
    (void) snprintf(to->tenant, sizeof(to->tenant), "%s", from->tenant);
}

/* One request. @after: the last number so far, which grows with each answer, so that the list ends. */
static int sessions_list_some(kvc_client *c, struct options_list *sessions, uint64_t *after, bool *ret_more)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ListSessions list = KVCOBRA__LIST_SESSIONS__INIT;
    const Kvcobra__ListSessionsReply *got;
    int r;

    list.after = *after;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_LIST_SESSIONS, &list.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->list_sessions;
    if (options_list_reserve(sessions, got->n_sessions) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for %zu sessions", got->n_sessions);

    for (size_t i = 0; i < got->n_sessions; i++) {
        kvc_session_info info;

        if (got->sessions[i]->session <= *after)
            return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: sessions are not in order");
        sessions_read(got->sessions[i], &info);
        options_list_add(sessions, &info, sizeof(info));
        *after = info.session;
    }

    *ret_more = got->more && got->n_sessions > 0;
    return 0;
}

int kvc_session_list(kvc_client *c, size_t item_bytes, kvc_session_info **ret_sessions, size_t *ret_n)
{
    _cleanup_(options_list_deinit) struct options_list sessions = {.item_bytes = item_bytes};
    uint64_t after = 0;
    bool more = true;
    int r;

    r = operator_enter(c, ret_sessions && ret_n, "kvc_session_list: ret_sessions or ret_n is NULL");
    if (r == 0)
        r = options_check(item_bytes, sizeof(**ret_sessions), "kvc_session_info", &c->error);
    while (r == 0 && more)
        r = sessions_list_some(c, &sessions, &after, &more);
    if (r < 0)
        return r;

    *ret_n = sessions.n;
    *ret_sessions = take_ptr(sessions.items);
    return 0;
}

int kvc_session_disconnect(kvc_client *c, uint64_t session, uint32_t *ret_pid)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__DisconnectSession disconnect = KVCOBRA__DISCONNECT_SESSION__INIT;
    int r;

    r = operator_enter(c, true, "");
    if (r < 0)
        return r;

    disconnect.session = session;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_DISCONNECT_SESSION, &disconnect.base, -1, &reply);
    if (r == 0 && ret_pid)
        *ret_pid = reply.message->disconnect_session->pid;
    return r;
}

/* ---- events ---- */

int kvc_event_list(kvc_client *c, uint64_t after, size_t item_bytes, kvc_event **ret_events, size_t *ret_n,
                   uint64_t *ret_last)
{
    _cleanup_(options_list_deinit) struct options_list events = {.item_bytes = item_bytes};
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ListEvents list = KVCOBRA__LIST_EVENTS__INIT;
    const Kvcobra__ListEventsReply *got;
    int r;

    r = operator_enter(c, ret_events && ret_n, "kvc_event_list: ret_events or ret_n is NULL");
    if (r < 0)
        return r;

    r = options_check(item_bytes, sizeof(**ret_events), "kvc_event", &c->error);
    if (r < 0)
        return r;

    list.after = after;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_LIST_EVENTS, &list.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->list_events;
    if (options_list_reserve(&events, got->n_events) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for %zu events", got->n_events);

    for (size_t i = 0; i < got->n_events; i++) {
        const Kvcobra__LogEvent *from = got->events[i];
        kvc_event event = {.struct_bytes = sizeof(event),
                           .number = from->number,
                           .time_us = from->time_us,
                           .level = from->level};

        if (from->number <= after || from->json.len >= sizeof(event.json))
            return fail(&c->error, -EPROTO,
                        "kvcobrad's answer is not valid: events are not in order, or too long");
        if (from->json.len > 0)
            memcpy(event.json, from->json.data, from->json.len);
        options_list_add(&events, &event, sizeof(event));
        after = from->number;
    }

    if (ret_last)
        *ret_last = got->last;
    *ret_n = events.n;
    *ret_events = take_ptr(events.items);
    return 0;
}
