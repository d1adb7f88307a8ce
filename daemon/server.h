/*
 * The server: one kvcobrad from start to end. main.c reads the configuration, then calls server_new(),
 * server_run() and server_free().
 */
#pragma once

#include "daemon/requests/state.h"

/*
 * @config: borrowed, checked. SIGHUP calls @reload and copies the settings that may change. The sockets
 * listen when server_new() returns. Return: 0; errno with a sentence.
 */
int server_new(struct config *config, config_reload_fn reload, struct server **ret, struct errmsg *e);

/* Serves until SIGTERM or SIGINT. Return: 0; errno of the event loop. */
int server_run(struct server *s, struct errmsg *e);
struct server *server_free(struct server *s);
static inline void server_freep(struct server **s)
{
    *s = server_free(*s);
}
