/*
 * Values that are permitted and will hurt later: compared with the machine and with each other. Logged at the
 * start, printed by --check-config.
 */
#pragma once

#include <stdint.h>

struct config;
struct errmsg;

/* @event: the name of the line in the log. */
typedef void config_warn_fn(void *ctx, const char *event, const char *sentence);

/**
 * config_warnings() - call @warn for each warning
 * @c: checked
 * @memory_bytes: of machine_memory_bytes(); 0: unknown
 */
void config_warnings(const struct config *c, uint64_t memory_bytes, config_warn_fn *warn, void *ctx);

/* The clients of one tenant that have room for a page each beside their arenas. */
uint64_t config_clients_per_tenant(const struct config *c);
