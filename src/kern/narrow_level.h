// SPDX-License-Identifier: MIT
// The narrow kernels of one instruction set level: narrow.inc for float and for double. Included once by one source a
// level, whose flags choose the level.
#ifndef DPCRI_NARROW_LEVEL_H
#define DPCRI_NARROW_LEVEL_H

#include "kern/narrow.h"
#include "kern/narrow_values.h"

#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b

// Vectors of lanes that go together: enough to hide the latency of a step, few enough for the registers and L1.
#if defined(__AVX512F__)
#define LANE_GROUPS(w, own) ((w) == 1 ? (own) ? 4 : 5 : (w) == 2 ? 3 : 2)
#else
#define LANE_GROUPS(w, own) ((w) == 1 ? 4 : (w) == 2 ? 2 : 1)
#endif
// Vectors that are activated operation by operation together.
#define LANE_BATCH 3

#define T float
#define IS_FLOAT 1
#define V vf
#define VN (DPCRI_VECTOR_BYTES / 4)
#define V_(op) vf_##op
#define VA(name) name##_vf
#define N(name) name##_f32
#define TABLE DPCRI_LEVEL(dpcri_narrow_f32)
#define PART 4
#define PARTS (DPCRI_VECTOR_BYTES / 16)
#define X1 f1
#define X2 f4
#define X3 f4
#define X4 f4
#define XN1 1
#define XN2 4
#define XN3 4
#define XN4 4
#include "kern/narrow.inc"
#undef T
#undef IS_FLOAT
#undef V
#undef VN
#undef V_
#undef VA
#undef N
#undef TABLE
#undef PART
#undef X1
#undef X2
#undef X3
#undef X4
#undef XN1
#undef XN2
#undef XN3
#undef XN4

#define T double
#define IS_FLOAT 0
#define V vd
#define VN (DPCRI_VECTOR_BYTES / 8)
#define V_(op) vd_##op
#define VA(name) name##_vd
#define N(name) name##_f64
#define TABLE DPCRI_LEVEL(dpcri_narrow_f64)
#define PART 2
#define X1 d2
#define X2 d2
#define X3 d4
#define X4 d4
#define XN1 2
#define XN2 2
#define XN3 4
#define XN4 4
#include "kern/narrow.inc"

#endif
