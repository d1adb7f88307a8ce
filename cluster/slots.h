/*
 * What the specification of Redis Cluster defines: the slot of a key, the reply to CLUSTER SLOTS, and the
 * errors that name another node. Pure functions; all bytes are a server's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct reply;

#define SLOTS_N 16384
#define HOST_BYTES 254 /* a name of DNS and the NUL */

/* The slot of a key: CRC16 of it, or of what stands between its first "{" and the next "}". */
uint16_t slots_of_key(const char *key, size_t n);

struct slots_range {
    uint16_t first, last;
    char host[HOST_BYTES]; /* empty: the node that was asked */
    uint16_t port;
};

/**
 * slots_parse() - the masters of a reply to CLUSTER SLOTS
 * @on_range: called for each range in the order of the reply
 *
 * All of the reply is checked before the first call.
 * Return: 0; -EBADMSG with a sentence.
 */
int slots_parse(const struct reply *r, void (*on_range)(void *ctx, const struct slots_range *s), void *ctx,
                struct errmsg *e);

struct redirection {
    bool is_ask; /* ASK: this command only; else MOVED */
    uint16_t slot;
    char host[HOST_BYTES]; /* empty: the node that answered */
    uint16_t port;
};

/* "MOVED 3999 127.0.0.1:6381", "ASK ...". Return: 0; -ENOENT: another error or reply; -EBADMSG. */
int redirection_parse(const struct reply *r, struct redirection *ret);
