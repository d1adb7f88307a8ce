/* One hostile process of the stress test; see test_stress.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tests/e2e/raw_fixture.h"

#define STRESS_TABLES 3
#define STRESS_ARENA_USED 32768 /* offset of an expected page, for comparison */
#define STRESS_KEYS 96          /* per table: more than the pool has room for */

struct table;

extern struct table *stress_tables[STRESS_TABLES];
extern _Atomic uint64_t *stress_n_compared; /* pages that all clients compared; mapped shared */

/* 0 .. @n - 1, from splitmix64. */
uint64_t stress_below(uint64_t *state, uint64_t n);

/*
 * A request of the kinds that stress_client.c's own functions do not send, about any of the leases @held
 * [n_held] and others.
 * @room: 4096 bytes for its body
 */
Kvcobra__Request stress_request(uint64_t *random, const uint64_t *held, size_t n_held, void *room);

/* The key of page @n of table @t. Its contents follow from the key. */
uint64_t stress_key(unsigned t, unsigned n);

/*
 * As the only client: checks every page of the active table. Return: the last generation of a reservation; 0:
 * none, all keys exist.
 */
uint64_t stress_verify(unsigned *ret_found);

/* Publishes, finds, reads and misbehaves until it is killed; exits with 1 if the daemon broke a promise. */
_Noreturn void stress_client(uint64_t seed);
