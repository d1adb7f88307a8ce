/*
 * The beginning of a prompt, by operator_call(): where its pages are, flushing and pinning them. One of many
 * chunks takes several requests: the keys of each reply are those with which the next part goes on.
 *
 * @p has the tenant, the table, the shard and the salt; its other fields are not looked at. @tokens: at least
 * 64; those beyond whole chunks of 64 are not looked at. Every function returns 0, or a negative errno with a
 * sentence: -ENOENT: no such tenant or table; -ESTALE: the table is retired; -EINVAL: too few tokens.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tools/command/operator_call.h"

enum { OPERATOR_PLACES = 2 }; /* of a chunk: of attention that is not repeatable, and that is */

/**
 * operator_lookup() - where the pages of a prompt are
 * @with_shared: find ChunkPlace.is_shared, which reads the keys of all pages of the tenant
 * @ret:         OPERATOR_PLACES for each chunk, in the order of the tokens; free as operator_message_freep()
 *
 * A slower tier that does not answer is a failure: -ENODEV, -ETIMEDOUT, -EAGAIN.
 */
int operator_lookup(kvc_client *c, const Kvcobra__Prefix *p, const uint32_t *tokens, size_t n_tokens,
                    bool with_shared, Kvcobra__LookupReply **ret, struct errmsg *e);

/**
 * operator_flush() - make a prefix, or its end, unfindable
 * @n_flushed: tokens at the end of the whole chunks whose pages go: a multiple of 64
 * @ret:       pages and held, of all requests; may be NULL
 *
 * Waits some seconds for pages that are on their way to the disk: -EAGAIN if that is not enough.
 */
int operator_flush(kvc_client *c, const Kvcobra__Prefix *p, const uint32_t *tokens, size_t n_tokens,
                   size_t n_flushed, Kvcobra__FlushReply *ret, struct errmsg *e);

/* Keeps pages in memory for @ms from now on; 0: no longer. @ret: pages and missing of all requests, and the
 * bytes of the last one; may be NULL. -EDQUOT: too much would be pinned: the chunks before that are. */
int operator_pin(kvc_client *c, const Kvcobra__Prefix *p, const uint32_t *tokens, size_t n_tokens,
                 uint64_t ms, Kvcobra__PinReply *ret, struct errmsg *e);
