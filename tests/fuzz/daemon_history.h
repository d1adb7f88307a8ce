/*
 * A history of requests to a daemon (daemon_rig.h) that bytes describe: clients of three tenants and an
 * operator send requests, connections break, processes exit, time passes, and threads work in any order. Each
 * byte chooses something, so that any bytes are a history. After each step the rules of daemon_model.h must
 * hold.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model;

/*
 * Starts a daemon with one active table. @data: borrowed until the end. @state_dir: the daemon keeps its pool
 * and finds that of an earlier one; NULL: it keeps nothing.
 */
void history_begin(const uint8_t *data, size_t n_bytes, const char *state_dir);

/* Does the next thing. False: the bytes are used up. */
bool history_step(void);

/* What the clients know. */
struct model *history_model(void);

/* All processes exit: the daemon must have no session, hold or arena left. Then it stops. */
void history_end(void);

/* The daemon stops at once, as by SIGTERM. */
void history_stop(void);
