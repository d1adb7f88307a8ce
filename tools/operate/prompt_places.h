/*
 * Where the pages of a prompt's chunks are, for the commands flush and lookup: what operator_lookup() says,
 * by chunk. A chunk has two pages at most, one of them for repeatable attention.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tools/command/operator_prefix.h"

struct document;

struct prompt_places {
    Kvcobra__LookupReply *reply; /* [2 * n_chunks] places */
    size_t n_chunks;
};

/* Return: an exit code; COMMAND_FAILED with a sentence. */
int prompt_places_load(kvc_client *c, const Kvcobra__Prefix *p, const struct document *d, bool with_shared,
                       struct prompt_places *ret);
void prompt_places_deinit(struct prompt_places *p);

bool prompt_places_is_anywhere(const Kvcobra__ChunkPlace *p);

/* Pages of a chunk that are anywhere, 0 to 2; and whether one of these is shared. */
unsigned prompt_places_n_pages(const struct prompt_places *p, size_t chunk);
bool prompt_places_is_shared(const struct prompt_places *p, size_t chunk);

/* How many tokens a client finds, of the kind of attention that finds more. */
size_t prompt_places_findable(const struct prompt_places *p);
