/* The metrics of store/advice.h, for metrics_collect.c. */
#pragma once

struct metrics_text;
struct server;

/* Devices, and tenants that have advice of their own. */
void metrics_advice_collect(const struct server *s, struct metrics_text *t);
