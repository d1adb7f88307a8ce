/* The memory of a server and of its rooms. See server_parts.h. */
#include "daemon/server_parts.h"

#include <stdlib.h>

#include "daemon/config/config.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/loop/heap.h"
#include "daemon/loop/metrics.h"
#include "daemon/loop/supervisor.h"
#include "daemon/requests/change.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/extent_wait.h"
#include "daemon/requests/raw_gpu.h"
#include "daemon/requests/state.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/host_memory.h"
#include "daemon/store/persist.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/table_entry.h"

/* A server with all of its rooms: one allocation, and pointers into it. */
struct server_whole {
    struct server server; /* first: its address is that of the allocation */
    struct server_frame frame;
    struct supervisor supervisor;
    struct host_memory memory;
    struct devices devices;
    struct persist persist;
    struct gpus gpus;
    struct tables tables;
    struct live_set live;
    struct sessions sessions;
    struct conns conns;
    struct change_queue changes;
    struct extent_wait_queue extent_waits;
    struct raw_counts raw;
    struct metrics metrics;
    struct heap heap;
};

struct server *server_rooms_new(struct config *config)
{
    struct server_whole *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;

    w->server = (struct server){
        .config = config,
        .frame = &w->frame,
        .supervisor = &w->supervisor,
        .memory = &w->memory,
        .devices = &w->devices,
        .persist = &w->persist,
        .gpus = &w->gpus,
        .tables = &w->tables,
        .live = &w->live,
        .sessions = &w->sessions,
        .conns = &w->conns,
        .changes = &w->changes,
        .extent_waits = &w->extent_waits,
        .raw = &w->raw,
        .metrics = &w->metrics,
        .heap = &w->heap,
        .client_path = w->frame.client_path,
        .operator_path = w->frame.operator_path,
        .moments_fd = -1,
    };
    w->frame.signal_fd = -1;
    return &w->server;
}
