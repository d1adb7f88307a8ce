/* Everything that one kvcobrad has; one thread. Parse -> server_new -> server_run -> server_free. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/config/config.h"
#include "daemon/store/device.h"
#include "daemon/loop/ev.h"
#include "daemon/store/evict.h"
#include "daemon/store/journal.h"
#include "daemon/loop/listen.h"
#include "daemon/loop/metrics.h"
#include "daemon/session/orphans.h"
#include "daemon/loop/supervisor.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/tables.h"
#include "proto/protocol.h"

struct conn;
struct errmsg;
struct metrics_http;
struct mover;
struct reply_scratch;
struct session;
struct work;

/* What the configuration says now; @fresh is initialised by it, config_deinit() it. Return: 0; errno with a
 * sentence. */
typedef int (*config_reload_fn)(struct config *fresh, struct errmsg *e);

struct server {
    struct config *config;
    config_reload_fn reload;
    struct ev *ev;
    struct work *work;
    struct mover *mover; /* NULL: no GPU is configured */
    struct listen_socket client_socket, operator_socket, metrics_socket;
    struct ev_source *listener, *operator_listener, *signals;
    int signal_fd;
    struct supervisor supervisor;
    struct journal journal;
    struct pool_keeper pool_keeper;
    struct devices devices;
    struct tables tables;
    bool is_staging; /* a job has a table in hand */
    uint8_t boot_id[BOOT_ID_BYTES];
    uint8_t secret[32]; /* index keys are derived from it */
    struct conn *conns;
    uint32_t n_conns;
    struct session **sessions; /* [n_sessions_max] by number */
    uint32_t n_sessions, n_sessions_max;
    struct ownerless *ownerless; /* [n_sessions_max] */
    uint32_t n_alone;            /* of them: without a session */
    struct reply_scratch *scratch;
    uint64_t started_ms;
    uint64_t watchdog_ms, fed_ms; /* the supervisor wants to hear from us this often; 0: it does not */
    struct metrics metrics;
    uint32_t n_raw_stages;                    /* pages between threads and GPUs: raw_gpu.h */
    uint64_t raw_coords[2], raw_saturated[2]; /* by side, of what APPEND_RAW encoded */
    struct metrics_http *metrics_http;        /* NULL: nobody may ask */
    bool draining;                            /* nothing new comes in */
    struct live_set live;                     /* moments that clients reported */
    int moments_fd;                           /* of the last FETCH_MOMENTS, or -1 */
    uint64_t reports, refused_reports;
    uint64_t refused_packets;
    uint64_t refused_connections;
};

/* @config: borrowed, checked; SIGHUP changes it to what @reload says. Listens when it returns. */
int server_new(struct config *config, config_reload_fn reload, struct server **ret, struct errmsg *e);

/* Serves until SIGTERM or SIGINT. Return: 0; errno of the event loop. */
int server_run(struct server *s, struct errmsg *e);
struct server *server_free(struct server *s);
static inline void server_freep(struct server **s)
{
    *s = server_free(*s);
}

/* The tenant of a verified uid on a device, made at first sight. Return: 0; -EDQUOT: too many tenants; errno
 * of the memory. */
int server_tenant(struct server *s, uid_t uid, struct device *device, struct tenant **ret, struct errmsg *e);

/* Turns the tick on while there is somebody to look after. */
void server_update_tick(struct server *s);
