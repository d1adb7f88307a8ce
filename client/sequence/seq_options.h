/* The options of a new sequence (kvc_seq_new_with()), and of a look-up for one (kvc_model_peek()). */
#pragma once

#include "client/kvcobra.h"

enum { SEQ_FETCH_MS = 1000, SEQ_FETCH_MS_MAX = 8000 }; /* below the time limit of a request */

/* How long a match of the sequence waits for slower tiers; 0: not at all. @o: as read. */
uint32_t seq_options_fetch_ms(const kvc_seq_options *o);

/* @o: NULL = all members 0. Pointers in *ret are the caller's. Return: 0; -EINVAL, -EOPNOTSUPP with a
 * sentence. *ret is valid on success only. */
int seq_options_read(struct kvc_client *c, const kvc_seq_options *o, kvc_seq_options *ret);
