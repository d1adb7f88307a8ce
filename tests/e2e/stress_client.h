/* One hostile process of the stress test: what it may do, at random; see test_stress.c. */
#pragma once

#include <stdint.h>

#define STRESS_TABLES 3
#define STRESS_KEYS 96 /* per table: more than the pool takes */

struct table;

extern struct table *stress_tables[STRESS_TABLES];

/* The same on every machine: splitmix64. */
uint64_t stress_random(uint64_t *state);

/* The page that key @n of table @t has, whoever publishes it. */
uint64_t stress_key(unsigned t, unsigned n);

/*
 * As a client that has the daemon for itself: every page of the active table is what it should be.
 * Return: the last generation given; 0: none, all keys are there.
 */
uint64_t stress_verify(unsigned *ret_found);

/* Publishes, finds, reads, misbehaves, until it is killed; ends with status 1 when a promise to it was broken. */
_Noreturn void stress_client(uint64_t seed);
