/*
 * Requests of kvcobrad that wait for the cluster: one command per name, gathered into one reply. PUTs wait
 * until the rate of writes permits them.
 *
 * A request ends when all its commands have ended, or at its deadline. Its number is limited
 * (CLUSTER_REQUESTS_MAX), and so are its commands.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/cluster_wire.h"

struct ev;
struct request;
struct router;

struct requests { /* set by the caller: */
    struct ev *ev;
    struct router *router;
    const char *prefix;         /* of keys, at most REQUEST_PREFIX_BYTES_MAX */
    uint64_t write_bytes_per_s; /* of PUT */
    uint64_t value_bytes_max;   /* of GET: replies have a limit */
    void (*reply)(void *ctx, const struct cluster_reply *r);
    void *ctx;
    uint8_t *memory; /* [memory_bytes] of kvcobrad; NULL: none */
    uint64_t memory_bytes;
    /* set by request.c, zeroed at first: */
    struct request *list[CLUSTER_REQUESTS_MAX];
    unsigned n;
    int64_t write_bytes_left; /* may be below 0: after a value larger than what was left */
    uint64_t filled_ms;       /* when write_bytes_left grew */
    uint64_t n_started;       /* number of the newest PUT that waits */
    uint64_t counters[CLUSTER_N_COUNTERS];
};

#define REQUEST_PREFIX_BYTES_MAX 32

/* @q: EXISTS, GET, PUT, TOUCH or REMOVE. reply() may run before the call returns. */
void requests_start(struct requests *s, const struct cluster_request *q);

/* Ends requests at their deadlines, and starts PUTs. */
void requests_tick(struct requests *s);

/* Forgets all requests without replies. */
void requests_drop(struct requests *s);
