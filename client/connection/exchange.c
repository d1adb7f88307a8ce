/*
 * Requests and replies; see connection.h. Replies are matched by id: a reply to a posted request that arrives
 * while another request is waited for is kept.
 */
#include "client/connection/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/connection/clock.h"

enum {
    ERRNO_MAX = 4095,
    /* Posts that the daemon may have to answer at a time. 4 requests and 4 replies of 512 pages fit the
     * buffers of a socket, so that neither side has to wait for the other one to read. */
    POSTS_SENT_MAX = 4,
    YIELDING_SENT_MAX = 2,
};

static int exchange_wait_for(int fd, short events, int64_t deadline_ms)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int64_t left = deadline_ms - clock_ms();
        int r = poll(&p, 1, left > 0 ? (int) left : 0);

        if (r > 0)
            return 0;
        if (r == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

static int exchange_send(struct connection *c, size_t bytes, const int *fds, size_t n_fds,
                         int64_t deadline_ms)
{
    for (;;) {
        int r = wire_send(c->fd, c->packet, bytes, fds, n_fds);

        if (r != -EAGAIN)
            return r;
        r = exchange_wait_for(c->fd, POLLOUT, deadline_ms);
        if (r < 0)
            return r;
    }
}

/* One reply that has arrived. Return: 0; -EAGAIN: none has; -EPIPE, -EPROTO, -EOPNOTSUPP ... */
static int exchange_receive(struct connection *c, struct reply *ret)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    int r = wire_receive(c->fd, c->packet, &reply.packet);

    if (r < 0)
        return r;

    r = wire_reply_unpack(c->packet, reply.packet.bytes, &reply.message);
    if (r < 0)
        return r == -ENOMEM || r == -EOPNOTSUPP ? r : -EPROTO;

    *ret = reply;
    reply = (struct reply){.message = NULL};
    return 0;
}

/* Packs @request into c->packet, with the next id.
 * Return: its bytes; -ENOTCONN, -EMSGSIZE with a sentence. */
static ssize_t exchange_pack(struct connection *c, Kvcobra__Request *request, struct errmsg *e)
{
    ssize_t bytes;

    if (!connection_is_open(c))
        return fail(e, -ENOTCONN,
                    c->greeted ? "the connection to kvcobrad is lost" : "not connected to kvcobrad");

    request->id = c->next_id;
    request->timeout_ms = c->request_ms;
    bytes = wire_request_pack(request, c->packet);
    if (bytes < 0)
        return fail(e, (int) bytes, "the request is too long for one packet");

    c->next_id++;
    return bytes;
}

/* Closes the connection after error @err of a request. Return: the error code and sentence for the caller. */
static int exchange_fail(struct connection *c, int err, struct errmsg *e)
{
    connection_close(c);
    switch (err) {
    case -EPIPE:
    case -ECONNRESET:
        return fail(e, -ENOTCONN, "kvcobrad at %s closed the connection; what sequences hold is now private",
                    c->path);
    case -ETIMEDOUT: /* -ENOTCONN is for connections that are lost, not for one that never was */
        return fail(e, c->greeted ? -ENOTCONN : -ETIMEDOUT,
                    "kvcobrad at %s did not answer within %g s: " CONNECTION_SILENT, c->path,
                    (c->request_ms + c->grace_ms) * 1e-3);
    case -EPROTO:
    case -EBADMSG:
    case -E2BIG:
        return fail(e, -EPROTO, "the reply from %s is not kvcobrad's protocol; the connection is closed",
                    c->path);
    case -EOPNOTSUPP:
        return fail(e, -EPROTO, "the reply from %s is refused and the connection closed: %s", c->path,
                    wire_refusal(err));
    default:
        return fail(e, -ENOTCONN, "connection to kvcobrad at %s failed: %s", c->path, strerror(-err));
    }
}

/* Whether @m answers request @id. A reply with id 0 refuses the connection, and so its first request. */
static bool exchange_answers(uint64_t id, const Kvcobra__Reply *m)
{
    return m->id == id || (id == 1 && m->id == 0 && m->err < 0);
}

/* Whether the reply belongs to request @id and has a valid form; it may have an errno. */
static bool exchange_is_valid(const struct connection *c, uint64_t id, const Kvcobra__Reply *m,
                              Kvcobra__Reply__BodyCase body)
{
    if (!exchange_answers(id, m) || m->err > 0 || m->err < -ERRNO_MAX ||
        !bytes_are(m->boot_id, BOOT_ID_BYTES))
        return false;
    if (id > 1 && memcmp(m->boot_id.data, c->boot_id, BOOT_ID_BYTES) != 0)
        return false; /* another daemon behind the same socket */
    return m->err < 0 || body == KVCOBRA__REPLY__BODY__NOT_SET || m->body_case == body;
}

/* ---- posts ---- */

