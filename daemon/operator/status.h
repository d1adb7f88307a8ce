/*
 * Values of the daemon for STATUS and for the metrics, which use the same functions: each fills a message of
 * STATUS, whose fields proto/status_fields.def describes. They only read the server; texts in messages are
 * borrowed from it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/kvcobra.pb-c.h"

struct advice;
struct device;
struct server;
struct space;
struct tenant;
struct tenant_counters;

/* @reply: initialised. Does not fill lists, the daemon's own memory, and kvcobra-mover. */
void status_fill_totals(const struct server *s, Kvcobra__StatusReply *reply);

/* @reply: initialised; mover_pid and mover_restarts. */
void status_fill_mover(const struct server *s, Kvcobra__StatusReply *reply);

void status_fill_device(const struct device *d, Kvcobra__DeviceStatus *out);

/* Does not fill the number of leases: counting them takes a walk over all sessions. */
void status_fill_tenant(const struct tenant *t, Kvcobra__TenantStatus *out);

/* @out: initialised; the values that never decrease while the tenant exists. */
void status_fill_counters(const struct tenant_counters *c, Kvcobra__TenantStatus *out);

/* Return: whether chunks were counted; @out is filled then. @capacity_bytes: as in advice_read(). */
bool status_fill_advice(const struct server *s, struct advice *a, uint64_t capacity_bytes,
                        Kvcobra__Advice *out);

void status_fill_space(const struct server *s, const struct space *x, Kvcobra__SpaceStatus *out);
