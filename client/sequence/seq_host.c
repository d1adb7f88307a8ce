/*
 * Sequences in host memory: new tokens are stored in the tail, and old chunks are packed from the
 * tail into pages. See seq_host.h.
 *
 * One token is converted, checked and stored without a system call and without allocating.
 */
#include "client/sequence/seq_host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"
#include "client/sequence/usage.h"

void seq_host_deinit(struct kvc_seq *s)
{
    for (uint32_t i = 0; s->layers && i < seq_n_layers(s); i++) {
        free(s->layers[i].rows[SIDE_K]);
        free(s->layers[i].rows[SIDE_V]);
    }
}

/* ---- packing ---- */

/* From now on the first @n_chunks of the layer are in pages only. */
static void seq_host_drop_rows(struct kvc_seq *s, uint32_t layer, size_t n_chunks)
{
    struct layer *l = &s->layers[layer];
    uint32_t n_heads = s->model->shard.n_heads;
    size_t dropped = (n_chunks - l->n_packed) * CHUNK_TOKENS, left = seq_tail_n_rows(l) - dropped;
    size_t width = seq_tail_width(s);

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = 0; h < n_heads; h++) {
            uint16_t *rows = l->rows[side] + seq_tail_row(s, h, 0);

            memmove(rows, rows + dropped * width, left * width * sizeof(*rows));
        }
    l->n_packed = n_chunks;
    l->n_ahead = 0;
}

int seq_host_pack(struct kvc_seq *s, uint32_t layer, size_t n_chunks)
{
    const struct layer *l = &s->layers[layer];

    if (n_chunks <= l->n_packed)
        return 0;
    if (!seq_codes_at_once(s))
        seq_host_encode(s, layer, l->n_packed + l->n_ahead, n_chunks);
    seq_host_drop_rows(s, layer, n_chunks);
    return 0;
}

/* ---- encoding ahead ---- */

/*
 * If all layers encoded a chunk in the step in which it is due, this step would take half again to three
 * times as long as others. So steps of few tokens encode a full chunk ahead, a part of the layers in each of
 * the 16 steps before it is due; its rows stay in the tail until then, so that no result depends on it.
 */
enum { AHEAD_TOKENS = 16 };

/* Whether the append that brings a layer to @length encodes its next chunk ahead. */
static bool seq_host_encodes_ahead(const struct kvc_seq *s, uint32_t layer, size_t length, size_t n_new)
{
    const struct layer *l = &s->layers[layer];
    size_t full = (l->n_packed + 1) * CHUNK_TOKENS; /* length at which the chunk was full */
    size_t first = CHUNK_TOKENS - AHEAD_TOKENS + layer * (size_t) AHEAD_TOKENS / seq_n_layers(s);

    return n_new <= AHEAD_TOKENS && l->n_ahead == 0 && length >= full + first &&
           !(s->flags & (KVC_SEQ_PUBLISH_ALL | KVC_SEQ_REPEATABLE));
}

/* ---- appending ---- */

static int seq_host_append_stage(const struct seq_append_call *call, const kvc_append_item *item)
{
    struct kvc_seq *s = item->seq;
    const struct layer *l = &s->layers[call->layer];
    const struct seq_vectors k = seq_form_appended(item, SIDE_K, call->dtype),
                             v = seq_form_appended(item, SIDE_V, call->dtype);
    size_t rows = seq_tail_n_rows(l) + item->n_new, n_pages;
    int r;

    if (seq_grow_tail(s, rows) < 0)
        return fail(&call->client->error, -ENOMEM, "out of memory for a tail of %zu tokens", rows);

    r = seq_form_prepare(s, l->length, item->n_new);
    if (r < 0)
        return r;

    r = seq_tail_store(s, call->layer, SIDE_K, 0, item->k, &k);
    if (r < 0)
        return r;

    r = seq_tail_store(s, call->layer, SIDE_V, 0, item->v, &v);
    if (r < 0)
        return r;

    /* pages of chunks that this append, the next one or a commit encodes */
    n_pages = seq_n_pages_needed(s, l->length + item->n_new);
    r = n_pages > s->n_pages ? seq_claim(s, n_pages) : 0;
    if (r == 0 && l->n_packed == s->n_pages &&
        seq_host_encodes_ahead(s, call->layer, l->length + item->n_new, item->n_new) &&
        seq_claim(s, s->n_pages + 1) < 0)
        errmsg_clear(&call->client->error); /* without a page yet, it is encoded when it is due */
    return r;
}

void seq_host_append_apply(struct seq_append_call *call, const kvc_append_item *item)
{
    struct layer *l = &item->seq->layers[call->layer];
    size_t n_full = l->length / CHUNK_TOKENS, due = seq_chunks_due_before_append(item->seq, l->length);

    l->length += item->n_new; /* packing moves all rows behind the chunk, the new ones included */
    if (seq_codes_at_once(item->seq))
        seq_host_encode(item->seq, call->layer, n_full, l->length / CHUNK_TOKENS);
    (void) seq_host_pack(item->seq, call->layer, due);
    if (l->n_packed < item->seq->n_pages &&
        seq_host_encodes_ahead(item->seq, call->layer, l->length, item->n_new)) {
        seq_host_encode(item->seq, call->layer, l->n_packed, l->n_packed + 1);
        l->n_ahead = 1;
    }
}

const struct seq_ops seq_host_ops = {
    .uses_arena = true,
    .is_shareable = true,
    .takes_forms = true,
    .flags = KVC_SEQ_PUBLISH_ALL | KVC_SEQ_REPEATABLE | KVC_SEQ_COUNTED,
    .init = seq_ops_nothing,
    .deinit = seq_host_deinit,
    .copy = seq_tail_copy,
    .check_sound = seq_ops_check_nothing,
    .check_idle = seq_ops_check_nothing,
    .append_begin = seq_ops_append_nothing,
    .append_stage = seq_host_append_stage,
    .append_apply = seq_host_append_apply,
    .append_end = seq_ops_append_nothing,
    .pack = seq_host_pack,
    .resize_tail = seq_tail_resize,
    .pages_dropped = seq_ops_drop_nothing,
    .refresh = seq_ops_nothing,
    .lengths_changed = seq_ops_nothing,
    .truncate = seq_truncate_pages,
    .attended_length = seq_host_attended_length,
    .attend = seq_host_attend,
    .read = seq_host_read,
    .read_blocks = seq_host_read_blocks,
    .read_chunk = seq_host_read_chunk,
    .read_rows = seq_host_read_rows,
    .count_usage = usage_count_pages,
    .attends_by_pages = true,
    .attend_scratch_bytes = seq_host_attend_scratch_bytes,
    .attend_piece = seq_host_attend_piece,
};
