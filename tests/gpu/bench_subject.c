/* See bench_subject.h. */
#include "tests/gpu/bench_subject.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/device_table.h"

void subject_deinit(struct subject *s)
{
    page_layout_deinit(&s->layout);
    attend_synthetic_deinit(&s->synthetic);
}

int subject_init(struct bench_gpu *g, const struct source *source, struct subject *s, struct errmsg *e)
{
    _cleanup_(freep) void *image = NULL;
    int r;

    *s = (struct subject){0};
    if ((!source->of_file && attend_synthetic_init(&s->synthetic, &source->shape) < 0) ||
        page_layout_init(&s->layout, source->of_file ? source->of_file : &s->synthetic.table,
                         (struct shard){0, source->shape.n_kv_heads}) < 0)
        return fail(e, -ENOMEM, "out of memory");
    /* of any page: the first one has sinks */
    s->slot =
        (s->layout.payload_bytes[PAGE_FIRST] + BENCH_SLOT_ALIGN - 1) / BENCH_SLOT_ALIGN * BENCH_SLOT_ALIGN;
    image = aligned_alloc(64, (device_table_bytes(&s->layout) + 63) / 64 * 64);
    if (!image)
        return fail(e, -ENOMEM, "out of memory");

    r = device_table_check(&s->layout, e);
    if (r < 0)
        return r;

    /* inner pointers are addresses in device memory, so the address comes first */
    r = bench_gpu_put(g, NULL, device_table_bytes(&s->layout), &s->table, e);
    if (r < 0)
        return r;

    device_table_fill(&s->layout, image, s->table);
    return bench_gpu_fill(g, s->table, device_table_bytes(&s->layout), image, device_table_bytes(&s->layout),
                          e);
}
