/* What pages_write.c and pages_read.c share. */
#pragma once

#include <stdint.h>

#include "daemon/request.h"

struct chunk_key;
struct session_model;
struct space;
struct table_entry;

/* What a page message is about: a model of this session and a table it references. */
struct page_context {
    const struct session_model *model;
    struct table_entry *table;
    struct space *space;
};

/* Return: 0; -EINVAL: no such model, or table of another; -ENOENT, -ESTALE: see request_table(). */
int page_context(struct request *rq, uint32_t model, const ProtobufCBinaryData *table_digest, struct page_context *ret);

/* Return: 0; -EINVAL: not CHUNK_KEY_BYTES. */
int page_key(struct request *rq, const ProtobufCBinaryData *bytes, struct chunk_key *ret);

/* Reply item @i of the scratch: where a slot's page is. SLOT_NONE gives an empty one. */
void page_ref_fill(struct request *rq, size_t i, uint32_t slot);

/* Whether the session may have one more lease: asked before anything changes. Return: 0; -EDQUOT; -ENOMEM. */
int page_lease_room(struct request *rq);

/* One lease over scratch->slots[0 .. n - 1], holds taken; if it cannot be had the holds are given back. */
int page_lease(struct request *rq, size_t n, uint64_t *ret_lease);
