// SPDX-License-Identifier: MIT
// The selective scan's kernels of one instruction set level, for float and for double. Included once by one source a
// level, whose flags choose the level.
#ifndef DPCRI_SELECTIVE_LEVEL_H
#define DPCRI_SELECTIVE_LEVEL_H

#include "base/base.h"
#include "kern/interleave.h"
#include "kern/selective.h"
#include "kern/simd.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

enum { TILE = DPCRI_SELECTIVE_TILE, PIECE = 16 };

#define VALUES_ONLY
#include "kern/number_f32.inc"
#define TABLE DPCRI_LEVEL(dpcri_selective_f32)
#include "kern/nn_activations.inc"
#include "kern/exponential.inc"
#include "kern/turn.inc"
#include "kern/selective.inc"
#include "kern/selective_back.inc"
#undef SET
#include "kern/number_none.inc"
#undef TABLE

#include "kern/number_f64.inc"
#define TABLE DPCRI_LEVEL(dpcri_selective_f64)
#include "kern/nn_activations.inc"
#include "kern/exponential.inc"
#include "kern/turn.inc"
#include "kern/selective.inc"
#include "kern/selective_back.inc"

#endif
