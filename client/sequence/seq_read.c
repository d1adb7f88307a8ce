/* Reading a sequence back: checks arguments, then calls the operations of the sequence (seq_ops.h). */
#include <errno.h>

#include "base/checked.h"
#include "base/options.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_ops.h"
#include "gpu/dtype.h"

static int seq_read_check_positions(const struct kvc_seq *s, uint32_t layer, size_t first, size_t n)
{
    size_t length = s->layers[layer].length;

    if (first <= length && n <= length - first)
        return n > 0 ? seq_check_position(s, first) : 0;

    return fail(&s->model->client->error, -EINVAL, "%zu positions from %zu on: layer %u has %zu tokens", n,
                first, layer, length);
}

int kvc_seq_read(kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out)
{
    int r = seq_enter(s);
    struct errmsg *e;

    if (r < 0)
        return r;

    e = &s->model->client->error;
    if (layer >= seq_n_layers(s) || (side != KVC_K && side != KVC_V))
        return fail(e, -EINVAL, "layer %u, side %d: the model has %u layers, sides are KVC_K and KVC_V",
                    layer, (int) side, seq_n_layers(s));

    r = seq_read_check_positions(s, layer, first, n);
    if (r < 0 || n == 0)
        return r;
    if (!out)
        return fail(e, -EINVAL, "kvc_seq_read: out is NULL");

    r = seq_check_whole(s);
    if (r < 0)
        return r;

    return s->ops->read(s, layer, side, first, n, out);
}

/* ---- an engine's cache ---- */

/* Sets the distances that are 0 to those of blocks without gaps. */
static void seq_read_set_distances(struct seq_read_call *c, const kvc_blocks *to)
{
    const struct kvc_model *m = c->seq->model;
    size_t row = (size_t) m->shard.n_heads * m->geometry.d;

    c->dim_stride = to->dim_stride ? to->dim_stride : 1;
    c->head_stride = to->head_stride ? to->head_stride : m->geometry.d;
    c->token_stride = to->token_stride ? to->token_stride : row;
    c->block_tokens = to->block_tokens ? to->block_tokens : SIZE_MAX;
    c->block_stride = to->block_stride;
    if (c->block_stride == 0 && !checked_mul(c->block_tokens, row, &c->block_stride))
        c->block_stride = SIZE_MAX; /* one block only, or seq_read_check_distances() refuses it */
}

/* The number of blocks up to the last one that the call writes to, in *ret. */
static int seq_read_count_blocks(const struct seq_read_call *c, struct errmsg *e, size_t *ret)
{
    size_t end = c->first + c->n, n = 1;

    if (!c->blocks) {
        *ret = (c->n - 1) / c->block_tokens + 1;
        return 0;
    }

    for (size_t i = c->first / c->block_tokens; i <= (end - 1) / c->block_tokens; i++) {
        if (c->blocks[i] < 0)
            return fail(e, -EINVAL, "kvc_blocks.blocks[%zu], of positions from %zu on, is %lld", i,
                        i * c->block_tokens, (long long) c->blocks[i]);
        if ((size_t) c->blocks[i] >= n)
            n = (size_t) c->blocks[i] + 1;
    }
    *ret = n;
    return 0;
}

static int seq_read_check_distances(const struct seq_read_call *c, struct errmsg *e)
{
    const struct kvc_model *m = c->seq->model;
    size_t n_blocks = 0, n_tokens = !c->blocks && c->n < c->block_tokens ? c->n : c->block_tokens;
    int r = seq_read_count_blocks(c, e, &n_blocks);
    struct seq_axis axes[] = {{m->geometry.d, c->dim_stride},
                              {m->shard.n_heads, c->head_stride},
                              {n_tokens, c->token_stride},
                              {n_blocks, c->block_stride}};

    if (r < 0)
        return r;
    if (!seq_form_is_disjoint(axes, 4, dtype_bytes(c->dtype)))
        return fail(
            e, -EINVAL,
            "kvc_blocks: %zu blocks of %zu tokens overlap or exceed the memory of a process at strides of "
            "%zu (dim), %zu (token), %zu (head) and %zu (block)",
            n_blocks, n_tokens, c->dim_stride, c->token_stride, c->head_stride, c->block_stride);
    return 0;
}

static int seq_read_check_blocks(const struct kvc_seq *s, const kvc_blocks *to, struct errmsg *e)
{
    size_t bytes = dtype_bytes(to->dtype);

    if (bytes == 0)
        return fail(e, -EINVAL, "kvc_blocks: unknown number type %u", to->dtype);
    if (to->unused)
        return fail(e, -EINVAL, "kvc_blocks.unused is %u: it must be 0", to->unused);
    if (!to->bases)
        return fail(e, -EINVAL, "kvc_blocks.bases is NULL: it has an address by layer and side");
    if (to->blocks && to->block_tokens == 0)
        return fail(e, -EINVAL, "kvc_blocks.block_tokens is 0, but kvc_blocks.blocks names blocks");

    for (uint32_t i = 0; i < 2 * seq_n_layers(s); i++)
        if ((uintptr_t) to->bases[i] % bytes != 0)
            return fail(e, -EINVAL, "kvc_blocks.bases[%u] is not aligned to numbers of %zu bytes", i, bytes);
    return 0;
}

/* Return: 1: the call stores something; 0: nothing; -EINVAL with a sentence: a layer lacks positions. */
static int seq_read_check_layers(const struct seq_read_call *c)
{
    int any = 0;

    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!c->bases[2 * i + KVC_K] && !c->bases[2 * i + KVC_V])
            continue;
        if (seq_read_check_positions(c->seq, i, c->first, c->n) < 0)
            return -EINVAL;
        any = c->n > 0;
    }
    return any;
}

static int seq_read_to_blocks(struct kvc_seq *s, size_t first, size_t n, const kvc_blocks *to,
                              struct errmsg *e)
{
    struct seq_read_call call = {.seq = s, .first = first, .n = n, .n_layers = seq_n_layers(s)};
    int r = seq_read_check_blocks(s, to, e);

    if (r < 0)
        return r;

    call.bases = to->bases;
    call.blocks = to->blocks;
    call.dtype = (enum kvc_dtype) to->dtype;
    seq_read_set_distances(&call, to);
    r = seq_read_check_layers(&call);
    if (r <= 0)
        return r;

    r = seq_read_check_distances(&call, e);
    if (r < 0)
        return r;

    r = seq_check_whole(s);
    if (r < 0)
        return r;

    return s->ops->read_blocks(&call);
}

int kvc_seq_read_blocks(kvc_seq *s, size_t first, size_t n, const kvc_blocks *to)
{
    kvc_blocks local;
    int r = seq_enter(s);
    struct errmsg *e;

    if (r < 0)
        return r;

    e = &s->model->client->error;
    if (!s->ops->read_blocks)
        return fail(e, -EOPNOTSUPP, "this client is on a GPU: read its sequences with kvc_seq_read()");
    if (!to)
        return fail(e, -EINVAL, "kvc_seq_read_blocks: the blocks are NULL");

    r = options_read(&local, sizeof(local), to, sizeof(local), "kvc_blocks", e);
    if (r < 0)
        return r;

    return seq_read_to_blocks(s, first, n, &local, e);
}
