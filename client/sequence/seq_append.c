/*
 * Appending: everything that can fail happens for all sequences of a call before the new rows of any of them
 * count. The operations of a sequence store and pack them (seq_ops.h).
 */
#include <errno.h>

#include "alloc/table/table_exact.h"
#include "base/cleanup.h"
#include "base/options.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"
#include "gpu/dtype.h"

static int seq_append_check_strides(const struct seq_append_call *call, const kvc_append_item *item)
{
    struct errmsg *e = &call->client->error;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        struct seq_vectors v = seq_form_appended(item, (enum side) side, call->dtype);
        int r = seq_form_check(e, side == SIDE_K ? "k" : "v", &v);

        if (r < 0)
            return r;
        if (!item->seq->ops->takes_forms && !seq_form_is_contiguous(&v))
            return fail(
                e, -EOPNOTSUPP,
                "token stride %zu and head stride %zu: a client on a GPU takes rows without gaps only",
                v.token_stride, v.head_stride);
    }
    return 0;
}

static int seq_append_check_item(const struct seq_append_call *call, const kvc_append_item *item)
{
    struct kvc_seq *s = item->seq;
    struct errmsg *e = &call->client->error;
    int r;

    if (!s || s->model->client != call->client)
        return fail(e, -EINVAL, "the sequences of a batch must be of one client");
    if (s->last_append == call->client->n_appends)
        return fail(e, -EINVAL, "a batch may contain a sequence only once");
    if (s->fetch)
        return seq_check_no_fetch(s);

    s->last_append = call->client->n_appends;
    s->n_pages_before = s->n_pages;
    if (call->layer >= seq_n_layers(s))
        return fail(e, -EINVAL, "layer %u: the model has %u layers", call->layer, seq_n_layers(s));
    if (dtype_bytes(call->dtype) == 0)
        return fail(e, -EINVAL, "unknown number type %d", (int) call->dtype);
    if (table_is_exact(s->table->table) && call->dtype != (enum kvc_dtype) exact_dtype(s->table->table))
        return fail(e, -EINVAL, "the exact table of this sequence holds %s, which these vectors are not",
                    exact_type_name(s->table->table->exact.type));
    if (item->n_new > 0 && (!item->k || !item->v))
        return fail(e, -EINVAL, "k or v of %zu new tokens is NULL", item->n_new);
    if (item->n_new > KVC_APPEND_TOKENS_MAX)
        return fail(e, -EINVAL, "%zu tokens in one append, at most %d are allowed", item->n_new,
                    KVC_APPEND_TOKENS_MAX);

    r = seq_append_check_strides(call, item);
    return r < 0 ? r : seq_check_whole(s);
}

/* In a batch of several the sentence names the item that failed. */
static int seq_append_name_item(const struct seq_append_call *call, int r, size_t i)
{
    struct errmsg *e = &call->client->error, why = *e;

    if (call->n == 1)
        return r;

    return fail(e, r, "sequence %zu of the batch: %.*s", i, (int) sizeof(why.text) - 64, why.text);
}

static int seq_append_check(const struct seq_append_call *call)
{
    for (size_t i = 0; i < call->n; i++) {
        int r = seq_append_check_item(call, &call->items[i]);

        if (r < 0)
            return seq_append_name_item(call, r, i);
    }
    return 0;
}

/* A failure leaves every sequence with the pages that it had before. */
static int seq_append_stage(const struct seq_append_call *call)
{
    for (size_t i = 0; i < call->n; i++) {
        const kvc_append_item *item = &call->items[i];
        int r = item->n_new > 0 ? item->seq->ops->append_stage(call, item) : 0;

        if (r < 0) {
            for (size_t k = 0; k <= i; k++)
                seq_drop_pages(call->items[k].seq, call->items[k].seq->n_pages_before);
            return seq_append_name_item(call, r, i);
        }
    }
    return 0;
}

static int seq_append_items(struct kvc_client *c, const kvc_append_item *items, size_t n, uint32_t layer,
                            enum kvc_dtype dtype)
{
    struct seq_append_call call = {.client = c, .items = items, .n = n, .layer = layer, .dtype = dtype};
    const struct seq_ops *ops = c->ops->seqs;
    int r;

    c->n_appends++;
    r = seq_append_check(&call);
    if (r < 0)
        return r;

    r = ops->append_begin(&call);
    if (r < 0)
        return r;

    r = seq_append_stage(&call);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++)
        if (items[i].n_new > 0)
            items[i].seq->ops->append_apply(&call, &items[i]);

    return ops->append_end(&call);
}

int kvc_seq_append(kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const void *k, const void *v,
                   size_t n_new)
{
    const kvc_append_item item = {.struct_bytes = sizeof(item), .seq = s, .k = k, .v = v, .n_new = n_new};
    int r = seq_enter(s);

    if (r < 0)
        return r;

    return seq_append_items(s->model->client, &item, 1, layer, dtype);
}

int kvc_seq_append_batch(const kvc_append_item *items, size_t n, uint32_t layer, enum kvc_dtype dtype)
{
    _cleanup_(freep) void *copy = NULL;
    struct kvc_client *c;
    int r;

    if (n == 0)
        return 0;
    if (!items ||
        options_check(items->struct_bytes, offsetof(kvc_append_item, k_token_stride), "", NULL) < 0 ||
        !items->seq)
        return -EINVAL;

    c = items->seq->model->client;
    r = client_enter(c);
    if (r < 0)
        return r;

    r = options_read_items(items, n, sizeof(*items), offsetof(kvc_append_item, k_token_stride),
                           "kvc_append_item", &copy, &c->error);
    if (r < 0)
        return r;

    return seq_append_items(c, copy ? copy : items, n, layer, dtype);
}
