/* See node.h. */
#include "cluster/node.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cluster/intake.h"
#include "cluster/out.h"
#include "cluster/reply.h"
#include "cluster/resolve.h"
#include "cluster/tls.h"
#include "daemon/config/loopback.h"
#include "daemon/loop/ev.h"

enum {
    NODE_READ_BYTES = 1 << 16,
    NODE_READS_MAX = 16,        /* per event: then the other nodes */
    NODE_REPLY_EXTRA = 1 << 17, /* beside the value: other replies in the same read, and heads */
};

struct node {
    const struct node_env *env;
    enum node_state state;
    char host[HOST_BYTES];
    uint16_t port;
    struct resolver_query *query;
    int fd;
    bool wants_out;  /* registered for EPOLLOUT */
    struct tls *tls; /* NULL: in clear, or not connected */
    struct out out;
    struct intake *intake;
    struct command **ring;       /* [NODE_COMMANDS_MAX]; NULL: the reply is dropped */
    uint64_t first, next;        /* places of commands without a reply */
    unsigned n_greetings;        /* replies of the greeting that are missing */
    uint64_t began_ms;           /* LOOKING_UP, CONNECTING, GREETING: since when */
    uint64_t progress_ms;        /* a byte came or went, or the first command was put */
    uint64_t retry_ms, pause_ms; /* OFF: until when; 0: the next tick */
    uint64_t late_ms;            /* when commands were given up last */
    unsigned n_late;
    uint64_t n_failures;
    struct errmsg why;
};

struct node *node_new(const struct node_env *env, const char *host, uint16_t port)
{
    struct node *n = calloc(1, sizeof(*n));

    if (!n)
        return NULL;
    n->env = env;
    n->fd = -1;
    n->port = port;
    n->out.bytes_max = env->settings->buffer_bytes;
    (void) snprintf(n->host, sizeof(n->host), "%s", host);
    return n;
}

static uint64_t node_now_ms(const struct node *n)
{
    return ev_now_ms(n->env->ev);
}

/* Frees what belongs to the connection, but not the ring. */
static void node_drop_connection(struct node *n)
{
    if (n->query)
        resolve_cancel(n->query);
    n->query = NULL;
    n->tls = tls_free(n->tls);
    closep(&n->fd); /* and leaves the epoll set */
    n->fd = -1;
    out_clear(&n->out);
    n->intake = intake_free(n->intake);
    n->n_greetings = n->n_late = 0;
    n->late_ms = 0;
    n->wants_out = false;
}

struct node *node_free(struct node *n)
{
    if (!n)
        return NULL;

    for (; n->first < n->next; n->first++)
        if (n->ring[n->first % NODE_COMMANDS_MAX])
            n->ring[n->first % NODE_COMMANDS_MAX]->node = NULL;
    node_drop_connection(n);
    free(n->ring);
    free(n);
    return NULL;
}

bool node_is(const struct node *n, const char *host, uint16_t port)
{
    return n->port == port && strcmp(n->host, host) == 0;
}

const char *node_host(const struct node *n)
{
    return n->host;
}

uint16_t node_port(const struct node *n)
{
    return n->port;
}

enum node_state node_state(const struct node *n)
{
    return n->state;
}

const char *node_why(const struct node *n)
{
    return n->why.text;
}

uint64_t node_n_failures(const struct node *n)
{
    return n->n_failures;
}

void node_close(struct node *n, int err, const char *fmt, ...)
{
    struct command **ring = n->ring;
    uint64_t first = n->first, next = n->next;
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(n->why.text, sizeof(n->why.text), fmt, ap);
    va_end(ap);

    node_drop_connection(n);
    n->ring = NULL;
    n->first = n->next = 0;
    n->state = NODE_OFF;
    n->n_failures++;
    n->pause_ms = n->pause_ms == 0 ? NODE_PAUSE_MS : 2 * n->pause_ms;
    if (n->pause_ms > NODE_PAUSE_MS_MAX)
        n->pause_ms = NODE_PAUSE_MS_MAX;
    n->retry_ms = node_now_ms(n) + n->pause_ms;
    n->env->changed(n->env->ctx, n);
    for (; first < next; first++) {
        struct command *c = ring[first % NODE_COMMANDS_MAX];

        if (c) {
            c->node = NULL;
            n->env->failed(n->env->ctx, c, err);
        }
    }
    free(ring);
}

