/*
 * Attention of sequences on their packed pages and exact tails: cut into pieces of work that threads can
 * take, one KV head, one block of queries or one run of pages each, and merged.
 *
 * A decode step over a long sequence is divided by pages, since a model may have fewer KV heads than the
 * caller has threads; a long piece of prefill is divided by queries, each of which then has all its keys.
 * Pieces do not depend on each other; only results of shares are merged, in a second round.
 */
#include <errno.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/connection/options.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"
#include "gpu/attend.h"

enum {
    SHARE_PAGES_MIN =
        16, /* fewer are not worth a share's fixed cost, K's matrix in whole numbers above all */
    BLOCK_QUERIES_MIN = 64, /* fewer do not pay for decoding all pages once more */
    PIECES_PER_WORKER = 4,  /* so that uneven pieces even out */
    SHARED_ROWS_MAX = 16,   /* query rows up to which a call is a decode step */
};

/* One piece, and the result that it is a share of. */
struct seq_attend_piece {
    const kvc_attend_item *item;
    uint32_t head;
    uint32_t n_shares; /* of this head; 1: the result is complete */
    size_t first_q, n_q;
    size_t first_page, end_page;
    size_t partial; /* its place in workers.partials */
};

/* How one sequence's call is cut, the same for each head. */
struct seq_attend_cut {
    size_t n_shares, share_pages;
    size_t n_blocks, block_queries;
};

struct call {
    struct workers *workers;
    struct seq_attend_piece *pieces;
    size_t n_pieces;
    uint32_t layer;
    kvc_attend_options options;
};

/* ---- one piece ---- */

static struct attend_args seq_attend_packed_args(const struct call *c, const struct seq_attend_piece *p,
                                                 void *scratch)
{
    struct kvc_seq *s = p->item->seq;
    const struct kvc_model *m = s->model;
    const struct layer *l = &s->layers[c->layer];
    uint32_t d = m->geometry.d, group = geometry_group(&m->geometry);
    size_t packed = l->n_packed * CHUNK_TOKENS, stride = (size_t) m->n_q_heads * d;
    size_t off = p->first_q * stride + (size_t) p->head * group * d;

    return (struct attend_args){
        .layout = &s->table->layout,
        .layer = c->layer,
        .head = p->head,
        .payloads = s->payloads,
        .n_pages = l->n_packed,
        .n_sink = s->table->table->n_sink,
        .exact_k = l->rows[SIDE_K] + seq_row(s, p->head, 0),
        .exact_v = l->rows[SIDE_V] + seq_row(s, p->head, 0),
        .exact_stride = d,
        .exact_first = packed,
        .n_exact = l->length - packed,
        .q = p->item->q + off,
        .q_stride = stride,
        .q_first = l->length - p->item->n_q + p->first_q,
        .n_q = p->n_q,
        .out = p->item->out + off,
        .out_stride = stride,
        .scratch = scratch,
        .window = c->options.window,
        .exact_rope = c->options.exact_rope,
    };
}

static void seq_attend_run_piece(void *arg, size_t i, unsigned worker)
{
    struct call *c = arg;
    const struct seq_attend_piece *p = &c->pieces[i];
    void *scratch = workers_scratch(c->workers, worker);
    struct attend_args a;

    if (p->item->seq->eval) {
        eval_attend(p->item->seq, c->layer, p->head,
                    &(struct eval_queries){
                        .q = p->item->q,
                        .out = p->item->out,
                        .n_q = p->item->n_q,
                        .first = p->first_q,
                        .n = p->n_q,
                        .window = c->options.window,
                    },
                    scratch);
        return;
    }
    a = seq_attend_packed_args(c, p, scratch);
    if (p->n_shares == 1)
        attend(&a);
    else
        attend_share(&a, p->first_page, p->end_page, p->end_page == a.n_pages,
                     c->workers->partials + p->partial);
}

