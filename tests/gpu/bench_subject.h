/* One table of the bench, here and on the GPU. */
#pragma once

#include "tests/gpu/bench_gpu.h"
#include "tools/bench_attend.h"

enum { BENCH_SLOT_ALIGN = 128 }; /* of pages in the pool */

struct subject {
    struct synthetic synthetic;
    struct page_layout layout;
    cu_ptr table;
    size_t slot; /* bytes from page to page */
};

/* subject_deinit() also after a failure; what lies on the GPU is released with everything put there. */
int subject_init(struct bench_gpu *g, const struct synthetic_shape *shape, struct subject *s, struct errmsg *e);
void subject_deinit(struct subject *s);
