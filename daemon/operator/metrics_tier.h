/* The metrics of the disk tier, for metrics_collect.c. */
#pragma once

struct metrics_text;
struct server;

void metrics_tier_collect(const struct server *s, struct metrics_text *t); /* nothing without a disk tier */
