/* Reading a sequence on the GPU back. See seq_gpu.h. */
#include "client/gpu/gpu_table.h"
#include "client/gpu/seq_gpu.h"
#include "client/sequence/seq.h"

int seq_gpu_read(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out)
{
    struct kvc_client *c = s->model->client;
    struct gpu *g = c->gpu;
    struct launch_read launch = {
        .layer = layer, .side = (uint32_t) side, .first = (uint32_t) first, .n = (uint32_t) n, .out = out};
    cu_ptr table;
    int r;

    r = gpu_table(c, s->table, &table);
    if (r < 0)
        return r;

    r = gpu_is_capturing(g) ? 0 : seq_gpu_refresh(s);
    if (r < 0)
        return r;

    launch.table = (const struct device_table *) (uintptr_t) table;
    launch.seq = (const struct device_seq *) (uintptr_t) s->gpu->device_seqs.at + layer;
    return gpu_result(g, cuda_read(g->kernels, &s->table->layout, &launch, g->stream, &c->error), &c->error);
}
