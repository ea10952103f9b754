// SPDX-License-Identifier: MIT
// advance of dpcri_narrow_kernels for batches, w <= DPCRI_NARROW_WIDTH: sequences side by side share a step's weights.
// The bits are the loop's.
#ifndef DPCRI_NARROW_ROWS_H
#define DPCRI_NARROW_ROWS_H

#include "kern/narrow.h"

enum { DPCRI_NARROW_ROWS = 4 };  // sequences from which on these kernels are ahead of the lanes'

typedef void dpcri_narrow_advance(const dpcri_narrow *chain, const dpcri_narrow_run *run);
extern dpcri_narrow_advance dpcri_narrow_rows_f32_portable, dpcri_narrow_rows_f64_portable;
extern dpcri_narrow_advance dpcri_narrow_rows_f32_avx2, dpcri_narrow_rows_f64_avx2;
extern dpcri_narrow_advance dpcri_narrow_rows_f32_avx512, dpcri_narrow_rows_f64_avx512;

#endif
