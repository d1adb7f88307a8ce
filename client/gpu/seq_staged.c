/* A staged sequence's memory on the GPU, and its pages on their way to the host. See seq_staged.h. */
#include "client/gpu/seq_staged.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/checked.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "client/gpu/gpu_table.h"
#include "client/publishing/publish.h"
#include "client/sequence/seq.h"

enum { RING_PAGES_MIN = 2 }; /* one may be on its way out while another is on its way in */

static struct gpu *seq_staged_gpu_of(const struct kvc_seq *s)
{
    return s->model->client->gpu;
}

static struct errmsg *seq_staged_error_of(const struct kvc_seq *s)
{
    return &s->model->client->error;
}

/* ---- creating and freeing ---- */

static int seq_staged_check_ring(const struct kvc_seq *s)
{
    size_t bytes = seq_staged_gpu_of(s)->ring->places.bytes,
           needed = RING_PAGES_MIN * s->table->layout.slot_bytes[PAGE_FIRST];

    if (needed <= bytes)
        return 0;

    return fail(seq_staged_error_of(s), -EINVAL,
                "kvc_gpu_options.ring_bytes is %zu: two pages of this table need %zu", bytes, needed);
}

int seq_staged_init(struct kvc_seq *s)
{
    struct gpu *g = seq_staged_gpu_of(s);
    struct errmsg *e = seq_staged_error_of(s);
    cu_ptr unused;
    int r;

    s->staged = calloc(1, sizeof(*s->staged));
    if (!s->staged)
        return fail(e, -ENOMEM, "out of memory for a sequence");

    r = seq_staged_check_ring(s);
    if (r == 0)
        r = gpu_check_not_capturing(g, e);
    if (r == 0)
        r = gpu_table(s->model->client, s->table, &unused); /* fails now if a kernel computes wrongly */
    return r < 0 ? r : seq_sound_init(g, &s->staged->sound, e);
}

void seq_staged_deinit(struct kvc_seq *s)
{
    struct gpu *g = seq_staged_gpu_of(s);

    if (!s->staged)
        return;
    seq_sound_deinit(g, &s->staged->sound);
    gpu_free(g, &s->staged->tail); /* only work of the caller's stream uses it */
    free(s->staged);
    s->staged = NULL;
}

/* ---- checks ---- */

int seq_staged_check_sound(const struct kvc_seq *s)
{
    return seq_sound_check(s, &s->staged->sound);
}

int seq_staged_check_idle(const struct kvc_seq *s)
{
    return gpu_check_not_capturing(seq_staged_gpu_of(s), seq_staged_error_of(s));
}

int seq_staged_lengths_changed(struct kvc_seq *s)
{
    return seq_sound_lengths_changed(s, &s->staged->sound);
}

uint32_t seq_staged_form(const struct kvc_seq *s)
{
    return (s->keys == KVC_KEYS_AFTER_ROPE ? (uint32_t) LAUNCH_AFTER_ROPE : 0) |
           (s->pairs == KVC_PAIRS_INTERLEAVED ? (uint32_t) LAUNCH_INTERLEAVED : 0);
}

/* ---- the tail ---- */

static size_t seq_staged_side_bytes(const struct kvc_seq *s)
{
    return (size_t) s->model->shard.n_heads * s->tail_rows * s->model->geometry.d * sizeof(uint16_t);
}

struct launch_row_buffer seq_staged_tail(const struct kvc_seq *s, uint32_t layer)
{
    size_t bytes = seq_staged_side_bytes(s);
    cu_ptr at = s->staged->tail.at + 2 * (size_t) layer * bytes;

    return (struct launch_row_buffer){
        .rows = {(uint16_t *) (uintptr_t) at, (uint16_t *) (uintptr_t) (at + bytes)},
        .n_rows = (uint32_t) s->tail_rows};
}

