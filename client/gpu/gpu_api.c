/*
 * A client on a GPU: choosing the device, the stream and the memory of pages, waiting. kvc_client_set_gpu()
 * is the one place that gives a client the operations of a GPU.
 */
#include <errno.h>

#include "base/options.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_open.h"
#include "client/gpu/gpu_ring.h"
#include "client/gpu/gpu_table.h"
#include "client/gpu/seq_copied.h"
#include "client/gpu/seq_gpu.h"
#include "client/gpu/seq_staged.h"
#include "client/kvcobra-gpu.h"
#include "client/publishing/publish.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"
#include "client/sequence/usage.h"
#include "gpu/attend.h"
#include "gpu/cuda/device_table.h"

/* ---- operations of a sequence ---- */

static int gpu_api_check_seq_idle(const struct kvc_seq *s)
{
    return gpu_check_not_capturing(s->model->client->gpu, &s->model->client->error);
}

static size_t gpu_api_attended_length(const struct kvc_seq *s, uint32_t layer)
{
    return s->layers[layer].length + s->gpu->layers[layer].n_captured;
}

static const struct seq_ops gpu_api_seq_ops = {
    .uses_arena = false,
    .is_shareable = true,
    .flags = KVC_SEQ_COUNTED,
    .init = seq_gpu_init,
    .deinit = seq_gpu_deinit,
    .copy = seq_gpu_copy,
    .check_sound = seq_gpu_check_sound,
    .check_idle = gpu_api_check_seq_idle,
    .append_begin = seq_gpu_append_begin,
    .append_stage = seq_gpu_append_stage,
    .append_apply = seq_gpu_append_apply,
    .append_end = seq_gpu_append_end,
    .pack = seq_gpu_pack,
    .resize_tail = seq_gpu_resize_tail,
    .pages_dropped = seq_gpu_keep_addresses,
    .refresh = seq_gpu_refresh,
    .lengths_changed = seq_gpu_lengths_changed,
    .truncate = seq_truncate_pages,
    .attended_length = gpu_api_attended_length,
    .attend = seq_gpu_attend,
    .read = seq_gpu_read,
    .count_usage = usage_count_pages,
};

/* ---- operations of a sequence with pages in host memory ---- */

static int gpu_api_refuse_attention(struct kvc_client *c, const kvc_attend_item *items, size_t n,
                                    uint32_t layer, const kvc_attend_options *o)
{
    (void) items;
    (void) n;
    (void) layer;
    (void) o;
    return fail(
        &c->error, -EOPNOTSUPP,
        "the pages of this client are in host memory, where its GPU does not attend to them: read the "
        "sequence into the engine's cache with kvc_seq_read_blocks() and attend there");
}

static const struct seq_ops gpu_api_staged_ops = {
    .uses_arena = true,
    .is_shareable = true,
    .takes_forms = true,
    .flags = KVC_SEQ_PUBLISH_ALL | KVC_SEQ_COUNTED,
    .init = seq_staged_init,
    .deinit = seq_staged_deinit,
    .copy = seq_staged_copy,
    .check_sound = seq_staged_check_sound,
    .check_idle = seq_staged_check_idle,
    .append_begin = seq_staged_append_begin,
    .append_stage = seq_staged_append_stage,
    .append_apply = seq_staged_append_apply,
    .append_end = seq_staged_append_end,
    .pack = seq_staged_pack,
    .resize_tail = seq_staged_resize_tail,
    .pages_dropped = seq_staged_pages_dropped,
    .refresh = seq_ops_nothing,
    .lengths_changed = seq_staged_lengths_changed,
    .truncate = seq_truncate_pages,
    .attended_length = seq_host_attended_length,
    .attend = gpu_api_refuse_attention,
    .read = seq_host_read,
    .read_blocks = seq_staged_read_blocks,
    .count_usage = usage_count_pages,
};

/* ---- operations of a sequence whose codes no kernel knows ---- */

