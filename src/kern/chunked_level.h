// SPDX-License-Identifier: MIT
// The fused chunk kernels of one instruction set level: chunked.inc for float and for double. Included once by one
// source a level.
#ifndef DPCRI_CHUNKED_LEVEL_H
#define DPCRI_CHUNKED_LEVEL_H

#include "kern/chunked.h"
#include "kern/simd.h"
#include "kern/transpose.h"

// Vectors of chunks that a window of width w takes side by side. At w = 1 one alone waits for its own results; wider
// ones wait for their shuffles, and of dense ones two would not fit the first-level cache.
#define DPCRI_ABREAST(w) (DPCRI_VECTOR_BYTES == 64 && (w) == 1 ? 2 : 1)
// Whether whole squares are turned at once: the registers hold one beside that, but the loop over diagonal chunks of
// width 3 would hold six, too much code.
#define DPCRI_WHOLE(w, k) (DPCRI_VECTOR_BYTES == 64 && DPCRI_ABREAST(w) == 1 && !((w) == 3 && (k) == 1))

enum { WIDEST = 8 };  // of chunked.def

#define T float
#define V vf
#define S(name) sf_##name
#define VV(name) vf_##name
#define K(name) name##_f32
#define LANES (DPCRI_VECTOR_BYTES / 4)
#define PART VF_PART
#include "kern/chunked.inc"

#define T double
#define V vd
#define S(name) sd_##name
#define VV(name) vd_##name
#define K(name) name##_f64
#define LANES (DPCRI_VECTOR_BYTES / 8)
#define PART VD_PART
#include "kern/chunked.inc"

// What the kernels have room for, and tiles that fill chunks.
#define DPCRI_CHUNKED(width, k, steps, name)                              \
    _Static_assert((width) <= WIDEST && (k) <= 4 && (width) % (k) == 0 && \
                       (steps) % ((width) % 4 == 0   ? 4                  \
                                  : (width) % 2 == 0 ? 8                  \
                                                     : 16) ==             \
                           0,                                             \
                   #name);
#include "kern/chunked.def"
#undef DPCRI_CHUNKED

const dpcri_chunked_table DPCRI_LEVEL(dpcri_chunked_f32) = {
#define DPCRI_CHUNKED(width, k, steps, name)                                                                     \
    .name = {DPCRI_ABREAST(width) * DPCRI_VECTOR_BYTES / 4, steps, name##_summarise_f32, name##_carry_f32,       \
             name##_finish_f32},                                                                                 \
    .name##_t = {DPCRI_ABREAST(width) * DPCRI_VECTOR_BYTES / 4, steps, name##_t_summarise_f32, name##_carry_f32, \
                 name##_t_finish_f32},
#include "kern/chunked.def"
#undef DPCRI_CHUNKED
};
const dpcri_chunked_table DPCRI_LEVEL(dpcri_chunked_f64) = {
#define DPCRI_CHUNKED(width, k, steps, name)                                                                     \
    .name = {DPCRI_ABREAST(width) * DPCRI_VECTOR_BYTES / 8, steps, name##_summarise_f64, name##_carry_f64,       \
             name##_finish_f64},                                                                                 \
    .name##_t = {DPCRI_ABREAST(width) * DPCRI_VECTOR_BYTES / 8, steps, name##_t_summarise_f64, name##_carry_f64, \
                 name##_t_finish_f64},
#include "kern/chunked.def"
#undef DPCRI_CHUNKED
};

#endif