/* Called once: no append makes the tail longer. */
int seq_staged_resize_tail(struct kvc_seq *s, size_t rows)
{
    size_t bytes;

    assert(s->tail_rows == 0 || s->tail_rows == rows);
    if (!checked_mul3(2 * (size_t) seq_n_layers(s) * s->model->shard.n_heads, rows,
                      s->model->geometry.d * sizeof(uint16_t), &bytes))
        return fail(seq_staged_error_of(s), -ENOMEM, "no GPU has memory for a tail of %zu tokens", rows);
    if (s->tail_rows == 0) {
        int r = gpu_alloc(seq_staged_gpu_of(s), bytes, &s->staged->tail, seq_staged_error_of(s));

        if (r < 0)
            return r;
    }

    s->tail_rows = rows;
    return 0;
}

/* Pages are shared when their bytes are in host memory. */
int seq_staged_copy(struct kvc_seq *to, const struct kvc_seq *from)
{
    struct gpu *g = seq_staged_gpu_of(to);
    struct errmsg *e = seq_staged_error_of(to);
    int r;

    assert(to->tail_rows == from->tail_rows);
    r = seq_staged_finish((struct kvc_seq *) (uintptr_t) from);
    if (r == 0)
        r = gpu_copy(g, to->staged->tail.at, from->staged->tail.at,
                     2 * seq_n_layers(to) * seq_staged_side_bytes(to), e);
    if (r == 0)
        r = seq_sound_copy(g, &to->staged->sound, &from->staged->sound, e);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < seq_n_layers(to); i++) {
        to->layers[i].length = from->layers[i].length;
        to->layers[i].n_packed = from->layers[i].n_packed;
    }

    to->staged->n_sent = from->staged->n_sent;
    return 0;
}

/* ---- pages ---- */

void seq_staged_pages_dropped(struct kvc_seq *s, size_t n)
{
    for (size_t i = n; i < s->n_pages; i++)
        gpu_ring_unstage(seq_staged_gpu_of(s), s->pages[i]);
    if (s->staged && s->staged->n_sent > n)
        s->staged->n_sent = n;
}

static int seq_staged_send_packed(struct kvc_seq *s, bool may_wait)
{
    struct seq_staged *x = s->staged;
    size_t n = seq_n_packed(s);
    int r = 0;

    for (; r == 0 && x->n_sent < n; x->n_sent += r == 0)
        if (s->pages[x->n_sent]->staging && !gpu_ring_is_sent(s->pages[x->n_sent]))
            r = gpu_ring_send(seq_staged_gpu_of(s), s->pages[x->n_sent], may_wait, seq_staged_error_of(s));
    return r;
}

/* If the ring is full, what has arrived is taken out of it once: more would be a commit's work. */
int seq_staged_send(struct kvc_seq *s)
{
    int r = seq_staged_send_packed(s, false);

    if (r == -EAGAIN) {
        r = gpu_ring_collect(seq_staged_gpu_of(s), seq_staged_error_of(s));
        if (r == 0)
            r = seq_staged_send_packed(s, false);
    }
    return r == -EAGAIN ? 0 : r;
}

int seq_staged_finish(struct kvc_seq *s)
{
    int r = seq_staged_send_packed(s, true);

    for (size_t i = seq_n_packed(s); r == 0 && i-- > 0;)
        while (r == 0 && s->pages[i]->staging) {
            assert(gpu_ring_is_sent(s->pages[i]));
            r = gpu_ring_wait(seq_staged_gpu_of(s), seq_staged_error_of(s));
        }
    return r;
}

/* Faults are found before anything is published: the flag is read behind all kernels that store rows. */
int seq_staged_publish(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n)
{
    int r = gpu_flags_read(seq_staged_gpu_of(s), seq_staged_error_of(s));

    *ret_n = 0;
    if (r == 0)
        r = seq_sound_update(s, &s->staged->sound);
    if (r == 0)
        r = seq_staged_finish(s);
    return r < 0 ? r : publish_arena(s, first, n, until_ms, ret_n);
}
