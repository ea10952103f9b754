// SPDX-License-Identifier: MIT
// The inside of a plan of BPPSA: matrices, operations on them in passes, and where everything lies in the workspace.
#ifndef DPCRI_CHAIN_BPPSA_H
#define DPCRI_CHAIN_BPPSA_H

#include "chain/chain_internal.h"
#include "deeppcr/bppsa.h"
#include "transition/transition_internal.h"

// A node of the tree: step l (matrix l of the plan, l < n) or the product of two nodes.
typedef struct dpcri_bppsa_matrix {
    dpcr_transition t;
    int64_t values;
    bool shared;     // one array of values for all sequences
    size_t single;   // place of its values: a product's in a slot of one sequence (or in the common part where shared)
    size_t bundled;  // a product's, or packed values of a step that is not shared, in a slot of a bundle
} dpcri_bppsa_matrix;

// c = a b, or, c < 0, g_out = a g_in.
typedef struct dpcri_bppsa_operation {
    int64_t a, b, c;
    int64_t in, out;
    const dpcr_product *product;
    double flops;
} dpcri_bppsa_operation;

typedef struct dpcri_bppsa_cut {
    int64_t operation, row;
} dpcri_bppsa_cut;

// Operations that go side by side; task t runs from cut t to cut t + 1 (of cuts, from `cut` on).
typedef struct dpcri_bppsa_pass {
    int64_t operation, count, cut, tasks;
} dpcri_bppsa_pass;

typedef struct dpcri_bppsa_layout {
    size_t bytes;    // of a slot
    size_t vectors;  // [n + 1] after one another, from here on
    size_t places;
    size_t spare;  // two vectors of one sequence
} dpcri_bppsa_layout;

struct dpcr_bppsa_plan {
    dpcr_context *context;
    const dpcri_sparse_kernels *kernels;
    dpcr_dtype dtype;
    int64_t size, length, batch;
    dpcr_bppsa_cost cost;
    dpcri_bppsa_matrix *matrices;
    int64_t matrix_count, products_first[64];  // index of node 1 of level d; level 0 are the steps
    int64_t *widths, *vector_at;               // of boundary l = 0..n: width, and the sum of those before
    int64_t widest;
    dpcr_product **products;
    int64_t product_count;
    dpcri_bppsa_operation *operations;
    int64_t operation_count;
    dpcri_bppsa_pass *passes;
    int64_t pass_count, up_passes;  // those that may form products
    dpcri_bppsa_cut *cuts;
    int64_t cut_count;
    dpcr_bppsa_level *levels;
    int64_t level_count;
    int64_t places;  // columns that one task's scratch has to hold
    int64_t most_tasks;
    bool common_products;               // some products are shared by all sequences
    size_t common_bytes;                // theirs
    dpcri_bppsa_layout single, bundle;  // of a slot for one sequence and for a bundle
    int64_t bundles, singles;  // bundles of kernels->lanes sequences (the last may be part full), then sequences
    int64_t slots;             // that the workspace holds
    size_t slot_bytes, workspace;
};

#endif
