/* What the handlers of page messages share: pages_write.c, commit.c, pages_read.c, recheck.c, recheck_gpu.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/requests/request.h"
#include "daemon/store/store.h"

struct chunk_key;
struct session_model;
struct slot;
struct space;
struct table_entry;

/* What a page message is about: a model of this session and a table it references. */
struct page_context {
    const struct session_model *model;
    struct table_entry *table;
    struct space *space;
};

/* Return: 0; -EINVAL: no such model, or table of another; -ENOENT, -ESTALE: see request_table(). */
int page_context(struct request *rq, uint32_t model, const ProtobufCBinaryData *table_digest,
                 struct page_context *ret);

/* The same where a reservation names the space. ret->space: NULL: the model's shard is another one. */
int page_context_of(struct request *rq, uint32_t model, struct space *space, struct page_context *ret);

/* Return: 0; -EINVAL: not CHUNK_KEY_BYTES. */
int page_key(struct request *rq, const ProtobufCBinaryData *bytes, struct chunk_key *ret);

/* The page that a message names by slot and generation. False: no such page of this session's tenant. */
bool page_resolve(const struct request *rq, uint32_t number, uint64_t generation, struct page_handle *ret);

/* The same for a reservation of this session. */
bool page_resolve_reservation(const struct request *rq, uint32_t number, uint64_t generation,
                              struct page_handle *ret);

/* Reply item @i of the scratch: where a slot's page is. SLOT_NONE gives an empty one. */
void page_ref_fill(struct request *rq, size_t i, uint32_t slot);

/* Whether the session may have one more lease: asked before anything changes. Return: 0; -EDQUOT; -ENOMEM. */
int page_lease_room(struct request *rq);

/* One lease over scratch->slots[0 .. n - 1], holds taken; if it cannot be had the holds are given back. */
int page_lease(struct request *rq, size_t n, uint64_t *ret_lease);

/* Whether pages of the table are still taken. Return: 0; -ESTALE: its drain time is over. */
int page_check_writable(struct request *rq, const struct table_entry *t);

/**
 * recheck_begin() - before a handler leases pages of an earlier process: their checksums, on a thread
 * @slots: [n], SLOT_NONE or pages of this tenant
 * @again: the handler, called anew when they are compared
 *
 * A few bytes are left to store_page_is_whole(). Return: 0: go on; REQUEST_PENDING: return it; -EAGAIN;
 * -ENOMEM.
 */
int recheck_begin(struct request *rq, const uint32_t *slots, size_t n, int (*again)(struct request *rq));

/* The same on a GPU, by the mover. At least one page is unchecked. Return: also -EAGAIN: the mover cannot be
 * asked now. */
int recheck_gpu_begin(struct request *rq, const uint32_t *slots, size_t n, int (*again)(struct request *rq));

/* Why the tenant does not have a chunk. Of its own history only: nothing here depends on what another one
 * stores. */
Kvcobra__MissReason page_miss_reason(const struct request *rq, const struct space *space,
                                     const struct chunk_key *key);

/* One per sequence, of its first missing chunk: where LEASE ends, or a first page that RESERVE does not find.
 */
void page_count_miss(struct request *rq, Kvcobra__MissReason reason);
