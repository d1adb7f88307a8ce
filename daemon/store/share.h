/*
 * Tenants share the pool by guarantees and lending (DESIGN 5.3), in whole extents, since an extent is one
 * tenant's:
 *
 *   guarantee  rounded up to extents; all of them together fit the pool
 *   lending    what a tenant does not use of its guarantee others may use, but for the part that is kept back
 *              (100 - lendable percent, rounded up): that is there at once when it is needed
 *   borrower   a tenant with more extents than its guarantee
 *   lender     a tenant with fewer, in need while the pool is full: takes a borrower's extent without held
 * pages; if there is none, one extent is asked back: its unheld pages go, nothing new comes into it, the
 * control page says so, and the lender is told to come again until its holders released it
 *
 * Extents that clients lent (lend.h) count as their tenant's and are taken or asked back for nobody.
 *
 * Borrowers among themselves: one takes an extent of who borrowed most, if that has at least two more, so
 * that the first one in the pool does not keep nearly all of it, and two do not take turns robbing each
 * other.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pool;
struct store;
struct tenant;

/* Extents of a guarantee of @bytes. */
uint64_t share_extents(const struct pool *p, uint64_t bytes);

/* Whether the guarantees fit the pool if @t's were @bytes. @n_unseen tenants have the default of
 * @unseen_bytes. */
bool share_fits(const struct store *st, const struct tenant *t, uint64_t bytes, uint64_t n_unseen,
                uint64_t unseen_bytes);

/* Whether @t may add an extent to the pool. */
bool share_may_grow(const struct store *st, const struct tenant *t);

/* Whether @t may add one that cannot be asked back, because its own client lent it: what others are
 * guaranteed has to stay. */
bool share_may_register(const struct store *st, const struct tenant *t);

/* Takes an extent without held pages for @t, as said above. False: there is none to take. */
bool share_take_extent(struct store *st, const struct tenant *t);

/* An extent without pages of somebody else goes. */
bool share_destroy_empty(struct store *st, const struct tenant *not_of);

/* A retired extent without pages goes. False: there is none. */
bool share_destroy_retired(struct store *st);

/* @t found no room. Return: whether an extent is asked back for it: it is a lender. */
bool share_reclaim(struct store *st, struct tenant *t);

/* Bytes that are held or reserved in the extent that was asked back for @t; 0: none was. */
uint64_t share_awaited_bytes(const struct store *st, const struct tenant *t);

/* Bytes of @t's extents that were asked back. */
uint64_t share_reclaimed_bytes(const struct store *st, const struct tenant *t);

/* Once in a while: what nobody asked for during @patience_ms is not asked back any more. */
void share_tick(struct store *st, uint64_t now_ms, uint64_t patience_ms);
