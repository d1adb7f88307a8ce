/*
 * A session: what one process has from the daemon. While the process lives and holds pages, the session
 * outlives its connection: a closed socket does not mean that the process stopped reading through its
 * mappings. The pidfd reports its exit.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "alloc/geometry.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/store/lease.h"
#include "daemon/store/pool.h"
#include "gpu/page_layout.h"
#include "proto/protocol.h"

struct config;
struct conn;
struct devices;
struct errmsg;
struct ev;
struct ev_source;
struct orphan;
struct persist;
struct session;
struct session_record;
struct table_entry;
struct tables;
struct tenant;

/* The connections above this room. */
struct session_owner {
    void (*forget)(void *ctx, const struct session *x); /* @x ends: no pointer to it may remain */
    void (*close_conn)(void *ctx, struct conn *c);      /* the process of its session is gone */
    void *ctx;
};

/* All sessions of the daemon, and what they work on: borrowed. */
struct sessions {
    const struct config *config;
    struct ev *ev;
    struct devices *devices;
    struct persist *persist;
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
};

struct session_ref {
    struct table_entry *table;
    uint32_t n;
};

struct session {
    struct sessions *sessions;
    uint32_t number; /* index in sessions.list; slots RESERVED name it */
    uint64_t serial; /* of its record in the journal */
    uint8_t token[SESSION_TOKEN_BYTES];
    char client_name[WIRE_CLIENT_NAME_BYTES_MAX + 1];
    pid_t pid;
    int pidfd;
    struct ev_source *exit_watch;
    struct tenant *tenant;
    struct tenant
        *host; /* of the same uid on the host's memory, which is charged for the arena; NULL: no arena yet */
    struct conn *conn; /* NULL: disconnected, its holds remain */

    struct session_model *models; /* [n_models], handle = index + 1 */
    uint32_t n_models;
    struct session_ref *refs; /* [n_refs] */
    uint32_t n_refs;
    struct leases leases;
    uint32_t reservations, n_reservations; /* reservations.h */
    uint32_t n_copying; /* reserved slots that jobs fill: in no list, count for the limit */

    struct extent *page, *arena;
    uint32_t n_jobs; /* requests that threads work on; they read the arena */
    bool ended;      /* session_free() was called; the memory stays for its jobs */
    bool dead;       /* on a GPU: its process is gone, its slots are in quarantine (quarantine.h) */
    uint64_t earlier_generation;     /* on a GPU: reservations up to this one are of an earlier connection */
    uint64_t renewals, hits, misses; /* as last copied from the page */
    uint64_t reported_ms;            /* the last REPORT; 0: none */
    uint64_t seen_ms;                /* last sign of life: a message or a raised renewal counter */
};

/* Room for as many sessions as the configuration allows and the journal has. The pointers of @ss are set.
 * Return: 0; -ENOMEM. */
int sessions_init(struct sessions *ss, struct errmsg *e);
void sessions_deinit(struct sessions *ss);

/* At each tick: copies the session pages, ends leases and reservations that were not renewed, and orphaned
 * holds. */
void sessions_tick(struct sessions *ss, uint64_t now_ms);

/* What the GPUs' pools call when a quarantine ends. */
struct gpu_sessions sessions_for_gpus(struct sessions *ss);

/**
 * session_new() - a session of a process that the handshake has verified
 * @who:   pid, token and client name
 * @pidfd: transferred on success
 *
 * Return: 0; -EDQUOT: too many sessions, of the tenant or of all; -ENOMEM.
 */
int session_new(struct sessions *ss, const struct session_record *who, struct tenant *t, int pidfd,
                struct session **ret, struct errmsg *e);

/* A session of an earlier process, without a connection; see session_new(). */
int session_restore(struct sessions *ss, uint32_t number, const struct session_record *record,
                    struct tenant *t, int pidfd, struct session **ret, struct errmsg *e);

/* Ends everything that the session has; published pages stay. Its connection, if any, is not closed. Returns
 * NULL. */
struct session *session_free(struct session *x);

/* The last job of an ended session is done: frees arena and memory. */
void session_reap(struct session *x);

/*
 * The connection ended: ends reservations and grants, and the session itself unless it holds pages. May free
 * the session. On a GPU reservations stay too: the process may still write there.
 */
void session_detach(struct session *x);

/* The client is back over connection @c. */
void session_resume(struct session *x, struct conn *c);

/* Whether it holds or has reserved pages or registered external memory, so that it has to outlive its
 * connection. */
bool session_has_anything(const struct session *x);

/* Whether a HELLO with @token from this process resumes @x. */
bool session_is(const struct session *x, const uint8_t *token, pid_t pid, uid_t uid);

/* Arena and session page, created at the first OPEN_MODEL. Return: 0; -EDQUOT; errno of the memory. */
int session_make_memory(struct session *x, struct errmsg *e);

/* Handle of (model, shard), added if new. Return: 0; -EDQUOT; -ENOMEM. */
int session_model_add(struct session *x, const struct session_model *m, uint32_t *ret_handle,
                      struct errmsg *e);
const struct session_model *session_model(const struct session *x, uint32_t handle); /* or NULL */

/* References on tables. Return: 0; -ENOMEM. unref: -ENOENT if there is none. */
int session_ref_table(struct session *x, struct table_entry *t);
int session_unref_table(struct session *x, struct table_entry *t);
bool session_has_table(const struct session *x, const struct table_entry *t);
