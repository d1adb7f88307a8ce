/* The reservoir of sampled tokens; see stats_sample.h. */
#include "alloc/stats_sample.h"

#include <errno.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats_internal.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* A token that competes for a slot. */
struct candidate {
    struct sample_id id;
    size_t from; /* its slot if held, else its row */
    bool held;   /* has a slot already */
};

static void stats_sample_put_le64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t) (v >> 8 * i);
}

uint64_t stats_token_hash(uint64_t seed, uint64_t document, uint64_t position)
{
    uint8_t key[crypto_shorthash_KEYBYTES] = {0}, in[16], out[crypto_shorthash_BYTES];
    uint64_t hash = 0;

    stats_sample_put_le64(key, seed);
    stats_sample_put_le64(in, document);
    stats_sample_put_le64(in + 8, position);
    (void) crypto_shorthash(out, in, sizeof(in), key);
    for (int i = 0; i < 8; i++)
        hash |= (uint64_t) out[i] << 8 * i;
    return hash;
}

static int stats_sample_compare_candidates(const void *a, const void *b)
{
    return sample_id_compare(&((const struct candidate *) a)->id, &((const struct candidate *) b)->id);
}

int stats_grow_slots(struct stats *s, size_t n_slots)
{
    size_t d = s->o.geometry.d, n_hs = head_side_count(&s->o.geometry), floats;
    _cleanup_(freep) float *samples = NULL;
    void *grown;

    if (n_slots <= s->n_slots)
        return 0;
    if (!checked_mul3(n_hs, n_slots, d, &floats))
        return -ENOMEM;

    grown = reallocarray(s->ids, n_slots, sizeof(*s->ids));
    if (!grown)
        return -ENOMEM;

    s->ids = grown;
    grown = reallocarray(s->window.picks, n_slots, sizeof(*s->window.picks));
    if (!grown)
        return -ENOMEM;

    s->window.picks = grown;
    samples = calloc(floats, sizeof(*samples));
    if (!samples)
        return -ENOMEM;

    for (size_t hs = 0; hs < n_hs && s->n_held > 0; hs++)
        memcpy(samples + hs * n_slots * d, s->samples + hs * s->n_slots * d,
               s->n_held * d * sizeof(*samples));
    free(s->samples);
    s->samples = take_ptr(samples);
    s->n_slots = n_slots;
    return 0;
}

/*
 * Sorts the candidates, keeps as many as there are slots, and gives the new ones among them slots that are
 * free or whose token was dropped. @ret_picks [n_samples]: rows and slots of the new ones.
 */
static int stats_sample_assign_slots(struct stats *s, struct candidate *c, size_t n,
                                     struct sample_pick *ret_picks, size_t *ret_n_picks, struct errmsg *e)
{
    size_t n_kept = n < s->o.n_samples ? n : s->o.n_samples, n_picks = 0, slot = 0;
    _cleanup_(freep) bool *taken = calloc(s->o.n_samples, sizeof(*taken));

    if (!taken || stats_grow_slots(s, n_kept) < 0)
        return fail(e, -ENOMEM, "out of memory for sampled tokens");

    qsort(c, n, sizeof(*c), stats_sample_compare_candidates);
    for (size_t i = 1; i < n; i++)
        if (sample_id_compare(&c[i - 1].id, &c[i].id) == 0)
            return fail(e, -EINVAL, "the token at position %llu of document %llu was added before",
                        (unsigned long long) c[i].id.position, (unsigned long long) c[i].id.document);
    for (size_t i = 0; i < n_kept; i++)
        if (c[i].held)
            taken[c[i].from] = true;
    for (size_t i = 0; i < n_kept; i++) {
        if (c[i].held)
            continue;
        while (taken[slot])
            slot++;
        s->ids[slot] = c[i].id;
        ret_picks[n_picks++] = (struct sample_pick){.row = c[i].from, .slot = slot++};
    }

    s->n_held = n_kept;
    *ret_n_picks = n_picks;
    return 0;
}

static size_t stats_sample_list_held(const struct stats *s, struct candidate *ret)
{
    for (size_t i = 0; i < s->n_held; i++)
        ret[i] = (struct candidate){.id = s->ids[i], .from = i, .held = true};
    return s->n_held;
}

