/*
 * The index of a tenant, and its growth. The store inserts and removes keys; reserve.c asks for room before
 * it reserves a slot, so that no more pages exist than the index takes.
 *
 * A page is published only if its key finds a place in the present index. A larger index is made when the
 * pages reach the load limit, never because one key finds no place: clients choose keys, and keys with equal
 * homes fill the same few buckets of an index of any size.
 *
 * A larger index is made in steps, one with each reservation and each insertion: its memory is allocated,
 * then filled from the slot records, then clients change over, then the memory of the old one is given back.
 * No step takes more than some 50 us. Both indexes count for the tenant's quota meanwhile.
 */
#pragma once

#include <stdint.h>

#include "daemon/store/tenant_types.h"

struct errmsg;

/* The first index, with room for TENANT_PAGES_FREE pages. Return: 0; errno of the memory. */
int tenant_index_init(struct tenant *t, struct errmsg *e);
void tenant_index_deinit(struct tenant *t);

/**
 * tenant_index_make_room() - make sure that the index takes one page more than the tenant has
 *
 * Begins or continues a larger index if necessary.
 *
 * Return: 0; -EDQUOT: the quota has no room for a larger index; -EAGAIN: the larger index is not filled yet;
 * -ENOSPC: a larger index was given up, since keys share homes there; errno of the memory. After a failure
 * the caller may drop a page of the tenant instead.
 */
int tenant_index_make_room(struct tenant *t, const struct pool *p, struct errmsg *e);

/**
 * tenant_index_insert() - publish the key of a page, which its slot has
 * @p: read for the tenant's pages while a larger index is filled
 *
 * Return: 0; -ENOSPC: the buckets that may have the key are full. Nothing changed then.
 */
int tenant_index_insert(const struct pool *p, const struct page_handle *h, struct errmsg *e);

/* At the start, before the index has a key: makes room for @n_pages. Return: 0; errno of the memory. */
int tenant_index_reserve(struct tenant *t, uint64_t n_pages, struct errmsg *e);
void tenant_index_remove(struct tenant *t, const struct chunk_key *key);

/* The page of @key, confirmed by the slot record. False: the key has none. */
bool tenant_index_find(const struct tenant *t, const struct pool *p, const struct chunk_key *key,
                       struct page_handle *ret);
