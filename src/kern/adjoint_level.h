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

// Measured in cache, as those of narrow_level.h: AVX-512 on an AMD Zen 5, the others on a Zen 3. WINDOW_SECONDS: a step
// by composing (kern/window.h). On the Zen 5 with direct and kept states; the loop between those with direct and those
// without. A lane's share of a step of width 8 with AVX2 is a Zen 5's, 4.1 ns, and a quarter more.
#if defined(__AVX512F__)
#define LOOP_SECONDS \
    { 1.3e-9, 1.7e-9, 2.9e-9, 3.8e-9, 4e-9 }
#define LANE_SECONDS \
    { 0.6e-9, 0.35e-9, 0.65e-9, 1.1e-9, 1.5e-9 }
#define OWN_LANE_SECONDS \
    { 0.6e-9, 0.55e-9, 1.25e-9, 2e-9, 2.6e-9 }
#define WINDOW_SECONDS \
    { 0, 0.2e-9, 0.8e-9, 1.6e-9, 2.4e-9 }
#define OWN_WINDOW_SECONDS \
    { 0, 0.25e-9, 1.1e-9, 2.4e-9, 4.1e-9 }
#define EIGHT_SECONDS \
    { 5.9e-9, 2.4e-9 }
#elif defined(__AVX2__)
#define LOOP_SECONDS \
    { 1.9e-9, 1.45e-9, 3.35e-9, 4.7e-9, 4.9e-9 }
#define LANE_SECONDS \
    { 1.2e-9, 0.65e-9, 1.2e-9, 1.9e-9, 3.1e-9 }
#define OWN_LANE_SECONDS \
    { 1.2e-9, 0.9e-9, 2e-9, 2.9e-9, 5e-9 }
#define WINDOW_SECONDS \
    { 0, 0.5e-9, 1.65e-9, 3.15e-9, 5e-9 }
#define OWN_WINDOW_SECONDS \
    { 0, 0.75e-9, 2.7e-9, 4.2e-9, 7.7e-9 }
#define EIGHT_SECONDS \
    { 8.9e-9, 5e-9 }
#else
#define LOOP_SECONDS \
    { 2.5e-9, 2.05e-9, 3.9e-9, 5e-9, 5e-9 }
#define LANE_SECONDS \
    { 2e-9, 0.8e-9, 1.45e-9, 2.4e-9, 4e-9 }
#define OWN_LANE_SECONDS \
    { 2e-9, 0.9e-9, 2e-9, 3.5e-9, 6e-9 }
#define WINDOW_SECONDS \
    { 0, 0.95e-9, 2.3e-9, 5.1e-9, 9.7e-9 }
#define OWN_WINDOW_SECONDS \
    { 0, 1.4e-9, 3.3e-9, 7.8e-9, 14.4e-9 }
#define EIGHT_SECONDS \
    { 11.9e-9, 11.9e-9 }
#endif
#include "kern/number_f32.inc"
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
#include "kern/number_none.inc"
#undef EIGHT_SECONDS
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
#undef WINDOW_SECONDS
#undef OWN_WINDOW_SECONDS

#if defined(__AVX512F__)
#define LOOP_SECONDS \
    { 1.5e-9, 1.5e-9, 2.4e-9, 3.5e-9, 3.8e-9 }
#define LANE_SECONDS \
    { 1e-9, 0.34e-9, 0.66e-9, 1.15e-9, 1.55e-9 }
#define OWN_LANE_SECONDS \
    { 1e-9, 0.58e-9, 1.75e-9, 2.6e-9, 3.6e-9 }
#define WINDOW_SECONDS \
    { 0, 0.4e-9, 1.6e-9, 4e-9, 7e-9 }
#define OWN_WINDOW_SECONDS \
    { 0, 0.4e-9, 1.6e-9, 4e-9, 7e-9 }
#elif defined(__AVX2__)
#define LOOP_SECONDS \
    { 2.5e-9, 2.4e-9, 3.4e-9, 6e-9, 6.6e-9 }
#define LANE_SECONDS \
    { 2.2e-9, 0.85e-9, 2.2e-9, 3.2e-9, 5.8e-9 }
#define OWN_LANE_SECONDS \
    { 2.2e-9, 1.6e-9, 3.3e-9, 4.6e-9, 10e-9 }
#define WINDOW_SECONDS \
    { 0, 0.85e-9, 3.1e-9, 5.5e-9, 8.8e-9 }
#define OWN_WINDOW_SECONDS \
    { 0, 2.6e-9, 4.2e-9, 7.5e-9, 17e-9 }
#else
#define LOOP_SECONDS \
    { 3.5e-9, 3e-9, 3.95e-9, 33.5e-9, 8.9e-9 }
#define LANE_SECONDS \
    { 4e-9, 1.3e-9, 3.2e-9, 4.9e-9, 9.3e-9 }
#define OWN_LANE_SECONDS \
    { 4e-9, 2.9e-9, 6.5e-9, 9.4e-9, 12e-9 }
#define WINDOW_SECONDS \
    { 0, 1.5e-9, 4e-9, 9.3e-9, 20e-9 }
#define OWN_WINDOW_SECONDS \
    { 0, 4.5e-9, 8.5e-9, 14.9e-9, 23e-9 }
#endif
#include "kern/number_f64.inc"
#define EIGHT_SECONDS \
    { 0, 0 }
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