static void exchange_unlink_post(struct connection *c, struct connection_post *p)
{
    struct connection_post **at = &c->posts;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    c->n_posts_sent -= p->state == POST_SENT;
    c->n_yielding_sent -= p->state == POST_SENT && p->yields;
    free(p->packet);
    p->packet = NULL;
    p->next = NULL;
}

static void exchange_end_post(struct connection *c, struct connection_post *p, int err)
{
    exchange_unlink_post(c, p);
    p->state = POST_DONE;
    p->err = err;
    p->on_done(p); /* may free it */
}

void connection_end_posts(struct connection *c)
{
    while (c->posts)
        exchange_end_post(c, c->posts, -ENOTCONN);
}

/* Gives *@reply to the post that awaits it; it is then empty. Return: 0; -EPROTO: no post awaits it. */
static int exchange_deliver(struct connection *c, struct reply *reply)
{
    for (struct connection_post *p = c->posts; p; p = p->next) {
        if (p->state != POST_SENT || p->id != reply->message->id)
            continue;
        if (!exchange_is_valid(c, p->id, reply->message, p->body))
            return -EPROTO;

        p->reply = *reply;
        *reply = (struct reply){.message = NULL};
        exchange_end_post(c, p, 0);
        return 0;
    }

    return -EPROTO;
}

static bool exchange_has_room(const struct connection *c, bool yielding)
{
    return c->n_posts_sent < POSTS_SENT_MAX && (!yielding || c->n_yielding_sent < YIELDING_SENT_MAX);
}

/* Sends the oldest posts of a kind that are queued. Return: 0; -EPIPE ... */
static int exchange_send_queued_of(struct connection *c, bool yielding)
{
    for (struct connection_post *p = c->posts; p && exchange_has_room(c, yielding); p = p->next) {
        int r;

        if (p->state != POST_QUEUED || p->yields != yielding)
            continue;

        r = wire_send(c->fd, p->packet, p->packet_bytes, NULL, 0);
        if (r == -EAGAIN) /* a reply makes room, and is collected first */
            return 0;
        if (r < 0)
            return r;

        p->state = POST_SENT;
        p->deadline_ms = clock_ms() + c->request_ms + c->grace_ms;
        c->n_posts_sent++;
        c->n_yielding_sent += yielding;
    }

    return 0;
}

/* Sends queued posts while the daemon has few to answer. Return: 0; -EPIPE ... */
static int exchange_send_queued(struct connection *c)
{
    int r = exchange_send_queued_of(c, false);

    return r < 0 ? r : exchange_send_queued_of(c, true);
}

static bool exchange_is_overdue(const struct connection *c)
{
    int64_t now = c->posts ? clock_ms() : 0;

    for (const struct connection_post *p = c->posts; p; p = p->next)
        if (p->state == POST_SENT && now >= p->deadline_ms)
            return true;
    return false;
}

int connection_post(struct connection *c, Kvcobra__Request__BodyCase kind, void *message,
                    struct connection_post *p, struct errmsg *e)
{
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct connection_post **at = &c->posts;
    ssize_t bytes;
    int r;

    request.body_case = kind;
    request.hello = message; /* every member of the union is a pointer to a message */
    bytes = exchange_pack(c, &request, e);
    if (bytes < 0)
        return (int) bytes;

    p->packet = malloc((size_t) bytes);
    if (!p->packet)
        return fail(e, -ENOMEM, "out of memory for a request of %zd bytes", bytes);

    memcpy(p->packet, c->packet, (size_t) bytes);
    p->packet_bytes = (size_t) bytes;
    p->id = request.id;
    p->state = POST_QUEUED;
    p->next = NULL;
    while (*at)
        at = &(*at)->next;
    *at = p;

    r = exchange_send_queued(c);
    if (r < 0)
        (void) exchange_fail(c, r, NULL); /* ends the post */
    return 0;
}

bool connection_cancel_post(struct connection *c, struct connection_post *p)
{
    if (p->state != POST_QUEUED)
        return false;

    exchange_unlink_post(c, p);
    return true;
}

void connection_collect(struct connection *c)
{
    int r = 0;

    if (!connection_is_open(c))
        return;

    while (r == 0) {
        _cleanup_(reply_deinit) struct reply reply = {.message = NULL};

        r = exchange_receive(c, &reply);
        if (r == 0)
            r = exchange_deliver(c, &reply);
    }
    if (r == -EAGAIN)
        r = exchange_is_overdue(c) ? -ETIMEDOUT : exchange_send_queued(c);
    if (r < 0)
        (void) exchange_fail(c, r, NULL);
}

/* ---- requests that wait ---- */

/* Waits for one reply. */
static int exchange_wait(struct connection *c, int64_t deadline_ms, struct reply *ret)
{
    int r;

    do {
        r = exchange_wait_for(c->fd, POLLIN, deadline_ms);
        if (r == 0)
            r = exchange_receive(c, ret);
    } while (r == -EAGAIN);

    return r;
}

