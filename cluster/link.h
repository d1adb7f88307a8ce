/*
 * The connection to kvcobrad (proto/cluster_wire.h): connects, is greeted, maps kvcobrad's memory object,
 * starts requests and sends replies. While kvcobrad is away, it tries again every LINK_RETRY_MS.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cluster/fleet.h"
#include "cluster/request.h"

struct ev;
struct ev_source;
struct router;

#define LINK_RETRY_MS 250

struct link { /* zeroed at first, then set by the caller: */
    struct ev *ev;
    struct router *router;
    struct fleet fleet;
    struct requests requests;
    const char *path;         /* of kvcobrad's socket */
    void (*hurry)(void *ctx); /* link_is_busy() from now on */
    void *ctx;
    /* set by link.c: */
    struct ev_source *stream; /* NULL: not connected */
    bool is_greeted, is_broken;
    int last_error; /* of the last attempt to connect, for one line of the log */
    uint64_t retry_ms;
};

void link_tick(struct link *l);

/* Whether something needs frequent ticks. */
bool link_is_busy(const struct link *l);

/* Ends the connection. */
void link_deinit(struct link *l);
