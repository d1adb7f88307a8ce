/*
 * Sequences on a GPU whose pages are in host memory: stores the caller's vectors as rows, encodes rows into
 * pages, decodes pages into the caller's cache. Rows and codes have the bits of the CPU
 * (client/sequence/seq_host.c), and so have vectors that are decoded to binary32: the same sums in the same
 * order, each rounded to binary32. Numbers of 16 bits are decoded by matrix instructions.
 */
#include "gpu/cuda/kernels/packing.h"
#include "gpu/cuda/kernels/pairs.h"

/* ---- forms of vectors ---- */

/* The place of both dimensions of plane @p in a vector of the caller. */
DEVICE uint32_t caller_dim(const struct device_table *t, uint32_t form, bool is_key, uint32_t p, uint32_t hi)
{
    if (is_key && form & LAUNCH_INTERLEAVED)
        return 2 * p + hi;
    return device_plane_dim(t->n_rot, p, hi);
}

/* Turns plane @p of the key at @position by its angle, or back if @sign is -1. */
DEVICE void turn(const struct device_table *t, const struct launch_angles *a, uint32_t position, uint32_t p,
                 float sign, float *lo, float *hi)
{
    uint32_t half = t->n_rot / 2;
    const float *at = a->blocks + (size_t) (position / TOKENS % a->n_blocks) * 2 * TOKENS * half +
                      position % TOKENS * half + p;
    float c = at[0], s = mul_rounded(sign, at[TOKENS * half]), x = *lo, y = *hi;

    *lo = add_rounded(mul_rounded(x, c), -mul_rounded(y, s));
    *hi = add_rounded(mul_rounded(y, c), mul_rounded(x, s));
}

/* ---- rows ---- */

/* The row of one head and side at @position, from dimension 0. */
DEVICE uint16_t *row_of(const struct device_table *t, const struct launch_row_buffer *b, uint32_t side,
                        uint32_t kv_head, uint32_t position)
{
    return b->rows[side] + ((size_t) kv_head * b->n_rows + position % b->n_rows) * t->d;
}

/* Grid: (items x KV heads, 64 tokens of the longest item, 2 sides). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_store_rows(PARAMETER struct launch_rows a)
{
    const struct device_table *t = a.table;
    const struct launch_rows_item *item = &a.items[blockIdx.x / t->n_kv_heads];
    uint32_t kv_head = blockIdx.x % t->n_kv_heads, side = blockIdx.z, n_planes = t->d / 2;
    uint32_t first = TOKENS * blockIdx.y, left = first < item->n ? item->n - first : 0;
    uint32_t n = left < TOKENS ? left : (uint32_t) TOKENS;
    const struct device_head *head = t->heads + a.layer * t->n_kv_heads + kv_head;
    const float *mean = side ? head->mean_v : head->decode_mean_k;
    bool finite = true;

    for (uint32_t i = threadIdx.x; i < n * n_planes; i += LAUNCH_THREADS) {
        uint32_t token = first + i / n_planes, p = i % n_planes, position = item->first + token;
        size_t at = token * item->token_stride[side] + kv_head * item->head_stride[side];
        uint32_t dim_lo = device_plane_dim(t->n_rot, p, 0), dim_hi = device_plane_dim(t->n_rot, p, 1), pair;
        uint16_t *row = row_of(t, &item->to, side, kv_head, position);
        float lo = element(item->vectors[side], a.dtype, at + caller_dim(t, item->form, side == 0, p, 0));
        float hi = element(item->vectors[side], a.dtype, at + caller_dim(t, item->form, side == 0, p, 1));

        if (side == 0 && item->form & LAUNCH_AFTER_ROPE && p < t->n_rot / 2)
            turn(t, &a.angles, position, p, -1, &lo, &hi);
        pair = pack_halves(add_rounded(lo, -mean[dim_lo]), add_rounded(hi, -mean[dim_hi]));
        row[dim_lo] = (uint16_t) pair;
        row[dim_hi] = (uint16_t) (pair >> 16);
        finite = finite && is_finite_half(pair) && is_finite_half(pair >> 16);
    }
    if (!finite)
        raise(item->faults, DEVICE_NOT_FINITE);
}

/* Grid: (KV heads, 64 tokens, 2 sides). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_move_rows(PARAMETER struct launch_move a)
{
    const struct device_table *t = a.table;
    uint32_t first = TOKENS * blockIdx.y, left = a.n - first, n = left < TOKENS ? left : (uint32_t) TOKENS;

    for (uint32_t i = threadIdx.x; i < n * (t->d / 2); i += LAUNCH_THREADS) {
        uint32_t position = a.first + first + i / (t->d / 2), pair = i % (t->d / 2);

        ((uint32_t *) row_of(t, &a.to, blockIdx.z, blockIdx.x, position))[pair] =
            ((const uint32_t *) row_of(t, &a.from, blockIdx.z, blockIdx.x, position))[pair];
    }
}

/* ---- encoding ---- */

