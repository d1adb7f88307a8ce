/*
 * External memory: extents of a GPU's pool that a client allocated itself and registered with LEND_EXTENT,
 * for engines that own their memory. They count as extents of the client's tenant like others, but only the
 * client keeps the memory alive. So they end with its session, at once, even where other clients hold pages
 * in them, and with the daemon, since a later start could not know whether the client still has the memory.
 *
 * LEND_EXTENT is refused unless the configuration has gpu-lend.
 */
#pragma once

#include <stdint.h>

struct session;

/* Extents that the session registered and that have not ended. */
uint32_t external_memory_count(const struct session *x);

/* The session ends, or its process is gone: ends its extents, and every session's reservations in them. */
void external_memory_end(struct session *x);
