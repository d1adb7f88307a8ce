/* Allocators and their sentence; see alloc_api.h. */
#include "alloc/api/alloc_api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/geometry.h"

const char *kvc_alloc_version(void)
{
    return KVC_VERSION_STRING;
}

int kvc_alloc_new(kvc_alloc **ret_alloc)
{
    kvc_alloc *a;

    if (!ret_alloc)
        return -EINVAL;

    a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;

    *ret_alloc = a;
    return 0;
}

const char *kvc_alloc_error(const kvc_alloc *a)
{
    return a ? a->error.text : "there is no allocator: kvc_alloc_new() creates one";
}

kvc_alloc *kvc_alloc_free(kvc_alloc *a)
{
    if (!a)
        return NULL;

    while (a->stats)
        (void) kvc_stats_free(a->stats);
    while (a->views)
        (void) kvc_table_view_free(a->views);
    free(a);
    return NULL;
}

int alloc_api_read_geometry(const kvc_geometry *from, struct geometry *ret, struct errmsg *e)
{
    struct geometry g;

    if (from->struct_bytes != sizeof(*from))
        return fail(e, -EINVAL, "geometry.struct_bytes is %zu, not sizeof(kvc_geometry)", from->struct_bytes);

    g = (struct geometry){
        .n_layers = from->n_layers,
        .n_heads = from->n_heads,
        .n_kv_heads = from->n_kv_heads,
        .d = from->head_dim,
        .n_rot = from->n_rot,
        .attn_scale = from->attn_scale,
    };

    return geometry_from_caller(&g, from->rope_freq, ret, e);
}
