// SPDX-License-Identifier: MIT
// The elementwise recurrent kernels of one instruction set level: para.inc for float and for double. Included once by
// one source a level, whose flags choose the level.
#ifndef DPCRI_PARA_LEVEL_H
#define DPCRI_PARA_LEVEL_H

#include "base/base.h"
#include "kern/interleave.h"
#include "kern/para.h"
#include "kern/simd.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

enum { SCRATCH_BYTES = 1 << 14 };

#define VALUES_ONLY
#include "kern/number_f32.inc"
#define TABLE DPCRI_LEVEL(dpcri_para_f32)
#include "kern/nn_activations.inc"
#include "kern/para.inc"
#include "kern/para_back.inc"
#undef SET
#include "kern/number_none.inc"
#undef TABLE

#include "kern/number_f64.inc"
#define TABLE DPCRI_LEVEL(dpcri_para_f64)
#include "kern/nn_activations.inc"
#include "kern/para.inc"
#include "kern/para_back.inc"

#endif
