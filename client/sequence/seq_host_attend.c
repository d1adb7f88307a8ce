/*
 * Attention of sequences in host memory: a call is cut into pieces of work that threads can take, one KV head
 * and one block of queries or one run of pages each, and the results of runs of pages are merged.
 *
 * A decode step over a long sequence is divided by pages, since a model may have fewer KV heads than the
 * caller has threads; a long piece of prefill is divided by queries, each of which then has all its keys.
 * Pieces do not depend on each other; partial results are merged in a second round.
 *
 * With KVC_SEQ_REPEATABLE the queries are cut at the boundaries of chunks, and a piece reads all chunks
 * before its own from pages. So a query computes the same bits however the text was appended, and if its
 * beginning was matched.
 */
#include <assert.h>
#include <errno.h>

#include "base/checked.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"
#include "gpu/attend.h"

enum {
    SHARE_PAGES_MIN =
        16, /* with fewer pages the fixed cost of a share dominates: mostly K's matrix in whole numbers */
    BLOCK_QUERIES_MIN = 64, /* with fewer queries, decoding all pages once more costs more than it saves */
    PIECES_PER_WORKER = 4,  /* uneven pieces then take about equal time per worker */
    SHARED_ROWS_MAX = 16,   /* query rows up to which a call is a decode step */
};

/* How the item of one sequence is cut, the same way for each head. */
struct seq_host_cut {
    size_t n_pages; /* that are divided into shares */
    size_t n_shares, share_pages;
    size_t n_blocks, first_block, block_queries; /* queries of the first block and of the others */
};

static size_t seq_host_first_position(const struct layer *l, const kvc_attend_item *item)
{
    return l->length - item->n_q;
}

/* Chunks that a query at @position reads from pages: it shares its piece with queries that read as many. */
static size_t seq_host_pages_read(const struct kvc_seq *s, const struct layer *l, size_t position)
{
    return seq_codes_at_once(s) ? position / CHUNK_TOKENS : l->n_packed;
}

/* ---- one piece ---- */

static struct attend_args seq_host_packed_args(const struct seq_attend_call *c,
                                               const struct seq_attend_piece *p,
                                               const struct seq_host_queries *x)
{
    struct kvc_seq *s = p->item->seq;
    const struct layer *l = &s->layers[c->layer];
    size_t first_q = seq_host_first_position(l, p->item) + p->first_q, end_q = first_q + p->n_q;
    size_t n_pages = seq_host_pages_read(s, l, first_q), exact_first = n_pages * CHUNK_TOKENS;
    size_t row = exact_first - l->n_packed * CHUNK_TOKENS;

    return (struct attend_args){
        .layout = &s->table->layout,
        .layer = c->layer,
        .head = p->head,
        .payloads = s->payloads,
        .n_pages = n_pages,
        .n_sink = s->table->table->n_sink,
        .exact_k = l->rows[SIDE_K] + seq_tail_row(s, p->head, row),
        .exact_v = l->rows[SIDE_V] + seq_tail_row(s, p->head, row),
        .exact_stride = s->model->geometry.d,
        .exact_first = exact_first,
        .n_exact = (end_q > exact_first ? end_q : exact_first) - exact_first,
        .q = x->q,
        .q_stride = x->q_stride,
        .q_first = first_q,
        .n_q = p->n_q,
        .out = x->out,
        .out_stride = x->out_stride,
        .scratch = x->scratch,
        .window = c->options.window,
        .exact_rope = c->options.exact_rope,
        .repeatable = seq_codes_at_once(s),
    };
}

size_t seq_host_attend_scratch_bytes(const struct kvc_seq *s, size_t n_q)
{
    return attend_scratch_bytes(&s->table->layout, n_q);
}

size_t seq_host_attended_length(const struct kvc_seq *s, uint32_t layer)
{
    return s->layers[layer].length;
}

