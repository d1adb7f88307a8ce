/* See client.h. */
#include "client/connection/client.h"

#include <errno.h>
#include <inttypes.h>

#include "client/connection/clock.h"

const char *kvc_version(void)
{
    return KVC_VERSION_STRING;
}

const char *kvc_last_error(const kvc_client *c)
{
    if (!c)
        return "the client handle is NULL";
    return c->error.text[0] ? c->error.text : "no error";
}

int client_enter(struct kvc_client *c)
{
    struct session_page *page;

    if (!*c->alive)
        return fail(&c->error, -ECHILD,
                    "this handle was made before fork(): make a new client in the child process");

    errmsg_clear(&c->error);

    page = session_page(&c->session);
    if (page) /* only this process writes the counter; the daemon checks that it changes */
        atomic_fetch_add_explicit(&page->renewals, 1, memory_order_relaxed);

    return c->ops->check(c);
}

void client_flush(struct kvc_client *c)
{
    if (c->connection.posts)
        connection_collect(&c->connection);
    if (c->ops->prepare_flush(c))
        client_leases_flush(&c->leases, &c->connection);
}

/* ---- connecting again ---- */

int client_reconnect(struct kvc_client *c)
{
    struct resumption how;
    int r;

    r = connection_reopen(&c->connection, &how, &c->error);
    if (r < 0)
        return r;

    c->n_reconnects++;

    r = c->hooks->reconnected(c, &how);
    if (r < 0) {
        connection_close(&c->connection);
        return r;
    }

    errmsg_clear(&c->error);
    return 0;
}

int client_revive(struct kvc_client *c)
{
    struct connection *conn = &c->connection;

    if (connection_is_open(conn))
        return 0;
    if (!conn->greeted)
        return fail(&c->error, -ENOTCONN, "not connected to kvcobrad: call kvc_client_connect() first");
    if (!backoff_is_over(&conn->backoff, clock_ms()))
        return fail(&c->error, -ENOTCONN,
                    "the connection to kvcobrad at %s is lost; %" PRIu32
                    " attempts to connect again failed, the next one is due in %" PRId64 " ms",
                    conn->path, conn->backoff.n_failed, conn->backoff.next_ms - clock_ms());

    if (client_reconnect(c) == 0)
        return 0;

    return c->error.text[0]
               ? -ENOTCONN
               : fail(&c->error, -ENOTCONN, "the connection to kvcobrad at %s is lost", conn->path);
}

int client_enter_connected(struct kvc_client *c)
{
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r < 0)
        return r;

    return client_revive(c);
}
