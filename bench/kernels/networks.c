// SPDX-License-Identifier: MIT
// Kernels of network layers (nn_kernels.h), of wide products (wide.h) and of optimisers (train_kernels.h).
#include <math.h>
#include <string.h>

#include "kern/nn_kernels.h"
#include "kern/train_kernels.h"
#include "kern/wide.h"
#include "kernels.h"

// ---- products, and layers over rows ----

typedef struct nn_call {
    const dpcri_nn_kernels *kernels;
    dpcri_product product;
    dpcri_layer layer;
    dpcri_slope_pass pass;
    void *sums;
    const void *g;  // what the pass begins with
    size_t bytes;   // of it
} nn_call;

static double product_flops(const dpcri_product *p) { return 2.0 * (double)p->m * (double)p->n * (double)p->depth; }

static double product_numbers(const dpcri_product *p) {
    return (double)p->m * (double)p->depth + (double)p->depth * (double)p->n + (double)p->m * (double)p->n;
}

// C = A B, A [rows][width], B [width][width].
static nn_call product_call(work *w) {
    const int64_t m = w->rows, n = w->width;
    nn_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype)};
    c.product = (dpcri_product){.m = m,
                                .n = n,
                                .depth = n,
                                .a = draw(w, m * n, 1),
                                .a_row = n,
                                .a_col = 1,
                                .b = draw(w, n * n, 1),
                                .b_row = n,
                                .c = comes_out(w, m * n, 1),
                                .c_row = n};
    return c;
}

static void run_product(void *argument) {
    const nn_call *c = argument;
    c->kernels->product(&c->product);
}

static void product(work *w) {
    nn_call c = product_call(w);
    runs(w, run_product, &c, (cost){(double)w->rows, product_flops(&c.product), product_numbers(&c.product)});
}

static void run_product_transposed(void *argument) {
    const nn_call *c = argument;
    c->kernels->product_transposed(&c->product);
}

static void product_transposed(work *w) {
    nn_call c = product_call(w);
    runs(w, run_product_transposed, &c,
         (cost){(double)w->rows, product_flops(&c.product), product_numbers(&c.product)});
}

// The gradient's form: the left factor transposed, [rows][width], and sums over the rows.
static void run_product_summing(void *argument) {
    const nn_call *c = argument;
    c->kernels->product_summing(&c->product, c->sums);
}

static void product_summing(work *w) {
    const int64_t rows = w->rows, n = w->width;
    nn_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype)};
    c.product = (dpcri_product){.m = n,
                                .n = n,
                                .depth = rows,
                                .a = draw(w, rows * n, 1),
                                .a_row = 1,
                                .a_col = n,
                                .b = draw(w, rows * n, 1),
                                .b_row = n,
                                .c = comes_out(w, n * n, 1),
                                .c_row = n};
    c.product.init = c.product.c, c.product.init_row = n;
    c.sums = comes_out(w, n, 1);
    const double flops = product_flops(&c.product) + (double)(rows * n);
    runs(w, run_product_summing, &c, (cost){(double)rows, flops, product_numbers(&c.product) + (double)n});
}

static void run_layer(void *argument) {
    const nn_call *c = argument;
    c->kernels->layer(&c->layer);
}

// z + tanh(z W + b) and its slope.
static void layer(work *w) {
    const int64_t rows = w->rows, n = w->width;
    nn_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype)};
    const void *in = draw(w, rows * n, 1);
    c.layer = (dpcri_layer){.rows = rows,
                            .depth = n,
                            .width = n,
                            .activation = DPCRI_ACT_TANH,
                            .weight = draw(w, n * n, 1 / sqrt((double)n)),
                            .bias = draw(w, n, 1),
                            .in = in,
                            .in_row = n,
                            .residual = in,
                            .residual_row = n,
                            .scale = 1,
                            .out = comes_out(w, rows * n, 1),
                            .out_row = n,
                            .slope = comes_out(w, rows * n, 1),
                            .slope_row = n,
                            .next = {{in, n, n, 0}}};
    const double all = (double)(rows * n), flops = all * (2 * (double)n + FUNCTION + 2);
    runs(w, run_layer, &c, (cost){(double)rows, flops, 3 * all + (double)(n * n + n)});
}

