/* HTTP for Prometheus; see metrics_http.h. */
#include "daemon/operator/metrics_http.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/loopback.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/metrics.h"
#include "daemon/operator/metrics_collect.h"
#include "daemon/requests/state.h"

enum {
    BACKLOG = 128, /* so that who connects all the time does not keep others out */
    RUNS_MAX = 64, /* without an event; then the next tick continues */
    MEMORY_PER_CONNECTION = 16384,
    BODY_BYTES_MAX = 65536,
    SHARE_NS = EV_PAUSE_MS * 100000, /* a tenth of a processor: of each EV_PAUSE_MS */
};

struct metrics_connection { /* in the order of their begin */
    struct metrics_connection *next, *prev;
    int fd;
    uint64_t began_ms;
};

struct metrics_http {
    struct server *server;
    struct metrics_connection *oldest, *newest;
    unsigned n_kept; /* connections that were not ended below */
    struct MHD_Daemon *daemon;
    struct ev_source *watch;
    uint64_t share_ms, used_ns; /* what steps took since then */
    unsigned n_runs;            /* since the last event; 0: nothing is left to do */
    /* The page of all readers, or NULL. Those that still read an earlier one have references on it. */
    struct MHD_Response *page;
    uint64_t page_ms;
};

/* ---- sockets ---- */

int metrics_socket_check(int fd, const struct config *c, struct errmsg *e)
{
    struct sockaddr_storage a = {0};
    socklen_t bytes = sizeof(a), int_bytes = sizeof(int);
    int type = 0, listening = 0;

    if (getsockname(fd, (struct sockaddr *) &a, &bytes) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &int_bytes) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &int_bytes) < 0)
        return fail(e, -EINVAL, "metrics socket: descriptor %d is not a socket: %s", fd, strerror(errno));
    if (type != SOCK_STREAM || !listening)
        return fail(e, -EINVAL, "metrics socket: descriptor %d is not a listening stream socket", fd);
    if (a.ss_family != AF_UNIX && !loopback_is_address(&a))
        return fail(e, -EINVAL,
                    "metrics socket: descriptor %d can be reached from other machines: pass a Unix socket or "
                    "one on a loopback address",
                    fd);
    if (c->metrics_address || c->metrics_socket_path)
        return fail(e, -EINVAL,
                    "systemd passed a metrics socket, so %s cannot apply: remove the setting, and change "
                    "ListenStream= of kvcobrad-metrics.socket as kvcobrad-metrics(7) says",
                    c->metrics_address ? "metrics-address" : "metrics-socket");
    return 0;
}

/* Whether both sockets belong to one network namespace; true if the kernel, before 5.14, cannot tell. */
static bool metrics_is_same_network(int a, int b)
{
    uint64_t cookie_a, cookie_b;
    socklen_t a_bytes = sizeof(cookie_a), b_bytes = sizeof(cookie_b);

    return getsockopt(a, SOL_SOCKET, SO_NETNS_COOKIE, &cookie_a, &a_bytes) < 0 ||
           getsockopt(b, SOL_SOCKET, SO_NETNS_COOKIE, &cookie_b, &b_bytes) < 0 || cookie_a == cookie_b;
}

int metrics_listen(const char *address, int clients_fd, int *ret_fd, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    struct sockaddr_storage a;
    socklen_t bytes;
    int on = 1, r;

    r = loopback_parse(address, &a, &bytes, e);
    if (r < 0)
        return r;

    fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 && errno == EAFNOSUPPORT)
        return fail(
            e, -EINVAL,
            "metrics-address %s: kvcobrad may not create network sockets (RestrictAddressFamilies= of "
            "its unit): remove the setting and let systemd listen there, as kvcobrad-metrics(7) says",
            address);
    if (fd >= 0 && clients_fd >= 0 && !metrics_is_same_network(fd, clients_fd))
        return fail(e, -EINVAL,
                    "metrics-address %s: kvcobrad has a network of its own (PrivateNetwork= of its unit), so "
                    "no other process can connect: remove the setting and let systemd listen there, as "
                    "kvcobrad-metrics(7) says",
                    address);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, (const struct sockaddr *) &a, bytes) < 0 || listen(fd, BACKLOG) < 0)
        return fail(e, -errno, "cannot listen at %s for metrics: %s", address, strerror(errno));

    *ret_fd = take_fd(&fd);
    return 0;
}

/* ---- replies ---- */

/*
 * One request per connection: a client could send hundreds in one packet, whose replies would all be made in
 * one event of the loop.
 */
static bool metrics_http_is_last(struct MHD_Response *r)
{
    return MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES;
}

static enum MHD_Result metrics_http_send_text(struct MHD_Connection *c, unsigned status, const char *text,
                                              const char *allow)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(text), (void *) text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result sent = MHD_NO;

    if (r &&
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8") == MHD_YES &&
        metrics_http_is_last(r) &&
        (!allow || MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, allow) == MHD_YES))
        sent = MHD_queue_response(c, status, r);
    if (r)
        MHD_destroy_response(r);
    return sent;
}

