/* The texts that statistics were made of: a sorted list without duplicates, so that a merge in any order
 * gives the same list. See stats.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_internal.h"
#include "base/errmsg.h"

int stats_source_compare(const struct stats_source *a, const struct stats_source *b)
{
    int r = memcmp(a->digest, b->digest, sizeof(a->digest));

    if (r != 0)
        return r;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    if (a->window != b->window)
        return a->window < b->window ? -1 : 1;

    return a->kind < b->kind ? -1 : a->kind > b->kind;
}

int stats_add_source(struct stats *s, const struct stats_source *source, struct errmsg *e)
{
    struct stats_source *grown;
    size_t at = 0;

    s->has_file_digest = false;
    if (source->kind > SOURCE_MODEL)
        return fail(e, -EINVAL, "text of unknown kind %u", source->kind);

    while (at < s->n_sources && stats_source_compare(&s->sources[at], source) < 0)
        at++;
    if (at < s->n_sources && stats_source_compare(&s->sources[at], source) == 0) {
        s->sources[at].tokens += source->tokens;
        s->sources[at].windows += source->windows;
        return 0;
    }

    if (s->n_sources == STATS_SOURCES_MAX)
        return fail(e, -EINVAL, "statistics of more than %d texts: join some of them into one file",
                    STATS_SOURCES_MAX);

    grown = reallocarray(s->sources, s->n_sources + 1, sizeof(*grown));
    if (!grown)
        return fail(e, -ENOMEM, "out of memory for the list of texts");

    s->sources = grown;
    memmove(grown + at + 1, grown + at, (s->n_sources - at) * sizeof(*grown));
    grown[at] = *source;
    s->n_sources++;
    return 0;
}

size_t stats_sources(const struct stats *s, const struct stats_source **ret_sources)
{
    *ret_sources = s->sources;
    return s->n_sources;
}
