/*
 * The beginning of a prompt in the messages of operators: checks, and the division into messages. Each part's
 * reply has the keys with which the next part goes on. Used by the files of this folder.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra-tiers.h"
#include "client/operator/operator_call.h"

enum { PREFIX_KEYS_BYTES = 32 };

struct prefix_call {
    Kvcobra__Prefix message; /* of the present part; what it points at is the caller's */
    uint8_t keys[PREFIX_KEYS_BYTES];
    const uint32_t *tokens;
    size_t n, at, part; /* tokens of whole chunks; those of the parts before; of a part at most */
};

/**
 * prefix_call_init() - check the arguments of @call, which is a function's name
 * Return: 0; -EINVAL; -EPROTO.
 */
int prefix_call_init(kvc_client *c, const char *call, const kvc_prefix_options *options,
                     const uint32_t *tokens, size_t n_tokens, kvc_prefix_options *copy,
                     struct prefix_call *ret);

/* The next part, in p->message. False: there is none. */
bool prefix_call_next(struct prefix_call *p);

/* The keys of a reply to the present part, which is over then. Return: 0; -EPROTO. */
int prefix_call_answered(kvc_client *c, struct prefix_call *p, ProtobufCBinaryData keys);
