// SPDX-License-Identifier: MIT
// Whether chunks of a linear chain join: the last state of a chunk that the loop ran from its true start, against the
// state that a product of transitions took the next chunk to start from.
#ifndef DPCRI_CHAIN_JOINS_H
#define DPCRI_CHAIN_JOINS_H

#include <stdatomic.h>

#include "chain/flow.h"

// States of chunks: component i of that of chunk number c lies at x + c step + i each.
typedef struct dpcri_chunk_states {
    const void *x;
    int64_t step, each;
} dpcri_chunk_states;

// `count` chunks of `chunk` steps each of sequence `row`, whose states are in flow->z.
typedef struct dpcri_joint {
    int64_t first, chunk, count, row;  // step at which chunk number 0 begins
    dpcri_chunk_states end, next;      // the last state of each, and the one that enters the chunk after it
    bool goes_out;                     // end: not the state z_m, but op(A_{m+1}) z_m, which goes out of it
} dpcri_joint;

// joint->end as they lie in flow->z.
dpcri_chunk_states dpcri_joint_ends(const dpcri_flow *flow, const dpcri_joint *joint);

// Whether `count` states, w wide, are all, component by component, within `bound` of those wanted, which are finite. None is
// then beyond the bound in double either, but by a few of the smallest numbers: so it may stand for asking each one.
bool dpcri_states_near(dpcr_dtype dtype, const dpcri_chunk_states *states, const dpcri_chunk_states *wanted,
                       int64_t count, int64_t w, double bound);

// Whether all of them end as near as DPCRI_JOINS of each component of the start after them: what nearly all do. Also
// true where they are not to be asked: of the ring, which has no rounding, and of chains that are solved in place,
// whose b is gone, where nobody wants to know (flow->lost). Their z stands in for b: |b| <= |z| + |A| |z before|.
bool dpcri_joins_at_once(const dpcri_flow *flow, const dpcri_joint *joint);

// Whether chunk number c of them ends near enough to the start after it for the difference to be rounding; else the
// chunks after it are to be done again.
bool dpcri_joins(const dpcri_flow *flow, const dpcri_joint *joint, int64_t c);

// Components that mix.
static inline int64_t dpcri_joins_block(const dpcri_flow *flow) {
    return flow->form == DPCR_DENSE ? flow->w : flow->form == DPCR_BLOCK ? flow->block : 1;
}

// The smallest number of so many bytes, with this thread's denormals or without: what rounding takes of small ones.
double dpcri_joins_least(size_t size);

// Sizes of what component i of state m of a sequence is the sum of.
double dpcri_joins_terms(const dpcri_flow *flow, int64_t m, int64_t row, int64_t i);

// How far rounding leads that component within the last n steps up to m; 0 for blocks wider than 512, where rounding is
// not followed.
double dpcri_joins_disturbed(const dpcri_flow *flow, int64_t m, int64_t n, int64_t row, int64_t i);

// *first = min(*first, m), of threads side by side: where the loop goes on.
static inline void dpcri_joint_first(_Atomic int64_t *first, int64_t m) {
    int64_t before = *first;
    while (m < before && !atomic_compare_exchange_weak(first, &before, m)) continue;
}

#endif
