/*
 * The tables of a daemon, by operator_call(): the requests that several commands and tests send. Revisions
 * are those of kvcobra.proto: 0 is the next one; -ESTALE means that the daemon is at a newer revision,
 * -EEXIST that this revision is a different change.
 *
 * Every function returns 0, or a negative errno with a sentence: -ENOENT if the daemon has no such table.
 */
#pragma once

#include <stddef.h>

#include "tools/command/operator_call.h"

/* All tables: each has its digests and a fit of finite numbers. Free as operator_message_freep(). */
int operator_list_tables(kvc_client *c, Kvcobra__ListTablesReply **ret, struct errmsg *e);

/* "staged", "verified", ...: the word for a state. */
const char *operator_table_state(Kvcobra__TableState state);

/* The bytes of a table's file: malloc'ed. -ESTALE: it is retired. */
int operator_fetch_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], void **ret_bytes,
                         size_t *ret_n_bytes, struct errmsg *e);

/* Sends a table, which the daemon verifies. Return: 1, too: already staged; -EBADMSG: rejected. */
int operator_stage_table(kvc_client *c, const void *bytes, size_t n_bytes,
                         uint8_t ret_digest[static KVC_DIGEST_BYTES], struct errmsg *e);

/* New sequences use the table. @ret_revision: of this change; may be NULL. Return: 1, too: already active. */
int operator_activate_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], uint64_t revision,
                            uint64_t *ret_revision, struct errmsg *e);

/*
 * The same for @n tables of different models, which change together. @revision: 0, unless there is one table.
 * @ret_revisions: [n].
 */
int operator_activate_tables(kvc_client *c, uint8_t (*digests)[KVC_DIGEST_BYTES], size_t n, uint64_t revision,
                             uint64_t *ret_revisions, struct errmsg *e);

/* ---- trials on live traffic ---- */

/* Clients encode @ppm millionths of new chunks with the table, too; 0 ends it. Return: 1, too: no change. */
int operator_shadow_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], uint32_t ppm,
                          uint64_t revision, uint64_t *ret_revision, struct errmsg *e);

/* @share of 256 new sequences, and all of the tenants, use the table; neither: ends it. Return: 1, too. */
int operator_canary_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], uint32_t share,
                          const char *const *tenants, size_t n_tenants, uint64_t revision,
                          uint64_t *ret_revision, struct errmsg *e);

/* Errors of a table as clients reported them: got->fit, and by layer. Free as operator_message_freep(). */
int operator_get_fit(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], Kvcobra__GetFitReply **ret,
                     struct errmsg *e);

/* Moments of live traffic as a file, malloc'ed. No tenants: of all. -ENODATA: no client reported moments. */
int operator_fetch_moments(kvc_client *c, const uint8_t model_digest[static KVC_DIGEST_BYTES],
                           const char *const *tenants, size_t n_tenants, void **ret_bytes,
                           size_t *ret_n_bytes, uint64_t *ret_tokens, struct errmsg *e);
