/* Which table a new sequence of a model gets: following the control page, fetching tables, references. */
#pragma once

#include "client/model/model_types.h"

/* model_remote_import(), and makes the active table the current one. Called again when
 * the daemon rebuilt an object. */
int model_remote_open(struct kvc_model *m);

/**
 * model_table_follow() - make m->current the table that the control page names
 *
 * No system call while the page names the table that we have. Without a daemon the current table stays.
 * Return: 0; -ENODATA: no active table; -ESTALE, -ENOTCONN, -EPROTO, -EBADMSG, -ENOMEM ...
 */
int model_table_follow(struct kvc_model *m);

/* The digest of the table that the control page names. The model is connected. No message, unless the daemon
 * has rebuilt the page. Return: 0; -ENODATA: no active table; -EBADMSG; as model_remote_open(). */
int model_table_active(struct kvc_model *m, uint8_t ret_digest[DIGEST_BYTES]);

/* FETCH: the table, parsed, with one reference for the caller. Return: 0; -ENOENT, -ESTALE, -ENOTCONN ... */
int model_table_download(struct kvc_client *c, const uint8_t digest[DIGEST_BYTES], struct table **ret);

/* Table @digest without a reference at the daemon, which only sequences need. Return: 0; -ESTALE ... */
int model_table_fetch(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret);

/* The same with a reference at the daemon: sequences may use it. While the model is not connected, a table
 * that the client has: sequences with it are private.
 * Return: 0; -ENOENT: there is no such table; -ESTALE: it takes no new sequences; -ENOTCONN ... */
int model_table_hold(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret);

/* Makes sure that the daemon counts a reference of ours on the table.
 * Return: 0; -ESTALE, -ENOENT: the daemon does not have it. */
int model_table_reference(struct kvc_model *m, struct model_table *t);

/* The same after a reconnection, for all tables that sequences use; a table that the daemon
 * does not have stays unreferenced. */
void model_tables_reference(struct kvc_model *m);
