/* Allocators and their sentence; see handles.h. */
#include "alloc/api/handles.h"

#include <errno.h>
#include <stdlib.h>

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
