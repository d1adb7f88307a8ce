/*
 * What the handlers of page messages share: the model and table of a message, pages and reservations by
 * number, leases, and checks of an earlier process's pages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/requests/request.h"
#include "daemon/store/store.h"

struct chunk_key;
struct group;
struct session_model;
struct slot;
struct space;
struct table_entry;

/* A model of this session and a table that it references. */
struct page_context {
    const struct session_model *model;
    struct table_entry *table;
    struct space *space;
};

/* Return: 0; -EINVAL: no such model, or table of another; -ENOENT, -ESTALE: see request_table(). */
int page_context(struct request *rq, uint32_t model, const ProtobufCBinaryData *table_digest,
                 struct page_context *ret);

/* page_context() for the space of a reservation. ret->space is NULL if the model has another shard. */
int page_context_of(struct request *rq, uint32_t model, struct space *space, struct page_context *ret);

/* Return: 0; -EINVAL: not CHUNK_KEY_BYTES. */
int page_key(struct request *rq, const ProtobufCBinaryData *bytes, struct chunk_key *ret);

/* The page that a message names by slot and generation. False: this session's tenant has no such page. */
bool page_resolve(const struct request *rq, uint32_t number, uint64_t generation, struct page_handle *ret);

/*
 * The page of an item of LEASE: the one that it names by slot, or, if the client waits for slower tiers, the
 * page of its key. PAGE_NONE: the tenant has no such page of the context's space.
 */
struct page_handle page_of_item(const struct request *rq, const struct page_context *c,
                                const Kvcobra__LeaseItem *item, const struct chunk_key *key);

/* The page of this tenant with @key, or PAGE_NONE. */
struct page_handle page_find(const struct request *rq, const struct chunk_key *key);

/* page_resolve() for a reservation of this session. */
bool page_resolve_reservation(const struct request *rq, uint32_t number, uint64_t generation,
                              struct page_handle *ret);

/* Fills reply item @i of the scratch with the place of a page; PAGE_NONE gives an empty one. */
void page_ref_fill(struct request *rq, size_t i, const struct page_handle *h);

/* Whether the session may reserve one more slot. Return: 0; -EDQUOT. */
int page_reservation_room(struct request *rq);

/*
 * The group of this tenant's pages of (space, class), created if it is new. A tenant has a limited number of
 * groups with pages. Return: 0; -EDQUOT; -ENOMEM.
 */
int page_group(struct request *rq, struct space *space, unsigned page_class, struct group **ret);

/*
 * Room for one more lease of up to @n pages; called before anything changes, so that page_lease() does not
 * fail. Return: 0; -EDQUOT; -ENOMEM.
 */
int page_lease_room(struct request *rq, size_t n);

/*
 * One lease over scratch->found[0 .. n - 1], whose holds are taken. page_lease_room() made room for it.
 * Return: its number; 0: no page is given.
 */
uint64_t page_lease(struct request *rq, size_t n);

/* Whether new pages of the table are accepted. Return: 0; -ESTALE: its drain time is over. */
int page_check_writable(struct request *rq, const struct table_entry *t);

/**
 * recheck_begin() - compare pages of an earlier process with their checksums, on a thread, before they are
 * leased
 * @pages: [n], PAGE_NONE or pages of this tenant
 *
 * Leaves pages of few bytes to store_page_is_whole(). Return: 0: continue; REQUEST_PENDING: the request
 * goes on later; -EAGAIN; -ENOMEM.
 */
int recheck_begin(struct request *rq, const struct page_handle *pages, size_t n);

/*
 * recheck_begin() on a GPU, where the mover computes the checksums. At least one page is unchecked. Return:
 * also -EAGAIN: no request to the mover is possible now.
 */
int recheck_gpu_begin(struct request *rq, const struct page_handle *pages, size_t n);

/* Why the tenant does not have a chunk. Depends on its own history only, never on pages of other tenants. */
Kvcobra__MissReason page_miss_reason(const struct request *rq, const struct space *space,
                                     const struct chunk_key *key);

/*
 * Counts one miss per sequence, for its first missing chunk: where LEASE ends, or a first page that RESERVE
 * does not find.
 */
void page_count_miss(struct request *rq, Kvcobra__MissReason reason);

/* Counts a chunk that was looked up for the advice on capacity (store/advice.h). */
void page_note_lookup(struct request *rq, const struct space *space, unsigned page_class,
                      const struct chunk_key *key, bool found);
