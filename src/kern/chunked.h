// SPDX-License-Identifier: MIT
// Fused kernels of scheme chunked, lanes innermost: `lanes` chunks of one sequence are a window and run side by side, a
// chunk a lane. A window's numbers are read once, transposed into a buffer that the caches keep, and used twice:
//
//   summarise   M_c and v_c of every lane, while the buffer fills
//   carry       s_c = M_c s_{c-1} + v_c in order of the lanes                           (a few scalars a chunk)
//   finish      the loop from s_{c-1} in every lane, written transposed back, and its ends beside s_c
//
// The arithmetic is that of the span kernels of the same level, operation by operation, so that windows and spans give
// the same bits. Derivation: docs/math/chunked.md.
#ifndef DPCRI_CHUNKED_H
#define DPCRI_CHUNKED_H

#include "kern/kern.h"

// A chunk's end joins the next one's start within this of it, by component, or by more (chain/joins.h): of numbers of
// so many bytes.
#define DPCRI_JOINS(size) ((size) == 8 ? 1e-6 : 1e-3)

// What finish asks for, of the window that comes next, from its lowest addresses on. NULL: nothing.
typedef struct dpcri_ahead {
    const void *a, *b;
} dpcri_ahead;

// Places are those of lane 0's lowest addresses: of its first step, or, in a transposed chain, of its last. Lane c lies
// c chunks further on along the chain: higher, or, in a transposed one, lower.
typedef struct dpcri_window {
    const void *a, *b;    // [lanes][C][values], [lanes][C][w]
    void *z;              // [lanes][C][w]; may be b
    const void *first_a;  // lane 0's values, [C][values]: a, or elsewhere
    bool head;            // lane 0 starts the chain: the next lane enters with v_0
    const void *first;    // head: the state after the first step; NULL: that is b
    dpcri_ahead ahead;
    bool far;  // memory has what is ahead: by loads, which come in order, so that the processor's own prefetching helps
    bool stream;   // far, and z lies at addresses of whole vectors: past the caches, by levels that can
    void *buffer;  // [C][values + w][lanes]
    void *maps;    // M [values][lanes], of op(A); v [w][lanes]
    void *starts;  // s [w][lanes] that enters a lane, then s [w][lanes] that leaves it by M and v
} dpcri_window;

typedef struct dpcri_chunked_kernels {
    int64_t lanes, steps;  // of a window; of a chunk, C
    // Whether all lanes' maps, idle ones' too, halve what they are given, at least: the largest number of a block,
    // where components mix.
    bool (*summarise)(const dpcri_window *window);
    // Enters `count` lanes with the state x [w], which becomes that of the lane after them.
    void (*carry)(const dpcri_window *window, int64_t count, void *x);
    // Puts the lanes' last states where v was. Whether all of them, idle lanes' too, join what carry had leave them.
    bool (*finish)(const dpcri_window *window);
} dpcri_chunked_kernels;

// The kernels of a form (dpcri_kernel_form), width and size of its blocks (DPCR_BLOCK); NULL where there are none.
const dpcri_chunked_kernels *dpcri_chunked_at(dpcri_isa level, dpcr_dtype dtype, dpcr_structure form, int64_t width,
                                              int64_t block, bool transposed);

// Steps of their chunks, and of those that squares.h summarises, the same for all; 0 where there are none.
int64_t dpcri_chunked_steps(dpcr_structure form, int64_t width, int64_t block);

// A level's kernels, in the order of chunked.def.
typedef struct dpcri_chunked_table {
#define DPCRI_CHUNKED(width, k, steps, name) dpcri_chunked_kernels name, name##_t;
#include "kern/chunked.def"
#undef DPCRI_CHUNKED
} dpcri_chunked_table;

#define DPCRI_DECLARE_LEVEL(level) extern const dpcri_chunked_table dpcri_chunked_f32_##level, dpcri_chunked_f64_##level
DPCRI_DECLARE_LEVEL(portable);
DPCRI_DECLARE_LEVEL(avx2);
DPCRI_DECLARE_LEVEL(avx512);
#undef DPCRI_DECLARE_LEVEL

#endif
