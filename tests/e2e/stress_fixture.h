/*
 * What the stress programs share: a daemon, its hostile clients (stress_client.h), an operator, the final
 * checks.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/wire.h"

enum { STRESS_CLIENTS = 6 };

extern uint64_t stress_state;      /* of the random numbers; KVC_TEST_SEED repeats a run */
extern uint64_t stress_n_verified; /* pages that stress_settle() compared */
extern pid_t stress_clients[STRESS_CLIENTS];

/* Starts the daemon and activates the tables; asserts. stress_finish() ends it. */
void stress_begin(const char *const *args);
void stress_finish(void);

uint64_t stress_random(uint64_t n); /* 0 .. @n - 1 */

void stress_start_client(unsigned i);
/* Kills it. A client that exited by itself had a reason, and printed it. */
void stress_end_client(unsigned i);
/* The daemon never ends by itself: a failed check aborts it. */
bool stress_daemon_lives(void);

/* An operator's request without an answer that matters. */
void stress_tell(Kvcobra__Request__BodyCase kind, void *body);
void stress_stage_and_activate(void);
void stress_set_quota(uint64_t bytes, uint64_t guarantee);
void stress_drain(bool off);
void stress_evict_all(void);

/*
 * Ends all clients and waits until nothing is held. Then all accounts add up, all pages of the active table
 * have their bytes, and generations have only grown.
 */
void stress_settle(uint64_t *last_generation);
