/*
 * The state of one disk tier: what the loop and the thread share, and what is the thread's own. For the files
 * of the tier.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/disk.h"
#include "daemon/tier/disk_buffers.h"
#include "daemon/tier/disk_filter.h"
#include "daemon/tier/disk_io.h"
#include "daemon/tier/disk_map.h"
#include "daemon/tier/disk_removed.h"

struct ev_source;

/*
 * A request that the thread works on. It has copies of all that the thread needs, so the loop can end the
 * request at any time.
 */
struct disk_transfer {
    struct disk_op op;            /* first member */
    struct tier_request *request; /* under the lock; NULL: it has ended */
    enum tier_kind kind;
    struct tier_group group;
    struct chunk_key key;
    struct index_family family;
    uint64_t list_from;
    struct tier_list *list;
    uint64_t quota_bytes;
    bool drops_any_tenant, drops_any_table;
    uint8_t *data; /* the buffer, or NULL */
    struct disk_place place;
    uint64_t started_ms;
    bool is_used;
    bool is_running; /* its operation is at the disk */
    bool is_cancelled;
};

struct disk {
    struct disk_options options;
    char *path;
    uint8_t fleet[DISK_FLEET_BYTES];
    struct disk_buffers buffers;
    struct disk_filters filters;
    struct disk_removed removed;
    int wake_fd;  /* readable: the thread has something to do */
    int ended_fd; /* readable: a request ended */
    struct ev_source *watch;
    pthread_t thread;

    pthread_mutex_t lock; /* of all that follows, up to the next comment, and of requests in transfers */
    struct fair_queue waiting, writes, ended;
    uint32_t n_requests;
    bool stopping, resumes;
    bool has_changed;               /* the state; the loop does not know it yet */
    bool has_ended, is_left_behind; /* the thread */
    pthread_cond_t end;             /* has_ended is set */
    struct disk_status status;      /* its state is written by the thread alone */

    /* the thread's own */
    struct disk_transfer *transfers; /* [depth] */
    uint32_t n_transfers, n_running, n_writing;
    struct disk_transfer *blocked; /* a read that waits for a buffer */
    struct disk_folder folder;
    struct disk_map map;
    struct disk_io io;
    uint64_t checked_ms, pause_ms, retry_at_ms;
};
