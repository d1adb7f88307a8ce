/*
 * Leases of this client: what the daemon granted together and gets back page by page. Pages that go are only
 * marked; one RELEASE per lease is sent when the operation that dropped them ends.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/protocol.h"

struct connection;
struct errmsg;

struct lease {
    struct lease *next;
    uint64_t id;
    uint32_t n_live;     /* items held */
    uint32_t n_released; /* marked, not sent */
    bool forgotten;      /* by the daemon: of a session that is gone */
    uint8_t released[WIRE_ITEMS_MAX / 8];
};

struct lease_list {
    struct lease *first;
};

/*
 * An empty lease, or NULL: out of memory. Made before the request, so that what is granted has its place; the
 * reply says its id. leases_flush() drops it when nothing in it is live.
 */
struct lease *leases_add(struct lease_list *list);

static inline void lease_hold(struct lease *l)
{
    l->n_live++;
}

/* Item @i of the lease is not needed any more; @was_live: it had been counted by lease_hold(). */
void lease_drop(struct lease *l, uint32_t i, int was_live);

/* Whether the daemon is to be told of any. */
bool leases_have_released(const struct lease_list *list);

/* Sends what was dropped. What cannot be sent because the connection is lost waits for the next flush. */
void leases_flush(struct lease_list *list, struct connection *c);

/* The session that had them is gone: nothing of them is sent any more. */
void leases_forget(struct lease_list *list);

/**
 * leases_confirm() - tell a daemon that resumed the session which leases arrived here
 *
 * It releases others: the replies that said their ids were lost. Return: 0; -ENOTCONN …
 */
int leases_confirm(const struct lease_list *list, struct connection *c, struct errmsg *e);

void leases_deinit(struct lease_list *list);
