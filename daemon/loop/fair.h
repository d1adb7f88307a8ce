/*
 * Fair queues: items of several shares, served in turn by cost. The event loop serves its connections so, and
 * the threads serve requests so (ev.c, work.c).
 *
 * A share is all that one account uses. The next item is the first one of the share that used least. A share
 * that had nothing to do starts again where the least user is, so idle time saves nothing up, and its first
 * item comes before all items of busy shares. Within a share, items come in the order in which they were put.
 *
 * A queue has no lock: its owner serialises the calls.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fair_item { /* embedded by what waits */
    struct fair_item *next, *prev;
    struct fair_share *in; /* NULL: does not wait */
};

struct fair_share { /* embedded by an account; zeroed at first */
    struct fair_item *first, *last;
    uint64_t used;    /* cost of what was served, on a scale that all shares of a queue have in common */
    uint32_t place;   /* in the heap, while it has items */
    uint32_t n_users; /* fair_join() less fair_leave() */
};

struct fair_queue {
    struct fair_share **heap; /* [n] by used, the least first; room for [n_room] */
    uint32_t n, n_room, n_joined;
    uint64_t floor; /* what the share that was served last had used before */
};

void fair_deinit(struct fair_queue *q); /* every share has left */

/*
 * Makes room for @s, which may have items until fair_leave(). Each user of a share joins. Return: 0;
 * -ENOMEM.
 */
int fair_join(struct fair_queue *q, struct fair_share *s);
/* True: @s has no user left and may be freed. The last user leaves after its items are removed. */
bool fair_leave(struct fair_queue *q, struct fair_share *s);

/* Appends @i to the items of @s. */
void fair_put(struct fair_queue *q, struct fair_share *s, struct fair_item *i);
void fair_remove(struct fair_queue *q, struct fair_item *i); /* @i waits */

/* Takes the item to serve next; NULL: none waits. */
struct fair_item *fair_take(struct fair_queue *q);

/* Adds the cost of a served item to what its share used. */
void fair_charge(struct fair_queue *q, struct fair_share *s, uint64_t cost);

static inline bool fair_is_empty(const struct fair_queue *q)
{
    return q->n == 0;
}