/* ---- connecting ---- */

static int node_register(struct node *n, int op, bool wants_out)
{
    struct epoll_event event = {.events = EPOLLIN | (wants_out ? EPOLLOUT : 0u), .data.ptr = n};

    if (epoll_ctl(n->env->epoll_fd, op, n->fd, &event) < 0)
        return -errno;
    n->wants_out = wants_out;
    return 0;
}

static int node_start_connection(struct node *n, const struct resolver_answer *a)
{
    const int on = 1;

    n->fd = socket(a->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n->fd < 0)
        return -errno;
    (void) setsockopt(n->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(n->fd, (const struct sockaddr *) &a->address, a->address_bytes) < 0 && errno != EINPROGRESS)
        return -errno;

    n->intake = intake_new(n->env->settings->buffer_bytes + NODE_REPLY_EXTRA);
    n->ring = calloc(NODE_COMMANDS_MAX, sizeof(*n->ring));
    return n->intake && n->ring ? node_register(n, EPOLL_CTL_ADD, true) : -ENOMEM;
}

static void node_connect(struct node *n, const struct resolver_answer *a)
{
    const struct node_settings *s = n->env->settings;
    int r = a->result;

    if (r < 0) {
        node_close(n, -EHOSTDOWN, "cannot look up %s: %s", n->host,
                   r == -ENOENT ? "there is no such name" : strerror(-r));
        return;
    }
    if (s->password && !s->tls && !s->allows_clear_password && !loopback_is_address(&a->address)) {
        node_close(n, -EHOSTDOWN,
                   "the password would cross the network in clear to %s: set tls = yes, or "
                   "allow-clear-password = yes",
                   n->host);
        return;
    }

    n->state = NODE_CONNECTING;
    n->began_ms = node_now_ms(n);
    r = node_start_connection(n, a);
    if (r < 0)
        node_close(n, -EHOSTDOWN, "cannot connect: %s", strerror(-r));
}

static void node_on_answer(void *ctx, const struct resolver_answer *a)
{
    struct node *n = ctx;

    n->query = NULL;
    node_connect(n, a);
}

static void node_open(struct node *n)
{
    struct resolver_answer a;

    if (resolve_read_address(n->host, n->port, &a)) {
        node_connect(n, &a);
        return;
    }

    n->state = NODE_LOOKING_UP;
    n->began_ms = node_now_ms(n);
    n->query = resolve_ask(n->env->resolver, n->host, n->port, n->n_failures, node_on_answer, n);
    if (!n->query)
        node_close(n, -EHOSTDOWN, "cannot look up %s: too many look-ups run", n->host);
}

static void node_greet(struct node *n)
{
    const struct node_settings *s = n->env->settings;
    const char *auth[3] = {"AUTH"}, *const ping[] = {"PING"};
    size_t n_auth = 1;
    int r = 0;

    if (s->user)
        auth[n_auth++] = s->user;
    if (s->password)
        auth[n_auth++] = s->password;
    if (s->password)
        r = out_add_words(&n->out, auth, n_auth);
    if (r == 0)
        r = out_add_words(&n->out, ping, 1);
    n->n_greetings = s->password ? 2 : 1;
    n->state = NODE_GREETING;
    if (r < 0)
        node_close(n, -EHOSTDOWN, "out of memory");
    else
        node_flush(n);
}

/* The next step of the handshake. */
static void node_secure(struct node *n)
{
    struct errmsg e = {""};
    int r = tls_handshake(n->tls, &e);

    if (r < 0)
        node_close(n, -EHOSTDOWN, "%s", e.text);
    else if (r > 0)
        node_greet(n);
    else if (n->wants_out != tls_wants_out(n->tls))
        (void) node_register(n, EPOLL_CTL_MOD, tls_wants_out(n->tls));
}

