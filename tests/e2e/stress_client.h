/* One hostile process of the stress test: what it may do, at random; see test_stress.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tests/e2e/raw_fixture.h"

#define STRESS_TABLES 3
#define STRESS_ARENA_USED 32768 /* where an expected page is kept to be compared with */
#define STRESS_KEYS 96          /* per table: more than the pool takes */

struct table;

extern struct table *stress_tables[STRESS_TABLES];

/* 0 .. @n - 1, from splitmix64. */
uint64_t stress_below(uint64_t *state, uint64_t n);

/*
 * A request of the kinds that stress_client.c's own functions do not send, about any of the leases @held
 * [n_held] and others.
 * @room: 4096 bytes for its body
 */
Kvcobra__Request stress_request(uint64_t *random, const uint64_t *held, size_t n_held, void *room);

/* The page that key @n of table @t has, whoever publishes it. */
uint64_t stress_key(unsigned t, unsigned n);

/*
 * As a client that has the daemon for itself: every page of the active table is what it should be.
 * Return: the last generation given; 0: none, all keys are there.
 */
uint64_t stress_verify(unsigned *ret_found);

/* Publishes, finds, reads, misbehaves, until it is killed; ends with status 1 when a promise to it was
 * broken. */
_Noreturn void stress_client(uint64_t seed);
