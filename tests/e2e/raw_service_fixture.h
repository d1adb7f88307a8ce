/* A service for tests: one daemon, one small model, one active table, pages written without the library. */
#pragma once

#include <stdint.h>

#include "alloc/table/table.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/raw_fixture.h"

extern struct daemon raw_daemon;
extern struct geometry raw_geometry; /* 2 layers, 2 KV heads, d = 32 */
extern struct table *raw_table;      /* the active one; 2 bpd: pages of class rest have 128 + 4096 bytes */

/*
 * Starts the daemon and activates the table; asserts. raw_stop() ends the daemon and checks that
 * it leaves nothing behind.
 */
void raw_start(unsigned flags, const char *const *args);
void raw_stop(void);

struct table *raw_make_table(uint64_t seed); /* of the same model; each seed makes another table */
void raw_activate_table(const struct table *t);

struct raw_model raw_model_open(void); /* a new session */

struct chunk_key raw_key(uint64_t n);

/* Reserve, write, commit; chunk 0 is of class first. Return: errno; *ret_slot as reserved. */
int raw_publish(struct raw_model *m, uint64_t n, struct raw_slot *ret_slot, uint64_t *ret_lease);

/* True if the lease of one page is granted; else *ret_reason has the errno. */
bool raw_lease_one(struct raw_model *m, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease,
                   int *ret_reason);

Kvcobra__Reply *raw_status(void);
uint64_t raw_held_pages(void);
int raw_evict(const char *tenant); /* an operator's EVICT; "": of all tenants. Return: errno */

/* Bytes of the first tenant's slots that are held, or reserved and not committed. */
uint64_t raw_busy_bytes(void);
void raw_wait_for_busy_bytes(uint64_t bytes);

/*
 * The daemon handles a death or a closed socket after it answered other clients, so these
 * functions read STATUS repeatedly.
 */
/* Waits until no session is left and nothing is held, also by requests of dead clients. */
void raw_wait_for_no_sessions(void);
void raw_wait_for_held(uint64_t n);
