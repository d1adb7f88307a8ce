/* The parts of a table that table_parse() checks one by one; see table_format.h. Bytes here are hostile. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "alloc/levels.h"
#include "alloc/table_format.h"
#include "base/checked.h"
#include "base/errmsg.h"

static const char side_letter[2] = { 'K', 'V' };

/* ---- levels -------------------------------------------------------------------------------------------------- */

int table_check_levels(struct table *t, struct errmsg *e)
{
    const float *p = (const float *) (const void *) table_section(t, SECTION_LEVELS);

    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
            struct levels *l = &t->levels[side][b];
            unsigned n = 1u << b;

            l->step = p[0];
            memcpy(l->value, p + 1, n * sizeof(*p));
            memcpy(l->threshold, p + 1 + n, (n - 1) * sizeof(*p));
            p += TABLE_LEVEL_FLOATS(b);
            for (unsigned q = 0; q < n && b <= LEVELS_INT8_BITS_MAX; q++) /* NaN fails both comparisons: 0 */
                l->value_i8[q] = (int8_t) (l->value[q] >= -127 && l->value[q] <= 127 ? l->value[q] : 0);
            if (!levels_valid(l, b))
                return fail(e, -EBADMSG, "the %u-bit levels of side %c are not ascending values with midpoints", b,
                            side_letter[side]);
        }
    return 0;
}

/* ---- codecs -------------------------------------------------------------------------------------------------- */

struct where {
    uint32_t layer, head;
    enum side side;
};

static int bad_codec(struct errmsg *e, struct where w, const char *what)
{
    return fail(e, -EBADMSG, "codec of layer %u, head %u, side %c: %s", w.layer, w.head, side_letter[w.side], what);
}

/* Half-tiles in descending width, an even number of them, made even by at most one empty one. */
static bool bits_valid(const struct table_codec_entry *c, uint32_t d)
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

/* Moves @cursor past a matrix of @rows x @cols floats that must start there, inside the section. */
static bool take_matrix(size_t *cursor, uint64_t off, size_t rows, size_t cols, size_t section_bytes)
{
    size_t bytes = rows * cols * sizeof(float); /* at most 256 * 512 * 4 */

    if (off != *cursor || !range_inside(off, bytes, section_bytes))
        return false;
    return checked_add(*cursor, bytes, cursor) && checked_align(*cursor, TABLE_ALIGN, cursor);
}

static bool all_finite(const float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(p[i]))
            return false;
    return true;
}

/* Whether rows of enc and columns of dec that belong to an empty half-tile are zero; @skip: columns of P. */
static bool padding_zero(const struct codec *c, uint32_t d, unsigned skip)
{
    if (c->n_half == 0 || c->bits[c->n_half - 1] != 0)
        return true;
    for (unsigned i = c->r - 8u; i < c->r; i++)
        for (uint32_t j = 0; j < d; j++)
            if (c->enc[(size_t) i * d + j] != 0.0f || c->dec[(size_t) j * c->r_in + skip + i] != 0.0f)
                return false;
    return true;
}

static int check_codec(const struct table *t, struct where w, const struct table_codec_entry *entry, unsigned r_k,
                       size_t *cursor, struct codec *ret, struct errmsg *e)
{
    size_t section_bytes = table_header(t)->sections[SECTION_MATRICES].bytes;
    uint32_t d = t->geometry.d;

    if (!bits_valid(entry, d))
        return bad_codec(e, w, "its bit widths are inconsistent");
    if (entry->r_in != entry->r + r_k)
        return bad_codec(e, w, "its decode matrix has the wrong number of columns");
    if (!take_matrix(cursor, entry->mean_off, 1, d, section_bytes) ||
        !take_matrix(cursor, entry->enc_off, entry->r, d, section_bytes) ||
        !take_matrix(cursor, entry->dec_off, d, entry->r_in, section_bytes))
        return bad_codec(e, w, "its matrices are not where they must be");
    table_codec_view(entry, table_section(t, SECTION_MATRICES), ret);
    if (!all_finite(ret->mean, d) || !all_finite(ret->enc, (size_t) ret->r * d) ||
        !all_finite(ret->dec, (size_t) ret->r_in * d))
        return bad_codec(e, w, "a matrix is not finite");
    if (!padding_zero(ret, d, r_k))
        return bad_codec(e, w, "an empty half-tile is not zero");
    return 0;
}

