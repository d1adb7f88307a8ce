/* See reuse.h. */
#include "daemon/store/reuse.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEYS = REUSE_KEYS_MAX,
    TIMES = 2 * KEYS,     /* of references; those that no key has are reused when all are given out */
    STEPS = 16,           /* of the histogram per power of two: a distance is known to 6 % */
    BUCKETS = 60 * STEPS, /* up to 2^63 */
};

_Static_assert(KEYS < UINT16_MAX && TIMES < UINT16_MAX, "numbers of keys and times have 16 bits");

struct reuse_key {
    uint64_t hash, weight, seen_ms;
    uint16_t time; /* of its last reference */
    uint16_t next; /* in its chain, or of the free ones: number + 1, 0: the end */
    uint16_t heap; /* its place there */
};

/* Counts of one period. */
struct reuse_counts {
    uint64_t n;                /* references */
    double n_sampled;          /* the same, estimated from those to sampled keys */
    double distances[BUCKETS]; /* estimated references by distance */
};

struct reuse {
    uint64_t threshold; /* hashes below it are sampled; UINT64_MAX: all are */
    uint64_t period_ms, ends_ms;
    struct reuse_counts counts[2]; /* of the period, and of the one before */
    unsigned now;                  /* the index of the former */

    uint32_t n, n_times, oldest; /* keys; times given out; no key has a time before oldest */
    uint32_t n_keys;             /* members of keys that were ever used */
    uint16_t free_keys;          /* of those */
    uint64_t weight;             /* of all sampled keys */
    uint16_t heads[KEYS];        /* of chains by hash: number + 1 */
    uint16_t heap[KEYS];         /* [n] the greatest hash first */
    uint16_t key_at[TIMES];      /* number + 1; 0: no key has this time */
    uint64_t sums[TIMES + 1];    /* of weights by time: a Fenwick tree */
    struct reuse_key keys[KEYS];
};

/* ---- weights by time ---- */

/* Adds @weight, which may be negative in two's complement. */
static void reuse_sums_add(struct reuse *r, unsigned time, uint64_t weight)
{
    for (unsigned i = time + 1; i <= TIMES; i += i & -i)
        r->sums[i] += weight;
}

/* The weight of the keys whose time is at most @time. */
static uint64_t reuse_sums_up_to(const struct reuse *r, unsigned time)
{
    uint64_t sum = 0;

    for (unsigned i = time + 1; i > 0; i -= i & -i)
        sum += r->sums[i];
    return sum;
}

/* Gives the keys the times from 0 on, in their order. */
static void reuse_renumber(struct reuse *r)
{
    uint32_t n = 0;

    memset(r->sums, 0, sizeof(r->sums));
    for (uint32_t time = r->oldest; time < r->n_times; time++) {
        uint16_t number = r->key_at[time];

        if (number == 0)
            continue;
        r->key_at[time] = 0;
        r->key_at[n] = number;
        r->keys[number - 1].time = (uint16_t) n;
        r->sums[n + 1] = r->keys[number - 1].weight;
        n++;
    }

    for (unsigned i = 1; i <= TIMES; i++) /* from weights to sums */
        if (i + (i & -i) <= TIMES)
            r->sums[i + (i & -i)] += r->sums[i];
    r->oldest = 0;
    r->n_times = n;
}

static void reuse_take_time(struct reuse *r, uint32_t number)
{
    struct reuse_key *k = &r->keys[number];

    r->key_at[k->time] = 0;
    reuse_sums_add(r, k->time, -k->weight);
    r->weight -= k->weight;
}

static void reuse_give_time(struct reuse *r, uint32_t number, uint64_t weight, uint64_t now_ms)
{
    struct reuse_key *k = &r->keys[number];

    if (r->n_times == TIMES)
        reuse_renumber(r);
    k->time = (uint16_t) r->n_times++;
    k->weight = weight;
    k->seen_ms = now_ms;
    r->key_at[k->time] = (uint16_t) (number + 1);
    reuse_sums_add(r, k->time, weight);
    r->weight += weight;
}

/* ---- the greatest hash ---- */

