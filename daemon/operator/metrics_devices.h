/* Figures of devices for monitoring: a row for each where one daemon has several. */
#pragma once

struct metrics_text;
struct server;

/* Of all devices. */
void metrics_collect_pools(const struct server *s, struct metrics_text *t);

/* Of GPUs and the process that uses them; nothing where none is configured. */
void metrics_collect_gpus(const struct server *s, struct metrics_text *t);
