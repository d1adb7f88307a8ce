/*
 * The tiles of gpu/cpu/amx.h in plain C, after Intel's description of the instructions (Software
 * Developer's Manual, volume 2: ldtilecfg, tilezero, tileloadd, tilestored, tdpbusd, tdpbsud). What would
 * raise an exception ends the test. For source files that are compiled a second time with AMX_MODEL naming
 * this file; each has its own tiles.
 */
#pragma once

#undef NDEBUG
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MODEL_TILES = 8, MODEL_ROWS = 16, MODEL_BYTES = 64 };

static _Thread_local struct {
    struct tile_config config; /* palette 0: no tile may be used */
    uint8_t data[MODEL_TILES][MODEL_ROWS][MODEL_BYTES];
} model;

static inline void model_configure(const struct tile_config *config)
{
    assert(config->palette == 1 && config->start_row == 0);
    for (unsigned i = 0; i < sizeof(config->reserved); i++)
        assert(config->reserved[i] == 0);
    for (unsigned t = 0; t < 16; t++) {
        assert((config->rows[t] == 0) == (config->row_bytes[t] == 0));
        assert(config->rows[t] <= MODEL_ROWS && config->row_bytes[t] <= MODEL_BYTES);
        assert(t < MODEL_TILES || config->rows[t] == 0);
    }
    memset(&model, 0, sizeof(model));
    model.config = *config;
}

static inline void model_release(void)
{
    memset(&model, 0, sizeof(model));
}

static inline void check_tile(unsigned t)
{
    assert(model.config.palette == 1 && t < MODEL_TILES && model.config.rows[t] > 0);
}

static inline void model_zero(unsigned t)
{
    check_tile(t);
    memset(model.data[t], 0, sizeof(model.data[t]));
}

static inline void model_load(unsigned t, const void *p, ptrdiff_t stride)
{
    model_zero(t);
    for (ptrdiff_t i = 0; i < model.config.rows[t]; i++)
        memcpy(model.data[t][i], (const char *) p + i * stride, model.config.row_bytes[t]);
}

static inline void model_store(unsigned t, void *p, ptrdiff_t stride)
{
    check_tile(t);
    for (ptrdiff_t i = 0; i < model.config.rows[t]; i++)
        memcpy((char *) p + i * stride, model.data[t][i], model.config.row_bytes[t]);
}

/* Element [m][n] of @c += products of groups of four bytes of row m of @a
 * and column n of @b; sums wrap around. */
static inline __attribute__((always_inline)) void model_dot(unsigned c, unsigned a, unsigned b, int a_signed)
{
    const struct tile_config *config = &model.config;

    check_tile(a);
    check_tile(b);
    check_tile(c);
    assert(a != b && a != c && b != c);
    assert(config->row_bytes[a] % 4 == 0 && config->row_bytes[b] % 4 == 0 && config->row_bytes[c] % 4 == 0);
    assert(config->rows[a] == config->rows[c] && config->row_bytes[b] == config->row_bytes[c]);
    assert(config->row_bytes[a] / 4 == config->rows[b]);
    for (unsigned m = 0; m < config->rows[c]; m++) {
        uint32_t sum[MODEL_BYTES / 4];

        memcpy(sum, model.data[c][m], sizeof(sum));
        for (unsigned k = 0; k < config->row_bytes[a]; k++) {
            uint8_t x = model.data[a][m][k];
            /* byte 4 n + k % 4 is byte k % 4 of a number, so that the loop becomes vectors */
            uint32_t fours[MODEL_BYTES / 4];

            memcpy(fours, model.data[b][k / 4], sizeof(fours));
            for (unsigned n = 0; n < MODEL_BYTES / 4; n++) { /* columns beyond the shape are and stay zero */
                uint8_t y = (uint8_t) (fours[n] >> 8 * (k % 4));

                sum[n] += (uint32_t) (a_signed ? (int8_t) x * y : x * (int8_t) y);
            }
        }
        memcpy(model.data[c][m], sum, sizeof(sum));
    }
}

#define tiles_configure(config) model_configure(config)
#define tiles_release() model_release()
#define tile_zero(t) model_zero(t)
#define tile_load(t, p, stride) model_load(t, p, (ptrdiff_t) (stride))
#define tile_store(t, p, stride) model_store(t, p, (ptrdiff_t) (stride))
#define tile_dot_us(c, a, b) model_dot(c, a, b, 0)
#define tile_dot_su(c, a, b) model_dot(c, a, b, 1)
