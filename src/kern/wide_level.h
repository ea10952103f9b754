// SPDX-License-Identifier: MIT
// The wide products of one instruction set level: included once by each wide_LEVEL.c, whose flags choose the level. The
// template's parameters: T element, V vector, VN lanes, N(name) the function's name, V_(op) the vector operation of
// simd.h.
#include "kern/simd.h"
#include "kern/wide.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// Vectors of a panel and rows of a register tile: its sums, a row of b and one broadcast fit the registers. Few rows
// take as many panels at once as make FEW_SUMS sums. Up to ASKING_PANELS at once are asked for AHEAD_BYTES before; for
// several streams of an AVX2 machine (Zen 3) asking only takes time, a quarter at 2048 wide.
#if defined(__AVX512F__)
enum { TILE_ROWS = 6, PANEL_VECTORS = 4, FEW_SUMS = 8, ASKING_PANELS = 2 };
#else
enum { TILE_ROWS = 6, PANEL_VECTORS = 2, FEW_SUMS = 12, ASKING_PANELS = 1 };
#endif
enum { MOST_SUMS = TILE_ROWS * PANEL_VECTORS };
enum { PART_DEPTH = 512 };    // a part of a panel stays in the second cache
enum { AHEAD_BYTES = 1024 };  // 256 to 2048 served alike, 4096 worse
#define PANELS_OF(rows) (FEW_SUMS >= 2 * PANEL_VECTORS * (rows) ? FEW_SUMS / PANEL_VECTORS / (rows) : 1)

#include "kern/number_f32.inc"
#include "kern/wide.inc"
#include "kern/number_none.inc"

#include "kern/number_f64.inc"
#include "kern/wide.inc"
#include "kern/number_none.inc"

const dpcri_wide_kernels DPCRI_LEVEL(dpcri_wide_f32) = {.element = sizeof(float),
                                                        .panel = PANEL_VECTORS * VF,
                                                        .one_row_panels = PANELS_OF(1),
                                                        .product = product_f32,
                                                        .pack = pack_f32};
const dpcri_wide_kernels DPCRI_LEVEL(dpcri_wide_f64) = {.element = sizeof(double),
                                                        .panel = PANEL_VECTORS * VD,
                                                        .one_row_panels = PANELS_OF(1),
                                                        .product = product_f64,
                                                        .pack = pack_f64};
