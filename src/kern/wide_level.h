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
// take several panels at once, in either of two shapes: as many as make ASKED_SUMS, asked for FETCH_BYTES before, or
// as the registers hold sums of, left to the hardware. With those a Zen 3 is a quarter quicker at 2048 wide.
#if defined(__AVX512F__)
enum { TILE_ROWS = 6, PANEL_VECTORS = 4, ASKED_SUMS = 8, STREAMS = false };
#else
enum { TILE_ROWS = 6, PANEL_VECTORS = 2, ASKED_SUMS = 4, STREAMS = true };
#endif
enum { MOST_SUMS = TILE_ROWS * PANEL_VECTORS };
enum { FETCHING_ROWS = 4 };   // a tile of fewer rows waits for its own panel
enum { PART_DEPTH = 512 };    // a part of a panel stays in the second cache
enum { FETCH_BYTES = 1024 };  // 256 to 2048 served alike, 4096 worse
#define SUMS_OF(streams) ((streams) ? MOST_SUMS : ASKED_SUMS)
#define PANELS_OF(streams, rows) \
    (SUMS_OF(streams) >= 2 * PANEL_VECTORS * (rows) ? SUMS_OF(streams) / PANEL_VECTORS / (rows) : 1)

#include "kern/number_f32.inc"
#include "kern/wide.inc"
#include "kern/number_none.inc"

#include "kern/number_f64.inc"
#include "kern/wide.inc"
#include "kern/number_none.inc"

const dpcri_wide_kernels DPCRI_LEVEL(dpcri_wide_f32) = {.element = sizeof(float),
                                                        .panel = PANEL_VECTORS * VF,
                                                        .one_row_panels = {PANELS_OF(false, 1), PANELS_OF(true, 1)},
                                                        .streams = STREAMS,
                                                        .product = product_f32,
                                                        .pack = pack_f32};
const dpcri_wide_kernels DPCRI_LEVEL(dpcri_wide_f64) = {.element = sizeof(double),
                                                        .panel = PANEL_VECTORS * VD,
                                                        .one_row_panels = {PANELS_OF(false, 1), PANELS_OF(true, 1)},
                                                        .streams = STREAMS,
                                                        .product = product_f64,
                                                        .pack = pack_f64};
