// SPDX-License-Identifier: MIT
// Sums of arrays over some of their axes, in an order that their shape alone fixes.
#ifndef DPCRI_SUMS_H
#define DPCRI_SUMS_H

#include "base/base.h"

// Strides in numbers, of what is read and of what is written; `to` 0 and an extent above 1: summed over.
typedef struct dpcri_sum_axis {
    int64_t extent, from, to;
} dpcri_sum_axis;

enum { DPCRI_SUM_AXES = 5 };

// Writes every place of `to` once: the sum in double of what goes there, the last of the summed axes innermost.
void dpcri_sum_over(dpcr_dtype dtype, const void *from, void *to, const dpcri_sum_axis *axes, int count);

#endif
