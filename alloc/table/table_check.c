/* Checks of levels, codecs, provenance and golden vectors for table_parse();
 * see table_format.h. The bytes are hostile. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "alloc/table/levels.h"
#include "alloc/table/table_format.h"
#include "alloc/table/trellis.h"
#include "base/checked.h"
#include "base/errmsg.h"

static const char side_letter[2] = {'K', 'V'};

/* ---- levels ---- */

/* @p: the numbers of one width. */
static void table_check_read_scalar(const uint8_t *p, unsigned b, struct levels *l)
{
    size_t n = (size_t) 1 << b;

    memcpy(&l->step, p, sizeof(l->step));
    memcpy(l->value, p + sizeof(float), n * sizeof(float));
    memcpy(l->threshold, p + (1 + n) * sizeof(float), (n - 1) * sizeof(float));
    for (unsigned q = 0; q < n && b <= LEVELS_INT8_BITS_MAX; q++) /* NaN fails both comparisons: 0 */
        l->value_i8[q] = (int8_t) (l->value[q] >= -127 && l->value[q] <= 127 ? l->value[q] : 0);
}

static void table_check_read_book(const struct table_levels_head *h, const uint8_t *p, struct levels *l)
{
    l->state_bits = (uint8_t) h->state_bits;
    l->step = h->step;
    l->normal_product = h->normal_product;
    l->normal_square = h->normal_square;
    for (size_t s = 0; s < (size_t) 1 << h->state_bits; s++)
        l->value[s] = (float) (int8_t) p[s];
}

/* One width at @at of the section, which has @left bytes from there; moves @at. */
static int table_check_width(uint32_t version, unsigned b, const uint8_t **at, size_t *left, struct levels *l)
{
    struct table_levels_head h = {0};
    size_t head = version == TABLE_VERSION_SCALAR ? 0 : sizeof(h), bytes;

    if (*left < head)
        return -EBADMSG;
    memcpy(&h, *at, head);
    if (h.state_bits > TRELLIS_STATE_BITS_MAX ||
        (h.state_bits == 0 && (h.step != 0 || h.normal_product != 0 || h.normal_square != 0)))
        return -EBADMSG;
    bytes = table_levels_bytes(version, h.state_bits, b);
    if (*left < bytes)
        return -EBADMSG;

    if (h.state_bits > 0)
        table_check_read_book(&h, *at + head, l);
    else
        table_check_read_scalar(*at + head, b, l);
    *at += bytes;
    *left -= bytes;
    return levels_valid(l, b) ? 0 : -EBADMSG;
}

int table_check_levels(struct table *t, struct errmsg *e)
{
    const uint8_t *at = table_section(t, SECTION_LEVELS);
    size_t left = table_header(t)->sections[SECTION_LEVELS].bytes;
    uint32_t version = table_header(t)->version;

    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            if (table_check_width(version, b, &at, &left, &t->levels[side][b]) < 0)
                return fail(
                    e, -EBADMSG,
                    "the %u-bit levels of side %c are neither ascending values with midpoints nor a trellis",
                    b, side_letter[side]);
    if (left != 0)
        return fail(e, -EBADMSG, "its levels have %zu bytes too many", left);
    return 0;
}

/* ---- codecs ---- */

struct where {
    uint32_t layer, head;
    enum side side;
};

static int table_check_bad_codec(struct errmsg *e, struct where w, const char *what)
{
    return fail(e, -EBADMSG, "codec of layer %u, head %u, side %c: %s", w.layer, w.head, side_letter[w.side],
                what);
}

/* Whether half-tiles have descending widths and even number, with at most one empty half-tile. */
static bool table_check_bits_valid(const struct table_codec_entry *c, uint32_t d)
{
    unsigned sum = 0;

    if (c->n_half % 2 != 0 || c->n_half > table_half_tiles_max(d))
        return false;

    for (unsigned i = 0; i < TABLE_HALF_TILES_MAX; i++) {
        unsigned max = i == 0 ? TABLE_BITS_MAX : c->bits[i - 1];

        if (c->bits[i] > (i < c->n_half ? max : 0) || (c->bits[i] == 0 && i + 1 < c->n_half))
            return false;

        sum += c->bits[i];
    }

    return c->r == 8 * c->n_half && c->code_bits == 8 * sum;
}

/* Whether the fast planes are some of those of keys but not all dimensions, and their half-tiles some of
 * those with bits. */
