/* See attend_decode.h and decode.h. */
#include "gpu/cpu/attend_decode.h"

#include <math.h>
#include <string.h>

#include "gpu/half_tile.h"

enum {
    KEY_SUMS = 8
}; /* partial sums of a coordinate of K in `sums`, wide or narrow: vectors of 16 lanes or fewer */

/* ---- set-up ---- */

static void attend_decode_carve_rows(struct key_rows *k, struct scratch_cursor *s, size_t d)
{
    k->wide = attend_rows_take(s, d * round_lanes(d), sizeof(int16_t));
    k->narrow = attend_rows_take(s, d * round_lanes(d), sizeof(int8_t));
    k->start = attend_rows_take(s, d, sizeof(int32_t));
    k->wide_step = attend_rows_take(s, d, sizeof(float));
    k->narrow_step = attend_rows_take(s, d, sizeof(float));
    k->mean = attend_rows_take(s, d, sizeof(float));
}

void decode_carve(struct decode *d, struct scratch_cursor *s, const struct page_layout *l, size_t n_rows)
{
    const struct geometry *g = &l->table->geometry;
    size_t rank = round_lanes(g->d), n = n_rows < DECODE_ROWS_MAX ? n_rows : DECODE_ROWS_MAX;

    attend_decode_carve_rows(&d->keys, s, g->d);
    attend_decode_carve_rows(&d->fast_keys, s, g->d);
    d->columns = attend_rows_take(s, g->d * rank, sizeof(float));
    d->codes.wide = attend_rows_take(s, rank * CHUNK_TOKENS, sizeof(int16_t));
    d->codes.narrow = attend_rows_take(s, rank * CHUNK_TOKENS, sizeof(uint8_t));
    d->other.wide = attend_rows_take(s, rank * CHUNK_TOKENS, sizeof(int16_t));
    d->other.narrow = attend_rows_take(s, rank * CHUNK_TOKENS, sizeof(uint8_t));
    d->kt = attend_rows_take(s, (size_t) g->d * CHUNK_TOKENS, sizeof(float));
    d->q = attend_rows_take(s, n * 2 * round_lanes(g->d / 2), sizeof(float));
    d->rotated = attend_rows_take(s, g->d, sizeof(float));
    d->scores = attend_rows_take(s, n * CHUNK_TOKENS, sizeof(float));
    d->weights = attend_rows_take(s, n, sizeof(*d->weights));
    d->sums = attend_rows_take(s, n * l->r_in_max * KEY_SUMS, sizeof(float));
    fold_carve(&d->fold, s, g, n < FOLD_ROWS_MAX ? n : FOLD_ROWS_MAX);
}

static struct coded attend_decode_coded_side(const struct decode *d, enum side side, const struct codec *c)
{
    struct coded ret = {.bits = c->bits, .levels = d->args->layout->constants->levels[side]};

    for (size_t half = 0; half < c->n_half && c->bits[half] > 0; half++)
        if (c->bits[half] > 4)
            ret.n_wide++;
        else
            ret.n_narrow++;
    return ret;
}

/* Rounds a row to whole numbers of which the largest is @limit; returns their step. */
static float attend_decode_step_of(size_t n, const float *x, const float *unit, float limit)
{
    float top = 0x1p-100f; /* not 0, so that quotients are finite */

    for (size_t c = 0; c < n; c++) {
        float size = fabsf(x[c] * unit[c]);

        top = size > top ? size : top;
    }
    return top / limit;
}

static int32_t attend_decode_nearest(float x)
{
    return (int32_t) (x + copysignf(0.5f, x));
}

/* Dimension @dim of @k as row @row of @keys. */
static void attend_decode_prepare_row(const struct decode *d, const struct key_columns *k,
                                      struct key_rows *keys, size_t row, size_t dim)
{
    size_t n_wide = 8 * k->n_wide, n_narrow = 8 * k->n_narrow;
    const float *dec = key_columns_row(k, dim), *unit = k->unit;
    int16_t *wide = keys->wide + row * n_wide;
    int8_t *narrow = keys->narrow + row * n_narrow;
    float step = attend_decode_step_of(n_wide, dec, unit, WIDE_MAX);
    int32_t sum = 0;

