/*
 * Memory on a GPU that clients allocated and lend to the pool (LEND_EXTENT), for engines that own their
 * memory: extents of the lender's tenant like others, but that nothing keeps them alive except the lender. So
 * they end with its session, at once, whoever holds pages there, and with the daemon, since no start could
 * know whether the lender still has them.
 *
 * Only if the configuration says gpu-lend.
 */
#pragma once

#include <stdbool.h>

struct request;
struct session;

int handle_lend_extent(struct request *rq);

/* Whether the session lends anything. */
bool lend_any(const struct session *x);

/* The session ends, or its process is gone: so is what it lent. Reservations there end, whose they are. */
void lend_end(struct session *x);
