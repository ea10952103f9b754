// SPDX-License-Identifier: MIT
// Whether states that a scheme without chunks made are those of the recurrence: each against op(A_m) z_{m-1} + b_m, all
// steps at once; else the loop goes on from the first that is not.
#ifndef DPCRI_CHAIN_RECHECK_H
#define DPCRI_CHAIN_RECHECK_H

#include "chain/flow.h"

// What products round by at most: a component holds within this of itself (numbers of so many bytes), or within so many
// of the smallest numbers; of bppsa also so many roundings of its terms.
#define DPCRI_RECHECK(size) ((size) == 8 ? 1e-9 : 1e-4)
enum { DPCRI_RECHECK_ROUNDS = 256 };

// What the check takes from the arena, of each of its tasks.
typedef struct dpcri_recheck_space {
    void *made;        // [states][w]
    double *followed;  // [11][w]
} dpcri_recheck_space;

void dpcri_recheck_take(const dpcri_flow *flow, dpcri_arena *arena, dpcri_recheck_space *space);

// Looks at flow->z, and returns the first step that the loop had to finish; n: none. Chains whose z is b, which is gone
// then, and the ring, which has no rounding, are not looked at.
int64_t dpcri_recheck(const dpcri_flow *flow, const dpcri_recheck_space *space);

#endif