// The parts of going back. g is set anew before every run, so that it neither grows nor vanishes; what comes next is
// fetched.
static nn_call back_of(work *w, bool direct, bool kept, bool sums) {
    const int64_t rows = w->rows, n = w->width, all = rows * n;
    nn_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype), .g = draw(w, all, 1)};
    c.bytes = (size_t)all * c.kernels->element;
    c.pass = (dpcri_slope_pass){.rows = rows,
                                .width = n,
                                .scale = 0.5,
                                .g = comes_out(w, all, 1),
                                .g_row = n,
                                .direct = direct ? draw(w, all, 1) : NULL,
                                .direct_row = n,
                                .kept = kept ? comes_out(w, all, 1) : NULL,
                                .kept_row = n,
                                .slope = draw(w, all, 1),
                                .slope_row = n,
                                .e = comes_out(w, all, 1),
                                .e_row = n,
                                .sum = sums ? comes_out(w, n, 1) : NULL,
                                .next = {{c.g, n, n, 0}}};
    return c;
}

static void set_anew(const nn_call *c) { memcpy(c->pass.g, c->g, c->bytes); }

static void run_slope_pass(void *argument) {
    const nn_call *c = argument;
    set_anew(c);
    c->kernels->slope_pass(&c->pass);
}

static void slope_pass(work *w) {
    nn_call c = back_of(w, true, true, true);
    const double all = (double)(w->rows * w->width);
    runs(w, run_slope_pass, &c, (cost){(double)w->rows, 4 * all, 5 * all + (double)w->width});
}

static void run_adjoint(void *argument) {
    const nn_call *c = argument;
    set_anew(c);
    c->kernels->adjoint(&c->pass, &c->product);
}

// g = g + e W^T as residual layers have it, or e W^T.
static void go_back(work *w, bool direct, bool kept, bool residual) {
    const int64_t rows = w->rows, n = w->width;
    nn_call c = back_of(w, direct, kept, false);
    c.product = (dpcri_product){.m = rows,
                                .n = n,
                                .depth = n,
                                .a = c.pass.e,
                                .a_row = n,
                                .a_col = 1,
                                .b = draw(w, n * n, 1 / sqrt((double)n)),
                                .b_row = n,
                                .init = residual ? c.pass.g : NULL,
                                .init_row = n,
                                .c = c.pass.g,
                                .c_row = n};
    const double all = (double)(rows * n), flops = product_flops(&c.product) + 3 * all;
    runs(w, run_adjoint, &c, (cost){(double)rows, flops, (3 + direct + kept) * all + (double)(n * n)});
}
static void adjoint(work *w) { go_back(w, false, true, true); }
static void adjoint_alone(work *w) { go_back(w, false, false, true); }
static void adjoint_direct(work *w) { go_back(w, true, true, false); }

static void run_gradient(void *argument) {
    const nn_call *c = argument;
    set_anew(c);
    c->kernels->gradient(&c->pass, &c->product);
}

static void gradient(work *w) {
    const int64_t rows = w->rows, n = w->width;
    nn_call c = back_of(w, false, false, true);
    void *weights = comes_out(w, n * n, 1);
    c.product = (dpcri_product){.m = n,
                                .n = n,
                                .depth = rows,
                                .a = draw(w, rows * n, 1),
                                .a_row = 1,
                                .a_col = n,
                                .b = c.pass.e,
                                .b_row = n,
                                .init = weights,
                                .init_row = n,
                                .c = weights,
                                .c_row = n};
    const double all = (double)(rows * n), flops = product_flops(&c.product) + 3 * all;
    runs(w, run_gradient, &c, (cost){(double)rows, flops, 4 * all + (double)(n * n + n)});
}

// ---- many steps at once: `rows` lanes of STEPS steps, every step its own weights ----

enum { STEPS = 8 };

