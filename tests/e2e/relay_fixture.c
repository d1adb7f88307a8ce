/* See relay_fixture.h. */
#include "tests/e2e/relay_fixture.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/e2e/raw_fixture.h"
#include "tests/lib/test.h"

enum { ORDER_CUT = 'c', ORDER_STOP = 's' };

static void close_both(struct relay *r)
{
    if (r->client >= 0)
        (void) close(r->client);
    if (r->server >= 0)
        (void) close(r->server);
    r->client = r->server = -1;
}

/* Passes one packet of the client on. False: the connection has ended. */
static bool pass_request(struct relay *r, uint8_t *buf)
{
    struct wire_packet p;
    Kvcobra__Request *m = NULL;
    ssize_t n;
    bool ok;

    if (wire_receive(r->client, buf, &p) < 0)
        return false;
    assert(wire_request_unpack(buf, p.bytes, &m) == 0);
    r->about = m->body_case;
    ok = !r->on_request || r->on_request(r->ctx, m);
    n = wire_request_pack(m, buf);
    ok = ok && n > 0 && wire_send(r->server, buf, (size_t) n, p.fds, p.n_fds) == 0;
    wire_packet_close_fds(&p);
    wire_request_free(m);
    return ok;
}

static bool pass_reply(struct relay *r, uint8_t *buf)
{
    struct wire_packet p;
    Kvcobra__Reply *m = NULL;
    ssize_t n;
    bool ok;

    if (wire_receive(r->server, buf, &p) < 0)
        return false;
    assert(wire_reply_unpack(buf, p.bytes, &m) == 0);
    if (r->on_reply)
        r->on_reply(r->ctx, r->about, m);
    n = wire_reply_pack(m, buf);
    ok = n > 0 && wire_send(r->client, buf, (size_t) n, p.fds, p.n_fds) == 0;
    wire_packet_close_fds(&p);
    wire_reply_free(m);
    return ok;
}

/* Obeys one order. False: the thread ends. */
static bool obey(struct relay *r)
{
    char order = ORDER_STOP;

    (void) read(r->orders[1], &order, 1);
    close_both(r);
    (void) write(r->orders[1], &order, 1);
    return order == ORDER_CUT;
}

static void *serve(void *ctx)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct relay *r = ctx;

    for (;;) {
        struct pollfd p[] = {{.fd = r->orders[1], .events = POLLIN},
                             {.fd = r->client < 0 ? r->listener : -1, .events = POLLIN},
                             {.fd = r->client, .events = POLLIN},
                             {.fd = r->server, .events = POLLIN}};

        if (poll(p, 4, -1) < 0)
            continue;
        if (p[0].revents) {
            if (!obey(r))
                return NULL;
            continue;
        }
        if (p[1].revents) {
            r->client = accept(r->listener, NULL, NULL);
            r->server = raw_connect(r->daemon);
            continue;
        }
        if ((p[2].revents && !pass_request(r, buf)) || (p[3].revents && !pass_reply(r, buf)))
            close_both(r);
    }
}

void relay_start(struct relay *r, const char *daemon, relay_request on_request, relay_reply on_reply,
                 void *ctx)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    *r = (struct relay){.folder = "/tmp/kvcobra-relay-XXXXXX",
                        .daemon = daemon,
                        .on_request = on_request,
                        .on_reply = on_reply,
                        .ctx = ctx,
                        .client = -1,
                        .server = -1};
    assert(mkdtemp(r->folder));
    (void) snprintf(r->path, sizeof(r->path), "%s/s", r->folder);
    memcpy(sa.sun_path, r->path, strlen(r->path) + 1);
    r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert(r->listener >= 0 && bind(r->listener, (const struct sockaddr *) &sa, sizeof(sa)) == 0 &&
           listen(r->listener, 4) == 0);
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, r->orders) == 0);
    assert(pthread_create(&r->thread, NULL, serve, r) == 0);
}

static void give_order(struct relay *r, char order)
{
    assert(write(r->orders[0], &order, 1) == 1 && read(r->orders[0], &order, 1) == 1);
}

void relay_cut(struct relay *r)
{
    give_order(r, ORDER_CUT);
}

void relay_stop(struct relay *r)
{
    give_order(r, ORDER_STOP);
    (void) pthread_join(r->thread, NULL);
    (void) close(r->listener);
    (void) close(r->orders[0]);
    (void) close(r->orders[1]);
    (void) unlink(r->path);
    (void) rmdir(r->folder);
}