DEVICE void encode(const struct launch_encode *a, bool is_key)
{
    const struct device_table *t = a->table;
    const struct launch_chunk *of = &a->chunks[blockIdx.x / t->n_kv_heads];
    uint32_t kv_head = blockIdx.x % t->n_kv_heads;
    struct chunk c = chunk_of_head(t, of->layer, kv_head, is_key);

    c.rows = row_of(t, &of->rows, is_key ? 0 : 1, kv_head, TOKENS * of->number);
    c.payload = of->payload;
    c.n_sink = of->number == 0 ? t->n_sink : 0;
    pack_tile(&c, blockIdx.y);
}

/* Grid of both kernels: (chunks x KV heads, tiles of the side's widest head, at least one). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_encode_keys(PARAMETER struct launch_encode a)
{
    encode(&a, true);
}

KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_encode_values(PARAMETER struct launch_encode a)
{
    encode(&a, false);
}

/* ---- decoding ---- */

enum { VALUE_LD = LAUNCH_TILE_ROWS + 1 };

/*
 * What a block decodes: 64 tokens of one layer, side and head, and one tile of planes. A thread has both
 * dimensions of two planes, so that it can turn them: rows lo, lo, hi, hi.
 */
struct part {
    const struct launch_decode_layer *of;
    const struct device_head *head;
    const uint8_t *payload; /* NULL: the chunk is not packed */
    const float *mean;
    uint32_t layer, kv_head, chunk;
    uint32_t first_plane; /* of the tile */
    uint32_t token;       /* of this thread, then those LAUNCH_TOKENS apart */
    uint32_t plane;       /* of this thread: this one and the next */
    uint32_t dims[ROWS];  /* of this thread; those beyond the last plane repeat the last one */
    bool is_key;
};

DEVICE struct part part_of(const struct launch_decode *a, uint32_t kv_head, uint32_t tile)
{
    const struct device_table *t = a->table;
    uint32_t lane = threadIdx.x % 32;
    struct part p;

    p.of = a->layers + blockIdx.z / 2;
    p.layer = a->first_layer + blockIdx.z / 2;
    p.is_key = blockIdx.z % 2 == 0;
    p.kv_head = kv_head;
    p.head = t->heads + p.layer * t->n_kv_heads + p.kv_head;
    p.mean = p.is_key ? p.head->decode_mean_k : p.head->mean_v;
    p.chunk = a->first / TOKENS + blockIdx.x;
    p.payload = p.chunk < p.of->n_packed ? a->payloads[blockIdx.x] : nullptr;
    p.first_plane = tile * LAUNCH_TILE_PLANES;
    p.token = lane % LANE_TOKENS;
    p.plane = p.first_plane + 4 * (threadIdx.x / 32) + lane / LANE_TOKENS * 2;
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t plane = p.plane + i % 2, last = t->d / 2 - 1;

        p.dims[i] = device_plane_dim(t->n_rot, plane < last ? plane : last, i / 2);
    }
    return p;
}

