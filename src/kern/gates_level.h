// SPDX-License-Identifier: MIT
// The recurrent kernels of one instruction set level: gates.inc for float and for double. Included once by one source a
// level, whose flags choose the level.
#ifndef DPCRI_GATES_LEVEL_H
#define DPCRI_GATES_LEVEL_H

#include <assert.h>

#include "base/base.h"
#include "kern/gates.h"
#include "kern/simd.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_SOME _Pragma("clang loop unroll_count(4)")
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define UNROLL_SOME _Pragma("GCC unroll 4")
#define ROLLED _Pragma("GCC unroll 1")
#endif

// Registers of a tile: strands x tiles of units x gates x parts of a sum that run side by side, enough for the latency
// of an fma and few enough that sums, weights and one number of h fit. MOST and SOME strands together (of one gate
// six before them at times, gates.inc), then one, which takes SINGLE tiles at once. MOST_HELD: vectors of units of one
// loop over what sums become; FIRST_STRANDS: strands of the loop over the functions that come first. WIDE_...: strands
// of gates_wide.inc, where the parts of a sum go one after the other.
#if defined(__AVX512F__)
enum {
    RNN_MOST = 4,
    RNN_SOME = 2,
    RNN_VECTORS = 2,
    RNN_SINGLE = 4,
    GRU_MOST = 4,
    GRU_SOME = 2,
    GRU_SINGLE = 2,
    LSTM_MOST = 4,
    LSTM_SOME = 2,
    LSTM_SINGLE = 2,
    MOST_STRANDS = 8,
    MOST_SUMS = 24,
    MOST_HELD = 8,
    FIRST_STRANDS = 2,
    WIDE_RNN = 8,
    WIDE_GRU = 8,
    WIDE_LSTM = 6
};
#else
enum {
    RNN_MOST = 3,  // x 2 tiles: fewer loads than fma, as 6 x 1 has not
    RNN_SOME = 2,
    RNN_VECTORS = 2,
    RNN_SINGLE = 4,
    GRU_MOST = 2,
    GRU_SOME = 2,
    GRU_SINGLE = 2,
    LSTM_MOST = 3,
    LSTM_SOME = 2,
    LSTM_SINGLE = 2,
    MOST_STRANDS = 6,
    MOST_SUMS = 12,
    MOST_HELD = 4,
    FIRST_STRANDS = 1,
    WIDE_RNN = 6,
    WIDE_GRU = 4,
    WIDE_LSTM = 3
};
#endif
enum {
    ONE_GATE_SPLIT = 2,
    GRU_SPLIT = 2,  // one strand's sums would wait for each other
    TERMS = 256,    // of a sum; more are summed in blocks
    // gates_wide.inc: strands from which, and bytes of weights beyond which it pays
    WIDE_STRANDS = 8,
    WIDE_STEP_BYTES = 1 << 18
};

// An array's values go to memory here, so that the registers are others'.
#define PUT_DOWN(array) __asm__ volatile("" : : "r"(array) : "memory")

// Stores past the caches, to addresses that a vector's size divides; a fence must follow before others read them.
#if defined(__AVX512F__)
DPCRI_INLINE void vf_stream(float *p, vf v) { _mm512_stream_ps(p, (__m512)v); }
DPCRI_INLINE void vd_stream(double *p, vd v) { _mm512_stream_pd(p, (__m512d)v); }
DPCRI_INLINE void stream_fence(void) { _mm_sfence(); }
#elif defined(__AVX2__)
DPCRI_INLINE void vf_stream(float *p, vf v) { _mm256_stream_ps(p, (__m256)v); }
DPCRI_INLINE void vd_stream(double *p, vd v) { _mm256_stream_pd(p, (__m256d)v); }
DPCRI_INLINE void stream_fence(void) { _mm_sfence(); }
#else
DPCRI_INLINE void vf_stream(float *p, vf v) { vf_store(p, v); }
DPCRI_INLINE void vd_stream(double *p, vd v) { vd_store(p, v); }
DPCRI_INLINE void stream_fence(void) {}
#endif

static_assert((int)DPCRI_GATES_FEW < (int)WIDE_STRANDS, "single steps have no room for copies");

// Strands of a call that go through a step together.
enum { TOGETHER = 64, SCRATCH_BYTES = 1 << 14 };

#define VALUES_ONLY
#include "kern/number_f32.inc"
#define TABLE DPCRI_LEVEL(dpcri_gates_f32)
#include "kern/nn_activations.inc"
#include "kern/gates.inc"
#include "kern/gates_back.inc"
#undef SET
#include "kern/number_none.inc"
#undef TABLE

#include "kern/number_f64.inc"
#define TABLE DPCRI_LEVEL(dpcri_gates_f64)
#include "kern/nn_activations.inc"
#include "kern/gates.inc"
#include "kern/gates_back.inc"

#endif
