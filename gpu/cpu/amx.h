/*
 * Tiles of AMX: eight registers of up to 16 rows of up to 64 bytes, and products of bytes in them. Tile
 * numbers are constants. This file uses inline assembly because the intrinsics of gcc 12 do not declare that
 * they read tiles and shapes from memory, so the compiler may move stores behind them.
 *
 * The Linux kernel must first permit the process to use tiles (ops.c). For machines without the
 * instructions, tests define AMX_MODEL as the name of a header that does the same in plain C.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The operand of ldtilecfg. Of each tile it has the number of rows and the bytes per row (a multiple of 4),
 * or two zeros for a tile that is not used. */
struct tile_config {
    uint8_t palette; /* 1 */
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[16]; /* of tiles 0 .. 7 */
    uint8_t rows[16];
};

_Static_assert(sizeof(struct tile_config) == 64, "as the instruction reads it");

/*
 * tiles_configure(config)     sets the shapes of all tiles and clears the tiles
 * tiles_release()             ends the use of tiles: the Linux kernel need not save them
 * tile_zero(t)
 * tile_load(t, p, stride)     rows from p, p + stride, ... of any alignment
 * tile_store(t, p, stride)
 * tile_dot_us(c, a, b)        c[m][n] += sum over k < 4 * rows of b of a[m][k] b[k / 4][4 n + k % 4];
 *                             bytes of a are unsigned, bytes of b signed, numbers of c have 32 bits
 * tile_dot_su(c, a, b)        the same; bytes of a are signed, bytes of b unsigned
 */
#ifdef AMX_MODEL
#include AMX_MODEL
#else
#define tiles_configure(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)))
#define tiles_release() __asm__ volatile("tilerelease")
#define tile_zero(t) __asm__ volatile("tilezero %%tmm%c0" : : "i"(t))
#define tile_load(t, p, stride)                                                                              \
    __asm__ volatile("tileloadd (%0, %1, 1), %%tmm%c2"                                                       \
                     :                                                                                       \
                     : "r"(p), "r"((ptrdiff_t) (stride)), "i"(t)                                             \
                     : "memory")
#define tile_store(t, p, stride)                                                                             \
    __asm__ volatile("tilestored %%tmm%c2, (%0, %1, 1)"                                                      \
                     :                                                                                       \
                     : "r"(p), "r"((ptrdiff_t) (stride)), "i"(t)                                             \
                     : "memory")
#define tile_dot_us(c, a, b)                                                                                 \
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b))
#define tile_dot_su(c, a, b)                                                                                 \
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b))
#endif
