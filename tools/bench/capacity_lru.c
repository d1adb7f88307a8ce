/* See capacity_lru.h. */
#include "tools/bench/capacity_lru.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/cleanup.h"

struct capacity_lru_node { /* in a ring, newest first; previous of other blocks: UINT32_MAX */
    uint32_t next, previous;
};

struct capacity_lru {
    struct capacity_lru_node *nodes; /* [n_distinct + 1]; 0 is the head, block b is b + 1 */
    uint32_t n, capacity;
};

static bool capacity_lru_has(const struct capacity_lru *c, uint32_t block)
{
    return c->nodes[block + 1].previous != UINT32_MAX;
}

static void capacity_lru_unlink(struct capacity_lru *c, uint32_t node)
{
    struct capacity_lru_node *x = &c->nodes[node];

    c->nodes[x->previous].next = x->next;
    c->nodes[x->next].previous = x->previous;
    x->previous = UINT32_MAX;
    c->n--;
}

/* Makes the block the newest; drops the oldest when the cache is full. */
static void capacity_lru_touch(struct capacity_lru *c, uint32_t block)
{
    uint32_t node = block + 1;

    if (capacity_lru_has(c, block))
        capacity_lru_unlink(c, node);
    else if (c->n == c->capacity)
        capacity_lru_unlink(c, c->nodes[0].previous);
    c->nodes[node] = (struct capacity_lru_node){.next = c->nodes[0].next, .previous = 0};
    c->nodes[c->nodes[0].next].previous = node;
    c->nodes[0].next = node;
    c->n++;
}

int capacity_lru_hits(const struct capacity_trace *t, uint32_t capacity, uint64_t *ret)
{
    _cleanup_(freep) struct capacity_lru_node *nodes = calloc((size_t) t->n_distinct + 1, sizeof(*nodes));
    struct capacity_lru c = {.nodes = nodes, .capacity = capacity};
    uint64_t hits = 0;

    if (!nodes)
        return -ENOMEM;

    for (uint32_t i = 1; i <= t->n_distinct; i++)
        nodes[i].previous = UINT32_MAX;
    for (uint32_t i = 0; i < t->n_requests; i++) {
        size_t at = t->first[i];

        while (at < t->first[i + 1] && capacity_lru_has(&c, t->blocks[at]))
            at++;
        hits += at - t->first[i];
        for (size_t j = t->first[i]; capacity > 0 && j < t->first[i + 1]; j++)
            capacity_lru_touch(&c, t->blocks[j]);
    }

    *ret = hits;
    return 0;
}
