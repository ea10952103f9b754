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
#define T float
#define V vf
#define VI vfi
#define VN VF
#define IS_FLOAT 1
#define N(name) name##_f32
#define TABLE DPCRI_LEVEL(dpcri_para_f32)
#define V_(op) vf_##op
#include "kern/nn_activations.inc"
#include "kern/para.inc"
#include "kern/para_back.inc"
#undef SET
#undef T
#undef V
#undef VI
#undef VN
#undef IS_FLOAT
#undef N
#undef TABLE
#undef V_

#define T double
#define V vd
#define VI vdi
#define VN VD
#define IS_FLOAT 0
#define N(name) name##_f64
#define TABLE DPCRI_LEVEL(dpcri_para_f64)
#define V_(op) vd_##op
#include "kern/nn_activations.inc"
#include "kern/para.inc"
#include "kern/para_back.inc"

#endif
