/* Room for a new page: quota, guarantees, eviction and a new extent, in the order that costs the least. */
#pragma once

#include <stdint.h>

struct errmsg;
struct group;
struct page_handle;
struct store;

/**
 * reserve_slot() - get a RESERVED slot for a page of @g; evicts pages if necessary
 * @session: number of the session that will commit it; recorded
 *
 * Return: 0; -EINPROGRESS: an extent of the host's pool is being created: wait for it (host_extents.h);
 * -EDQUOT: the tenant's quota, or the index that it has room for, is used by pages that cannot be evicted;
 * -ENOSPC: the pool is full of held pages or of other tenants' share, or the device has no memory left and no
 * page of the tenant can be evicted; -EAGAIN: the tenant is below its guarantee and borrowed extents are
 * being reclaimed, see share_awaited_bytes(), or an extent is being created on the GPU, or a larger index is
 * being filled; -EFBIG: a page is larger than an extent; errno of the memory.
 */
int reserve_slot(struct store *st, struct group *g, uint32_t session, struct page_handle *ret,
                 struct errmsg *e);
