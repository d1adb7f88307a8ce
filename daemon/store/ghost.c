/* See ghost.h. */
#include "daemon/store/ghost.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Half a key is enough: a wrong match gives a wrong reason once in 2^64. Keys are hashes. */
struct ghost {
    uint64_t tag;
    uint32_t next;   /* in its chain: ring entry + 1, 0 = end */
    uint32_t reason; /* GHOST_NONE: entry not in use */
};

static uint64_t ghost_tag_of(const struct chunk_key *key)
{
    uint64_t tag;

    memcpy(&tag, key->bytes, sizeof(tag)); /* the other half has the mark of the parent, which is no hash */
    return tag;
}

int ghosts_init(struct ghosts *g, uint32_t n_max)
{
    uint32_t n_heads = 16;

    while (n_heads < n_max)
        n_heads *= 2;
    *g = (struct ghosts){.n_max = n_max, .n_heads = n_heads};
    g->ring = calloc(n_max, sizeof(struct ghost));
    g->heads = calloc(n_heads, sizeof(uint32_t));
    if (!g->ring || !g->heads) {
        ghosts_deinit(g);
        return -ENOMEM;
    }

    return 0;
}

void ghosts_deinit(struct ghosts *g)
{
    free(g->ring);
    free(g->heads);
    *g = (struct ghosts){0};
}

/* The link to the entry with @tag, or the last link of its chain. */
static uint32_t *ghost_find_link(const struct ghosts *g, uint64_t tag)
{
    uint32_t *link = &g->heads[tag & (g->n_heads - 1)];

    while (*link != 0 && g->ring[*link - 1].tag != tag)
        link = &g->ring[*link - 1].next;
    return link;
}

static void ghost_unlink_tag(struct ghosts *g, uint64_t tag)
{
    uint32_t *link = ghost_find_link(g, tag);

    if (*link != 0) {
        struct ghost *x = &g->ring[*link - 1];

        *link = x->next;
        x->reason = GHOST_NONE;
    }
}

void ghosts_add(struct ghosts *g, const struct chunk_key *key, enum ghost_reason reason)
{
    uint64_t tag = ghost_tag_of(key);
    uint32_t at = g->next, *head;

    ghost_unlink_tag(g, tag);
    if (g->ring[at].reason != GHOST_NONE)
        ghost_unlink_tag(g, g->ring[at].tag);
    head = &g->heads[tag & (g->n_heads - 1)];
    g->ring[at] = (struct ghost){.tag = tag, .next = *head, .reason = reason};
    *head = at + 1;
    g->next = (at + 1) % g->n_max;
}

enum ghost_reason ghosts_find(const struct ghosts *g, const struct chunk_key *key)
{
    uint32_t at = *ghost_find_link(g, ghost_tag_of(key));

    return at == 0 ? GHOST_NONE : (enum ghost_reason) g->ring[at - 1].reason;
}

bool ghosts_was_evicted(const struct ghosts *g, const struct chunk_key *key, uint64_t n)
{
    uint32_t at = *ghost_find_link(g, ghost_tag_of(key));

    /* the entry before g->next is the newest */
    return at != 0 && g->ring[at - 1].reason == GHOST_EVICTED && (g->next + g->n_max - at) % g->n_max < n;
}

void ghosts_remove(struct ghosts *g, const struct chunk_key *key)
{
    ghost_unlink_tag(g, ghost_tag_of(key));
}
