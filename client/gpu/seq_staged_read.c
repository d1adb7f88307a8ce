/*
 * Reading staged sequences: pages go from the host's memory to the ring and from there to the GPU, some at a
 * time, where one launch decodes them for all layers. While the GPU decodes a group of pages, the next one is
 * on its way and the one after it is copied to the ring. Pages that are not in host memory yet are decoded
 * from the device memory that they were packed in, and tails are on the GPU.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_pointer.h"
#include "client/gpu/gpu_ring.h"
#include "client/gpu/gpu_table.h"
#include "client/gpu/seq_staged.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_ops.h"

#define GROUP_BYTES ((size_t) 8 << 20) /* of pages in one copy; a fourth of the ring if that is less */

enum { SEGMENT_TOKENS = 65536 }; /* bounds the list of blocks that is sent to the GPU at a time */

/* One call, and the positions of it that have one list of layers and blocks in device memory. */
struct seq_staged_reading {
    const struct seq_read_call *call;
    struct gpu *gpu;
    struct errmsg *e;
    struct launch_decode launch; /* all but the positions and pages of a group */
    struct gpu_memory image;     /* struct launch_decode_layer [n_layers], int64_t [blocks] */
    size_t first, end;           /* positions of the segment */
};

/* Some chunks, decoded by one launch. */
struct seq_staged_group {
    size_t first, n;       /* chunks */
    size_t n_pages, bytes; /* of them in host memory, and their places in the ring */
    /* of pages that were staged when the group was made. Their device memory is given back when a copy to the
     * host ends, which may be at once: later work of the caller's stream uses it again, after the launch */
    cu_ptr staged[LAUNCH_DECODE_CHUNKS_MAX];
    bool on_host[LAUNCH_DECODE_CHUNKS_MAX];
};

/* ---- layers and blocks ---- */

static size_t seq_staged_read_count_blocks(const struct seq_staged_reading *x)
{
    const struct seq_read_call *c = x->call;

    return c->blocks ? (x->end - 1) / c->block_tokens - x->first / c->block_tokens + 1 : 0;
}

static void seq_staged_read_fill_layers(const struct seq_read_call *c, struct launch_decode_layer *ret)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        ret[i] = (struct launch_decode_layer){
            .to = {c->bases[2 * i + KVC_K], c->bases[2 * i + KVC_V]},
            .rows = seq_staged_tail(c->seq, c->first_layer + i),
            .n_packed = (uint32_t) c->seq->layers[c->first_layer + i].n_packed,
        };
}

/* Writes the lists of a segment to device memory. */
static int seq_staged_read_send_lists(struct seq_staged_reading *x)
{
    const struct seq_read_call *c = x->call;
    size_t n_blocks = seq_staged_read_count_blocks(x),
           layers = c->n_layers * sizeof(struct launch_decode_layer),
           bytes = layers + n_blocks * sizeof(int64_t);
    struct gpu_copy *copy = NULL;
    int r = gpu_alloc(x->gpu, bytes, &x->image, x->e);

    if (r == 0)
        r = gpu_ring_take(x->gpu, bytes, &copy, x->e);
    if (r < 0)
        return r;

    seq_staged_read_fill_layers(c, gpu_ring_at(x->gpu, copy));
    x->launch.layers = (const struct launch_decode_layer *) (uintptr_t) x->image.at;
    if (n_blocks > 0) {
        x->launch.first_block = x->first / c->block_tokens;
        x->launch.blocks = (const int64_t *) (uintptr_t) (x->image.at + layers);
        memcpy((char *) gpu_ring_at(x->gpu, copy) + layers, c->blocks + x->launch.first_block,
               n_blocks * sizeof(int64_t));
    }
    return gpu_ring_write(x->gpu, copy, x->image.at, x->e);
}

/* ---- groups of chunks ---- */

