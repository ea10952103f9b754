// SPDX-License-Identifier: MIT
// Kernels of network layers, one table a dtype, chosen by the instruction set level. Pointers are in the table's dtype,
// all strides in elements. The last dimension is contiguous but where a stride is given for it.
//
// Order of every sum: k ascending, one fma a term, starting from the initial value. Of `layer` and forward_steps 8 wide
// and deep, where `eights` says so:
//     ((fma(W0, z0, b) + W2 z2) + (W4 z4 + W6 z6)) + ((fma(W1, z1, +0) + W3 z3) + (W5 z5 + W7 z7)),   relu(-0) = -0
// So the bits of a row depend neither on its position nor on how many rows go with it, nor on how the columns are
// tiled.
#ifndef DPCRI_NN_KERNELS_H
#define DPCRI_NN_KERNELS_H

#include "rt/rt.h"

enum {
    DPCRI_ACT_IDENTITY = 0,
    DPCRI_ACT_RELU,
    DPCRI_ACT_TANH,
    DPCRI_ACT_SIGMOID,
    DPCRI_ACT_GELU,
    DPCRI_ACT_SILU,
    DPCRI_ACT_COUNT
};

// c[i][j] = init[i][j] + sum_k a(i,k) b[k][j],   i < m, j < n, k < depth, a(i,k) = a[i a_row + k a_col]
// init: NULL is 0; init_row 0 starts every row from one bias row; may be c itself. c overlaps neither a nor b.
typedef struct dpcri_product {
    int64_t m, n, depth;
    const void *a;
    int64_t a_row, a_col;
    const void *b;
    int64_t b_row;
    const void *init;
    int64_t init_row;
    void *c;
    int64_t c_row;
} dpcri_product;

// What the caller reads or writes next: fetched while a kernel works, `values` numbers with each row of the work. NULL:
// no more.
typedef struct dpcri_prefetch {
    const void *data;
    int64_t row, values;
    int write;
} dpcri_prefetch;
enum { DPCRI_PREFETCHES = 3 };

// One layer over rows:  u = in W + bias;  out = residual + scale act(u)  (without a residual: act(u));  slope = act'(u)
// W is [depth][width], contiguous. out or slope may be NULL. out may be residual; it may be `in` where width <=
// `columns`.
typedef struct dpcri_layer {
    int64_t rows, depth, width;
    int activation;
    const void *weight, *bias;
    const void *in;
    int64_t in_row;
    const void *residual;
    int64_t residual_row;
    double scale;
    void *out;
    int64_t out_row;
    void *slope;
    int64_t slope_row;
    dpcri_prefetch next[DPCRI_PREFETCHES];
} dpcri_layer;

// The elementwise part of going back through  z + scale act(u), row by row in order:
//   g += direct;  kept = g;  e = scale slope g;  sum[j] += e
// direct (0), kept, slope (1), e, sum may be NULL. kept may be direct, e may be slope; g is written only with a direct.
typedef struct dpcri_slope_pass {
    int64_t rows, width;
    double scale;
    void *g;
    int64_t g_row;
    const void *direct;
    int64_t direct_row;
    void *kept;
    int64_t kept_row;
    const void *slope;
    int64_t slope_row;
    void *e;
    int64_t e_row;
    void *sum;
    dpcri_prefetch next[DPCRI_PREFETCHES];
} dpcri_slope_pass;

// ---- many steps of the fused layer at once ----

// An array over lanes, steps and rows: its numbers for lane c, step k and row r begin at data + c lane + k step + r
// row.
typedef struct dpcri_grid {
    void *data;
    int64_t lane, step, row;
} dpcri_grid;

// The widest, and the rows for which they are made: 1, 2, 4 or 8 (others pass over the weights more than once).
enum { DPCRI_STEPS_WIDTH = 256, DPCRI_STEPS_ROWS = 8 };

// Every lane and row through all steps:  u = s W + b;  s = act(u)  or  s + scale act(u);  states = s;  tape = act'(u).
// parameters [lanes][steps]: W [w][w], then b [w], or, where bias has data, a vector of anything that may be read, and
// b is in bias [lanes][steps][rows]. in, last [lanes][rows]; states, tape [lanes][steps][rows]. states, last, tape may
// be NULL; last may be `in`.
typedef struct dpcri_forward_steps {
    int64_t lanes, steps, rows, width;
    int activation, residual;
    double scale;
    dpcri_grid parameters, bias, in, states, last, tape;
} dpcri_forward_steps;

