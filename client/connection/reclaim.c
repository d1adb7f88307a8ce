/* Giving pages back; see pressure.h. */
#include "client/connection/reclaim.h"

#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "gpu/device.h"

uint64_t pressure_extent(const struct kvc_model *m)
{
    const struct control_page *control;

    if (!model_is_connected(m) || !m->remote.control)
        return 0;
    control = extent_data(m->remote.control);
    return atomic_load_explicit(&control->reclaim, memory_order_relaxed);
}

/* Pages that forks share move once, for all of them. */
static void reclaim_yield_pages(struct kvc_seq *s, uint64_t extent)
{
    for (size_t i = 0; i < s->n_pages; i++) {
        struct page *p = s->pages[i];

        if (p->place == PAGE_POOL && p->extent->id == extent)
            (void) page_move_to_heap(s->model->client, p);
    }
}

bool pressure_yield(struct kvc_model *m)
{
    uint64_t extent = pressure_extent(m);

    if (extent == 0)
        return false;
    extents_unwant(&m->client->extents, extent);
    for (struct kvc_model *o = m->client->models; o; o = o->next)
        for (struct kvc_seq *s = o->seqs; s; s = s->next)
            reclaim_yield_pages(s, extent);
    return true;
}
