/* Bytes that sequences take, by purpose. Used by the operations of each kind (seq_ops.h). */
#pragma once

#include <stdint.h>

#include "client/sequence/seq.h"

/* Bytes of @tokens tokens in binary16, all layers of the shard. */
uint64_t usage_exact_bytes(const struct kvc_seq *s, uint64_t tokens);

/*
 * seq_ops.count_usage of sequences of the product: the slots of their pages, claimed ones included, and the
 * tail. The part of a slot that is neither header, sinks nor codes is padding.
 */
void usage_count_pages(const struct kvc_seq *s, kvc_usage *u);