    keys->wide_step[row] = step;
    for (size_t c = 0; c < n_wide; c++)
        wide[c] = (int16_t) attend_decode_nearest(dec[c] * unit[c] * (1 / step));
    if (n_narrow > 0)
        dec += n_wide;
    step = attend_decode_step_of(n_narrow, dec, unit + n_wide, (float) d->ops->decode->narrow_max);
    keys->narrow_step[row] = step;
    for (size_t c = 0; c < n_narrow; c++) {
        narrow[c] = (int8_t) attend_decode_nearest(dec[c] * unit[n_wide + c] * (1 / step));
        sum += narrow[c];
    }

    keys->start[row] = -128 * sum;
    keys->mean[row] = d->head.k->mean[dim];
}

/* Mean squares of keys over tokens in each plane: in total, and about the mean. Levels in units of z have
 * variance 1 or less. */
static void attend_decode_plane_energies(const struct decode *d, float *ret_all, float *ret_centred)
{
    const struct geometry *g = d->rows->geometry;
    const struct codec *k = d->head.k;
    float rms[TABLE_RANK_MAX];

    for (size_t c = 0; c < k->r; c++) {
        unsigned b = k->bits[c / 8];

        rms[c] = b == 0 ? 0 : 1 / d->head.table->levels[SIDE_K][b].step;
    }

    for (size_t i = 0; i < g->n_rot / 2; i++) {
        float centred = 0, mean = 0;

        for (unsigned hi = 0; hi < 2; hi++) {
            size_t row = plane_dim(g, i, hi);
            const float *dec = codec_dec_row(k, row);

            for (size_t c = 0; c < k->r; c++)
                centred += dec[c] * rms[c] * (dec[c] * rms[c]);
            mean += k->mean[row] * k->mean[row];
        }

        ret_all[i] = centred + mean;
        ret_centred[i] = centred;
    }
}

/*
 * Chooses n so that planes n .. are folded. For every row the error of its scores, sum over these planes of
 * fold_error |q_i| |k_i|, must not exceed 2^-11 of the size of the scores about their mean, or 2^-11 of 2
 * if that is larger: softmax depends on absolute errors. The query is that of the call and the energies of
 * the keys are those of the codec, so nothing must be known in advance.
 */
static size_t attend_decode_pick_fast(const struct decode *d, double *ret_bound)
{
    const struct page_constants *constants = d->args->layout->constants;
    const struct geometry *g = d->rows->geometry;
    size_t half = g->n_rot / 2, n_fast = 0;
    float all[GEOMETRY_PLANES_MAX], centred[GEOMETRY_PLANES_MAX];

    *ret_bound = 0;
    if (d->rows->n > FOLD_ROWS_MAX || d->args->exact_rope)
        return g->d / 2;

    n_fast = d->head.k->fast_planes; /* which cannot be folded into coordinates of the others */

    attend_decode_plane_energies(d, all, centred);
    for (size_t row = 0; row < d->rows->n; row++) {
        const float *q = d->rows->q + row * g->d;
        float energy[GEOMETRY_PLANES_MAX], square = 0, error = 0, more, limit;
        size_t n = half;

        for (size_t i = 0; i < half; i++) {
            energy[i] = q[i] * q[i] + q[half + i] * q[half + i];
            square += energy[i] * centred[i] / 2;
        }

        limit = 0x1p-11f * fminf(sqrtf(square), 2);
        for (; n > 0; n--, error = more) {
            more = error + constants->fold_error[n - 1] * sqrtf(energy[n - 1] * all[n - 1]);
            if (more > limit)
                break;
        }

        *ret_bound = fmax(*ret_bound, (double) error / sqrt(fmax((double) square, 1e-30)));
        n_fast = n > n_fast ? n : n_fast;
    }

    return n_fast;
}

/* Planes @first .. @end - 1 from @k. */
static void attend_decode_prepare_keys(const struct decode *d, const struct key_columns *k, size_t first,
                                       size_t end, struct key_rows *keys)
{
    const struct page_constants *constants = d->args->layout->constants;
    const struct geometry *g = d->rows->geometry;
    size_t rotated = g->n_rot / 2 < end ? g->n_rot / 2 : end;

    for (size_t i = first; i < end; i++)
        for (unsigned hi = 0; hi < 2; hi++)
            attend_decode_prepare_row(d, k, keys, 2 * (i - first) + hi, plane_dim(g, i, hi));
    keys->n_planes = end - first;
    keys->n_rot = rotated > first ? rotated - first : 0;
    keys->kt_planes = d->n_fast;
    keys->cos = constants->cos + first * CHUNK_TOKENS;
    keys->sin = constants->sin + first * CHUNK_TOKENS;
}

