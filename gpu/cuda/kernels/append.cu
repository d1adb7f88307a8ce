/*
 * Appends to sequences in device memory, with the same bits as the CPU
 * (client/sequence/seq_host.c). First, old rows of a tail are packed into pages, keys before
 * values, because values are residuals of a prediction from the stored codes of keys. Then the new
 * rows are stored behind the tail, which first moves to the front of its buffer if they do not fit.
 * The last block of a sequence in the last launch sets the lengths. All launches before it computed
 * the same lengths with append_step(), so nothing depends on the host.
 *
 * Grids are as large as the largest item needs; blocks without work in a smaller item end at once.
 */
#include "gpu/cuda/kernels/coding.h"

/* The item and KV head of this block: grids count items times KV heads first. */
struct place {
    const struct launch_append_item *item;
    uint32_t kv_head;
};

DEVICE struct place place_of(const struct launch_append *a)
{
    uint32_t n_heads = a->table->n_kv_heads;

    return {&a->items[blockIdx.x / n_heads], blockIdx.x % n_heads};
}

/* A layer of a sequence before the launches, and the changes that they make. */
struct task {
    struct device_seq seq;
    struct append_step step;
    bool fits; /* the memory that the host announced is large enough */
};

DEVICE struct task task_of(const struct launch_append *a, const struct launch_append_item *item)
{
    struct task t;

    t.seq = *item->seq;
    t.step = append_step(t.seq.n_pages, t.seq.n_exact, t.seq.first_row, t.seq.exact_ld, item->n_new,
                         item->n_pack, a->given);
    t.fits = t.step.n_exact <= t.seq.exact_ld && t.seq.n_pages + t.step.n_pack <= t.seq.n_claimed;
    return t;
}

/* ---- packing rows of the tail into a page ---- */

/* One chunk of one head and side, and the page that it is packed into. */
struct chunk {
    const struct device_head *head;
    const struct device_codes *codes;
    const struct device_encoder *encoder;
    const uint16_t *rows; /* [TOKENS][d] */
    const float *mean;    /* the mean that was subtracted from the rows */
    uint8_t *payload;
    uint32_t n_sink; /* how many of the rows are sinks; they stay exact */
    bool is_key;
};

DEVICE struct chunk chunk_of(const struct launch_append *a, const struct task *t, uint32_t kv_head,
                             uint32_t i, bool is_key)
{
    const struct device_table *table = a->table;
    const struct device_head *head = table->heads + a->layer * table->n_kv_heads + kv_head;
    size_t first = (size_t) kv_head * t->seq.exact_ld + t->seq.first_row + TOKENS * i;
    struct chunk c;

    c.head = head;
    c.codes = is_key ? &head->k : &head->v;
    c.encoder = is_key ? &head->encode_k : &head->encode_v;
    c.rows = (is_key ? t->seq.exact_k : t->seq.exact_v) + first * table->d;
    c.mean = is_key ? head->decode_mean_k : head->mean_v;
    c.payload = t->seq.payloads[t->seq.n_pages + i];
    c.n_sink = t->seq.n_pages + i == 0 ? table->n_sink : 0;
    c.is_key = is_key;
    return c;
}

DEVICE void store_sinks(const struct device_table *t, const struct chunk *c)
{
    uint16_t *to = (uint16_t *) (c->payload + (c->is_key ? c->head->sinks_k : c->head->sinks_v));

    for (uint32_t i = threadIdx.x; i < c->n_sink * t->d; i += LAUNCH_THREADS)
        to[i] = c->rows[i];
}

/* Loads the input of the encoder to shared [d][COLUMN_LD]: rows plus their mean minus the mean of the
 * encoder; sinks are set to zero, the encoder's mean. */
DEVICE void load_centred(const struct device_table *t, const struct chunk *c, float *ret)
{
    const uint32_t *pairs = (const uint32_t *) c->rows;
    /* which of two goes first, so that the lanes of a warp write to all banks */
    uint32_t first = threadIdx.x / 16;

    for (uint32_t i = threadIdx.x; i < TOKENS * t->d / 2; i += LAUNCH_THREADS) {
        uint32_t token = 2 * i / t->d, col = 2 * i % t->d, pair = pairs[i];

        for (uint32_t x = 0; x < 2; x++) {
            uint32_t hi = (first + x) % 2;
            float value = exact_value(c->mean[col + hi], (uint16_t) (pair >> 16 * hi));

            ret[(col + hi) * COLUMN_LD + token] =
                token < c->n_sink ? 0 : add_rounded(value, -c->encoder->mean[col + hi]);
        }
    }
    __syncthreads();
}

