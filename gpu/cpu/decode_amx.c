/*
 * Decode steps on AMX tiles. Products of bytes (keys, folded scores, values of half-tiles of at most
 * four bits) are computed by tiles, 16 rows by 64 columns by 16 tokens or coordinates at a time.
 * Everything else, half-tiles of five bits and more included, is the AVX-512 code of decode_512.h.
 * Whole numbers are the same as there, so keys and scores have the same bits; sums of values are
 * divided among their parts differently.
 *
 * Tile shapes are set from begin() to end(), for all pages of a call: four sums, and rows and levels twice,
 * once for 64 columns and once for the remaining columns of K. Sums always have 16 rows; rows beyond the
 * last are not read.
 */
#include "gpu/cpu/amx.h"
#include "gpu/cpu/decode_512.h"

enum {
    TILE_ROWS = 16,
    TILE_BYTES = 64,
    /* numbers of tiles */
    SUMS_0 = 0,
    SUMS_1,
    SUMS_2,
    SUMS_3,
    FULL_ROWS,
    REST_ROWS,
    FULL_LEVELS,
    REST_LEVELS,

    N_SUMS = 4,
    QUAD_BYTES = 4 * CHUNK_TOKENS, /* of key_codes.narrow: four coordinates of a page */
};

/* One tile of sums for each 16 tokens, or for each 16 coordinates. */
struct tile_sums {
    _Alignas(64) int32_t of[N_SUMS][TILE_ROWS][LANES];
};

static void begin(size_t n_narrow)
{
    size_t rest = 8 * n_narrow % TILE_BYTES;
    struct tile_config config = {.palette = 1};

    for (unsigned t = SUMS_0; t <= REST_LEVELS; t++) {
        config.rows[t] = TILE_ROWS;
        config.row_bytes[t] = TILE_BYTES;
    }

    config.row_bytes[REST_ROWS] = (uint16_t) rest;
    config.rows[REST_LEVELS] = (uint8_t) (rest / 4);
    if (rest == 0) { /* neither rows nor bytes: a tile has both or neither */
        config.rows[REST_ROWS] = 0;
        config.row_bytes[REST_LEVELS] = 0;
    }

    tiles_configure(&config);
}

static void end(void)
{
    tiles_release();
}

/* ---- keys and folded scores ---- */

/* Columns @col .. of 16 rows times the levels of tokens 16 @t ..; every t
 * has its own rows unless @a_step is 0. */
#define MULTIPLY(t, rows_tile, levels_tile, col)                                                             \
    do {                                                                                                     \
        if ((t) == 0 || a_step != 0)                                                                         \
            tile_load(rows_tile, a + (t) *a_step + (col), stride);                                           \
        tile_load(levels_tile, levels + (col) / 4 * QUAD_BYTES + (t) *TILE_BYTES, QUAD_BYTES);               \
        tile_dot_su(t, rows_tile, levels_tile);                                                              \
    } while (0)

/* Rows a [16][n] (stride @stride, those of the next 16 tokens @a_step further on) times the
 * levels + 128 of a page. A tile of levels needs no special order: four coordinates of 16 tokens,
 * 4 bytes each, are one of its rows. */
static inline_always void decode_amx_multiply_levels(const int8_t *a, size_t stride, size_t a_step,
                                                     const uint8_t *levels, size_t n, struct tile_sums *ret)
{
    size_t col = 0;

    tile_zero(SUMS_0);
    tile_zero(SUMS_1);
    tile_zero(SUMS_2);
    tile_zero(SUMS_3);
    for (; col + TILE_BYTES <= n; col += TILE_BYTES) {
        MULTIPLY(SUMS_0, FULL_ROWS, FULL_LEVELS, col);
        MULTIPLY(SUMS_1, FULL_ROWS, FULL_LEVELS, col);
        MULTIPLY(SUMS_2, FULL_ROWS, FULL_LEVELS, col);
        MULTIPLY(SUMS_3, FULL_ROWS, FULL_LEVELS, col);
    }

    if (col < n) {
        MULTIPLY(SUMS_0, REST_ROWS, REST_LEVELS, col);
        MULTIPLY(SUMS_1, REST_ROWS, REST_LEVELS, col);
        MULTIPLY(SUMS_2, REST_ROWS, REST_LEVELS, col);
        MULTIPLY(SUMS_3, REST_ROWS, REST_LEVELS, col);
    }

    tile_store(SUMS_0, ret->of[SUMS_0], TILE_BYTES);
    tile_store(SUMS_1, ret->of[SUMS_1], TILE_BYTES);
    tile_store(SUMS_2, ret->of[SUMS_2], TILE_BYTES);
    tile_store(SUMS_3, ret->of[SUMS_3], TILE_BYTES);
}

