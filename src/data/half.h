// SPDX-License-Identifier: MIT
// Numbers of two bytes, which files hold and nothing is computed in: float32 holds them all.
#ifndef DPCRI_DATA_HALF_H
#define DPCRI_DATA_HALF_H

#include "base/base.h"

typedef enum dpcri_half { DPCRI_NO_HALF = 0, DPCRI_BINARY16, DPCRI_BFLOAT16 } dpcri_half;

// count numbers in the host's byte order to floats; infinities, NaN's bits and numbers below the normal ones stay.
// `from` may be the last 2 count bytes of `to`.
void dpcri_half_widen(dpcri_half kind, const void *from, int64_t count, float *to);

#endif
