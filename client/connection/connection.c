/* Connecting and greeting; see connection.h. Requests and replies are in exchange.c. */
#include "client/connection/connection.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_number.h"
#include "client/connection/clock.h"
#include "client/kvcobra.h"
#include "proto/hello_features.h"
#include "proto/user_folder.h"

enum {
    TIMEOUT_MS = 12000, /* a COMMIT of 512 pages copies and checks 200 MB, which takes up to 10 s */
    CHECK_EVERY_MS = 1000,
    SHORT_LIFE_MS = 1000, /* a reconnection that lasted for less counts as a failed attempt */
};

void connection_init(struct connection *c)
{
    *c = (struct connection){.fd = -1, .hello_fd = -1};
    connection_set_timeout(c, TIMEOUT_MS);
}

void connection_set_timeout(struct connection *c, uint32_t timeout_ms)
{
    c->grace_ms = timeout_ms / 6;
    c->request_ms = timeout_ms - c->grace_ms;
}

void connection_set_device(struct connection *c, const char *uuid)
{
    (void) snprintf(c->device, sizeof(c->device), "%s", uuid);
}

static void connection_drop_hello(struct connection *c)
{
    closep(&c->hello_fd);
    c->hello_fd = -1;
}

void connection_deinit(struct connection *c)
{
    connection_close(c);
    connection_drop_hello(c);
    free(c->packet);
    free(c->path);
    connection_init(c);
}

void connection_leave(struct connection *c)
{
    connection_drop_hello(c);
    closep(&c->fd);
    c->fd = -1;
}

void connection_close(struct connection *c)
{
    int64_t now = clock_ms();

    if (c->fd < 0)
        return;

    (void) close(c->fd);
    c->fd = -1;
    connection_end_posts(c);
    if (!c->in_use)
        return; /* connection_reopen() counts the failure of a greeting */

    c->in_use = false;
    c->backoff = (struct backoff){.n_failed = c->backoff.n_failed};
    if (c->epoch > 1 && now - c->opened_ms < SHORT_LIFE_MS)
        backoff_failed(&c->backoff, now);
    else
        c->backoff.n_failed = 0;
}

/* ---- greeting ---- */

/* Names who may connect to the socket at @path, where this user may not. */
static int connection_explain_refusal(const char *path, struct errmsg *e)
{
    struct passwd user, *found_user = NULL;
    struct group group, *found_group = NULL;
    char bytes[4096]; /* of a database entry; a larger one leaves the number as the name */
    struct stat st;

    if (stat(path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return fail(e, -EACCES, "cannot connect to kvcobrad at %s: %s", path, strerror(EACCES));

    if (st.st_mode & S_IWGRP) {
        (void) getgrgid_r(st.st_gid, &group, bytes, sizeof(bytes), &found_group);
        if (found_group)
            return fail(e, -EACCES,
                        "this user may not connect to kvcobrad at %s, only members of the group %s may: "
                        "root adds a user with \"usermod -a -G %s USER\", which applies at the next login",
                        path, group.gr_name, group.gr_name);
        return fail(e, -EACCES, "this user may not connect to kvcobrad at %s, only members of group %lu may",
                    path, (unsigned long) st.st_gid);
    }

    (void) getpwuid_r(st.st_uid, &user, bytes, sizeof(bytes), &found_user);
    if (found_user)
        return fail(e, -EACCES, "this user may not connect to kvcobrad at %s, only %s may", path,
                    user.pw_name);
    return fail(e, -EACCES, "this user may not connect to kvcobrad at %s, only user %lu may", path,
                (unsigned long) st.st_uid);
}

/* connect() of a Unix socket waits for room in the queue of the listener, and for nothing else.
 * Return: 0: it waits until @deadline_ms at most; -ETIMEDOUT: that is over; -errno. */
static int connection_limit_wait(int fd, int64_t deadline_ms)
{
    int64_t left = deadline_ms - clock_ms();
    struct timeval t = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};

    if (left <= 0)
        return -ETIMEDOUT;

    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) < 0 ? -errno : 0;
}

/* Return: 0; -ETIMEDOUT: a listener without room in its queue; -errno. */
static int connection_connect(int fd, const struct sockaddr_un *sa, uint32_t wait_ms)
{
    int64_t deadline_ms = clock_ms() + wait_ms;
    int r = 0;

    do {
        if (wait_ms > 0)
            r = connection_limit_wait(fd, deadline_ms);
        if (r < 0)
            return r;

        r = connect(fd, (const struct sockaddr *) sa, sizeof(*sa)) < 0 ? -errno : 0;
    } while (r == -EINTR);

    return r == -EAGAIN ? -ETIMEDOUT : r;
}

/* A socket in a folder of this user is a daemon of this user, or of root. The check counts where the folder
 * is in /tmp and was another user's before: a program that serves the socket learns prompts and chooses
 * pages. */
