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
    dpcri_chunk_states start;  // that each ran from; x NULL: the state before it in flow->z, which is known then
    bool goes_out;             // end: not the state z_m, but op(A_{m+1}) z_m, which goes out of it
} dpcri_joint;

// joint->end as they lie in flow->z.
dpcri_chunk_states dpcri_joint_ends(const dpcri_flow *flow, const dpcri_joint *joint);

// Whether `count` states, w wide, are all, component by component, within `bound` of those wanted, which are finite.
// None is then beyond the bound in double either, but by a few of the smallest numbers: so it may stand for asking each
// one.
bool dpcri_states_near(dpcr_dtype dtype, const dpcri_chunk_states *states, const dpcri_chunk_states *wanted,
                       int64_t count, int64_t w, double bound);

// Whether all of them end as near as DPCRI_JOINS of each component of the start after them: what nearly all do. Also
// true where they are not to be asked: of the ring, which has no rounding, and of chains that are solved in place,
// whose b is gone, where nobody wants to know (flow->lost). Their z stands in for b: |b| <= |z| + |A| |z before|.
bool dpcri_joins_at_once(const dpcri_flow *flow, const dpcri_joint *joint);

// Whether chunk number c of them ends near enough to the start after it for the difference to be rounding; else the
// chunks after it are to be done again.
bool dpcri_joins(const dpcri_flow *flow, const dpcri_joint *joint, int64_t c);

// ---- what differences at the joints grow to ----
//
// A difference that is rounding where it arises may grow in the chunks after it. Where components mix and summaries do
// not shrink what they are given, it is carried on: a chunk started from s where the loop would have had s + e, with
// e_c = end_c - s_c + M_c e_{c-1}. A start holds where e is within DPCRI_CARRIED of the largest number of its block;
// or, since sums that come near zero keep the rounding of what they are made of, within what rounding may leave the
// loop off by.

// Starting from s + e leaves of e what e itself is wrong by: about its square.
#define DPCRI_CARRIED(size) ((size) == 8 ? 1e-10 : 1e-4)
#define DPCRI_REFINED(size) ((size) == 8 ? 1e-5 : 1e-2)

// Whether a flow of this form has differences to carry: blocks of numbers that round.
bool dpcri_mixes(const dpcri_flow *flow);

// Whether they are to be carried: b is still there, or somebody to be told.
bool dpcri_carries(const dpcri_flow *flow);

// `count` summaries: value v of number c lies at v each + c step; `transposed`: they are to be applied so.
typedef struct dpcri_chunk_maps {
    const void *m;
    int64_t each, step;
    bool transposed;
} dpcri_chunk_maps;

// Whether all of them halve, at least, what they are given: the largest number of a block.
bool dpcri_chunks_halve(const dpcri_flow *flow, const dpcri_chunk_maps *maps, int64_t count);

// end - next of one state [w].
void dpcri_difference(const dpcri_flow *flow, const void *end, const void *next, void *difference);

// Whether `count` starts hold within `bound`: component i of number c of s, and of e, lies at i each + c.
bool dpcri_carried_holds(const dpcri_flow *flow, const void *s, const void *e, int64_t each, int64_t count,
                         double bound);

// What rounding may leave the loop off by at the end of a chunk: d_c = M_c d_{c-1} +- eps |z|, z the largest number of
// a block in the chunk, of two draws of signs.
typedef struct dpcri_chunk_rounding {
    double *d, *next;  // [2][w] each
    int64_t chunks;    // that were taken
    uint32_t draw;
} dpcri_chunk_rounding;

enum { DPCRI_ROUNDING_NUMBERS = 4 };  // of each component, in all

// From nothing, with room for DPCRI_ROUNDING_NUMBERS w numbers.
void dpcri_rounding_begin(const dpcri_flow *flow, dpcri_chunk_rounding *rounding, double *room);

// Takes the next chunk of sequence `row`, whose steps lo .. hi - 1 lie in flow->z; of the chain's first one `map`,
// whose summary is not needed, is NULL.
void dpcri_rounding_take(const dpcri_flow *flow, dpcri_chunk_rounding *rounding, const dpcri_chunk_maps *map,
                         int64_t lo, int64_t hi, int64_t row);

// Whether e of one state, component i at i each, may be that.
bool dpcri_is_rounding(const dpcri_flow *flow, const dpcri_chunk_rounding *rounding, const void *e, int64_t each);

// s + e, to sum, for one state whose components are `each` apart in all three; s where that is not finite.
void dpcri_carried_add(const dpcri_flow *flow, const void *s, const void *e, int64_t each, void *sum);

// Components that mix.
static inline int64_t dpcri_joins_block(const dpcri_flow *flow) {
    return flow->form == DPCR_DENSE ? flow->w : flow->form == DPCR_BLOCK ? flow->block : 1;
}

// The transitions' value that component i of op(A) x takes of component l, both of the block of k from `first` on.
static inline double dpcri_joins_entry(const dpcri_flow *f, const void *a, int64_t first, int64_t k, int64_t i,
                                       int64_t l) {
    switch (f->form) {
        case DPCR_ZERO: return 0;
        case DPCR_IDENTITY: return 1;
        case DPCR_SCALAR: return dpcri_number(f, a, 0);
        case DPCR_DIAGONAL: return dpcri_number(f, a, first);
        default: return dpcri_number(f, a, first * k + (f->transposed ? l * k + i : i * k + l));
    }
}

// The next number of a sequence whose high bits serve as signs of disturbances.
static inline uint32_t dpcri_next_signs(uint32_t signs) { return signs * 1664525u + 1013904223u; }

// The smallest number of so many bytes, with this thread's denormals or without: what rounding takes of small ones.
double dpcri_joins_least(size_t size);

// Sizes of what component i of state m of a sequence is the sum of.
double dpcri_joins_terms(const dpcri_flow *flow, int64_t m, int64_t row, int64_t i);

// *first = min(*first, m), of threads side by side: where the loop goes on.
static inline void dpcri_joint_first(_Atomic int64_t *first, int64_t m) {
    int64_t before = *first;
    while (m < before && !atomic_compare_exchange_weak(first, &before, m)) continue;
}

#endif
