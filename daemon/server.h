/* The life of a kvcobrad: parse the configuration, server_new(), server_run(), server_free(). */
#pragma once

#include "daemon/requests/state.h"

/*
 * @config: borrowed, checked; SIGHUP replaces what may change with what @reload returns. The sockets listen
 * when it returns. Return: 0; errno with a sentence.
 */
int server_new(struct config *config, config_reload_fn reload, struct server **ret, struct errmsg *e);

/* Serves until SIGTERM or SIGINT. Return: 0; errno of the event loop. */
int server_run(struct server *s, struct errmsg *e);
struct server *server_free(struct server *s);
static inline void server_freep(struct server **s)
{
    *s = server_free(*s);
}