typedef struct steps_call {
    const dpcri_nn_kernels *kernels;
    dpcri_forward_steps forward;
    dpcri_adjoint_steps adjoint;
    dpcri_gradient_steps gradient;
} steps_call;

static dpcri_grid grid_of(void *data, int64_t numbers) { return (dpcri_grid){data, STEPS * numbers, numbers, numbers}; }

static void run_forward_steps(void *argument) {
    const steps_call *c = argument;
    c->kernels->forward_steps(&c->forward);
}

static void forward_steps(work *w) {
    const int64_t n = w->width, lanes = w->rows, all = lanes * STEPS, parameters = n * n + n;
    steps_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype)};
    c.forward = (dpcri_forward_steps){.lanes = lanes,
                                      .steps = STEPS,
                                      .rows = 1,
                                      .width = n,
                                      .activation = DPCRI_ACT_TANH,
                                      .scale = 1,
                                      .parameters = grid_of(draw(w, all * parameters, 0.8 / (double)n), parameters),
                                      .in = {draw(w, lanes * n, 1), n, 0, n},
                                      .states = grid_of(comes_out(w, all * n, 1), n),
                                      .tape = grid_of(comes_out(w, all * n, 1), n)};
    const double steps = (double)all, flops = 2 * (double)n * (double)n + (FUNCTION + 1) * (double)n;
    runs(w, run_forward_steps, &c, (cost){steps, steps * flops, steps * (double)(parameters + 2 * n)});
}

static void run_adjoint_steps(void *argument) {
    const steps_call *c = argument;
    c->kernels->adjoint_steps(&c->adjoint);
}

static void adjoint_steps(work *w) {
    const int64_t n = w->width, lanes = w->rows, all = lanes * STEPS, parameters = n * n + n;
    steps_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype)};
    c.adjoint = (dpcri_adjoint_steps){.lanes = lanes,
                                      .steps = STEPS,
                                      .rows = 1,
                                      .width = n,
                                      .scale = 1,
                                      .parameters = grid_of(draw(w, all * parameters, 0.8 / (double)n), parameters),
                                      .slope = grid_of(draw(w, all * n, 1), n),
                                      .direct = grid_of(draw(w, all * n, 1), n),
                                      .kept = grid_of(comes_out(w, all * n, 1), n),
                                      .e = grid_of(comes_out(w, all * n, 1), n),
                                      .last = {draw(w, lanes * n, 1), n, 0, n},
                                      .first_out = {comes_out(w, lanes * n, 1), n, 0, n}};
    const double steps = (double)all, flops = 2 * (double)n * (double)n + 2 * (double)n;
    runs(w, run_adjoint_steps, &c, (cost){steps, steps * flops, steps * (double)(n * n + 4 * n)});
}

static void run_gradient_steps(void *argument) {
    const steps_call *c = argument;
    c->kernels->gradient_steps(&c->gradient);
}

// One lane; rows go together.
static void gradient_steps(work *w) {
    const int64_t n = w->width, rows = w->rows, parameters = n * n + n;
    steps_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype)};
    c.gradient = (dpcri_gradient_steps){.steps = STEPS,
                                        .rows = rows,
                                        .width = n,
                                        .scale = 1,
                                        .in = {draw(w, STEPS * rows * n, 1), 0, rows * n, n},
                                        .slope = {draw(w, STEPS * rows * n, 1), 0, rows * n, n},
                                        .g = {draw(w, STEPS * rows * n, 1), 0, rows * n, n},
                                        .gradients = {comes_out(w, STEPS * parameters, 1), 0, parameters, 0}};
    const double all = (double)(STEPS * rows), width = (double)n;
    runs(w, run_gradient_steps, &c,
         (cost){all, all * (2 * width * width + 3 * width), all * 3 * width + STEPS * (double)parameters});
}

// ---- by element and by row ----

typedef struct element_call {
    const dpcri_nn_kernels *kernels;
    int activation, transposed;
    int64_t rows, width;
    const void *in, *factor, *gamma, *beta, *normal, *reciprocal;
    void *out, *more, *each;
} element_call;