/* Waits for the reply to request @id; replies to posts go to them. */
static int exchange_await(struct connection *c, uint64_t id, int64_t deadline_ms, struct reply *ret)
{
    for (;;) {
        _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
        int r = exchange_wait(c, deadline_ms, &reply);

        if (r == 0 && exchange_answers(id, reply.message)) {
            *ret = reply;
            reply = (struct reply){.message = NULL};
            return 0;
        }

        if (r == 0)
            r = exchange_deliver(c, &reply);
        if (r < 0)
            return r;
    }
}

/*
 * The daemon closed the connection before it read the first request: reads the refusal that it sent. The
 * first receive may report the error of the socket instead. Return: 0; errno: there is no refusal.
 */
static int exchange_read_refusal(struct connection *c, struct reply *ret)
{
    int r = exchange_receive(c, ret);

    return r == -ECONNRESET ? exchange_receive(c, ret) : r;
}

/* The daemon sends descriptors only to a client that has read all earlier replies: waits until none is
 * due. */
static int exchange_settle(struct connection *c, int64_t deadline_ms)
{
    int r = 0;

    while (r == 0 && c->n_posts_sent > 0) {
        _cleanup_(reply_deinit) struct reply reply = {.message = NULL};

        r = exchange_wait(c, deadline_ms, &reply);
        if (r == 0)
            r = exchange_deliver(c, &reply);
    }

    return r;
}

static bool exchange_brings_descriptors(const Kvcobra__Request *request)
{
    return request->body_case == KVCOBRA__REQUEST__BODY_OPEN_MODEL ||
           request->body_case == KVCOBRA__REQUEST__BODY_GET_EXTENT ||
           request->body_case == KVCOBRA__REQUEST__BODY_FETCH_TABLE ||
           request->body_case == KVCOBRA__REQUEST__BODY_FETCH_MOMENTS;
}

int connection_request(struct connection *c, Kvcobra__Request *request, const int *fds, size_t n_fds,
                       Kvcobra__Reply__BodyCase body, struct reply *ret, struct errmsg *e)
{
    int64_t deadline_ms = clock_ms() + c->request_ms + c->grace_ms;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    ssize_t bytes;
    int r = 0;

    if (connection_is_open(c) && exchange_brings_descriptors(request))
        r = exchange_settle(c, deadline_ms);
    if (r < 0)
        return exchange_fail(c, r, e);

    bytes = exchange_pack(c, request, e);
    if (bytes < 0)
        return (int) bytes;

    if (!c->hello_is_sent)
        r = exchange_send(c, (size_t) bytes, fds, n_fds, deadline_ms);
    c->hello_is_sent = false;
    if (r == 0)
        r = exchange_await(c, request->id, deadline_ms, &reply);
    if (request->id == 1 && (r == -EPIPE || r == -ECONNRESET) && exchange_read_refusal(c, &reply) == 0)
        r = 0;
    if (r == -ETIMEDOUT && c->keeps_hello && request->id == 1)
        c->hello_fd = take_fd(&c->fd);
    if (r == 0 && !exchange_is_valid(c, request->id, reply.message, body))
        r = -EPROTO;
    if (r == 0)
        r = exchange_send_queued(c);
    if (r != 0)
        return exchange_fail(c, r, e);

    if (request->id == 1)
        memcpy(c->boot_id, reply.message->boot_id.data, BOOT_ID_BYTES);
    if (reply.message->err < 0) {
        r = reply.message->err;
        return fail(e, r, "%s", reply.message->message[0] ? reply.message->message : strerror(-r));
    }

    *ret = reply;
    reply = (struct reply){.message = NULL};
    return 0;
}

int connection_call(struct connection *c, Kvcobra__Request__BodyCase kind, void *message,
                    Kvcobra__Reply__BodyCase body, struct reply *ret, struct errmsg *e)
{
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

    request.body_case = kind;
    request.hello = message; /* every member of the union is a pointer to a message */

    return connection_request(c, &request, NULL, 0, body, ret, e);
}

int connection_send(struct connection *c, Kvcobra__Request__BodyCase kind, void *message, struct errmsg *e)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};

    if (c->is_leaving)
        return 0;
    return connection_call(c, kind, message, KVCOBRA__REPLY__BODY__NOT_SET, &reply, e);
}

void connection_leave_soon(struct connection *c)
{
    c->is_leaving = true;
}

void connection_bye(struct connection *c)
{
    enum { BYE_MS = 1000 };
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;

    if (!connection_is_open(c))
        return;

    c->is_leaving = false;
    connection_set_timeout(c, BYE_MS);
    (void) connection_send(c, KVCOBRA__REQUEST__BODY_BYE, &bye, NULL);
    connection_close(c);
}