void seq_host_attend_piece(const struct seq_attend_call *c, const struct seq_attend_piece *p, void *scratch)
{
    struct seq_host_queries x = seq_host_queries_load(c, p, scratch);
    struct attend_args a = seq_host_packed_args(c, p, &x);

    if (p->n_shares == 1) {
        attend(&a);
        seq_host_queries_store(p, &x);
    } else {
        attend_share(&a, p->first_page, p->end_page, p->end_page == a.n_pages,
                     c->workers->partials + p->partial);
    }
}

static void seq_host_run_piece(void *arg, size_t i, unsigned worker)
{
    struct seq_attend_call *c = arg;
    const struct seq_attend_piece *p = &c->pieces[i];

    p->item->seq->ops->attend_piece(c, p, workers_scratch(c->workers, worker));
}

/* The pieces of one head follow each other; the first of them merges all. */
static void seq_host_merge_piece(void *arg, size_t i, unsigned worker)
{
    struct seq_attend_call *c = arg;
    const struct seq_attend_piece *p = &c->pieces[i];
    struct seq_host_queries x;
    struct attend_args a;

    if (p->n_shares == 1 || p->first_page > 0)
        return;

    x = seq_host_queries_load(c, p, workers_scratch(c->workers, worker));
    a = seq_host_packed_args(c, p, &x);
    attend_merge(&a, c->workers->partials + p->partial, p->n_shares);
    seq_host_queries_store(p, &x);
}

/* ---- cutting ---- */

static size_t seq_host_pieces_of(size_t amount, size_t least, size_t most)
{
    size_t n = amount / least;

    if (n < 1)
        return 1;
    return n < most ? n : most;
}

/* Blocks of queries: at chunk boundaries if attention is repeatable, else @n_blocks of about equal length. */
static void seq_host_cut_queries(struct seq_host_cut *cut, const struct kvc_seq *s, size_t first, size_t n_q,
                                 size_t n_blocks)
{
    assert(n_q > 0); /* items without queries are passed over */
    cut->first_block = cut->block_queries = (n_q + n_blocks - 1) / n_blocks;
    if (seq_codes_at_once(s)) {
        size_t left_in_chunk = CHUNK_TOKENS - first % CHUNK_TOKENS;

        cut->first_block = n_q < left_in_chunk ? n_q : left_in_chunk;
        cut->block_queries = n_q < CHUNK_TOKENS ? n_q : CHUNK_TOKENS;
    }
    cut->n_blocks = 1 + (n_q - cut->first_block + cut->block_queries - 1) / cut->block_queries;
}

static struct seq_host_cut seq_host_cut_of(const struct seq_attend_call *c, const kvc_attend_item *item)
{
    const struct kvc_seq *s = item->seq;
    const struct layer *l = &s->layers[c->layer];
    size_t first = seq_host_first_position(l, item), most = (size_t) c->workers->n * PIECES_PER_WORKER;
    bool few = item->n_q * geometry_group(&s->model->geometry) <= SHARED_ROWS_MAX && s->ops->attends_by_pages;
    struct seq_host_cut cut = {.n_pages = seq_host_pages_read(s, l, first), .n_shares = 1};

    seq_host_cut_queries(&cut, s, first, item->n_q,
                         few || c->workers->n == 1 ? 1
                                                   : seq_host_pieces_of(item->n_q, BLOCK_QUERIES_MIN, most));
    if (c->workers->n > 1 && few && !seq_codes_at_once(s)) /* merging changes the last bits */
        cut.n_shares = seq_host_pieces_of(cut.n_pages, SHARE_PAGES_MIN, most);
    cut.share_pages = (cut.n_pages + cut.n_shares - 1) / cut.n_shares;
    cut.n_shares =
        cut.share_pages == 0 ? 1 : (cut.n_pages + cut.share_pages - 1) / cut.share_pages; /* none is empty */
    return cut;
}

/* Memory that all items need. */
struct seq_attend_need {
    size_t scratch_bytes, n_pieces, n_partials, n_angles;
};

