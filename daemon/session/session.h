/*
 * A session: what one process has from the daemon. It outlives its connection while the process lives and
 * holds pages, since a closed socket does not mean that nobody reads through a mapping any more; the pidfd
 * says when.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "alloc/geometry.h"
#include "daemon/store/lease.h"
#include "daemon/store/pool.h"
#include "gpu/page_layout.h"
#include "proto/protocol.h"

struct conn;
struct errmsg;
struct ev_source;
struct server;
struct table_entry;
struct tenant;

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
    struct server *server;
    uint32_t number; /* index in the server's table; slots RESERVED name it */
    uint64_t serial; /* of its record in the journal */
    uint8_t token[SESSION_TOKEN_BYTES];
    char client_name[WIRE_CLIENT_NAME_BYTES_MAX + 1];
    pid_t pid;
    int pidfd;
    struct ev_source *exit_watch;
    struct tenant *tenant;
    struct tenant
        *host;         /* of the same uid on the host's memory: arenas are its; NULL: there is no arena yet */
    struct conn *conn; /* NULL: disconnected, its holds remain */

    struct session_model *models; /* [n_models], handle = index + 1 */
    uint32_t n_models;
    struct session_ref *refs; /* [n_refs] */
    uint32_t n_refs;
    struct leases leases;
    uint32_t reservations, n_reservations; /* list by slot.next/prev */
    uint32_t n_copying;                    /* reserved slots that jobs have: in no list, part of the limit */

    struct extent *page, *arena;
    uint32_t n_jobs; /* requests that threads work on; they read the arena */
    bool ended;      /* session_free() was called; here for its jobs only */
    bool dead;       /* on a GPU: its process is gone, what it reserved and held waits (quarantine.h) */
    uint64_t earlier_generation;     /* on a GPU: reservations up to this one are of an earlier connection */
    uint64_t renewals, hits, misses; /* as last copied from the page */
    uint64_t reported_ms;            /* the last REPORT; 0: none */
    uint64_t seen_ms;                /* last sign of life: a message or a raised renewal counter */
};

/* @pidfd: transferred on success. Return: 0; -EDQUOT: the tenant's sessions; -ENOMEM. */
int session_new(struct server *s, struct conn *c, struct tenant *t, int pidfd, struct session **ret,
                struct errmsg *e);

/* A session of an earlier process, without a connection; see session_new(). */
struct session_record;
int session_restore(struct server *s, uint32_t number, const struct session_record *record, struct tenant *t,
                    int pidfd, struct session **ret, struct errmsg *e);

/* Everything it has ends; the pages stay. Its connection, if any, is not touched. */
struct session *session_free(struct session *x);

/* An ended session's last job is over: arena and memory go. */
void session_reap(struct session *x);

/*
 * The connection ended: reservations and grants end; the rest too unless holds remain. May free the session.
 * On a GPU reservations remain too: the process may be writing there.
 */
void session_detach(struct session *x);

/* Over a new connection the client says what it knows of: it does not write to what it reserved over earlier
 * ones. */
void session_resume(struct session *x, struct conn *c);
void session_drop_earlier(struct session *x);

/* Whether it holds or reserved pages, or lends memory, so that it has to outlive its connection. */
bool session_has_anything(const struct session *x);

/* Whether a HELLO with @token of this process means @x. */
bool session_is(const struct session *x, const uint8_t *token, pid_t pid, uid_t uid);

/* Arena and session page, made at the first OPEN_MODEL. Return: 0; -EDQUOT; errno of the memory. */
int session_make_memory(struct session *x, struct errmsg *e);

/* Handle of (model, shard), added if new. Return: 0; -EDQUOT; -ENOMEM. */
int session_model_add(struct session *x, const struct session_model *m, uint32_t *ret_handle,
                      struct errmsg *e);
const struct session_model *session_model(const struct session *x, uint32_t handle); /* or NULL */

/* References on tables. Return: 0; -ENOMEM. unref: -ENOENT if there is none. */
int session_ref_table(struct session *x, struct table_entry *t);
int session_unref_table(struct session *x, struct table_entry *t);
bool session_has_table(const struct session *x, const struct table_entry *t);

/* The list of slots that the session has reserved. */
void session_add_reservation(struct session *x, uint32_t slot);
void session_take_reservation(struct session *x, uint32_t slot);

/* Once in a while: copies the session page, ends what the session let lapse. */
void session_tick(struct session *x, uint64_t now_ms);
