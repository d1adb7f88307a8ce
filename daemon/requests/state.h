/*
 * The state of one kvcobrad, which requests read and change. server.c creates, runs and frees it; files below
 * this room get the parts that they need. Only the loop's thread uses it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/config/config.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/fair.h"
#include "daemon/loop/heap.h"
#include "daemon/loop/listen.h"
#include "daemon/loop/metrics.h"
#include "daemon/loop/supervisor.h"
#include "daemon/loop/work.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/change.h"
#include "daemon/requests/extent_wait.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"
#include "daemon/store/host_extents.h"
#include "daemon/store/host_memory.h"
#include "daemon/store/persist.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/state_folder.h"
#include "daemon/tables/table_entry.h"

struct conn;
struct errmsg;
struct metrics_http;
struct reload;
struct reply_scratch;
struct request;
struct wire_packet;

struct server {
    struct config *config;
    struct reload *reload;
    uint32_t n_reloads; /* how often the configuration was read again */
    struct ev *ev;
    struct work *work;
    struct host_memory memory;
    struct host_extents host_extents;
    struct extent_wait_queue extent_waits;
    struct listen_socket client_socket, operator_socket, metrics_socket;
    /* where they listen, also if systemd made them; "": not at a path */
    char client_path[LISTEN_PATH_BYTES], operator_path[LISTEN_PATH_BYTES];
    struct ev_source *listener, *operator_listener, *signals;
    struct fair_share operator_share; /* of the loop: all connections of operators */
    struct work_share operator_work;  /* of the threads: their requests */
    int signal_fd;
    struct state_folder state_folder; /* zeros: none */
    struct names *names;
    struct supervisor supervisor;
    struct devices devices;
    struct persist persist;
    struct gpus gpus;
    struct tables tables;
    struct keyring *keyring;
    struct offload *offload; /* NULL: there is neither a disk tier nor a cluster tier */
    uint64_t stop_by_ms;     /* the loop ends when all pages are on the disk, or then; 0: it goes on */
    bool is_staging;         /* a job parses or writes a table */
    struct change_queue changes;
    struct sessions sessions;
    struct conn *conns;
    uint32_t n_conns; /* of clients */
    uint32_t n_operator_conns;
    /* Answers a packet of a connection. Return: 0; negative: the caller must close the connection. */
    int (*dispatch)(struct conn *c, const void *data, struct wire_packet *packet);
    /* recheck_begin() for a session on a GPU. */
    int (*recheck_on_gpu)(struct request *rq, const struct page_handle *pages, size_t n);
    struct reply_scratch *scratch;
    uint64_t started_ms;
    bool served;          /* the start succeeded */
    uint64_t watchdog_ms; /* interval at which the supervisor expects WATCHDOG=1; 0: none */
    uint64_t fed_ms;      /* when WATCHDOG=1 was sent last */
    struct metrics metrics;
    uint32_t n_raw_stages;                    /* pages on their way between threads and GPUs: raw_gpu.h */
    uint64_t raw_coords[2], raw_saturated[2]; /* by side; coordinates that APPEND_RAW encoded */
    struct metrics_http *metrics_http;        /* NULL: metrics are not served */
    bool has_idle_tenants;                    /* which a tick forgets */
    bool has_kept;                            /* pages whose pins a tick ends */
    bool draining;                            /* new sessions, models and pages are refused */
    struct live_set live;                     /* moments that clients reported */
    int moments_fd;                           /* of the last FETCH_MOMENTS, or -1 */
    uint64_t reports, refused_reports;
    struct heap heap;
    uint64_t refused_packets;
    uint64_t refused_connections;
};
