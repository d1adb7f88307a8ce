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
#include "gpu/cuda/kernels/packing.h"

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

DEVICE struct chunk chunk_of(const struct launch_append *a, const struct task *t, uint32_t kv_head,
                             uint32_t i, bool is_key)
{
    const struct device_table *table = a->table;
    size_t first = (size_t) kv_head * t->seq.exact_ld + t->seq.first_row + TOKENS * i;
    struct chunk c = chunk_of_head(table, a->layer, kv_head, is_key);

    c.saturated = a->saturated;
    c.rows = (is_key ? t->seq.exact_k : t->seq.exact_v) + first * table->d;
    c.payload = t->seq.payloads[t->seq.n_pages + i];
    c.n_sink = t->seq.n_pages + i == 0 ? table->n_sink : 0;
    return c;
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
    pack_tile(&c, blockIdx.z);
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

DEVICE uint32_t lesser(uint32_t x, uint32_t y)
{
    return x < y ? x : y;
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
