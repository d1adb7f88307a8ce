/*
 * One operator call: a request, its reply, and what all operator calls check. Used by the files of this
 * folder only; the reply is the caller's, with _cleanup_(reply_deinit).
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "client/connection/client.h"

/* First statement of every call: client_enter_connected(), then @are_valid, or -EINVAL with @sentence. */
static inline int operator_enter(kvc_client *c, bool are_valid, const char *sentence)
{
    int r = client_enter_connected(c);

    if (r < 0)
        return r;

    return are_valid ? 0 : fail(&c->error, -EINVAL, "%s", sentence);
}

/**
 * operator_request() - send a request, wait for its reply
 * @kind: field number of the request; that of its reply is the same
 * @body: &message.base of the request's message
 * @fd:   sent with the request, borrowed; -1: none
 * @ret:  starts empty; untouched on failure
 *
 * Return: 0; as connection_request().
 */
int operator_request(kvc_client *c, Kvcobra__Request__BodyCase kind, ProtobufCMessage *body, int fd,
                     struct reply *ret);

/**
 * operator_end_change() - the return value of a change
 *
 * *ret_revision, if not NULL, is set on success.
 *
 * Return: 0: applied; 1: no change; -EPROTO. Refusals are errors of operator_request().
 */
int operator_end_change(kvc_client *c, Kvcobra__Outcome outcome, uint64_t revision, uint64_t *ret_revision);

/* @digest NULL: an empty one. The message only reads it. */
ProtobufCBinaryData operator_bytes(const uint8_t *digest);

/* Return: 0; -EINVAL: above 64 names, or a name that is NULL. */
int operator_check_tenants(kvc_client *c, const char *const *tenants, size_t n);

/**
 * operator_read_image() - the contents of the first descriptor of a reply
 * @bytes:     as the reply has it
 * @ret_image: malloc'ed
 *
 * Return: 0; -EPROTO: no descriptor, or @bytes are 0 or above @bytes_max; -ENOMEM; an errno of reading.
 */
int operator_read_image(kvc_client *c, struct reply *reply, uint64_t bytes, uint64_t bytes_max,
                        void **ret_image);