/* Pieces of one head follow each other; the first of them merges all. */
static void seq_attend_merge_piece(void *arg, size_t i, unsigned worker)
{
    struct call *c = arg;
    const struct seq_attend_piece *p = &c->pieces[i];
    struct attend_args a;

    if (p->n_shares == 1 || p->first_page > 0)
        return;
    a = seq_attend_packed_args(c, p, workers_scratch(c->workers, worker));
    attend_merge(&a, c->workers->partials + p->partial, p->n_shares);
}

/* ---- cutting ---- */

static size_t seq_attend_pieces_of(size_t amount, size_t least, size_t most)
{
    size_t n = amount / least;

    return n < 1 ? 1 : n > most ? most : n;
}

static struct seq_attend_cut seq_attend_cut_of(const struct call *c, const kvc_attend_item *item)
{
    const struct kvc_seq *s = item->seq;
    size_t n_pages = s->layers[c->layer].n_packed, most = (size_t) c->workers->n * PIECES_PER_WORKER;
    struct seq_attend_cut cut = {.n_shares = 1, .n_blocks = 1};

    if (c->workers->n > 1 && !s->eval && item->n_q * geometry_group(&s->model->geometry) <= SHARED_ROWS_MAX)
        cut.n_shares = seq_attend_pieces_of(n_pages, SHARE_PAGES_MIN, most);
    else if (c->workers->n > 1)
        cut.n_blocks = seq_attend_pieces_of(item->n_q, BLOCK_QUERIES_MIN, most);
    cut.share_pages = (n_pages + cut.n_shares - 1) / cut.n_shares;
    cut.n_shares =
        cut.share_pages == 0 ? 1 : (n_pages + cut.share_pages - 1) / cut.share_pages; /* none is empty */
    cut.block_queries = (item->n_q + cut.n_blocks - 1) / cut.n_blocks;
    cut.n_blocks = (item->n_q + cut.block_queries - 1) / cut.block_queries;
    return cut;
}

/* What all items need. */
struct need {
    size_t scratch_bytes, n_pieces, n_partials;
};

static void seq_attend_add_need(const struct call *c, const kvc_attend_item *item, struct need *need)
{
    const struct kvc_seq *s = item->seq;
    const struct seq_attend_cut cut = seq_attend_cut_of(c, item);
    size_t n_heads = s->model->shard.n_heads;
    size_t scratch = s->eval ? eval_scratch_bytes(s, cut.block_queries)
                             : attend_scratch_bytes(&s->table->layout, cut.block_queries);

    need->scratch_bytes = scratch > need->scratch_bytes ? scratch : need->scratch_bytes;
    need->n_pieces += n_heads * cut.n_shares * cut.n_blocks;
    if (cut.n_shares > 1)
        need->n_partials += n_heads * cut.n_shares * attend_partial_floats(&s->table->layout, item->n_q);
}

static void seq_attend_add_pieces(struct call *c, const kvc_attend_item *item, size_t *partial)
{
    const struct kvc_seq *s = item->seq;
    const struct seq_attend_cut cut = seq_attend_cut_of(c, item);
    size_t n_pages = s->layers[c->layer].n_packed;
    size_t step = cut.n_shares > 1 ? attend_partial_floats(&s->table->layout, item->n_q) : 0;

    for (uint32_t head = 0; head < s->model->shard.n_heads; head++)
        for (size_t i = 0; i < cut.n_shares * cut.n_blocks; i++, *partial += step) {
            size_t share = i / cut.n_blocks, block = i % cut.n_blocks, first_q = block * cut.block_queries;
            size_t left = item->n_q - first_q, end = (share + 1) * cut.share_pages;

            c->pieces[c->n_pieces++] = (struct seq_attend_piece){
                .item = item,
                .head = head,
                .n_shares = (uint32_t) cut.n_shares,
                .first_q = first_q,
                .n_q = left < cut.block_queries ? left : cut.block_queries,
                .first_page = share * cut.share_pages,
                .end_page = end < n_pages ? end : n_pages,
                .partial = *partial,
            };
        }
}

