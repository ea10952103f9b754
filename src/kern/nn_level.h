// SPDX-License-Identifier: MIT
// All network kernels of one instruction set level: included once by each nn_LEVEL.c, whose flags choose the level. The
// templates' parameters: T element, V vector, VI integers of the same size, VN lanes, N(name) the function's name,
// V_(op) the vector operation of simd.h, TABLE the table's name.
#include <assert.h>

#include "kern/nn_kernels.h"
#include "kern/simd.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define SOME _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define SOME _Pragma("GCC unroll 4")
#endif

// Rows of a register tile: rows x 2 accumulators, two vectors of b and one broadcast fit the registers. Batches are
// multiples of four rather than six; but of more rows six go together, whose sums need not wait for each other.
#if defined(__AVX512F__)
enum { TILE_ROWS = 8, MOST_ROWS = 8 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 4, MOST_ROWS = 6 };
#else
enum { TILE_ROWS = 4, MOST_ROWS = 4 };
#endif

enum { FETCH_TERMS = 16 };  // terms of a tile's sums between two fetches of what comes next

// MANY_FORMS: kernels for every number of strands that go together and for frequent widths, or a few for all.
#define MANY_FORMS (DPCRI_VECTOR_BYTES > 16)
#include "kern/number_f32.inc"
#define TABLE DPCRI_LEVEL(dpcri_nn_f32)
#include "kern/nn_products.inc"
#include "kern/nn_activations.inc"
#if MANY_FORMS
#include "kern/nn_eight.inc"
#endif
#include "kern/nn_layers.inc"
#include "kern/nn_steps.inc"
#include "kern/number_none.inc"
#undef TABLE

#undef MANY_FORMS
#define MANY_FORMS 0
#include "kern/number_f64.inc"
#define TABLE DPCRI_LEVEL(dpcri_nn_f64)
#include "kern/nn_products.inc"
#include "kern/nn_activations.inc"
#include "kern/nn_layers.inc"
#include "kern/nn_steps.inc"
#include "kern/number_none.inc"
#undef TABLE
