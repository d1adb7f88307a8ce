/* See gpu_table.h. */
#include "client/gpu/gpu_table.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/gpu/gpu_check.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "client/model/model.h"
#include "gpu/cuda/device_table.h"

/* ---- private pages ---- */

static int gpu_table_take_page(struct kvc_client *c, struct page *p)
{
    return gpu_slot_take(c->gpu, &p->table->gpu->slots[p->class], &p->device, &c->error);
}

static void gpu_table_give_page(struct kvc_client *c, struct page *p)
{
    (void) c;
    gpu_slot_give(&p->table->gpu->slots[p->class], p->device);
}

static int gpu_table_copy_page(struct kvc_client *c, struct page *to, const struct page *from)
{
    return gpu_copy(c->gpu, to->device + PAGE_HEADER_BYTES, from->device + PAGE_HEADER_BYTES,
                    from->table->layout.page_bytes[from->class] - PAGE_HEADER_BYTES, &c->error);
}

const struct page_ops gpu_page_ops = {
    .take = gpu_table_take_page,
    .give = gpu_table_give_page,
    .copy = gpu_table_copy_page,
};

/* ---- the table ---- */

static int gpu_table_write_image(struct gpu *g, struct model_table *t, struct errmsg *e)
{
    size_t bytes = (device_table_bytes(&t->layout) + 63) / 64 * 64;
    _cleanup_(freep) void *image = aligned_alloc(64, bytes);
    int r;

    if (!image)
        return fail(e, -ENOMEM, "out of memory for the GPU's copy of a table");

    r = gpu_alloc(g, bytes, &t->gpu->image, e);
    if (r < 0)
        return r;

    device_table_fill(&t->layout, image, t->gpu->image.at);
    return gpu_write(g, t->gpu->image.at, image, bytes, e);
}

static int gpu_table_make_image(struct gpu *g, struct model_table *t, struct errmsg *e)
{
    bool attends = !g->ring;
    int r = attends ? device_table_check(&t->layout, e) : 0;

    if (r < 0)
        return r;
    if (table_is_exact(t->table))
        return fail(
            e, -EOPNOTSUPP,
            "it is an exact table, whose pages GPU kernels do not attend to: use a client with its pages "
            "in host memory (KVC_GPU_PAGES_HOST), or activate a calibrated table");
    if (!device_table_has_kernels(t->table))
        return fail(
            e, -EOPNOTSUPP,
            "its levels are trellis-coded (format 3), and GPU kernels know scalar levels only: activate a "
            "table that `kvcobra solve --trellis 0` made");

    r = gpu_table_write_image(g, t, e);
    if (r < 0)
        return r;

    if (attends)
        r = gpu_check_table(g, &t->layout, t->gpu->image.at, e);
    else
        r = gpu_check_table_staged(g, &t->layout, t->gpu->image.at, e);
    if (r == -EOPNOTSUPP) /* not checked again: a second run might succeed by chance */
        t->gpu->refusal = *e;
    return r;
}

static struct model_table_gpu *gpu_table_new(const struct model_table *t)
{
    struct model_table_gpu *x = calloc(1, sizeof(*x));

    for (unsigned k = 0; x && k < 2; k++)
        x->slots[k].slot_bytes = t->layout.slot_bytes[k];
    return x;
}

int gpu_table(struct kvc_client *c, struct model_table *t, cu_ptr *ret)
{
    if (!t->gpu)
        t->gpu = gpu_table_new(t);
    if (!t->gpu)
        return fail(&c->error, -ENOMEM, "out of memory for the GPU's copy of a table");
    if (t->gpu->refusal.text[0] != '\0')
        return fail(&c->error, -EOPNOTSUPP, "%s", t->gpu->refusal.text);

    if (t->gpu->image.bytes == 0) {
        int r = gpu_table_make_image(c->gpu, t, &c->error);

        if (r < 0) {
            gpu_free(c->gpu, &t->gpu->image);
            return r;
        }
    }

    *ret = t->gpu->image.at;
    return 0;
}

void gpu_table_free(struct kvc_client *c, struct model_table *t)
{
    if (!t->gpu)
        return;

    if (c->gpu->ring) /* copies of dropped pages still read slots */
        (void) gpu_ring_finish(c->gpu, NULL);
    gpu_angles_deinit(c->gpu, &t->gpu->angles);
    gpu_slots_deinit(c->gpu, &t->gpu->slots[PAGE_FIRST]);
    gpu_slots_deinit(c->gpu, &t->gpu->slots[PAGE_REST]);
    gpu_free(c->gpu, &t->gpu->image);
    free(t->gpu);
    t->gpu = NULL;
}
