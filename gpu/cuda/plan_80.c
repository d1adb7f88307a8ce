/* Fragments; see plan_80.h. Which number stands in which word of which lane: the PTX ISA's pictures of
 * mma.m16n8k16. */
#include "gpu/cuda/plan_80.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "gpu/cuda/plan.h"

enum { WIDTHS = TABLE_BITS_MAX + 1, LEVELS = 1 << TABLE_BITS_MAX, NARROW = 5 };

static uint32_t plan_80_pair(uint16_t low, uint16_t high)
{
    return low | (uint32_t) high << 16;
}

/* Operand B [16 coordinates, 8 planes]: lane 4 g + t has plane g, coordinates 2t, 2t + 1 and 2t + 8, 2t + 9.
 */
void plan_fill_dec_fragments(uint32_t n_planes, uint32_t r, const uint16_t *dec, uint32_t *ret)
{
    for (uint32_t tile = 0; tile < n_planes / 8; tile++)
        for (uint32_t step = 0; step < r / 16; step++)
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t word = 0; word < 4; word++) {
                    size_t row = word / 2 * n_planes + 8 * tile + lane / 4;
                    const uint16_t *at = dec + row * r + 16 * step + word % 2 * 8 + lane % 4 * 2;

                    *ret++ = plan_80_pair(at[0], at[1]);
                }
}

void plan_fill_page_turn(uint32_t n_planes, const double *freq, float *ret)
{
    for (uint32_t p = 0; p < n_planes; p++) {
        ret[2 * p] = (float) cos(CHUNK_TOKENS * freq[p]);
        ret[2 * p + 1] = (float) sin(CHUNK_TOKENS * freq[p]);
    }
}

void plan_fill_narrow(const uint16_t *levels, uint32_t *ret)
{
    for (unsigned kind = 0; kind < 3; kind++)
        for (unsigned b = 0; b < NARROW; b++) {
            uint8_t bytes[16] = {0};

            for (unsigned i = 0; b > 0 && i < 1u << b; i++)
                bytes[i] = (uint8_t) ((int) f16_to_f32(levels[((kind == 2) * WIDTHS + b) * LEVELS + i]) +
                                      (kind == 0 ? 128 : 0));
            memcpy(ret + (NARROW * kind + b) * 4, bytes, sizeof(bytes));
        }
}

void plan_fill_wide(const uint16_t *levels, uint16_t *ret)
{
    memset(ret, 0, (size_t) 2 * PLAN_80_WIDE_LEVELS * sizeof(*ret));
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b < WIDTHS; b++)
            memcpy(ret + side * PLAN_80_WIDE_LEVELS + (1u << b), levels + (side * WIDTHS + b) * LEVELS,
                   sizeof(*ret) << b);
}

static bool plan_80_any_wide(const struct codec *c)
{
    return c->n_half > 0 && c->bits[0] >= NARROW; /* descending */
}

bool plan_wide_values(const struct page_layout *l)
{
    for (uint32_t layer = 0; layer < l->table->geometry.n_layers; layer++)
        for (uint32_t head = 0; head < l->shard.n_heads; head++) {
            uint32_t of_model = l->shard.first_head + head;
            struct head_run run = table_predictors(l->table, of_model);

            if (plan_80_any_wide(table_codec(l->table, layer, of_model, SIDE_V)) || run.n > 1)
                return true;
            for (uint32_t i = 0; i < run.n; i++)
                if (plan_80_any_wide(table_codec(l->table, layer, run.first + i, SIDE_K)))
                    return true;
        }
    return false;
}

/* ---- kernels ---- */

static const struct {
    uint32_t d, n_key_coords, n_columns, n_rows;
} most[PLAN_80_COUNT] = {
#define KERNEL_MOST(name, d, n_key_coords, n_columns, n_rows) {d, n_key_coords, n_columns, n_rows},
    PLAN_80_KERNELS(KERNEL_MOST)
#undef KERNEL_MOST
};

size_t plan_80_shared_bytes(enum plan_80_kernel kernel, const struct page_layout *l)
{
    uint32_t d = l->table->geometry.d;

    return plan_80_shape(d, most[kernel].n_rows, plan_rank_max(l, SIDE_K), plan_columns_max(l),
                         plan_block_bytes_max(l), plan_exact_shared_bytes(d, d / 2))
        .bytes;
}

bool plan_80_takes(enum plan_80_kernel kernel, const struct page_layout *l, uint32_t n_q)
{
    uint32_t group = geometry_group(&l->table->geometry), of_tile = PLAN_TILE_QUERIES(group);

    return l->table->geometry.d == most[kernel].d && plan_rank_max(l, SIDE_K) <= most[kernel].n_key_coords &&
           plan_columns_max(l) <= most[kernel].n_columns &&
           (n_q < of_tile ? n_q : of_tile) * group <= most[kernel].n_rows &&
           plan_80_shared_bytes(kernel, l) <= PLAN_80_SHARED_MAX;
}

enum plan_80_kernel plan_80_kernel(const struct page_layout *l, uint32_t n_q)
{
    unsigned i = 0;

    while (i < PLAN_80_COUNT && !plan_80_takes((enum plan_80_kernel) i, l, n_q))
        i++;
    return (enum plan_80_kernel) i;
}
