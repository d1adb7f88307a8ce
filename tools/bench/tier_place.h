/*
 * Where `kvcobra bench tier` measures: a kvcobrad with a disk tier in a folder of its own on the disk that is
 * measured, or with a cluster tier, kvcobra-cluster and a redis-server on this machine; or both. Everything
 * is made anew and removed.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/bench_service_daemon.h"
#include "tools/command/client_model.h"
#include "tools/command/operator_call.h"
#include "tools/command/process.h"

struct errmsg;

struct tier_place_options {
    const char *daemon;      /* path of kvcobrad */
    const char *disk_parent; /* where the folder of the disk tier is made; NULL: no disk tier */
    bool has_cluster;
    uint64_t page_bytes, n_pages; /* that the pool and the disk have room for */
    uint32_t depth;               /* pages that the disk reads at a time */
};

struct tier_place {
    const struct tier_place_options *options;
    char folder[64], keys[80], cluster_socket[96], cluster_config[96]; /* of files that outlive a daemon */
    char disk[PATH_MAX];
    struct bench_daemon daemon;
    struct process redis, cluster;
    uint16_t redis_port;
    kvc_client *control;
    double start_s; /* from the start of kvcobrad to its ready message */
};

#define TIER_PLACE_INIT                                                                                      \
    {                                                                                                        \
        .daemon = BENCH_DAEMON_INIT, .redis = PROCESS_INIT("redis-server"),                                  \
        .cluster = PROCESS_INIT("kvcobra-cluster")                                                           \
    }

/* @p: TIER_PLACE_INIT; @o: borrowed. Return: 0; -ENOENT: a program is missing; each with a sentence. */
int tier_place_begin(struct tier_place *p, const struct tier_place_options *o, struct errmsg *e);
/* Ends kvcobrad and starts it again on the same disk, with an empty memory and no table. */
int tier_place_restart(struct tier_place *p, struct errmsg *e);
void tier_place_end(struct tier_place *p); /* usable with _cleanup_ */

/* Stages and activates a table. */
int tier_place_activate(struct tier_place *p, const void *table, size_t bytes, struct errmsg *e);

/* The state of the tiers after @action. *ret: to be freed as operator_message_freep() does. */
int tier_place_ask(struct tier_place *p, Kvcobra__TierAction action, Kvcobra__ControlTierReply **ret,
                   struct errmsg *e);
/*
 * Waits until all tiers are ready, and have all pages that are in memory. Return: also -ETIMEDOUT: not within
 * ten minutes; -ENODEV: a tier cannot be used.
 */
int tier_place_wait_written(struct tier_place *p, struct errmsg *e);

/* Drops what memory has. Return: 0; -EBUSY: not all pages went. */
int tier_place_evict(struct tier_place *p, struct errmsg *e);
/* Drops what the disk has. */
int tier_place_drop(struct tier_place *p, struct errmsg *e);