/* Copies @n <= 16 rows of @cols bytes from @from to @ret, with rows of TABLE_RANK_MAX, so that a tile can
 * read 16 rows. */
static void copy_rows(const int8_t *from, size_t stride, size_t n, size_t cols, int8_t *ret)
{
    for (size_t i = 0; i < n; i++)
        memcpy(ret + i * TABLE_RANK_MAX, from + i * stride, cols);
    memset(ret + n * TABLE_RANK_MAX, 0, (TILE_ROWS - n) * TABLE_RANK_MAX);
}

/* Finishes the keys of the plane whose rows of sums are @i and @i + 1. */
static inline_always void decode_amx_finish_plane(const struct key_codes *x, const struct key_rows *m,
                                                  size_t plane, const struct tile_sums *sums, size_t i,
                                                  float *kt)
{
    vec key[KEY_ROWS][KEY_GROUPS];

#pragma GCC unroll 2
    for (unsigned hi = 0; hi < 2; hi++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < KEY_GROUPS; s++) {
            size_t row = 2 * plane + hi;
            ivec sum = ivec_add(ivec_load(sums->of[s][i + hi]), ivec_set1(m->start[row]));

            key[hi][s] = vec_fma(vec_from_int(sum), vec_set1(m->narrow_step[row]), vec_set1(m->mean[row]));
        }
    if (x->n_wide > 0)
        add_wide_keys(2, x, m, 2 * plane, 0, key);
    store_keys(2, m, plane, 0, key, kt);
}

static void tile_keys(const struct key_codes *x, const struct key_rows *m, float *kt)
{
    const struct key_codes codes = *x; /* copies, which stores to kt cannot change */
    const struct key_rows rows = *m;
    size_t n = 8 * codes.n_narrow, end_row = 2 * rows.n_planes;
    _Alignas(64) int8_t last[TILE_ROWS * TABLE_RANK_MAX];
    struct tile_sums sums;

    if (n == 0) {
        keys(x, m, kt);
        return;
    }

    for (size_t row = 0; row < end_row; row += TILE_ROWS) {
        size_t n_rows = end_row - row < TILE_ROWS ? end_row - row : TILE_ROWS;

        if (n_rows == TILE_ROWS) {
            decode_amx_multiply_levels(rows.narrow + row * n, n, 0, codes.narrow, n, &sums);
        } else {
            copy_rows(rows.narrow + row * n, n, n_rows, n, last);
            decode_amx_multiply_levels(last, TABLE_RANK_MAX, 0, codes.narrow, n, &sums);
        }

        for (size_t i = 0; i < n_rows; i += 2)
            decode_amx_finish_plane(&codes, &rows, (row + i) / 2, &sums, i, kt);
    }
}

enum {
    TILE_NODES = TILE_ROWS / FOLD_NODES,
    PAGE_NODES = GROUPS + FOLD_NODES - 1
}; /* query rows in a tile; nodes */

_Static_assert(FOLD_SPACING == (int) LANES, "16 tokens, which share four nodes, are the columns of a tile");

/* Copies the rows of the nodes of a page in order, [PAGE_NODES][n_rows]: the four nodes
 * around each 16 tokens are consecutive, unlike in the ring. If there are fewer rows than a
 * tile takes, it reads zeros at the end. */
static void line_up_nodes(const struct fold_codes *c, size_t first, size_t row, size_t n_rows, int8_t *ret)
{
    size_t used = PAGE_NODES * n_rows, read = (GROUPS - 1) * n_rows + TILE_ROWS;

    for (size_t k = 0; k < PAGE_NODES; k++)
        for (size_t i = 0; i < n_rows; i++, ret += TABLE_RANK_MAX)
            memcpy(ret, c->narrow + ((first + k) % FOLD_RING * c->n_rows + row + i) * TABLE_RANK_MAX,
                   c->n_narrow);
    memset(ret, 0, (read - used) * TABLE_RANK_MAX);
}