/* x += the columns of dec, from @dec of dimension 0 on and @ld apart, times the levels of @codes. */
DEVICE void add_levels(const struct device_table *t, const struct part *p, const struct device_codes *codes,
                       const uint8_t *block, bool is_key, const float *dec, size_t ld, float x[ROWS][MINE])
{
    float *levels = (float *) dynamic_shared, sum[ROWS][MINE] = {{0}};
    const float *row[ROWS];

    if (codes->r == 0)
        return;
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        row[i] = dec + p->dims[i] * ld;
    load_levels(levels_of(t, is_key), codes, block, is_key, levels);
    multiply_rows(row, levels + p->token, LEVEL_LD, codes->r, sum);
    __syncthreads(); /* before others overwrite it */
    add_shares(x, sum, false);
}

/* Mean, plus the part of the predictors, head by head, plus the part of the codec's own codes. */
DEVICE void decode_packed(const struct device_table *t, const struct part *p, float x[ROWS][MINE])
{
    const struct device_head *head = p->head,
                             *from = t->heads + p->layer * t->n_kv_heads + head->first_predictor;
    size_t ld = p->is_key ? head->k.r : head->r_in;
    const float *dec = p->is_key ? head->decode_k : head->dec_v;

    for (uint32_t i = 0; !p->is_key && i < head->n_predictors; i++, from++) {
        add_levels(t, p, &from->k, p->payload + from->block, true, dec, ld, x);
        dec += from->k.r;
    }
    add_levels(t, p, p->is_key ? &head->k : &head->v, p->payload + head->block, p->is_key, dec, ld, x);
}

/* Binary16 of x - mean of the token at @position of the chunk; NULL if the token is not exact. */
DEVICE const uint16_t *exact_row(const struct device_table *t, const struct part *p, uint32_t position)
{
    if (!p->payload)
        return row_of(t, &p->of->rows, p->is_key ? 0 : 1, p->kv_head, position);
    if (position < t->n_sink)
        return (const uint16_t *) (p->payload + (p->is_key ? p->head->sinks_k : p->head->sinks_v)) +
               position * t->d;
    return nullptr;
}

/* Where dimension @i of the tile lies for the caller, in the order in which the caller has them: 16 of the
 * first dimensions of planes and 16 of the second ones, or pairs. */
struct tile_dim {
    uint32_t plane, hi;
};

DEVICE struct tile_dim tile_dim_of(uint32_t i, bool in_pairs)
{
    return in_pairs ? tile_dim{i / 2, i % 2} : tile_dim{i % LAUNCH_TILE_PLANES, i / LAUNCH_TILE_PLANES};
}

DEVICE void store_number(void *to, enum launch_dtype dtype, size_t at, float x)
{
    if (dtype == LAUNCH_F32)
        ((float *) to)[at] = x;
    else
        ((uint16_t *) to)[at] = dtype == LAUNCH_F16 ? (uint16_t) pack_halves(x, 0) : float_to_bfloat(x);
}

/* The caller's memory for a position of this head and side, in numbers from the base. */
DEVICE size_t place_of(const struct launch_decode *a, uint32_t kv_head, uint32_t position)
{
    uint64_t at = position - a->origin, block = at / a->block_tokens;

    if (a->blocks)
        block = (uint64_t) a->blocks[block - a->first_block];
    return block * a->block_stride + at % a->block_tokens * a->token_stride + kv_head * a->head_stride;
}

/* Writes the places of the 64 positions of a chunk to shared memory, each computed once: divisions of 64 bits
 * take longer than most else here. A barrier follows. */
DEVICE void fill_places(const struct launch_decode *a, uint32_t kv_head, uint32_t chunk, uint64_t *ret)
{
    for (uint32_t token = threadIdx.x; token < TOKENS; token += LAUNCH_THREADS) {
        uint32_t position = TOKENS * chunk + token;

        if (position >= a->first && position - a->first < a->n)
            ret[token] = place_of(a, kv_head, position);
    }
}

/* Stores the tile from shared memory [64][VALUE_LD], neighbours in the caller's memory by neighbouring
 * threads. */