/* ---- coordinates in two blocks ---- */

/* Half-tiles of fast planes come first among the wide ones, and among the narrow ones. */
static void attend_decode_sort_half_tiles(const struct codec *k, const struct coded *c, size_t *ret_fast_wide,
                                          size_t *ret_fast_narrow, uint8_t ret_place[TABLE_HALF_TILES_MAX])
{
    size_t n[2] = {0}; /* fast ones, wide and narrow */

    for (size_t half = 0; half < c->n_wide + c->n_narrow; half++)
        n[half >= c->n_wide] += codec_half_is_fast(k, half);
    for (size_t half = 0, fast = 0, slow = n[0]; half < c->n_wide + c->n_narrow; half++) {
        if (half == c->n_wide) {
            fast = 0;
            slow = n[1];
        }
        ret_place[half] = (uint8_t) (codec_half_is_fast(k, half) ? fast++ : slow++);
    }

    *ret_fast_wide = n[0];
    *ret_fast_narrow = n[1];
}

/* Copies the columns of a block, sorted, to d->columns, and their units to @ret_unit. @unit: of all columns
 * of K, in their order */
static void attend_decode_take_block(struct decode *d, bool fast, const float *unit, float *ret_unit,
                                     struct key_columns *ret)
{
    const struct geometry *g = d->rows->geometry;
    const struct codec *k = d->head.k;
    size_t ld = round_lanes(g->d), wide = fast ? d->fast_wide : d->k.n_wide - d->fast_wide;
    size_t narrow = fast ? d->fast_narrow : d->k.n_narrow - d->fast_narrow;

    *ret = (struct key_columns){.dec = d->columns,
                                .ld = ld,
                                .r = round_lanes(8 * (wide + narrow)), /* as fold.c needs it */
                                .n_wide = wide,
                                .n_narrow = narrow,
                                .unit = ret_unit};
    memset(ret_unit, 0, ret->r * sizeof(*ret_unit));
    for (uint32_t dim = 0; dim < g->d; dim++)
        if (geometry_in_planes(g, k->fast_planes, dim) == fast)
            memset(d->columns + dim * ld, 0, ret->r * sizeof(*d->columns));
    for (size_t half = 0; half < d->k.n_wide + d->k.n_narrow; half++) {
        size_t place = d->place[half], at;

        if (codec_half_is_fast(k, half) != fast)
            continue;
        if (half < d->k.n_wide)
            at = 8 * (place - (fast ? 0 : d->fast_wide));
        else
            at = 8 * (wide + place - (fast ? 0 : d->fast_narrow));
        memcpy(ret_unit + at, unit + 8 * half, 8 * sizeof(*unit));
        for (uint32_t dim = 0; dim < g->d; dim++)
            if (geometry_in_planes(g, k->fast_planes, dim) == fast)
                memcpy(d->columns + dim * ld + at, codec_dec_row(k, dim) + 8 * half, 8 * sizeof(float));
    }
}

/* Prepares the keys of the fast planes; returns the columns of the others. */
static struct key_columns attend_decode_part(struct decode *d, const float *unit,
                                             float ret_unit[TABLE_RANK_MAX])
{
    const struct codec *k = d->head.k;
    struct key_columns ret = {k->dec, k->r_in, k->r, d->k.n_wide, d->k.n_narrow, unit};

    d->fast_wide = d->fast_narrow = 0;
    if (k->fast_planes == 0)
        return ret;

    attend_decode_sort_half_tiles(k, &d->k, &d->fast_wide, &d->fast_narrow, d->place);
    d->k.place = d->place;
    attend_decode_take_block(d, true, unit, ret_unit, &ret);
    attend_decode_prepare_keys(d, &ret, 0, k->fast_planes, &d->fast_keys);
    attend_decode_take_block(d, false, unit, ret_unit, &ret);
    return ret;
}

/* K codec of the @i-th head that V is predicted from. */
static const struct codec *attend_decode_predictor(const struct decode *d, uint32_t i)
{
    return table_codec(d->head.table, d->head.layer, d->predictors.first + i, SIDE_K);
}