static element_call element_of(work *w) {
    element_call c = {.kernels = dpcri_nn_kernels_at(w->level, w->dtype), .rows = w->rows, .width = w->width};
    c.in = draw(w, c.rows * c.width, 2);
    return c;
}

static void run_activate(void *argument) {
    const element_call *c = argument;
    c->kernels->activate(c->activation, c->width, c->in, c->out, c->more);
}

static void activate(work *w, int activation) {
    element_call c = element_of(w);
    c.activation = activation;
    c.out = comes_out(w, c.width, 1), c.more = comes_out(w, c.width, 1);
    const double n = (double)c.width;
    runs(w, run_activate, &c, (cost){1, n * (activation == DPCRI_ACT_RELU ? 1 : FUNCTION), 3 * n});
}
static void activate_relu(work *w) { activate(w, DPCRI_ACT_RELU); }
static void activate_tanh(work *w) { activate(w, DPCRI_ACT_TANH); }
static void activate_sigmoid(work *w) { activate(w, DPCRI_ACT_SIGMOID); }
static void activate_gelu(work *w) { activate(w, DPCRI_ACT_GELU); }
static void activate_silu(work *w) { activate(w, DPCRI_ACT_SILU); }

static void run_transpose(void *argument) {
    const element_call *c = argument;
    c->kernels->transpose(c->rows, c->width, c->in, c->width, c->out, c->rows);
}

static void transpose(work *w) {
    element_call c = element_of(w);
    c.out = comes_out(w, c.rows * c.width, 1);
    runs(w, run_transpose, &c, (cost){(double)c.rows, 0, 2 * (double)(c.rows * c.width)});
}

static void run_multiply_add(void *argument) {
    const element_call *c = argument;
    c->kernels->multiply_add(c->rows, c->width, c->gamma, c->width, 0.5, c->in, c->width, c->factor, c->width, c->out,
                             c->width);
}

static void multiply_add(work *w) {
    element_call c = element_of(w);
    c.gamma = draw(w, c.rows * c.width, 1), c.factor = draw(w, c.rows * c.width, 1);
    c.out = comes_out(w, c.rows * c.width, 1);
    const double all = (double)(c.rows * c.width);
    runs(w, run_multiply_add, &c, (cost){(double)c.rows, 3 * all, 4 * all});
}

static void run_scale_rows(void *argument) {
    const element_call *c = argument;
    c->kernels->scale_rows(c->rows, c->width, 0.5, c->factor, c->in, c->width, 1, c->out, c->width);
}

static void scale_rows(work *w) {
    element_call c = element_of(w);
    c.factor = draw(w, c.rows, 1), c.out = comes_out(w, c.rows * c.width, 1);
    const double all = (double)(c.rows * c.width);
    runs(w, run_scale_rows, &c, (cost){(double)c.rows, all, 2 * all});
}

static void run_norm(void *argument) {
    const element_call *c = argument;
    c->kernels->norm(c->rows, c->width, c->in, c->width, c->gamma, c->beta, c->more, c->width, c->each, 1, c->out,
                     c->width);
}

static void norm(work *w) {
    element_call c = element_of(w);
    c.gamma = draw(w, c.width, 1), c.beta = draw(w, c.width, 1);
    c.out = comes_out(w, c.rows * c.width, 1), c.more = comes_out(w, c.rows * c.width, 1);
    c.each = comes_out(w, c.rows, 1);
    const double all = (double)(c.rows * c.width);
    runs(w, run_norm, &c, (cost){(double)c.rows, 8 * all, 3 * all + (double)(2 * c.width + c.rows)});
}

static void run_norm_apply(void *argument) {
    const element_call *c = argument;
    c->kernels->norm_apply(c->transposed, c->rows, c->width, c->gamma, c->normal, c->width, c->reciprocal, 1, c->in,
                           c->width, c->out, c->width);
}