/* A page takes milliseconds with many tenants, so all readers of METRICS_PAGE_MS get the same one. */
static struct MHD_Response *metrics_http_page(struct metrics_http *h)
{
    uint64_t now = ev_now_ms(h->server->ev);
    struct MHD_Response *r;
    size_t n;
    char *text;

    if (h->page && now - h->page_ms < METRICS_PAGE_MS)
        return h->page;

    text = metrics_collect(h->server, &n);
    r = text ? MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!r) {
        free(text);
        return NULL;
    }
    if (MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE,
                                "text/plain; version=0.0.4; charset=utf-8") != MHD_YES ||
        !metrics_http_is_last(r)) {
        MHD_destroy_response(r);
        return NULL;
    }

    if (h->page)
        MHD_destroy_response(h->page);
    h->page = r;
    h->page_ms = now;
    return r;
}

/* The path of a request's target, which may be an absolute URI: RFC 9112, section 3.2.2. */
static const char *metrics_http_path(const char *target)
{
    static const char *const schemes[] = {"http://", "https://"};

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (strncasecmp(target, schemes[i], strlen(schemes[i])) == 0) {
            const char *path = strchr(target + strlen(schemes[i]), '/');

            return path ? path : "/";
        }
    return target;
}

static bool metrics_http_has_body(struct MHD_Connection *c)
{
    const char *bytes = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);

    return (bytes && strcmp(bytes, "0") != 0) ||
           MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);
}

static enum MHD_Result metrics_http_answer(struct metrics_http *h, struct MHD_Connection *c, const char *url,
                                           const char *method)
{
    struct MHD_Response *page;

    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return metrics_http_send_text(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n", "GET, HEAD");
    if (metrics_http_has_body(c))
        return metrics_http_send_text(c, MHD_HTTP_BAD_REQUEST, "kvcobra: a request for metrics has no body\n",
                                      NULL);
    if (strcmp(metrics_http_path(url), "/metrics") != 0)
        return metrics_http_send_text(c, MHD_HTTP_NOT_FOUND, "kvcobra: metrics are at /metrics\n", NULL);

    page = metrics_http_page(h);
    if (!page)
        return metrics_http_send_text(c, MHD_HTTP_SERVICE_UNAVAILABLE,
                                      "kvcobrad has no memory for the page of metrics: retry later\n", NULL);
    return MHD_queue_response(c, MHD_HTTP_OK, page);
}

/* Whether the head announces more than is read. */
static bool metrics_http_has_long_body(struct MHD_Connection *c)
{
    const char *bytes = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);

    return bytes && strtoull(bytes, NULL, 10) > BODY_BYTES_MAX;
}

/*
 * Called for the head of a request, for each piece of its body, and at its end. The reply is sent at the end:
 * one before it may be lost when the connection is closed, so only a long body is not awaited. A body without
 * a length ends the connection at BODY_BYTES_MAX. @request: the bytes of the body, and one.
 */
static enum MHD_Result metrics_http_on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                               const char *method, const char *version, const char *body,
                                               size_t *body_bytes, void **request)
{
    uintptr_t n = (uintptr_t) *request;

    (void) version;
    (void) body;
    if (n > 0 ? *body_bytes == 0 : metrics_http_has_long_body(c))
        return metrics_http_answer(ctx, c, url, method);

    n += n > 0 ? *body_bytes : 1;
    *request = (void *) n;
    *body_bytes = 0; /* bodies are ignored */
    return n - 1 > BODY_BYTES_MAX ? MHD_NO : MHD_YES;
}

__attribute__((format(printf, 2, 0))) static void metrics_http_on_log(void *ctx, const char *fmt, va_list ap)
{
    char text[256];

    (void) ctx;
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    log_event(LOG_DEBUG, "metrics", "message=\"%s\"", text); /* errors of single connections */
}

/* ---- connections ---- */

static void metrics_http_unlink(struct metrics_http *h, struct metrics_connection *x)
{
    *(x->prev ? &x->prev->next : &h->oldest) = x->next;
    *(x->next ? &x->next->prev : &h->newest) = x->prev;
    h->n_kept--;
}

static void metrics_http_end_oldest(struct metrics_http *h)
{
    (void) shutdown(h->oldest->fd, SHUT_RDWR); /* libmicrohttpd closes it */
    metrics_http_unlink(h, h->oldest);
}

static void metrics_http_on_begin(struct metrics_http *h, struct MHD_Connection *c, void **socket_context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct metrics_connection *x = info ? calloc(1, sizeof(*x)) : NULL;

    *socket_context = x;
    if (!x) /* it is not ended early; the timeout ends it */
        return;

    x->fd = info->connect_fd;
    x->began_ms = ev_now_ms(h->server->ev);
    x->prev = h->newest;
    *(h->newest ? &h->newest->next : &h->oldest) = x;
    h->newest = x;
    if (++h->n_kept > METRICS_KEPT)
        metrics_http_end_oldest(h);
}

