// SPDX-License-Identifier: MIT
// The narrow kernels of one instruction set level: narrow.inc for float and for double. Included once by one source a
// level, whose flags choose the level.
#ifndef DPCRI_NARROW_LEVEL_H
#define DPCRI_NARROW_LEVEL_H

#include <assert.h>

#include "kern/narrow.h"
#include "kern/narrow_rows.h"
#include "kern/narrow_values.h"

#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b

// Vectors of lanes that go together: enough to hide the latency of a step, few enough for the registers and for L1,
// which holds two blocks of each, turned, and the lines that they lie on; a power of two, so that chains of a power of
// two leave no remainder. own: 0 one W in registers, 1 all other forms.
#if defined(__AVX512F__)
#define LANE_GROUPS(w, own) ((w) == 1 ? 4 : (w) == 4 && (own) ? 1 : 2)
#else
#define LANE_GROUPS(w, own) ((w) == 1 ? 4 : (w) == 2 ? 2 : 1)
#endif

// Vectors that are activated operation by operation together.
#define LANE_BATCH 3

// Vectors of components of wide diagonal steps that go together.
#define COUNT_MOST 6

// Measured in cache: AVX-512 on an AMD Zen 5 at 4.3 GHz, the others on a Zen 3, of whose cores others took a part now
// and then (medians: a loop waits as long whatever they do, lanes take up to 1.8 times as long); loops of ReLU with
// AVX-512 on a Zen 4 and, of float with 2 and 4, the Zen 5, and the others from the Zen 4's cycles. By width, [0] a
// vector of a wide diagonal: the loop, a lane's share of tanh with one W in registers and with a W of each step, the
// loop of ReLU.
#define SECONDS(loop, registers, tiles, relu) \
    .loop_seconds = {EACH loop}, .lane_seconds = {{EACH registers}, {EACH tiles}}, .relu_seconds = {EACH relu}
#define EACH(w0, w1, w2, w3, w4) w0, w1, w2, w3, w4
#if defined(__AVX512F__)
#define COSTS_F32                                                                                  \
    SECONDS((6.9e-9, 6.9e-9, 7.9e-9, 8.5e-9, 8.8e-9), (2.6e-9, 0.2e-9, 0.42e-9, 0.75e-9, 0.95e-9), \
            (2.6e-9, 0.45e-9, 0.9e-9, 1.65e-9, 2.4e-9), (2.9e-9, 2.2e-9, 2.9e-9, 3.7e-9, 4.3e-9))
#define COSTS_F64                                                                      \
    SECONDS((25e-9, 25e-9, 26e-9, 28e-9, 28e-9), (6e-9, 0.9e-9, 1.8e-9, 2.8e-9, 4e-9), \
            (6e-9, 1.2e-9, 2.6e-9, 4.6e-9, 7e-9), (3e-9, 1.9e-9, 2.9e-9, 4.6e-9, 4.8e-9))
#elif defined(__AVX2__)
#define COSTS_F32                                                                                 \
    SECONDS((10e-9, 9.4e-9, 11.2e-9, 12.4e-9, 12.8e-9), (4.5e-9, 0.6e-9, 1.2e-9, 2.6e-9, 3.1e-9), \
            (4.5e-9, 1.15e-9, 3e-9, 7.9e-9, 9e-9), (3.2e-9, 2.5e-9, 3.2e-9, 4.2e-9, 5e-9))
#define COSTS_F64                                                                             \
    SECONDS((30e-9, 28e-9, 29.5e-9, 32e-9, 32.5e-9), (10e-9, 3.8e-9, 7.2e-9, 12.8e-9, 16e-9), \
            (10e-9, 5.4e-9, 10.3e-9, 17e-9, 25e-9), (3.3e-9, 2.1e-9, 3.1e-9, 5e-9, 5.3e-9))
#else
#define COSTS_F32                                                                                  \
    SECONDS((10.5e-9, 10.2e-9, 11.4e-9, 12.4e-9, 13e-9), (4.7e-9, 2.2e-9, 3.9e-9, 7.7e-9, 8.6e-9), \
            (4.7e-9, 3e-9, 5.3e-9, 9e-9, 14.7e-9), (4.5e-9, 4.7e-9, 3.6e-9, 4.5e-9, 5.4e-9))
#define COSTS_F64                                                                       \
    SECONDS((38e-9, 38e-9, 39e-9, 54e-9, 53e-9), (23e-9, 11.5e-9, 21e-9, 33e-9, 40e-9), \
            (23e-9, 11.5e-9, 24e-9, 39e-9, 49e-9), (4.5e-9, 2.6e-9, 3.6e-9, 31e-9, 25e-9))
#endif

#include "kern/number_f32.inc"
#define VA(name) name##_vf
#define TABLE DPCRI_LEVEL(dpcri_narrow_f32)
#define ROWS DPCRI_LEVEL(dpcri_narrow_rows_f32)
#define COSTS COSTS_F32
#define IN_REGISTERS (DPCRI_VECTOR_BYTES > 16)
#define HALVES (DPCRI_VECTOR_BYTES == 64)
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
#include "kern/number_none.inc"
#undef VA
#undef TABLE
#undef ROWS
#undef PART
#undef IN_REGISTERS
#undef HALVES
#undef COSTS
#undef X1
#undef X2
#undef X3
#undef X4
#undef XN1
#undef XN2
#undef XN3
#undef XN4

#include "kern/number_f64.inc"
#define VA(name) name##_vd
#define TABLE DPCRI_LEVEL(dpcri_narrow_f64)
#define ROWS DPCRI_LEVEL(dpcri_narrow_rows_f64)
#define COSTS COSTS_F64
#define IN_REGISTERS 0
#define HALVES 0
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
