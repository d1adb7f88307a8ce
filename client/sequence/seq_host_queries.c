/*
 * Queries and outputs of one piece of attention: used where they lie if they are binary32, before RoPE and
 * half-split with the heads next to each other; else converted in the scratch of a thread. See seq_host.h.
 */
#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_host.h"
#include "gpu/dtype.h"

static struct seq_vectors seq_host_queries_in(const kvc_attend_item *item)
{
    const struct kvc_model *m = item->seq->model;

    return seq_form_vectors(item->n_q, m->n_q_heads, m->geometry.d, item->dtype, item->q_token_stride,
                            item->q_head_stride);
}

static struct seq_vectors seq_host_queries_out(const kvc_attend_item *item)
{
    const struct kvc_model *m = item->seq->model;

    return seq_form_vectors(item->n_q, m->n_q_heads, m->geometry.d, item->dtype, item->out_token_stride,
                            item->out_head_stride);
}

int seq_host_queries_check(const kvc_attend_item *item, uint32_t layer, struct errmsg *e)
{
    struct seq_vectors v = seq_host_queries_in(item);
    bool heads_adjoin = v.head_stride == v.d;
    size_t n_heads = heads_adjoin ? 1 : v.n_heads, n = heads_adjoin ? (size_t) v.n_heads * v.d : v.d;

    for (size_t i = 0; i < item->n_q; i++)
        for (size_t h = 0; h < n_heads; h++) {
            size_t off = (i * v.token_stride + h * v.head_stride) * dtype_bytes(v.dtype);

            if (!dtype_all_finite(v.dtype, (const char *) item->q + off, n))
                return fail(e, -EINVAL,
                            "layer %u, query %zu of %zu is not finite, and its output would not be either",
                            layer, i, item->n_q);
        }
    return 0;
}

static bool seq_host_queries_are_plain(const kvc_attend_item *item)
{
    const struct kvc_seq *s = item->seq;
    size_t d = s->model->geometry.d;

    return item->dtype == KVC_F32 && s->keys == KVC_KEYS_BEFORE_ROPE && s->pairs == KVC_PAIRS_HALF_SPLIT &&
           seq_host_queries_in(item).head_stride == d && seq_host_queries_out(item).head_stride == d;
}

/* Floats of the queries of a KV head, and of their outputs. */
static size_t seq_host_queries_floats(const struct kvc_seq *s, size_t n_q)
{
    return n_q * geometry_group(&s->model->geometry) * s->model->geometry.d;
}

size_t seq_host_queries_bytes(const kvc_attend_item *item, size_t n_q)
{
    if (seq_host_queries_are_plain(item))
        return 0;

    return (2 * seq_host_queries_floats(item->seq, n_q) * sizeof(float) + 63) & ~(size_t) 63;
}

size_t seq_host_queries_angles(const kvc_attend_item *item)
{
    const struct kvc_seq *s = item->seq;

    return s->keys == KVC_KEYS_AFTER_ROPE ? item->n_q * s->model->geometry.n_rot : 0;
}

void seq_host_queries_fill_angles(const kvc_attend_item *item, uint32_t layer, float *angles)
{
    const struct kvc_seq *s = item->seq;
    size_t n_sin = seq_host_queries_angles(item) / 2;

    rope_rows(&s->model->geometry, s->layers[layer].length - item->n_q, item->n_q, angles, angles + n_sin);
}

static struct vector_form seq_host_queries_form(const struct seq_attend_call *c,
                                                const struct seq_attend_piece *p)
{
    const struct kvc_seq *s = p->item->seq;
    struct vector_form f = {.geometry = &s->model->geometry,
                            .dtype = p->item->dtype,
                            .interleaved = s->pairs == KVC_PAIRS_INTERLEAVED};

    if (s->keys == KVC_KEYS_AFTER_ROPE) {
        f.cos = c->workers->partials + p->angles + p->first_q * (s->model->geometry.n_rot / 2);
        f.sin = f.cos + seq_host_queries_angles(p->item) / 2;
    }
    return f;
}

/* Byte offset of the queries or outputs of query head @head of the piece's KV head. */
static size_t seq_host_queries_off(const struct seq_vectors *v, const struct seq_attend_piece *p, size_t head)
{
    size_t first_head = (size_t) p->head * geometry_group(&p->item->seq->model->geometry);

    return (p->first_q * v->token_stride + (first_head + head) * v->head_stride) * dtype_bytes(v->dtype);
}

struct seq_host_queries seq_host_queries_load(const struct seq_attend_call *c,
                                              const struct seq_attend_piece *p, void *scratch)
{
    const struct kvc_seq *s = p->item->seq;
    struct seq_vectors in = seq_host_queries_in(p->item), out = seq_host_queries_out(p->item);
    size_t group = geometry_group(&s->model->geometry), d = in.d;
    const char *q = p->item->q;
    char *to = p->item->out;
    float *rows = scratch;
    struct vector_form form;

    if (seq_host_queries_are_plain(p->item))
        return (struct seq_host_queries){
            .q = (const float *) (const void *) (q + seq_host_queries_off(&in, p, 0)),
            .q_stride = in.token_stride,
            .out = (float *) (void *) (to + seq_host_queries_off(&out, p, 0)),
            .out_stride = out.token_stride,
            .scratch = scratch,
        };

    form = seq_host_queries_form(c, p);
    for (size_t i = 0; i < group; i++)
        vectors_load(&form, q + seq_host_queries_off(&in, p, i), in.token_stride, p->n_q, rows + i * d,
                     group * d);
    return (struct seq_host_queries){
        .q = rows,
        .q_stride = group * d,
        .out = rows + seq_host_queries_floats(s, p->n_q),
        .out_stride = group * d,
        .scratch = (char *) scratch + seq_host_queries_bytes(p->item, p->n_q),
    };
}

void seq_host_queries_store(const struct seq_attend_piece *p, const struct seq_host_queries *x)
{
    const struct kvc_model *m = p->item->seq->model;
    struct seq_vectors out = seq_host_queries_out(p->item);
    struct vector_form form = {.geometry = &m->geometry, .dtype = out.dtype};
    char *to = p->item->out;

    if (seq_host_queries_are_plain(p->item))
        return;

    for (size_t i = 0; i < geometry_group(&m->geometry); i++)
        vectors_store(&form, x->out + i * out.d, x->out_stride, p->n_q, to + seq_host_queries_off(&out, p, i),
                      out.token_stride, 1);
}
