// SPDX-License-Identifier: MIT
// Back-propagation through a chain of steps as a scan (BPPSA): from the gradient at the chain's end and the transposed
// Jacobians of its steps to the gradients at every boundary between two steps.
//
// Step l = 0..n-1 maps z_l to z_{l+1}; A_l = (dz_{l+1}/dz_l)^T has a row for each component of z_l, a column for each
// of z_{l+1}: dense, diagonal or csr, of any widths, mixed along the chain. With g_l = dLoss/dz_l and g_n given, the
// loop is
//
//   for l in n-1..0: g_l = A_l g_{l+1}
//
// A limited number of tree levels L_m forms products of neighbours (L_m = 0: none, the loop), so that more of the work
// can go side by side. The vector comes first: down the tree everything is matrix times vector. Which products, their
// patterns and all memory are planned once and used for every batch of values. A product may lose what the loop keeps
// (float32 steps of 1, 1e-25, 1e-25 and 1e38 multiply the middle two): gradients that one made are compared with what
// their own steps make of those before them, and the loop goes on from the first that is another one.
#ifndef DEEPPCR_BPPSA_H
#define DEEPPCR_BPPSA_H

#include "transition.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dpcr_bppsa_shape {
    size_t size;                   // sizeof(dpcr_bppsa_shape) of the caller
    int64_t length;                // n >= 0
    int64_t batch;                 // B >= 0
    const dpcr_transition *steps;  // [n]: A_l; copied, but csr patterns have to outlive the plan
    const unsigned char *shared;   // [n]: non-zero where all sequences have the same values of A_l; NULL: nowhere
    dpcr_dtype dtype;
} dpcr_bppsa_shape;

// Zero in a field means the default.
typedef struct dpcr_bppsa_options {
    size_t size;        // sizeof(dpcr_bppsa_options) of the caller
    int levels;         // L_m + 1; 0: no limit, 1: the loop
    int lanes;          // 1: each sequence by itself; default: bundles as wide as a vector, unless that takes 1 GiB
    size_t most_bytes;  // of patterns and workspace together; a plan that needs more is refused. Default: no limit
} dpcr_bppsa_options;

typedef struct dpcr_bppsa_plan dpcr_bppsa_plan;

// What one execution costs, for one sequence; known from the patterns alone. Two flops for each pair of entries that
// meet. The critical path is the dearest product or application of each level of the tree and every one of the middle.
// What is compared afterwards, at most an application a step, and what the loop then finishes are not counted.
typedef struct dpcr_bppsa_cost {
    size_t size;
    int levels;              // L_m as used
    int64_t compositions;    // matrix times matrix
    int64_t applications;    // matrix times vector
    int64_t depth;           // of these on the longest path
    double flops;            // of all
    double critical_flops;   // on the critical path
    double loop_flops;       // of the loop, which has nothing else
    int64_t product_values;  // stored
    int64_t patterns;        // products planned; the other compositions use one of these again
    size_t pattern_bytes;    // held by the plan
    size_t workspace_bytes;  // for the whole batch
} dpcr_bppsa_cost;

typedef enum dpcr_bppsa_phase { DPCR_BPPSA_UP = 0, DPCR_BPPSA_MIDDLE, DPCR_BPPSA_DOWN } dpcr_bppsa_phase;

// One level of the tree; the whole middle is one.
typedef struct dpcr_bppsa_level {
    dpcr_bppsa_phase phase;
    int level;
    int64_t compositions, applications;
    double flops, critical_flops;
} dpcr_bppsa_level;

// Plans the scan: patterns of all products, sizes, tasks. Immutable afterwards and shareable between threads.
// DPCR_ERROR_CANCELLED where the context's cancel function says stop on the way.
DPCR_API dpcr_status dpcr_bppsa_plan_create(dpcr_context *context, const dpcr_bppsa_shape *shape,
                                            const dpcr_bppsa_options *options, dpcr_bppsa_plan **plan,
                                            dpcr_error *error);
DPCR_API void dpcr_bppsa_plan_destroy(dpcr_bppsa_plan *plan);
DPCR_API const dpcr_bppsa_cost *dpcr_bppsa_plan_cost(const dpcr_bppsa_plan *plan);
// The levels in the order in which they run.
DPCR_API int64_t dpcr_bppsa_plan_levels(const dpcr_bppsa_plan *plan);
DPCR_API const dpcr_bppsa_level *dpcr_bppsa_plan_level(const dpcr_bppsa_plan *plan, int64_t index);

// Bytes of workspace (64-byte aligned host memory) that execute needs.
DPCR_API size_t dpcr_bppsa_plan_workspace(const dpcr_bppsa_plan *plan);

// Runs the loop above.
//   values     n arrays [B][values] of A_l, [1][values] where shared       last  [B][w_n]: g_n
//   gradients  n arrays [B][w_l]: g_l, written; one whose data is NULL is not stored. None overlaps an input
// Row strides are free, the last dimension is contiguous. A sequence's bits depend on the plan's levels alone: not on
// the threads, nor on the sequences that go with it. A structural zero is no entry: nothing is multiplied by it. A
// sequence goes by the loop from the first gradient on that is not what its step makes of the one before it: a product
// may overflow, underflow or cancel where no gradient does. Allocates nothing; one workspace serves one execute at a
// time. DPCR_ERROR_CANCELLED where the context's cancel function says stop on the way; gradients are then worth nothing.
DPCR_API dpcr_status dpcr_bppsa_execute(const dpcr_bppsa_plan *plan, const dpcr_array *values, const dpcr_array *last,
                                        const dpcr_array *gradients, void *workspace, size_t workspace_bytes,
                                        dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
