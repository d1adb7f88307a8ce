/*
 * What the clients of a daemon (daemon_rig.h) know, and what the daemon must therefore answer and keep:
 *
 *     a page that a session holds stays as it was, and the holds of all sessions are the holds of all slots
 *     a page that a reply names has the key that was asked for, and bytes that a client of the tenant wrote
 *     a session publishes and aborts only what it reserved
 *     RESERVE finds every page that is held; LEASE of one succeeds; RELEASE ends the holds that it names
 *     a session lives as long as its connection or its holds, and resumes in its own process only
 *     accounts and queues agree, and nothing is left when all processes are gone
 *
 * A broken rule ends the program. Refusals for lack of room (-ENOSPC, -EDQUOT, -EAGAIN) are always allowed:
 * limits have tests of their own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "alloc/table/geometry.h"
#include "proto/page.h"
#include "tests/fuzz/daemon_rig.h"

struct page_layout;

enum {
    MODEL_TENANTS = 3,
    MODEL_UID = 1000, /* of the first tenant */
    MODEL_KEYS = 12,
    MODEL_FIRST_KEYS = 4, /* keys below are of class first */
    MODEL_KEY_UNKNOWN = 255,
    MODEL_ITEMS_MAX = 4,
    MODEL_LEASES_MAX = 16,
    MODEL_RESERVATIONS_MAX = 16,
    MODEL_SESSIONS_MAX = 16,
    MODEL_CLIENTS = 5,
    MODEL_PENDING_MAX = 16,
    MODEL_PAGE_ROOM = 4096, /* of one page in the arena */
};

struct model_page {
    uint8_t key;
    uint32_t slot;
    uint64_t generation;
};

struct model_item {
    struct model_page page;
    bool held;
    uint32_t crc; /* of the page when the lease was granted */
};

struct model_lease {
    uint64_t id; /* 0: unused */
    uint32_t n;
    struct model_item items[MODEL_ITEMS_MAX];
};

struct model_session {
    bool exists;
    unsigned tenant;
    pid_t pid;
    uint8_t token[SESSION_TOKEN_BYTES];
    struct model_client *client; /* NULL: disconnected */
    int arena_fd;                /* -1: no model is open */
    uint32_t handle;
    struct model_lease leases[MODEL_LEASES_MAX];
    struct model_page reservations[MODEL_RESERVATIONS_MAX]; /* [n_reservations], some may have ended */
    uint32_t n_reservations;
};

struct model_pending { /* a request without a reply yet */
    uint64_t id;
    unsigned body_case;
    uint32_t n;
    struct model_page pages[MODEL_ITEMS_MAX];
    uint64_t leases[MODEL_ITEMS_MAX];
    uint8_t bitmap;
    bool whole; /* RELEASE: of all items */
};

struct model_client {
    struct rig_link *link; /* NULL: not connected */
    unsigned tenant;
    pid_t pid;
    bool is_operator, open;
    uint8_t token[SESSION_TOKEN_BYTES]; /* of HELLO's reply */
    struct model_session *session;
    struct model_pending pending[MODEL_PENDING_MAX];
    uint32_t n_pending;
};

struct model {
    struct server *server;
    const struct page_layout *layout;
    uint8_t table_digest[DIGEST_BYTES], model_digest[DIGEST_BYTES];
    struct model_client clients[MODEL_CLIENTS]; /* the last one is the operator */
    struct model_session sessions[MODEL_SESSIONS_MAX];
    bool quota_was_lowered;
    bool unknown; /* a daemon that was restored has sessions and holds that are not in the model */
    uint64_t next_id;
};

/* The bytes of key @key. */
struct chunk_key model_key(uint8_t key);
static inline unsigned model_class(uint8_t key)
{
    return key < MODEL_FIRST_KEYS ? 0 : 1;
}

/* The payload byte of a page that a client of @tenant wrote; @variant: which of its texts. */
static inline uint8_t model_payload(unsigned tenant, uint8_t variant)
{
    return (uint8_t) (tenant << 4 | (variant & 15)); /* no sink is infinite: below 0x40 */
}

/* The slot of a page of @tenant with @key that some session holds, or NULL. */
const struct model_item *model_find_held(const struct model *m, unsigned tenant, uint8_t key);

/* Writes a page for @key to place @at of the session's arena; with bit 7 of @variant, a damaged one. */
void model_write_page(const struct model *m, const struct model_session *x, uint8_t key, uint32_t at,
                      uint8_t variant);

/* Room for one more request of the client; NULL: the limit of jobs is reached. */
struct model_pending *model_request(struct model *m, struct model_client *c, unsigned body_case);

/* Applies all replies and closed connections since the last call, and checks everything. */
void model_settle(struct model *m);

/* The process of @x is gone: call before the daemon learns it. */
void model_process_exits(struct model *m, struct model_session *x);

/* The daemon ended and the next one started: connections are gone, holds remain. */
void model_restart(struct model *m);
