/*
 * A session: what one process has from the daemon. While the process lives and holds pages, the session
 * outlives its connection: a closed socket does not mean that the process stopped reading through its
 * mappings. The pidfd reports its exit.
 */
#pragma once

#include "daemon/gpu/gpu_open.h"
#include "daemon/session/session_types.h"

struct account;
struct errmsg;
struct session_record;
struct sessions;

/*
 * Allocates room for the sessions that the configuration allows, or for those of the journal if these are
 * more. The caller has set the pointers of @ss. Return: 0; -ENOMEM.
 */
int sessions_init(struct sessions *ss, struct errmsg *e);
void sessions_deinit(struct sessions *ss);

/*
 * At each tick: copies the session pages, ends leases and reservations that were not
 * renewed, and orphaned holds.
 */
void sessions_tick(struct sessions *ss, uint64_t now_ms);

/* The callbacks that the GPUs' pools call when a quarantine ends. */
struct gpu_sessions sessions_for_gpus(struct sessions *ss);

/**
 * session_new() - a session of a process that the handshake has verified
 * @who:   pid, uid, token and client name
 * @pidfd: transferred on success
 *
 * Return: 0; -EDQUOT: too many sessions, of the tenant or of all; -ENOMEM.
 */
int session_new(struct sessions *ss, const struct session_record *who, struct tenant *t, int pidfd,
                struct session **ret, struct errmsg *e);

/* A session of an earlier process, without a connection; see session_new(). */
int session_restore(struct sessions *ss, uint32_t number, const struct session_record *record,
                    struct tenant *t, int pidfd, struct session **ret, struct errmsg *e);

/* Ends everything that the session has; published pages stay. Does not close its connection. Returns NULL. */
struct session *session_free(struct session *x);

/* The same with a line in the log, which says @why: a sentence without its full stop. */
struct session *session_close(struct session *x, const char *why);

/* The last job of an ended session is done: frees arena and memory. */
void session_reap(struct session *x);

/*
 * The connection ended: ends reservations and grants, and the session itself unless it holds pages. May free
 * the session. On a GPU the reservations stay too: the process may still write there.
 */
void session_detach(struct session *x);

/* Continues the session over connection @c. */
void session_resume(struct session *x, struct conn *c);

/* Whether the session has holds or reservations, so that it must outlive its connection. */
bool session_has_anything(const struct session *x);

/* Whether a HELLO with @token from this process resumes @x. */
bool session_is(const struct session *x, const uint8_t *token, pid_t pid, const struct account *a);

/* Arena and session page, for the first OPEN_MODEL. Return: 0; -EDQUOT; -ENOSPC; errno of the memory. */
int session_make_memory(struct session *x, struct errmsg *e);

/* Handle of (model, shard), added if new. Return: 0; -EDQUOT; -ENOMEM. */
int session_model_add(struct session *x, const struct session_model *m, uint32_t *ret_handle,
                      struct errmsg *e);
/* The model is in entry @slot of the tenant's control page. */
void session_model_published(struct session *x, uint32_t handle, uint32_t slot);
const struct session_model *session_model(const struct session *x, uint32_t handle); /* or NULL */

/* References on tables. Return: 0; -ENOMEM. unref: -ENOENT if there is none. */
int session_ref_table(struct session *x, struct table_entry *t);
int session_unref_table(struct session *x, struct table_entry *t);
bool session_has_table(const struct session *x, const struct table_entry *t);

/**
 * restore_pools() - rebuild the pools from what an earlier process stored (restore.c)
 *
 * That is: extents, the pages that their records call COMMITTED, the index that finds them, the sessions, and
 * what each of them holds. Records are validated first: a record that fails validation costs the extent that
 * it is in, never the start.
 *
 * Once, at the start, after persist_open(); the tables are loaded, no client is connected yet. Return: 0; a
 * negative errno if the machine failed (base/damage.h): the start must fail, and the next one finds
 * everything unchanged.
 */
int restore_pools(struct sessions *ss, struct errmsg *e);
