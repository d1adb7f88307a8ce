/* The reservoir of sampled tokens; see stats_sample.h. */
#include "alloc/stats/stats_sample.h"

#include <errno.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_internal.h"
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
    size_t d = s->o.geometry.d, n_hs = head_side_count(&s->o.geometry), numbers;
    _cleanup_(freep) uint16_t *samples = NULL;
    void *grown;

    if (n_slots <= s->n_slots)
        return 0;
    if (!checked_mul3(n_hs, n_slots, d, &numbers))
        return -ENOMEM;

    grown = reallocarray(s->ids, n_slots, sizeof(*s->ids));
    if (!grown)
        return -ENOMEM;

    s->ids = grown;
    grown = reallocarray(s->domain_of, n_slots, sizeof(*s->domain_of));
    if (!grown)
        return -ENOMEM;

    s->domain_of = grown;
    grown = reallocarray(s->window.picks, n_slots, sizeof(*s->window.picks));
    if (!grown)
        return -ENOMEM;

    s->window.picks = grown;
    samples = calloc(numbers, sizeof(*samples));
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
        ret_picks[n_picks++] = (struct sample_pick){.row = c[i].from, .slot = slot};
        slot++;
    }

    s->n_held = n_kept;
    *ret_n_picks = n_picks;
    return 0;
}

static int stats_sample_compare_tokens(const void *a, const void *b)
{
    const struct sample_id *x = a, *y = b;

    if (x->document != y->document)
        return x->document < y->document ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

int stats_sample_check(const struct stats *s, const struct stats *other, struct errmsg *e)
{
    size_t n = s->n_held + other->n_held;
    _cleanup_(freep) struct sample_id *ids = malloc((n + 1) * sizeof(*ids));

    if (!ids)
        return fail(e, -ENOMEM, "out of memory for sampled tokens");

    memcpy(ids, s->ids, s->n_held * sizeof(*ids));
    memcpy(ids + s->n_held, other->ids, other->n_held * sizeof(*ids));
    qsort(ids, n, sizeof(*ids), stats_sample_compare_tokens);
    for (size_t i = 1; i < n; i++)
        if (stats_sample_compare_tokens(&ids[i - 1], &ids[i]) == 0)
            return fail(e, -EINVAL, "the token at position %llu of document %llu was added before",
                        (unsigned long long) ids[i].position, (unsigned long long) ids[i].document);
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
    size_t d = g->d, stride = g->n_kv_heads * d;

    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            uint32_t hs = head_side_index(g, layer, h, (enum side) side);
            const float *rows = x[side] + h * d;

            if (!s->has_offset)
                sample_code_set_offset(s, hs, rows + w->n_first * stride, w->n - w->n_first, stride);
            for (size_t i = 0; i < w->n_picks; i++)
                sample_code_put(s, hs, w->picks[i].slot, rows + w->picks[i].row * stride);
        }
}

int stats_sample_merge(struct stats *s, const struct stats *other, const uint32_t *map, struct errmsg *e)
{
    size_t n_hs = head_side_count(&s->o.geometry), d = s->o.geometry.d, n, n_picks;
    _cleanup_(freep) struct candidate *c = calloc(s->n_held + other->n_held + 1, sizeof(*c));
    _cleanup_(freep) struct sample_pick *picks = calloc(s->o.n_samples, sizeof(*picks));
    float row[GEOMETRY_DIM_MAX];
    int r;

    if (!c || !picks)
        return fail(e, -ENOMEM, "out of memory for sampled tokens");

    n = stats_sample_list_held(s, c);
    for (size_t i = 0; i < other->n_held; i++)
        c[n++] = (struct candidate){.id = other->ids[i], .from = i};
    r = stats_sample_assign_slots(s, c, n, picks, &n_picks, e);
    if (r < 0)
        return r;

    if (!s->has_offset && other->has_offset) {
        memcpy(s->offset, other->offset, n_hs * d * sizeof(*s->offset));
        memcpy(s->scale, other->scale, n_hs * sizeof(*s->scale));
        s->has_offset = true;
    }

    for (size_t i = 0; i < n_picks; i++)
        s->domain_of[picks[i].slot] = (uint8_t) map[other->domain_of[picks[i].row]];
    for (uint32_t hs = 0; hs < n_hs; hs++)
        for (size_t i = 0; i < n_picks; i++) {
            sample_code_get(other, hs, picks[i].row, row);
            sample_code_put(s, hs, picks[i].slot, row);
        }
    return 0;
}

int stats_sort_samples(struct stats *s)
{
    size_t d = s->o.geometry.d, n_hs = head_side_count(&s->o.geometry);
    _cleanup_(freep) size_t *slots = malloc((s->n_held + 1) * sizeof(*slots));
    _cleanup_(freep) struct sample_id *ids = malloc((s->n_held + 1) * sizeof(*ids));
    _cleanup_(freep) uint8_t *domain_of = malloc(s->n_held + 1);
    _cleanup_(freep) uint16_t *rows = malloc((s->n_held * d + 1) * sizeof(*rows));

    if (!slots || !ids || !domain_of || !rows)
        return -ENOMEM;

    stats_sorted_slots(s, slots);
    for (size_t i = 0; i < s->n_held; i++) {
        ids[i] = s->ids[slots[i]];
        domain_of[i] = s->domain_of[slots[i]];
    }
    memcpy(s->ids, ids, s->n_held * sizeof(*ids));
    memcpy(s->domain_of, domain_of, s->n_held);
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
