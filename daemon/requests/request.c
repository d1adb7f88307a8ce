/* From a packet to its reply; see request.h. */
#include "daemon/requests/request.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "daemon/requests/conn.h"
#include "daemon/operator/drain.h"
#include "daemon/session/external_memory.h"
#include "daemon/loop/log.h"
#include "daemon/loop/metrics.h"
#include "daemon/server.h"
#include "daemon/session/session.h"
#include "daemon/tables/tables.h"

enum { ON_CLIENT = 1, ON_OPERATOR = 2, ON_BOTH = 3 };

static const struct handler {
    int (*run)(struct request *rq);
    enum conn_state needs; /* least state of the connection */
    unsigned sockets;
} handlers[] = {
    [KVCOBRA__REQUEST__BODY_HELLO] = {handle_hello, CONN_NEW, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_CONFIRM] = {handle_confirm, CONN_GREETED, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_BYE] = {handle_bye, CONN_NEW, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_OPEN_MODEL] = {handle_open_model, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_GET_EXTENT] = {handle_get_extent, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_LEND_EXTENT] = {handle_lend_extent, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_LIST_TABLES] = {handle_list_tables, CONN_OPEN, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_FETCH_TABLE] = {handle_fetch_table, CONN_OPEN, ON_BOTH},
    [KVCOBRA__REQUEST__BODY_REF_TABLE] = {handle_ref_table, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_UNREF_TABLE] = {handle_unref_table, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_STAGE_TABLE] = {handle_stage_table, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE] = {handle_activate_table, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE] = {handle_rollback_table, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_RETIRE_TABLE] = {handle_retire_table, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_RESERVE] = {handle_reserve, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_COMMIT] = {handle_commit, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_ABORT] = {handle_abort, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_LEASE] = {handle_lease, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_KEEP_LEASES] = {handle_keep_leases, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_RELEASE] = {handle_release, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_APPEND_RAW] = {handle_append_raw, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_READ_RAW] = {handle_read_raw, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_GET_STATUS] = {handle_get_status, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_EVICT] = {handle_evict, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_SHADOW_TABLE] = {handle_shadow_table, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_CANARY_TABLE] = {handle_canary_table, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_REPORT] = {handle_report, CONN_OPEN, ON_CLIENT},
    [KVCOBRA__REQUEST__BODY_FETCH_MOMENTS] = {handle_fetch_moments, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_GET_FIT] = {handle_get_fit, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_SET_QUOTA] = {handle_set_quota, CONN_OPEN, ON_OPERATOR},
    [KVCOBRA__REQUEST__BODY_DRAIN] = {handle_drain, CONN_OPEN, ON_OPERATOR},
};

/* What the daemon knows a request as; for sentences. */
static const char *request_name(const Kvcobra__Request *m)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&kvcobra__request__descriptor, (unsigned) m->body_case);

    return f ? f->name : "empty";
}

static int request_dispatch(struct request *rq)
{
    const struct conn *c = rq->conn;
    unsigned n = (unsigned) rq->message->body_case;
    unsigned socket = c->is_operator ? ON_OPERATOR : ON_CLIENT;
    const struct handler *h = n < sizeof(handlers) / sizeof(handlers[0]) ? &handlers[n] : NULL;
    int r;

    if (!h || !h->run)
        return fail(&rq->error, -EOPNOTSUPP, "this kvcobrad does not know the request; it speaks protocol %d",
                    PROTO_VERSION);
    if (c->state < h->needs)
        return fail(&rq->error, -EPROTO, "%s before %s", request_name(rq->message),
                    c->state == CONN_NEW ? "hello" : "confirm");
    if (!(h->sockets & socket))
        return fail(&rq->error, -EPERM, "%s is not served on the %s socket", request_name(rq->message),
                    c->is_operator ? "operator" : "client");
    r = drain_check(rq);
    return r < 0 ? r : h->run(rq);
}

int request_may_send_fds(struct request *rq)
{
    if (rq->conn->fds_sent && !ev_stream_drained(rq->conn->stream))
        return fail(&rq->error, -EAGAIN,
                    "an earlier reply with descriptors is still unread: read it, then ask again");
    return 0;
}

static void request_close_all(const int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void) close(fds[i]);
}

