/*
 * Opening handles of libkvcobra: with cleanup functions, and with the sentence of a failure copied before the
 * handle that holds it is freed. Used by every command that opens a client.
 */
#pragma once

#include "client/kvcobra-call.h"

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

/* All bytes that a sequence holds. */
static inline uint64_t usage_bytes(const kvc_usage *u)
{
    return u->code_bytes + u->padding_bytes + u->header_bytes + u->sink_bytes + u->tail_bytes;
}

/* @socket: a daemon's socket; NULL: embedded, without a daemon. Return: 0 or a negative errno with a
 * sentence. */
int client_open(const char *socket, kvc_client **ret_client, struct errmsg *e);

/* A client of the daemon at @path or, if that is NULL or "", of the one that kvc_socket_path() finds. The
 * sentence of a failure then says how to start a daemon. @timeout_ms: as in kvc_connect_options. Return: as
 * client_open(); -ETIMEDOUT. */
int client_open_at(enum kvc_socket which, const char *path, uint32_t timeout_ms, kvc_client **ret_client,
                   struct errmsg *e);

/**
 * model_open() - open the engine's model on a client that attends on the engine's threads
 * @table_path: a table file for this process alone; NULL: the active table of the client's daemon
 *
 * The model is freed with its client. Return: 0 or a negative errno with a sentence.
 */
int model_open(kvc_client *c, const struct engine *en, const char *table_path, kvc_model **ret_model,
               struct errmsg *e);

/* The same with the bytes of a table. */
int model_open_bytes(kvc_client *c, const struct engine *en, const void *bytes, size_t n_bytes,
                     kvc_model **ret_model, struct errmsg *e);
