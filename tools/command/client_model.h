/*
 * Handles of libkvcobra as the commands open them: with cleanup, and with the sentence of a failure copied
 * out before the handle that holds it is gone.
 */
#pragma once

#include "client/kvcobra.h"

struct engine;
struct errmsg;

static inline void kvc_client_freep(kvc_client **c)
{
    *c = kvc_client_free(*c);
}

static inline void kvc_seq_freep(kvc_seq **s)
{
    *s = kvc_seq_free(*s);
}

/* Every byte that a sequence holds. */
static inline uint64_t usage_bytes(const kvc_usage *u)
{
    return u->code_bytes + u->padding_bytes + u->header_bytes + u->sink_bytes + u->tail_bytes;
}

/* @socket: a daemon's socket; NULL = embedded. Return: 0 or a negative errno with a sentence. */
int client_open(const char *socket, kvc_client **ret_client, struct errmsg *e);

/**
 * model_open() - bind a client to the engine's model, and lend it the engine's threads
 * @table_path: a table file, which stays in this process; NULL = the table that the client's daemon has
 * active
 *
 * The model belongs to the client and goes with it. Return: 0 or a negative errno with a sentence.
 */
int model_open(kvc_client *c, const struct engine *en, const char *table_path, kvc_model **ret_model,
               struct errmsg *e);

/* The same with a table in memory. */
int model_open_bytes(kvc_client *c, const struct engine *en, const void *bytes, size_t n_bytes,
                     kvc_model **ret_model, struct errmsg *e);