/* scores of 16 tokens += basis (step sum + offset); sums are [FOLD_NODES][n_rows]. */
static inline_always void decode_amx_finish_fold(const struct fold_codes *c, const size_t slot[FOLD_NODES],
                                                 size_t row, size_t n_rows, int32_t (*sums)[LANES],
                                                 const float (*basis)[FOLD_SPACING], float *scores)
{
    for (size_t i = 0; i < n_rows; i++) {
        vec score = vec_load(scores + i * CHUNK_TOKENS);

#pragma GCC unroll 4
        for (unsigned j = 0; j < FOLD_NODES; j++) {
            size_t at = slot[j] * c->n_rows + row + i;
            ivec sum = ivec_add(ivec_load(sums[j * n_rows + i]), ivec_set1(c->start[at]));
            vec part = vec_fma(vec_from_int(sum), vec_set1(c->narrow_step[at]), vec_set1(c->offset[at]));

            score = vec_fma(part, vec_load(basis[j]), score);
        }
        vec_store(scores + i * CHUNK_TOKENS, score);
    }
}

/* @n_rows <= TILE_NODES rows. */
static void tile_fold_rows(const struct key_codes *x, const struct fold_codes *c, size_t first, size_t row,
                           size_t n_rows, const float (*basis)[FOLD_SPACING], float *scores)
{
    _Alignas(64) int8_t nodes_of_page[((GROUPS - 1) * TILE_NODES + TILE_ROWS) * TABLE_RANK_MAX];
    struct tile_sums sums;

    line_up_nodes(c, first, row, n_rows, nodes_of_page);
    decode_amx_multiply_levels(nodes_of_page, TABLE_RANK_MAX, n_rows * TABLE_RANK_MAX, x->narrow, c->n_narrow,
                               &sums);
    for (size_t group = 0; group < GROUPS; group++) {
        size_t slot[FOLD_NODES];

        for (size_t j = 0; j < FOLD_NODES; j++)
            slot[j] = (first + group + j) % FOLD_RING;
        decode_amx_finish_fold(c, slot, row, n_rows, sums.of[group], basis, scores + group * LANES);
        for (size_t i = 0; c->n_wide > 0 && i < n_rows; i++)
            fold_wide(1, x, c, slot, row + i, group, basis, scores + i * CHUNK_TOKENS);
    }
}

static void tile_fold(const struct key_codes *x, const struct fold_codes *nodes, size_t first, size_t row,
                      size_t n_rows, const float (*basis)[FOLD_SPACING], float *scores)
{
    const struct fold_codes c = *nodes; /* a copy, which stores to scores cannot change */

    if (c.n_narrow == 0) {
        fold(x, nodes, first, row, n_rows, basis, scores);
        return;
    }
    for (size_t i = 0; i < n_rows; i += TILE_NODES)
        tile_fold_rows(x, &c, first, row + i, n_rows - i < TILE_NODES ? n_rows - i : TILE_NODES, basis,
                       scores + i * CHUNK_TOKENS);
}

/* ---- values ---- */

/* Levels as a tile takes them, for each 16 coordinates: rows of [16 coordinates][4 tokens]. */
struct tile_levels {
    _Alignas(64) int8_t of[N_SUMS][TILE_ROWS][TILE_BYTES];
};

/* The weights of all rows as bytes, in one order of tokens; zeros if there are fewer than 16 rows. */
struct tile_weights {
    _Alignas(64) uint8_t row[TILE_ROWS][TILE_BYTES];
};

static void take_weights(const uint8_t *first, size_t n_rows, struct tile_weights *ret)
{
    for (size_t i = 0; i < n_rows; i++)
        memcpy(ret->row[i], first + i * sizeof(struct row_weights), TILE_BYTES);
    memset(ret->row[n_rows], 0, (TILE_ROWS - n_rows) * TILE_BYTES);
}

#define WEIGH(t)                                                                                             \
    do {                                                                                                     \
        tile_zero(t);                                                                                        \
        tile_load(FULL_LEVELS, levels->of[t], TILE_BYTES);                                                   \
        tile_dot_us(t, FULL_ROWS, FULL_LEVELS);                                                              \
        tile_store(t, ret->of[t], TILE_BYTES);                                                               \
    } while (0)

/* Weights times @n <= N_SUMS tiles of levels. */
static void weigh(const struct tile_weights *w, const struct tile_levels *levels, size_t n,
                  struct tile_sums *ret)
{
    tile_load(FULL_ROWS, w->row, TILE_BYTES);
    WEIGH(SUMS_0);
    if (n > 1)
        WEIGH(SUMS_1);
    if (n > 2)
        WEIGH(SUMS_2);
    if (n > 3)
        WEIGH(SUMS_3);
}

