/* A sequence's memory on the GPU, and writing the host's changes to it. See seq_gpu.h. */
#include "client/gpu/seq_gpu.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_table.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pages.h"

static struct gpu *seq_gpu_of(const struct kvc_seq *s)
{
    return s->model->client->gpu;
}

static struct errmsg *seq_gpu_error_of(const struct kvc_seq *s)
{
    return &s->model->client->error;
}

/* Longer writes are copies, which wait for the stream. */
#define WRITE_BYTES_MAX ((size_t) 4 * LAUNCH_WRITE_WORDS_MAX * sizeof(uint32_t))

/* Queues a write of @bytes, which the caller may change at once. */
static int seq_gpu_write_device(const struct kvc_seq *s, cu_ptr to, const void *from, size_t bytes)
{
    struct gpu *g = seq_gpu_of(s);
    struct errmsg *e = seq_gpu_error_of(s);

    if (bytes > WRITE_BYTES_MAX)
        return gpu_write(g, to, from, bytes, e);

    return gpu_result(g, cuda_write_words(g->kernels, to, from, bytes, g->stream, e), e);
}

/* ---- creating and freeing ---- */

int seq_gpu_init(struct kvc_seq *s)
{
    uint32_t n_layers = seq_n_layers(s);
    struct seq_gpu *x = calloc(1, sizeof(*x));
    struct gpu *g = seq_gpu_of(s);
    struct errmsg *e = seq_gpu_error_of(s);
    cu_ptr unused;
    int r;

    if (!x)
        return fail(e, -ENOMEM, "out of memory for a sequence");

    s->gpu = x;
    x->is_stale = true;
    x->pages_moved = s->model->client->pages_moved;
    x->layers = calloc(n_layers, sizeof(*x->layers));
    x->image = calloc(n_layers, sizeof(*x->image));
    if (!x->layers || !x->image)
        return fail(e, -ENOMEM, "out of memory for a sequence");

    r = gpu_check_not_capturing(g, e);
    if (r < 0)
        return r;

    r = gpu_table(s->model->client, s->table, &unused); /* fails now if no kernel supports the table */
    if (r < 0)
        return r;

    r = gpu_alloc(g, n_layers * sizeof(struct device_seq), &x->device_seqs, e);
    if (r < 0)
        return r;

    return seq_sound_init(g, &x->sound, e);
}

void seq_gpu_deinit(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    struct gpu *g = seq_gpu_of(s);

    if (!x)
        return;
    seq_sound_deinit(g, &x->sound);
    gpu_free(g, &x->device_seqs);
    gpu_free(g, &x->tail);
    gpu_free(g, &x->addresses);
    free(x->written);
    free(x->image);
    free(x->layers);
    free(x);
    s->gpu = NULL;
}

/* ---- pages ---- */

/* Gives the list of addresses room for as many pages as the host's list. */
static int seq_gpu_grow_addresses(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    size_t n = s->n_pages_max;
    struct gpu_memory fresh = {0};
    const uint8_t **written;
    int r;

    written = realloc(x->written, n * sizeof(*written));
    if (!written)
        return fail(seq_gpu_error_of(s), -ENOMEM, "out of memory for %zu pages", n);

    x->written = written;
    r = gpu_alloc(seq_gpu_of(s), n * sizeof(*written), &fresh, seq_gpu_error_of(s));
    if (r == 0 && x->n_written > 0)
        r = gpu_copy(seq_gpu_of(s), fresh.at, x->addresses.at, x->n_written * sizeof(*written),
                     seq_gpu_error_of(s));
    if (r < 0) {
        gpu_free(seq_gpu_of(s), &fresh);
        return r;
    }

    gpu_free(seq_gpu_of(s), &x->addresses);
    x->addresses = fresh;
    x->n_addresses_max = n;
    x->is_stale = true;
    return 0;
}

/* Writes the addresses of pages @first .. @end - 1. */
static int seq_gpu_write_addresses(struct kvc_seq *s, size_t first, size_t end)
{
    struct seq_gpu *x = s->gpu;
    int r = seq_gpu_write_device(s, x->addresses.at + first * sizeof(*s->payloads), s->payloads + first,
                                 (end - first) * sizeof(*s->payloads));

    if (r < 0)
        return r;

    memcpy(x->written + first, s->payloads + first, (end - first) * sizeof(*s->payloads));
    return 0;
}

/* Writes the addresses that changed among the first n_written, each run of them at once. */
static int seq_gpu_rewrite_moved(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    size_t first = 0, end;
    int r = 0;

    while (r == 0 && first < x->n_written) {
        if (x->written[first] == s->payloads[first]) {
            first++;
            continue;
        }

        for (end = first + 1; end < x->n_written && x->written[end] != s->payloads[end]; end++)
            ;
        r = seq_gpu_write_addresses(s, first, end);
        first = end;
    }

    return r;
}

static int seq_gpu_refresh_addresses(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    uint64_t moved = s->model->client->pages_moved;
    int r = 0;

    (void) seq_payloads(s);
    if (s->n_pages > x->n_addresses_max)
        r = seq_gpu_grow_addresses(s);
    if (r == 0 && x->pages_moved != moved)
        r = seq_gpu_rewrite_moved(s);
    if (r < 0)
        return r;

    x->pages_moved = moved;
    if (x->n_written == s->n_pages)
        return 0;

    r = seq_gpu_write_addresses(s, x->n_written, s->n_pages);
    if (r < 0)
        return r;

    x->n_written = s->n_pages;
    x->is_stale = true; /* device_seqs has the number of pages */
    return 0;
}

void seq_gpu_keep_addresses(struct kvc_seq *s, size_t n)
{
    if (!s->gpu || s->gpu->n_written <= n)
        return;

    s->gpu->n_written = n;
    s->gpu->is_stale = true;
}

