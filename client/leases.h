/*
 * Leases of this client: what the daemon granted together and gets back page by page. Pages that go are only marked;
 * one RELEASE per lease is sent when the operation that dropped them ends.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/protocol.h"

struct connection;

struct lease {
    struct lease *next;
    uint64_t id;
    uint32_t n_live;             /* items held */
    uint32_t n_released;         /* marked, not sent */
    uint8_t released[WIRE_ITEMS_MAX / 8];
};

struct lease_list {
    struct lease *first;
};

/*
 * An empty lease, or NULL: out of memory. Made before the request, so that what is granted has its place; the reply
 * says its id. leases_flush() drops it when nothing in it is live.
 */
struct lease *leases_add(struct lease_list *list);

static inline void lease_hold(struct lease *l)
{
    l->n_live++;
}

/* Item @i of the lease is not needed any more; @was_live: it had been counted by lease_hold(). */
void lease_drop(struct lease *l, uint32_t i, int was_live);

/*
 * Sends what was dropped. Errors are ignored: a daemon that does not hear a release hears the process end, and a
 * lost connection has no leases.
 */
void leases_flush(struct lease_list *list, struct connection *c);

void leases_deinit(struct lease_list *list);