static void node_take_connection(struct node *n)
{
    struct errmsg e = {""};
    int err = 0;
    socklen_t bytes = sizeof(err);

    if (getsockopt(n->fd, SOL_SOCKET, SO_ERROR, &err, &bytes) < 0 || err != 0) {
        node_close(n, -EHOSTDOWN, "cannot connect: %s", strerror(err));
        return;
    }
    if (!n->env->settings->tls) {
        node_greet(n);
        return;
    }
    if (tls_new(n->env->settings->tls, n->fd, n->host, &n->tls, &e) < 0) {
        node_close(n, -EHOSTDOWN, "%s", e.text);
        return;
    }
    n->state = NODE_SECURING;
    node_secure(n);
}

/* Return: false: the node was closed. */
static bool node_take_greeting(struct node *n, const struct reply *r)
{
    bool is_auth = n->n_greetings == 2;

    if (r->kind != REPLY_STATUS || strcmp(r->text, is_auth ? "OK" : "PONG") != 0) {
        node_close(n, -EHOSTDOWN, "the server refuses %s: %.200s",
                   is_auth ? "user or password" : "the connection",
                   r->kind == REPLY_ERROR ? r->text : "a reply that is none");
        return false;
    }

    if (--n->n_greetings == 0) {
        n->state = NODE_READY;
        n->env->changed(n->env->ctx, n);
    }
    return true;
}

/* ---- commands ---- */

int node_put(struct node *n, struct command *c)
{
    uint64_t n_places = c->asks ? 2 : 1;
    int r;

    if (n->state != NODE_READY)
        return -EHOSTDOWN;
    if (n->next - n->first > NODE_COMMANDS_MAX - n_places)
        return -ENOBUFS;
    if (n->first == n->next)
        n->progress_ms = node_now_ms(n);

    if (c->asks) {
        static const char *const asking[] = {"ASKING"};

        r = out_add_words(&n->out, asking, 1);
        if (r < 0)
            return r;
        n->ring[n->next++ % NODE_COMMANDS_MAX] = NULL;
    }
    r = out_add_command(&n->out, c);
    if (r < 0)
        return r; /* ASKING alone does nothing */

    c->node = n;
    c->place = n->next++;
    n->ring[c->place % NODE_COMMANDS_MAX] = c;
    return 0;
}

void node_forget(struct command *c, bool is_late)
{
    struct node *n = c->node;

    if (!n)
        return;
    assert(n->ring[c->place % NODE_COMMANDS_MAX] == c);
    n->ring[c->place % NODE_COMMANDS_MAX] = NULL;
    c->node = NULL;
    if (c->place == n->first)
        intake_discard(n->intake);
    if (is_late && node_now_ms(n) > n->late_ms) { /* many commands of one request count once */
        n->late_ms = node_now_ms(n);
        n->n_late++;
    }
}

/* Return: false: the node was closed. */
static bool node_take_reply(struct node *n, const struct reply *r)
{
    struct command *c;

    if (n->state == NODE_GREETING)
        return node_take_greeting(n, r);
    if (n->first == n->next) {
        node_close(n, -ECONNRESET, "the server sent a reply without a command");
        return false;
    }

    c = n->ring[n->first++ % NODE_COMMANDS_MAX];
    if (c) {
        n->pause_ms = 0;
        n->n_late = 0;
        c->node = NULL;
        n->env->replied(n->env->ctx, n, c, r);
    }
    return n->state == NODE_READY;
}

/* ---- bytes ---- */

void node_flush(struct node *n)
{
    bool wants_out;

    if (n->fd < 0 || n->state < NODE_GREETING || (out_waiting(&n->out) == 0 && !n->tls))
        return;
    wants_out = out_send(&n->out, n->fd, n->tls) == 0 || (n->tls && tls_wants_out(n->tls));
    if (n->wants_out != wants_out)
        (void) node_register(n, EPOLL_CTL_MOD, wants_out); /* errors of the socket are reported anyway */
}

/* Return: bytes; 0: the server closed the connection; -EAGAIN, -EINTR; errno with a sentence. */
static ssize_t node_receive(struct node *n, uint8_t *bytes, size_t size, struct errmsg *e)
{
    ssize_t got;

    if (n->tls)
        return tls_read(n->tls, bytes, size, e);
    got = recv(n->fd, bytes, size, MSG_DONTWAIT);
    return got < 0 ? fail(e, -errno, "%s", strerror(errno)) : got;
}

