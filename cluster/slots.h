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
    uint16_t port;         /* 0: the port that was asked */
};

/**
 * slots_parse() - the masters of a reply to CLUSTER SLOTS
 * @over_tls: port 0 is the port that was asked; in clear it is that of a node that has a port for TLS alone,
 *            and so that of no node
 * @on_range: called for each usable range in the order of the reply
 * @gap:      what is wrong with the first range that names no node; empty if there is none
 *
 * A range that names no usable node, or that is none, is left out: its slots have no node, and the others
 * have theirs. A node that is failing or that joins has neither host nor port.
 * Return: 0; -EBADMSG with a sentence: the reply is no list of ranges. No range was passed then.
 */
int slots_parse(const struct reply *r, bool over_tls,
                void (*on_range)(void *ctx, const struct slots_range *s), void *ctx, struct errmsg *gap,
                struct errmsg *e);

struct redirection {
    bool is_ask; /* ASK: this command only; else MOVED */
    uint16_t slot;
    char host[HOST_BYTES]; /* empty: the node that answered */
    uint16_t port;         /* 0: the port of the node that answered */
};

/*
 * "MOVED 3999 127.0.0.1:6381", "ASK ...". @over_tls: as in slots_parse(). Return: 0; -ENOENT: another error
 * or reply; -EBADMSG: it names no usable node.
 */
int slots_parse_redirection(const struct reply *r, bool over_tls, struct redirection *ret);
