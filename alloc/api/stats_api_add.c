/* Adding windows and gradients to statistics; see kvcobra-alloc.h. */
#include <errno.h>
#include <stdlib.h>

#include "alloc/api/handles.h"
#include "alloc/stats/stats.h"
#include "base/cleanup.h"
#include "base/options.h"

_Static_assert(KVC_SOURCE_REST == (int) SOURCE_REST && KVC_SOURCE_MODEL == (int) SOURCE_MODEL,
               "the same numbers");
_Static_assert(KVC_K == (int) SIDE_K && KVC_V == (int) SIDE_V, "the same numbers");

int kvc_stats_set_output_projection(kvc_stats *s, const kvc_stats_projection *p)
{
    _cleanup_(freep) float *copy = NULL;
    const struct geometry *g;
    kvc_stats_projection x;
    struct errmsg *e;
    int r;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    g = &stats_get_options(s->sums)->geometry;
    if (!p)
        return fail(e, -EINVAL, "kvc_stats_set_output_projection: p is NULL");

    r = options_read(&x, sizeof(x), p, sizeof(x), "kvc_stats_projection", e);
    if (r < 0)
        return r;
    if (!x.wo || x.n_embd == 0 || x.n_embd > STATS_EMBD_MAX)
        return fail(e, -EINVAL, "the output projection of layer %u is NULL, or n_embd %zu is not in 1..%d",
                    x.layer, x.n_embd, STATS_EMBD_MAX);

    r = stats_input_matrix(x.wo, x.dtype, x.n_embd, (size_t) g->n_heads * g->d, x.row_stride, x.column_stride,
                           &copy, e);
    if (r < 0)
        return r;

    return stats_set_output_projection(s->sums, x.layer, copy ? copy : x.wo, (uint32_t) x.n_embd, e);
}

/* The queries, keys or values of a window. */
static struct stats_vectors stats_api_add_vectors(const kvc_stats_layer *x, const void *rows, size_t n_heads,
                                                  size_t token_stride, size_t head_stride)
{
    return (struct stats_vectors){
        .x = rows,
        .dtype = x->dtype,
        .n = x->n,
        .n_heads = n_heads,
        .token_stride = token_stride,
        .head_stride = head_stride,
        .keys = x->keys,
        .pairs = x->pairs,
        .position = x->position,
    };
}

/* Pointers to what stats_add_layer() takes. */
struct stats_api_add_rows {
    const float *q, *k, *v, *residual;
};

static int stats_api_add_convert(kvc_stats *s, const kvc_stats_layer *x, struct stats_api_add_rows *ret,
                                 struct errmsg *e)
{
    const struct geometry *g = &stats_get_options(s->sums)->geometry;
    struct stats_vectors k =
        stats_api_add_vectors(x, x->k, g->n_kv_heads, x->k_token_stride, x->k_head_stride);
    struct stats_vectors v =
        stats_api_add_vectors(x, x->v, g->n_kv_heads, x->v_token_stride, x->v_head_stride);
    int r = 0;

    v.keys = KVC_KEYS_BEFORE_ROPE; /* RoPE does not apply to values */
    v.pairs = KVC_PAIRS_HALF_SPLIT;
    if (x->q) {
        struct stats_vectors q =
            stats_api_add_vectors(x, x->q, g->n_heads, x->q_token_stride, x->q_head_stride);

        r = stats_input_vectors(&s->input, g, &q, INPUT_QUERIES, "queries", &ret->q, e);
    }

    if (r == 0)
        r = stats_input_vectors(&s->input, g, &k, INPUT_KEYS, "keys", &ret->k, e);
    if (r == 0)
        r = stats_input_vectors(&s->input, g, &v, INPUT_VALUES, "values", &ret->v, e);
    if (r == 0 && x->residual)
        r = stats_input_mean_squares(&s->input, x->residual, x->dtype, x->n, x->n_embd,
                                     x->residual_token_stride, &ret->residual, e);
    return r;
}

int kvc_stats_add_layer(kvc_stats *s, const kvc_stats_layer *x)
{
    struct stats_api_add_rows rows = {NULL};
    kvc_stats_layer layer;
    struct errmsg *e;
    int r;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!x)
        return fail(e, -EINVAL, "kvc_stats_add_layer: x is NULL");

    r = options_read(&layer, sizeof(layer), x, sizeof(layer), "kvc_stats_layer", e);
    if (r < 0)
        return r;
    if (!layer.k || !layer.v)
        return fail(e, -EINVAL, "the keys or the values of layer %u are NULL", layer.layer);

    r = stats_api_add_convert(s, &layer, &rows, e);
    if (r < 0)
        return r;

    return stats_add_layer(s->sums, layer.document, layer.position, layer.layer, layer.n, rows.q, rows.k,
                           rows.v, rows.residual, e);
}

int kvc_stats_begin_source(kvc_stats *s, uint32_t kind, const uint8_t *digest)
{
    static const uint8_t none[KVC_DIGEST_BYTES];
    struct errmsg *e;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!digest && kind != KVC_SOURCE_REST)
        return fail(e, -EINVAL, "kvc_stats_begin_source: digest is NULL");
    if (stats_is_moments(s->sums))
        return fail(e, -EINVAL, "statistics made of moments have no sources");

    return stats_begin_source(s->sums, kind, digest ? digest : none, e);
}

int kvc_stats_add_gradients(kvc_stats *s, const kvc_stats_gradients *x)
{
    const struct stats_options *o;
    struct stats_vectors vectors;
    kvc_stats_gradients from;
    const float *rows;
    struct errmsg *e;
    size_t n_first;
    int r;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!x)
        return fail(e, -EINVAL, "kvc_stats_add_gradients: x is NULL");

    r = options_read(&from, sizeof(from), x, sizeof(from), "kvc_stats_gradients", e);
    if (r < 0)
        return r;
    if (!from.g || from.side > KVC_V || from.unused != 0)
        return fail(e, -EINVAL, "the gradients of layer %u are NULL, side %u is none, or unused is not 0",
                    from.layer, from.side);

    if (stats_is_moments(s->sums))
        return fail(e, -EINVAL, "statistics made of moments take no gradients");

    o = stats_get_options(s->sums);
    vectors = (struct stats_vectors){
        .x = from.g,
        .dtype = from.dtype,
        .n = from.n,
        .n_heads = o->geometry.n_kv_heads,
        .token_stride = from.token_stride,
        .head_stride = from.head_stride,
        .keys = from.side == KVC_K ? from.keys : KVC_KEYS_BEFORE_ROPE,
        .pairs = from.side == KVC_K ? from.pairs : KVC_PAIRS_HALF_SPLIT,
        .position = from.position,
    };
    /* with k' = R(m) k, the gradient by k is R(m)' times the gradient by k': rotated back like a key */
    r = stats_input_vectors(&s->input, &o->geometry, &vectors, INPUT_KEYS, "gradients", &rows, e);
    if (r < 0)
        return r;

    n_first = from.position == 0 ? o->n_sink : 0;
    if (n_first > from.n)
        n_first = from.n;
    return stats_add_fisher(s->sums, from.layer, (enum side) from.side, from.n - n_first,
                            rows + n_first * o->geometry.n_kv_heads * o->geometry.d, e);
}
