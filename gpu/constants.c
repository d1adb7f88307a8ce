/* Constants of a table for attention; see constants.h. */
#include "gpu/constants.h"

#include <math.h>
#include <stdlib.h>

#include "gpu/layout.h"
#include "gpu/rope.h"

void level_table_init(struct level_table *t, const struct levels *l, unsigned b)
{
    unsigned n = 1u << b;
    int shift = 0;

    if (b > 4) {
        float largest = fmaxf(fabsf(l->value[0]), fabsf(l->value[n - 1])); /* they ascend */

        shift = 9;
        while (ldexpf(largest, shift) > LEVEL_WHOLE_MAX)
            shift--;
    }
    for (unsigned i = 0; i < 1 << TABLE_BITS_MAX; i++)
        t->value[i] = (int16_t) lrintf(ldexpf(l->value[i % n], shift));
    t->unit = ldexpf(1, -shift);
}

static double node(unsigned j)
{
    return 31.5 + 31.5 * cos(M_PI * (2 * j + 1) / (2 * FOLD_NODES));
}

static void init_fold(struct page_constants *c, const struct geometry *g)
{
    for (unsigned j = 0; j < FOLD_NODES; j++) {
        for (unsigned t = 0; t < CHUNK_TOKENS; t++) {
            double x = 1;

            for (unsigned other = 0; other < FOLD_NODES; other++)
                x *= other == j ? 1 : (t - node(other)) / (node(j) - node(other));
            c->fold_basis[j][t] = (float) x;
        }
        for (uint32_t i = 0; i < g->n_rot / 2; i++) {
            c->fold_cos[j][i] = (float) cos(g->freq[i] * node(j));
            c->fold_back_sin[j][i] = (float) -sin(g->freq[i] * node(j));
        }
    }
    for (uint32_t i = 0; i < g->n_rot / 2; i++) {
        double error = 2;

        for (unsigned j = 1; j <= FOLD_NODES; j++)
            error *= 31.5 * fabs(g->freq[i]) / 2 / j;
        c->fold_error[i] = (float) fmin(error, 1e30);
    }
}

struct page_constants *page_constants_new(const struct table *table)
{
    const struct geometry *g = &table->geometry;
    size_t n_angles = (size_t) g->n_rot / 2 * CHUNK_TOKENS; /* both bounded by geometry.h */
    size_t bytes = sizeof(struct page_constants) + 2 * n_angles * sizeof(float);
    struct page_constants *c = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (!c)
        return NULL;
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        c->levels[side][0] = (struct level_table) { .unit = 1 };
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            level_table_init(&c->levels[side][b], &table->levels[side][b], b);
    }
    c->cos = c->angles;
    c->sin = c->angles + n_angles;
    rope_columns(g, 0, c->cos, c->sin);
    rope_phase_at(g, -CHUNK_TOKENS, &c->page_back);
    rope_phase_at(g, -1, &c->token_back);
    init_fold(c, g);
    return c;
}