static bool table_check_blocks_valid(const struct table_codec_entry *c, enum side side,
                                     const struct geometry *g)
{
    unsigned stored = c->n_half - (c->n_half > 0 && c->bits[c->n_half - 1] == 0);

    if (c->fast_planes == 0)
        return c->fast_halves == 0;
    return side == SIDE_K && c->fast_planes <= g->n_rot / 2 && 2u * c->fast_planes < g->d &&
           (uint64_t) c->fast_halves >> stored == 0;
}

/* Moves @cursor past the matrices of a codec, which must start there and lie inside the section. */
static bool table_check_take_matrices(size_t *cursor, const struct table_codec_entry *entry, uint32_t d,
                                      enum table_matrix_form form, size_t section_bytes)
{
    struct table_matrix all[CODEC_MATRICES];

    if (entry->matrices_off != *cursor)
        return false;

    table_matrices(entry->r, entry->n_pred, d, form, all);
    for (unsigned i = 0; i < CODEC_MATRICES; i++) {
        size_t bytes = table_matrix_bytes(all[i]);

        if (!range_inside(*cursor, bytes, section_bytes) || !checked_add(*cursor, bytes, cursor) ||
            !checked_align(*cursor, TABLE_ALIGN, cursor))
            return false;
    }

    return true;
}

static bool table_check_all_finite(const float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(p[i]))
            return false;
    return true;
}

/* Whether rows of enc and enc_k and columns of dec that belong to an empty half-tile are zero. */
static bool table_check_padding_zero(const struct codec *c, uint32_t d)
{
    if (c->n_half == 0 || c->bits[c->n_half - 1] != 0)
        return true;

    for (unsigned i = c->r - 8u; i < c->r; i++) {
        for (uint32_t j = 0; j < d; j++)
            if (c->enc[(size_t) i * d + j] != 0.0f || c->dec[(size_t) j * c->r_in + c->n_pred + i] != 0.0f)
                return false;
        for (uint32_t j = 0; j < c->n_pred; j++)
            if (c->enc_k[(size_t) i * c->n_pred + j] != 0.0f)
                return false;
    }

    return true;
}

static bool table_check_matrices_finite(const struct codec *c, uint32_t d)
{
    return table_check_all_finite(c->mean, d) && table_check_all_finite(c->enc_mean, d) &&
           table_check_all_finite(c->enc, (size_t) c->r * d) &&
           table_check_all_finite(c->enc_k, (size_t) c->r * c->n_pred) &&
           table_check_all_finite(c->dec, (size_t) c->r_in * d);
}

