/*
 * Pages that left the disk: their segment was used again, or they could not be read. One that is in memory is
 * written again when it is next to be evicted, if it was used.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/offload/offload_state.h"
#include "daemon/store/account.h"
#include "daemon/store/store.h"

enum { KEYS_PER_PUMP = 1024 }; /* looked up in an index, some hundred microseconds */

static struct tenant *offload_removed_tenant(const struct offload *o, const char *name)
{
    struct tenant *t = o->store->tenants;

    while (t && strcmp(t->account->name, name) != 0)
        t = t->next;
    return t;
}

static void offload_removed_note(struct offload *o, struct tenant *t, const struct chunk_key *key)
{
    struct page_handle h;

    offload_fetch_note_removed(o, t, key);
    if (!store_find(o->store, t, key, &h))
        return;

    h.slot->was_replaced |= h.slot->is_on_disk;
    h.slot->is_on_disk = 0;
}

/* Return: whether there is a batch with a key that was not looked at. */
static bool offload_removed_take(struct offload *o)
{
    bool is_incomplete = false;

    if (o->removed && o->n_removed_done < o->removed->n)
        return true;

    free(o->removed);
    o->n_removed_done = 0;
    o->removed = o->host->ops->take_removed(o->host->self, &is_incomplete);
    if (is_incomplete)
        offload_sweep_begin(o);
    return o->removed != NULL;
}

void offload_note_removed(struct offload *o)
{
    uint32_t budget = KEYS_PER_PUMP;

    while (budget > 0 && offload_removed_take(o)) {
        struct tenant *t = offload_removed_tenant(o, o->removed->tenant);

        for (; budget > 0 && o->n_removed_done < o->removed->n; budget--, o->n_removed_done++)
            if (t)
                offload_removed_note(o, t, &o->removed->keys[o->n_removed_done]);
    }
}
