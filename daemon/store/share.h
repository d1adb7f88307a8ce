/*
 * Tenants share the pool by guarantees and lending (DESIGN 5.3), in whole extents, since an extent belongs
 * to one tenant:
 *
 *     guarantee  rounded up to extents; all guarantees together fit the pool
 *     lending    other tenants may use the unused part of a guarantee, except (100 - lendable percent) of it,
 *                rounded up, which stays free for its owner
 *     borrower   a tenant with more extents than its guarantee
 *     lender     a tenant with fewer. If it needs room and the pool is full, it takes a borrower's extent
 *                without held pages. If there is none, one extent is reclaimed: its unheld pages are evicted,
 *                it takes no new page, the borrower's control page names it, and the lender gets EAGAIN until
 *                the extent has no held page
 *
 * A held page of 128 bytes keeps a whole extent from all others. So a tenant may have the extents of its
 * quota and one more, and a tenant above its guarantee leaves a 32nd of the pool's extents, rounded down, to
 * tenants that have none.
 *
 *
 * A borrower takes an extent of the tenant that borrowed most, if that tenant borrowed at least two more. So
 * the first tenant cannot keep nearly the whole pool, and two tenants do not take the same extent from each
 * other in turn.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pool;
struct store;
struct tenant;

/* Extents of a guarantee of @bytes. */
uint64_t share_extents(const struct pool *p, uint64_t bytes);

/* Whether all guarantees fit the pool, with @bytes for @t and @n_promised extents for tenants to come. */
bool share_fits(const struct store *st, const struct tenant *t, uint64_t bytes, uint64_t n_promised);

/* Whether @t has as many extents as its quota allows. */
bool share_is_at_limit(const struct store *st, const struct tenant *t);

/* Whether @t may add an extent to the pool. */
bool share_may_grow(const struct store *st, const struct tenant *t);

/* Frees an extent without held pages for @t, by the rules above. False: there is none. */
bool share_take_extent(struct store *st, const struct tenant *t);

/* Destroys an extent without pages of another tenant than @not_of. False: there is none. */
bool share_destroy_empty(struct store *st, const struct tenant *not_of);

/* Destroys an extent of @t, which has no pages. False: it has no extent. */
bool share_destroy_one(struct store *st, const struct tenant *t);

/* Destroys a retired extent without pages. False: there is none. */
bool share_destroy_retired(struct store *st);

/* Begins to reclaim an extent for @t, which found no room. False: @t is no lender, or none is borrowed. */
bool share_reclaim(struct store *st, struct tenant *t);

/* Bytes that are held or reserved in the extent that is being reclaimed for @t; 0: none. */
uint64_t share_awaited_bytes(const struct store *st, const struct tenant *t);

/* Held or reserved bytes in extents of @t that are being reclaimed. */
uint64_t share_reclaimed_bytes(const struct store *st, const struct tenant *t);

/* At each tick: stops reclaiming an extent if its lender made no request for room during @patience_ms. */
void share_tick(struct store *st, uint64_t now_ms, uint64_t patience_ms);