static void reuse_heap_set(struct reuse *r, uint32_t at, uint16_t number)
{
    r->heap[at] = number;
    r->keys[number].heap = (uint16_t) at;
}

/* Moves a key from place @at, which is free, to where it belongs. */
static void reuse_heap_place(struct reuse *r, uint32_t at, uint16_t number)
{
    uint64_t hash = r->keys[number].hash;

    while (at > 0 && r->keys[r->heap[(at - 1) / 2]].hash < hash) {
        reuse_heap_set(r, at, r->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (uint32_t child; (child = 2 * at + 1) < r->n; at = child) {
        if (child + 1 < r->n && r->keys[r->heap[child + 1]].hash > r->keys[r->heap[child]].hash)
            child++;
        if (r->keys[r->heap[child]].hash <= hash)
            break;
        reuse_heap_set(r, at, r->heap[child]);
    }
    reuse_heap_set(r, at, number);
}

/* ---- keys ---- */

/* The link to the key, or the last link of its chain. */
static uint16_t *reuse_find_link(struct reuse *r, uint64_t hash)
{
    uint16_t *link = &r->heads[hash % KEYS];

    while (*link != 0 && r->keys[*link - 1].hash != hash)
        link = &r->keys[*link - 1].next;
    return link;
}

static void reuse_drop(struct reuse *r, uint32_t number)
{
    struct reuse_key *k = &r->keys[number];
    uint16_t last = r->heap[r->n - 1];

    *reuse_find_link(r, k->hash) = k->next;
    reuse_take_time(r, number);
    r->n--;
    if (last != number)
        reuse_heap_place(r, k->heap, last);
    k->next = r->free_keys;
    r->free_keys = (uint16_t) (number + 1);
}

/* Keys without a reference for a period leave the sample. */
static void reuse_drop_old(struct reuse *r, uint64_t now_ms)
{
    for (; r->oldest < r->n_times; r->oldest++) {
        uint16_t number = r->key_at[r->oldest];

        if (number != 0 && now_ms - r->keys[number - 1].seen_ms < r->period_ms)
            return;
        if (number != 0)
            reuse_drop(r, number - 1);
    }
}

/* Makes room for a key. Return: whether it belongs to the sample. */
static bool reuse_make_room(struct reuse *r, uint64_t hash)
{
    uint64_t greatest;

    if (r->n < KEYS)
        return true;

    greatest = r->keys[r->heap[0]].hash;
    r->threshold = greatest > hash ? greatest : hash;
    if (greatest > hash)
        reuse_drop(r, r->heap[0]);
    return greatest > hash;
}

static void reuse_add(struct reuse *r, uint64_t hash, uint64_t weight, uint64_t now_ms)
{
    uint32_t number = r->free_keys > 0 ? (uint32_t) r->free_keys - 1 : r->n_keys++;
    struct reuse_key *k = &r->keys[number];
    uint16_t *head = &r->heads[hash % KEYS];

    if (r->free_keys > 0)
        r->free_keys = k->next;
    *k = (struct reuse_key){.hash = hash, .next = *head};
    *head = (uint16_t) (number + 1);
    reuse_give_time(r, number, weight, now_ms);
    r->n++;
    reuse_heap_place(r, r->n - 1, (uint16_t) number);
}

/* Forgets all keys, and samples all again. */
static void reuse_begin_sample(struct reuse *r)
{
    r->threshold = UINT64_MAX;
    r->n = r->n_times = r->oldest = r->n_keys = 0;
    r->free_keys = 0;
    r->weight = 0;
    memset(r->heads, 0, sizeof(r->heads));
    memset(r->key_at, 0, sizeof(r->key_at));
    memset(r->sums, 0, sizeof(r->sums));
}

/* ---- counts ---- */

/* Bucket b has the distances from reuse_bucket_begin(b) to below reuse_bucket_begin(b + 1). */
static unsigned reuse_bucket(double distance)
{
    uint64_t d = distance < 0x1p62 ? (uint64_t) distance : UINT64_C(1) << 62;
    unsigned power;

    if (d < STEPS)
        return (unsigned) d;
    power = 63 - (unsigned) __builtin_clzll(d);
    return (power - 3) * STEPS + (unsigned) (d >> (power - 4)) % STEPS;
}

static double reuse_bucket_begin(unsigned b)
{
    unsigned power = b / STEPS + 3;

    if (b < STEPS)
        return b;
    return (double) ((UINT64_C(1) << power) + ((uint64_t) (b % STEPS) << (power - 4)));
}

/* How many keys one key of the sample stands for. */
static double reuse_scale(const struct reuse *r)
{
    return r->threshold == UINT64_MAX ? 1 : 0x1p64 / (double) r->threshold;
}

void reuse_note(struct reuse *r, uint64_t hash, uint64_t weight, uint64_t now_ms)
{
    struct reuse_counts *c;
    uint16_t number;

    reuse_tick(r, now_ms);
    c = &r->counts[r->now];
    c->n++;
    if (hash >= r->threshold)
        return;

    reuse_drop_old(r, now_ms);
    number = *reuse_find_link(r, hash);
    if (number == 0 && !reuse_make_room(r, hash))
        return;

    c->n_sampled += reuse_scale(r);
    if (number == 0) {
        reuse_add(r, hash, weight, now_ms);
    } else {
        uint64_t since = r->weight - reuse_sums_up_to(r, r->keys[number - 1].time);

        c->distances[reuse_bucket((double) since * reuse_scale(r) + (double) weight)] += reuse_scale(r);
        reuse_take_time(r, number - 1);
        reuse_give_time(r, number - 1, weight, now_ms);
    }
}

void reuse_tick(struct reuse *r, uint64_t now_ms)
{
    uint64_t n_periods;

    if (now_ms < r->ends_ms)
        return;

    n_periods = (now_ms - r->ends_ms) / r->period_ms + 1;
    for (unsigned i = 0; i < 2 && i < n_periods; i++) {
        r->now = 1 - r->now;
        r->counts[r->now] = (struct reuse_counts){.n = 0};
    }
    r->ends_ms += n_periods * r->period_ms;
    reuse_drop_old(r, now_ms);
    if (r->threshold != UINT64_MAX && r->n < KEYS / 4)
        reuse_begin_sample(r);
}

/* ---- results ---- */

uint64_t reuse_references(const struct reuse *r)
{
    return r->counts[0].n + r->counts[1].n;
}

/* Estimated hits of one period, without the correction. Within a bucket they count in proportion. */
static double reuse_counts_hits(const struct reuse_counts *c, double capacity)
{
    double hits = 0;

    for (unsigned b = 0; b < BUCKETS && reuse_bucket_begin(b) <= capacity; b++) {
        double begin = reuse_bucket_begin(b), width, part;

        if (c->distances[b] == 0)
            continue;
        width = reuse_bucket_begin(b + 1) - begin;
        part = (capacity + 1 - begin) / width; /* distances up to the capacity itself are hits */
        hits += c->distances[b] * (part < 1 ? part : 1);
    }
    return hits;
}

/*
 * The sample may have more or less than its share of the keys with many references, and then counts another
 * number of references than there were. Such keys have the smallest distances, so the difference is added to
 * the hits at any capacity (the correction SHARDS-adj of the paper).
 */
double reuse_hits(const struct reuse *r, uint64_t capacity)
{
    double hits = 0, n = (double) reuse_references(r);

    for (unsigned i = 0; i < 2; i++)
        hits += reuse_counts_hits(&r->counts[i], (double) capacity) + (double) r->counts[i].n -
                r->counts[i].n_sampled;
    if (hits < 0 || capacity == 0)
        return 0;
    return hits < n ? hits : n;
}

struct reuse *reuse_new(uint64_t now_ms, uint64_t period_ms)
{
    struct reuse *r = calloc(1, sizeof(*r));

    assert(period_ms > 0);
    if (!r)
        return NULL;

    r->period_ms = period_ms;
    r->ends_ms = now_ms + period_ms;
    r->threshold = UINT64_MAX;
    return r;
}

struct reuse *reuse_free(struct reuse *r)
{
    free(r);
    return NULL;
}
