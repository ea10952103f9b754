// SPDX-License-Identifier: MIT
// Linear attention's kernels of one instruction set level, for float and for double. Included once by one source a
// level, whose flags choose the level.
#ifndef DPCRI_ATTENTION_LEVEL_H
#define DPCRI_ATTENTION_LEVEL_H

#include "base/base.h"
#include "kern/attention.h"
#include "kern/interleave.h"
#include "kern/simd.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

// ROWS x 2 sums of a product lie in registers at once, and SOLVED x 2 of a triangular system.
enum { CHUNK = DPCRI_ATTENTION_CHUNK, WINDOW = DPCRI_ATTENTION_WINDOW, SOLVED = 4 };
#if defined(__AVX512F__)
enum { ROWS = 8 };
#else
enum { ROWS = 4 };
#endif

#define VALUES_ONLY
#include "kern/number_f32.inc"
#define TABLE DPCRI_LEVEL(dpcri_attention_f32)
#include "kern/nn_activations.inc"
#include "kern/exponential.inc"
#include "kern/turn.inc"
#include "kern/attention.inc"
#include "kern/attention_back.inc"
#undef SET
#include "kern/number_none.inc"
#undef TABLE

#include "kern/number_f64.inc"
#define TABLE DPCRI_LEVEL(dpcri_attention_f64)
#include "kern/nn_activations.inc"
#include "kern/exponential.inc"
#include "kern/turn.inc"
#include "kern/attention.inc"
#include "kern/attention_back.inc"

#endif
