/* Reading a sequence on the GPU back; see kvc_seq_read(). */
#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"

int seq_gpu_read(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out)
{
    struct kvc_client *c = s->model->client;
    struct gpu *g = c->gpu;
    struct launch_read plan = {
        .layer = layer, .side = (uint32_t) side, .first = (uint32_t) first, .n = (uint32_t) n, .out = out};
    cu_ptr table;
    int r = gpu_table(c, s->table, &table);

    if (r == 0 && !gpu_is_capturing(g))
        r = seq_gpu_refresh(s);
    if (r < 0)
        return r;
    plan.table = (const struct device_table *) (uintptr_t) table;
    plan.seq = (const struct device_seq *) (uintptr_t) s->gpu->plans.at + layer;
    return gpu_result(g, cuda_read(g->kernels, &s->table->layout, &plan, g->stream, &c->error), &c->error);
}
