/* See page_constants.h. */
#include "gpu/page_constants.h"

#include <math.h>
#include <stdlib.h>

#include "gpu/page_layout.h"
#include "gpu/rope.h"

/*
 * The index of a state in level_table.book. Kernels form it of the planes of a half-tile. One plane has the
 * bits of a state in their order; three bits are a plane of two and one of one, whose bits come together
 * instead of alternating:
 *
 *     state  c0 c0 c0 c1 c1 c1 c2 ..        code c0 of the token, c1 before it; the lowest bit of each in
 * the plane of one
 *     index  c0 c1 | c0 c0 c1 c1 c2 ..      bits of the plane of one | those of the plane of two
 */
static unsigned page_constants_book_index(unsigned state, unsigned b, unsigned state_bits)
{
    unsigned c0 = state >> (state_bits - 3), c1 = state >> (state_bits - 6) & 7;
    unsigned rest = state & ((1u << (state_bits - 6)) - 1);

    if (b != 3)
        return state;
    return (c0 & 1) << (state_bits - 1) | (c1 & 1) << (state_bits - 2) | (c0 >> 1) << (state_bits - 4) |
           (c1 >> 1) << (state_bits - 6) | rest;
}

static void page_constants_set_book(struct level_table *t, const struct levels *l, unsigned b)
{
    unsigned n = levels_count(l, b);

    t->state_bits = l->state_bits;
    for (unsigned s = 0; s < 1 << TRELLIS_STATE_BITS_MAX; s++)
        t->book[page_constants_book_index(s % n, b, l->state_bits) + s / n * n] = (int8_t) l->value[s % n];
}

void page_level_table_init(struct level_table *t, const struct levels *l, unsigned b)
{
    unsigned n = levels_count(l, b);
    int shift = 0;

    *t = (struct level_table){.state_bits = 0};
    if (l->state_bits > 0)
        page_constants_set_book(t, l, b);

    if (b > 4) {
        float largest = fmaxf(fabsf(l->value[0]), fabsf(l->value[n - 1])); /* levels ascend */

        shift = 9;
        while (ldexpf(largest, shift) > LEVEL_WHOLE_MAX)
            shift--;
    }

    for (unsigned i = 0; i < 1 << TABLE_BITS_MAX; i++)
        t->value[i] = (int16_t) lrintf(ldexpf(l->value[i % n], shift));
    for (unsigned i = 0; i < 16; i++)
        t->narrow[i] = (int8_t) (b > 4 || l->state_bits > 0 ? 0 : t->value[i]);
    t->unit = ldexpf(1, -shift);
}

/* Weight of node @j of 0..3 at @u in 0..1, counted from node 1 in spacings. */
static double page_constants_cubic(unsigned j, double u)
{
    double x = 1;

    for (unsigned other = 0; other < FOLD_NODES; other++)
        x *= other == j ? 1 : (u + 1 - other) / ((double) j - other);
    return x;
}

/* Largest | e^(i angle u) - its interpolation | over u = first, first + step
 * .. below 1; nodes are @angle apart. */
static double page_constants_cubic_error(double angle, double first, double step)
{
    double worst = 0;

    for (double u = first; u < 1; u += step) {
        double re = cos(angle * (u + 1)), im = sin(angle * (u + 1));

        for (unsigned j = 0; j < FOLD_NODES; j++) {
            re -= page_constants_cubic(j, u) * cos(angle * j);
            im -= page_constants_cubic(j, u) * sin(angle * j);
        }

        worst = fmax(worst, hypot(re, im));
    }

    return worst;
}

/* Nodes of the own level of a plane are exact. Each level below adds its own error to at most 5/4 of the
 * error of the level above: 5/4 is the sum of |cubic| at u = 1/2. */
static double page_constants_fold_error(double freq, unsigned level)
{
    double error = 0;

    for (unsigned l = level; l > 0; l--)
        error = 1.25 * error +
                page_constants_cubic_error(freq * ldexp(FOLD_SPACING, 2 * (int) l), 0, 1.0 / FOLD_RATIO);
    return 1.25 * error +
           page_constants_cubic_error(freq * FOLD_SPACING, 0.5 / FOLD_SPACING, 1.0 / FOLD_SPACING);
}

static void constants_init_plane(struct page_constants *c, uint32_t i, double freq, unsigned level)
{
    double spacing = ldexp(FOLD_SPACING, 2 * (int) level);

    c->fold_level[i] = (uint8_t) level;
    c->fold_error[i] = (float) page_constants_fold_error(fabs(freq), level);
    c->fold_start.cos[i] = cos(freq * (0.5 + 4 * spacing));
    c->fold_start.sin[i] = sin(freq * (0.5 + 4 * spacing));
    c->fold_step.cos[i] = cos(freq * spacing);
    c->fold_step.sin[i] = -sin(freq * spacing);
}

static void constants_init_fold(struct page_constants *c, const struct geometry *g)
{
    unsigned level = FOLD_LEVELS - 1;

    _Static_assert(FOLD_RATIO == 4, "spacings are 16 4^l");
    for (unsigned j = 0; j < FOLD_NODES; j++) {
        for (unsigned t = 0; t < FOLD_SPACING; t++)
            c->fold_tokens[j][t] = (float) page_constants_cubic(j, (t + 0.5) / FOLD_SPACING);
        for (unsigned k = 0; k < FOLD_RATIO; k++)
            c->fold_nodes[k][j] = (float) page_constants_cubic(j, (double) k / FOLD_RATIO);
    }

    for (uint32_t i = g->d / 2; i-- > 0;) {
        double freq = i < g->n_rot / 2 ? g->freq[i] : 0;

        while (level > 0 && fabs(freq) * ldexp(FOLD_SPACING, 2 * (int) level) > FOLD_ANGLE)
            level--;
        constants_init_plane(c, i, freq, level);
    }
}

struct page_constants *page_constants_new(const struct table *table)
{
    const struct geometry *g = &table->geometry;
    size_t n_angles = (size_t) g->n_rot / 2 * CHUNK_TOKENS; /* both are bounded by geometry.h */
    size_t bytes = sizeof(struct page_constants) + 2 * n_angles * sizeof(float);
    struct page_constants *c = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (!c)
        return NULL;

    for (int side = SIDE_K; side <= SIDE_V; side++) {
        c->levels[side][0] = (struct level_table){.unit = 1};
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            page_level_table_init(&c->levels[side][b], &table->levels[side][b], b);
    }
    c->cos = c->angles;
    c->sin = c->angles + n_angles;
    rope_columns(g, 0, c->cos, c->sin);
    rope_phase_at(g, -CHUNK_TOKENS, &c->page_back);
    rope_phase_at(g, -1, &c->token_back);
    constants_init_fold(c, g);
    return c;
}