static const struct seq_ops gpu_api_copied_ops = {
    .uses_arena = true,
    .is_shareable = true,
    .takes_forms = true,
    .flags = KVC_SEQ_PUBLISH_ALL | KVC_SEQ_COUNTED,
    .init = seq_copied_init,
    .deinit = seq_host_deinit,
    .copy = seq_tail_copy,
    .check_sound = seq_ops_check_nothing,
    .check_idle = gpu_api_check_seq_idle,
    .append_begin = seq_staged_append_begin,
    .append_stage = seq_copied_append_stage,
    .append_apply = seq_host_append_apply,
    .append_end = seq_staged_append_end,
    .pack = seq_host_pack,
    .resize_tail = seq_tail_resize,
    .pages_dropped = seq_ops_drop_nothing,
    .refresh = seq_ops_nothing,
    .lengths_changed = seq_ops_nothing,
    .truncate = seq_truncate_pages,
    .attended_length = seq_host_attended_length,
    .attend = gpu_api_refuse_attention,
    .read = seq_host_read,
    .read_blocks = seq_copied_read_blocks,
    .read_chunk = seq_host_read_chunk,
    .read_rows = seq_host_read_rows,
    .count_usage = usage_count_pages,
};

/* ---- operations of a client ---- */

static int gpu_api_check(struct kvc_client *c)
{
    return gpu_check_usable(c->gpu, &c->error);
}

/* A failure is repeated by the next call that reads the sequence. */
static void gpu_api_refresh_all(struct kvc_client *c)
{
    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct kvc_seq *s = m->seqs; s; s = s->next)
            if (s->gpu)
                (void) seq_gpu_refresh(s);
}

static bool gpu_api_prepare_flush(struct kvc_client *c)
{
    if (gpu_is_capturing(
            c->gpu)) /* writes now would be captured, and repeated by every launch of the graph */
        return false;

    gpu_api_refresh_all(c);
    if ((client_leases_have_released(&c->leases) || extents_have_unused(&c->extents)) &&
        gpu_synchronize(c->gpu, NULL) < 0)
        return false;

    extents_trim(&c->extents);
    return true;
}

static bool gpu_api_quiesce(struct kvc_client *c)
{
    return gpu_quiesce(c->gpu);
}

static void gpu_api_close(struct kvc_client *c)
{
    c->gpu = gpu_close(c->gpu);
}

static const struct client_ops gpu_api_client_ops = {
    .pages = &gpu_page_ops,
    .seqs = &gpu_api_seq_ops,
    .check = gpu_api_check,
    .prepare_flush = gpu_api_prepare_flush,
    .publish = publish_gpu,
    .kernel_name = seq_gpu_kernel_name,
    .free_table = gpu_table_free,
    .quiesce = gpu_api_quiesce,
    .close = gpu_api_close,
};

/* Nothing that is queued reads the daemon's memory: releases need not wait. */
static bool gpu_api_is_idle(struct kvc_client *c)
{
    (void) c;
    return true;
}

static const struct seq_ops *gpu_api_staged_ops_of(const struct model_table *t)
{
    return device_table_has_kernels(t->table) ? &gpu_api_staged_ops : &gpu_api_copied_ops;
}

static int gpu_api_staged_publish(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n)
{
    return s->staged ? seq_staged_publish(s, first, n, until_ms, ret_n)
                     : publish_arena(s, first, n, until_ms, ret_n);
}

static const char *gpu_api_staged_kernel_name(struct kvc_client *c, struct model_table *t)
{
    (void) c;
    return device_table_has_kernels(t->table) ? "cuda kvc_decode" : attend_kernel_name();
}

static const struct client_ops gpu_api_staged_client_ops = {
    .pages = &page_host_ops,
    .seqs = &gpu_api_staged_ops,
    .seqs_of = gpu_api_staged_ops_of,
    .uses_threads = true,
    .check = gpu_api_check,
    .prepare_flush = gpu_api_is_idle,
    .publish = gpu_api_staged_publish,
    .kernel_name = gpu_api_staged_kernel_name,
    .free_table = gpu_table_free,
    .quiesce = gpu_api_is_idle,
    .close = gpu_api_close,
};

/* ---- the calls ---- */

