/*
 * What a pool on a GPU needs beside its store: the mover makes its extents (spares.h) and says which
 * processes the driver lists, so that memory of dead ones can be used again (quarantine.h). Everything is
 * asked for and answered later, on the loop.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "daemon/store/pool.h"
#include "daemon/gpu/quarantine.h"
#include "daemon/gpu/preallocated.h"

struct device;
struct errmsg;
struct gpus;

struct gpu_pool {
    struct device *device;
    struct pool_source source;
    struct preallocated preallocated;
    struct quarantine quarantine;
    uint64_t reuse_ms;
    uint64_t orphans_until_ms; /* then slots of nobody are free; 0: there are none */
};

enum {
    GPU_DEAD_PROCESSES_MAX = 256, /* that wait on one device; beyond, their extents are retired */
    GPU_LIST_PATIENCE_MS = 30000, /* without a list of processes, before the same */
    GPU_CREATE_MS = 60000, /* clearing an extent takes a millisecond; creating a context first, seconds */
    GPU_LIST_MS = 10000,
};

/* @d: a GPU whose store's pool was made; gets its source. Return: 0; -ENOMEM. */
int gpu_pool_new(struct device *d, struct gpus *gpus, struct gpu_pool **ret, struct errmsg *e);

/* The mover was asked for the last time. NULL is fine; returns NULL. */
struct gpu_pool *gpu_pool_free(struct gpu_pool *g);

/* The process of @session is gone, what it reserved and held stays until session_free(), which this or a tick
 * calls. */
void gpu_pool_process_gone(struct gpu_pool *g, uint32_t session, pid_t pid);

/*
 * After a restart there are slots of nobody: the mover of the earlier process may have been writing there. It
 * ended with that process, so they are free after the same delay as slots of clients.
 */
void gpu_pool_delay_reuse(struct gpu_pool *g);

/* Extents where @session reserved or holds anything take no new pages: its process may write there, and
 * nobody will know. */
void gpu_pool_retire_session(struct gpu_pool *g, uint32_t session, const char *why);

/* Once in a while: makes spares, asks for lists, releases what is due. */
void gpu_pool_tick(struct gpu_pool *g, uint64_t now_ms);

/* For STATUS: slots of dead processes, retired extents. */
struct gpu_pool_metrics {
    uint64_t quarantined_slots;
    uint32_t retired_extents, spare_extents;
};
void gpu_pool_metrics(const struct gpu_pool *g, struct gpu_pool_metrics *ret);
