/*
 * The state of one kvcobrad, which requests read and change. server.c creates, runs and frees it; files below
 * this room get the parts that they need. Only the loop's thread uses it.
 *
 * The rooms are pointers: who reads one includes its header, and sees no other.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct change_queue;
struct config;
struct conn;
struct conns;
struct devices;
struct ev;
struct extent_wait_queue;
struct gpus;
struct heap;
struct host_memory;
struct live_set;
struct metrics;
struct names;
struct offload;
struct page_handle;
struct persist;
struct raw_counts;
struct reply_scratch;
struct request;
struct server_frame;
struct sessions;
struct supervisor;
struct tables;
struct wire_packet;
struct work;

struct server {
    struct config *config;
    struct ev *ev;
    struct work *work;
    struct supervisor *supervisor;
    struct names *names;
    struct host_memory *memory;
    struct devices *devices;
    struct persist *persist;
    struct gpus *gpus;
    struct tables *tables;
    struct live_set *live;   /* moments that clients reported */
    struct offload *offload; /* NULL: there is neither a disk tier nor a cluster tier */
    struct sessions *sessions;
    struct conns *conns;
    struct change_queue *changes;
    struct extent_wait_queue *extent_waits;
    struct raw_counts *raw;
    struct metrics *metrics;
    struct heap *heap;
    struct reply_scratch *scratch;
    struct server_frame *frame; /* what server.c and its parts alone know (daemon/server_parts.h) */

    /* Answers a packet of a connection. Return: 0; negative: the caller must close the connection. */
    int (*dispatch)(struct conn *c, const void *data, struct wire_packet *packet);
    /* recheck_begin() for a session on a GPU. */
    int (*recheck_on_gpu)(struct request *rq, const struct page_handle *pages, size_t n);
    /* where the sockets listen, also if systemd made them; "": not at a path */
    const char *client_path, *operator_path;
    uint64_t started_ms;
    uint32_t n_reloads; /* how often the configuration was read again */
    bool is_staging;    /* a job parses or writes a table */
    bool has_kept;      /* pages whose pins a tick ends */
    bool draining;      /* new sessions, models and pages are refused */
    int moments_fd;     /* of the last FETCH_MOMENTS, or -1 */
};
