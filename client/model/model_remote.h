/* The objects that the daemon gives for a model: control page, index, index key. */
#pragma once

#include "client/model/model_types.h"

/* Sends OPEN_MODEL and maps the objects in its reply. @ret_digest: the active table, on which the
 * daemon counts a reference of ours.
 * Return: 0; -ENODATA, -ENOTCONN, -EPROTO, -ENOMEM ... */
int model_remote_import(struct kvc_model *m, uint8_t ret_digest[DIGEST_BYTES]);
void model_remote_deinit(struct model_remote *r);
