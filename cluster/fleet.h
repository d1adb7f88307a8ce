/*
 * Compares the fleet's id with the one in the cluster, under the key PREFIX and "fleet": who comes first
 * stores it. Two fleets in one cluster would never read each other's pages, but use up each other's memory.
 * So nothing is asked or written before the ids were equal once. The id is compared again from time to time,
 * since a cluster may be emptied, or exchanged for another one. Who stores it adds a random number, by which
 * all other hosts see that it had gone, and the pages with it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "cluster/node.h"
#include "proto/cluster_wire.h"

struct router;

#define FLEET_PERIOD_MS 10000
#define FLEET_RETRY_MS 500

enum {
    FLEET_ID_CHARS = 2 * CLUSTER_FLEET_BYTES,
    FLEET_NUMBER_BYTES = 8,
    FLEET_VALUE_CHARS = FLEET_ID_CHARS + 1 + 2 * FLEET_NUMBER_BYTES, /* "ID NUMBER" */
};

struct fleet { /* zeroed at first */
    struct router *router;
    struct ev *ev;
    const char *prefix; /* of keys */
    bool is_known;      /* @text is set */
    enum cluster_state state;
    char text[FLEET_VALUE_CHARS + 1]; /* what is stored if nothing is there */
    char seen[FLEET_VALUE_CHARS + 1]; /* the value read last; empty: none */
    struct command command;
    bool runs;                     /* the command is on its way */
    uint64_t next_ms, deadline_ms; /* of the next comparison, of the one that runs */
    struct errmsg why;             /* REFUSED, or JOINING after an attempt; else empty */
    uint64_t n_missing;            /* times that the key was stored anew, by any host */
    uint64_t n_reasons;            /* of JOINING, that differed from the one before */
};

/* kvcobrad named its fleet. */
void fleet_set(struct fleet *f, const uint8_t id[static CLUSTER_FLEET_BYTES]);
/* kvcobrad has gone. */
void fleet_clear(struct fleet *f);
void fleet_tick(struct fleet *f);
