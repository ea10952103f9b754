// SPDX-License-Identifier: MIT
// The adjoint kernels of one instruction set level: adjoint.inc for float and for double. Included once by one source a
// level, whose flags choose the level.
#ifndef DPCRI_ADJOINT_LEVEL_H
#define DPCRI_ADJOINT_LEVEL_H

#include "kern/adjoint.h"
#include "kern/narrow_values.h"
#include "kern/transpose.h"

#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b

enum { OUT_IN, IN_OUT, DIAGONAL };  // how W lies
enum { TURNED, ROWS, PACKED };      // how numbers of a vector of lanes lie (adjoint_lanes.inc)

// Measured by bench_cells --costs (AMD Zen 5, 4.3 GHz), in cache; other machines differ by their clocks.
#define LOOP_SECONDS \
    { 1.1e-9, 1.1e-9, 2e-9, 2.6e-9, 2.9e-9 }
#define LANE_SECONDS \
    { 1.1e-9, 1.1e-9, 2e-9, 2.6e-9, 2.9e-9 }
#define OWN_LANE_SECONDS \
    { 1.1e-9, 1.1e-9, 2e-9, 2.6e-9, 2.9e-9 }
#define T float
#define V vf
#define VI vfi
#define VN (DPCRI_VECTOR_BYTES / 4)
#define V_(op) vf_##op
#define N(name) name##_f32
#define TABLE DPCRI_LEVEL(dpcri_adjoint_f32)
#define X1 f1
#define X2 f4
#define X3 f4
#define X4 f4
#define XN1 1
#define XN2 4
#define XN3 4
#define XN4 4
#include "kern/adjoint.inc"
#undef T
#undef V
#undef VI
#undef VN
#undef V_
#undef N
#undef TABLE
#undef X1
#undef X2
#undef X3
#undef X4
#undef XN1
#undef XN2
#undef XN3
#undef XN4
#undef LOOP_SECONDS
#undef LANE_SECONDS
#undef OWN_LANE_SECONDS

#define LOOP_SECONDS \
    { 1.1e-9, 1.1e-9, 2e-9, 2.6e-9, 2.9e-9 }
#define LANE_SECONDS \
    { 1.1e-9, 1.1e-9, 2e-9, 2.6e-9, 2.9e-9 }
#define OWN_LANE_SECONDS \
    { 1.1e-9, 1.1e-9, 2e-9, 2.6e-9, 2.9e-9 }
#define T double
#define V vd
#define VI vdi
#define VN (DPCRI_VECTOR_BYTES / 8)
#define V_(op) vd_##op
#define N(name) name##_f64
#define TABLE DPCRI_LEVEL(dpcri_adjoint_f64)
#define X1 d2
#define X2 d2
#define X3 d4
#define X4 d4
#define XN1 2
#define XN2 2
#define XN3 4
#define XN4 4
#include "kern/adjoint.inc"

#endif