/* Subtracts the prediction from the stored codes of the predictors. @space:
 * shared memory for the levels of a chunk. */
DEVICE void subtract_predicted(const struct launch_append *a, const struct chunk *c, struct share mine,
                               float *space, float z[ROWS][MINE])
{
    const struct device_table *t = a->table;
    const struct device_head *from = t->heads + a->layer * t->n_kv_heads + c->head->first_predictor;
    const float *enc = c->encoder->enc_k + (size_t) mine.row * c->encoder->n_pred;
    float all[ROWS][MINE] = {{0}};

    for (uint32_t i = 0; i < c->head->n_predictors; i++, from++) {
        float sum[ROWS][MINE] = {{0}};

        if (from->k.r == 0)
            continue;
        __syncthreads(); /* all threads have read the old contents */
        load_levels(levels_of(t, true), &from->k, c->payload + from->block, true, space);
        if (mine.row < c->codes->r)
            multiply(enc, c->encoder->n_pred, ROWS, space + mine.token, LEVEL_LD, from->k.r, sum);
        add_shares(all, sum, false);
        enc += from->k.r;
    }
    add_shares(z, all, true);
}

/* The number of thresholds that are not above z, found bit by bit. */
DEVICE unsigned quantise(const float *thresholds, unsigned b, float z)
{
    unsigned code = 0;

    for (unsigned bit = 1u << (b - 1); bit > 0; bit >>= 1)
        code = z >= thresholds[(code | bit) - 1] ? code | bit : code;
    return code;
}

/* Word @i of a half-tile of @b bits, from codes [8][TOKENS]: the inverse of code_pair(). */
DEVICE uint32_t pack_word(const uint8_t *codes, unsigned b, bool is_key, unsigned i)
{
    /* below: bits of the code below those of the plane */
    unsigned plane = 0, below = 0, word = 0;

    if (b & 8) {
        plane = 8;
    } else if (b & 4 && i < 64) {
        plane = 4;
        below = b & 3;
    } else { /* planes of 4 have 64 words, of 2 have 32, of 1 have 16 of two lanes each */
        i -= b & 4 ? 64 : 0;
        plane = b & 2 && i < 32 ? 2 : 1;
        i -= plane == 1 && b & 2 ? 32 : 0;
        below = plane == 2 ? b & 1 : 0;
    }
    for (unsigned field = 0; field < 32 / plane; field++) {
        unsigned lane, h, j, n, c;

        if (plane == 1) { /* 16-bit words: lane 2i below, 2i + 1 above; bit j + 8 h */
            lane = 2 * i + field / 16;
            j = field % 8;
            h = field / 8 % 2;
        } else {
            lane = i % 32;
            h = field / (16 / plane);
            j = field % (16 / plane) + i / 32 * (16 / plane);
        }
        n = 8 * j + (is_key ? lane >> 2 : 2 * (lane & 3) + h);
        c = is_key ? 2 * (lane & 3) + h : lane >> 2;
        word |= (codes[c * TOKENS + n] >> below & ((1u << plane) - 1)) << field * plane;
    }
    return word;
}

/* Stores the codes of this thread to [8][TOKENS] of its half-tile; returns how many are saturated. */
DEVICE unsigned store_codes(const struct device_table *t, const struct chunk *c, unsigned b,
                            struct share mine, const float z[ROWS][MINE], uint8_t *codes)
{
    unsigned at = (c->is_key ? 0 : WIDTHS) + b, saturated = 0;

    UNROLL
    for (uint32_t i = 0; i < ROWS; i++) {
        UNROLL
        for (uint32_t j = 0; j < MINE; j++) {
            codes[(mine.row % 8 + i) * TOKENS + mine.token + LANE_TOKENS * j] =
                (uint8_t) quantise(t->thresholds + at * LEVELS, b, z[i][j]);
            saturated += z[i][j] < t->limits[2 * at] || z[i][j] > t->limits[2 * at + 1];
        }
    }
    return saturated;
}

