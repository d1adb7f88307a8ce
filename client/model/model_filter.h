/*
 * The Bloom filter over the chunks that slower tiers have of this tenant (proto/bloom.h). The control page
 * has its number. A lookup sends no message, except one when the daemon has made another filter.
 */
#pragma once

#include <stdbool.h>

struct chunk_key;
struct kvc_model;
struct model_remote;

/* False: no slower tier has the chunk, or it is not known. The model is connected. */
bool model_filter_has(struct kvc_model *m, const struct chunk_key *key);

/*
 * Whether LEASE is worth asking for a chunk that is not in memory: the filter has it, or a tier without a
 * filter may have it.
 */
bool model_filter_asks(struct kvc_model *m, const struct chunk_key *key);

void model_filter_forget(struct model_remote *r);
