/* See disk_removed.h. */
#include "daemon/tier/disk_removed.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/tier/disk_map.h"

void disk_removed_init(struct disk_removed *q)
{
    *q = (struct disk_removed){.first = NULL};
    (void) pthread_mutex_init(&q->lock, NULL);
}

void disk_removed_deinit(struct disk_removed *q)
{
    for (struct tier_removed *b = q->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    (void) pthread_mutex_destroy(&q->lock);
}

/* Room for @n keys of @tenant. NULL: no memory. */
static struct tier_removed *disk_removed_make(const char *tenant, uint32_t n)
{
    struct tier_removed *b = calloc(1, sizeof(*b) + n * sizeof(b->keys[0]));

    if (b)
        (void) snprintf(b->tenant, sizeof(b->tenant), "%s", tenant);
    return b;
}

/* @b: transferred; NULL: there was no memory for it. */
static void disk_removed_put(struct disk_removed *q, struct tier_removed *b)
{
    (void) pthread_mutex_lock(&q->lock);
    if (!b || b->n > DISK_REMOVED_MAX - q->n_keys) {
        q->is_incomplete = true;
    } else {
        q->n_keys += b->n;
        if (q->last)
            q->last->next = b;
        else
            q->first = b;
        q->last = b;
        b = NULL;
    }
    (void) pthread_mutex_unlock(&q->lock);
    free(b);
}

void disk_removed_note_segment(struct disk_removed *q, const struct disk_segment *s)
{
    struct tier_removed *b;

    if (s->n_present == 0)
        return;

    b = disk_removed_make(s->group->owner->name, s->n_present);
    for (uint32_t i = 0; b && i < s->n_filled; i++)
        if (s->slots[i].state == DISK_SLOT_PRESENT)
            b->keys[b->n++] = s->slots[i].key;
    disk_removed_put(q, b);
}

void disk_removed_note(struct disk_removed *q, const char *tenant, const struct chunk_key *key)
{
    struct tier_removed *b = disk_removed_make(tenant, 1);

    if (b)
        b->keys[b->n++] = *key;
    disk_removed_put(q, b);
}

struct tier_removed *disk_removed_take(struct disk_removed *q, bool *ret_is_incomplete)
{
    struct tier_removed *b;

    (void) pthread_mutex_lock(&q->lock);
    b = q->first;
    if (b) {
        q->n_keys -= b->n;
        q->first = b->next;
        if (!q->first)
            q->last = NULL;
        b->next = NULL;
    }
    *ret_is_incomplete = q->is_incomplete;
    q->is_incomplete = false;
    (void) pthread_mutex_unlock(&q->lock);
    return b;
}
