/* What a sequence has on the GPU, and how the device learns what the host knows; see seq_gpu.h. */
#include "client/gpu/seq_gpu.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "client/connection/client.h"
#include "client/sequence/seq.h"

static struct gpu *gpu_of(const struct kvc_seq *s)
{
    return s->model->client->gpu;
}

static struct errmsg *seq_gpu_error_of(const struct kvc_seq *s)
{
    return &s->model->client->error;
}

/* More than a few launches' parameters carry goes as a copy, which a stream that is not captured may have. */
#define POKE_BYTES_MAX ((size_t) 4 * LAUNCH_WRITE_WORDS_MAX * sizeof(uint32_t))

/* Bytes of the host for what is queued later; they may go at once. */
static int seq_gpu_tell(const struct kvc_seq *s, cu_ptr to, const void *from, size_t bytes)
{
    struct gpu *g = gpu_of(s);

    if (bytes > POKE_BYTES_MAX)
        return gpu_write(g, to, from, bytes, seq_gpu_error_of(s));
    return gpu_result(g, cuda_write_words(g->kernels, to, from, bytes, g->stream, seq_gpu_error_of(s)),
                      seq_gpu_error_of(s));
}

/* ---- birth and death ---- */

int seq_gpu_init(struct kvc_seq *s)
{
    uint32_t n_layers = seq_n_layers(s);
    struct seq_gpu *x = calloc(1, sizeof(*x));
    cu_ptr unused;
    int r;

    if (!x)
        return fail(seq_gpu_error_of(s), -ENOMEM, "out of memory for a sequence");
    s->gpu = x;
    x->plans_stale = true;
    x->pages_moved = s->model->client->pages_moved;
    x->layers = calloc(n_layers, sizeof(*x->layers));
    x->image = calloc(n_layers, sizeof(*x->image));
    if (!x->layers || !x->image)
        return fail(seq_gpu_error_of(s), -ENOMEM, "out of memory for a sequence");
    r = gpu_check_not_capturing(gpu_of(s), seq_gpu_error_of(s));
    if (r == 0) /* a table that kernels do not take says so now */
        r = gpu_table(s->model->client, s->table, &unused);
    if (r == 0)
        r = gpu_alloc(gpu_of(s), n_layers * sizeof(struct device_seq), &x->plans, seq_gpu_error_of(s));
    if (r == 0)
        r = gpu_flag_take(gpu_of(s), &x->flag, seq_gpu_error_of(s));
    x->has_flag = r == 0;
    return r;
}

void seq_gpu_deinit(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    struct gpu *g = gpu_of(s);

    if (!x)
        return;
    if (x->has_flag)
        gpu_flag_drop(g, x->flag);
    gpu_free(g, &x->plans);
    gpu_free(g, &x->tail);
    gpu_free(g, &x->addresses);
    free(x->written);
    free(x->image);
    free(x->layers);
    free(x);
    s->gpu = NULL;
}

/* ---- pages ---- */

/* The list of addresses, with room for all pages that the host's has room for. */
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
    r = gpu_alloc(gpu_of(s), n * sizeof(*written), &fresh, seq_gpu_error_of(s));
    if (r == 0 && x->n_written > 0)
        r = gpu_copy(gpu_of(s), fresh.at, x->addresses.at, x->n_written * sizeof(*written),
                     seq_gpu_error_of(s));
    if (r < 0) {
        gpu_free(gpu_of(s), &fresh);
        return r;
    }
    gpu_free(gpu_of(s), &x->addresses);
    x->addresses = fresh;
    x->n_addresses_max = n;
    x->plans_stale = true;
    return 0;
}

/* Pages @first .. @end - 1 are now where the host has them. */
static int seq_gpu_write_addresses(struct kvc_seq *s, size_t first, size_t end)
{
    struct seq_gpu *x = s->gpu;
    int r = seq_gpu_tell(s, x->addresses.at + first * sizeof(*s->payloads), s->payloads + first,
                         (end - first) * sizeof(*s->payloads));

    if (r == 0)
        memcpy(x->written + first, s->payloads + first, (end - first) * sizeof(*s->payloads));
    return r;
}

/* Runs of pages that stand elsewhere than the device knows, among the first n_written. */
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
    x->plans_stale = true; /* they say how many there are */
    return 0;
}

void seq_gpu_keep_addresses(struct kvc_seq *s, size_t n)
{
    if (s->gpu->n_written <= n)
        return;
    s->gpu->n_written = n;
    s->gpu->plans_stale = true;
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

/* A layer as kernels are to find it. */
static struct device_seq seq_gpu_plan_of(const struct kvc_seq *s, uint32_t layer)
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
        .faults = (uint32_t *) (uintptr_t) gpu_flag_address(gpu_of(s), x->flag),
    };
}

