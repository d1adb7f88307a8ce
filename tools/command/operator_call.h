/*
 * One request of kvcobra.proto from a command: a message goes in, the message of the reply comes out, and a
 * failure has a sentence, the daemon's own where it refused. Used by every command that operates a daemon and
 * by the tests of the daemon, through kvc_call().
 */
#pragma once

#include <stdint.h>

#include "client/kvcobra-call.h"
#include "proto/kvcobra.pb-c.h"

struct errmsg;

/* For _cleanup_: frees the message to which the variable points. */
void operator_message_freep(void *message);

/**
 * operator_call() - send a request, wait for its reply
 * @kind:    field number of the request in message Request, KVCOBRA__REQUEST__BODY_ and its name
 * @request: &m.base of the request's message
 * @ret:     address of a pointer to the message of the reply, such as Kvcobra__EvictReply; to be freed as
 *           operator_message_freep() does; untouched on failure
 *
 * Return: 0; a negative errno with a sentence, as kvc_call(); -EPROTO: a reply that is no such message.
 */
int operator_call(kvc_client *c, uint32_t kind, const ProtobufCMessage *request, void *ret, struct errmsg *e);

/* The same with a descriptor: @fd is sent, borrowed, and *ret_fd is that of the reply, to be closed; -1 means
 * none. @ret_fd NULL: not needed. */
int operator_call_fd(kvc_client *c, uint32_t kind, const ProtobufCMessage *request, int fd, void *ret,
                     int *ret_fd, struct errmsg *e);

/**
 * operator_merge() - move the items of all lists of messages in @from behind those in @to
 *
 * For lists that come in several replies: both messages are of one type. All other fields stay.
 *
 * Return: 0; -ENOMEM with a sentence: some items were moved.
 */
int operator_merge(ProtobufCMessage *to, ProtobufCMessage *from, struct errmsg *e);

/* Gets one part of a reply that has a member next_cursor. @ret: as of operator_call(). */
typedef int operator_part(kvc_client *c, uint64_t cursor, void *ret, struct errmsg *e);

/* All parts of such a reply as one message. @what names it. Return: as @get; -EPROTO: the parts do not end,
 * with a sentence. */
int operator_get_parts(kvc_client *c, operator_part *get, const char *what, void *ret, struct errmsg *e);

/* The outcome of a change. Return: 0: applied; 1: no change; -EPROTO with a sentence. */
int operator_outcome(Kvcobra__Outcome outcome, struct errmsg *e);

/* Digests in messages: [KVC_DIGEST_BYTES]. @digest: borrowed; NULL: an empty one. */
ProtobufCBinaryData operator_digest(const uint8_t *digest);

/* Return: 0; -EPROTO with a sentence that names @what: @b is no digest. */
int operator_check_is_digest(ProtobufCBinaryData b, const char *what, struct errmsg *e);

/**
 * operator_read_fd() - the bytes that came with a reply
 * @fd:        of the reply; borrowed
 * @bytes:     as the reply says
 * @ret_image: malloc'ed
 *
 * Return: 0; -EPROTO: no descriptor, or @bytes are 0 or above @bytes_max; -ENOMEM; an errno of reading.
 */
int operator_read_fd(int fd, uint64_t bytes, uint64_t bytes_max, void **ret_image, struct errmsg *e);