/* The loop closes what it sent, so it gets copies. */
static int request_copy_fds(struct request *rq, int *ret)
{
    for (size_t i = 0; i < rq->n_fds; i++) {
        ret[i] = fcntl(rq->fds[i], F_DUPFD_CLOEXEC, 3);
        if (ret[i] < 0) {
            int r = errno == EMFILE ? -EAGAIN : -errno;

            request_close_all(ret, i);
            return fail(&rq->error, r, "kvcobrad has no descriptor left for this reply: ask again later");
        }
    }
    return 0;
}

static void request_reply_failure(struct request *rq, int err)
{
    rq->reply.err = err;
    rq->reply.message = rq->error.text[0] ? rq->error.text : strerror(-err);
    rq->n_fds = 0;
}

static int request_send_reply(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    int fds[WIRE_FDS_MAX];
    ssize_t bytes;
    int r;

    rq->reply.id = rq->message->id;
    rq->reply.boot_id = bytes_view(rq->server->boot_id, BOOT_ID_BYTES);
    r = request_copy_fds(rq, fds);
    if (r < 0)
        request_reply_failure(rq, r);
    bytes = wire_reply_pack(&rq->reply, scratch->packet);
    if (bytes < 0) {
        request_close_all(fds, rq->n_fds);
        return (int) bytes;
    }
    rq->conn->fds_sent |= rq->n_fds > 0;
    return ev_stream_send(rq->conn->stream, scratch->packet, (size_t) bytes, fds, rq->n_fds);
}

/* Sends what a handler that returned @r says. Return: 0; negative: the connection is of no use any more. */
static int request_send_answer(struct request *rq, int r)
{
    const struct conn *c = rq->conn;

    if (r < 0)
        request_reply_failure(rq, r);
    r = request_send_reply(rq);
    metrics_note_request(&rq->server->metrics, (unsigned) rq->message->body_case,
                         metrics_now_ns() - rq->began_ns, rq->reply.err);
    if (r == -ENOBUFS)
        log_event(LOG_NOTICE, "client-does-not-read", "pid=%ld uid=%ld, closing the connection",
                  (long) c->peer.pid, (long) c->peer.uid);
    wire_request_free((Kvcobra__Request *) rq->message);
    return r;
}

void request_answer(struct request *rq, int r)
{
    struct server *s = rq->server;

    if (r == REQUEST_PENDING)
        return;
    if (rq->conn->closed)
        wire_request_free((Kvcobra__Request *) rq->message);
    else if (request_send_answer(rq, r) < 0)
        conn_close(rq->conn);
    tables_retire_idle(&s->tables, ev_now_ms(s->ev));
}

int request_handle(struct conn *c, const void *data, struct wire_packet *packet)
{
    struct server *s = c->server;
    struct request rq = {
        .server = s,
        .conn = c,
        .session = c->session,
        .packet = packet,
        .began_ns = metrics_now_ns(),
    };
    Kvcobra__Request *message = NULL;
    int r = wire_request_unpack(data, packet->bytes, &message);

    if (r < 0) {
        if (log_is_due(++s->refused_packets))
            log_event(LOG_NOTICE, "packet-refused",
                      "pid=%ld uid=%ld bytes=%zu refused=%" PRIu64 " message=\"%s\", closing the connection",
                      (long) c->peer.pid, (long) c->peer.uid, packet->bytes, s->refused_packets,
                      strerror(-r));
        return r;
    }
    if (c->session)
        c->session->seen_ms = ev_now_ms(s->ev);
    kvcobra__reply__init(&rq.reply);
    rq.message = message;
    r = request_dispatch(&rq);
    wire_packet_close_fds(packet); /* whoever sees the reply can rely on it */
    r = r == REQUEST_PENDING ? 0 : request_send_answer(&rq, r);
    tables_retire_idle(&s->tables, ev_now_ms(s->ev));
    return r;
}

int request_table(struct request *rq, const ProtobufCBinaryData *digest, struct table_entry **ret)
{
    struct table_entry *t;

    if (digest->len != DIGEST_BYTES)
        return fail(&rq->error, -EINVAL, "a table digest of %zu bytes instead of %d", digest->len,
                    DIGEST_BYTES);
    t = tables_find(&rq->server->tables, digest->data);
    if (!t)
        return fail(&rq->error, -ENOENT, "no such table here");
    if (!t->table || !session_has_table(rq->session, t))
        return fail(&rq->error, -ESTALE, "the table is %s and this session has no reference on it",
                    table_state_name(t->state));
    *ret = t;
    return 0;
}
