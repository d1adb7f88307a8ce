/*
 * One request that is being answered. A handler reads the message, changes the daemon's state,
 * fills the reply's body and returns 0 or a negative errno with a sentence. A handler that must
 * wait for a thread gives the request to a job (job.h) and returns REQUEST_PENDING. dispatch.c
 * calls handlers, request.c sends replies.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/offload/offload.h"
#include "daemon/store/pool_types.h"
#include "daemon/tables/table_entry.h"
#include "proto/wire.h"

struct conn;
struct job;
struct request;
struct server;
struct session;
struct step_plan;
struct store;
struct table_entry;
struct tenant;

#define REQUEST_PENDING 1
#define REPLY_PLACES_MAX 16 /* of LOOKUP: two for each chunk of a message */

enum { STEP_RECHECK = 1, STEP_LOOK = 2, STEP_FETCH = 4 };

struct request_steps { /* of a request that may wait: request_steps.h */
    const struct step_plan *plan;
    int (*go_on)(struct request *rq); /* for jobs: the wait has ended. Return: that of a handler */
    unsigned done;                    /* bits STEP_* */
    bool tier_is_slow;                /* a shared tier has the page that ended a fetch */
    bool skips_host;                  /* the tier of the host is slower than the client: offload_skips() */
    /*
     * By item of the message: the shared tier that has its page, or NULL. From the end of the step that looks
     * to the next wait; else NULL.
     */
    struct offload_tier *const *in_tier;
};

struct request {
    struct server *server;
    struct conn *conn;
    struct session *session; /* NULL on the operator socket and before CONFIRM */
    struct tenant *tenant;   /* the session's; NULL without one */
    struct store *store;     /* the tenant's */
    const Kvcobra__Request *message;
    /* descriptors of the packet; closed after the handler; NULL when a job answers */
    struct wire_packet *packet;
    Kvcobra__Reply reply;
    int fds[WIRE_FDS_MAX]; /* borrowed: copies are sent */
    bool fds_are_owned;    /* not borrowed: they are sent, and closed then, also on failure */
    size_t n_fds;
    struct errmsg error;
    uint64_t began_ns; /* metrics_now_ns() */
    struct request_steps steps;
    const struct job *ending; /* a job answers, and ends then: one that takes over gets its place; or NULL */
};

/*
 * Ends a request of a job: @r as returned by a handler. Closes the connection if the reply cannot be sent; a
 * closed connection gets no reply.
 */
void request_answer(struct request *rq, int r);

/* Fills the session and its tenant and store. @x: NULL on the operator socket. */
void request_set_session(struct request *rq, struct session *x);

/* The sentence for errno @err: the recorded one, else the errno's name in words. Borrowed. */
char *request_sentence(struct request *rq, int err);

/*
 * Sends the reply of a handler that returned @r.
 *
 * Return: 0; negative: the caller must close the connection.
 */
int request_reply(struct request *rq, int r);

/* Whether a draining daemon refuses the request. Return: 0; -ESHUTDOWN with a sentence. */
int request_check_draining(struct request *rq);
/* The same for a HELLO or CONFIRM that would create a session. */
int request_check_draining_session(struct request *rq);

/* Whether a field has @n bytes. @what names it in the sentence. Return: 0; -EINVAL. */
int request_check_bytes(struct request *rq, const ProtobufCBinaryData *field, size_t n, const char *what);

/* A digest field. @ret: borrowed from the message. Return: 0; -EINVAL: not DIGEST_BYTES long. */
int request_digest(struct request *rq, const ProtobufCBinaryData *field, const char *what,
                   const uint8_t **ret);

/* The table that a message names. Return: 0; -EINVAL; -ENOENT. */
int request_find_table(struct request *rq, const ProtobufCBinaryData *digest, struct table_entry **ret);

/*
 * The error of a change that was not applied. @conflict: what the present revision did.
 * Return: 0; -ESTALE; -EEXIST.
 */
