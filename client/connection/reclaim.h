/*
 * Giving leased pages back when a lender needs its memory (the daemon's share.h): the control page then names
 * an extent.
 *
 * A sequence loses nothing by it: its pages of that extent are copied to the heap and go on from there,
 * private, and their leases are released. While the extent is asked for, nothing is published and nothing
 * leased, since that would ask for the same memory again. It happens in kvc_seq_match() and kvc_seq_commit(),
 * between steps, never while a token is appended or attended; a client that calls neither keeps what it
 * holds, and the lender waits for it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct kvc_model;

/* The extent that the daemon asks back; 0: none, or there is no daemon. No system call. */
uint64_t pressure_extent(const struct kvc_model *m);

/**
 * pressure_yield() - give back what lies in the extent that is asked for
 *
 * Releases are marked: leases_flush() sends them. Out of memory: what was not copied stays leased.
 * Return: whether an extent is asked for: then take and publish nothing.
 */
bool pressure_yield(struct kvc_model *m);
