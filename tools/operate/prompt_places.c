/* See prompt_places.h. */
#include "tools/operate/prompt_places.h"

#include <stdlib.h>

#include "tools/command/document.h"
#include "tools/command/operator.h"

enum { KINDS = 2 }; /* of attention: not repeatable, and repeatable */

int prompt_places_load(kvc_client *c, const kvc_prefix_options *o, const struct document *d,
                       struct prompt_places *ret)
{
    size_t n = 0;

    if (kvc_lookup(c, o, d->tokens, d->n_tokens, sizeof(*ret->list), &ret->list, &n) < 0)
        return operator_fail(c);
    ret->n_chunks = n / KINDS;
    return COMMAND_OK;
}

void prompt_places_deinit(struct prompt_places *p)
{
    free(p->list);
    *p = (struct prompt_places){.list = NULL};
}

bool prompt_places_is_anywhere(const kvc_chunk_place *p)
{
    return p->in_memory || p->on_disk || p->in_cluster;
}

unsigned prompt_places_n_pages(const struct prompt_places *p, size_t chunk)
{
    unsigned n = 0;

    for (size_t k = 0; k < KINDS; k++)
        n += prompt_places_is_anywhere(&p->list[chunk * KINDS + k]);
    return n;
}

bool prompt_places_is_shared(const struct prompt_places *p, size_t chunk)
{
    bool is = false;

    for (size_t k = 0; k < KINDS; k++) {
        const kvc_chunk_place *x = &p->list[chunk * KINDS + k];

        is |= x->is_shared && prompt_places_is_anywhere(x);
    }
    return is;
}

size_t prompt_places_findable(const struct prompt_places *p)
{
    size_t most = 0;

    for (size_t k = 0; k < KINDS; k++) {
        size_t n = 0;

        while (n < p->n_chunks && prompt_places_is_anywhere(&p->list[n * KINDS + k]))
            n++;
        most = n > most ? n : most;
    }
    return most * KVC_CHUNK_TOKENS;
}
