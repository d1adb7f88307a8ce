/* The sockets of the server. See server_parts.h. */
#include "daemon/server_parts.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/listen.h"
#include "daemon/loop/supervisor.h"
#include "daemon/operator/metrics_http.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/state.h"

static void server_sockets_on_client(void *ctx, int fd)
{
    conn_accept(ctx, fd, false);
}

static void server_sockets_on_operator(void *ctx, int fd)
{
    conn_accept(ctx, fd, true);
}

/*
 * Takes the sockets that systemd passed: the name (FileDescriptorName=) "operator" is for operators,
 * "metrics" for monitoring, every other name for clients.
 */
static void server_sockets_take(struct server *s, int *client_fd, int *operator_fd, int *metrics_fd)
{
    for (size_t i = 0; i < s->supervisor->n_fds; i++) {
        struct supervisor_fd *f = &s->supervisor->fds[i];
        int *to = client_fd;

        if (f->fd < 0)
            continue;
        if (strcmp(f->name, "operator") == 0)
            to = operator_fd;
        else if (strcmp(f->name, "metrics") == 0)
            to = metrics_fd;
        *to = take_fd(&f->fd);
    }
}

/*
 * @fd: a socket that systemd passed; -1: the configuration has a path or an address, or serves no metrics.
 * @clients_fd: the client socket, which clients of this host reach.
 */
static int server_sockets_open_metrics(struct server *s, int fd, int clients_fd, struct errmsg *e)
{
    const struct config *c = s->config;
    int r = 0;

    if (fd >= 0) {
        r = metrics_socket_check(fd, c, e);
        if (r < 0)
            (void) close(fd);
    } else if (c->metrics_socket_path) {
        r = listen_at(&s->frame->metrics_socket, SOCK_STREAM, c->metrics_socket_path, c->metrics_socket_mode,
                      (gid_t) -1, e);
        fd = take_fd(&s->frame->metrics_socket.fd);
    } else if (c->metrics_address) {
        r = metrics_listen(c->metrics_address, clients_fd, &fd, e);
    }

    return r == 0 && fd >= 0 ? metrics_http_new(s, fd, &s->frame->metrics_http, e) : r;
}

static int server_sockets_open_client(struct server *s, int fd, struct errmsg *e)
{
    const struct config *c = s->config;
    int r;

    if (fd >= 0)
        r = listen_adopt(&s->frame->client_socket, fd, "client socket", e);
    else
        r = listen_at(&s->frame->client_socket, SOCK_SEQPACKET, c->socket_path, c->socket_mode, (gid_t) -1,
                      e);
    if (r < 0)
        return r;

    listen_refuse_descriptors(&s->frame->client_socket);
    listen_path(s->frame->client_socket.fd, s->frame->client_path);
    return ev_listen(s->ev, take_fd(&s->frame->client_socket.fd), server_sockets_on_client, s,
                     &s->frame->listener);
}

static int server_sockets_open_operator(struct server *s, int fd, struct errmsg *e)
{
    const struct config *c = s->config;
    int r;

    if (fd < 0 && !c->operator_socket_path)
        return 0;
    if (fd >= 0)
        r = listen_adopt(&s->frame->operator_socket, fd, "operator socket", e);
    else
        r = listen_at(&s->frame->operator_socket, SOCK_SEQPACKET, c->operator_socket_path,
                      c->operator_group ? 0660 : 0600, c->operator_gid, e);
    if (r < 0)
        return r;

    listen_path(s->frame->operator_socket.fd, s->frame->operator_path);
    return ev_listen(s->ev, take_fd(&s->frame->operator_socket.fd), server_sockets_on_operator, s,
                     &s->frame->operator_listener);
}

int server_sockets_open(struct server *s, struct errmsg *e)
{
    int client_fd = s->config->listen_fd, operator_fd = s->config->operator_fd, metrics_fd = -1, r;

    server_sockets_take(s, &client_fd, &operator_fd, &metrics_fd);
    r = server_sockets_open_client(s, client_fd, e);
    if (r == 0)
        r = server_sockets_open_operator(s, operator_fd, e);
    if (r == 0)
        r = server_sockets_open_metrics(s, metrics_fd, client_fd, e);
    if (r < 0 && e && e->text[0] == '\0')
        return fail(e, r, "cannot wait for connections: %s", strerror(-r));
    return r;
}
