// SPDX-License-Identifier: MIT
// Transitions: the linear maps A_l of a chain, as an algebra with capabilities (apply, compose, cost), not a matrix
// class.
//
//   structure       values a step and sequence   layout of the values
//   zero            0
//   identity        0
//   scalar          1                            A = a I
//   diagonal        w                            A = diag(a)
//   block           w k                          [w/k][k][k], row-major blocks on the diagonal, k divides w
//   dense           rows x cols                  [rows][cols], row-major
//   csr             entries of its pattern       row by row; rows x cols, any
//
// Arrays of transitions are [L][B][values]; a stride of 0 shares over steps or sequences.
#ifndef DEEPPCR_TRANSITION_H
#define DEEPPCR_TRANSITION_H

#include "array.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_structure {
    DPCR_ZERO = 0,
    DPCR_IDENTITY,
    DPCR_SCALAR,
    DPCR_DIAGONAL,
    DPCR_BLOCK,
    DPCR_DENSE,
    DPCR_CSR,  // applied and multiplied (dpcr_product); of linear chains by schemes without products, which fill in
    DPCR_STRUCTURE_COUNT
} dpcr_structure;

enum {
    DPCR_CAN_APPLY = 1,    // y = A x and y = A^T x
    DPCR_CAN_COMPOSE = 2,  // a product of two keeps the structure
    DPCR_HAS_VALUES = 4,   // there is an array of values to pass
};

// Where the entries of a csr matrix lie: those of row i at offsets[i] .. offsets[i+1]-1, in ascending columns. Whoever
// fills it owns the arrays, which have to outlive every use. Every call but dpcr_pattern_check takes them on trust.
typedef struct dpcr_pattern {
    int64_t rows, cols;      // at most INT32_MAX
    const int64_t *offsets;  // [rows + 1], from 0, not falling
    const int32_t *columns;  // [offsets[rows]], ascending in each row; NULL where there are none
} dpcr_pattern;

typedef struct dpcr_transition {
    dpcr_structure structure;
    int64_t rows;         // width of the state that comes out
    int64_t cols;         // width of the state that goes in; equal to rows everywhere but in dense and csr
    int64_t block;        // k of DPCR_BLOCK, else 0
    const void *pattern;  // csr: its dpcr_pattern, apart from the values; else NULL
} dpcr_transition;

// A square transition of width w (block is read for DPCR_BLOCK only).
DPCR_API dpcr_transition dpcr_transition_square(dpcr_structure structure, int64_t width, int64_t block);

// A csr transition of that pattern.
DPCR_API dpcr_transition dpcr_transition_csr(const dpcr_pattern *pattern);

// DPCR_ERROR_ARGUMENT when sizes are not positive, k does not divide w, a structure other than dense and csr is not
// square, or sizes are not those of the pattern (whose entries are not looked at).
DPCR_API dpcr_status dpcr_transition_check(const dpcr_transition *transition, dpcr_error *error);

// Values stored a step and sequence (the table above); 0 for zero and identity.
DPCR_API int64_t dpcr_transition_values(const dpcr_transition *transition);

// DPCR_CAN_... flags.
DPCR_API unsigned dpcr_transition_capabilities(const dpcr_transition *transition);

// Floating-point operations of one apply and of one composition, for one step and sequence.
DPCR_API double dpcr_transition_apply_flops(const dpcr_transition *transition);
DPCR_API double dpcr_transition_compose_flops(const dpcr_transition *transition);

// "zero", "identity", "scalar", "diagonal", "block", "dense", "csr"; "unknown" otherwise. dpcr_structure_find reads a
// name back.
DPCR_API const char *dpcr_structure_name(dpcr_structure structure);
DPCR_API dpcr_status dpcr_structure_find(const char *name, dpcr_structure *structure, dpcr_error *error);

// y_i = r_i + op(A_i) x_i for every step i and sequence; op is the transpose when `transposed` is non-zero.
// a [n][B][values], x [n][B][w], r [n][B][w] or NULL (0), y [n][B][w]; y may be r itself, not x. Runs on the caller's
// thread.
DPCR_API dpcr_status dpcr_transition_apply(const dpcr_transition *transition, int transposed, const dpcr_array *a,
                                           const dpcr_array *x, const dpcr_array *r, const dpcr_array *y,
                                           dpcr_error *error);

// c_i = later_i earlier_i: the map that applies `earlier` first. All [n][B][values]; c overlaps neither input.
DPCR_API dpcr_status dpcr_transition_compose(const dpcr_transition *transition, const dpcr_array *later,
                                             const dpcr_array *earlier, const dpcr_array *c, dpcr_error *error);

// DPCR_ERROR_ARGUMENT, with the row, where a pattern is not as its comment says.
DPCR_API dpcr_status dpcr_pattern_check(const dpcr_pattern *pattern, dpcr_error *error);

// A product C = later earlier of dense, diagonal and csr transitions, rectangular ones too, planned once for all values
// it will have: a csr product's pattern is the union of what its factors' patterns reach, and dense where more than
// half of it would be stored.
typedef struct dpcr_product dpcr_product;

// Plans C, in parallel. later->cols has to be earlier->rows; the factors' patterns (dpcr_pattern_check has passed them)
// have to outlive the product. DPCR_ERROR_CANCELLED where the context's cancel function says stop on the way.
DPCR_API dpcr_status dpcr_product_create(dpcr_context *context, const dpcr_transition *later,
                                         const dpcr_transition *earlier, dpcr_product **product, dpcr_error *error);
DPCR_API void dpcr_product_destroy(dpcr_product *product);
// Structure, sizes and pattern of C, as long as the product lives.
DPCR_API const dpcr_transition *dpcr_product_transition(const dpcr_product *product);
// Floating-point operations of one execution for one sequence: two for each pair of entries that meet.
DPCR_API double dpcr_product_flops(const dpcr_product *product);

// C_i = later_i earlier_i for every i: arrays [n][B][values] as in dpcr_transition_compose, in parallel over rows;
// allocates scratch where C is csr. Entry by entry the same bits for any number of threads.
DPCR_API dpcr_status dpcr_product_execute(const dpcr_product *product, const dpcr_array *later,
                                          const dpcr_array *earlier, const dpcr_array *c, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