static void metrics_http_on_connection(void *ctx, struct MHD_Connection *c, void **socket_context,
                                       enum MHD_ConnectionNotificationCode code)
{
    struct metrics_http *h = ctx;
    struct metrics_connection *x = *socket_context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        metrics_http_on_begin(h, c, socket_context);
        return;
    }

    for (struct metrics_connection *y = h->oldest; y; y = y->next)
        if (y == x) {
            metrics_http_unlink(h, x);
            break;
        }
    free(x);
}

/* ---- event loop ---- */

static unsigned metrics_http_n_connections(const struct metrics_http *h)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);

    return info ? info->num_connections : 0;
}

/*
 * One step of libmicrohttpd, which does one thing for each connection that has something to do. Further steps
 * wait for their turn in the loop's fair queue, where the watch is a share of its own. A step is needed after
 * every change of the number of connections: at its limit libmicrohttpd stops waiting for the listening
 * socket, and waits for it again only from the beginning of the next step. Without it no client would be
 * served.
 */
static void metrics_http_step(struct metrics_http *h)
{
    unsigned before = metrics_http_n_connections(h);
    MHD_UNSIGNED_LONG_LONG ms;

    if (MHD_run(h->daemon) == MHD_YES &&
        (metrics_http_n_connections(h) != before || (MHD_get_timeout(h->daemon, &ms) == MHD_YES && ms == 0)))
        h->n_runs++;
    else
        h->n_runs = 0;

    if (h->n_runs > 0 && h->n_runs < RUNS_MAX)
        ev_watch_rouse(h->watch);
    ev_tick_demand(h->server->ev);
}

/*
 * A local user who connects all the time would keep the loop's thread busy, and a busy thread waits longer
 * for a processor than one that mostly sleeps: neighbours waited for up to 99 ms, an echo 4 ms. So metrics
 * get a tenth of the thread's time.
 */
static void metrics_http_on_event(void *ctx)
{
    struct metrics_http *h = ctx;
    uint64_t began_ns = metrics_now_ns(), now_ms = ev_now_ms(h->server->ev);

    if (now_ms - h->share_ms >= EV_PAUSE_MS) {
        h->share_ms = now_ms;
        h->used_ns = 0;
    }
    metrics_http_step(h);
    h->used_ns += metrics_now_ns() - began_ns;
    if (h->used_ns >= SHARE_NS)
        ev_watch_pause(h->watch);
}

/* @fd: owned by the result. NULL: libmicrohttpd does not start, and the caller still owns @fd. */
static struct MHD_Daemon *metrics_http_start(struct metrics_http *h, int fd)
{
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, metrics_http_on_request, h,
        MHD_OPTION_EXTERNAL_LOGGER, metrics_http_on_log, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        metrics_http_on_connection, h, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned) METRICS_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned) METRICS_TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t) MEMORY_PER_CONNECTION, MHD_OPTION_END);
}

static void metrics_http_freep(struct metrics_http **h)
{
    *h = metrics_http_free(*h);
}

int metrics_http_new(struct server *s, int fd, struct metrics_http **ret, struct errmsg *e)
{
    _cleanup_(metrics_http_freep) struct metrics_http *h = NULL;
    _cleanup_(closep) int owned = fd;
    const union MHD_DaemonInfo *info;
    int flags, r;

    h = calloc(1, sizeof(*h));
    if (!h)
        return fail(e, -ENOMEM, "cannot serve metrics: %s", strerror(ENOMEM));

    h->server = s;

    flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return fail(e, -errno, "cannot serve metrics: %s", strerror(errno));

    h->daemon = metrics_http_start(h, fd);
    if (!h->daemon)
        return fail(e, -EIO, "cannot serve metrics: libmicrohttpd does not start");

    (void) take_fd(&owned);

    info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    r = info ? ev_watch(s->ev, info->epoll_fd, metrics_http_on_event, h, &h->watch) : -EIO;
    if (r < 0)
        return fail(e, r, "cannot serve metrics: %s", strerror(-r));

    *ret = take_ptr(h);
    return 0;
}

struct metrics_http *metrics_http_free(struct metrics_http *h)
{
    if (h) {
        h->watch = ev_source_free(h->watch);
        if (h->daemon)
            MHD_stop_daemon(h->daemon); /* closes the listening socket too */
        if (h->page)
            MHD_destroy_response(h->page);
        free(h);
    }
    return NULL;
}

void metrics_http_tick(struct metrics_http *h)
{
    if (!h)
        return;

    /* a reader that reads a byte now and then keeps its page, and a place */
    while (h->oldest && ev_now_ms(h->server->ev) - h->oldest->began_ms > METRICS_CONNECTION_MS)
        metrics_http_end_oldest(h);
    h->n_runs = 0;
    ev_watch_rouse(h->watch);
}

bool metrics_http_is_busy(const struct metrics_http *h)
{
    return h && (h->n_runs > 0 || metrics_http_n_connections(h) > 0);
}
