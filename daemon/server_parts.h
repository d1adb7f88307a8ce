/*
 * The parts of the server that server.c starts, calls and ends: where packets go, the state folder and the
 * names in the file system, the sockets, the keys with the slower tiers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/loop/listen.h"
#include "daemon/loop/metrics.h"
#include "daemon/store/host_extents.h"
#include "daemon/tables/state_folder.h"

struct config;
struct errmsg;
struct ev_source;
struct keyring;
struct metrics_http;
struct reload;
struct request_row;
struct server;

/* Which row serves a request, by the number of its body. */
struct dispatch_table {
    const struct request_row *rows[METRICS_TYPES_MAX];
};

/* What only server.c and its parts know of a server: server.frame. */
struct server_frame {
    struct dispatch_table requests;
    struct reload *reload;
    struct host_extents host_extents;
    struct state_folder state_folder; /* zeros: none */
    struct keyring *keyring;
    struct metrics_http *metrics_http; /* NULL: metrics are not served */

    /* sockets */
    struct listen_socket client_socket, operator_socket, metrics_socket;
    char client_path[LISTEN_PATH_BYTES], operator_path[LISTEN_PATH_BYTES]; /* server.client_path ... */
    struct ev_source *listener, *operator_listener, *signals;
    int signal_fd;

    /* ticks, and the end */
    bool has_idle_tenants; /* which a tick forgets */
    bool served;           /* the start succeeded */
    uint64_t watchdog_ms;  /* interval at which the supervisor expects WATCHDOG=1; 0: none */
    uint64_t fed_ms;       /* when WATCHDOG=1 was sent last */
    uint64_t stop_by_ms;   /* the loop ends when all pages are on the disk, or then; 0: it goes on */
};

/*
 * A server whose rooms are empty (server_rooms.c), in one allocation, which free() frees. @config: borrowed.
 * NULL: out of memory.
 */
struct server *server_rooms_new(struct config *config);

/* ---- packets (dispatch.c): which request is served on which socket, in which state of a connection ---- */

/*
 * Makes the table of requests from their rows, and serves packets by it. Return: 0; -ENOSYS with a sentence:
 * the program was linked without a request of kvcobra.proto, or has it twice.
 */
int dispatch_start(struct server *s, struct errmsg *e);

/* The table of @n rows. Return: that of dispatch_start(). */
int dispatch_fill(struct dispatch_table *t, const struct request_row *const *rows, size_t n,
                  struct errmsg *e);

/* ---- state folder, and the watch over names (server_names.c) ---- */

/* Opens and locks the state folder, if there is one. Return: 0; errors of state_folder_open(). */
int server_names_open(struct server *s, struct errmsg *e);
void server_names_close(struct server *s);

/*
 * Notices from now on when others can no longer find what this process serves or has locked. Return: 0;
 * errors of names_new() and names_add().
 */
int server_names_watch(struct server *s, struct errmsg *e);

/* ---- sockets, from the configuration or from another process (server_sockets.c) ---- */

/* Opens the sockets of clients, operators and monitoring. Return: 0; errno with a sentence. */
int server_sockets_open(struct server *s, struct errmsg *e);

/* ---- keys and slower tiers (server_tier.c) ---- */

/* Reads the keys, and starts the tier if the configuration has one. Return: 0; errno with a sentence. */
int server_tier_start(struct server *s, struct errmsg *e);

/* A reference is taken. */
void server_tier_set_keyring(struct server *s, struct keyring *ring);

/*
 * Begins the end of the loop. Pages that the disk should have are written first, for @most_ms, in which
 * clients are served as before; the second call ends the loop at once. Return: whether pages are being
 * written.
 */
bool server_tier_begin_stop(struct server *s, uint64_t most_ms);

/* Ends the loop if it is to end and no page is left to be written. */
void server_tier_stop_if_flushed(struct server *s);