/* Encodes the half-tiles of a tile, one per warp; the last one may have no codes. */
DEVICE void encode_tile(const struct launch_append *a, const struct chunk *c, uint32_t tile)
{
    const struct device_table *t = a->table;
    struct share mine = share_of(tile);
    uint32_t half = mine.row / 8;
    unsigned b = half < c->codes->n_half ? c->codes->bits[half] : 0, saturated = 0;
    float *space = (float *) dynamic_shared; /* vectors, later levels */
    uint8_t *codes = dynamic_shared + launch_coding_floats(t->d, t->rank_max) * sizeof(float) +
                     threadIdx.x / 32 * 8 * TOKENS;
    float z[ROWS][MINE] = {{0}};

    load_centred(t, c, space);
    if (b > 0)
        multiply(c->encoder->enc + (size_t) mine.row * t->d, t->d, ROWS, space + mine.token, COLUMN_LD, t->d,
                 z);
    if (c->encoder->enc_k)
        subtract_predicted(a, c, mine, space, z);
    if (b > 0)
        saturated = store_codes(t, c, b, mine, z, codes);
    if (a->saturated && saturated > 0)
        count(a->saturated + !c->is_key, saturated);
    __syncthreads();
    for (uint32_t w = threadIdx.x % 32; w < 16 * b; w += 32)
        ((uint32_t *) (c->payload + c->head->block + c->codes->offset[half]))[w] =
            pack_word(codes, b, c->is_key, w);
}

DEVICE void pack(const struct launch_append *a, bool is_key)
{
    struct place at = place_of(a);
    struct chunk c;
    struct task t;

    if (blockIdx.y >= at.item->n_pack)
        return;
    t = task_of(a, at.item);
    if (!t.fits || blockIdx.y >= t.step.n_pack)
        return;
    c = chunk_of(a, &t, at.kv_head, blockIdx.y, is_key);
    if (blockIdx.z == 0)
        store_sinks(a->table, &c);
    if (HALVES * blockIdx.z < c.codes->n_half && c.codes->bits[HALVES * blockIdx.z] > 0)
        encode_tile(a, &c, blockIdx.z);
}

/* Grid of both kernels: (items x KV heads, chunks, tiles of the side's widest head, at least one). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_pack_keys(PARAMETER struct launch_append a)
{
    pack(&a, true);
}

KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_pack_values(PARAMETER struct launch_append a)
{
    pack(&a, false);
}

/* ---- storing rows in the tail ---- */

enum { SLICE_PAIRS = LAUNCH_SLICE / 2, PASS = LAUNCH_THREADS / SLICE_PAIRS, PASSES = 4 };

/* The part of a layer that a block stores: some columns of one side and head, and every @n_shares-th group
 * of the new rows. */
struct slice {
    uint32_t *rows; /* of the tail's buffer, as pairs of binary16, at the columns of this thread */
    uint32_t ld;    /* pairs between rows */
    uint32_t col;   /* first column of this thread */
    uint32_t row;   /* first row of this thread in a pass */
    uint32_t kv_head, side, share;
    bool any; /* whether this thread has columns */
};

DEVICE struct slice slice_of(const struct launch_append *a, const struct task *t, uint32_t kv_head)
{
    const struct device_table *table = a->table;
    struct slice s;

    s.kv_head = kv_head;
    s.side = blockIdx.z % 2;
    s.share = blockIdx.z / 2;
    s.col = LAUNCH_SLICE * blockIdx.y + threadIdx.x % SLICE_PAIRS * 2;
    s.row = threadIdx.x / SLICE_PAIRS;
    s.ld = table->d / 2;
    s.rows = (uint32_t *) (s.side ? t->seq.exact_v : t->seq.exact_k) +
             (size_t) s.kv_head * t->seq.exact_ld * s.ld + s.col / 2;
    s.any = s.col < table->d;
    return s;
}

/* Moves @n rows from row @from to the front, in ascending order, a few at a time: rows
 * are read before they are overwritten. */
DEVICE void move_to_front(const struct slice *s, uint32_t from, uint32_t n)
{
    for (uint32_t first = 0; first < n; first += PASSES * PASS) {
        uint32_t pairs[PASSES];

        UNROLL
        for (uint32_t i = 0; i < PASSES; i++)
            if (s->any && first + i * PASS + s->row < n)
                pairs[i] = s->rows[(size_t) (from + first + i * PASS + s->row) * s->ld];
        __syncthreads();
        UNROLL
        for (uint32_t i = 0; i < PASSES; i++)
            if (s->any && first + i * PASS + s->row < n)
                s->rows[(size_t) (first + i * PASS + s->row) * s->ld] = pairs[i];
        __syncthreads();
    }
}

