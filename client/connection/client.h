/*
 * What every file of the library knows about a client handle: its error, its connection, who belongs to it,
 * and the check at every entry point that the handle did not cross fork().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "client/connection/connection.h"
#include "client/connection/extents.h"
#include "client/gpu/gpu.h"
#include "client/kvcobra.h"
#include "client/connection/leases.h"
#include "client/connection/session.h"
#include "client/sequence/workers.h"

struct kvc_client {
    struct errmsg error;
    struct gpu *gpu; /* where sequences live; NULL: in memory of the host */
    volatile uint8_t
        *alive; /* a page of MADV_WIPEONFORK: 1 here, 0 in a child. getpid() would be a system call */
    struct connection connection;
    struct session session; /* arena and session page, shared by the models of a connection */
    struct extent_cache extents;
    struct lease_list leases;
    struct workers workers;
    struct kvc_model *models; /* every model that exists, also those only sequences keep */
    struct page *free_pages;  /* handles to use again */
    struct backoff making;    /* of waits for extents that the daemon makes (publish_gpu.c) */
    uint64_t n_reconnects;
    uint64_t n_appends;   /* calls; sequences remember theirs */
    uint64_t pages_moved; /* raised when a page changes its address: sequences refresh their pointers */
};

/**
 * client_enter() - first statement of every public call: fork check, clears the error, renews the session's
 * grants Return: 0; -ECHILD; -EIO: its GPU is lost.
 */
int client_enter(struct kvc_client *c);

/**
 * client_flush() - what an operation moved and dropped is told: page tables on the GPU, releases to the
 * daemon
 *
 * On a GPU a lease is given back, and an extent unmapped, when the stream was waited for: what was queued may
 * read them. While it is being captured, or lost, they wait for another call, or for the end of the process.
 */
void client_flush(struct kvc_client *c);

/* The same for a call that is nothing but a conversation. Return: 0; -EINVAL: @c is NULL; -ECHILD; -ENOTCONN.
 */
int client_enter_connected(struct kvc_client *c);

/* Whether the handle was made by this process, for destructors. */
static inline bool client_is_ours(const struct kvc_client *c)
{
    return *c->alive;
}
