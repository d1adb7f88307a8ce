/* See request.h. */
#include "daemon/requests/request.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/core_file.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/metrics.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables.h"

int request_may_send_fds(struct request *rq)
{
    if (rq->conn->fds_sent && !ev_stream_drained(rq->conn->stream))
        return fail(&rq->error, -EAGAIN,
                    "an earlier reply with descriptors is still unread: read it, then retry");
    return 0;
}

static void request_close_all(const int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void) close(fds[i]);
}

/* The loop closes the descriptors that it sent, so it gets copies. */
static int request_copy_fds(struct request *rq, int *ret)
{
    for (size_t i = 0; i < rq->n_fds; i++) {
        if (rq->fds_are_owned) {
            ret[i] = rq->fds[i];
            continue;
        }
        ret[i] = fcntl(rq->fds[i], F_DUPFD_CLOEXEC, 3);
        if (ret[i] < 0) {
            int r = errno == EMFILE ? -EAGAIN : -errno;

            request_close_all(ret, i);
            return fail(&rq->error, r, "kvcobrad has no descriptor left for this reply: retry later");
        }
    }
    return 0;
}

struct reply_scratch *request_scratch_new(void)
{
    const ProtobufCMessageDescriptor *d = &kvcobra__reply__descriptor;
    struct reply_scratch *scratch;
    size_t n = 0;

    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCMessageDescriptor *body = d->fields[i].descriptor; /* NULL: a field of Reply itself */

        if (d->fields[i].type == PROTOBUF_C_TYPE_MESSAGE && body->sizeof_message > n)
            n = body->sizeof_message;
    }

    scratch = calloc(1, sizeof(*scratch) + n);
    if (!scratch)
        return NULL;

    scratch->body = scratch->body_memory;
    core_file_exclude(scratch, sizeof(*scratch) + n);
    return scratch;
}

char *request_sentence(struct request *rq, int err)
{
    return rq->error.text[0] ? rq->error.text : strerror(-err);
}

static void request_reply_failure(struct request *rq, int err)
{
    rq->reply.err = err;
    rq->reply.message = request_sentence(rq, err);
    rq->n_fds = 0;
}

static int request_send_reply(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    int fds[WIRE_FDS_MAX] = {0};
    ssize_t bytes;
    int r;

    rq->reply.id = rq->message->id;
    rq->reply.boot_id = bytes_view(rq->server->devices->boot_id, BOOT_ID_BYTES);
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

int request_reply(struct request *rq, int r)
{
    const struct conn *c = rq->conn;

    if (r < 0)
        request_reply_failure(rq, r);
    r = request_send_reply(rq);
    metrics_note_request(rq->server->metrics, (unsigned) rq->message->body_case,
                         metrics_now_ns() - rq->began_ns, rq->reply.err);
    if (r == -ENOBUFS)
        log_client_event(&c->account->log, LOG_NOTICE, "client-does-not-read",
                         "pid=%ld uid=%ld, closing the connection", (long) c->peer.pid, (long) c->peer.uid);
    return r;
}

void request_answer(struct request *rq, int r)
{
    struct server *s = rq->server;

    if (r == REQUEST_PENDING)
        return;
    if (!rq->conn->closed && request_reply(rq, r) < 0)
        conn_close(rq->conn);
    tables_retire_idle(s->tables, ev_now_ms(s->ev));
}

/* ---- fields of messages ---- */

void request_set_session(struct request *rq, struct session *x)
{
    rq->session = x;
    rq->tenant = x ? x->tenant : NULL;
    rq->store = x ? store_of(x->tenant) : NULL;
}

int request_check_bytes(struct request *rq, const ProtobufCBinaryData *field, size_t n, const char *what)
{
    if (field->len != n)
        return fail(&rq->error, -EINVAL, "a %s of %zu bytes instead of %zu", what, field->len, n);
    return 0;
}

int request_digest(struct request *rq, const ProtobufCBinaryData *field, const char *what,
                   const uint8_t **ret)
{
    int r = request_check_bytes(rq, field, DIGEST_BYTES, what);

    if (r < 0)
        return r;

    *ret = field->data;
    return 0;
}

int request_find_table(struct request *rq, const ProtobufCBinaryData *digest, struct table_entry **ret)
{
    const uint8_t *bytes;
    int r = request_digest(rq, digest, "table digest", &bytes);

    if (r < 0)
        return r;

    *ret = table_find(rq->server->tables, bytes);
    return *ret ? 0 : fail(&rq->error, -ENOENT, "no such table here");
}

int request_check_table(struct request *rq, const struct table_entry *t)
{
    if (!t->table || !session_has_table(rq->session, t))
        return fail(&rq->error, -ESTALE, "the table is %s and this session has no reference on it",
                    table_state_name(t->state));
    return 0;
}

int request_table(struct request *rq, const ProtobufCBinaryData *digest, struct table_entry **ret)
{
    struct table_entry *t;
    int r = request_find_table(rq, digest, &t);

    if (r < 0)
        return r;

    r = request_check_table(rq, t);
    if (r < 0)
        return r;

    *ret = t;
    return 0;
}

int request_outcome(struct request *rq, enum table_outcome outcome, uint64_t requested, uint64_t present,
                    const char *conflict)
{
    if (outcome == OUTCOME_STALE)
        return fail(&rq->error, -ESTALE, "revision %" PRIu64 " is older than the model's, %" PRIu64,
                    requested, present);
    if (outcome == OUTCOME_CONFLICT)
        return fail(&rq->error, -EEXIST, "revision %" PRIu64 " %s", present, conflict);
    return 0;
}

/* ---- draining ---- */

static int request_refuse_draining(struct request *rq, const char *what)
{
    return fail(&rq->error, -ESHUTDOWN,
                "kvcobrad is draining before it is stopped and takes no new %s: continue without sharing, or "
                "retry later",
                what);
}

int request_check_draining(struct request *rq)
{
    if (!rq->server->draining)
        return 0;

    switch (rq->message->body_case) {
    case KVCOBRA__REQUEST__BODY_OPEN_MODEL:
        return request_refuse_draining(rq, "models");
    case KVCOBRA__REQUEST__BODY_RESERVE:
        return request_refuse_draining(rq, "pages");
    case KVCOBRA__REQUEST__BODY_APPEND_RAW:
        return rq->message->append_raw->only_find ? 0 : request_refuse_draining(rq, "pages");
    default:
        return 0;
    }
}

int request_check_draining_session(struct request *rq)
{
    if (!rq->server->draining || rq->conn->is_operator)
        return 0;
    return request_refuse_draining(rq, "sessions");
}
