/* Tables as a model holds them: layout, private pages, and the reference that the daemon counts. */
#pragma once

#include "client/model/model_types.h"

/**
 * model_table_add() - make a parsed table usable by sequences of @m
 * @table: transferred, also on failure
 * Return: 0 with one reference for the caller; -EINVAL: the table is for another model or geometry; -ENOMEM.
 */
int model_table_add(struct kvc_model *m, struct table *table, bool referenced, struct model_table **ret,
                    struct errmsg *e);

struct model_table *model_table_ref(struct model_table *t);

/* The last reference also gives back the one at the daemon. NULL is fine. */
void model_table_unref(struct kvc_model *m, struct model_table *t);

/* Gives back a reference that the daemon counts on table @digest. */
void model_table_unref_at_daemon(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES]);
