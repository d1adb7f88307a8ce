/* One table of the bench, on the host and on the GPU. */
#pragma once

#include "tests/gpu/bench_gpu.h"
#include "lab/bench/bench_attend.h"

enum { BENCH_SLOT_ALIGN = 128 }; /* of pages in the pool */

/* The subject of a row: codes drawn for a shape, or the codes of a table. Without coordinates of V, values
 * are binary16 beside packed keys. */
struct source {
    const char *name;
    struct attend_synthetic_shape shape;
    const struct table *of_file; /* NULL: synthetic */
    double must, aim;            /* target ratios to binary16; 0: none */
};

struct subject {
    struct attend_synthetic synthetic;
    struct page_layout layout;
    cu_ptr table;
    size_t slot; /* bytes from page to page */
};

/* Call subject_deinit() also after a failure; memory on the GPU is released with everything put there. */
int subject_init(struct bench_gpu *g, const struct source *source, struct subject *s, struct errmsg *e);
void subject_deinit(struct subject *s);

/* Layers of its pages; and bytes of codes of one layer of a page, averaged over the layers. */
static inline size_t subject_layers(const struct subject *s)
{
    return s->layout.table->geometry.n_layers;
}

static inline size_t subject_page_bytes(const struct subject *s)
{
    return s->layout.block_off[subject_layers(s) * s->layout.shard.n_heads] / subject_layers(s);
}
