/*
 * libkvcobra for programs that operate a daemon by the messages of the installed kvcobra.proto, with any
 * library of protobuf: kvc_call() sends a request as bytes. Also connecting with a time limit.
 *
 * Threads, errors and structs are as in kvcobra.h.
 */
#ifndef KVCOBRA_CALL_H
#define KVCOBRA_CALL_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- connecting ---- */

typedef struct kvc_connect_options {
    size_t struct_bytes; /* sizeof(kvc_connect_options) */
    const char *path;    /* as in kvc_client_connect() */
    uint32_t timeout_ms; /* the daemon must accept, and answer each request, within it; 0: 12000 */
    uint32_t unused;     /* 0 */
} kvc_connect_options;

/**
 * kvc_client_connect_with() - connect to kvcobrad with options
 * @o: NULL = all members 0, which is kvc_client_connect() without a path
 *
 * timeout_ms is at most 3600000 and holds for all later calls of the client: one that is not answered in time
 * closes the connection and returns -ENOTCONN. A match waits for the disk for two thirds of it at most. On a
 * client that has lost its connection 0 keeps the earlier value.
 *
 * Return: as kvc_client_connect(); -EINVAL: an option is not valid.
 */
KVC_EXPORT int kvc_client_connect_with(kvc_client *c, const kvc_connect_options *o);

/* ---- requests of kvcobra.proto ---- */

typedef struct kvc_reply {
    size_t struct_bytes; /* sizeof(kvc_reply) */
    void *bytes;         /* [n_bytes] the serialised message of the reply; malloc'ed: free() it */
    size_t n_bytes;
    int fd; /* the descriptor of the reply, such as the file of a table: close() it; -1: none */
} kvc_reply;

/**
 * kvc_call() - send one request of the installed kvcobra.proto, and wait for its reply
 * @kind:      field number of the request in message Request, such as 41, Evict; the message of the reply has
 *             the same number in message Reply
 * @request:   [n_bytes] the serialised message of that field; may be NULL if @n_bytes is 0
 * @fd:        sent with it, such as the file of a table; borrowed; -1: none
 * @ret_reply: untouched on failure; NULL: not needed
 *
 * For programs that operate a daemon, usually on the operator socket, with any library of protobuf: all
 * requests but those of a client's own session. pkg-config --variable=protodir kvcobra prints the folder of
 * kvcobra.proto, which says on which socket the daemon answers a request.
 *
 * Return: 0; -EINVAL: an argument is not valid, or @kind is of a session; -ENOTCONN: no daemon; -EPERM: the
 * other socket; -EPROTO: the reply is not valid; -ENOMEM; or the errno of the reply, whose sentence
 * kvc_last_error() returns.
 */
KVC_EXPORT int kvc_call(kvc_client *c, uint32_t kind, const void *request, size_t n_bytes, int fd,
                        kvc_reply *ret_reply);

#ifdef __cplusplus
}
#endif
#endif
