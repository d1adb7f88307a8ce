/*
 * Releasing leased pages when the daemon reclaims their extent for the tenant to which it is guaranteed
 * (daemon/store/share.h). The control page then names the extent.
 *
 * A sequence loses nothing: its pages in that extent are copied to the heap, where they are private, and
 * their leases are released. While the extent is reclaimed nothing is published and nothing leased,
 * since that would take the same memory again. It happens in kvc_seq_match() and kvc_seq_commit(),
 * between steps, never while a token is appended or attended. A client that calls neither keeps its
 * pages, and the owner waits for them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct kvc_model;

/* The extent that the daemon reclaims; 0: none, or there is no daemon. No system call. */
uint64_t reclaim_extent(const struct kvc_model *m);

/**
 * reclaim_yield() - move pages of all sequences out of the extent that is being reclaimed
 *
 * Releases are marked: client_leases_flush() sends them. If memory runs out, the pages
 * that were not copied stay leased.
 * Return: whether an extent is being reclaimed: then lease and publish nothing.
 */
bool reclaim_yield(struct kvc_model *m);
