// SPDX-License-Identifier: MIT
// A linear chain in the order of its recurrence, which is all that the schemes see: z_m = op(A_m) z_{m-1} + b_m, m =
// 0..n-1. The transposed chain is the same thing with strides reversed, op the transpose and A_m the map of the step
// before.
#ifndef DPCRI_FLOW_H
#define DPCRI_FLOW_H

#include "chain/chain_internal.h"
#include "kern/kern.h"
#include "rt/rt.h"

typedef struct dpcri_flow {
    dpcr_context *context;
    const dpcri_kernels *kernels;
    dpcr_structure form;         // of csr dense: all components mix
    const dpcr_transition *csr;  // whose kernels are others; NULL: the transitions are of `kernels`
    dpcr_dtype dtype;
    bool transposed;
    size_t size;  // bytes of an element
    int64_t w, block, values;
    int64_t n, rows;
    int64_t first;  // absolute index of m = 0: where chunks and trees are anchored
    double flops;   // of one application
    const void *a;
    int64_t a_step, a_row;
    const void *b;
    int64_t b_step, b_row;
    const void *z0;  // NULL: z_0 = b_0, and A_0 is not read
    int64_t z0_row;
    void *z;
    int64_t z_step, z_row;
    dpcri_watch *watch;
    bool *lost;  // as of dpcri_linear
} dpcri_flow;

// A scheme: `carve` takes its pieces from the arena (or counts them, with a base of NULL; never less for a shorter
// range, fewer rows or shared transitions) and `run` solves with a workspace that carve has counted.
typedef struct dpcri_scheme_row {
    const char *name;
    void (*carve)(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena);
    void (*run)(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena,
                dpcr_chain_report *report);
} dpcri_scheme_row;

extern const dpcri_scheme_row dpcri_sequential, dpcri_pcr, dpcri_blelloch, dpcri_chunked, dpcri_overlap;

// The row of a scheme; NULL for AUTO and unknown ones.
const dpcri_scheme_row *dpcri_scheme_at(dpcr_scheme scheme);

dpcri_flow dpcri_flow_of(dpcr_context *context, const dpcri_linear *problem);

// base + elements, NULL for NULL.
const void *dpcri_at(const dpcri_flow *flow, const void *base, int64_t elements);
void *dpcri_at_out(const dpcri_flow *flow, void *base, int64_t elements);

// Element i of real numbers of so many bytes.
static inline double dpcri_number_of(size_t size, const void *x, int64_t i) {
    return size == 8 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static inline double dpcri_number(const dpcri_flow *flow, const void *x, int64_t i) {
    return dpcri_number_of(flow->size, x, i);
}

// Transitions that differ: 1 where they are shared over steps, or over sequences.
int64_t dpcri_flow_a_steps(const dpcri_flow *flow);
int64_t dpcri_flow_a_rows(const dpcri_flow *flow);

// A span with the flow's width, blocks and no arrays.
dpcri_span dpcri_flow_span(const dpcri_flow *flow, int64_t n, int64_t rows);

// The kernels of kern.h with the flow's structure and direction. In compose, span->a is the later map, span->x the
// earlier.
void dpcri_flow_apply(const dpcri_flow *flow, const dpcri_span *span);
void dpcri_flow_serial(const dpcri_flow *flow, const dpcri_span *span);
void dpcri_flow_serial_by(const dpcri_flow *flow, const dpcri_span *span, int64_t steps);  // at most so many at a time
void dpcri_flow_product(const dpcri_flow *flow, const dpcri_span *span);
void dpcri_flow_compose(const dpcri_flow *flow, dpcri_span span);
void dpcri_flow_copy(const dpcri_flow *flow, const dpcri_span *span);  // y = r

// Whether numbers are all finite; those of the ring always are.
bool dpcri_flow_finite(const dpcri_flow *flow, const void *x, int64_t count);

// Steps m .. m + n - 1 of sequence `row` by the loop, from the state x (NULL: none).
void dpcri_flow_loop(const dpcri_flow *flow, int64_t m, int64_t n, int64_t row, const void *x);

// Copies b to z (where they differ) in parallel and takes the first step: z_0 = op(A_0) z0 + b_0.
void dpcri_flow_start(const dpcri_flow *flow);

// count x each x more elements for the workspace, with checked products.
void *dpcri_flow_take(const dpcri_flow *flow, dpcri_arena *arena, int64_t count, int64_t each, int64_t more);

// Components that mix with no others and fill whole cache lines, so that they can be run apart; 0: all mix.
int64_t dpcri_part_width(dpcr_structure form, int64_t block, size_t element);

// How the loop is shared out among threads: by groups of sequences, or of components of all sequences.
typedef struct dpcri_loop_shares {
    bool by_parts;
    int64_t group, groups;
} dpcri_loop_shares;

// w components of `element` bytes in each of `rows` sequences, `flops` altogether.
dpcri_loop_shares dpcri_loop_shares_of(dpcr_structure form, int64_t w, int64_t block, size_t element, int64_t rows,
                                       double flops, int64_t threads);

// Tasks for `items` of `flops` each: from the shape alone. Task i of n has the items [lo, hi).
int64_t dpcri_task_count(int64_t items, double flops);
void dpcri_task_range(int64_t items, int64_t tasks, int64_t i, int64_t *lo, int64_t *hi);

// Steps cut at absolute multiples of `size`: chunk 0 ends at `head`, the others are full but for the last.
typedef struct dpcri_chunks {
    int64_t size, head, count;
} dpcri_chunks;

dpcri_chunks dpcri_chunks_of(const dpcri_flow *flow, int64_t size);
int64_t dpcri_chunk_start(const dpcri_chunks *chunks, int64_t c);
int64_t dpcri_chunk_end(const dpcri_flow *flow, const dpcri_chunks *chunks, int64_t c);
int64_t dpcri_chunks_most(int64_t n, int64_t size);  // chunks of any range of n steps

enum {
    DPCRI_SIDE = 8,     // chunks that one task runs side by side, as the kernels' rows
    DPCRI_STRETCH = 32  // steps that are run at a time where the states are not kept
};

// `count` chunks of `steps` steps from chunk c on, of sequence `row`, side by side from zero, in states
// [count][DPCRI_STRETCH][w]; where the first chunk's last state then lies, the next one's DPCRI_STRETCH w further on.
const void *dpcri_chunks_from_zero(const dpcri_flow *flow, const dpcri_chunks *chunks, int64_t c, int64_t count,
                                   int64_t steps, int64_t row, void *states);

#endif
