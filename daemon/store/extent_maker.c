/* See extent_maker.h. */
#include "daemon/store/extent_maker.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/work.h"
#include "daemon/store/host_memory.h"
#include "daemon/store/pool.h"
#include "gpu/device.h"

struct extent_maker_item {
    struct work_item work;
    const struct pool *pool; /* the thread reads its sizes, which do not change */
    const struct pool_keeper *keeper;
    struct extent_maker_owner owner;
    struct pool_memory made;
    int err, store_err;
    struct errmsg why;
};

static void extent_maker_make(struct extent_maker_item *i)
{
    const struct pool *p = i->pool;
    _cleanup_(closep) int owner_fd = -1; /* closed when the store has a copy */

    if (!p->on_gpu)
        i->err = extent_new_kept("kvcobra-pages", p->extent_bytes, EXTENT_READ, &i->made.memory, &owner_fd,
                                 &i->why);
    if (i->err == 0)
        i->err = slot_records_init(&i->made.records, (uint32_t) (p->extent_bytes / p->unit_bytes),
                                   p->unit_bytes, &i->why);
    if (i->err == 0 && i->keeper)
        i->store_err = i->keeper->store(i->keeper->ctx, i->made.id, p->on_gpu,
                                        p->on_gpu ? i->made.gpu_fd : owner_fd, i->made.records.fd);
    if (i->err < 0)
        pool_memory_deinit(&i->made);
}

static bool extent_maker_run(struct work_item *work)
{
    extent_maker_make((struct extent_maker_item *) work);
    return false;
}

static void extent_maker_on_done(struct work_item *work)
{
    struct extent_maker_item *i = (struct extent_maker_item *) work;

    if (work->expired) {
        pool_memory_deinit(&i->made);
        i->err = fail(&i->why, -ECANCELED, "kvcobrad is stopping");
    }
    if (i->store_err < 0) /* the extent is used all the same: its pages are lost at the next start */
        i->keeper->not_stored(i->keeper->ctx, i->made.id, i->store_err);
    i->owner.made(i->owner.ctx, &i->made, i->err, i->why.text);
    free(i);
}

int extent_maker_begin(struct host_memory *thread, struct pool *p, int gpu_fd,
                       const struct extent_maker_owner *owner, struct errmsg *e)
{
    struct extent_maker_item *i = calloc(1, sizeof(*i));
    int r;

    if (!i)
        return fail(e, -ENOMEM, "out of memory for an extent");

    i->work =
        (struct work_item){.run = extent_maker_run, .done = extent_maker_on_done, .deadline_ms = UINT64_MAX};
    i->pool = p;
    i->keeper = p->keeper;
    i->owner = *owner;
    i->made = POOL_MEMORY_NONE;
    i->made.id = p->serials->next_extent++;
    i->made.gpu_fd = gpu_fd;
    r = work_submit(thread->work, &thread->making, &i->work);
    if (r < 0) {
        free(i);
        return fail(e, r, "out of memory for an extent");
    }
    return 0;
}