static void seq_host_add_need(const struct seq_attend_call *c, const kvc_attend_item *item,
                              struct seq_attend_need *need)
{
    const struct kvc_seq *s = item->seq;
    const struct seq_host_cut cut = seq_host_cut_of(c, item);
    size_t n_heads = s->model->shard.n_heads;
    size_t scratch =
        s->ops->attend_scratch_bytes(s, cut.block_queries) + seq_host_queries_bytes(item, cut.block_queries);

    need->scratch_bytes = scratch > need->scratch_bytes ? scratch : need->scratch_bytes;
    need->n_pieces += n_heads * cut.n_shares * cut.n_blocks;
    need->n_angles += seq_host_queries_angles(item);
    if (cut.n_shares > 1)
        need->n_partials += n_heads * cut.n_shares * attend_partial_floats(&s->table->layout, item->n_q);
}

/* @partial, @angles: offsets in workers.partials, moved behind what the item needs */
static void seq_host_add_pieces(struct seq_attend_call *c, const kvc_attend_item *item, size_t *partial,
                                size_t *angles)
{
    const struct kvc_seq *s = item->seq;
    const struct seq_host_cut cut = seq_host_cut_of(c, item);
    size_t step = cut.n_shares > 1 ? attend_partial_floats(&s->table->layout, item->n_q) : 0;
    size_t n_angles = seq_host_queries_angles(item);

    for (uint32_t head = 0; head < s->model->shard.n_heads; head++)
        for (size_t i = 0; i < cut.n_shares * cut.n_blocks; i++, *partial += step) {
            size_t share = i / cut.n_blocks, block = i % cut.n_blocks, end = (share + 1) * cut.share_pages;
            size_t first_q = block == 0 ? 0 : cut.first_block + (block - 1) * cut.block_queries;
            size_t left = item->n_q - first_q, most = block == 0 ? cut.first_block : cut.block_queries;

            c->pieces[c->n_pieces++] = (struct seq_attend_piece){
                .item = item,
                .head = head,
                .n_shares = (uint32_t) cut.n_shares,
                .first_q = first_q,
                .n_q = left < most ? left : most,
                .first_page = share * cut.share_pages,
                .end_page = end < cut.n_pages ? end : cut.n_pages,
                .partial = *partial,
                .angles = *angles,
            };
        }

    if (n_angles > 0) /* without any, there may be no memory */
        seq_host_queries_fill_angles(item, c->layer, c->workers->partials + *angles);
    *angles += n_angles;
}

/* ---- the call ---- */

int seq_host_attend(struct kvc_client *client, const kvc_attend_item *items, size_t n, uint32_t layer,
                    const kvc_attend_options *o)
{
    struct seq_attend_call c = {.workers = &client->workers, .layer = layer, .options = *o};
    struct seq_attend_need need = {0};
    size_t items_bytes, partial = 0, angles;

    for (size_t i = 0; i < n; i++) {
        int r = seq_host_queries_check(&items[i], layer, &client->error);

        if (r < 0)
            return r;
    }

    for (size_t i = 0; i < n; i++)
        if (items[i].n_q > 0)
            seq_host_add_need(&c, &items[i], &need);
    if (!checked_mul(need.n_pieces, sizeof(*c.pieces), &items_bytes) ||
        workers_reserve(c.workers, need.scratch_bytes, items_bytes, need.n_partials + need.n_angles) < 0)
        return fail(&client->error, -ENOMEM, "out of memory for attention of %zu sequences", n);

    c.pieces = c.workers->items;
    angles = need.n_partials;
    for (size_t i = 0; i < n; i++)
        if (items[i].n_q > 0) {
            (void) seq_payloads(items[i].seq); /* refreshes the addresses that seq_host_packed_args() reads */
            seq_host_add_pieces(&c, &items[i], &partial, &angles);
        }

    workers_run(c.workers, seq_host_run_piece, &c, c.n_pieces);
    if (need.n_partials > 0)
        workers_run(c.workers, seq_host_merge_piece, &c, c.n_pieces);
    return 0;
}