DEVICE void store_tile(const struct launch_decode *a, const struct part *p, const float *values,
                       const uint64_t *places)
{
    const struct device_table *t = a->table;
    uint32_t form = p->is_key ? a->form : 0, column = threadIdx.x % LAUNCH_TILE_ROWS;
    bool in_pairs = form & LAUNCH_INTERLEAVED || p->first_plane >= t->n_rot / 2;
    struct tile_dim dim = tile_dim_of(column, in_pairs);
    uint32_t plane = p->first_plane + dim.plane;
    size_t off = plane < t->d / 2 ? caller_dim(t, form, p->is_key, plane, dim.hi) * a->dim_stride : 0;

    for (uint32_t token = threadIdx.x / LAUNCH_TILE_ROWS; token < TOKENS;
         token += LAUNCH_THREADS / LAUNCH_TILE_ROWS) {
        uint32_t position = TOKENS * p->chunk + token;

        if (plane < t->d / 2 && position >= a->first && position - a->first < a->n)
            store_number(p->of->to[!p->is_key], a->dtype, places[token] + off,
                         values[token * VALUE_LD + LAUNCH_TILE_PLANES * dim.hi + dim.plane]);
    }
}

/* Grid: (chunks of 64 positions that the range touches, KV heads x tiles of LAUNCH_TILE_PLANES planes, layers
 * x 2 sides). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_decode(PARAMETER struct launch_decode a)
{
    const struct device_table *t = a.table;
    uint32_t n_tiles = (t->d / 2 + LAUNCH_TILE_PLANES - 1) / LAUNCH_TILE_PLANES;
    struct part p = part_of(&a, blockIdx.y / n_tiles, blockIdx.y % n_tiles);
    float *values = (float *) dynamic_shared, x[ROWS][MINE];
    uint64_t *places = (uint64_t *) (values + TOKENS * VALUE_LD);

    if (!p.of->to[!p.is_key])
        return;
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++) {
        UNROLL
        for (uint32_t j = 0; j < MINE; j++)
            x[i][j] = p.mean[p.dims[i]];
    }
    if (p.payload)
        decode_packed(t, &p, x);
    fill_places(&a, p.kv_head, p.chunk, places);
    UNROLL
    for (uint32_t j = 0; j < MINE; j++) {
        uint32_t token = p.token + LANE_TOKENS * j, position = TOKENS * p.chunk + token;
        bool any = position >= a.first && position - a.first < a.n;
        const uint16_t *exact = any ? exact_row(t, &p, position) : nullptr;

        UNROLL
        for (uint32_t i = 0; i < ROWS; i++)
            if (exact)
                x[i][j] = exact_value(p.mean[p.dims[i]], exact[p.dims[i]]);
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            if (any && p.is_key && a.form & LAUNCH_AFTER_ROPE && p.plane + i < t->n_rot / 2)
                turn(t, &a.angles, position, p.plane + i, 1, &x[i][j], &x[2 + i][j]);
            values[token * VALUE_LD + p.plane - p.first_plane + i] = x[i][j];
            values[token * VALUE_LD + LAUNCH_TILE_PLANES + p.plane - p.first_plane + i] = x[2 + i][j];
        }
    }
    __syncthreads();
    store_tile(&a, &p, values, places);
}

/* ---- decoding to 16 bits ---- */

/*
 * A block decodes 64 tokens of one layer, side and head. Levels of all coordinates lie in shared memory as
 * operands B of 16x8x16 matrix instructions, 16 coordinates by 8 tokens: exact, as they are binary16.
 * Operand A is the decoder: rows g and g + 8 are both dimensions of a plane, so that a thread can turn
 * keys. Each of its numbers is scaled by a power of two and divided into two numbers of binary16, which
 * together have 22 bits: sums in binary32 are then about as good as those of the CPU, in another order, and
 * a result of 16 bits differs by at most its last bit, where the sum is not far smaller than its terms.
 */
enum { STEP = 16, TILES = TOKENS / 8, STEP_WORDS = TILES * 2 * 32, PLANES = 8 };

