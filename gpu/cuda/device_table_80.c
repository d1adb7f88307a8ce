/* See device_table_80.h. The PTX ISA draws which number belongs to which
 * word of which lane for mma.m16n8k16. */
#include "gpu/cuda/device_table_80.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

enum { WIDTHS = TABLE_BITS_MAX + 1, LEVELS = 1 << TABLE_BITS_MAX, NARROW = 5 };

static uint32_t device_table_80_pair(uint16_t low, uint16_t high)
{
    return low | (uint32_t) high << 16;
}

/* Operand B [16 coordinates, 8 planes]: lane 4 g + t has plane g,
 * coordinates 2t, 2t + 1 and 2t + 8, 2t + 9. */
void device_table_80_fill_dec_fragments(uint32_t n_planes, uint32_t r, const uint16_t *dec, uint32_t *ret)
{
    for (uint32_t tile = 0; tile < n_planes / 8; tile++)
        for (uint32_t step = 0; step < r / 16; step++)
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t word = 0; word < 4; word++) {
                    size_t row = word / 2 * n_planes + 8 * tile + lane / 4;
                    const uint16_t *at = dec + row * r + 16 * step + word % 2 * 8 + lane % 4 * 2;

                    *ret++ = device_table_80_pair(at[0], at[1]);
                }
}

void device_table_80_fill_page_rotation(uint32_t n_planes, const double *freq, float *ret)
{
    for (uint32_t p = 0; p < n_planes; p++) {
        ret[2 * p] = (float) cos(CHUNK_TOKENS * freq[p]);
        ret[2 * p + 1] = (float) sin(CHUNK_TOKENS * freq[p]);
    }
}

void device_table_80_fill_narrow(const uint16_t *levels, uint32_t *ret)
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

void device_table_80_fill_wide(const uint16_t *levels, uint16_t *ret)
{
    memset(ret, 0, (size_t) 2 * ATTEND_80_WIDE_LEVELS * sizeof(*ret));
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b < WIDTHS; b++)
            memcpy(ret + side * ATTEND_80_WIDE_LEVELS + (1u << b), levels + (side * WIDTHS + b) * LEVELS,
                   sizeof(*ret) << b);
}

static bool device_table_80_any_wide(const struct codec *c)
{
    return c->n_half > 0 && c->bits[0] >= NARROW; /* bits are in descending order */
}

bool device_table_80_wide_values(const struct page_layout *l)
{
    for (uint32_t layer = 0; layer < l->table->geometry.n_layers; layer++)
        for (uint32_t head = 0; head < l->shard.n_heads; head++) {
            uint32_t of_model = l->shard.first_head + head;
            struct head_run run = table_predictors(l->table, of_model);

            if (device_table_80_any_wide(table_codec(l->table, layer, of_model, SIDE_V)) || run.n > 1)
                return true;

            for (uint32_t i = 0; i < run.n; i++)
                if (device_table_80_any_wide(table_codec(l->table, layer, run.first + i, SIDE_K)))
                    return true;
        }
    return false;
}