/* Adds step * sum to the lanes of @mask of each of @n vectors; the mask moves by @move lanes each time. */
static inline_always void decode_amx_add_lanes(ivec sum, float step, unsigned n, __mmask16 mask,
                                               unsigned move, float *sums)
{
    vec x = vec_from_int(sum);

    for (unsigned u = 0; u < n; u++, sums += LANES, mask = (__mmask16) (mask << move))
        vec_store(sums, _mm512_mask3_fmadd_ps(x, vec_set1(step), vec_load(sums), mask));
}

/* Levels of one narrow half-tile of V in the order of its words: [4 patterns][2],
 * lanes of [4 coordinates][4 places]. */
static inline_always void decode_amx_half_tile_words(unsigned b, const uint8_t *at, const int8_t *levels,
                                                     ivec (*ret)[N_SUMS])
{
    ivec table = ivec_repeat(levels);
    struct value_words words;

    load_value_words(b, at, &words);
#pragma GCC unroll 4
    for (unsigned pattern = 0; pattern < 4; pattern++)
#pragma GCC unroll 2
        for (unsigned v = 0; v < WORDS; v++)
            ret[pattern][v] = ivec_look_up(table, value_codes(b, &words, pattern, v));
}

static void decode_amx_trellis_words(unsigned b, const struct level_table *t, const uint8_t *at,
                                     ivec (*ret)[N_SUMS])
{
    ivec levels[4][WORDS];

    trellis_levels(b, t, false, at, levels);
    for (unsigned j = 0; j < 4; j++)
        memcpy(ret[j], levels[j], sizeof(levels[j]));
}

/* Sixteen coordinates of V. Place t of pattern p is row 4 p + t of the tile, which is the order of by_four
 * and by_two. 32-bit numbers are transposed four by four inside 128 bits, so that coordinate 4 u + l is
 * column 4 l + u. */
static void fill_values(ivec words[4][N_SUMS], int8_t ret[TILE_ROWS][TILE_BYTES])
{
    for (unsigned p = 0; p < 4; p++) {
        const ivec *x = words[p];
        ivec a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
        ivec c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);

        _mm512_store_si512(ret[4 * p], _mm512_unpacklo_epi64(a, c));
        _mm512_store_si512(ret[4 * p + 1], _mm512_unpackhi_epi64(a, c));
        _mm512_store_si512(ret[4 * p + 2], _mm512_unpacklo_epi64(b, d));
        _mm512_store_si512(ret[4 * p + 3], _mm512_unpackhi_epi64(b, d));
    }
}

/* Unpacks @n_half narrow half-tiles, at most eight, to tiles; an odd one is paired with zeros. */
static void unpack_values(const struct coded *c, const uint8_t *at, size_t half, size_t n_half,
                          struct tile_levels *ret)
{
    for (size_t i = 0; i < n_half; i += 2) {
        ivec words[4][N_SUMS] = {0};

        for (size_t j = i; j < i + 2 && j < n_half; j++) {
            unsigned b = c->bits[half + j];
            const int8_t *levels = c->levels[b].narrow;
            ivec(*to)[N_SUMS] = (void *) &words[0][j % 2 * WORDS];

            if (c->levels[b].state_bits > 0)
                decode_amx_trellis_words(b, &c->levels[b], at, to);
            else
                switch (b) {
                    EACH_NARROW(decode_amx_half_tile_words(B, at, levels, to))
                }

            prefetch_next(c, at, b);
            at += (size_t) b * CHUNK_TOKENS;
        }

        fill_values(words, ret->of[i / 2]);
    }
}

/* Whether words have tokens in the order of by_four: four bits without a trellis. */
static bool has_order_of_four(const struct coded *c, size_t half)
{
    return c->bits[half] == 4 && c->levels[4].state_bits == 0;
}

/* Half-tiles from @half on with the same order of tokens. */
static size_t run_of(const struct coded *c, size_t half)
{
    size_t n = 0;

    while (n < 2 * N_SUMS && half + n < c->n_wide + c->n_narrow &&
           has_order_of_four(c, half + n) == has_order_of_four(c, half))
        n++;
    return n;
}