#define DECODER_SCALE 32768.0f /* of the largest number: below the largest of binary16 */

/* Levels of one head and side, from step @first of the sum on. */
DEVICE void fill_operands(const uint16_t *levels, const struct device_codes *codes, const uint8_t *block,
                          bool is_key, uint32_t first, uint32_t *ret)
{
    uint32_t lane = threadIdx.x % 32;

    for (uint32_t i = threadIdx.x / 32; i < codes->r / STEP * TILES; i += LAUNCH_THREADS / 32) {
        uint32_t step = i / TILES, tile = i % TILES;
        uint32_t *at = ret + (first + step) * STEP_WORDS + tile * 2 * 32 + lane;

        for (uint32_t half = 0; half < 2; half++) {
            uint32_t pair = levels_at(levels, codes, block, 2 * step + half, lane, tile);

            at[32 * half] = is_key ? pair : transpose_8x8(pair); /* values have coordinates as rows */
        }
    }
}

/* All coordinates that the vectors of a head are decoded from. Returns the number of steps. */
DEVICE uint32_t fill_all_operands(const struct device_table *t, const struct part *p, uint32_t *ret)
{
    const struct device_head *head = p->head,
                             *from = t->heads + p->layer * t->n_kv_heads + head->first_predictor;
    const struct device_codes *own = p->is_key ? &head->k : &head->v;
    uint32_t n = 0;

    for (uint32_t i = 0; !p->is_key && i < head->n_predictors; i++, from++) {
        fill_operands(levels_of(t, true), &from->k, p->payload + from->block, true, n, ret);
        n += from->k.r / STEP;
    }
    fill_operands(levels_of(t, p->is_key), own, p->payload + head->block, p->is_key, n, ret);
    return n + own->r / STEP;
}

/* Two neighbours of the decoder in two parts. */
DEVICE void split_pair(const float *at, float scale, uint32_t *ret_high, uint32_t *ret_low)
{
    struct floats2 w = load_floats2(at);
    float x = w.x * scale, y = w.y * scale;

    *ret_high = pack_halves(x, y);
    *ret_low =
        pack_halves(x - half_to_float((uint16_t) *ret_high), y - half_to_float((uint16_t) (*ret_high >> 16)));
}

/* sum[tile] = rows @lo and @hi of the decoder, scaled, times the operands. */
DEVICE void multiply_operands(const float *lo, const float *hi, float scale, const uint32_t *operands,
                              uint32_t n_steps, float sum[TILES][4])
{
    uint32_t lane = threadIdx.x % 32, column = 2 * (lane % 4);

    for (uint32_t step = 0; step < n_steps; step++) {
        const uint32_t *b = operands + step * STEP_WORDS + lane;
        uint32_t high[4], low[4];

        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            split_pair((i % 2 ? hi : lo) + STEP * step + column + i / 2 * 8, scale, &high[i], &low[i]);
        UNROLL
        for (uint32_t tile = 0; tile < TILES; tile++) {
            mma_16x8x16(sum[tile], high, b[tile * 64], b[tile * 64 + 32]);
            mma_16x8x16(sum[tile], low, b[tile * 64], b[tile * 64 + 32]);
        }
    }
}

/* Stores both dimensions of plane @plane of a token, turned if the caller has keys after RoPE. */
DEVICE void store_plane(const struct launch_decode *a, const struct part *p, uint32_t token, uint32_t plane,
                        float lo, float hi, uint64_t place)
{
    const struct device_table *t = a->table;
    uint32_t position = TOKENS * p->chunk + token, form = p->is_key ? a->form : 0;
    const uint16_t *exact = exact_row(t, p, position);
    void *to = p->of->to[!p->is_key];

    if (exact) {
        lo = exact_value(p->mean[device_plane_dim(t->n_rot, plane, 0)],
                         exact[device_plane_dim(t->n_rot, plane, 0)]);
        hi = exact_value(p->mean[device_plane_dim(t->n_rot, plane, 1)],
                         exact[device_plane_dim(t->n_rot, plane, 1)]);
    }
    if (form & LAUNCH_AFTER_ROPE && plane < t->n_rot / 2)
        turn(t, &a->angles, position, plane, 1, &lo, &hi);
    store_number(to, a->dtype, place + caller_dim(t, form, p->is_key, plane, 0) * a->dim_stride, lo);
    store_number(to, a->dtype, place + caller_dim(t, form, p->is_key, plane, 1) * a->dim_stride, hi);
}