static size_t seq_staged_read_page_place(const struct page *p)
{
    return (p->table->layout.payload_bytes[p->class] + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
}

/* The group that begins with chunk @first, of chunks up to @end. */
static struct seq_staged_group seq_staged_read_group(const struct seq_staged_reading *x, size_t first,
                                                     size_t end)
{
    const struct kvc_seq *s = x->call->seq;
    size_t most = x->gpu->ring->places.bytes / 4, n_packed = seq_n_packed_most(s);
    size_t most_chunks = gpu_angles_most(&s->table->gpu->angles) / CHUNK_TOKENS;
    struct seq_staged_group ret = {.first = first};

    most = most < GROUP_BYTES ? most : GROUP_BYTES;
    most_chunks = most_chunks < LAUNCH_DECODE_CHUNKS_MAX ? most_chunks : (size_t) LAUNCH_DECODE_CHUNKS_MAX;
    for (; first + ret.n < end && ret.n < most_chunks; ret.n++) {
        const struct page *p = first + ret.n < n_packed ? s->pages[first + ret.n] : NULL;
        size_t bytes;

        if (p && p->staging)
            ret.staged[ret.n] = p->staging->slot + PAGE_HEADER_BYTES;
        if (!p || p->staging)
            continue;
        bytes = seq_staged_read_page_place(p);
        if (ret.n_pages > 0 && ret.bytes + bytes > most)
            break;
        ret.on_host[ret.n] = true;
        ret.n_pages++;
        ret.bytes += bytes;
    }
    return ret;
}

/* Copies the group's pages of the host to the ring, and sends them to an input of the GPU. */
static int seq_staged_read_fetch(struct seq_staged_reading *x, const struct seq_staged_group *group,
                                 struct gpu_input **ret)
{
    const struct kvc_seq *s = x->call->seq;
    struct gpu_piece pieces[LAUNCH_DECODE_CHUNKS_MAX];
    size_t n = 0, at = 0;
    struct gpu_copy *copy;
    int r = gpu_ring_take(x->gpu, group->bytes, &copy, x->e);

    if (r < 0)
        return r;

    for (size_t i = 0; i < group->n; i++)
        if (group->on_host[i]) {
            const struct page *p = s->pages[group->first + i];

            pieces[n++] = (struct gpu_piece){(uint8_t *) gpu_ring_at(x->gpu, copy) + at, page_payload(p),
                                             p->table->layout.payload_bytes[p->class]};
            at += seq_staged_read_page_place(p);
        }
    gpu_ring_copy_pieces(x->gpu, pieces, n);
    return gpu_ring_fetch(x->gpu, copy, ret, x->e);
}

/* Where the pages of the group are on the GPU. */
static void seq_staged_read_set_payloads(const struct seq_staged_reading *x,
                                         const struct seq_staged_group *group, const struct gpu_input *in,
                                         struct launch_decode *ret)
{
    size_t at = 0;

    for (size_t i = 0; i < group->n; i++) {
        cu_ptr payload = group->on_host[i] ? in->memory.at + at : group->staged[i];

        if (group->on_host[i])
            at += seq_staged_read_page_place(x->call->seq->pages[group->first + i]);
        ret->payloads[i] = (const uint8_t *) (uintptr_t) payload;
    }
}

static int seq_staged_read_decode(struct seq_staged_reading *x, const struct seq_staged_group *group)
{
    struct kvc_seq *s = x->call->seq;
    size_t start = group->first * CHUNK_TOKENS, end = start + group->n * CHUNK_TOKENS;
    struct launch_decode a = x->launch;
    struct gpu_input *in = NULL;
    int r = group->n_pages > 0 ? seq_staged_read_fetch(x, group, &in) : 0;

    if (r < 0)
        return r;

    start = start > x->first ? start : x->first;
    end = end < x->end ? end : x->end;
    a.first = (uint32_t) start;
    a.n = (uint32_t) (end - start);
    seq_staged_read_set_payloads(x, group, in, &a);
    if (a.form & LAUNCH_AFTER_ROPE)
        r = gpu_angles_cover(x->gpu, &s->table->gpu->angles, &s->model->geometry, start, end - start, x->e);
    a.angles = gpu_angles_of(&s->table->gpu->angles);
    if (r == 0)
        r = gpu_result(x->gpu, cuda_decode(x->gpu->kernels, &s->table->layout, &a, x->gpu->stream, x->e),
                       x->e);
    gpu_angles_next_launch(&s->table->gpu->angles);
    return r == 0 && in ? gpu_ring_end_fetch(x->gpu, in, x->e) : r;
}

/* ---- the call ---- */

static int seq_staged_read_segment(struct seq_staged_reading *x)
{
    size_t end = (x->end + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    int r = seq_staged_read_send_lists(x);

    for (size_t chunk = x->first / CHUNK_TOKENS; r == 0 && chunk < end;) {
        struct seq_staged_group group = seq_staged_read_group(x, chunk, end);

        r = seq_staged_read_decode(x, &group);
        chunk += group.n;
    }
    gpu_free(x->gpu, &x->image); /* the launches that read it are queued */
    return r;
}

static int seq_staged_read_check(const struct seq_read_call *c, struct gpu *g, struct errmsg *e)
{
    int r = gpu_check_not_capturing(g, e);

    for (uint32_t i = 0; r == 0 && i < 2 * c->n_layers; i++)
        if (c->bases[i])
            r = gpu_check_pointer(g, c->bases[i], "a base to read to", e);
    return r;
}

int seq_staged_read_blocks(const struct seq_read_call *call)
{
    struct kvc_seq *s = call->seq;
    struct kvc_client *c = s->model->client;
    struct seq_staged_reading x = {.call = call, .gpu = c->gpu, .e = &c->error, .first = call->first};
    size_t end = call->first + call->n;
    int r = seq_staged_read_check(call, c->gpu, &c->error);

    x.launch = (struct launch_decode){
        .table = (const struct device_table *) (uintptr_t) s->table->gpu->image.at,
        .dim_stride = call->dim_stride,
        .token_stride = call->token_stride,
        .head_stride = call->head_stride,
        .block_stride = call->block_stride,
        .block_tokens = call->block_tokens,
        .origin = call->blocks ? 0 : call->first,
        .first_layer = call->first_layer,
        .n_layers = call->n_layers,
        .form = seq_staged_form(s),
        .dtype = (enum launch_dtype) call->dtype,
    };
    for (; r == 0 && x.first < end; x.first = x.end) {
        x.end = end - x.first > SEGMENT_TOKENS ? x.first + SEGMENT_TOKENS : end;
        r = seq_staged_read_segment(&x);
    }
    if (r < 0)
        return r;

    /* the bytes count if the pages are held now that all of them were copied */
    connection_check(&c->connection, true);
    return seq_check_whole(s);
}