/* ---- lengths ---- */

static size_t seq_gpu_tail_bytes_of_side(const struct kvc_seq *s, size_t rows)
{
    return (size_t) s->model->shard.n_heads * rows * s->model->geometry.d * sizeof(uint16_t);
}

static cu_ptr seq_gpu_tail_at(const struct kvc_seq *s, const struct gpu_memory *tail, size_t rows,
                              uint32_t layer, enum side side)
{
    return tail->at + (2 * (size_t) layer + side) * seq_gpu_tail_bytes_of_side(s, rows);
}

/* A layer as kernels read it. */
static struct device_seq seq_gpu_image_of(const struct kvc_seq *s, uint32_t layer)
{
    const struct seq_gpu *x = s->gpu;
    const struct layer *l = &s->layers[layer];

    return (struct device_seq){
        .payloads = (uint8_t *const *) (uintptr_t) x->addresses.at,
        .n_claimed = (uint32_t) s->n_pages,
        .n_pages = (uint32_t) l->n_packed,
        .n_exact = (uint32_t) (l->length - l->n_packed * CHUNK_TOKENS),
        .first_row = x->layers[layer].first_row,
        .exact_ld = (uint32_t) s->tail_rows,
        .exact_k = (uint16_t *) (uintptr_t) seq_gpu_tail_at(s, &x->tail, s->tail_rows, layer, SIDE_K),
        .exact_v = (uint16_t *) (uintptr_t) seq_gpu_tail_at(s, &x->tail, s->tail_rows, layer, SIDE_V),
        .faults = (uint32_t *) (uintptr_t) gpu_flag_address(seq_gpu_of(s), x->sound.flag),
    };
}

int seq_gpu_refresh(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    int r = seq_gpu_refresh_addresses(s);

    if (r < 0 || !x->is_stale)
        return r;
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        x->image[i] = seq_gpu_image_of(s, i);
    r = seq_gpu_write_device(s, x->device_seqs.at, x->image, seq_n_layers(s) * sizeof(*x->image));
    x->is_stale = r < 0;
    return r;
}

int seq_gpu_lengths_changed(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    int r;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length == s->layers[i].n_packed * CHUNK_TOKENS)
            x->layers[i].first_row = 0;
    x->is_stale = true;
    r = seq_sound_lengths_changed(s, &x->sound);
    return r < 0 ? r : seq_gpu_refresh(s);
}

/* ---- the tail ---- */

/* Copies the exact rows of all layers to the front of a buffer of @rows rows. */
static int seq_gpu_copy_rows(struct kvc_seq *s, const struct gpu_memory *to, size_t rows)
{
    struct seq_gpu *x = s->gpu;
    size_t row_bytes = s->model->geometry.d * sizeof(uint16_t);
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < seq_n_layers(s); i++) {
        size_t n = s->layers[i].length - s->layers[i].n_packed * CHUNK_TOKENS;

        for (uint32_t h = 0; r == 0 && n > 0 && h < 2 * s->model->shard.n_heads; h++) {
            enum side side = h % 2 ? SIDE_V : SIDE_K;
            size_t from_row = h / 2 * s->tail_rows + x->layers[i].first_row, to_row = h / 2 * rows;

            r = gpu_copy(seq_gpu_of(s), seq_gpu_tail_at(s, to, rows, i, side) + to_row * row_bytes,
                         seq_gpu_tail_at(s, &x->tail, s->tail_rows, i, side) + from_row * row_bytes,
                         n * row_bytes, seq_gpu_error_of(s));
        }
    }

    return r;
}

int seq_gpu_resize_tail(struct kvc_seq *s, size_t rows)
{
    struct seq_gpu *x = s->gpu;
    struct gpu_memory fresh = {0};
    size_t bytes;
    int r;

    if (!checked_mul3(2 * (size_t) seq_n_layers(s) * s->model->shard.n_heads, rows,
                      s->model->geometry.d * sizeof(uint16_t), &bytes))
        return fail(seq_gpu_error_of(s), -ENOMEM, "no GPU has memory for a tail of %zu tokens", rows);

    r = gpu_alloc(seq_gpu_of(s), bytes, &fresh, seq_gpu_error_of(s));
    if (r == 0 && x->tail.bytes > 0)
        r = seq_gpu_copy_rows(s, &fresh, rows);
    if (r < 0) {
        gpu_free(seq_gpu_of(s), &fresh);
        return r;
    }

    gpu_free(seq_gpu_of(s), &x->tail);
    x->tail = fresh;
    s->tail_rows = rows;
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        x->layers[i].first_row = 0;
    x->is_stale = true;
    return 0;
}

int seq_gpu_copy(struct kvc_seq *to, const struct kvc_seq *from)
{
    struct seq_gpu *x = to->gpu;
    struct gpu *g = seq_gpu_of(to);
    struct errmsg *e = seq_gpu_error_of(to);
    int r;

    assert(to->tail_rows == from->tail_rows);
    r = gpu_copy(g, x->tail.at, from->gpu->tail.at,
                 2 * seq_n_layers(to) * seq_gpu_tail_bytes_of_side(to, to->tail_rows), e);
    if (r < 0)
        return r;

    r = seq_sound_copy(g, &x->sound, &from->gpu->sound, e);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < seq_n_layers(to); i++) {
        to->layers[i].length = from->layers[i].length;
        to->layers[i].n_packed = from->layers[i].n_packed;
        x->layers[i].first_row = from->gpu->layers[i].first_row;
    }

    x->is_stale = true;
    return 0;
}

int seq_gpu_check_sound(const struct kvc_seq *s)
{
    return seq_sound_check(s, &s->gpu->sound);
}
