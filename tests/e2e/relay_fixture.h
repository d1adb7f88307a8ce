/*
 * A relay between a client in this process and a real daemon: it passes packets and descriptors on, and a
 * test looks at each message or changes it. So a client can be tested against replies that a correct daemon
 * does not send, or sends rarely, with everything else real.
 *
 * relay_start(&r, daemon.socket, on_request, on_reply, ctx); ... a client connects to r.path; relay_cut(&r)
 * loses its connection ... relay_stop(&r);
 *
 * The functions run in the relay's thread, between the client's call and the daemon's answer. Read what
 * they record after the client's call has returned.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "proto/wire.h"

/* @about: the body case of the request that a reply belongs to. */
typedef bool (*relay_request)(void *ctx, Kvcobra__Request *m); /* false: the connection ends instead */
typedef void (*relay_reply)(void *ctx, Kvcobra__Request__BodyCase about, Kvcobra__Reply *m);

struct relay {
    char folder[32], path[48];
    const char *daemon;
    relay_request on_request;
    relay_reply on_reply;
    void *ctx;
    int listener, client, server; /* the last two: -1: no connection */
    int orders[2]; /* a socket pair, on which the test's thread gives orders and gets an answer */
    Kvcobra__Request__BodyCase about;
    pthread_t thread;
};

/* Begins to listen. @daemon stays the caller's. Either function may be NULL. Asserts. */
void relay_start(struct relay *r, const char *daemon, relay_request on_request, relay_reply on_reply,
                 void *ctx);
/* Closes both sides of the connection; when it returns, the client can connect again. */
void relay_cut(struct relay *r);
void relay_stop(struct relay *r);
