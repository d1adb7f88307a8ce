/* The structures of this room; session.h defines the term session. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "alloc/table/geometry.h"
#include "daemon/store/lease.h"
#include "gpu/page_layout.h"
#include "proto/protocol.h"

struct config;
struct conn;
struct devices;
struct ev;
struct ev_source;
struct extent;
struct host_memory;
struct orphan;
struct persist;
struct session;
struct table_entry;
struct tables;
struct tenant;

/* Callbacks to the connections, which are above this room. */
struct session_owner {
    void (*forget)(void *ctx, const struct session *x); /* @x ends: no pointer to it may remain */
    void (*close_conn)(void *ctx, struct conn *c);      /* the process of its session is gone */
    void *ctx;
};

/* All sessions of the daemon, and borrowed pointers to what they use. */
struct sessions {
    const struct config *config;
    struct ev *ev;
    struct devices *devices;
    struct persist *persist;
    struct host_memory *memory;
    struct tables *tables;
    struct session_owner owner;
    struct session **list; /* [n_max] by number */
    uint32_t n, n_max;
    struct orphan *orphans; /* [n_max] */
    uint32_t n_watched;     /* orphans without a session */
};

struct session_model {
    uint8_t digest[DIGEST_BYTES];
    uint8_t geometry_digest[DIGEST_BYTES];
    struct shard shard;
    bool is_published; /* counts as a user of the model's entry in the tenant's control page */
};

struct session_ref {
    struct table_entry *table;
    uint32_t n;
};

struct session {
    struct sessions *sessions;
    uint32_t number; /* index in sessions.list; slots RESERVED name it */
    uint64_t serial; /* of its record in the journal; the number of the log and of operators, used once */
    uint8_t token[SESSION_TOKEN_BYTES];
    char client_name[WIRE_CLIENT_NAME_BYTES_MAX + 1];
    pid_t pid;
    uid_t uid; /* of the process, when it connected */
    int pidfd;
    struct ev_source *exit_watch;
    struct tenant *tenant;
    /* the account's tenant in host memory, which is charged for the arena; NULL: no arena yet */
    struct tenant *host;
    struct conn *conn; /* NULL: disconnected, its holds remain */

    struct session_model *models; /* [n_models], handle = index + 1 */
    uint32_t n_models;
    struct session_ref *refs; /* [n_refs] */
    uint32_t n_refs;
    struct leases leases;
    uint32_t reservations, n_reservations; /* reservations.h */
    uint32_t n_copying; /* reserved slots that jobs fill: in no list, count for the limit */

    struct extent *page, *arena; /* sparse: the client allocates the memory that it writes */
    bool arena_is_filled;        /* READ_RAW wrote to it, and so allocated memory of this process */
    uint32_t n_jobs;             /* requests that threads work on; they read the arena */
    bool ended;                  /* session_free() was called; the memory stays for its jobs */
    bool dead; /* on a GPU: its process is gone, its slots are in quarantine (quarantine.h) */
    uint64_t earlier_generation;     /* on a GPU: reservations up to this one are of an earlier connection */
    uint64_t renewals, hits, misses; /* as last copied from the page */
    uint64_t reported_ms;            /* the last REPORT; 0: none */
    uint64_t opened_ms;              /* by this process of kvcobrad: created, or restored */
    uint64_t seen_ms;                /* last sign of life: a message or a raised renewal counter */
};