static void tile_values(const struct coded *c, size_t n_rows, const struct row_weights *w, float *sums,
                        size_t ld)
{
    struct coded wide = *c;
    struct tile_weights by_four, by_two;
    struct tile_levels levels;
    struct tile_sums products;
    const uint8_t *at = c->at;
    size_t half = 0, n;

    wide.n_narrow = 0;
    if (wide.n_wide > 0)
        values(&wide, n_rows, w, sums, ld);
    for (; half < c->n_wide; half++, sums += 8 * DECODE_PARTS)
        at += (size_t) c->bits[half] * CHUNK_TOKENS;
    take_weights(w->by_four[0], n_rows, &by_four);
    take_weights(w->by_two[0], n_rows, &by_two);
    for (; half < c->n_wide + c->n_narrow; half += n, sums += n * 8 * DECODE_PARTS) {
        n = run_of(c, half);
        unpack_values(c, at, half, n, &levels);
        weigh(has_order_of_four(c, half) ? &by_four : &by_two, &levels, (n + 1) / 2, &products);
        for (size_t i = 0; i < n_rows; i++)
            for (size_t j = 0; j < n; j += 2) /* column 4 l + u to part u of coordinate 4 u + l */
                decode_amx_add_lanes(ivec_load(products.of[j / 2][i]), w[i].step, j + 2 <= n ? 4 : 2, 0x1111,
                                     1, sums + i * ld + j * 8 * DECODE_PARTS);
        for (size_t j = 0; j < n; j++)
            at += (size_t) c->bits[half + j] * CHUNK_TOKENS;
    }
}

/* ---- values from keys ---- */

/* Groups of four coordinates @x [n <= 4][GROUPS] of level + 128, to rows of four tokens: coordinate c of
 * group q is column 4 q + c. */
static void fill_key_values(const ivec *x, size_t n, int8_t ret[TILE_ROWS][TILE_BYTES])
{
    static const uint8_t fours[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};

    for (unsigned s = 0; s < GROUPS; s++) {
        ivec y[4] = {0}, low[2], high[2];

        for (size_t q = 0; q < n; q++) /* [4 x 4 tokens][4 coordinates][4 tokens] */
            y[q] = by_coordinate(fours, ivec_xor(x[q * GROUPS + s], ivec_set1((int32_t) 0x80808080)));
        for (unsigned i = 0; i < 2; i++) {
            low[i] = _mm512_shuffle_i32x4(y[2 * i], y[2 * i + 1], 0x44);
            high[i] = _mm512_shuffle_i32x4(y[2 * i], y[2 * i + 1], 0xee);
        }

        _mm512_store_si512(ret[4 * s], _mm512_shuffle_i32x4(low[0], low[1], 0x88));
        _mm512_store_si512(ret[4 * s + 1], _mm512_shuffle_i32x4(low[0], low[1], 0xdd));
        _mm512_store_si512(ret[4 * s + 2], _mm512_shuffle_i32x4(high[0], high[1], 0x88));
        _mm512_store_si512(ret[4 * s + 3], _mm512_shuffle_i32x4(high[0], high[1], 0xdd));
    }
}

static void tile_key_values(const struct key_codes *x, size_t n_rows, const struct row_weights *w,
                            float *sums, size_t ld)
{
    struct key_codes wide = *x;
    const ivec *narrow = (const void *) x->narrow;
    size_t n_quads = QUADS * x->n_narrow, n;
    struct tile_weights weights;
    struct tile_levels levels;
    struct tile_sums products;

    wide.n_narrow = 0;
    if (wide.n_wide > 0)
        key_values(&wide, n_rows, w, sums, ld);
    sums += PAIRS * LANES * wide.n_wide;
    take_weights(w->bytes, n_rows, &weights);
    for (size_t quad = 0; quad < n_quads; quad += n, sums += n * LANES) {
        n = n_quads - quad < 4 * N_SUMS ? n_quads - quad : 4 * N_SUMS;
        for (size_t j = 0; j < n; j += 4)
            fill_key_values(narrow + (quad + j) * GROUPS, n - j < 4 ? n - j : 4, levels.of[j / 4]);
        weigh(&weights, &levels, (n + 3) / 4, &products);
        for (size_t i = 0; i < n_rows; i++)
            for (size_t j = 0; j < n; j += 4)
                decode_amx_add_lanes(ivec_load(products.of[j / 4][i]), w[i].step,
                                     n - j < 4 ? (unsigned) (n - j) : 4, 0xf, 4, sums + i * ld + j * LANES);
    }
}

const struct decode_ops decode_amx = {
    .narrow_max = NARROW_MAX,
    .weight_max = WEIGHT_MAX,
    .lanes = LANES,
    .begin = begin,
    .end = end,
    .unpack_keys = unpack_keys,
    .keys = tile_keys,
    .rotate = rotate,
    .rotations = rotations,
    .nodes = nodes,
    .fold = tile_fold,
    .softmax = softmax,
    .values = tile_values,
    .key_values = tile_key_values,
};