int table_check_codecs(struct table *t, struct codec *ret_codecs, struct errmsg *e)
{
    const struct table_codec_entry *entries = (const void *) table_section(t, SECTION_CODECS);
    uint32_t n = head_side_count(&t->geometry);
    uint64_t code_bits = 0;
    size_t cursor = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct where w = { i / 2 / t->geometry.n_kv_heads, i / 2 % t->geometry.n_kv_heads, (enum side) (i % 2) };
        unsigned r_k = w.side == SIDE_V && t->v_from_k ? ret_codecs[i - 1].r : 0;
        int r = check_codec(t, w, &entries[i], r_k, &cursor, &ret_codecs[i], e);

        if (r < 0)
            return r;
        code_bits += ret_codecs[i].code_bits;
    }
    if (cursor != table_header(t)->sections[SECTION_MATRICES].bytes)
        return fail(e, -EBADMSG, "its matrices section holds more than its codecs use");
    t->codecs = ret_codecs;
    t->bpd_code = (double) code_bits / ((double) n * t->geometry.d);
    return 0;
}

/* ---- provenance ---------------------------------------------------------------------------------------------- */

/* Whoever prints it must not have to fear what it does to a terminal. */
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

/* ---- golden -------------------------------------------------------------------------------------------------- */

static bool codes_valid(const struct codec *c, const uint8_t *codes)
{
    for (unsigned i = 0; i < c->r; i++)
        if (codes[i] >> c->bits[i / 8] != 0)
            return false;
    return true;
}

/*
 * The stored vector is the builder's binary64 sum rounded to binary32, off by at most 2^-24 |x|; this machine's sum has
 * the same terms and may differ by 514 roundings of 2^-53 of the sum of magnitudes. Together below 2^-23 of it.
 * Subnormal results round to multiples of 2^-149.
 */
static bool vector_agrees(const float *stored, const double *x, const double *magnitude, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) /* written so that NaN disagrees */
        if (!(fabs((double) stored[i] - x[i]) <= 0x1p-23 * magnitude[i] + 0x1p-149))
            return false;
    return true;
}

int table_check_golden(const struct table *t, struct errmsg *e)
{
    const uint8_t *p = table_section(t, SECTION_GOLDEN);
    size_t left = table_header(t)->sections[SECTION_GOLDEN].bytes;
    uint32_t d = t->geometry.d;

    for (uint32_t i = 0; i < t->geometry.n_layers * t->geometry.n_kv_heads; i++) {
        const struct codec *k = &t->codecs[2 * i], *v = &t->codecs[2 * i + 1];
        uint32_t layer = i / t->geometry.n_kv_heads, head = i % t->geometry.n_kv_heads;
        double x[2][GEOMETRY_DIM_MAX], magnitude[2][GEOMETRY_DIM_MAX];

        if (table_golden_bytes(k, v, d) > left)
            return fail(e, -EBADMSG, "its golden vectors are cut short");
        left -= table_golden_bytes(k, v, d);
        for (unsigned token = 0; token < TABLE_GOLDEN_TOKENS; token++) {
            const uint8_t *const codes[2] = { p, p + k->r };
            const float *stored = (const float *) (const void *) (p + k->r + v->r);

            p += k->r + v->r + 2 * d * sizeof(float);
            if (!codes_valid(k, codes[SIDE_K]) || !codes_valid(v, codes[SIDE_V]))
                return fail(e, -EBADMSG, "golden codes of layer %u, head %u exceed their widths", layer, head);
            table_decode_head(t, layer, head, codes, x, magnitude);
            if (!vector_agrees(stored, x[SIDE_K], magnitude[SIDE_K], d) ||
                !vector_agrees(stored + d, x[SIDE_V], magnitude[SIDE_V], d))
                return fail(e, -EBADMSG, "golden codes of layer %u, head %u do not decode to the stored vectors",
                            layer, head);
        }
    }
    return left == 0 ? 0 : fail(e, -EBADMSG, "it has more golden vectors than heads");
}
