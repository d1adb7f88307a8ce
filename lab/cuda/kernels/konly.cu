/*
 * Attention on packed keys and binary16 values, d = 128, up to four query heads per KV head, one query: the
 * setting of the paper. For benches; the product packs both. Keys, scores and weights are those of
 * attend_80.cu (steps_80.h). Values are prefetched with the keys, 16 bytes at a time, and ldmatrix
 * transposes them into operands A; a warp has 32 of the dimensions.
 */
#include "lab/cuda/kernels/konly.h"
#include "gpu/cuda/kernels/steps_80.h"

/* Values in binary16. The 16-byte pieces of a row are permuted by the row number, so that those of eight
 * rows are in different banks. */
template <class S> struct dense_values {
    float c[S::VALUE_TILES][1][4];
    const uint16_t *v; /* [ld][KONLY_D] of the head */
    unsigned char *ring;

    DEVICE_MEMBER unsigned char *page_of_ring(uint32_t pair, unsigned page) const
    {
        return ring + (pair % KONLY_STAGES * 2 + page) * TOKENS * KONLY_D * sizeof(uint16_t);
    }

    DEVICE_MEMBER bool wide(const struct job_80 *) const
    {
        return true;
    }

    DEVICE_MEMBER void fetch(const struct job_80 *j, uint32_t pair, unsigned page) const
    {
        const uint16_t *from = v + (size_t) page_at(j, pair, page) * TOKENS * KONLY_D;
        unsigned char *to = page_of_ring(pair, page);

        for (unsigned i = threadIdx.x; i < TOKENS * KONLY_D / 8; i += LAUNCH_THREADS) {
            unsigned token = i / (KONLY_D / 8), piece = i % (KONLY_D / 8);

            copy_begin(to + (token * (KONLY_D / 8) + (piece ^ (token & 7))) * 16, from + 8 * i);
        }
    }

    DEVICE_MEMBER void add(const struct job_80 *j, uint32_t pair, const struct softmax_80<S> *x)
    {
        unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = lane >> 2;
        const uint16_t *weights = (const uint16_t *) (j->s.base + j->s.at.weights16);
        bool is_row = n < KONLY_ROWS;
        float sums[S::VALUE_TILES][4] = {{0}};

        UNROLL
        for (unsigned page = 0; page < 2; page++) {
            UNROLL
            for (unsigned k = 0; k < TOKENS / 16; k++) {
                const uint16_t *w = weights + (page * KONLY_ROWS + (is_row ? n : 0)) * ATTEND_80_WEIGHT_LD +
                                    16 * k + 2 * (lane & 3);
                uint32_t low = is_row ? *(const uint32_t *) w : 0,
                         high = is_row ? *(const uint32_t *) (w + 8) : 0;
                unsigned token = 16 * k + (lane & 7) +
                                 /* matrices: 8 tokens, both halves of 16 dimensions; then 8 more tokens */
                                 (lane >> 4) * 8;

                UNROLL
                for (unsigned i = 0; i < S::VALUE_TILES; i++) {
                    unsigned piece = 2 * (warp + WARPS * i) + (lane >> 3 & 1);
                    uint32_t levels[4];

                    transposed_at(page_of_ring(pair, page) +
                                      (token * (KONLY_D / 8) + (piece ^ (token & 7))) * 16,
                                  levels);
                    mma_16x8x16(sums[i], levels, low, high);
                }
            }
        }
        UNROLL
        for (unsigned i = 0; i < S::VALUE_TILES; i++) {
            UNROLL
            for (unsigned y = 0; y < 4; y++)
                c[i][0][y] = c[i][0][y] * x->keep[0][y & 1] + sums[i][y] * (WEIGHT_ONE * x->add[0][y & 1]);
        }
    }
};

DEVICE float *konly_partials(const struct konly_attend *k, uint32_t item, uint32_t kv_head, uint32_t split)
{
    return k->attend.partials +
           (((size_t) item * k->attend.table->n_kv_heads + kv_head) * k->attend.n_splits + split) *
               KONLY_PARTIAL_FLOATS;
}

template <class S> DEVICE void attend_konly(const struct konly_attend *k)
{
    const struct launch_attend *a = &k->attend;
    const struct device_table *t = a->table;
    const struct launch_attend_item *item = &a->items[blockIdx.z];
    uint32_t kv_head = blockIdx.x;
    float *partial = konly_partials(k, blockIdx.z, kv_head, blockIdx.y);
    struct dense_values<S> values = {
        {{{0}}}, k->v + ((size_t) blockIdx.z * t->n_kv_heads + kv_head) * k->ld *KONLY_D, NULL
    };
    struct softmax_80<S> x;
    struct job_80 j = {
        a,
        t,
        item->seq,
        t->heads + a->layer * t->n_kv_heads + kv_head,
        rows_of(t, item, 0, kv_head),
        {dynamic_shared, attend_80_shape(KONLY_D, KONLY_ROWS, t->key_rank_max, 0, t->block_bytes_max, 0)},
        {0, 0, false, false},
        0};
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    j.s.at.n_stages = KONLY_STAGES;
    values.ring = dynamic_shared + konly_values_at(&j.s.at);
    j.span = span_of(a, j.seq, &j.rows);
    j.n_pairs = j.span.from < j.span.to ? (j.span.to - j.span.from + 1) / 2 : 0;
    begin_softmax<S>(a, &j.rows, 0, j.span.to, lane, &x);
    if (j.n_pairs > 0) {
        load_tables(&j);
        attend_pairs<S>(&j, &x, &values);
    }
    finish_softmax<S>(&j, &x, partial, partial + ROWS);
    for (unsigned i = 0; i < S::VALUE_TILES; i++)
        for (unsigned y = 0; y < 4; y++)
            partial[2 * ROWS + (16 * (warp + WARPS * i) + (lane >> 2) + (y >> 1) * 8) * ROWS +
                    2 * (lane & 3) + (y & 1)] = values.c[i][0][y] / WEIGHT_ONE;
}

/* Grid: (KV heads, splits, items). */
#define KONLY_KERNEL(name, n_key_coords)                                                                     \
    KERNEL void __launch_bounds__(LAUNCH_THREADS, 2) name(PARAMETER struct konly_attend k)                   \
    {                                                                                                        \
        attend_konly<size_80<KONLY_D, n_key_coords, KONLY_D, KONLY_ROWS>>(&k);                               \
    }
KONLY_ATTEND_KERNELS(KONLY_KERNEL)

/* Grid: (query heads of a KV head, KV heads, items). One output row. */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_konly_merge(PARAMETER struct konly_attend k)
{
    const struct device_table *t = k.attend.table;
    const float *partials = konly_partials(&k, blockIdx.z, blockIdx.y, 0);
    uint32_t row = blockIdx.x, n = k.attend.n_splits;
    float largest = LEAST, total = 0, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        largest = fmaxf(largest, partials[i * KONLY_PARTIAL_FLOATS + row]);
    for (uint32_t i = 0; i < n; i++) {
        const float *at = partials + i * KONLY_PARTIAL_FLOATS;
        float share = exp2_fast(at[row] - largest);

        total += at[ROWS + row] * share;
        sum += at[2 * ROWS + threadIdx.x * ROWS + row] * share;
    }
    k.attend.items[blockIdx.z].out[((size_t) blockIdx.y * t->group + row) * KONLY_D + threadIdx.x] =
        sum / total;
}