/* Whether the scales of matrices of binary16 are powers of two within the normal numbers of binary32. */
static bool table_check_scales(const struct table_codec_entry *entry, uint32_t d, const uint8_t *matrices)
{
    struct table_matrix all[CODEC_MATRICES];
    size_t off = entry->matrices_off;

    table_matrices(entry->r, entry->n_pred, d, MATRICES_HALF, all);
    for (unsigned i = 0; i < CODEC_MATRICES; i++) {
        size_t bytes = table_matrix_bytes(all[i]);

        for (size_t row = 0; row < all[i].rows && bytes > 0 && all[i].form == MATRICES_HALF; row++) {
            uint32_t scale, exponent;

            memcpy(&scale, matrices + off + row * sizeof(scale), sizeof(scale));
            exponent = scale >> 23; /* with the sign, which makes it 256 or more */
            if (scale << 9 != 0 || exponent < 1 || exponent > 254)
                return false;
        }

        off = (off + bytes + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    }

    return true;
}

/* Whether coordinates of the fast planes, and these alone, belong to the dimensions of these planes. */
static bool table_check_blocks_apart(const struct codec *c, const struct geometry *g)
{
    for (uint32_t i = 0; c->fast_planes > 0 && i < c->r; i++)
        for (uint32_t j = 0; j < g->d; j++)
            if (codec_half_is_fast(c, i / 8) != geometry_in_planes(g, c->fast_planes, j) &&
                (c->enc[(size_t) i * g->d + j] != 0.0f || c->dec[(size_t) j * c->r_in + i] != 0.0f))
                return false;
    return true;
}

static int table_check_numbers(const struct table *t, const struct table_codec_entry *entry,
                               const struct codec *c, struct where w, struct errmsg *e)
{
    uint32_t d = t->geometry.d;

    if (table_matrix_form_of(t) == MATRICES_HALF &&
        !table_check_scales(entry, d, table_section(t, SECTION_MATRICES)))
        return table_check_bad_codec(e, w, "the scale of a row is no power of two from 2^-126 to 2^127");
    if (!table_check_matrices_finite(c, d))
        return table_check_bad_codec(e, w, "a matrix is not finite");
    if (!table_check_padding_zero(c, d))
        return table_check_bad_codec(e, w, "an empty half-tile is not zero");
    if (!table_check_blocks_apart(c, &t->geometry))
        return table_check_bad_codec(
            e, w,
            "its bases are in two blocks, fast and slow RoPE planes, but its matrices "
            "mix both: solve the table again");
    return 0;
}

static int check_codec(const struct table *t, struct where w, const struct table_codec_entry *entry,
                       size_t n_pred, size_t *cursor, float **room, struct codec *ret, struct errmsg *e)
{
    enum table_matrix_form form = table_matrix_form_of(t);
    size_t section_bytes = table_header(t)->sections[SECTION_MATRICES].bytes;
    uint32_t d = t->geometry.d;

    if (!table_check_bits_valid(entry, d))
        return table_check_bad_codec(e, w, "its bit widths are inconsistent");
    if (entry->reserved2 != 0 || (table_header(t)->version == TABLE_VERSION_SCALAR &&
                                  (entry->fast_planes != 0 || entry->fast_halves != 0)))
        return table_check_bad_codec(e, w, "its entry uses unknown fields");
    if (!table_check_blocks_valid(entry, w.side, &t->geometry))
        return table_check_bad_codec(e, w, "its blocks of fast and slow RoPE planes are impossible");
    if (entry->n_pred != n_pred)
        return table_check_bad_codec(e, w,
                                     "its number of predicting codes does not match the ranks of its keys");
    if (n_pred > TABLE_PRED_MAX)
        return table_check_bad_codec(e, w, "it is predicted from more codes than a table may have");
    if (!table_check_take_matrices(cursor, entry, d, form, section_bytes))
        return table_check_bad_codec(e, w, "its matrices are not where they must be");

    table_codec_view(entry, d, form, table_section(t, SECTION_MATRICES), room, ret);
    return 0;
}

/* Number of codes that V of @w is predicted from, by the ranks in the directory, which may be unchecked. */
static size_t table_check_predicting_codes(const struct table *t, struct where w,
                                           const struct table_codec_entry *entries)
{
    struct head_run run = table_predictors(t, w.head);
    size_t n = 0;

    for (uint32_t h = run.first; h < run.first + run.n && w.side == SIDE_V; h++)
        n += entries[head_side_index(&t->geometry, w.layer, h, SIDE_K)].r;
    return n;
}

int table_check_codecs(struct table *t, struct codec *ret_codecs, float *room, bool with_numbers,
                       struct errmsg *e)
{
    const struct table_codec_entry *entries = (const void *) table_section(t, SECTION_CODECS);
    uint32_t n = head_side_count(&t->geometry);
    uint64_t code_bits = 0;
    size_t cursor = 0;
    bool blocks = false;

    for (uint32_t i = 0; i < n; i++) {
        struct where w = {i / 2 / t->geometry.n_kv_heads, i / 2 % t->geometry.n_kv_heads, (enum side)(i % 2)};
        int r = check_codec(t, w, &entries[i], table_check_predicting_codes(t, w, entries), &cursor, &room,
                            &ret_codecs[i], e);

        if (r == 0 && with_numbers)
            r = table_check_numbers(t, &entries[i], &ret_codecs[i], w, e);
        if (r < 0)
            return r;

        code_bits += ret_codecs[i].code_bits;
        blocks |= ret_codecs[i].fast_planes > 0;
    }

    if (cursor != table_header(t)->sections[SECTION_MATRICES].bytes)
        return fail(e, -EBADMSG, "its matrices section holds more than its codecs use");
    /* a table has one encoding */
    if (table_header(t)->version == TABLE_VERSION && !table_has_trellis(t) && !blocks &&
        table_matrix_form_of(t) == MATRICES_SINGLE)
        return fail(e, -EBADMSG, "it has nothing that is new in its format version, which must be %u",
                    TABLE_VERSION_SCALAR);

    t->codecs = ret_codecs;
    t->bpd_code = (double) code_bits / ((double) n * t->geometry.d);
    return 0;
}

/* ---- provenance ---- */

/* Refuses control characters: a program that prints the provenance must not
 * send escape sequences to a terminal. */
int table_check_provenance(struct table *t, struct errmsg *e)
{
    size_t bytes = table_header(t)->sections[SECTION_PROVENANCE].bytes;
    const uint8_t *p = table_section(t, SECTION_PROVENANCE);

    if (bytes == 0 || bytes > TABLE_PROVENANCE_MAX || p[bytes - 1] != '\0')
        return fail(e, -EBADMSG, "its provenance is not a terminated text");

    for (size_t i = 0; i + 1 < bytes; i++)
        if ((p[i] < ' ' && p[i] != '\n' && p[i] != '\t') || p[i] == 0x7f)
            return fail(e, -EBADMSG, "its provenance holds control characters");
    t->provenance = (const char *) p;
    return 0;
}

/* ---- golden ---- */

static bool table_check_codes_valid(const struct table *t, enum side side, const struct codec *c,
                                    const uint8_t *codes)
{
    for (unsigned i = 0; i < c->r; i++)
        if (codes[i] >= levels_count(&t->levels[side][c->bits[i / 8]], c->bits[i / 8]))
            return false;
    return true;
}

/*
 * A stored number is the builder's binary64 sum rounded to binary32, off by at most 2^-24 |x|; this machine's
 * sum has the same terms (at most 8449) and may differ by as many roundings of 2^-53 of the sum of
 * magnitudes. Together that is below 2^-23 of that sum. Subnormal results round to multiples of 2^-149.
 */
static bool table_check_sums_agree(const float *stored, const struct table_sums *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) /* written so that NaN disagrees */
        if (!(fabs((double) stored[i] - s->x[i]) <= 0x1p-23 * s->magnitude[i] + 0x1p-149))
            return false;
    return true;
}

