/* Metrics of pools and GPUs: one sample per device and family. Used by metrics_collect.c only. */
#pragma once

struct metrics_text;
struct server;

/* Pools of all devices. */
void metrics_devices_collect_pools(const struct server *s, struct metrics_text *t);

/* GPUs and the process kvcobra-mover; writes nothing if no GPU is configured. */
void metrics_devices_collect_gpus(const struct server *s, struct metrics_text *t);
