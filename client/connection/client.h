/*
 * The client handle: its error sentence, its connection, the lists of what belongs to it, and the
 * checks at every public entry point. This room is the lowest of the library: every other room includes
 * this header, and this room includes none of them. client/client_api.c creates, connects and frees
 * clients, with functions of all rooms.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "client/connection/client_leases.h"
#include "client/connection/client_ops.h"
#include "client/connection/connection.h"
#include "client/connection/extents.h"
#include "client/connection/session.h"
#include "client/connection/workers.h"
#include "client/kvcobra.h"

struct gpu;
struct page;

struct kvc_client {
    struct errmsg error;
    const struct client_ops *ops;
    const struct client_hooks *hooks;
    struct gpu *gpu; /* where sequences live; NULL: in host memory. Only client/gpu looks inside */
    /* A page of MADV_WIPEONFORK: 1 here, 0 in a child process. getpid() would be a system call. */
    volatile uint8_t *alive;
    struct connection connection;
    struct session session; /* arena and session page, shared by the models of a connection */
    struct extent_cache extents;
    struct client_leases leases;
    struct workers workers;
    struct kvc_fetch *fetches;       /* all that exist (client/sequence/seq_fetch.c) */
    struct seq_prefetch *prefetches; /* whose replies are awaited (client/sequence/seq_prefetch.c) */
    uint64_t n_prefetches;           /* calls that started one: the number of the last */
    struct kvc_model *models;        /* all that exist, also those that only sequences still reference */
    struct page *free_pages;         /* unused page handles */
    struct backoff extent_creation;  /* of waits for extents that the daemon creates (publish_gpu.c) */
    uint64_t n_reconnects;
    uint64_t n_appends;   /* append calls so far; kvc_seq.last_append is the number of such a call */
    uint64_t pages_moved; /* raised when a page changes its address: sequences then refresh their pointers */
};

/**
 * client_enter() - first statement of every public call
 *
 * Checks for a fork, clears the error, renews the session's grants.
 * Return: 0; -ECHILD; -EIO: its GPU is lost.
 */
int client_enter(struct kvc_client *c);

/**
 * client_enter_connected() - client_enter() for a call that only exchanges messages with the daemon
 *
 * Return: 0; -EINVAL: @c is NULL; -ECHILD; -ENOTCONN.
 */
int client_enter_connected(struct kvc_client *c);

/**
 * client_flush() - write page addresses to the GPU, send releases to the daemon
 *
 * Collects replies of posts first: a lease of a cancelled fetch is given back.
 *
 * Last statement of every call that moves or drops pages.
 *
 * A client on a GPU waits for the stream before it gives back a lease or unmaps an extent: queued work may
 * read them. While the stream is being captured, or if the GPU is lost, they wait for a later call or for the
 * end of the process.
 */
void client_flush(struct kvc_client *c);

/**
 * client_revive() - connect again if the connection was lost and the wait of backoff.h is over
 *
 * For calls that talk to the daemon anyway (match, commit, a new sequence, opening a model), never for
 * appending or attending, never from a thread. At most one attempt per call.
 *
 * Return: 0: it is open; -ENOTCONN with a sentence.
 */
int client_revive(struct kvc_client *c);

/* Connects again at once, also during the wait of backoff.h. Return: 0; -ENOTCONN, -EPROTO. */
int client_reconnect(struct kvc_client *c);

/* Whether this process created the handle. For destructors. */
static inline bool client_is_ours(const struct kvc_client *c)
{
    return *c->alive;
}
