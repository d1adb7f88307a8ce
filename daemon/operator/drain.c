/* DRAIN: refuses new sessions, models and pages, and reports the holds and reservations of clients. */
#include <inttypes.h>

#include "daemon/loop/log.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/orphans.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"

static void drain_fill(const struct server *s, Kvcobra__DrainReply *reply)
{
    kvcobra__drain_reply__init(reply);
    reply->draining = s->draining;
    reply->sessions = s->sessions->n;
    for (uint32_t i = 0; i < s->sessions->n_max; i++) {
        reply->held_pages += orphans_holds(s->sessions, i);
        if (s->sessions->list[i]) {
            reply->reservations += s->sessions->list[i]->n_reservations + s->sessions->list[i]->n_copying;
            reply->held_pages += s->sessions->list[i]->leases.n_held;
        }
    }
}

static int drain_handle(struct request *rq)
{
    const Kvcobra__Drain *m = rq->message->drain;
    struct server *s = rq->server;
    Kvcobra__DrainReply *reply = s->scratch->body;

    if (!m->ask && s->draining == m->off) {
        s->draining = !m->off;
        if (s->draining && s->offload)
            offload_write_all(s->offload); /* so that little is left to write at the stop */
        log_event(LOG_NOTICE, "drain", "draining=%s sessions=%" PRIu32, s->draining ? "yes" : "no",
                  s->sessions->n);
    }

    drain_fill(s, reply);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_DRAIN;
    rq->reply.drain = reply;
    return 0;
}
REQUEST(request_drain) = {
    .body = KVCOBRA__REQUEST__BODY_DRAIN, .run = drain_handle, .needs = CONN_OPEN, .sockets = ON_OPERATOR};
