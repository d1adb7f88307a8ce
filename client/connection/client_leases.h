/*
 * The leases of this client. The daemon grants a lease on several pages at once; the client
 * drops them one by one. A dropped item is only marked. One RELEASE per lease is sent at the end
 * of the operation that dropped it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/protocol.h"

struct connection;
struct errmsg;

struct client_lease {
    struct client_lease *next;
    uint64_t id;
    uint32_t n_live;     /* items held */
    uint32_t n_released; /* items marked, RELEASE not sent yet */
    bool is_awaited;     /* the reply to its request has not come: a flush keeps it */
    bool forgotten;      /* the daemon does not have the lease: its session is gone */
    uint8_t released[WIRE_ITEMS_MAX / 8];
};

struct client_leases {
    struct client_lease *first;
};

/*
 * Adds an empty lease; NULL: out of memory. Called before the request, so that the grant can be recorded; the
 * reply has the id of the lease. client_leases_flush() frees a lease without live items that is not awaited.
 */
struct client_lease *client_leases_add(struct client_leases *list);

static inline void client_lease_hold(struct client_lease *l)
{
    l->n_live++;
}

/* Marks item @i of the lease as released; @was_live: client_lease_hold() counted it. */
void client_lease_drop(struct client_lease *l, uint32_t i, int was_live);

/* Ends the wait for the reply of an empty lease: @id and @n_items of it, which are all released; 0: none. */
void client_lease_refuse(struct client_lease *l, uint64_t id, size_t n_items);

/* Whether a RELEASE has to be sent. */
bool client_leases_have_released(const struct client_leases *list);

/* Sends a RELEASE for dropped items. Without a connection they stay marked until the next flush. */
void client_leases_flush(struct client_leases *list, struct connection *c);

/* Marks all leases as forgotten: their session is gone, and no RELEASE is sent for them. */
void client_leases_forget(struct client_leases *list);

/**
 * client_leases_confirm() - send the ids of our leases to a daemon that resumed the session
 *
 * The daemon releases all other leases of the session: their replies were lost. Return: 0; -ENOTCONN ...
 */
int client_leases_confirm(const struct client_leases *list, struct connection *c, struct errmsg *e);

void client_leases_deinit(struct client_leases *list);
