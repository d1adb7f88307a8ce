/* The store for tests that keep the numbers of slots: the calls of store.h take handles. */
#pragma once

#include "daemon/store/reserve.h"
#include "daemon/store/store.h"

/* The page in slot @number, for a call that takes a handle. */
#define PAGE(store, number) ((struct page_handle[]){pool_handle(&(store)->pool, number)})

static inline int numbers_reserve(struct store *st, struct group *g, uint32_t session, uint32_t *ret_slot,
                                  struct errmsg *e)
{
    struct page_handle h;
    int r = reserve_slot(st, g, session, &h, e);

    if (r == 0)
        *ret_slot = h.number;
    return r;
}

/* @numbers: [n], SLOT_NONE gives PAGE_NONE. */
static inline void numbers_resolve(const struct store *st, const uint32_t *numbers, uint32_t n,
                                   struct page_handle *ret)
{
    for (uint32_t i = 0; i < n; i++)
        ret[i] = numbers[i] == SLOT_NONE ? PAGE_NONE : pool_handle(&st->pool, numbers[i]);
}

/* SLOT_NONE: the key has no page. */
static inline uint32_t numbers_find(const struct store *st, const struct tenant *t,
                                    const struct chunk_key *key)
{
    struct page_handle h;

    return store_find(st, t, key, &h) ? h.number : SLOT_NONE;
}
