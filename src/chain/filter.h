// SPDX-License-Identifier: MIT
// The inside of a filter, for execute, its adjoint and gradients.
#ifndef DPCRI_CHAIN_FILTER_H
#define DPCRI_CHAIN_FILTER_H

#include "deeppcr/filter.h"
#include "kern/filter.h"

// A matrix of twice a double's digits, value + rest, both [w][w].
typedef struct dpcri_filter_matrix {
    double *value, *rest;
} dpcri_filter_matrix;

// Sections that run together, few enough that powers of their A are cheap.
typedef struct dpcri_filter_stage {
    int64_t first, count, width;  // sections, and their states w
    int64_t powers;
    double *power;   // [powers][2][w][w]: A^(2^k), value and rest
    int64_t memory;  // |A^m| <= FORGOTTEN from here on; INT64_MAX: not found
    int64_t slow;    // the least 2^k whose A^(2^k) has an entry above SLOW: it makes more of rounding; INT64_MAX: none
    int64_t limit;   // chains of this length and more grow too much, or are too wide, to be cut
} dpcri_filter_stage;

struct dpcr_filter {
    dpcr_context *context;
    int64_t sections, order;
    double *b, *a;  // [sections][order + 1], divided by a_0
    bool open;      // one section without feedback
    int64_t stages;
    dpcri_filter_stage *stage;
};

// Powers of one stage's A, its memory and limit.
dpcr_status dpcri_filter_measure(const dpcr_filter *filter, dpcri_filter_stage *stage, dpcr_error *error);
// A^n of a stage into power; scratch of the same size. twofold: the product of powers in twice a double's digits too;
// else its rests are not written.
void dpcri_filter_power(const dpcri_filter_stage *stage, int64_t n, bool twofold, dpcri_filter_matrix power,
                        dpcri_filter_matrix scratch);

// What execute checks of its arguments, but for what overlaps.
dpcr_status dpcri_filter_check(const dpcr_filter *filter, const char *function, const dpcr_array *x,
                               const dpcr_array *zi, const dpcr_array *y, const dpcr_array *zf, dpcr_error *error);

#endif
