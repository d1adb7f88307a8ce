/*
 * The beginning of a prompt, as FLUSH, LOOKUP and PIN name it: tokens, table, shard, salt and tenant, from
 * which the keys of its chunks follow. There are two keys for each chunk: sequences with repeatable attention
 * have keys of their own.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/offload/offload.h"
#include "gpu/page_layout.h"
#include "proto/page.h"
#include "proto/wire.h"

struct request;
struct table_entry;
struct tenant;

enum { PREFIX_KEYS = 2 }; /* [0] not repeatable, [1] repeatable */

struct prefix {
    struct tenant *tenant;
    struct table_entry *table; /* with its table */
    struct shard shard;
    size_t n_chunks;                    /* of the message */
    struct chunk_key keys[PREFIX_KEYS]; /* of the chunk that prefix_next() came to */
    unsigned page_class;                /* of it */
    bool has_parent;
};

/* Checks a message's prefix; @m may be NULL. Return: 0; -EINVAL; -ENOENT; -ESTALE; with a sentence. */
int prefix_read(struct request *rq, const Kvcobra__Prefix *m, struct prefix *ret);

/* Derives the keys of chunk @i, after those of all chunks before it. */
void prefix_next(struct prefix *p, const Kvcobra__Prefix *m, size_t i);

/* Derives the keys of the chunk behind the present one, or of the first one. */
void prefix_step(struct prefix *p, const Kvcobra__Prefix *m, const uint32_t tokens[static 64], bool is_first);

/* The keys as a reply has them. They are in the scratch of the request. */
ProtobufCBinaryData prefix_keys(struct request *rq, const struct prefix *p);

/* Whether slower tiers may have pages of the tenant. */
bool prefix_has_tiers(const struct request *rq, const struct prefix *p);

/* How the disk names the page with key @i of the present chunk. Return: 0; -EINVAL with a sentence. */
int prefix_subject(struct request *rq, const struct prefix *p, int i, struct offload_subject *ret);
