/*
 * The server: one kvcobrad from start to end. main.c reads the configuration, then calls server_new(),
 * server_run() and server_free().
 */
#pragma once

#include "daemon/reload.h"
#include "daemon/requests/state.h"

/*
 * @config: borrowed, checked. After SIGHUP a thread calls @read_config, and the settings that may change are
 * copied. The sockets listen when server_new() returns. Return, with a sentence: 0; -EINVAL: the
 * configuration, or what the unit passed, can never work; errno.
 */
int server_new(struct config *config, reload_read_fn read_config, struct server **ret, struct errmsg *e);

/* Serves until SIGTERM or SIGINT. Return: 0; errno of the event loop. */
int server_run(struct server *s, struct errmsg *e);
struct server *server_free(struct server *s);
static inline void server_freep(struct server **s)
{
    *s = server_free(*s);
}