static int connection_check_server(int fd, const char *path, struct errmsg *e)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);

    if (!user_folder_has(path))
        return 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
        return fail(e, -errno, "cannot read who serves %s: %s", path, strerror(errno));
    if (peer.uid != 0 && peer.uid != geteuid())
        return fail(e, -EACCES,
                    "%s is served by user %lu, not by this one: remove it, and start your own kvcobrad", path,
                    (unsigned long) peer.uid);
    return 0;
}

/*
 * @wait_ms: longest wait for room in the queue of the listener. 0: connecting again does not wait, since it
 * is a part of calls with another purpose.
 */
static int connection_open_socket(const char *path, uint32_t wait_ms, int *ret_fd, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int r;

    assert(strlen(path) < sizeof(sa.sun_path)); /* connection_find_path() */
    memcpy(sa.sun_path, path, strlen(path));

    fd = fd_above_standard(
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (wait_ms > 0 ? 0 : SOCK_NONBLOCK), 0));
    if (fd < 0)
        return fail(e, -errno, "cannot create a socket: %s", strerror(errno));

    r = connection_connect(fd, &sa, wait_ms);
    switch (r) {
    case 0:
        break;
    case -EPROTOTYPE:
    case -ENOTSOCK:
        return fail(e, -EPROTO, "%s is not kvcobrad's socket", path);
    case -EACCES:
        if (wait_ms > 0) /* a database of users may take long to answer */
            return connection_explain_refusal(path, e);
        return fail(e, r, "cannot connect to kvcobrad at %s: %s", path, strerror(-r));
    case -ENOENT:
    case -ECONNREFUSED:
        return fail(e, r, "no kvcobrad serves %s: %s", path, strerror(-r));
    case -ETIMEDOUT:
        return fail(e, r, "kvcobrad at %s did not accept the connection within %g s: " CONNECTION_SILENT,
                    path, wait_ms * 1e-3);
    default:
        return fail(e, r, "cannot connect to kvcobrad at %s: %s", path, strerror(-r));
    }

    r = connection_check_server(fd, path, e);
    if (r < 0)
        return r;
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        return fail(e, -errno, "cannot make the socket non-blocking: %s", strerror(errno));

    *ret_fd = take_fd(&fd);
    return 0;
}

static int connection_hello(struct connection *c, struct errmsg *e)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    const Kvcobra__HelloReply *got;
    int r;

    hello.version_min = PROTO_VERSION_MIN;
    hello.version_max = PROTO_VERSION;
    hello.features = PROTO_FEATURES;
    hello.client_name = (char *) "libkvcobra " KVC_VERSION_STRING;
    hello.device = c->device;
    if (c->greeted)
        hello.session_token = (ProtobufCBinaryData){sizeof(c->token), c->token};
    r = connection_call(c, KVCOBRA__REQUEST__BODY_HELLO, &hello, KVCOBRA__REPLY__BODY_HELLO, &reply, e);
    if (r < 0)
        return r;

    got = reply.message->hello;
    c->items_per_message = WIRE_ITEMS_MAX;
    if (got->limits && got->limits->items_per_message > 0 && got->limits->items_per_message < WIRE_ITEMS_MAX)
        c->items_per_message = got->limits->items_per_message;
    if (got->version < PROTO_VERSION_MIN || got->version > PROTO_VERSION)
        return fail(e, -EPROTO, "kvcobrad at %s speaks protocol %u, this library %u", c->path, got->version,
                    PROTO_VERSION);
    if (!bytes_are(got->session_token, SESSION_TOKEN_BYTES))
        return fail(e, -EPROTO, "kvcobrad at %s sent no session token", c->path);

    memcpy(c->token, got->session_token.data, sizeof(c->token));
    return 0;
}

/* An old daemon without devices opens a session in host memory, whichever device was requested. */
static int connection_check_device(const struct connection *c, const Kvcobra__Device *got, struct errmsg *e)
{
    const char *uuid = got ? got->uuid : "";

    if (strcasecmp(uuid, c->device) == 0)
        return 0;
    if (c->device[0] == '\0' || uuid[0] != '\0')
        return fail(e, -EPROTO, "kvcobrad at %s opened a session on another device: %s", c->path, uuid);

    return fail(e, -EOPNOTSUPP, "kvcobrad at %s has no pools on GPUs: it is of an older version", c->path);
}

/* The second packet: its reply says whether the session that HELLO named was resumed. */
static int connection_confirm(struct connection *c, struct errmsg *e)
{
    Kvcobra__Confirm confirm = KVCOBRA__CONFIRM__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    const Kvcobra__ConfirmReply *got;
    int r;

    r = connection_call(c, KVCOBRA__REQUEST__BODY_CONFIRM, &confirm, KVCOBRA__REPLY__BODY_CONFIRM, &reply, e);
    if (r < 0)
        return r;

    got = reply.message->confirm;
    if (!bytes_are(got->pool, sizeof(c->pool_id)))
        return fail(e, -EPROTO, "kvcobrad at %s sent no pool identifier", c->path);

    r = connection_check_device(c, got->device, e);
    if (r < 0)
        return r;

    memcpy(c->pool_id, got->pool.data, sizeof(c->pool_id));
    c->session = got->session;
    c->resumed = got->resumed;
    c->extent_bytes = got->device ? got->device->extent_bytes : 0;
    return 0;
}