int stats_sample_draw(struct stats *s, struct errmsg *e)
{
    struct window *w = &s->window;
    _cleanup_(freep) struct candidate *c = calloc(s->n_held + w->n, sizeof(*c));
    size_t n;

    if (!c)
        return fail(e, -ENOMEM, "out of memory for sampled tokens");

    n = stats_sample_list_held(s, c);
    for (size_t row = w->n_first; row < w->n; row++) {
        uint64_t position = w->position + row;

        c[n++] = (struct candidate){
            .id = {stats_token_hash(s->o.seed, w->document, position), w->document, position},
            .from = row,
        };
    }

    /* also moves w->picks, which is read only after this */
    if (stats_grow_slots(s, n < s->o.n_samples ? n : s->o.n_samples) < 0)
        return fail(e, -ENOMEM, "out of memory for sampled tokens");

    return stats_sample_assign_slots(s, c, n, w->picks, &w->n_picks, e);
}

void stats_sample_copy(struct stats *s, uint32_t layer, const float *const x[2])
{
    const struct geometry *g = &s->o.geometry;
    const struct window *w = &s->window;
    size_t d = g->d;

    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            float *to = stats_sample_rows(s, head_side_index(g, layer, h, (enum side) side));

            for (size_t i = 0; i < w->n_picks; i++)
                memcpy(to + w->picks[i].slot * d, x[side] + (w->picks[i].row * g->n_kv_heads + h) * d,
                       d * sizeof(*to));
        }
}

int stats_sample_merge(struct stats *s, const struct stats *other, struct errmsg *e)
{
    size_t d = s->o.geometry.d, n, n_picks;
    _cleanup_(freep) struct candidate *c = calloc(s->n_held + other->n_held + 1, sizeof(*c));
    _cleanup_(freep) struct sample_pick *picks = calloc(s->o.n_samples, sizeof(*picks));
    int r;

    if (!c || !picks)
        return fail(e, -ENOMEM, "out of memory for sampled tokens");

    n = stats_sample_list_held(s, c);
    for (size_t i = 0; i < other->n_held; i++)
        c[n++] = (struct candidate){.id = other->ids[i], .from = i};
    r = stats_sample_assign_slots(s, c, n, picks, &n_picks, e);
    if (r < 0)
        return r;

    for (uint32_t hs = 0; hs < head_side_count(&s->o.geometry); hs++)
        for (size_t i = 0; i < n_picks; i++)
            memcpy(stats_sample_rows(s, hs) + picks[i].slot * d,
                   stats_sample_rows(other, hs) + picks[i].row * d, d * sizeof(float));
    return 0;
}

int stats_sort_samples(struct stats *s)
{
    size_t d = s->o.geometry.d, n_hs = head_side_count(&s->o.geometry);
    _cleanup_(freep) size_t *slots = malloc((s->n_held + 1) * sizeof(*slots));
    _cleanup_(freep) struct sample_id *ids = malloc((s->n_held + 1) * sizeof(*ids));
    _cleanup_(freep) float *rows = malloc((s->n_held * d + 1) * sizeof(*rows));

    if (!slots || !ids || !rows)
        return -ENOMEM;

    stats_sorted_slots(s, slots);
    for (size_t i = 0; i < s->n_held; i++)
        ids[i] = s->ids[slots[i]];
    memcpy(s->ids, ids, s->n_held * sizeof(*ids));
    for (uint32_t hs = 0; hs < n_hs; hs++) {
        for (size_t i = 0; i < s->n_held; i++)
            memcpy(rows + i * d, stats_sample_rows(s, hs) + slots[i] * d, d * sizeof(*rows));
        memcpy(stats_sample_rows(s, hs), rows, s->n_held * d * sizeof(*rows));
    }

    return 0;
}

static int stats_sample_compare_slots(const void *a, const void *b, void *ids)
{
    const struct sample_id *id = ids;

    return sample_id_compare(&id[*(const size_t *) a], &id[*(const size_t *) b]);
}

void stats_sorted_slots(const struct stats *s, size_t *ret_slots)
{
    for (size_t i = 0; i < s->n_held; i++)
        ret_slots[i] = i;
    qsort_r(ret_slots, s->n_held, sizeof(*ret_slots), stats_sample_compare_slots, s->ids);
}