/* Eight planes of all tokens, by a warp. */
DEVICE void decode_planes(const struct launch_decode *a, const struct part *p, uint32_t first,
                          const uint32_t *operands, uint32_t n_steps, const uint64_t *places)
{
    const struct device_table *t = a->table;
    uint32_t lane = threadIdx.x % 32, last = t->d / 2 - 1, mine = first + lane / 4;
    uint32_t plane = mine < last ? mine : last;
    uint32_t dim_lo = device_plane_dim(t->n_rot, plane, 0), dim_hi = device_plane_dim(t->n_rot, plane, 1);
    size_t ld = p->is_key ? p->head->k.r : p->head->r_in;
    const float *dec = p->is_key ? p->head->decode_k : p->head->dec_v;
    float back = (p->is_key ? p->head->dec_k_scale : p->head->dec_v_scale) / DECODER_SCALE;
    float sum[TILES][4] = {{0}};

    if (n_steps > 0)
        multiply_operands(dec + dim_lo * ld, dec + dim_hi * ld, 1 / back, operands, n_steps, sum);
    UNROLL
    for (uint32_t tile = 0; tile < TILES; tile++) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t token = 8 * tile + 2 * (lane % 4) + i, position = TOKENS * p->chunk + token;

            if (mine <= last && position >= a->first && position - a->first < a->n)
                store_plane(a, p, token, plane, p->mean[dim_lo] + sum[tile][i] * back,
                            p->mean[dim_hi] + sum[tile][2 + i] * back, places[token]);
        }
    }
}

/* Grid: (chunks of 64 positions that the range touches, KV heads, layers x 2 sides). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_decode_16(PARAMETER struct launch_decode a)
{
    const struct device_table *t = a.table;
    uint64_t *places = (uint64_t *) dynamic_shared;
    uint32_t *operands = (uint32_t *) (places + TOKENS), n_steps = 0;
    struct part p = part_of(&a, blockIdx.y, 0);

    if (!p.of->to[!p.is_key])
        return;
    fill_places(&a, p.kv_head, p.chunk, places);
    if (p.payload)
        n_steps = fill_all_operands(t, &p, operands);
    __syncthreads();
    for (uint32_t first = PLANES * (threadIdx.x / 32); first < t->d / 2;
         first += PLANES * LAUNCH_THREADS / 32)
        decode_planes(&a, &p, first, operands, n_steps, places);
}

/* ---- numbers as they are ---- */

/* Grid: (tokens). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_copy_numbers(PARAMETER struct launch_copy a)
{
    uint64_t token = (uint64_t) a.first + blockIdx.x;
    size_t there = (size_t) (a.blocks[token / a.block_tokens] * a.block_stride +
                             token % a.block_tokens * a.token_stride);
    size_t here = (size_t) blockIdx.x * a.n_heads * a.d;

    for (uint32_t i = threadIdx.x; i < a.n_heads * a.d; i += LAUNCH_THREADS) {
        size_t at = there + i / a.d * a.head_stride + i % a.d * a.dim_stride;

        if (a.number_bytes == 2 && a.to_caller)
            ((uint16_t *) a.caller)[at] = ((const uint16_t *) a.dense)[here + i];
        else if (a.number_bytes == 2)
            ((uint16_t *) a.dense)[here + i] = ((const uint16_t *) a.caller)[at];
        else if (a.to_caller)
            ((uint32_t *) a.caller)[at] = ((const uint32_t *) a.dense)[here + i];
        else
            ((uint32_t *) a.dense)[here + i] = ((const uint32_t *) a.caller)[at];
    }
}