static int gpu_api_check_new_gpu(const struct kvc_client *c, const kvc_gpu_options *o, struct errmsg *e)
{
    if (o->pages > KVC_GPU_PAGES_HOST || o->unused)
        return fail(e, -EINVAL, "kvc_gpu_options: pages is %u, it must be 0 or 1; unused is %u, it must be 0",
                    o->pages, o->unused);
    if (o->pages == KVC_GPU_PAGES_DEVICE && o->ring_bytes > 0)
        return fail(e, -EINVAL, "kvc_gpu_options.ring_bytes is %zu: only pages in host memory use a ring",
                    o->ring_bytes);
    if (o->ring_bytes > 0 && (o->ring_bytes < GPU_RING_BYTES_MIN || o->ring_bytes > GPU_RING_BYTES_MAX))
        return fail(e, -EINVAL, "kvc_gpu_options.ring_bytes is %zu: at least %zu, at most %zu", o->ring_bytes,
                    GPU_RING_BYTES_MIN, GPU_RING_BYTES_MAX);
    if (c->gpu)
        return fail(e, -EBUSY, "this client is on %s already: use a client per GPU", c->gpu->uuid);
    if (c->workers.executor.run && o->pages == KVC_GPU_PAGES_DEVICE)
        return fail(e, -EBUSY,
                    "this client has an executor, whose threads a GPU does not use: remove it with "
                    "kvc_client_set_executor(c, NULL)");
    if (c->connection.greeted || c->models)
        return fail(e, -EBUSY, "this client %s: choose its GPU before",
                    c->models ? "has models" : "is connected");
    return 0;
}

static void gpu_api_use_device_pages(struct kvc_client *c)
{
    c->ops = &gpu_api_client_ops;
    c->extents.ops = &gpu_extent_ops;
    c->extents.gpu = c->gpu;
    connection_set_device(&c->connection, c->gpu->uuid);
}

/* The session is one of the host: the daemon does not know of the GPU. */
static int gpu_api_use_host_pages(struct kvc_client *c, const kvc_gpu_options *o)
{
    int r = gpu_ring_new(c->gpu, o->ring_bytes > 0 ? o->ring_bytes : GPU_RING_BYTES, &c->workers, &c->error);

    if (r < 0) {
        c->gpu = gpu_close(c->gpu);
        return r;
    }

    c->ops = &gpu_api_staged_client_ops;
    return 0;
}

int kvc_client_set_gpu(kvc_client *c, const kvc_gpu_options *o)
{
    kvc_gpu_options local;
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r < 0)
        return r;
    if (!o)
        return fail(&c->error, -EINVAL, "kvc_client_set_gpu: options are NULL");

    r = options_read(&local, sizeof(local), o, offsetof(kvc_gpu_options, pages), "kvc_gpu_options",
                     &c->error);
    if (r < 0)
        return r;

    r = gpu_api_check_new_gpu(c, &local, &c->error);
    if (r < 0)
        return r;

    r = gpu_open(local.uuid, local.stream, &c->gpu, &c->error);
    if (r < 0)
        return r;

    if (local.pages == KVC_GPU_PAGES_HOST)
        return gpu_api_use_host_pages(c, &local);

    gpu_api_use_device_pages(c);
    return 0;
}

/* First statement of a call for clients on a GPU only. */
static int gpu_api_enter(kvc_client *c, const char *what)
{
    int r = c ? client_enter(c) : -EINVAL;

    if (r == 0 && !c->gpu)
        return fail(&c->error, -EINVAL, "%s: this client has no GPU: call kvc_client_set_gpu() first", what);
    return r;
}

int kvc_client_set_stream(kvc_client *c, void *stream)
{
    int r = gpu_api_enter(c, "kvc_client_set_stream");

    return r < 0 ? r : gpu_set_stream(c->gpu, stream, &c->error);
}

/* NULL: the sequence's rows are in host memory, and its appends have looked at their numbers. */
static struct seq_sound *gpu_api_sound_of(struct kvc_seq *s)
{
    if (s->gpu)
        return &s->gpu->sound;

    return s->staged ? &s->staged->sound : NULL;
}

/* Updates every sequence; the error sentence is that of the first faulty one. */
static int gpu_api_update_soundness(struct kvc_client *c)
{
    struct errmsg first = {""};
    int r = 0;

    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct kvc_seq *s = m->seqs; s; s = s->next) {
            struct seq_sound *sound = gpu_api_sound_of(s);

            if (sound && seq_sound_update(s, sound) < 0 && r == 0) {
                r = -EINVAL;
                first = c->error;
            }
        }
    if (r < 0)
        c->error = first;
    return r;
}

int kvc_client_synchronize(kvc_client *c)
{
    int r = gpu_api_enter(c, "kvc_client_synchronize");

    if (r < 0)
        return r;
    r = gpu_flags_read(c->gpu, &c->error);
    if (r < 0)
        return r;

    return gpu_api_update_soundness(c);
}