/* Of the value of the next reply. */
static struct intake_place node_next_place(const struct node *n)
{
    const struct command *c = n->first < n->next ? n->ring[n->first % NODE_COMMANDS_MAX] : NULL;
    bool is_get = n->state == NODE_READY && c && c->kind == COMMAND_GET;

    return is_get ? (struct intake_place){c->to, c->value_bytes} : (struct intake_place){.to = NULL};
}

/* Return: 1: all bytes were taken; 0: the node was closed. */
static int node_take_bytes(struct node *n, struct intake_bytes *b)
{
    int r;

    do {
        const struct intake_place place = node_next_place(n);
        _cleanup_(reply_freep) struct reply *reply = NULL;

        r = intake_take(n->intake, &place, b, &reply);
        if (r == 0)
            return 1;
        if (r > 0 && !node_take_reply(n, reply))
            return 0;
    } while (r >= 0);

    node_close(n, -ECONNRESET, "the server's reply is %s", r == -EFBIG ? "too large" : "malformed");
    return 0;
}

/* Return: 1: bytes were read; 0: none are there, or the node was closed. */
static int node_read(struct node *n)
{
    static uint8_t bytes[NODE_READ_BYTES]; /* one thread */
    struct errmsg e = {"the server closed the connection"};
    size_t size = sizeof(bytes);
    uint8_t *room = intake_room(n->intake, &size);
    ssize_t got = node_receive(n, room ? room : bytes, size, &e);
    struct intake_bytes b = {.at = bytes};

    if (got == -EAGAIN || got == -EINTR)
        return 0;
    if (got <= 0) {
        node_close(n, -ECONNRESET, "%s", e.text);
        return 0;
    }

    n->progress_ms = node_now_ms(n);
    if (room)
        intake_filled(n->intake, (size_t) got);
    else
        b.n = (size_t) got;
    return node_take_bytes(n, &b);
}

/* Bytes that no event tells of: at most one record of TLS, 16 KiB. */
static bool node_has_more(const struct node *n)
{
    return n->tls && tls_has_more(n->tls);
}

void node_serve(struct node *n, uint32_t events)
{
    if (n->fd < 0) /* closed by an event before this one */
        return;
    if (n->state == NODE_CONNECTING && events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        node_take_connection(n);
    else if (n->state == NODE_SECURING)
        node_secure(n);
    if (n->fd >= 0 && events & EPOLLOUT) {
        n->progress_ms = node_now_ms(n);
        node_flush(n);
    }
    if (n->state >= NODE_GREETING && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        for (unsigned i = 0; (i < NODE_READS_MAX || node_has_more(n)) && node_read(n) > 0; i++)
            ;
}

void node_tick(struct node *n)
{
    const struct node_settings *s = n->env->settings;
    uint64_t now_ms = node_now_ms(n);

    switch (n->state) {
    case NODE_OFF:
        if (now_ms >= n->retry_ms)
            node_open(n);
        break;
    case NODE_LOOKING_UP: /* ends by itself */
        break;
    case NODE_CONNECTING:
    case NODE_SECURING:
    case NODE_GREETING:
        if (now_ms - n->began_ms > s->connect_ms)
            node_close(n, -ETIMEDOUT, "%s within %llu ms of connecting%s",
                       n->state == NODE_SECURING ? "the TLS handshake did not end" : "no answer",
                       (unsigned long long) s->connect_ms,
                       n->state == NODE_SECURING ? ": the server may not speak TLS on this port" : "");
        break;
    case NODE_READY:
        if (n->first < n->next && now_ms - n->progress_ms > s->stall_ms)
            node_close(n, -ETIMEDOUT, "no answer for %llu ms", (unsigned long long) s->stall_ms);
        else if (n->n_late >= NODE_LATE_MAX)
            node_close(n, -ETIMEDOUT, "%u requests in turn were not answered in time", n->n_late);
        break;
    }
}
