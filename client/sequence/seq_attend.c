/* Attention: checks arguments, then calls the operations of the sequences (seq_ops.h). */
#include <errno.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_ops.h"
#include "gpu/dtype.h"

/* Distances and number types of queries and outputs. */
static int seq_attend_check_form(const kvc_attend_item *item, struct errmsg *e)
{
    const struct kvc_model *m = item->seq->model;
    const struct seq_vectors q = seq_form_vectors(item->n_q, m->n_q_heads, m->geometry.d, item->dtype,
                                                  item->q_token_stride, item->q_head_stride);
    const struct seq_vectors out = seq_form_vectors(item->n_q, m->n_q_heads, m->geometry.d, item->dtype,
                                                    item->out_token_stride, item->out_head_stride);
    int r;

    if (dtype_bytes(item->dtype) == 0)
        return fail(e, -EINVAL, "kvc_attend_item: unknown number type %u", item->dtype);
    if (item->unused)
        return fail(e, -EINVAL, "kvc_attend_item.unused is %u: it must be 0", item->unused);

    r = seq_form_check(e, "q", &q);
    if (r < 0)
        return r;

    r = seq_form_check(e, "out", &out);
    if (r < 0)
        return r;
    if (!item->seq->ops->takes_forms &&
        (item->dtype != KVC_F32 || !seq_form_is_contiguous(&q) || !seq_form_is_contiguous(&out)))
        return fail(e, -EOPNOTSUPP,
                    "number type %u, or strides: a client on a GPU attends to binary32 without gaps only",
                    item->dtype);

    return 0;
}

/* Whether the sequence has all positions that the first query sees. */
static int seq_attend_check_window(const kvc_attend_item *item, size_t length, uint32_t window)
{
    size_t first = length - item->n_q;

    return seq_check_position(item->seq, window == 0 || first < window ? 0 : first + 1 - window);
}

static int seq_attend_check_item(const struct kvc_client *c, const kvc_attend_item *item, uint32_t layer,
                                 uint32_t window, struct errmsg *e)
{
    size_t length;
    int r;

    if (!item->seq || item->seq->model->client != c)
        return fail(e, -EINVAL, "the sequences of a batch must be of one client");
    if (item->seq->fetch)
        return seq_check_no_fetch(item->seq);
    if (layer >= seq_n_layers(item->seq))
        return fail(e, -EINVAL, "layer %u: the model has %u layers", layer, seq_n_layers(item->seq));

    if (table_is_exact(item->seq->table->table))
        return fail(e, -EOPNOTSUPP,
                    "the sequence has an exact table, whose pages are not attended to: read it into the "
                    "engine's cache with kvc_seq_read_blocks() and attend there, or calibrate a table");

    length = item->seq->ops->attended_length(item->seq, layer);
    if (item->n_q > length)
        return fail(e, -EINVAL, "%zu queries, but layer %u has %zu tokens: append before attending",
                    item->n_q, layer, length);
    if (item->n_q > 0 && seq_codes_at_once(item->seq) &&
        (length - item->n_q) / CHUNK_TOKENS < item->seq->layers[layer].n_packed)
        return fail(e, -EINVAL,
                    "%zu queries reach back to token %zu, whose chunk has codes only: with "
                    "KVC_SEQ_REPEATABLE attend before the next append or commit",
                    item->n_q, length - item->n_q);
    if (item->n_q > 0 && (!item->q || !item->out))
        return fail(e, -EINVAL, "q or out of %zu queries is NULL", item->n_q);

    r = seq_attend_check_form(item, e);
    if (r == 0 && item->n_q > 0)
        r = seq_attend_check_window(item, length, window);
    return r < 0 ? r : seq_check_whole(item->seq);
}

static int seq_attend_items(struct kvc_client *c, const kvc_attend_item *items, size_t n, uint32_t layer,
                            const kvc_attend_options *o)
{
    for (size_t i = 0; i < n; i++) {
        int r = seq_attend_check_item(c, &items[i], layer, o->window, &c->error);

        if (r < 0)
            return r;
    }

    return c->ops->seqs->attend(c, items, n, layer, o);
}

int kvc_seq_attend(kvc_seq *s, uint32_t layer, const float *q, size_t n_q, float *out)
{
    const kvc_attend_item item = {.seq = s, .q = q, .n_q = n_q, .out = out};
    int r = seq_enter(s);

    if (r < 0)
        return r;

    return seq_attend_items(s->model->client, &item, 1, layer, &(kvc_attend_options){0});
}

int kvc_seq_attend_batch(const kvc_attend_item *items, size_t n, uint32_t layer, const kvc_attend_options *o)
{
    _cleanup_(freep) void *copy = NULL;
    kvc_attend_options options = {0};
    struct kvc_client *c;
    int r;

    if (n == 0)
        return 0;
    if (!items ||
        options_check(items->struct_bytes, offsetof(kvc_attend_item, q_token_stride), "", NULL) < 0 ||
        !items->seq)
        return -EINVAL;

    c = items->seq->model->client;
    r = client_enter(c);
    if (r < 0)
        return r;

    r = options_read_items(items, n, sizeof(*items), offsetof(kvc_attend_item, q_token_stride),
                           "kvc_attend_item", &copy, &c->error);
    if (r < 0)
        return r;

    r = o ? options_read(&options, sizeof(options), o, sizeof(options), "kvc_attend_options", &c->error) : 0;
    if (r < 0)
        return r;
    if (options.exact_rope > 1)
        return fail(&c->error, -EINVAL, "kvc_attend_options.exact_rope is %u: 0 or 1", options.exact_rope);

    return seq_attend_items(c, copy ? copy : items, n, layer, &options);
}
