/* See table_account.h. */
#include "alloc/table/table_account.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

static bool table_account_is_padding(const struct codec *c, uint32_t row, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        if (c->enc[(size_t) row * d + i] != 0)
            return false;
    return true;
}

uint32_t table_codec_rank(const struct codec *c, uint32_t d)
{
    uint32_t n = 0;

    for (uint32_t row = 0; row < c->r; row++)
        n += !table_account_is_padding(c, row, d);
    return n;
}

uint32_t table_codec_nominal_bits(const struct codec *c, uint32_t d)
{
    uint32_t bits = c->r == 0 ? c->code_bits : 0; /* of an exact table: whole vectors */

    for (uint32_t row = 0; row < c->r; row++)
        bits += table_account_is_padding(c, row, d) ? 0 : c->bits[row / 8];
    return bits;
}

void table_account(const struct table *t, struct table_account *ret)
{
    const struct geometry *g = &t->geometry;
    double numbers = (double) g->n_layers * g->n_kv_heads * g->d;

    *ret = (struct table_account){.fixed_bytes = table_is_exact(t) ? 0 : sizeof(t->levels)};
    for (uint32_t i = 0; i < head_side_count(g); i++) {
        const struct codec *c = &t->codecs[i];

        ret->nominal_bpd[i % 2] += table_codec_nominal_bits(c, g->d) / numbers;
        ret->code_bpd[i % 2] += c->code_bits / numbers;
        ret->fixed_bytes +=
            table_is_exact(t)
                ? 0
                : (2ull * g->d + (uint64_t) c->r * (g->d + c->n_pred) + (uint64_t) c->r_in * g->d) *
                      sizeof(float);
    }

    ret->nominal = (ret->nominal_bpd[SIDE_K] + ret->nominal_bpd[SIDE_V]) / 2;
    ret->code = (ret->code_bpd[SIDE_K] + ret->code_bpd[SIDE_V]) / 2;
}

double table_account_fixed_bpd(const struct table *t, const struct table_account *a, uint64_t n_tokens)
{
    double numbers = (double) head_side_count(&t->geometry) * t->geometry.d * (double) n_tokens;

    return 8 * (double) a->fixed_bytes / numbers;
}

/* ---- comparison ---- */

/* Mean width of the stored coordinates, in whole bits. 0: rank 0. */
static long table_account_mean_width(const struct codec *c, uint32_t d)
{
    uint32_t rank = table_codec_rank(c, d);

    return rank > 0 ? lround((double) table_codec_nominal_bits(c, d) / rank) : 0;
}

/* Sums of a correlation; means are subtracted by the caller. */
struct products {
    double xx, xy, yy;
};

static double table_account_correlation(const struct table *a, const struct table *b, enum side side)
{
    uint32_t n = head_side_count(&a->geometry), d = a->geometry.d;
    double mean_a = 0, mean_b = 0;
    struct products p = {0};

    for (uint32_t i = side; i < n; i += 2) {
        mean_a += table_codec_nominal_bits(&a->codecs[i], d) / (n / 2.0);
        mean_b += table_codec_nominal_bits(&b->codecs[i], d) / (n / 2.0);
    }

    for (uint32_t i = side; i < n; i += 2) {
        double x = table_codec_nominal_bits(&a->codecs[i], d) - mean_a,
               y = table_codec_nominal_bits(&b->codecs[i], d) - mean_b;

        p.xx += x * x;
        p.xy += x * y;
        p.yy += y * y;
    }

    /* equal budgets leave only the rounding of the means: a spread below a
     * thousandth of a bit counts as none */
    return p.xx > 1e-6 * n && p.yy > 1e-6 * n ? p.xy / sqrt(p.xx * p.yy) : (double) NAN;
}

void table_compare(const struct table *a, const struct table *b, struct table_comparison ret[2])
{
    const struct geometry *g = &a->geometry;
    uint32_t n_heads = g->n_layers * g->n_kv_heads, tiles[2] = {0}, same[2] = {0},
             in_part[COMPARE_PARTS] = {0};

    assert(g->n_layers == b->geometry.n_layers && g->n_kv_heads == b->geometry.n_kv_heads &&
           g->d == b->geometry.d);
    ret[SIDE_K] = ret[SIDE_V] = (struct table_comparison){.n_heads = n_heads};
    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        in_part[COMPARE_PARTS * layer / g->n_layers] += g->n_kv_heads * g->d;
    for (uint32_t i = 0; i < 2 * n_heads; i++) {
        const struct codec *x = &a->codecs[i], *y = &b->codecs[i];
        struct table_comparison *c = &ret[i % 2];
        unsigned n_half = x->n_half > y->n_half ? x->n_half : y->n_half;
        uint32_t part = COMPARE_PARTS * (i / 2 / g->n_kv_heads) / g->n_layers;

        c->same_width +=
            (table_account_mean_width(x, g->d) == table_account_mean_width(y, g->d)) / (double) n_heads;
        c->rank_difference += fabs((double) table_codec_rank(x, g->d) - table_codec_rank(y, g->d)) / n_heads;
        for (unsigned h = 0; h < n_half; h++) {
            unsigned bits_x = h < x->n_half ? x->bits[h] : 0;
            unsigned bits_y = h < y->n_half ? y->bits[h] : 0;

            tiles[i % 2] += bits_x > 0 || bits_y > 0;
            same[i % 2] += bits_x > 0 && bits_x == bits_y;
        }

        c->bpd[0][part] += (double) table_codec_nominal_bits(x, g->d) / in_part[part];
        c->bpd[1][part] += (double) table_codec_nominal_bits(y, g->d) / in_part[part];
    }

    for (int side = SIDE_K; side <= SIDE_V; side++) {
        ret[side].budget_correlation = table_account_correlation(a, b, (enum side) side);
        ret[side].same_half_tiles = tiles[side] ? (double) same[side] / tiles[side] : 1;
    }
}
