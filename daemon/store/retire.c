/* See retire.h. */
#include "daemon/store/retire.h"

#include <inttypes.h>

#include "daemon/loop/log.h"
#include "daemon/store/evict.h"
#include "daemon/store/share.h"
#include "daemon/store/store.h"

void retire_extent(struct store *st, struct pool_extent *x)
{
    if (x->retired)
        return;

    pool_extent_retire(&st->pool, x);
    log_event(LOG_NOTICE, "extent-retired",
              "extent=%" PRIu64 " tenant=%s message=\"a dead process may still write there: the "
              "memory is freed when no page in it is held\"",
              x->id, x->tenant->name);
    evict_extent(st, x);
}

void retire_reserved(struct store *st, uint32_t session)
{
    for (uint32_t i = 0; i < st->pool.n_spans_max; i++) {
        const struct span *s = st->pool.spans[i];

        for (uint32_t k = 0; s && k < s->n_fresh_from; k++) {
            if (s->slots[k].state == SLOT_RESERVED && s->slots[k].session == session) {
                retire_extent(st, s->extent); /* the span stays: this slot is in use */
                break;
            }
        }
    }
}

void retire_tick(struct store *st)
{
    while (share_destroy_retired(st))
        ;
}