// From the last step down:  g += direct;  kept = g;  e = scale slope g;  g = e W^T  or  g + e W^T;  first_out = g
// slope, direct, kept, e [lanes][steps][rows], last (g at first) and first_out [lanes][rows]. direct, kept, e,
// first_out may be NULL; kept may be direct, e slope, first_out last.
typedef struct dpcri_adjoint_steps {
    int64_t lanes, steps, rows, width;
    int residual;
    double scale;
    dpcri_grid parameters, slope, direct, kept, e, last, first_out;
} dpcri_adjoint_steps;

// For every step (lanes are not used):  e = scale slope g  (g NULL: slope holds e);  dW += in^T e;  db += sum e
// out_in: dW lies as [out][in], and there is no db; one row of at most a vector (columns / 2) only.
typedef struct dpcri_gradient_steps {
    int64_t steps, rows, width;
    bool out_in;
    double scale;
    dpcri_grid in, slope, g, gradients;
} dpcri_gradient_steps;

typedef struct dpcri_nn_kernels {
    size_t element;       // bytes
    int64_t columns;      // widest tile of columns: layers up to it may work in place
    bool eights;          // float, AVX2 and AVX-512
    int64_t short_width;  // width up to which gradient_steps takes any number of rows at once
    void (*product)(const dpcri_product *p);
    // The same with b transposed: sum_k a(i,k) b[j][k], b_row from one j to the next.
    void (*product_transposed)(const dpcri_product *p);
    // product, a_row 1, and sums[i] += sum_k a(i,k), k ascending.
    void (*product_summing)(const dpcri_product *p, void *sums);
    void (*layer)(const dpcri_layer *l);
    void (*slope_pass)(const dpcri_slope_pass *p);
    // slope_pass, then product_transposed with a = e, init = c = g (init NULL: 0); tile by tile where the width allows.
    void (*adjoint)(const dpcri_slope_pass *pass, const dpcri_product *product);
    // slope_pass with `sum`, then product with b = e (or g, e NULL: scale 1 and no slope), a_row 1, init = c.
    void (*gradient)(const dpcri_slope_pass *pass, const dpcri_product *product);
    void (*forward_steps)(const dpcri_forward_steps *p);
    void (*adjoint_steps)(const dpcri_adjoint_steps *p);
    void (*gradient_steps)(const dpcri_gradient_steps *p);
    // y = act(u), slope = act'(u), n values each; either may be NULL, either may be u.
    void (*activate)(int activation, int64_t n, const void *u, void *y, void *slope);
    // t[j][i] = a[i][j], i < rows, j < cols
    void (*transpose)(int64_t rows, int64_t cols, const void *a, int64_t a_row, void *t, int64_t t_row);
    // out[i][j] = residual[i][j] + scale a[i][j] b[i][j]; residual NULL: 0, b NULL: 1. A row stride of 0 shares one
    // row. out may be any of them.
    void (*multiply_add)(int64_t rows, int64_t width, const void *residual, int64_t residual_row, double scale,
                         const void *a, int64_t a_row, const void *b, int64_t b_row, void *out, int64_t out_row);
    // out[i][j] = scale factor[i] a[i][j] + (i = j ? diagonal : 0); out may be a.
    void (*scale_rows)(int64_t rows, int64_t width, double scale, const void *factor, const void *a, int64_t a_row,
                       double diagonal, void *out, int64_t out_row);
    // Layer norm over each row: normal = (u - mean) / sqrt(variance + 1e-5), reciprocal[i] = 1 / sqrt(...),
    // y = normal gamma + beta; y may be NULL, or u.
    void (*norm)(int64_t rows, int64_t width, const void *u, int64_t u_row, const void *gamma, const void *beta,
                 void *normal, int64_t normal_row, void *reciprocal, int64_t reciprocal_row, void *y, int64_t y_row);
    // Its Jacobian on x (forward: gamma last; transposed: gamma first), with r = reciprocal, n = normal, w = width:
    //   core(v) = r (v - mean(v) - n mean(n v));   y = gamma core(x), or transposed y = core(gamma x).   y may be x.
    void (*norm_apply)(int transposed, int64_t rows, int64_t width, const void *gamma, const void *normal,
                       int64_t normal_row, const void *reciprocal, int64_t reciprocal_row, const void *x, int64_t x_row,
                       void *y, int64_t y_row);
} dpcri_nn_kernels;

// The table of the level in force; NULL for other dtypes than float and double.
const dpcri_nn_kernels *dpcri_nn_kernels_get(dpcr_dtype dtype);
// The table of one level, for tests; NULL where this build or this CPU lacks it.
const dpcri_nn_kernels *dpcri_nn_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
