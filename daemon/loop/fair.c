/* See fair.h. The heap is the usual one in an array: the parent of place k is place (k - 1) / 2. */
#include "daemon/loop/fair.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { ROOM_MIN = 16 };

void fair_deinit(struct fair_queue *q)
{
    assert(q->n_joined == 0);
    free(q->heap);
    *q = (struct fair_queue){.heap = NULL};
}

int fair_join(struct fair_queue *q, struct fair_share *s)
{
    if (s->n_users == 0 && q->n_joined == q->n_room) {
        uint32_t n = q->n_room ? q->n_room * 2 : ROOM_MIN;
        struct fair_share **heap = realloc(q->heap, n * sizeof(struct fair_share *));

        if (!heap)
            return -ENOMEM;

        q->heap = heap;
        q->n_room = n;
    }

    q->n_joined += s->n_users == 0;
    s->n_users++;
    return 0;
}

bool fair_leave(struct fair_queue *q, struct fair_share *s)
{
    assert(s->n_users > 0);
    if (--s->n_users > 0)
        return false;

    assert(!s->first);
    q->n_joined--;
    return true;
}

/* ---- heap ---- */

static void fair_set(struct fair_queue *q, uint32_t place, struct fair_share *s)
{
    q->heap[place] = s;
    s->place = place;
}

static void fair_sift_up(struct fair_queue *q, struct fair_share *s)
{
    uint32_t k = s->place;

    while (k > 0 && q->heap[(k - 1) / 2]->used > s->used) {
        fair_set(q, k, q->heap[(k - 1) / 2]);
        k = (k - 1) / 2;
    }
    fair_set(q, k, s);
}

static void fair_sift_down(struct fair_queue *q, struct fair_share *s)
{
    uint32_t k = s->place;

    for (;;) {
        uint32_t child = 2 * k + 1;

        if (child + 1 < q->n && q->heap[child + 1]->used < q->heap[child]->used)
            child++;
        if (child >= q->n || q->heap[child]->used >= s->used)
            break;

        fair_set(q, k, q->heap[child]);
        k = child;
    }
    fair_set(q, k, s);
}

static void fair_heap_add(struct fair_queue *q, struct fair_share *s)
{
    assert(q->n < q->n_room);
    /* below every share that waits, all of which used the floor or more: a woken share comes first */
    if (q->floor > 0 && s->used < q->floor - 1)
        s->used = q->floor - 1;
    fair_set(q, q->n++, s);
    fair_sift_up(q, s);
}

static void fair_heap_remove(struct fair_queue *q, struct fair_share *s)
{
    struct fair_share *last = q->heap[--q->n];

    if (last == s)
        return;

    fair_set(q, s->place, last);
    fair_sift_up(q, last);
    fair_sift_down(q, last);
}

/* ---- items ---- */

void fair_put(struct fair_queue *q, struct fair_share *s, struct fair_item *i)
{
    assert(s->n_users > 0 && !i->in);
    *i = (struct fair_item){.prev = s->last, .in = s};
    if (s->last)
        s->last->next = i;
    else
        s->first = i;
    s->last = i;
    if (s->first == i)
        fair_heap_add(q, s);
}

void fair_remove(struct fair_queue *q, struct fair_item *i)
{
    struct fair_share *s = i->in;

    if (i->prev)
        i->prev->next = i->next;
    else
        s->first = i->next;
    if (i->next)
        i->next->prev = i->prev;
    else
        s->last = i->prev;
    *i = (struct fair_item){.in = NULL};
    if (!s->first)
        fair_heap_remove(q, s);
}

struct fair_item *fair_take(struct fair_queue *q)
{
    struct fair_item *i;

    if (q->n == 0)
        return NULL;

    i = q->heap[0]->first;
    if (q->heap[0]->used > q->floor)
        q->floor = q->heap[0]->used;
    fair_remove(q, i);
    return i;
}

void fair_charge(struct fair_queue *q, struct fair_share *s, uint64_t cost)
{
    s->used += cost;
    if (s->first)
        fair_sift_down(q, s);
}
