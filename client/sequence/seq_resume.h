/*
 * What sequences keep after a lost connection was opened again: the daemon was killed and restarted,
 * or only the connection broke. client_revive() connects and calls the hooks in this file
 * (client/connection/client_ops.h).
 *
 * Three results of the greeting (struct resumption) decide:
 *
 *   session resumed            leases keep their numbers; leases whose reply was lost are released
 *     same daemon              the arena and references on tables are still valid
 *     restarted daemon         pages in the old arena move to the heap; references are taken again
 *   other session, other pool  no daemon owns the old extents: their pages stay readable, are private, and a
 *                              commit publishes them again
 *   other session, same pool   nothing protects the pages that were held: each page is leased again by key,
 *                              slot and generation before it is read. If the daemon does not have a page, its
 *                              sequence is lost from that page on (first_lost)
 */
#pragma once

#include "client/connection/client_ops.h"

extern const struct client_hooks seq_resume_hooks;