void decode_begin(struct decode *d, size_t first_page, const struct rope_phase *frame)
{
    const struct page_constants *constants = d->args->layout->constants;
    const struct codec *k = d->head.k, *v = d->head.v;
    float unit[TABLE_RANK_MAX] = {0}, part[TABLE_RANK_MAX];
    struct key_columns columns;

    for (size_t c = 0; c < k->r; c++)
        unit[c] = constants->levels[SIDE_K][k->bits[c / 8]].unit;
    d->k = attend_decode_coded_side(d, SIDE_K, k);
    d->v = attend_decode_coded_side(d, SIDE_V, v);
    d->n_fast = attend_decode_pick_fast(d, &d->fold_bound);
    columns = attend_decode_part(d, unit, part);
    attend_decode_prepare_keys(d, &columns, k->fast_planes, d->n_fast, &d->keys);
    if (d->n_fast < d->rows->geometry->d / 2)
        fold_begin(&d->fold, d->ops, constants, d->rows, &columns, k->mean, frame, d->n_fast);
    d->frame = *frame;
    d->first_page = first_page;
    d->predictors = table_predictors(d->head.table, d->head.head);
    d->wide = d->v.n_wide > 0;
    for (uint32_t h = 0; h < d->predictors.n; h++)
        d->wide |= attend_decode_coded_side(d, SIDE_K, attend_decode_predictor(d, h)).n_wide > 0;
    d->v_sums = (size_t) v->n_pred * KEY_SUMS;
    d->sums_cols = d->v_sums + (size_t) v->r * DECODE_PARTS;
    memset(d->sums, 0, d->rows->n * d->sums_cols * sizeof(*d->sums));
}

/* ---- a page ---- */

/* Scores of rows i .. i + n - 1 over the keys of the fast planes. Rows of q are [lo
 * | hi] as keys are, each rounded up. */
static void attend_decode_score_fast(struct decode *d, size_t i, size_t n)
{
    const struct geometry *g = d->rows->geometry;
    size_t half = g->n_rot / 2, fast = d->n_fast, n_rotated = half < fast ? half : fast,
           ld = round_lanes(fast);

    for (size_t x = 0; x < n; x++) {
        const float *q = d->rows->q + (i + x) * g->d;
        float *ret = d->q + x * 2 * ld;

        d->ops->decode->rotate(q, half, d->frame.cos, d->frame.sin, n_rotated, ret, ld);
        for (size_t p = n_rotated; p < fast; p++) { /* without rotation: dimensions 2 p and 2 p + 1 */
            ret[p] = q[2 * p];
            ret[ld + p] = q[2 * p + 1];
        }
    }

    memset(d->scores, 0, n * CHUNK_TOKENS * sizeof(*d->scores));
    for (unsigned hi = 0; hi < 2; hi++)
        d->ops->matmul(n, CHUNK_TOKENS, fast, (struct matrix_in){d->q + hi * ld, 2 * ld},
                       (struct matrix_in){d->kt + hi * fast * CHUNK_TOKENS, CHUNK_TOKENS},
                       (struct matrix_out){d->scores, CHUNK_TOKENS});
}

/* Advances the phases of the fast planes to the next page. */
static void attend_decode_advance(struct decode *d)
{
    const struct rope_phase *back = &d->args->layout->constants->page_back;

    size_t half = d->rows->geometry->n_rot / 2;

    for (size_t p = 0; p < half && p < d->n_fast; p++) {
        double c = d->frame.cos[p], s = d->frame.sin[p];

        d->frame.cos[p] = c * back->cos[p] - s * back->sin[p];
        d->frame.sin[p] = s * back->cos[p] + c * back->sin[p];
    }
}

/* Scores of exact keys 0 .. n_exact - 1 of the page; overwrites the scores of the codes in their places. */
static void attend_decode_score_exact(struct decode *d, size_t i, size_t n, size_t n_exact,
                                      const float *exact_k)
{
    const struct geometry *g = d->rows->geometry;
    const struct rope_phase *back = &d->args->layout->constants->token_back;
    struct rope_phase phase = d->frame; /* of page 0, the first page, so it has all planes */

    for (size_t t = 0; t < n_exact; t++, rope_phase_advance(g, &phase, back))
        for (size_t x = 0; x < n; x++) {
            float sum = 0;

            rope_rotate(g, &phase, d->rows->q + (i + x) * g->d, d->rotated);
            for (size_t c = 0; c < g->d; c++)
                sum += d->rotated[c] * exact_k[t * g->d + c];
            d->scores[x * CHUNK_TOKENS + t] = sum;
        }
}

