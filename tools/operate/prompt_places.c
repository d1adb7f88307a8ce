/* See prompt_places.h. */
#include "tools/operate/prompt_places.h"

#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/document.h"

enum { KINDS = OPERATOR_PLACES };

int prompt_places_load(kvc_client *c, const Kvcobra__Prefix *p, const struct document *d, bool with_shared,
                       struct prompt_places *ret)
{
    struct errmsg e = {""};

    if (operator_lookup(c, p, d->tokens, d->n_tokens, with_shared, &ret->reply, &e) < 0)
        return command_fail("%s", e.text);
    ret->n_chunks = ret->reply->n_places / KINDS;
    return COMMAND_OK;
}

void prompt_places_deinit(struct prompt_places *p)
{
    operator_message_freep(&p->reply);
    *p = (struct prompt_places){.reply = NULL};
}

bool prompt_places_is_anywhere(const Kvcobra__ChunkPlace *p)
{
    return p->in_memory || p->on_disk || p->in_cluster;
}

unsigned prompt_places_n_pages(const struct prompt_places *p, size_t chunk)
{
    unsigned n = 0;

    for (size_t k = 0; k < KINDS; k++)
        n += prompt_places_is_anywhere(p->reply->places[chunk * KINDS + k]);
    return n;
}

bool prompt_places_is_shared(const struct prompt_places *p, size_t chunk)
{
    bool is = false;

    for (size_t k = 0; k < KINDS; k++) {
        const Kvcobra__ChunkPlace *x = p->reply->places[chunk * KINDS + k];

        is |= x->is_shared && prompt_places_is_anywhere(x);
    }
    return is;
}

size_t prompt_places_findable(const struct prompt_places *p)
{
    size_t most = 0;

    for (size_t k = 0; k < KINDS; k++) {
        size_t n = 0;

        while (n < p->n_chunks && prompt_places_is_anywhere(p->reply->places[n * KINDS + k]))
            n++;
        most = n > most ? n : most;
    }
    return most * KVC_CHUNK_TOKENS;
}
