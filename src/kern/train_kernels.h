// SPDX-License-Identifier: MIT
// Kernels of the optimisers: one update of n numbers, one table a dtype, chosen by the instruction set level.
//
// They use no fma: these loops wait for memory, multiplication, addition, division and square root are rounded alike
// everywhere, and so an update has the same bits at every level.
#ifndef DPCRI_TRAIN_KERNELS_H
#define DPCRI_TRAIN_KERNELS_H

#include "rt/rt.h"

// g' = g + decay p;   m = momentum m + g' (m NULL: momentum 0);   p = p - rate m (or g')
typedef struct dpcri_sgd_update {
    double rate, momentum, decay;
} dpcri_sgd_update;

// p' = keep p;   g' = g + decay p';   m = near + pull (g' - m), near = m, or g' where from_gradient is set
// v = beta2 v + rest2 g'^2;   p = p' - step m / (sqrt(v) root + epsilon)
typedef struct dpcri_adam_update {
    double keep, decay;
    double pull;  // 1 - beta1 from m, -beta1 from g'
    bool from_gradient;
    double beta2, rest2;  // rest2 = 1 - beta2, formed in double
    double step, root, epsilon;
} dpcri_adam_update;

// p, m, v and g hold n numbers each and do not overlap. `clear` sets g to zero once it is used: while its lines are in
// cache that costs a fraction of a pass of its own. Without it g is only read.
typedef struct dpcri_train_kernels {
    void (*sgd)(int64_t n, void *p, void *m, void *g, bool clear, const dpcri_sgd_update *update);
    void (*adam)(int64_t n, void *p, void *m, void *v, void *g, bool clear, const dpcri_adam_update *update);
} dpcri_train_kernels;

// The table of the level in force; DPCR_F32 or DPCR_F64.
const dpcri_train_kernels *dpcri_train_kernels_get(dpcr_dtype dtype);
// Of any level up to the one in force, for tests; NULL above it.
const dpcri_train_kernels *dpcri_train_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