static void attend_decode_scale(size_t n, float factor, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* Scores of rows i .. i + n - 1 to weights; rescales sums where the maximum of a row grows. */
static void attend_decode_softmax(struct decode *d, size_t i, size_t n, size_t first, size_t n_exact)
{
    float factor[DECODE_ROWS_MAX];

    for (size_t x = 0; x < n; x++)
        rows_hide(d->rows, i + x, first, CHUNK_TOKENS, d->scores + x * CHUNK_TOKENS);
    d->ops->decode->softmax(n, d->scores, d->rows->state + i, n_exact, d->wide, factor, d->weights);
    for (size_t x = 0; x < n; x++)
        if (factor[x] != 1) {
            d->rows->state[i + x].skipped *= factor[x];
            attend_decode_scale(d->rows->acc_cols, factor[x], d->rows->acc + (i + x) * d->rows->acc_cols);
            attend_decode_scale(d->sums_cols, factor[x], d->sums + (i + x) * d->sums_cols);
        }
}

/* Bytes from a block of page @page to the same block of the next page; 0 for the last. */
static ptrdiff_t attend_decode_next_page(const struct attend_args *a, size_t page)
{
    return page + 1 < a->n_pages
               ? (ptrdiff_t) ((uintptr_t) a->payloads[page + 1] - (uintptr_t) a->payloads[page])
               : 0;
}

/* Adds weights times the levels of the keys that V is predicted from. Those of
 * the head itself are already unpacked. */
static void attend_decode_add_keys(struct decode *d, size_t page, size_t n, const struct row_weights *weights,
                                   float *sums)
{
    const struct attend_args *a = d->args;
    uint8_t place[TABLE_HALF_TILES_MAX];
    size_t fast_wide, fast_narrow;

    for (uint32_t h = 0; h < d->predictors.n; h++) {
        uint32_t head = d->predictors.first + h;
        const struct codec *codec = attend_decode_predictor(d, h);
        struct coded k = attend_decode_coded_side(d, SIDE_K, codec);

        if (head != d->head.head) {
            if (codec->fast_planes > 0) {
                attend_decode_sort_half_tiles(codec, &k, &fast_wide, &fast_narrow, place);
                k.place = place;
            }
            k.at =
                a->payloads[page] + page_block_off(a->layout, a->layer, head - a->layout->shard.first_head);
            k.next_page = attend_decode_next_page(a, page);
            d->ops->decode->unpack_keys(&k, &d->other);
        }

        d->ops->decode->key_values(head == d->head.head ? &d->codes : &d->other, n, weights, sums,
                                   d->sums_cols);
        sums += (size_t) codec->r * KEY_SUMS;
    }
}

/* Adds weights of rows i .. i + n - 1 times everything that the page holds, to the rows that need it. */
static void attend_decode_add_values(struct decode *d, size_t page, size_t i, size_t n, const uint8_t *block)
{
    struct coded v = d->v;
    float page_weights[DECODE_ROWS_MAX];
    const struct row_weights *weights;
    size_t needing;
    float *sums;

    for (size_t x = 0; x < n; x++)
        page_weights[x] = d->weights[x].sum;
    n = rows_needing_values(d->rows, i, n, page_weights, &needing);
    if (n == 0)
        return;

    weights = d->weights + needing;
    sums = d->sums + (i + needing) * d->sums_cols;
    v.at = block + page_v_off(d->head.k);
    v.next_page = attend_decode_next_page(d->args, page);
    attend_decode_add_keys(d, page, n, weights, sums);
    d->ops->decode->values(&v, n, weights, sums + d->v_sums, d->sums_cols);
}

/* Half-tiles of the block of the fast planes, or of the other one, which has all without such a block. */
static struct key_codes attend_decode_block(const struct decode *d, bool fast)
{
    size_t first_wide = fast ? 0 : d->fast_wide, first_narrow = fast ? 0 : d->fast_narrow;

    return (struct key_codes){
        .n_wide = fast ? d->fast_wide : d->codes.n_wide - d->fast_wide,
        .n_narrow = fast ? d->fast_narrow : d->codes.n_narrow - d->fast_narrow,
        .wide = d->codes.wide + first_wide * HALF_TILE_CODES,
        .narrow = d->codes.narrow + first_narrow * HALF_TILE_CODES,
    };
}

void decode_page(struct decode *d, size_t page, size_t n_exact, const float *exact_k, const float *exact_v,
                 size_t exact_ld)
{
    const struct attend_args *a = d->args;
    const uint8_t *block = a->payloads[page] + page_block_off(a->layout, a->layer, a->head);
    size_t first = page * CHUNK_TOKENS, i = rows_first_seeing(d->rows, first);
    size_t n = rows_end_seeing(d->rows, first + CHUNK_TOKENS - 1) - i;
    size_t fast_planes = d->head.k->fast_planes;
    struct key_codes slow, fast;
    struct coded k = d->k;

    k.at = block;
    k.next_page = attend_decode_next_page(a, page);
    d->ops->decode->unpack_keys(&k, &d->codes);
    slow = attend_decode_block(d, false);
    if (fast_planes > 0) {
        fast = attend_decode_block(d, true);
        d->ops->decode->keys(&fast, &d->fast_keys, d->kt);
    }
    d->ops->decode->keys(&slow, &d->keys, d->kt + fast_planes * CHUNK_TOKENS);
    attend_decode_score_fast(d, i, n);
    if (d->n_fast < d->rows->geometry->d / 2)
        fold_page(&d->fold, page - d->first_page, &slow, i, n, d->scores);
    if (n_exact > 0)
        attend_decode_score_exact(d, i, n, n_exact, exact_k);
    attend_decode_softmax(d, i, n, first, n_exact);
    d->ops->matmul(n, round_lanes(d->rows->geometry->d), n_exact, (struct matrix_in){d->scores, CHUNK_TOKENS},
                   (struct matrix_in){exact_v, exact_ld},
                   (struct matrix_out){d->rows->acc + i * d->rows->acc_cols, d->rows->acc_cols});
    attend_decode_add_values(d, page, i, n, block);
    attend_decode_advance(d);
}

/* ---- finish ---- */

/* Adds the sums of K's levels, from key_values() of decode.h, to acc [r]. */
static void attend_decode_finish_keys(const struct decode *d, const struct codec *k, const float *sums,
                                      float *acc)
{
    const struct level_table *levels = d->args->layout->constants->levels[SIDE_K];
    struct coded coded = attend_decode_coded_side(d, SIDE_K, k);
    size_t lanes = d->ops->decode->lanes, n_wide = coded.n_wide, fast_wide, fast_narrow;
    uint8_t place[TABLE_HALF_TILES_MAX] = {0};

    attend_decode_sort_half_tiles(k, &coded, &fast_wide, &fast_narrow, place);
    for (size_t half = 0; half < n_wide; half++)
        for (size_t i = 0; i < PAIRS * lanes; i++)
            acc[8 * half + i / lanes * 2 + i % 4 / 2] +=
                sums[place[half] * PAIRS * lanes + i] * levels[k->bits[half]].unit;
    sums += n_wide * PAIRS * lanes;
    for (size_t half = n_wide; half < n_wide + coded.n_narrow; half++)
        for (size_t i = 0; i < QUADS * lanes; i++)
            acc[8 * half + i / lanes * 4 + i % 4] += sums[place[half] * QUADS * lanes + i];
}

static void attend_decode_finish_values(const struct decode *d, const float *sums, float *acc)
{
    const struct level_table *levels = d->args->layout->constants->levels[SIDE_V];

    for (size_t col = 0; col < d->head.v->r; col++) {
        const float *part = sums + col * DECODE_PARTS;

        acc[col] += ((part[0] + part[1]) + (part[2] + part[3])) * levels[d->head.v->bits[col / 8]].unit;
    }
}

void decode_finish(struct decode *d, size_t first_col)
{
    for (size_t i = 0; i < d->rows->n; i++) {
        const float *sums = d->sums + i * d->sums_cols;
        float *acc = d->rows->acc + i * d->rows->acc_cols + first_col;

        for (uint32_t h = 0; h < d->predictors.n; h++) {
            const struct codec *k = attend_decode_predictor(d, h);

            attend_decode_finish_keys(d, k, sums, acc);
            sums += (size_t) k->r * KEY_SUMS;
            acc += k->r;
        }

        attend_decode_finish_values(d, sums, acc);
    }
}