/* HELLO and CONFIRM over @fd, which is transferred. */
static int connection_greet(struct connection *c, int fd, struct errmsg *e)
{
    int r;

    c->fd = fd;
    c->opened_ms = c->checked_ms = clock_ms();
    c->next_id = 1;
    r = connection_hello(c, e);
    if (r == 0)
        r = connection_confirm(c, e);
    if (r < 0) {
        connection_close(c);
        return r;
    }

    c->greeted = c->in_use = true;
    c->epoch++;
    return 0;
}

/* @ret: [ret_bytes], of the size of a Unix socket's path. */
static int connection_find_path(const char *path, size_t ret_bytes, char *ret, struct errmsg *e)
{
    int r = kvc_socket_path(KVC_SOCKET_CLIENTS, path, ret, ret_bytes);

    if (r == -ENOSPC)
        return fail(e, -EINVAL,
                    "socket path %.80s... is longer than the %zu bytes that a Unix socket may have",
                    path && *path ? path : "of KVCOBRA_SOCKET", ret_bytes - 1);
    return r;
}

int connection_open(struct connection *c, const char *path, struct errmsg *e)
{
    char found[sizeof(((struct sockaddr_un *) 0)->sun_path)];
    _cleanup_(freep) char *copy = NULL;
    int fd = -1, r;

    assert(!c->greeted);
    r = connection_find_path(path, sizeof(found), found, e);
    if (r < 0)
        return r;

    copy = strdup(found);
    if (!c->packet)
        c->packet = malloc(WIRE_PACKET_BYTES_MAX);
    if (!copy || !c->packet)
        return fail(e, -ENOMEM, "out of memory while connecting");

    r = connection_open_socket(copy, c->request_ms + c->grace_ms, &fd, e);
    if (r < 0)
        return r;

    free(c->path);
    c->path = take_ptr(copy);
    c->chosen = path && *path;
    r = connection_greet(c, fd, e);
    if (r == -ENOTCONN) /* a peer that closes during the greeting is not kvcobrad, or refuses this client */
        return fail(e, -EPROTO, "no kvcobrad answers at %s", c->path);

    return r;
}

bool connection_is_to(const struct connection *c, const char *path)
{
    if (!path || !*path)
        return c->path && !c->chosen;
    return c->path && strcmp(c->path, path) == 0;
}

/* A socket that is connected, with or without a HELLO that was sent. Return: 0; -ENOTCONN, -EPROTO. */
static int connection_begin_again(struct connection *c, int *ret_fd, struct errmsg *e)
{
    int r;

    *ret_fd = take_fd(&c->hello_fd);
    if (*ret_fd >= 0) {
        c->hello_is_sent = true;
        return 0;
    }

    r = connection_open_socket(c->path, 0, ret_fd, e);
    if (r == 0 || r == -EPROTO)
        return r;
    return fail(e, -ENOTCONN, "kvcobrad at %s cannot be reached: %s", c->path, strerror(-r));
}

int connection_reopen(struct connection *c, struct resumption *ret, struct errmsg *e)
{
    const struct connection before = *c;
    int fd = -1, r;

    assert(c->greeted && c->fd < 0);
    r = connection_begin_again(c, &fd, e);
    if (r < 0) {
        backoff_failed(&c->backoff, clock_ms());
        return r;
    }

    c->request_ms = RECONNECT_MS / 2; /* for each of the two packets */
    c->grace_ms = 0;
    c->keeps_hello = true;
    r = connection_greet(c, fd, e);
    c->keeps_hello = c->hello_is_sent = false;
    c->request_ms = before.request_ms;
    c->grace_ms = before.grace_ms;
    if (r < 0) {
        /* the next attempt requests the old session again */
        memcpy(c->token, before.token, sizeof(c->token));
        memcpy(c->boot_id, before.boot_id, sizeof(c->boot_id));
        backoff_failed(&c->backoff, clock_ms());
        return r;
    }

    *ret = (struct resumption){
        .resumed = c->resumed,
        .same_daemon = memcmp(c->boot_id, before.boot_id, sizeof(c->boot_id)) == 0,
        .same_pool = memcmp(c->pool_id, before.pool_id, sizeof(c->pool_id)) == 0,
    };
    return 0;
}

void connection_check(struct connection *c, bool now)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    int64_t t;

    if (c->fd < 0)
        return;

    t = clock_ms();
    if (!now && t - c->checked_ms < CHECK_EVERY_MS)
        return;

    c->checked_ms = t;

    if (poll(&p, 1, 0) > 0)
        connection_collect(c);
}
