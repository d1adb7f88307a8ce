/* See seq_form.h. */
#include "client/sequence/seq_form.h"

#include <errno.h>

#include "base/checked.h"
#include "gpu/dtype.h"

_Static_assert(KVC_F32 == (int) DTYPE_F32 && KVC_F16 == (int) DTYPE_F16 && KVC_BF16 == (int) DTYPE_BF16,
               "number types");

/* ---- distances ---- */

struct seq_vectors seq_form_vectors(size_t n_tokens, uint32_t n_heads, uint32_t d, unsigned dtype,
                                    size_t token_stride, size_t head_stride)
{
    return (struct seq_vectors){
        .n_tokens = n_tokens,
        .n_heads = n_heads,
        .d = d,
        .token_stride = token_stride ? token_stride : (size_t) n_heads * d,
        .head_stride = head_stride ? head_stride : d,
        .dtype = dtype,
    };
}

struct seq_vectors seq_form_appended(const kvc_append_item *item, enum side side, enum kvc_dtype dtype)
{
    const struct kvc_model *m = item->seq->model;
    bool k = side == SIDE_K;

    return seq_form_vectors(item->n_new, m->shard.n_heads, m->geometry.d, dtype,
                            k ? item->k_token_stride : item->v_token_stride,
                            k ? item->k_head_stride : item->v_head_stride);
}

bool seq_form_is_contiguous(const struct seq_vectors *v)
{
    return v->token_stride == (size_t) v->n_heads * v->d && v->head_stride == v->d;
}

static void seq_form_sort(struct seq_axis *axes, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && axes[k].stride < axes[k - 1].stride; k--) {
            struct seq_axis higher = axes[k - 1];

            axes[k - 1] = axes[k];
            axes[k] = higher;
        }
}

/* From the smallest distance on: the places of an axis are as far apart as all that lies in one of them. */
bool seq_form_is_disjoint(struct seq_axis *axes, size_t n_axes, size_t number_bytes)
{
    size_t extent = 1, more; /* numbers from the first to the last, both included */

    seq_form_sort(axes, n_axes);
    for (size_t i = 0; i < n_axes; i++) {
        if (axes[i].n <= 1)
            continue;
        if (axes[i].stride < extent || !checked_mul(axes[i].n - 1, axes[i].stride, &more) ||
            !checked_add(extent, more, &extent))
            return false;
    }

    return checked_mul(extent, number_bytes, &extent) && extent <= PTRDIFF_MAX;
}

int seq_form_check(struct errmsg *e, const char *name, const struct seq_vectors *v)
{
    struct seq_axis axes[] = {{v->d, 1}, {v->n_heads, v->head_stride}, {v->n_tokens, v->token_stride}};

    if (seq_form_is_disjoint(axes, 3, dtype_bytes(v->dtype)))
        return 0;

    return fail(
        e, -EINVAL,
        "%s: vectors of %u numbers of %zu tokens and %u heads overlap or exceed the memory of a process "
        "at a token stride of %zu and a head stride of %zu",
        name, v->d, v->n_tokens, v->n_heads, v->token_stride, v->head_stride);
}

/* ---- RoPE and pairs ---- */

int seq_form_prepare(struct kvc_seq *s, size_t first, size_t n)
{
    struct kvc_model *m = s->model;

    if (s->keys != KVC_KEYS_AFTER_ROPE || table_is_exact(s->table->table) ||
        rope_table_cover(&m->scratch.angles, &m->geometry, first, n) == 0)
        return 0;

    return fail(&m->client->error, -ENOMEM, "out of memory for RoPE's angles of %zu positions", n);
}

struct vector_form seq_form_of(const struct kvc_seq *s, enum side side, unsigned dtype, size_t first)
{
    const struct rope_table *angles = &s->model->scratch.angles;
    struct vector_form f = {.geometry = &s->model->geometry, .dtype = dtype};

    if (side == SIDE_V || table_is_exact(s->table->table)) /* exact rows are the caller's */
        return f;

    f.interleaved = s->pairs == KVC_PAIRS_INTERLEAVED;
    if (s->keys == KVC_KEYS_AFTER_ROPE) {
        size_t off = (first - angles->first) * (s->model->geometry.n_rot / 2);

        f.cos = angles->cos + off;
        f.sin = angles->sin + off;
    }
    return f;
}
