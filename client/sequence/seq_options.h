/* The options of a new sequence (kvc_seq_new_with()), and of a look-up for one (kvc_model_peek()). */
#pragma once

#include "client/kvcobra.h"

/* @o: NULL = all members 0. Pointers in *ret are the caller's. Return: 0; -EINVAL, -EOPNOTSUPP with a
 * sentence. *ret is valid on success only. */
int seq_options_read(struct kvc_client *c, const kvc_seq_options *o, kvc_seq_options *ret);