/* Element @i of an array of @dtype. */
DEVICE float element(const void *x, enum launch_dtype dtype, size_t i)
{
    if (dtype == LAUNCH_F32)
        return ((const float *) x)[i];
    if (dtype == LAUNCH_F16)
        return half_to_float(((const uint16_t *) x)[i]);
    return bfloat_to_float(((const uint16_t *) x)[i]);
}

DEVICE uint32_t lesser(uint32_t x, uint32_t y)
{
    return x < y ? x : y;
}

DEVICE bool is_finite_half(uint32_t x)
{
    return (x & 0x7c00) != 0x7c00;
}

/* Stores new rows @first .. @end - 1 to rows @to + number, every @n_shares-th group of them. */
DEVICE void store_rows(const struct launch_append *a, const struct launch_append_item *item,
                       const struct slice *s, uint32_t first, uint32_t end, uint32_t to, uint32_t share,
                       uint32_t n_shares, uint32_t *faults)
{
    const struct device_table *t = a->table;
    const struct device_head *head = t->heads + a->layer * t->n_kv_heads + s->kv_head;
    const float *mean = (s->side ? head->mean_v : head->decode_mean_k) + s->col;
    const void *x = s->side ? item->v : item->k;
    bool finite = true;

    for (uint32_t i = first + share * PASS + s->row; s->any && i < end; i += n_shares * PASS) {
        size_t at = ((size_t) i * t->n_kv_heads + s->kv_head) * t->d + s->col;
        uint32_t pair = pack_halves(add_rounded(element(x, a->dtype, at), -mean[0]),
                                    add_rounded(element(x, a->dtype, at + 1), -mean[1]));

        s->rows[(size_t) (to + i) * s->ld] = pair;
        finite = finite && is_finite_half(pair) && is_finite_half(pair >> 16);
    }
    if (!finite)
        raise(faults, DEVICE_NOT_FINITE);
}

/* Called by each of the @n_blocks blocks of an item. The last one sets the lengths: all others have read
 * them by then. */
DEVICE void set_lengths(struct device_seq *seq, const struct task *t, uint32_t n_blocks)
{
    __syncthreads();
    if (threadIdx.x != 0 || !is_last(&seq->n_done, n_blocks))
        return;
    seq->n_done = 0;
    if (!t->fits)
        return;
    seq->n_pages = t->seq.n_pages + t->step.n_pack;
    seq->n_exact = t->step.n_exact;
    seq->first_row = t->step.first_row;
}

/* Grid: (items x KV heads, slices of LAUNCH_SLICE columns, 2 sides x shares of the most new rows). */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_append_rows(PARAMETER struct launch_append a)
{
    struct place at = place_of(&a);
    uint32_t n_new = at.item->n_new, n_shares = launch_append_shares(n_new), from, n_left, to, low, high;
    struct slice s;
    struct task t;

    if (blockIdx.z / 2 >= n_shares)
        return; /* not one of the blocks of the item, which set_lengths() counts */
    t = task_of(&a, at.item);
    s = slice_of(&a, &t, at.kv_head);
    from = t.seq.first_row + TOKENS * t.step.n_pack;
    n_left = t.step.n_exact - n_new;
    to = t.step.first_row + n_left;
    low = lesser(from > n_left ? from - n_left : 0, n_new);
    high = lesser(from, n_new);
    if (!t.fits) {
        raise(t.seq.faults, DEVICE_NO_ROOM);
    } else if (t.step.first_row == from) {
        store_rows(&a, at.item, &s, 0, n_new, to, s.share, n_shares, t.seq.faults);
    } else {
        /* rows low .. high - 1 are stored where old rows are read */
        store_rows(&a, at.item, &s, 0, low, to, s.share, n_shares, t.seq.faults);
        store_rows(&a, at.item, &s, high, n_new, to, s.share, n_shares, t.seq.faults);
        if (s.share == 0) {
            move_to_front(&s, from, n_left);
            store_rows(&a, at.item, &s, low, high, to, 0, 1, t.seq.faults);
        }
    }
    set_lengths(at.item->seq, &t, a.table->n_kv_heads * gridDim.y * 2 * n_shares);
}
