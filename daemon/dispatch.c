/* From a packet to its handler. See server_parts.h. */
#include "daemon/server_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/metrics.h"
#include "daemon/offload/offload.h"
#include "daemon/operator/handlers.h"
#include "daemon/requests/change.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/handlers.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/session/session_types.h"
#include "daemon/tables/tables.h"

enum { ON_CLIENT = 1, ON_OPERATOR = 2, ON_BOTH = 3 };

static const struct dispatch_entry {
    int (*run)(struct request *rq);
    enum conn_state needs; /* the earliest state of the connection in which the request is served */
    unsigned sockets;
    bool changes_state; /* writes files of the state folder: runs through change_run() */
} handlers[] = {
    [KVCOBRA__REQUEST__BODY_HELLO] = {handshake_handle_hello, CONN_NEW, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_CONFIRM] = {handshake_handle_confirm, CONN_GREETED, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_BYE] = {handshake_handle_bye, CONN_NEW, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_OPEN_MODEL] = {models_handle_open, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_GET_EXTENT] = {models_handle_get_extent, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_GET_FILTER] = {models_handle_get_filter, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_LIST_TABLES] = {tables_requests_handle_list, CONN_OPEN, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_FETCH_TABLE] = {tables_requests_handle_fetch, CONN_OPEN, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_REF_TABLE] = {tables_requests_handle_ref, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_UNREF_TABLE] = {tables_requests_handle_unref, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_STAGE_TABLE] = {stage_handle, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE] = {tables_requests_handle_activate, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE] = {tables_requests_handle_rollback, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_RETIRE_TABLE] = {tables_requests_handle_retire, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_RESERVE] = {pages_write_handle_reserve, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_COMMIT] = {commit_handle, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_ABORT] = {pages_write_handle_abort, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_LEASE] = {pages_read_handle_lease, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_KEEP_LEASES] = {pages_read_handle_keep_leases, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_RELEASE] = {pages_read_handle_release, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_APPEND_RAW] = {raw_append_handle, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_READ_RAW] = {raw_read_handle, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_GET_STATUS] = {status_handle, CONN_OPEN, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_EVICT] = {operator_handle_evict, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_SHADOW_TABLE] = {trials_requests_handle_shadow, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_CANARY_TABLE] = {trials_requests_handle_canary, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_REPORT] = {report_handle, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_FETCH_MOMENTS] = {moments_handle_fetch, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_GET_FIT] = {trials_requests_handle_get_fit, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_SET_QUOTA] = {quota_handle_set, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_ALIAS_MODEL] = {aliases_requests_handle_alias, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_UNALIAS_MODEL] = {aliases_requests_handle_unalias, CONN_OPEN, ON_OPERATOR, true},
    [KVCOBRA__REQUEST__BODY_LIST_ALIASES] = {aliases_requests_handle_list, CONN_OPEN, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_DRAIN] = {drain_handle, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_LIST_SESSIONS] = {watch_handle_list_sessions, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_DISCONNECT_SESSION] = {watch_handle_disconnect, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_CONTROL_TIER] = {tier_handle_control, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_FLUSH] = {flush_handle, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_LOOKUP] = {lookup_handle, CONN_OPEN, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_PIN] = {pin_handle, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_LIST_EVENTS] = {watch_handle_list_events, CONN_OPEN, ON_OPERATOR},
};

/* The name of a request for sentences. */
static const char *dispatch_name(const Kvcobra__Request *m)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&kvcobra__request__descriptor, (unsigned) m->body_case);

    return f ? f->name : "empty";
}

/* A request of operators came over the clients' socket, or the other way round. */
static int dispatch_fail_socket(struct request *rq)
{
    const struct server *s = rq->server;
    bool is_operator = rq->conn->is_operator;
    const char *other = is_operator ? s->client_path : s->operator_path;

    return fail(&rq->error, -EPERM,
                "this is the socket of %s, which does not serve %s: use the socket of %s%s%s",
                is_operator ? "operators" : "clients", dispatch_name(rq->message),
                is_operator ? "clients" : "operators", other[0] ? ", " : "", other);
}

static int dispatch_request(struct request *rq)
{
    const struct conn *c = rq->conn;
    unsigned n = (unsigned) rq->message->body_case;
    unsigned socket = c->is_operator ? ON_OPERATOR : ON_CLIENT;
    const struct dispatch_entry *h = n < sizeof(handlers) / sizeof(handlers[0]) ? &handlers[n] : NULL;
    int r;

    if (!h || !h->run)
        return fail(&rq->error, -EOPNOTSUPP, "unknown request: this kvcobrad speaks protocol %d",
                    PROTO_VERSION);
    if (c->state < h->needs)
        return fail(&rq->error, -EPROTO, "%s before %s", dispatch_name(rq->message),
                    c->state == CONN_NEW ? "hello" : "confirm");
    if (!(h->sockets & socket))
        return dispatch_fail_socket(rq);

    r = request_check_draining(rq);
    if (r < 0)
        return r;
    return h->changes_state ? change_run(rq, h->run) : h->run(rq);
}

/* Logs why a packet is refused before it is decoded, and tells a sender that speaks the protocol. */
static void dispatch_note_refused(struct conn *c, size_t bytes, int err)
{
    struct server *s = c->server;
    struct errmsg e;

    if (log_is_due(++s->conns->refused_packets))
        log_event(LOG_NOTICE, "packet-refused",
                  "pid=%ld uid=%ld bytes=%zu refused=%" PRIu64 " message=\"%s\", closing the connection",
                  (long) c->peer.pid, (long) c->peer.uid, bytes, s->conns->refused_packets,
                  wire_refusal(err));
    if (err == -EBADMSG)
        return;

    errmsg_set(&e, "a packet of this connection is refused, and the connection closed: %s",
               wire_refusal(err));
    conn_tell_reason(s, c->fd, err, &e);
}

int dispatch_packet(struct conn *c, const void *data, struct wire_packet *packet)
{
    struct server *s = c->server;
    struct request rq = {
        .server = s,
        .conn = c,
        .packet = packet,
        .began_ns = metrics_now_ns(),
    };
    Kvcobra__Request *message = NULL;
    int r = wire_request_unpack(data, packet->bytes, &message);

    if (r < 0) {
        dispatch_note_refused(c, packet->bytes, r);
        return r;
    }

    if (c->session)
        c->session->seen_ms = ev_now_ms(s->ev);
    request_set_session(&rq, c->session);
    kvcobra__reply__init(&rq.reply);
    rq.message = message;

    r = dispatch_request(&rq);
    /* before the reply, after which a client may rely on the daemon having no copy */
    wire_packet_close_fds(packet);
    r = r == REQUEST_PENDING ? 0 : request_reply(&rq, r);
    wire_request_free(message); /* a job that waits has a copy */
    tables_retire_idle(s->tables, ev_now_ms(s->ev));
    offload_note_requests(s->offload);
    return r;
}