static void norm_derivative(work *w, int transposed) {
    element_call c = element_of(w);
    c.transposed = transposed;
    c.gamma = draw(w, c.width, 1), c.normal = draw(w, c.rows * c.width, 1), c.reciprocal = draw(w, c.rows, 1);
    c.out = comes_out(w, c.rows * c.width, 1);
    const double all = (double)(c.rows * c.width);
    runs(w, run_norm_apply, &c, (cost){(double)c.rows, 8 * all, 3 * all + (double)(c.width + c.rows)});
}
static void norm_apply(work *w) { norm_derivative(w, 0); }
static void norm_apply_transposed(work *w) { norm_derivative(w, 1); }

// ---- wide products ----

typedef struct wide_call {
    const dpcri_wide_kernels *kernels;
    dpcri_wide_product product;
    bool transposed;
    const void *b;
    void *packed;
} wide_call;

static void run_pack(void *argument) {
    const wide_call *c = argument;
    const int64_t n = c->product.columns;
    c->kernels->pack(c->transposed, c->product.depth, n, c->b, n, 0, dpcri_wide_panels(c->kernels, n), c->packed);
}

static void run_wide(void *argument) {
    const wide_call *c = argument;
    c->kernels->product(&c->product);
}

static wide_call wide_of(work *w) {
    const int64_t rows = w->rows, n = w->width;
    wide_call c = {.kernels = dpcri_wide_kernels_at(w->level, w->dtype), .b = draw(w, n * n, 1)};
    c.packed = room(w, dpcri_wide_panels(c.kernels, n) * c.kernels->panel * n);
    run_pack(&(wide_call){c.kernels, {.depth = n, .columns = n}, false, c.b, c.packed});
    c.product = (dpcri_wide_product){.rows = rows,
                                     .depth = n,
                                     .columns = n,
                                     .packed = c.packed,
                                     .streams = c.kernels->streams,
                                     .a_row = n,
                                     .c_row = n};
    return c;
}

static void wide(work *w) {
    const int64_t rows = w->rows, n = w->width;
    wide_call c = wide_of(w);
    c.product.a = draw(w, rows * n, 1), c.product.c = comes_out(w, rows * n, 1);
    const double all = (double)(rows * n), weights = (double)(n * n);
    runs(w, run_wide, &c, (cost){(double)rows, 2 * weights * (double)rows, weights + 2 * all});
}

// Packed panels as wide.h defines them.
static void pack(work *w, bool transposed) {
    wide_call c = wide_of(w);
    const int64_t n = w->width, panel = c.kernels->panel;
    c.transposed = transposed;
    run_pack(&c);
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < n; j++)
            if (get(w->dtype, c.packed, (j / panel * n + k) * panel + j % panel) !=
                get(w->dtype, c.b, transposed ? j * n + k : k * n + j))
                fails(w);
    runs(w, run_pack, &c, (cost){(double)n, 0, 2 * (double)(n * n)});
}
static void wide_pack(work *w) { pack(w, false); }
static void wide_pack_transposed(work *w) { pack(w, true); }

// ---- optimisers ----

typedef struct update_call {
    const dpcri_train_kernels *kernels;
    int64_t count;
    void *p, *m, *v, *g;
} update_call;

static update_call update_of(work *w) {
    update_call c = {.kernels = dpcri_train_kernels_at(w->level, w->dtype), .count = w->width};
    c.v = draw(w, c.count, 1);
    for (int64_t i = 0; i < c.count; i++) put(w->dtype, c.v, i, fabs(get(w->dtype, c.v, i)));
    c.g = draw(w, c.count, 1), c.p = comes_out(w, c.count, 1), c.m = comes_out(w, c.count, 1);
    return c;
}

static void run_sgd(void *argument) {
    const update_call *c = argument;
    c->kernels->sgd(c->count, c->p, c->m, c->g, false, &(dpcri_sgd_update){0x1p-10, 0.875, 0x1p-10});
}

static void sgd(work *w) {
    update_call c = update_of(w);
    const double n = (double)c.count;
    runs(w, run_sgd, &c, (cost){n, 6 * n, 3 * n});
}

