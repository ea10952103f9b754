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
    DPCR_STRUCTURE_COUNT
} dpcr_structure;

enum {
    DPCR_CAN_APPLY = 1,    // y = A x and y = A^T x
    DPCR_CAN_COMPOSE = 2,  // a product of two keeps the structure
    DPCR_HAS_VALUES = 4,   // there is an array of values to pass
};

typedef struct dpcr_transition {
    dpcr_structure structure;
    int64_t rows;         // width of the state that comes out
    int64_t cols;         // width of the state that goes in; equal to rows everywhere but in dense
    int64_t block;        // k of DPCR_BLOCK, else 0
    const void *pattern;  // reserved for sparse structures: the pattern, apart from the values; NULL
} dpcr_transition;

// A square transition of width w (block is read for DPCR_BLOCK only).
DPCR_API dpcr_transition dpcr_transition_square(dpcr_structure structure, int64_t width, int64_t block);

// DPCR_ERROR_ARGUMENT when sizes are not positive, k does not divide w, or a non-dense structure is not square.
DPCR_API dpcr_status dpcr_transition_check(const dpcr_transition *transition, dpcr_error *error);

// Values stored a step and sequence (the table above); 0 for zero and identity.
DPCR_API int64_t dpcr_transition_values(const dpcr_transition *transition);

// DPCR_CAN_... flags.
DPCR_API unsigned dpcr_transition_capabilities(const dpcr_transition *transition);

// Floating-point operations of one apply and of one composition, for one step and sequence.
DPCR_API double dpcr_transition_apply_flops(const dpcr_transition *transition);
DPCR_API double dpcr_transition_compose_flops(const dpcr_transition *transition);

// "zero", "identity", "scalar", "diagonal", "block", "dense"; "unknown" otherwise. dpcr_structure_find reads a name
// back.
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

#ifdef __cplusplus
}
#endif
#endif
