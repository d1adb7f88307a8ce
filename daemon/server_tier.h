/*
 * The keys of the server, and its disk tier: start, new keys, and what is written before the end. For
 * server.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct keyring;
struct server;

/* Reads the keys, and starts the tier if the configuration has one. Return: 0; errno with a sentence. */
int server_tier_start(struct server *s, struct errmsg *e);

/* A reference is taken. */
void server_tier_set_keyring(struct server *s, struct keyring *ring);

/*
 * Begins the end of the loop. Pages that the disk should have are written first, for @most_ms, in which
 * clients are served as before; the second call ends the loop at once. Return: whether pages are being
 * written.
 */
bool server_tier_begin_stop(struct server *s, uint64_t most_ms);

/* Ends the loop if it is to end and no page is left to be written. */
void server_tier_stop_if_flushed(struct server *s);
