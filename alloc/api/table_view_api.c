/* Looking into tables in the public header. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/table/table.h"
#include "alloc/table/table_account.h"
#include "base/options.h"

_Static_assert(KVC_HEAD_BANDS_MAX == TABLE_HALF_TILES_MAX, "bands");

int kvc_table_view_new(kvc_alloc *a, const void *bytes, size_t n_bytes, kvc_table_view **ret_view)
{
    kvc_table_view *v;
    int r;

    if (!a)
        return -EINVAL;
    alloc_api_enter(a);
    if (!bytes || !ret_view)
        return fail(&a->error, -EINVAL, "kvc_table_view_new: bytes or ret_view is NULL");

    v = calloc(1, sizeof(*v));
    if (!v)
        return fail(&a->error, -ENOMEM, "out of memory for a view");

    r = table_parse(bytes, n_bytes, &v->table, &a->error);
    if (r < 0) {
        free(v);
        return r;
    }

    v->alloc = a;
    v->next = a->views;
    a->views = v;
    *ret_view = v;
    return 0;
}

kvc_table_view *kvc_table_view_free(kvc_table_view *v)
{
    if (!v)
        return NULL;

    for (kvc_table_view **at = &v->alloc->views; *at; at = &(*at)->next)
        if (*at == v) {
            *at = v->next;
            break;
        }
    (void) table_unref(v->table);
    free(v);
    return NULL;
}

int kvc_table_view_get_summary(kvc_table_view *v, kvc_table_summary *ret_summary)
{
    kvc_table_summary summary = {.struct_bytes = sizeof(summary)};
    struct table_account account;
    const struct table *t;
    struct errmsg *e;

    if (!v)
        return -EINVAL;

    e = alloc_api_enter(v->alloc);
    if (!ret_summary)
        return fail(e, -EINVAL, "kvc_table_view_get_summary: ret_summary is NULL");

    t = v->table;
    table_account(t, &account);
    memcpy(summary.table_digest, t->digest, sizeof(summary.table_digest));
    memcpy(summary.model_digest, t->model_digest, sizeof(summary.model_digest));
    summary.bpd_code = account.code;
    summary.bpd_nominal = account.nominal;
    summary.k_bpd = account.code_bpd[SIDE_K];
    summary.v_bpd = account.code_bpd[SIDE_V];
    summary.fixed_bytes = account.fixed_bytes;
    summary.n_sink = t->n_sink;
    summary.predict = (uint32_t) t->v_from + 1;
    summary.n_layers = t->geometry.n_layers;
    summary.n_heads = t->geometry.n_heads;
    summary.n_kv_heads = t->geometry.n_kv_heads;
    summary.head_dim = t->geometry.d;
    summary.provenance = t->provenance;
    return options_write(ret_summary, &summary, sizeof(summary), sizeof(summary), "kvc_table_summary", e);
}

int kvc_table_view_get_head(kvc_table_view *v, uint32_t layer, uint32_t head, uint32_t side,
                            kvc_table_head *ret_head)
{
    kvc_table_head x = {.struct_bytes = sizeof(x)};
    const struct geometry *g;
    const struct codec *c;
    struct errmsg *e;

    if (!v)
        return -EINVAL;

    e = alloc_api_enter(v->alloc);
    g = &v->table->geometry;
    if (!ret_head)
        return fail(e, -EINVAL, "kvc_table_view_get_head: ret_head is NULL");
    if (layer >= g->n_layers || head >= g->n_kv_heads || side > KVC_V)
        return fail(e, -EINVAL,
                    "layer %u, KV head %u, side %u: the table has %u layers, %u KV heads, 2 sides", layer,
                    head, side, g->n_layers, g->n_kv_heads);

    c = table_codec(v->table, layer, head, (enum side) side);
    x.code_bits = c->code_bits;
    x.nominal_bits = table_codec_nominal_bits(c, g->d);
    x.rank = table_codec_rank(c, g->d);
    x.n_bands = c->n_half;
    memcpy(x.bits, c->bits, c->n_half);
    return options_write(ret_head, &x, sizeof(x), sizeof(x), "kvc_table_head", e);
}
