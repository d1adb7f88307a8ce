/* What a table has in GPU memory: its image for kernels, and slots for private pages; see gpu.h. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "client/model/model.h"
#include "gpu/cuda/device_table.h"

#define SLAB_BYTES ((size_t) 4 << 20)

/* ---- slots ---- */

static int gpu_pages_add_slab(struct gpu *g, struct gpu_slots *p, struct errmsg *e)
{
    size_t n = SLAB_BYTES / p->slot_bytes > 0 ? SLAB_BYTES / p->slot_bytes : 1;
    struct gpu_memory *slabs = realloc(p->slabs, (p->n_slabs + 1) * sizeof(*slabs));
    cu_ptr *slots;
    int r;

    if (!slabs)
        return fail(e, -ENOMEM, "out of memory");
    p->slabs = slabs;
    slots = realloc(p->free, (p->n_slots + n) * sizeof(*slots));
    if (!slots)
        return fail(e, -ENOMEM, "out of memory");
    p->free = slots;
    r = gpu_alloc(g, n * p->slot_bytes, &slabs[p->n_slabs], e);
    if (r < 0)
        return r;
    for (size_t i = n; i-- > 0;)
        p->free[p->n_free++] = slabs[p->n_slabs].at + i * p->slot_bytes;
    p->n_slots += n;
    p->n_slabs++;
    return 0;
}

int gpu_slot_take(struct gpu *g, struct gpu_slots *p, cu_ptr *ret, struct errmsg *e)
{
    int r = p->n_free > 0 ? gpu_check(g, e) : gpu_pages_add_slab(g, p, e);

    if (r == 0)
        *ret = p->free[--p->n_free];
    return r;
}

void gpu_slot_give(struct gpu_slots *p, cu_ptr slot)
{
    p->free[p->n_free++] = slot;
}

void gpu_slots_deinit(struct gpu *g, struct gpu_slots *p)
{
    for (size_t i = 0; i < p->n_slabs; i++)
        gpu_free(g, &p->slabs[i]);
    free(p->slabs);
    free(p->free);
    *p = (struct gpu_slots){.slot_bytes = p->slot_bytes};
}

/* ---- the table ---- */

static int gpu_pages_make_image(struct gpu *g, struct model_table *t, struct errmsg *e)
{
    size_t bytes = (device_table_bytes(&t->layout) + 63) / 64 * 64;
    _cleanup_(freep) void *image = aligned_alloc(64, bytes);
    int r;

    if (!image)
        return fail(e, -ENOMEM, "out of memory for the GPU's copy of a table");
    r = gpu_alloc(g, bytes, &t->gpu_plan, e);
    if (r < 0)
        return r;
    device_table_fill(&t->layout, image, t->gpu_plan.at);
    return gpu_write(g, t->gpu_plan.at, image, bytes, e);
}

int gpu_table(struct kvc_client *c, struct model_table *t, cu_ptr *ret)
{
    struct gpu *g = c->gpu;
    int r = 0;

    if (t->gpu_refusal.text[0] != '\0')
        return fail(&c->error, -EOPNOTSUPP, "%s", t->gpu_refusal.text);
    if (t->gpu_plan.bytes == 0) {
        r = device_table_check(&t->layout, &c->error);
        if (r < 0)
            return r;
        r = gpu_pages_make_image(g, t, &c->error);
        if (r == 0) {
            r = gpu_check_table(g, &t->layout, t->gpu_plan.at, &c->error);
            if (r == -EOPNOTSUPP) /* what was wrong once is not asked until it happens to be right */
                t->gpu_refusal = c->error;
        }
        if (r < 0) {
            gpu_free(g, &t->gpu_plan);
            return r;
        }
    }
    *ret = t->gpu_plan.at;
    return 0;
}

void gpu_table_drop(struct gpu *g, struct model_table *t)
{
    gpu_free(g, &t->gpu_plan);
}
