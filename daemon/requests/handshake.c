/* HELLO, CONFIRM, BYE; conn.h describes the proof of the client's identity. */
#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/loop/log.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/persist.h"
#include "proto/hello_features.h"

/* The log has names in quotes, and terminals show them: they must not end the quotes or move the cursor. */
static bool handshake_is_name(const char *name)
{
    for (const char *c = name; *c; c++)
        if (*c < 0x20 || *c > 0x7e || *c == '"' || *c == '\\')
            return false;
    return true;
}

/* That both ends speak, the newest one; 0: none. */
static uint32_t handshake_version(const Kvcobra__Hello *m)
{
    return protocol_common(PROTO_VERSION_MIN, PROTO_VERSION, m->version_min, m->version_max);
}

static int handshake_check_hello(struct request *rq, const Kvcobra__Hello *m)
{
    if (rq->conn->state != CONN_NEW)
        return fail(&rq->error, -EPROTO, "a second hello on one connection");
    if (handshake_version(m) == 0)
        return fail(&rq->error, -EPROTO,
                    "this kvcobrad speaks protocol %d to %d, the client %" PRIu32 " to %" PRIu32,
                    PROTO_VERSION_MIN, PROTO_VERSION, m->version_min, m->version_max);
    if (strlen(m->client_name) > WIRE_CLIENT_NAME_BYTES_MAX)
        return fail(&rq->error, -EINVAL, "the client's name is longer than %d bytes",
                    WIRE_CLIENT_NAME_BYTES_MAX);
    if (!handshake_is_name(m->client_name))
        return fail(
            &rq->error, -EINVAL,
            "the client's name has a character that is not printable ASCII, or a quote or a backslash");
    if (m->session_token.len != 0)
        return request_check_bytes(rq, &m->session_token, SESSION_TOKEN_BYTES, "session token");
    return 0;
}

/* The session that HELLO's token names. A session on another device than HELLO names is not resumed. */
static struct session *handshake_find_session(const struct server *s, const struct conn *c,
                                              const uint8_t *token)
{
    for (uint32_t i = 0; i < s->sessions->n_max; i++)
        if (s->sessions->list[i] && s->sessions->list[i]->tenant->device == c->device &&
            session_is(s->sessions->list[i], token, c->peer.pid, c->account))
            return s->sessions->list[i];
    return NULL;
}

static void handshake_fill_hello_reply(struct request *rq)
{
    struct reply_scratch *scratch = rq->server->scratch;
    const struct config *config = rq->server->config;
    Kvcobra__HelloReply *reply = scratch->body;

    kvcobra__limits__init(&scratch->limits);
    scratch->limits.items_per_message = WIRE_ITEMS_MAX;
    scratch->limits.lease_ms = (uint32_t) config->lease_ms;
    scratch->limits.arena_bytes = config->arena_bytes;
    scratch->limits.quota_bytes =
        devices_limit(&rq->server->devices->list[0], config, rq->conn->account->name).quota_bytes;
    kvcobra__hello_reply__init(reply);
    reply->version = handshake_version(rq->message->hello);
    reply->features = rq->conn->features;
    reply->session_token = bytes_view(rq->conn->token, SESSION_TOKEN_BYTES);
    reply->limits = &scratch->limits;
    reply->resumed = rq->conn->resume != NULL;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_HELLO;
    rq->reply.hello = reply;
}

/*
 * Return: 0; -ENODEV: no such device, with the list of devices; -EAGAIN: it may be the one
 * that is being opened.
 */
static int handshake_find_device(struct request *rq, const char *uuid)
{
    struct devices *d = rq->server->devices;
    struct device *unknown = devices_unknown(d);
    char list[256] = "";
    size_t at = 0;
    int r;

    rq->conn->device = devices_find_uuid(d, uuid);
    if (rq->conn->device)
        return 0;

    r = unknown ? gpu_open_check(unknown, &rq->error) : 0;
    if (r < 0)
        return r;

    for (uint32_t i = 1; i < d->n && at < sizeof(list); i++)
        at +=
            (size_t) snprintf(list + at, sizeof(list) - at, "%s%s", i > 1 ? ", " : ", on ", d->list[i].uuid);
    return fail(&rq->error, -ENODEV, "this kvcobrad has no pages on \"%.48s\", only in the host's memory%s",
                uuid, list);
}

/* Whether a session may begin or be resumed now. */
static int handshake_check_session(struct request *rq)
{
    struct conn *c = rq->conn;
    int r;

    if (c->resume) /* a resumed session keeps its pages even if the GPU is unavailable now */
        return 0;

    r = request_check_draining_session(rq);
    if (r < 0)
        return r;
    return device_is_gpu(c->device) ? gpu_open_check(c->device, &rq->error) : 0;
}