int request_outcome(struct request *rq, enum table_outcome outcome, uint64_t requested, uint64_t present,
                    const char *conflict);

/*
 * For handlers that send descriptors. Return: 0; -EAGAIN: the client has not read an
 * earlier packet with descriptors.
 */
int request_may_send_fds(struct request *rq);

/* Memory that replies point at until they are packed; one request at a time. */
struct reply_scratch {
    Kvcobra__PageRef pages[WIRE_ITEMS_MAX];
    Kvcobra__PageRef *page_pointers[WIRE_ITEMS_MAX];
    int32_t errs[WIRE_ITEMS_MAX];
    protobuf_c_boolean flags[WIRE_ITEMS_MAX];
    struct page_handle found[WIRE_ITEMS_MAX];
    Kvcobra__TableInfo tables[WIRE_LIST_ITEMS_MAX];
    Kvcobra__TableInfo *table_pointers[WIRE_LIST_ITEMS_MAX];
    Kvcobra__TenantStatus tenants[WIRE_LIST_ITEMS_MAX];
    Kvcobra__TenantStatus *tenant_pointers[WIRE_LIST_ITEMS_MAX];
    Kvcobra__DeviceStatus devices[WIRE_DEVICES_MAX];
    Kvcobra__DeviceStatus *device_pointers[WIRE_DEVICES_MAX];
    Kvcobra__Advice tenant_advice[WIRE_LIST_ITEMS_MAX], device_advice[WIRE_DEVICES_MAX];
    Kvcobra__SpaceStatus spaces[WIRE_LIST_ITEMS_MAX];
    Kvcobra__SpaceStatus *space_pointers[WIRE_LIST_ITEMS_MAX];
    void *body; /* of the reply: has room for any message of Reply.body */
    struct offload_status tier;
    Kvcobra__SessionInfo sessions[WIRE_SESSIONS_MAX];
    Kvcobra__SessionInfo *session_pointers[WIRE_SESSIONS_MAX];
    Kvcobra__LogEvent events[WIRE_EVENTS_MAX];
    Kvcobra__LogEvent *event_pointers[WIRE_EVENTS_MAX];
    char event_texts[WIRE_EVENTS_MAX][WIRE_EVENT_BYTES_MAX];
    Kvcobra__ChunkPlace places[REPLY_PLACES_MAX];
    Kvcobra__ChunkPlace *place_pointers[REPLY_PLACES_MAX];
    struct chunk_key keys[REPLY_PLACES_MAX]; /* of PIN, in the order of the places of LOOKUP */
    Kvcobra__ModelAlias aliases[WIRE_ALIASES_MAX];
    Kvcobra__ModelAlias *alias_pointers[WIRE_ALIASES_MAX];
    Kvcobra__Fit fits[WIRE_LIST_ITEMS_MAX];
    Kvcobra__LayerSums live[WIRE_ITEMS_MAX], shadow[WIRE_ITEMS_MAX];
    Kvcobra__LayerSums *live_pointers[WIRE_ITEMS_MAX], *shadow_pointers[WIRE_ITEMS_MAX];
    Kvcobra__Limits limits;
    Kvcobra__Device device;
    uint8_t digest[32];
    uint64_t revisions[WIRE_TABLES_MAX]; /* of ACTIVATE's other tables */
    uint8_t packet[WIRE_PACKET_BYTES_MAX];
    _Alignas(max_align_t) uint8_t body_memory[];
};

/* Return: to be freed; NULL: out of memory. */
struct reply_scratch *request_scratch_new(void);

static inline ProtobufCBinaryData bytes_view(const void *data, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *) data}; /* packing only reads */
}

/* Whether this session has a reference on the table. Return: 0; -ESTALE. */
int request_check_table(struct request *rq, const struct table_entry *t);

/*
 * The table that a page message names, with a reference of this session. Return:
 * 0; -EINVAL, -ENOENT, -ESTALE.
 */
int request_table(struct request *rq, const ProtobufCBinaryData *digest, struct table_entry **ret);