/* ---- the calls ---- */

static int seq_attend_check_item(const kvc_attend_item *item, uint32_t layer, const struct kvc_client *c,
                                 struct errmsg *e)
{
    size_t length;

    if (!item->seq || item->seq->model->client != c)
        return fail(e, -EINVAL, "a batch is of sequences of one client");
    if (layer >= seq_n_layers(item->seq))
        return fail(e, -EINVAL, "layer %u: the model has %u", layer, seq_n_layers(item->seq));
    length =
        item->seq->layers[layer].length + (item->seq->gpu ? item->seq->gpu->layers[layer].n_captured : 0);
    if (item->n_q > length)
        return fail(e, -EINVAL, "%zu queries, but layer %u has %zu tokens: append before attending",
                    item->n_q, layer, length);
    if (item->n_q > 0 && (!item->q || !item->out))
        return fail(e, -EINVAL, "q or out of %zu queries is NULL", item->n_q);
    return seq_check_whole(item->seq);
}

static int attend_items(struct kvc_client *client, const kvc_attend_item *items, size_t n, uint32_t layer,
                        const kvc_attend_options *o)
{
    struct call c = {.workers = &client->workers, .layer = layer, .options = *o};
    struct need need = {0};
    size_t items_bytes, partial = 0;

    for (size_t i = 0; i < n; i++) {
        int r = seq_attend_check_item(&items[i], layer, client, &client->error);

        if (r < 0)
            return r;
        if (items[i].n_q > 0 && !client->gpu)
            seq_attend_add_need(&c, &items[i], &need);
    }
    if (client->gpu)
        return seq_gpu_attend(client, items, n, layer, o);
    if (!checked_mul(need.n_pieces, sizeof(*c.pieces), &items_bytes) ||
        workers_reserve(c.workers, need.scratch_bytes, items_bytes, need.n_partials) < 0)
        return fail(&client->error, -ENOMEM, "out of memory for attention of %zu sequences", n);
    c.pieces = c.workers->items;
    for (size_t i = 0; i < n; i++)
        if (items[i].n_q > 0) {
            (void) seq_payloads(items[i].seq); /* refreshes what seq_attend_packed_args() reads */
            seq_attend_add_pieces(&c, &items[i], &partial);
        }
    workers_run(c.workers, seq_attend_run_piece, &c, c.n_pieces);
    if (need.n_partials > 0)
        workers_run(c.workers, seq_attend_merge_piece, &c, c.n_pieces);
    return 0;
}

int kvc_seq_attend(kvc_seq *s, uint32_t layer, const float *q, size_t n_q, float *out)
{
    const kvc_attend_item item = {.seq = s, .q = q, .n_q = n_q, .out = out};
    int r = seq_enter(s);

    return r < 0 ? r : attend_items(s->model->client, &item, 1, layer, &(kvc_attend_options){0});
}

int kvc_seq_attend_batch(const kvc_attend_item *items, size_t n, uint32_t layer, const kvc_attend_options *o)
{
    _cleanup_(freep) void *copy = NULL;
    kvc_attend_options options = {0};
    struct kvc_client *c;
    int r;

    if (n == 0)
        return 0;
    if (!items || options_check(items->struct_bytes, sizeof(*items), "", NULL) < 0 || !items->seq)
        return -EINVAL;

    c = items->seq->model->client;
    r = client_enter(c);
    if (r < 0)
        return r;

    r = options_read_items(items, n, sizeof(*items), sizeof(*items), "kvc_attend_item", &copy, &c->error);
    if (r < 0)
        return r;

    if (o) {
        r = options_read(&options, sizeof(options), o, sizeof(options), "kvc_attend_options", &c->error);
        if (r < 0)
            return r;
    }
    if (options.exact_rope > 1)
        return fail(&c->error, -EINVAL, "kvc_attend_options.exact_rope is %u: 0 or 1", options.exact_rope);

    return attend_items(c, copy ? copy : items, n, layer, &options);
}
