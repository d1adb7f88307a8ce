/*
 * The life of a model: references, and the connection to the daemon. client/model/model_types.h describes
 * what a model holds.
 *
 * And geometries in the form of kvcobra.h (model_geometry.c): reading the caller's, and telling the caller
 * what a table is for.
 */
#pragma once

#include "alloc/table/geometry.h"
#include "client/kvcobra.h"
#include "client/model/model_types.h"

struct errmsg;

void model_ref(struct kvc_model *m);
void model_unref(struct kvc_model *m);

/**
 * model_connect() - client_revive(), and the model opened on the connection that is open now
 * Return: 0: model_is_connected(); -ENOTCONN: embedded, lost, or the daemon cannot open this model now.
 */
int model_connect(struct kvc_model *m);

/* Opens the model again on the present connection, references its tables, calls the model_reopened hook.
 * Return: 0; as model_remote_open(), after which the next attempt waits. */
int model_reopen(struct kvc_model *m);

/* Return: 0; -EINVAL with a sentence: a number is out of range. *ret is valid on success only. */
int model_geometry_read(const kvc_geometry *from, struct geometry *ret, struct errmsg *e);
