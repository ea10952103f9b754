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

// A register tile's rows and vectors a row: its sums, a row of b and one broadcast fit the registers. Where there are
// 16 of them six rows leave room for half a panel's row of b, and read each of its lines once for six rows.
#if defined(__AVX512F__)
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#endif
enum { PANEL_VECTORS = 4, PART_DEPTH = 512 };  // a part of a panel stays in the second cache
enum { AHEAD_BYTES = 1024 };                   // of a panel: 256 to 2048 served alike, 4096 worse

#include "kern/number_f32.inc"
#include "kern/wide.inc"
#include "kern/number_none.inc"

#include "kern/number_f64.inc"
#include "kern/wide.inc"
#include "kern/number_none.inc"

const dpcri_wide_kernels DPCRI_LEVEL(dpcri_wide_f32) = {
    .element = sizeof(float), .panel = PANEL_VECTORS * VF, .product = product_f32, .pack = pack_f32};
const dpcri_wide_kernels DPCRI_LEVEL(dpcri_wide_f64) = {
    .element = sizeof(double), .panel = PANEL_VECTORS * VD, .product = product_f64, .pack = pack_f64};
