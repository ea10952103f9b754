// SPDX-License-Identifier: MIT
// Dense chains of width 4 and 8, float, AVX-512, several side by side. A vector holds the same four numbers of the
// matrices of four chains, a quarter each: four loads and eight shuffles for sixteen numbers of each. The
// serial kernel of width 8 holds two rows of one matrix as they lie in memory, multiplies them by the state and adds up
// along them.
//
//   serial    the serial kernel of kern.h of width 8, bit for bit (width 4 is fours.inc's)
//   summary   M and v of chunks: M = op(A_{n-1}) ... op(A_0), v = the chunk run from zero
#ifndef DPCRI_SQUARES_H
#define DPCRI_SQUARES_H

#include "kern/kern.h"

// `count` chunks of n steps side by side: chunk c's first step lies c rows further on.
typedef struct dpcri_summary {
    int64_t n, count;  // both 1 or more
    const void *a;
    int64_t a_step, a_row;
    const void *b;
    int64_t b_step, b_row;
    void *m, *v;    // [count][w][w], for op(m); [count][w]
    int64_t ahead;  // w = 8: steps ahead of which matrices are asked for (1 from the caches, 4 from memory)
} dpcri_summary;

typedef void dpcri_summary_kernel(const dpcri_summary *summary);

// NULL where there is none.
dpcri_summary_kernel *dpcri_summary_at(dpcri_isa level, dpcr_dtype dtype, dpcr_structure form, int64_t width,
                                       bool transposed);

// Two rows or more of width 8, one step or more.
void dpcri_squares_serial_avx512(const dpcri_span *span, bool transposed);

void dpcri_summary_w4_avx512(const dpcri_summary *summary);
void dpcri_summary_w4_t_avx512(const dpcri_summary *summary);
void dpcri_summary_w8_avx512(const dpcri_summary *summary);
void dpcri_summary_w8_t_avx512(const dpcri_summary *summary);

#endif
