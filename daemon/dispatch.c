/* From a packet to its handler. See server_parts.h. */
#include "daemon/server_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/metrics.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/change.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/session_types.h"
#include "daemon/tables/tables.h"

/* ---- rows: REQUEST() of request_row.h ---- */

extern const struct request_row *const __start_kvc_requests[], *const __stop_kvc_requests[];

static bool dispatch_is_request(const ProtobufCFieldDescriptor *f)
{
    return f && f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
}

static int dispatch_add(struct dispatch_table *t, const struct request_row *row, struct errmsg *e)
{
    unsigned n = (unsigned) row->body;
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&kvcobra__request__descriptor, n);

    if (!dispatch_is_request(f))
        return fail(e, -ENOSYS, "kvcobrad is built wrongly: request %u of a handler is not in kvcobra.proto",
                    n);
    if (n >= METRICS_TYPES_MAX)
        return fail(e, -ENOSYS,
                    "kvcobrad is built wrongly: request %s has number %u, and METRICS_TYPES_MAX is %d",
                    f->name, n, METRICS_TYPES_MAX);
    if (t->rows[n])
        return fail(e, -ENOSYS, "kvcobrad is built wrongly: request %s has two handlers", f->name);

    t->rows[n] = row;
    return 0;
}

int dispatch_fill(struct dispatch_table *t, const struct request_row *const *rows, size_t n, struct errmsg *e)
{
    const ProtobufCMessageDescriptor *d = &kvcobra__request__descriptor;

    *t = (struct dispatch_table){{NULL}};
    for (size_t i = 0; i < n; i++) {
        int r = dispatch_add(t, rows[i], e);

        if (r < 0)
            return r;
    }

    for (unsigned i = 0; i < d->n_fields; i++)
        if (dispatch_is_request(&d->fields[i]) &&
            (d->fields[i].id >= METRICS_TYPES_MAX || !t->rows[d->fields[i].id]))
            return fail(e, -ENOSYS, "kvcobrad is built wrongly: request %s has no handler",
                        d->fields[i].name);
    return 0;
}

/* ---- packets ---- */

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
    const struct request_row *h = n < METRICS_TYPES_MAX ? rq->server->frame->requests.rows[n] : NULL;
    int r;

    if (!h)
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

static int dispatch_packet(struct conn *c, const void *data, struct wire_packet *packet)
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

int dispatch_start(struct server *s, struct errmsg *e)
{
    s->dispatch = dispatch_packet;
    return dispatch_fill(&s->frame->requests, __start_kvc_requests,
                         (size_t) (__stop_kvc_requests - __start_kvc_requests), e);
}
