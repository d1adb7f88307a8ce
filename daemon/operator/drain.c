/* DRAIN, and what is refused meanwhile; see drain.h. */
#include "daemon/operator/drain.h"

#include <errno.h>
#include <inttypes.h>

#include "daemon/requests/conn.h"
#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/server.h"
#include "daemon/session/session.h"

static int drain_refuse(struct request *rq, const char *what)
{
    return fail(&rq->error, -ESHUTDOWN,
                "kvcobrad is draining before it is stopped and takes no new %s: go on privately, or "
                "come again later",
                what);
}

int drain_check(struct request *rq)
{
    if (!rq->server->draining)
        return 0;
    switch (rq->message->body_case) {
    case KVCOBRA__REQUEST__BODY_OPEN_MODEL:
        return drain_refuse(rq, "models");
    case KVCOBRA__REQUEST__BODY_LEND_EXTENT:
        return drain_refuse(rq, "memory");
    case KVCOBRA__REQUEST__BODY_RESERVE:
        return drain_refuse(rq, "pages");
    case KVCOBRA__REQUEST__BODY_APPEND_RAW:
        return rq->message->append_raw->only_find ? 0 : drain_refuse(rq, "pages");
    default:
        return 0;
    }
}

int drain_check_session(struct request *rq)
{
    return rq->server->draining && !rq->conn->is_operator ? drain_refuse(rq, "sessions") : 0;
}

static void drain_fill(const struct server *s, Kvcobra__DrainReply *reply)
{
    kvcobra__drain_reply__init(reply);
    reply->draining = s->draining;
    reply->sessions = s->n_sessions;
    for (uint32_t i = 0; i < s->n_sessions_max; i++) {
        reply->held_pages += ownerless_holds(s, i);
        if (s->sessions[i]) {
            reply->reservations += s->sessions[i]->n_reservations + s->sessions[i]->n_copying;
            reply->held_pages += s->sessions[i]->leases.n_held;
        }
    }
}

int handle_drain(struct request *rq)
{
    const Kvcobra__Drain *m = rq->message->drain;
    struct server *s = rq->server;
    Kvcobra__DrainReply *reply = &s->scratch->body.drain;

    if (!m->ask && s->draining == m->off) {
        s->draining = !m->off;
        log_event(LOG_NOTICE, "drain", "draining=%s sessions=%" PRIu32, s->draining ? "yes" : "no",
                  s->n_sessions);
    }
    drain_fill(s, reply);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_DRAIN;
    rq->reply.drain = reply;
    return 0;
}