static void run_adam(void *argument) {
    const update_call *c = argument;
    c->kernels->adam(c->count, c->p, c->m, c->v, c->g, false,
                     &(dpcri_adam_update){.keep = 1 - 0x1p-10,
                                          .pull = 0.125,
                                          .beta2 = 1 - 0x1p-10,
                                          .rest2 = 0x1p-10,
                                          .step = 0x1p-10,
                                          .root = 1,
                                          .epsilon = 0x1p-20});
}

static void adam(work *w) {
    update_call c = update_of(w);
    const double n = (double)c.count;
    runs(w, run_adam, &c, (cost){n, 16 * n, 4 * n});
}

void show_networks(dpcri_isa level, dpcr_dtype dtype) {
    static const int64_t widths[] = {8, 16, 32, 128};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        enum { ROWS = 64, LANES = 8 };
        const int64_t n = widths[i];
        const double sums = 4 + 4 * sqrt((double)n), functions = sums + FUNCTION_ERROR;
        const kernel_line lines[] = {
            {"nn_product", n, 1, sums, product},
            {"nn_product", n, ROWS, sums, product},
            {"nn_product_transposed", n, 1, sums, product_transposed},
            {"nn_product_transposed", n, ROWS, sums, product_transposed},
            {"nn_product_summing", n, ROWS, sums, product_summing},
            {"nn_layer", n, 1, functions, layer},
            {"nn_layer", n, ROWS, functions, layer},
            {"nn_slope_pass", n, ROWS, 4 * sqrt(ROWS), slope_pass},
            {"nn_adjoint", n, 1, sums, adjoint},
            {"nn_adjoint", n, ROWS, sums, adjoint},
            {"nn_adjoint_alone", n, ROWS, sums, adjoint_alone},
            {"nn_adjoint_direct", n, ROWS, sums, adjoint_direct},
            {"nn_gradient", n, 1, sums, gradient},
            {"nn_gradient", n, ROWS, sums, gradient},
            {"nn_forward_steps", n, 1, 5 * functions, forward_steps},
            {"nn_forward_steps", n, LANES, 5 * functions, forward_steps},
            {"nn_adjoint_steps", n, 1, 5 * sums, adjoint_steps},
            {"nn_adjoint_steps", n, LANES, 5 * sums, adjoint_steps},
            {"nn_gradient_steps", n, 1, 8, gradient_steps},
            {"nn_transpose", n, ROWS, 1, transpose},
            {"nn_multiply_add", n, ROWS, 3, multiply_add},
            {"nn_scale_rows", n, ROWS, 2, scale_rows},
            {"nn_norm", n, ROWS, sums, norm},
            {"nn_norm_apply", n, ROWS, sums, norm_apply},
            {"nn_norm_apply_transposed", n, ROWS, sums, norm_apply_transposed},
        };
        for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) show(&lines[k], level, dtype);
    }
    enum { NUMBERS = 2048, WIDE = 512 };
    const double sums = 4 + 4 * sqrt(WIDE);
    const kernel_line lines[] = {
        {"nn_activate_relu", NUMBERS, 1, 1, activate_relu},
        {"nn_activate_tanh", NUMBERS, 1, FUNCTION_ERROR, activate_tanh},
        {"nn_activate_sigmoid", NUMBERS, 1, FUNCTION_ERROR, activate_sigmoid},
        {"nn_activate_gelu", NUMBERS, 1, FUNCTION_ERROR, activate_gelu},
        {"nn_activate_silu", NUMBERS, 1, FUNCTION_ERROR, activate_silu},
        {"nn_product", WIDE, 64, sums, product},
        {"nn_product_summing", WIDE, 64, sums, product_summing},
        {"wide_product", WIDE, 1, sums, wide},
        {"wide_product", WIDE, 8, sums, wide},
        {"wide_product", WIDE, 64, sums, wide},
        {"wide_pack", WIDE, 1, 1, wide_pack},
        {"wide_pack_transposed", WIDE, 1, 1, wide_pack_transposed},
        {"train_sgd", NUMBERS, 1, 4, sgd},
        {"train_adam", NUMBERS, 1, 8, adam},
    };
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) show(&lines[k], level, dtype);
}
