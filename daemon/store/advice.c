/* See advice.h. */
#include "daemon/store/advice.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/store/reuse.h"

enum {
    CELLS_MAX = 24,
    DAY_MS = 24 * 3600 * 1000,
};

/* A window is the newest cells, the last of which is not over: so up to a cell less than its name says. */
static const struct {
    uint32_t n_cells, cell_ms;
} advice_windows[ADVICE_WINDOWS] = {
    [ADVICE_HOUR] = {6, 600 * 1000},
    [ADVICE_DAY] = {CELLS_MAX, 3600 * 1000},
};

struct advice_cell {
    uint64_t number; /* now_ms / cell_ms while it was filled */
    uint64_t lookups, found;
    struct distinct keys;
};

struct advice {
    struct advice_cell cells[ADVICE_WINDOWS][CELLS_MAX]; /* rings, by number; those of the hour are fewer */
    double bits;                                         /* average of about the last BITS_MEMORY chunks */
    uint64_t n;                                          /* chunks */
    struct reuse *reuse;
};

#define BITS_MEMORY 1024

/* ---- counting ---- */

struct advice *advice_new(uint64_t now_ms)
{
    struct advice *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;

    a->reuse = reuse_new(now_ms, DAY_MS);
    return a->reuse ? a : advice_free(a);
}

struct advice *advice_free(struct advice *a)
{
    if (a)
        a->reuse = reuse_free(a->reuse);
    free(a);
    return NULL;
}

static void advice_count_in_window(struct advice *a, enum advice_window w, uint64_t hash, bool found,
                                   uint64_t now_ms)
{
    uint64_t number = now_ms / advice_windows[w].cell_ms;
    struct advice_cell *c = &a->cells[w][number % advice_windows[w].n_cells];

    if (c->number != number)
        *c = (struct advice_cell){.number = number};
    c->lookups++;
    c->found += found;
    distinct_add(&c->keys, hash);
}

void advice_count(struct advice *a, uint64_t hash, uint64_t numbers, uint64_t bytes, bool found,
                  uint64_t now_ms)
{
    double bits = (double) bytes * 8 / (double) numbers;

    for (unsigned w = 0; w < ADVICE_WINDOWS; w++)
        advice_count_in_window(a, (enum advice_window) w, hash, found, now_ms);
    a->n++;
    a->bits += (bits - a->bits) / (double) (a->n < BITS_MEMORY ? a->n : BITS_MEMORY);
    reuse_note(a->reuse, hash, numbers, now_ms);
}

/* ---- figures ---- */

static void advice_read_window(const struct advice *a, enum advice_window w, uint64_t now_ms,
                               struct advice_figures *ret)
{
    uint64_t newest = now_ms / advice_windows[w].cell_ms;
    struct distinct keys = {{0}};
    double n;

    for (unsigned i = 0; i < advice_windows[w].n_cells; i++) {
        const struct advice_cell *c = &a->cells[w][i];

        if (c->lookups == 0 || c->number + advice_windows[w].n_cells <= newest)
            continue;
        ret->windows[w].lookups += c->lookups;
        ret->windows[w].found += c->found;
        distinct_merge(&keys, &c->keys);
    }

    n = distinct_count(&keys);
    ret->windows[w].distinct =
        n < (double) ret->windows[w].lookups ? (uint64_t) llround(n) : ret->windows[w].lookups;
}

/* Hits of a pool that has room for so many numbers. */
static uint64_t advice_hits(const struct advice *a, double numbers)
{
    return (uint64_t) llround(
        reuse_hits(a->reuse, numbers < 0x1p62 ? (uint64_t) numbers : UINT64_C(1) << 62));
}

void advice_read(struct advice *a, uint64_t capacity_bytes, uint64_t now_ms, struct advice_figures *ret)
{
    static const double factors[ADVICE_N_POOLS] = ADVICE_POOL_FACTORS, bits[ADVICE_N_BITS] = ADVICE_BITS;
    double capacity_bits = (double) capacity_bytes * 8;

    *ret = (struct advice_figures){.lookups = 0};
    if (!a)
        return;

    for (unsigned w = 0; w < ADVICE_WINDOWS; w++)
        advice_read_window(a, (enum advice_window) w, now_ms, ret);
    reuse_tick(a->reuse, now_ms);
    ret->lookups = reuse_references(a->reuse);
    ret->bits = a->bits;
    for (unsigned i = 0; i < ADVICE_N_POOLS; i++)
        ret->pool_hits[i] = advice_hits(a, capacity_bits * factors[i] / a->bits);
    for (unsigned i = 0; i < ADVICE_N_BITS; i++)
        ret->bit_hits[i] = advice_hits(a, capacity_bits / bits[i]);
}

void advice_count_first(struct advice **a, uint64_t hash, uint64_t numbers, uint64_t bytes, bool found,
                        uint64_t now_ms)
{
    if (!*a)
        *a = advice_new(now_ms);
    if (*a)
        advice_count(*a, hash, numbers, bytes, found, now_ms);
}