/* One token of one head; @p: V codes, k^, v^, z of K, z of V. */
static int table_check_golden_head(const struct table *t, uint32_t layer, uint32_t head,
                                   const uint8_t *codes_k, const uint8_t *p, struct errmsg *e)
{
    const struct codec *k = table_codec(t, layer, head, SIDE_K), *v = table_codec(t, layer, head, SIDE_V);
    const float *stored = (const float *) (const void *) (p + v->r);
    uint32_t d = t->geometry.d;
    const float *const x[2] = {stored, stored + d};
    struct table_sums sums[2];

    if (!table_check_codes_valid(t, SIDE_V, v, p))
        return fail(e, -EBADMSG, "golden codes of layer %u, head %u exceed their widths", layer, head);

    table_decode_head(t, layer, head, codes_k, p, sums);
    if (!table_check_sums_agree(x[SIDE_K], &sums[SIDE_K], d) ||
        !table_check_sums_agree(x[SIDE_V], &sums[SIDE_V], d))
        return fail(e, -EBADMSG, "golden codes of layer %u, head %u do not decode to the stored vectors",
                    layer, head);

    table_encode_head(t, layer, head, codes_k, x, sums);
    stored += 2 * d;
    if (!table_check_sums_agree(stored, &sums[SIDE_K], k->r) ||
        !table_check_sums_agree(stored + k->r, &sums[SIDE_V], v->r))
        return fail(e, -EBADMSG,
                    "golden vectors of layer %u, head %u do not encode to the stored coordinates", layer,
                    head);

    return 0;
}

/* Moves @p past one token of one layer. */
static int table_check_golden_token(const struct table *t, uint32_t layer, const uint8_t **p,
                                    struct errmsg *e)
{
    const uint8_t *codes_k = *p;
    uint32_t n_kv = t->geometry.n_kv_heads;

    for (uint32_t head = 0; head < n_kv; head++) {
        const struct codec *k = table_codec(t, layer, head, SIDE_K);

        if (!table_check_codes_valid(t, SIDE_K, k, *p))
            return fail(e, -EBADMSG, "golden codes of layer %u, head %u exceed their widths", layer, head);

        *p += k->r;
    }

    for (uint32_t head = 0; head < n_kv; head++) {
        int r = table_check_golden_head(t, layer, head, codes_k, *p, e);

        if (r < 0)
            return r;

        *p += table_golden_head_bytes(table_codec(t, layer, head, SIDE_K),
                                      table_codec(t, layer, head, SIDE_V), t->geometry.d);
    }

    return 0;
}

int table_check_golden(const struct table *t, struct errmsg *e)
{
    const uint8_t *p = table_section(t, SECTION_GOLDEN);
    size_t bytes = 0;

    for (uint32_t i = 0; i < head_side_count(&t->geometry); i += 2)
        bytes += TABLE_GOLDEN_TOKENS *
                 (t->codecs[i].r + table_golden_head_bytes(&t->codecs[i], &t->codecs[i + 1], t->geometry.d));
    if (bytes != table_header(t)->sections[SECTION_GOLDEN].bytes)
        return fail(e, -EBADMSG, "its golden vectors are not those of its codecs");

    for (uint32_t layer = 0; layer < t->geometry.n_layers; layer++)
        for (unsigned token = 0; token < TABLE_GOLDEN_TOKENS; token++) {
            int r = table_check_golden_token(t, layer, &p, e);

            if (r < 0)
                return r;
        }
    return 0;
}