static int handshake_handle_hello(struct request *rq)
{
    const Kvcobra__Hello *m = rq->message->hello;
    struct conn *c = rq->conn;
    int r = handshake_check_hello(rq, m);

    if (r < 0)
        return r;

    r = conn_identify(c, &rq->error);
    if (r < 0)
        return r;

    r = handshake_find_device(rq, m->device);
    if (r < 0)
        return r;

    c->pidfd = (int) syscall(SYS_pidfd_open, c->peer.pid, 0);
    if (c->pidfd < 0 && c->peer.pid == 0)
        return fail(&rq->error, -EOPNOTSUPP,
                    "kvcobrad cannot see the process of this client, which is outside its PID namespace: run "
                    "kvcobrad in that of the host, in a container with --pid host");
    if (c->pidfd < 0)
        return fail(&rq->error, errno == EMFILE ? -EAGAIN : -errno, "cannot open a pidfd of process %ld: %s",
                    (long) c->peer.pid, strerror(errno));

    if (m->session_token.len == SESSION_TOKEN_BYTES && !c->is_operator)
        c->resume = handshake_find_session(rq->server, c, m->session_token.data);
    r = handshake_check_session(rq);
    if (r < 0) {
        closep(&c->pidfd);
        c->pidfd = -1;
        return r;
    }

    if (c->resume)
        memcpy(c->token, c->resume->token, sizeof(c->token));
    else
        randombytes_buf(c->token, sizeof(c->token));
    memcpy(c->client_name, m->client_name, strlen(m->client_name) + 1);
    c->features = m->features & PROTO_FEATURES;
    c->state = CONN_GREETED;
    handshake_fill_hello_reply(rq);
    return 0;
}
REQUEST(request_hello) = {.body = KVCOBRA__REQUEST__BODY_HELLO,
                          .run = handshake_handle_hello,
                          .needs = CONN_NEW,
                          .sockets = ON_BOTH};

/* The session continues over this connection; its earlier one is closed. */
static void handshake_resume(struct conn *c)
{
    struct session *x = c->resume;
    struct conn *old = x->conn;

    c->resume = NULL;
    c->session = x;
    session_resume(x, c);
    closep(&c->pidfd);
    c->pidfd = -1;
    if (old) {
        old->session = NULL;
        conn_close(old);
    }
}

static void handshake_fill_confirm_reply(struct request *rq, bool resumed)
{
    struct reply_scratch *scratch = rq->server->scratch;
    const struct device *d = rq->conn->device;
    Kvcobra__ConfirmReply *reply = scratch->body;

    kvcobra__device__init(&scratch->device);
    scratch->device.name = (char *) d->name;
    scratch->device.uuid = (char *) d->uuid;
    scratch->device.pool_bytes = d->store.pool.pool_bytes;
    scratch->device.extent_bytes = d->store.pool.extent_bytes;
    kvcobra__confirm_reply__init(reply);
    reply->device = &scratch->device;
    reply->session = rq->conn->session ? rq->conn->session->serial : 0;
    reply->pool = bytes_view(persist_pool_id(rq->server->persist, d), BOOT_ID_BYTES);
    reply->resumed = resumed;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_CONFIRM;
    rq->reply.confirm = reply;
}

/* Takes the connection's pidfd over on success. */
static int handshake_new_session(struct request *rq)
{
    struct conn *c = rq->conn;
    struct session_record who = {.pid = (uint32_t) c->peer.pid, .uid = c->peer.uid};
    struct tenant *t;
    int r = request_check_draining_session(rq);

    if (r < 0)
        return r;

    r = devices_tenant(rq->server->devices, c->device, c->account, &t, &rq->error);
    if (r < 0)
        return r;

    memcpy(who.token, c->token, sizeof(who.token));
    memcpy(who.client_name, c->client_name, sizeof(who.client_name));
    r = session_new(rq->server->sessions, &who, t, c->pidfd, &c->session, &rq->error);
    sodium_memzero(who.token, sizeof(who.token)); /* stacks are in core files */
    if (r < 0)
        return r;

    c->session->conn = c;
    c->pidfd = -1;
    return 0;
}

static int handshake_handle_confirm(struct request *rq)
{
    struct conn *c = rq->conn;
    bool resumed = c->resume != NULL;

    if (c->state != CONN_GREETED)
        return fail(&rq->error, -EPROTO, "a second confirm on one connection");
    if (c->is_operator) {
        c->state = CONN_OPEN;
        handshake_fill_confirm_reply(rq, false);
        return 0;
    }

    if (resumed) {
        handshake_resume(c);
    } else {
        int r = handshake_new_session(rq);

        if (r < 0)
            return r;
    }

    c->state = CONN_OPEN;
    log_client_event(&c->account->log, LOG_INFO, "session-open",
                     "session=%" PRIu64 " resumed=%s client=\"%s\" pid=%ld uid=%ld tenant=%s",
                     c->session->serial, resumed ? "yes" : "no", c->client_name, (long) c->peer.pid,
                     (long) c->peer.uid, c->session->tenant->name);
    handshake_fill_confirm_reply(rq, resumed);
    return 0;
}
REQUEST(request_confirm) = {.body = KVCOBRA__REQUEST__BODY_CONFIRM,
                            .run = handshake_handle_confirm,
                            .needs = CONN_GREETED,
                            .sockets = ON_BOTH};

/* The client has dropped everything, its mappings too: nothing outlives the connection. */
static int handshake_handle_bye(struct request *rq)
{
    struct conn *c = rq->conn;

    if (c->session)
        c->session = session_close(c->session, "the client ended it");
    closep(&c->pidfd);
    c->pidfd = -1;
    c->resume = NULL;
    c->state = CONN_NEW;
    return 0;
}
REQUEST(request_bye) = {
    .body = KVCOBRA__REQUEST__BODY_BYE, .run = handshake_handle_bye, .needs = CONN_NEW, .sockets = ON_BOTH};