int seq_gpu_refresh(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;
    int r = seq_gpu_refresh_addresses(s);

    if (r < 0 || !x->plans_stale)
        return r;
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        x->image[i] = seq_gpu_plan_of(s, i);
    r = seq_gpu_tell(s, x->plans.at, x->image, seq_n_layers(s) * sizeof(*x->image));
    x->plans_stale = r < 0;
    return r;
}

/* What stands in leading pages of the pool was looked at before it came there. */
static size_t seq_gpu_n_published_tokens(const struct kvc_seq *s)
{
    size_t n = 0, packed = seq_n_packed(s);

    while (n < packed && page_is_shared(s->pages[n]))
        n++;
    return n * CHUNK_TOKENS;
}

int seq_gpu_lengths_changed(struct kvc_seq *s)
{
    static const uint32_t lowered = 0;
    struct seq_gpu *x = s->gpu;
    size_t length = seq_length(s), published = seq_gpu_n_published_tokens(s);
    int r = 0;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length == s->layers[i].n_packed * CHUNK_TOKENS)
            x->layers[i].first_row = 0;
    x->plans_stale = true;
    if (x->is_faulty && length <= x->n_sound) { /* what was wrong is gone */
        r = seq_gpu_tell(s, gpu_flag_address(gpu_of(s), x->flag), &lowered, sizeof(lowered));
        if (r < 0)
            return r;
        x->is_faulty = false;
    }
    if (!x->is_faulty && length < x->n_sound)
        x->n_sound = length;
    if (!x->is_faulty && published > x->n_sound)
        x->n_sound = published;
    return seq_gpu_refresh(s);
}

/* ---- the tail ---- */

/* What layers hold exactly, to the front of a buffer of @rows rows. */
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

            r = gpu_copy(gpu_of(s), seq_gpu_tail_at(s, to, rows, i, side) + to_row * row_bytes,
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
    r = gpu_alloc(gpu_of(s), bytes, &fresh, seq_gpu_error_of(s));
    if (r == 0 && x->tail.bytes > 0)
        r = seq_gpu_copy_rows(s, &fresh, rows);
    if (r < 0) {
        gpu_free(gpu_of(s), &fresh);
        return r;
    }
    gpu_free(gpu_of(s), &x->tail);
    x->tail = fresh;
    s->tail_rows = rows;
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        x->layers[i].first_row = 0;
    x->plans_stale = true;
    return 0;
}

int seq_gpu_copy(struct kvc_seq *to, const struct kvc_seq *from)
{
    struct seq_gpu *x = to->gpu;
    int r;

    assert(to->tail_rows == from->tail_rows);
    r = gpu_copy(gpu_of(to), x->tail.at, from->gpu->tail.at,
                 2 * seq_n_layers(to) * seq_gpu_tail_bytes_of_side(to, to->tail_rows), seq_gpu_error_of(to));
    if (r == 0) /* what nobody has read yet of the flag is the fork's too */
        r = gpu_copy(gpu_of(to), gpu_flag_address(gpu_of(to), x->flag),
                     gpu_flag_address(gpu_of(to), from->gpu->flag), sizeof(uint32_t), seq_gpu_error_of(to));
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < seq_n_layers(to); i++) {
        to->layers[i].length = from->layers[i].length;
        to->layers[i].n_packed = from->layers[i].n_packed;
        x->layers[i].first_row = from->gpu->layers[i].first_row;
    }
    x->n_sound = from->gpu->n_sound;
    x->plans_stale = true;
    return 0;
}

/* ---- what kernels found wrong ---- */

int seq_gpu_check_sound(struct kvc_seq *s)
{
    if (!s->gpu->is_faulty)
        return 0;
    return fail(seq_gpu_error_of(s), -EINVAL,
                "sequence %" PRIu64
                " of its model: a key or value from token %zu on was NaN, infinite or too "
                "large for binary16, or a graph was launched without kvc_seq_replay(): truncate it to that "
                "or less, or free it",
                s->number, s->gpu->n_sound);
}

int seq_gpu_judge(struct kvc_seq *s)
{
    struct seq_gpu *x = s->gpu;

    if (!x->is_faulty && gpu_flag_is_raised(gpu_of(s), x->flag))
        x->is_faulty = true;
    if (!x->is_faulty)
        x->n_sound = seq_length(s);
    return seq_gpu_check_sound(s);
}
