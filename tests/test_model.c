// SPDX-License-Identifier: MIT
// Models as chains: golden numbers, contracts of the callbacks for every form, splits bit for bit, save and load,
// memory refused, refusals.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/random.h"
#include "budget.h"
#include "deeppcr/model.h"
#include "rt/core.h"
#include "rt/rt.h"

static dpcr_context *context;

static int open_context(void **state) {
    (void)state;
    return dpcr_context_create(NULL, &context, NULL) == DPCR_OK ? 0 : -1;
}
static int close_context(void **state) {
    (void)state;
    dpcr_context_destroy(context);
    return 0;
}

static dpcr_model *make(const dpcr_model_options *options) {
    dpcr_model_options o = *options;
    dpcr_model *model = NULL;
    dpcr_error error = {0};
    o.size = sizeof o;
    if (dpcr_model_create(context, &o, &model, &error) != DPCR_OK) fail_msg("%s", error.text);
    return model;
}

static dpcr_array array3(void *data, dpcr_dtype dtype, int64_t a, int64_t b, int64_t c) {
    return dpcr_array_make(data, dtype, 3, (const int64_t[]){a, b, c});
}
static dpcr_array array4(void *data, dpcr_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    return dpcr_array_make(data, dtype, 4, (const int64_t[]){a, b, c, d});
}
static dpcr_array array2(void *data, dpcr_dtype dtype, int64_t a, int64_t b) {
    return dpcr_array_make(data, dtype, 2, (const int64_t[]){a, b});
}
static dpcr_span span_of(int64_t first, int64_t lanes, int64_t steps, int64_t rows) {
    return (dpcr_span){.size = sizeof(dpcr_span),
                       .first = first,
                       .lanes = lanes,
                       .stride = 1,
                       .steps = steps,
                       .rows = rows,
                       .device = {DPCR_HOST, 0}};
}
static void fill(double *x, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) x[i] = dpcri_random_normal(3, DPCRI_STREAM_DATA + stream, (uint64_t)i);
}

// algorithms.md 12.2: z_l = tanh(W_l z + b_l), w = 3, L = 16
static void the_golden_mlp_comes_out(void **state) {
    (void)state;
    enum { L = 16, W = 3 };
    dpcr_model *m = make(&(dpcr_model_options){
        .architecture = DPCR_MLP, .dtype = DPCR_F64, .layers = L, .width = W, .activation = DPCR_ACT_TANH});
    for (int l = 1; l <= L; l++)
        for (int part = 0; part < 2; part++) {
            dpcr_array p;
            char name[64];
            assert_int_equal(dpcr_model_parameter(m, 2 * (l - 1) + part, name, sizeof name, &p, NULL, NULL), DPCR_OK);
            for (int64_t i = 0; i < W; i++) {
                if (part) ((double *)p.data)[i] = 0.3 * cos((double)(i + l));
                for (int64_t j = 0; part == 0 && j < W; j++)
                    ((double *)p.data)[i * p.strides[0] + j * p.strides[1]] =
                        0.9 * sin(1.3 * (double)(i * W + j) + 0.7 * l);
            }
        }
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_steps(m, 1, &steps, NULL), DPCR_OK);
    double z0[W] = {0.3, -0.7, 1.1}, z[L][W], tape[L][W], g[W] = {1, 1, 1}, kept[L][W], in[L][W], dz0[W];
    dpcr_span span = span_of(0, 1, L, 1);
    const dpcr_array start = array3(z0, DPCR_F64, 1, 1, W), states = array4(z, DPCR_F64, 1, L, 1, W),
                     slopes = array4(tape, DPCR_F64, 1, L, 1, W);
    assert_int_equal(steps.advance(steps.user, &span, &start, &states, NULL, &slopes), 0);
    const double z1[W] = {-0.373940304079, 0.556765206482, -0.683221733187},
                 z16[W] = {-0.067026199648, -0.149990247246, 0.077340242386};
    const double wanted[W] = {0.006624280409, 0.003106916509, -0.004962087355};
    memcpy(in[0], z0, sizeof z0);
    memcpy(in[1], z, sizeof z0 * (L - 1));
    const dpcr_array inputs = array4(in, DPCR_F64, 1, L, 1, W), last = array3(g, DPCR_F64, 1, 1, W),
                     lambda = array4(kept, DPCR_F64, 1, L, 1, W), out = array3(dz0, DPCR_F64, 1, 1, W);
    for (int with_tape = 0; with_tape < 2; with_tape++) {
        assert_int_equal(
            steps.adjoint(steps.user, &span, &inputs, with_tape ? &slopes : NULL, NULL, &last, &lambda, &out), 0);
        for (int i = 0; i < W; i++) {
            assert_true(fabs(z[0][i] - z1[i]) < 1e-12);
            assert_true(fabs(z[L - 1][i] - z16[i]) < 1e-12);
            assert_true(fabs(dz0[i] - wanted[i]) < 1e-12);
        }
    }
    dpcr_model_destroy(m);
}

// ---- contracts, for every form ----

enum { L = 5, B = 7 };

// For whoever sets all parameters; the option is not kept.
static void blank_models_have_zeros(void **state) {
    (void)state;
    const dpcr_model_options o = {
        .architecture = DPCR_RESNET, .inputs = 3, .outputs = 2, .layers = 4, .width = 5, .layer_norm = 1, .blank = 1};
    dpcr_model *m = make(&o);
    int64_t count = 0;
    const float *p = dpcr_model_vector(m, &count);
    assert_true(count > 0);
    for (int64_t i = 0; i < count; i++) assert_true(p[i] == 0);
    assert_int_equal(dpcr_model_get_options(m)->blank, 0);
    dpcr_model_destroy(m);
}

typedef struct chain {
    dpcr_model *model;
    dpcr_steps steps;
    int64_t w;
    double *z;     // [L + 1][B][w], z[0] the initial state
    double *tape;  // [L][B][tape_values]
} chain;

static chain open_chain(const dpcr_model_options *options) {
    chain c = {.model = make(options), .steps = {.size = sizeof c.steps}, .w = options->width};
    assert_int_equal(dpcr_model_steps(c.model, B, &c.steps, NULL), DPCR_OK);
    c.z = calloc((size_t)((L + 1) * B * c.w), sizeof(double));
    c.tape = calloc((size_t)(L * B * c.steps.tape_values) + 1, sizeof(double));
    fill(c.z, B * c.w, 1);
    dpcr_span span = span_of(0, 1, L, B);
    const dpcr_array in = array3(c.z, DPCR_F64, 1, B, c.w), states = array4(c.z + B * c.w, DPCR_F64, 1, L, B, c.w);
    const dpcr_array tape = array4(c.tape, DPCR_F64, 1, L, B, c.steps.tape_values);
    assert_int_equal(c.steps.advance(c.steps.user, &span, &in, &states, NULL, &tape), 0);
    return c;
}
static void close_chain(chain *c) {
    free(c->z);
    free(c->tape);
    dpcr_model_destroy(c->model);
}

// Calls `check` for every architecture, branch, norm and activation, with widths on both sides of the vector.
static void for_all_forms(void (*check)(chain *c)) {
    static const int64_t widths[] = {1, 3, 8, 16, 21, 32, 64, 70};
    int form = 0;
    for (int residual = 0; residual < 2; residual++)
        for (int two_layer = 0; two_layer <= residual; two_layer++)
            for (int norm = 0; norm < 2; norm++)
                for (int act = DPCR_ACT_IDENTITY; act < DPCR_ACT_COUNT; act++, form++)
                    for (int q = 0; q < 2; q++) {
                        chain c = open_chain(
                            &(dpcr_model_options){.architecture = residual ? DPCR_RESNET : DPCR_MLP,
                                                  .dtype = DPCR_F64,
                                                  .layers = L,
                                                  .width = widths[(form + 2 * q) % 5],
                                                  .hidden = 5 + form % 4,
                                                  .activation = (dpcr_activation)act,
                                                  .branch = two_layer ? DPCR_BRANCH_TWO_LAYER : DPCR_BRANCH_LINEAR,
                                                  .layer_norm = norm,
                                                  .seed = 11});
                        check(&c);
                        close_chain(&c);
                    }
}

// Lanes against steps, rows alone, in place, last only, tape only: the same bits.
static void check_splits(chain *c) {
    const int64_t w = c->w, t = c->steps.tape_values, all = L * B * w;
    double *z = calloc((size_t)all, sizeof *z), *tape = calloc((size_t)(L * B * t) + 1, sizeof *tape),
           *s = malloc((size_t)(L * B * w) * sizeof *s);
    const double *wanted = c->z + B * w;
    dpcr_span span = span_of(0, L, 1, B);
    dpcr_array in = array3(c->z, DPCR_F64, L, B, w), states = array4(z, DPCR_F64, L, 1, B, w),
               slopes = array4(tape, DPCR_F64, L, 1, B, t);
    assert_int_equal(c->steps.advance(c->steps.user, &span, &in, &states, NULL, &slopes), 0);
    assert_memory_equal(z, wanted, (size_t)all * sizeof *z);
    assert_memory_equal(tape, c->tape, (size_t)(L * B * t) * sizeof *tape);

    memset(tape, 0, (size_t)(L * B * t) * sizeof *tape);
    span = span_of(0, 1, L, B);
    in = array3(c->z, DPCR_F64, 1, B, w), slopes = array4(tape, DPCR_F64, 1, L, B, t);
    assert_int_equal(c->steps.advance(c->steps.user, &span, &in, NULL, NULL, &slopes), 0);
    assert_memory_equal(tape, c->tape, (size_t)(L * B * t) * sizeof *tape);

    memcpy(s, c->z, (size_t)(B * w) * sizeof *s);
    const dpcr_array state = array3(s, DPCR_F64, 1, B, w);
    assert_int_equal(c->steps.advance(c->steps.user, &span, &state, NULL, &state, NULL), 0);
    assert_memory_equal(s, wanted + (L - 1) * B * w, (size_t)(B * w) * sizeof *s);

    for (int64_t row = 0; row < B; row += 3) {  // rows row .. of two lanes of two steps, into strided places
        const int64_t rows = B - row < 3 ? B - row : 3;
        span = span_of(1, 2, 2, rows);
        span.row = row;
        in = array3(c->z + (B + row) * w, DPCR_F64, 2, rows, w);
        in.strides[0] = B * w;
        states = array4(z, DPCR_F64, 2, 2, rows, w);
        memset(z, 0, (size_t)all * sizeof *z);
        dpcr_array last = array3(s, DPCR_F64, 2, rows, w);
        assert_int_equal(c->steps.advance(c->steps.user, &span, &in, &states, &last, NULL), 0);
        // lane 1 begins at step 2 from z_2: both of its states and lane 0's are the loop's
        for (int64_t lane = 0; lane < 2; lane++)
            for (int64_t k = 0; k < 2; k++)
                assert_memory_equal(z + (lane * 2 + k) * rows * w, wanted + ((1 + lane + k) * B + row) * w,
                                    (size_t)(rows * w) * sizeof *z);
        assert_memory_equal(s + rows * w, z + 3 * rows * w, (size_t)(rows * w) * sizeof *z);
    }
    free(z), free(tape), free(s);
}
static void advance_does_not_depend_on_the_split(void **state) {
    (void)state;
    for_all_forms(check_splits);
}

// Batches that go eight rows at a time through as many layers as the first cache holds the weights of, or all rows a
// layer, in two lanes: the bits of each row alone, into states or on in place.
static void rows_of_long_chains_are_those_alone(void **state) {
    static const int64_t widths[] = {5, 8, 12, 24, 32};
    (void)state;
    for (int i = 0; i < 30; i++) {
        const dpcr_dtype dtype = i % 10 < 5 ? DPCR_F32 : DPCR_F64;
        const int64_t w = widths[i % 5], row = w * (int64_t)dpcr_dtype_size(dtype);
        const int64_t rows = i < 10 ? 11 : 61, half = i < 20 ? 300 : 70, each = 2 * half * rows * row;
        dpcr_model *m = make(&(dpcr_model_options){.architecture = DPCR_RESNET,
                                                   .dtype = dtype,
                                                   .layers = 2 * half,
                                                   .width = w,
                                                   .activation = DPCR_ACT_TANH,
                                                   .seed = 3});
        dpcr_steps steps = {.size = sizeof steps};
        assert_int_equal(dpcr_model_steps(m, rows, &steps, NULL), DPCR_OK);
        char *z0 = calloc(2 * rows, (size_t)row), *z = malloc((size_t)each), *tape = malloc((size_t)each);
        char *one = malloc((size_t)(half * row)), *slope = malloc((size_t)(half * row));
        assert_true(z0 && z && tape && one && slope);
        for (int64_t k = 0; k < 2 * rows * w; k++)
            if (dtype == DPCR_F32)
                ((float *)z0)[k] = (float)(k % 13 - 6) / 4;
            else
                ((double *)z0)[k] = (double)(k % 13 - 6) / 4;
        dpcr_span span = {.lanes = 2, .stride = half, .steps = half, .rows = rows};
        dpcr_array in = array3(z0, dtype, 2, rows, w), states = array4(z, dtype, 2, half, rows, w),
                   slopes = array4(tape, dtype, 2, half, rows, w);
        assert_int_equal(steps.advance(steps.user, &span, &in, &states, NULL, &slopes), 0);
        for (int64_t at = 0; at < 2 * rows; at++) {
            const int64_t lane = at / rows, r = at % rows;
            span = (dpcr_span){.first = lane * half, .lanes = 1, .stride = 1, .steps = half, .row = r, .rows = 1};
            const dpcr_array from = array3(z0 + at * row, dtype, 1, 1, w), to = array4(one, dtype, 1, half, 1, w),
                             d = array4(slope, dtype, 1, half, 1, w);
            assert_int_equal(steps.advance(steps.user, &span, &from, &to, NULL, &d), 0);
            for (int64_t l = 0; l < half; l++) {
                const int64_t place = ((lane * half + l) * rows + r) * row;
                assert_memory_equal(z + place, one + l * row, (size_t)row);
                assert_memory_equal(tape + place, slope + l * row, (size_t)row);
            }
        }
        span = (dpcr_span){.lanes = 2, .stride = half, .steps = half, .rows = rows};
        assert_int_equal(steps.advance(steps.user, &span, &in, NULL, &in, NULL), 0);
        for (int64_t lane = 0; lane < 2; lane++)
            assert_memory_equal(z0 + lane * rows * row, z + ((lane + 1) * half - 1) * rows * row, (size_t)(rows * row));
        free(z0), free(z), free(tape), free(one), free(slope);
        dpcr_model_destroy(m);
    }
}

// df_i/dz_j by central differences of fourth order, at every step's own input; kinks of ReLU are avoided by the
// tolerance on the difference of one-sided slopes: points within 1e-3 of a kink are left out.
static void step_once(const chain *c, int64_t l, const double *x, double *y) {
    dpcr_span span = span_of(l, 1, 1, 1);
    const dpcr_array in = array3((void *)x, DPCR_F64, 1, 1, c->w), out = array3(y, DPCR_F64, 1, 1, c->w);
    assert_int_equal(c->steps.advance(c->steps.user, &span, &in, NULL, &out, NULL), 0);
}
static void check_jacobian(chain *c) {
    const int64_t w = c->w;
    const double h = 1e-3;
    const bool kinked = dpcr_model_get_options(c->model)->activation == DPCR_ACT_RELU;
    double *f = calloc((size_t)(L * B * w), sizeof *f), *a = calloc((size_t)(L * B * w * w), sizeof *a);
    double *x = malloc((size_t)(B * w) * sizeof *x), *y = malloc((size_t)(6 * B * w) * sizeof *y),
           *g = malloc((size_t)(B * w) * sizeof *g);
    dpcr_span span = span_of(0, L, 1, B);
    const dpcr_array in = array3(c->z, DPCR_F64, L, B, w), fs = array3(f, DPCR_F64, L, B, w),
                     as = array3(a, DPCR_F64, L, B, w * w);
    assert_int_equal(c->steps.linearise(c->steps.user, &span, &in, &fs, &as), 0);
    assert_memory_equal(f, c->z + B * w, (size_t)(L * B * w) * sizeof *f);
    for (int64_t l = 0; l < L; l += 2) {
        const double *z = c->z + (l * B + 2) * w, *j = a + (l * B + 2) * w * w;
        for (int64_t col = 0; col<w; col += w> 20 ? 9 : 1) {
            double *at[4] = {y, y + w, y + 2 * w, y + 3 * w};
            const double shift[4] = {-2 * h, -h, h, 2 * h};
            for (int q = 0; q < 4; q++) {
                memcpy(x, z, (size_t)w * sizeof *x);
                x[col] += shift[q];
                step_once(c, l, x, at[q]);
            }
            for (int64_t row = 0; row < w; row++) {
                const double wide = (at[3][row] - at[0][row]) / (4 * h), near = (at[2][row] - at[1][row]) / (2 * h);
                const double slope = (4 * near - wide) / 3;
                if (kinked && fabs(wide - near) > 1e-9) continue;
                if (fabs(slope - j[row * w + col]) > 1e-8 * (1 + fabs(slope)))
                    fail_msg("width %d step %d: J[%d][%d] = %.12g, differences %.12g", (int)w, (int)l, (int)row,
                             (int)col, j[row * w + col], slope);
            }
        }
        // jvp = J x and vjp = J^T g for all rows of the step, and <g, J x> = <J^T g, x>
        fill(x, B * w, 5), fill(g, B * w, 6);
        dpcr_span one = span_of(l, 1, 1, B);
        const dpcr_array here = array3(c->z + l * B * w, DPCR_F64, 1, B, w), xs = array3(x, DPCR_F64, 1, B, w),
                         ys = array3(y, DPCR_F64, 1, B, w);
        const dpcr_array gs = array3(g, DPCR_F64, 1, B, w), out = array3(y + B * w, DPCR_F64, 1, B, w),
                         kept = array4(y + 2 * B * w, DPCR_F64, 1, 1, B, w),
                         step_in = array4(c->z + l * B * w, DPCR_F64, 1, 1, B, w);
        const dpcr_array tape = array4(c->tape + l * B * c->steps.tape_values, DPCR_F64, 1, 1, B, c->steps.tape_values);
        assert_int_equal(c->steps.jvp(c->steps.user, &one, &here, &xs, &ys), 0);
        assert_int_equal(c->steps.adjoint(c->steps.user, &one, &step_in, &tape, NULL, &gs, &kept, &out), 0);
        for (int64_t b = 0; b < B; b++) {
            double left = 0, right = 0, size = 1e-3;
            const double *jb = a + (l * B + b) * w * w;
            for (int64_t i = 0; i < w; i++) {
                double jx = 0, jg = 0;
                for (int64_t k = 0; k < w; k++) jx += jb[i * w + k] * x[b * w + k], jg += jb[k * w + i] * g[b * w + k];
                assert_true(fabs(jx - y[b * w + i]) <= 1e-12 * (10 + fabs(jx)));
                assert_true(fabs(jg - y[(B + b) * w + i]) <= 1e-12 * (10 + fabs(jg)));
                left += g[b * w + i] * y[b * w + i], right += y[(B + b) * w + i] * x[b * w + i];
                size += fabs(g[b * w + i] * y[b * w + i]);
            }
            assert_true(fabs(left - right) <= 1e-12 * size + 1e-13);
        }
    }
    free(f), free(a), free(x), free(y), free(g);
}
static void jacobians_agree_with_differences(void **state) {
    (void)state;
    for_all_forms(check_jacobian);
}

// loss = sum of weight * z_l over some steps and the last: gradients by the callbacks against differences of the
// parameters.
static double loss_of(const chain *c, const double *direct) {
    double sum = 0, *z = malloc((size_t)(L * B * c->w) * sizeof *z);
    dpcr_span span = span_of(0, 1, L, B);
    const dpcr_array in = array3(c->z, DPCR_F64, 1, B, c->w), states = array4(z, DPCR_F64, 1, L, B, c->w);
    assert_int_equal(c->steps.advance(c->steps.user, &span, &in, &states, NULL, NULL), 0);
    for (int64_t i = 0; i < L * B * c->w; i++) sum += direct[i] * z[i];
    free(z);
    return sum;
}
static void check_gradient(chain *c) {
    const int64_t w = c->w, t = c->steps.tape_values;
    int64_t count = 0;
    double *theta = dpcr_model_vector(c->model, &count), *gradients = dpcr_model_gradient_vector(c->model);
    double *direct = calloc((size_t)(L * B * w), sizeof *direct),
           *lambda = malloc((size_t)(L * B * w) * sizeof *lambda), *g = calloc((size_t)(B * w), sizeof *g);
    double *first = calloc((size_t)count, sizeof *first), *before = malloc((size_t)(L * B * w) * sizeof *before);
    fill(direct, L * B * w, 8);
    dpcr_span down = span_of(0, 1, L, B), across = span_of(0, L, 1, B);
    const dpcr_array in = array3(c->z, DPCR_F64, L, B, w), tape = array3(c->tape, DPCR_F64, L, B, t);
    const dpcr_array ins = array4(c->z, DPCR_F64, 1, L, B, w), tapes = array4(c->tape, DPCR_F64, 1, L, B, t),
                     ds = array4(direct, DPCR_F64, 1, L, B, w), kept = array4(lambda, DPCR_F64, 1, L, B, w);
    const dpcr_array last = array3(g, DPCR_F64, 1, B, w), ls = array3(lambda, DPCR_F64, L, B, w);
    for (int with_tape = 1; with_tape >= 0; with_tape--) {
        memset(g, 0, (size_t)(B * w) * sizeof *g);
        dpcr_model_zero_gradients(c->model);
        if (with_tape) {  // direct may be adjoint itself
            memcpy(lambda, direct, (size_t)(L * B * w) * sizeof *lambda);
            assert_int_equal(c->steps.adjoint(c->steps.user, &down, &ins, &tapes, &kept, &last, &kept, &last), 0);
            memcpy(before, lambda, (size_t)(L * B * w) * sizeof *lambda);
        } else {
            assert_int_equal(c->steps.adjoint(c->steps.user, &down, &ins, NULL, &ds, &last, &kept, &last), 0);
            assert_memory_equal(before, lambda, (size_t)(L * B * w) * sizeof *lambda);
        }
        assert_int_equal(c->steps.gradient(c->steps.user, &across, &in, with_tape ? &tape : NULL, &ls), 0);
        if (with_tape)
            memcpy(first, gradients, (size_t)count * sizeof *first);
        else
            assert_memory_equal(first, gradients, (size_t)count * sizeof *first);
    }
    const bool kinked = dpcr_model_get_options(c->model)->activation == DPCR_ACT_RELU;
    for (int64_t i = 0; i < count; i += 1 + count / 40) {
        const double keep = theta[i], h = 1e-4;
        double at[4];
        const double shift[4] = {-2 * h, -h, h, 2 * h};
        for (int q = 0; q < 4; q++) {
            theta[i] = keep + shift[q];
            at[q] = loss_of(c, direct);
        }
        theta[i] = keep;
        const double wide = (at[3] - at[0]) / (4 * h), near = (at[2] - at[1]) / (2 * h), slope = (4 * near - wide) / 3;
        if (kinked && fabs(wide - near) > 1e-7 * (1 + fabs(wide))) continue;
        if (fabs(slope - first[i]) > 1e-7 * (1 + fabs(slope)))
            fail_msg("width %d parameter %d: gradient %.12g, differences %.12g", (int)w, (int)i, first[i], slope);
    }
    free(direct), free(lambda), free(g), free(first), free(before);
}
static void gradients_agree_with_differences(void **state) {
    (void)state;
    for_all_forms(check_gradient);
}

// Wider than the stack's buffers: the same results through an allocation, and without it where one row still fits.
static void wide_layers_work(void **state) {
    (void)state;
    chain c = open_chain(
        &(dpcr_model_options){.architecture = DPCR_RESNET, .dtype = DPCR_F64, .layers = L, .width = 900, .seed = 2});
    check_splits(&c);
    close_chain(&c);
}

// ---- parameters, initialisation ----

static void parameters_have_pytorch_names_and_shapes(void **state) {
    (void)state;
    dpcr_model *m = make(&(dpcr_model_options){.architecture = DPCR_RESNET,
                                               .inputs = 6,
                                               .outputs = 4,
                                               .layers = 2,
                                               .width = 3,
                                               .hidden = 5,
                                               .branch = DPCR_BRANCH_TWO_LAYER,
                                               .layer_norm = 1});
    static const char *const names[] = {"encoder.weight",          "encoder.bias",          "layers.0.linear1.weight",
                                        "layers.0.linear1.bias",   "layers.0.norm.weight",  "layers.0.norm.bias",
                                        "layers.0.linear2.weight", "layers.0.linear2.bias", "layers.1.linear1.weight"};
    static const int64_t shapes[][2] = {{3, 6}, {3, 0}, {5, 3}, {5, 0}, {5, 0}, {5, 0}, {3, 5}, {3, 0}, {5, 3}};
    assert_int_equal(dpcr_model_parameter_count(m), 16);
    int64_t total = 0, count = 0;
    for (int64_t i = 0; i < 16; i++) {
        char name[64];
        dpcr_array p, g;
        assert_int_equal(dpcr_model_parameter(m, i, name, sizeof name, &p, &g, NULL), DPCR_OK);
        total += p.shape[0] * (p.ndim == 2 ? p.shape[1] : 1);
        if (i >= 9) continue;
        assert_string_equal(name, names[i]);
        assert_int_equal(p.ndim, shapes[i][1] ? 2 : 1);
        assert_int_equal(p.shape[0], shapes[i][0]);
        if (p.ndim == 2) assert_int_equal(p.shape[1], shapes[i][1]);
        const double bound = i < 2 ? 1 / sqrt(6.0) : i < 4 || i == 8 ? 1 / sqrt(3.0) : 1 / sqrt(5.0);
        for (int64_t k = 0; k < p.shape[0]; k++) {
            const float x = ((const float *)p.data)[k];
            assert_true(i == 4 ? x == 1 : i == 5 ? x == 0 : fabs((double)x) <= bound && x != 0);
        }
    }
    dpcr_model_vector(m, &count);
    assert_int_equal(total, count);
    dpcr_model_destroy(m);
}

static void initialisation_does_not_depend_on_the_dtype(void **state) {
    (void)state;
    dpcr_model_options o = {.architecture = DPCR_MLP, .inputs = 20, .outputs = 10, .layers = 3, .width = 17, .seed = 5};
    dpcr_model *single = make(&o);
    o.dtype = DPCR_F64;
    dpcr_model *wide = make(&o);
    int64_t count = 0;
    const float *a = dpcr_model_vector(single, &count);
    const double *b = dpcr_model_vector(wide, &count);
    double mean = 0, square = 0;
    for (int64_t i = 0; i < count; i++) assert_true(a[i] == (float)b[i]);
    for (int64_t i = 0; i < 17 * 17; i++) mean += b[i], square += b[i] * b[i];
    assert_true(fabs(mean / 289) < 0.03 && fabs(square / 289 - 1.0 / 51) < 0.003);
    dpcr_model_destroy(single), dpcr_model_destroy(wide);
}

// ---- files and metadata ----

static void save_and_load_keep_everything(void **state) {
    (void)state;
    char path[] = P_tmpdir "/dpcr_test_model_XXXXXX";
    close(mkstemp(path));
    for (int form = 0; form < 4; form++) {
        dpcr_model *m = make(&(dpcr_model_options){.architecture = form ? DPCR_RESNET : DPCR_MLP,
                                                   .dtype = form == 1 ? DPCR_F64 : DPCR_F32,
                                                   .inputs = form == 2 ? 0 : 9,
                                                   .outputs = 4,
                                                   .layers = 3,
                                                   .width = 5,
                                                   .hidden = 7,
                                                   .branch = form == 3 ? DPCR_BRANCH_TWO_LAYER : DPCR_BRANCH_LINEAR,
                                                   .layer_norm = form == 3,
                                                   .activation = DPCR_ACT_SILU,
                                                   .seed = 99});
        dpcr_error error = {0};
        assert_int_equal(dpcr_model_set_metadata(m, "pixel_mean", "0.25", NULL), DPCR_OK);
        assert_int_equal(dpcr_model_set_metadata(m, "gone", "x", NULL), DPCR_OK);
        assert_int_equal(dpcr_model_set_metadata(m, "pixel_mean", "0.5", NULL), DPCR_OK);
        assert_int_equal(dpcr_model_set_metadata(m, "gone", NULL, NULL), DPCR_OK);
        assert_int_equal(dpcr_model_set_metadata(m, "deeppcr.width", "9", NULL), DPCR_ERROR_ARGUMENT);
        assert_int_equal(dpcr_model_set_metadata(m, "pixel_mean", "caf\xe9", NULL), DPCR_ERROR_ARGUMENT);
        assert_int_equal(dpcr_model_set_metadata(m, "caf\xe9", "0.5", NULL), DPCR_ERROR_ARGUMENT);
        assert_int_equal(dpcr_model_set_metadata(m, "deeppcr.\xe9", "0.5", &error), DPCR_ERROR_ARGUMENT);
        assert_string_equal(error.text, "model_set_metadata: the key 'deeppcr.\xe9' is not UTF-8");
        if (dpcr_model_save(m, path, &error) != DPCR_OK) fail_msg("%s", error.text);
        dpcr_model *read = NULL;
        if (dpcr_model_load(context, path, &read, &error) != DPCR_OK) fail_msg("%s", error.text);
        assert_memory_equal(dpcr_model_get_options(m), dpcr_model_get_options(read), sizeof(dpcr_model_options));
        int64_t count = 0, again = 0;
        const void *a = dpcr_model_vector(m, &count), *b = dpcr_model_vector(read, &again);
        assert_int_equal(count, again);
        assert_memory_equal(a, b, (size_t)count * dpcr_dtype_size(dpcr_model_get_options(m)->dtype));
        assert_string_equal(dpcr_model_metadata(read, "pixel_mean"), "0.5");
        assert_null(dpcr_model_metadata(read, "gone"));
        dpcr_model_destroy(m), dpcr_model_destroy(read);
    }
    unlink(path);
}

// ---- memory and refusals ----

static dpcr_status make_save_load(dpcr_context *c, const char *path, dpcr_error *error) {
    const dpcr_model_options o = {
        .size = sizeof o, .architecture = DPCR_RESNET, .inputs = 3, .outputs = 2, .layers = 2, .width = 4};
    dpcr_model *m = NULL, *again = NULL;
    dpcr_status status = dpcr_model_create(c, &o, &m, error);
    if (status == DPCR_OK) status = dpcr_model_set_metadata(m, "key", "value", error);
    if (status == DPCR_OK) status = dpcr_model_save(m, path, error);
    if (status == DPCR_OK) status = dpcr_model_load(c, path, &again, error);
    dpcr_model_destroy(again);
    dpcr_model_destroy(m);
    return status;
}
static void refused_memory_is_reported_and_nothing_leaks(void **state) {
    (void)state;
    char path[] = P_tmpdir "/dpcr_test_memory_XXXXXX";
    close(mkstemp(path));
    dpcr_status status = DPCR_ERROR_MEMORY;
    for (int64_t allowed = 0; status != DPCR_OK && allowed < 500; allowed++) {
        budget count = {allowed + 1, 0};  // the context takes one
        dpcr_context *c = NULL;
        dpcr_error error = {0};
        const dpcr_context_options options = budget_options(&count);
        assert_int_equal(dpcr_context_create(&options, &c, NULL), DPCR_OK);
        status = make_save_load(c, path, &error);
        assert_true(status == DPCR_OK || status == DPCR_ERROR_MEMORY);
        if (status != DPCR_OK) assert_true(strlen(error.text) > 10);
        dpcr_context_destroy(c);
        assert_int_equal(count.live, 0);
    }
    assert_int_equal(status, DPCR_OK);
    unlink(path);
}

static void refuse(dpcr_model_options o, dpcr_status wanted, const char *part) {
    dpcr_model *m = NULL;
    dpcr_error error = {0};
    o.size = sizeof o;
    assert_int_equal(dpcr_model_create(context, &o, &m, &error), wanted);
    assert_null(m);
    if (!strstr(error.text, part)) fail_msg("'%s' does not name '%s'", error.text, part);
}
static void refusals_name_what_is_wrong(void **state) {
    (void)state;
    refuse((dpcr_model_options){.width = 3}, DPCR_ERROR_ARGUMENT, "architecture");
    refuse((dpcr_model_options){.architecture = DPCR_MLP}, DPCR_ERROR_ARGUMENT, "width");
    refuse((dpcr_model_options){.architecture = DPCR_MLP, .width = 3, .layers = -1}, DPCR_ERROR_ARGUMENT, "layers -1");
    refuse((dpcr_model_options){.architecture = DPCR_MLP, .width = 3, .dtype = DPCR_U32}, DPCR_ERROR_UNSUPPORTED,
           "uint32");
    refuse((dpcr_model_options){.architecture = DPCR_MLP, .width = 3, .activation = DPCR_ACT_COUNT},
           DPCR_ERROR_ARGUMENT, "activation");
    refuse((dpcr_model_options){.architecture = DPCR_MLP, .width = 3, .branch = DPCR_BRANCH_TWO_LAYER},
           DPCR_ERROR_UNSUPPORTED, "two-layer");
    refuse((dpcr_model_options){.architecture = DPCR_RESNET, .width = 3, .scale = NAN}, DPCR_ERROR_ARGUMENT, "scale");
    refuse((dpcr_model_options){.architecture = DPCR_MLP, .width = INT64_MAX / 2, .layers = 2}, DPCR_ERROR_OVERFLOW,
           "layers");
    refuse((dpcr_model_options){.architecture = DPCR_MLP, .width = 100000, .layers = INT64_MAX / 4},
           DPCR_ERROR_OVERFLOW, "layers");
    dpcr_model *m = make(&(dpcr_model_options){.architecture = DPCR_MLP, .layers = 1, .width = 3});
    dpcr_error error = {0};
    float x[6] = {0};
    dpcr_array a = array2(x, DPCR_F32, 2, 3);
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_encode(m, &a, &a, &error), DPCR_ERROR_UNSUPPORTED);
    assert_int_equal(dpcr_model_head(m, &a, &a, &error), DPCR_ERROR_UNSUPPORTED);
    assert_int_equal(dpcr_model_steps(m, -1, &steps, &error), DPCR_ERROR_ARGUMENT);
    // older steps, after which the caller keeps something else
    memset(&steps, 0x55, sizeof steps);
    steps.size = offsetof(dpcr_steps, identity);
    const dpcr_steps kept = steps;
    assert_int_equal(dpcr_model_steps(m, 3, &steps, &error), DPCR_OK);
    assert_int_equal(steps.size, kept.size);
    assert_int_equal(steps.batch, 3);
    assert_memory_equal((char *)&steps + kept.size, (const char *)&kept + kept.size, sizeof steps - kept.size);
    steps.size--;
    assert_int_equal(dpcr_model_steps(m, 3, &steps, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "size"));
    assert_int_equal(dpcr_model_parameter(m, 2, NULL, 0, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    dpcr_model_destroy(m);
    m = make(&(dpcr_model_options){.architecture = DPCR_MLP, .layers = 1, .width = 3, .outputs = 2});
    assert_int_equal(dpcr_model_head(m, &a, &a, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "logits is [2][3]"));
    dpcr_model_destroy(m);
    // outputs whose rows share memory, which as inputs they may
    m = make(&(dpcr_model_options){.architecture = DPCR_MLP, .layers = 1, .width = 3, .inputs = 3, .outputs = 3});
    float y[6] = {0};
    dpcr_array b = array2(y, DPCR_F32, 2, 3);
    for (b.strides[0] = 0; b.strides[0] < 3; b.strides[0] += 2) {
        assert_int_equal(dpcr_model_encode(m, &b, &a, &error), DPCR_OK);
        assert_int_equal(dpcr_model_encode(m, &a, &b, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "z0 is written"));
        assert_int_equal(dpcr_model_head(m, &a, &b, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "logits is written"));
        assert_int_equal(dpcr_model_head_backward(m, &a, &a, &b, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "dz is written"));
    }
    dpcr_model_destroy(m);
    dpcr_model_destroy(NULL);
    dpcr_activation activation;
    assert_int_equal(dpcr_activation_find("gelu", &activation, NULL), DPCR_OK);
    assert_int_equal(activation, DPCR_ACT_GELU);
    assert_int_equal(dpcr_activation_find("gulp", &activation, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_model_load(context, "/nowhere/at/all", &m, &error), DPCR_ERROR_IO);
    assert_null(m);
}

// Planning that measures ways back leaves the gradients as they are; a stand-in's begin at 0 and are the model's own
// numbers, made from the same parameters.
static void planning_leaves_gradients_alone(void **state) {
    (void)state;
    enum { LAYERS = 300, WIDTH = 8, ROWS = 2, NUMBERS = LAYERS * ROWS * WIDTH };
    dpcr_model *m = make(&(dpcr_model_options){
        .architecture = DPCR_RESNET, .layers = LAYERS, .width = WIDTH, .inputs = 5, .outputs = 3, .scale = 0.1});
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_steps(m, ROWS, &steps, NULL), DPCR_OK);
    int64_t count = 0;
    dpcr_model_vector(m, &count);
    float *own = dpcr_model_gradient_vector(m);
    for (int64_t i = 0; i < count; i++) own[i] = (float)i;
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_SEQUENTIAL,
                                        .planning = DPCR_PLANNING_MEASURE,
                                        .planning_seconds = 0.05};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    dpcr_solve_plan_destroy(plan);
    for (int64_t i = 0; i < count; i++) assert_true(own[i] == (float)i);

    float in[NUMBERS], adjoint[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) in[i] = sinf((float)i), adjoint[i] = cosf((float)i);
    const dpcr_array x = array4(in, DPCR_F32, LAYERS, 1, ROWS, WIDTH),
                     g = array4(adjoint, DPCR_F32, LAYERS, 1, ROWS, WIDTH);
    const dpcr_span span = span_of(0, LAYERS, 1, ROWS);
    memset(own, 0, (size_t)count * sizeof *own);
    const dpcr_rehearsal rehearsal = {.size = sizeof rehearsal};
    dpcr_model *stand_in = steps.rehearse(steps.user, &rehearsal);
    assert_non_null(stand_in);
    const float *others = dpcr_model_gradient_vector(stand_in);
    assert_true(others != own);
    for (int64_t i = 0; i < count; i++) assert_true(others[i] == 0);
    assert_int_equal(steps.gradient(stand_in, &span, &x, NULL, &g), 0);
    for (int64_t i = 0; i < count; i++) assert_true(own[i] == 0);
    assert_int_equal(steps.gradient(steps.user, &span, &x, NULL, &g), 0);
    assert_memory_equal(own, others, (size_t)count * sizeof *own);
    assert_true(own[0] != 0);
    steps.rehearsed(stand_in);
    dpcr_model_destroy(m);
}

// What steps tell the planner is of a processor that does vectors of 512 bits whole, with units for everything. Where
// they take two turns, or share units, what fills those takes longer; with AVX2 where 256 bits take two turns; at other
// levels nothing does. A sigmoid never waits less than a tanh.
static void steps_take_longer_on_other_cores(void **state) {
    (void)state;
    const dpcri_core core = dpcri_core_kind();
    static const dpcri_core cores[] = {DPCRI_CORE_TURNS, DPCRI_CORE_SHARED, DPCRI_CORE_HALVES};
    static const int64_t widths[] = {1, 2, 3, 4, 8, 32};
    for (size_t i = 0; i < sizeof widths / sizeof *widths * 3; i++) {
        const int64_t w = widths[i / 3];
        const dpcri_core other = cores[i % 3];
        const bool slower = dpcri_isa_level() == (other == DPCRI_CORE_HALVES ? DPCRI_AVX2 : DPCRI_AVX512);
        dpcr_steps whole = {.size = sizeof whole}, slow = {.size = sizeof slow}, sigmoid = {.size = sizeof sigmoid};
        dpcr_model_options options = {.architecture = DPCR_MLP, .layers = 3, .width = w, .activation = DPCR_ACT_TANH};
        dpcr_model *m = make(&options);
        dpcri_core_let_be(DPCRI_CORE_WHOLE);
        assert_int_equal(dpcr_model_steps(m, 1, &whole, NULL), DPCR_OK);
        dpcri_core_let_be(other);
        assert_int_equal(dpcr_model_steps(m, 1, &slow, NULL), DPCR_OK);
        dpcr_model_destroy(m);
        options.activation = DPCR_ACT_SIGMOID;
        m = make(&options);
        assert_int_equal(dpcr_model_steps(m, 1, &sigmoid, NULL), DPCR_OK);
        dpcr_model_destroy(m);
        options.activation = DPCR_ACT_RELU;
        m = make(&options);
        dpcr_steps relu = {.size = sizeof relu}, slow_relu = {.size = sizeof slow_relu};
        assert_int_equal(dpcr_model_steps(m, 1, &slow_relu, NULL), DPCR_OK);
        dpcri_core_let_be(DPCRI_CORE_WHOLE);
        assert_int_equal(dpcr_model_steps(m, 1, &relu, NULL), DPCR_OK);
        dpcr_model_destroy(m);
        assert_true(slower && other != DPCRI_CORE_TURNS && w > 1 ? slow_relu.latency > relu.latency
                                                                 : slow_relu.latency >= relu.latency);
        assert_true(whole.lane_seconds > 0 && whole.adjoint_lane_seconds > 0 && whole.latency > 0);
        assert_true(whole.weight_bytes == 4.0 * (double)(w * w + w));
        assert_true(sigmoid.latency >= slow.latency);
        if (slower) {
            assert_true(slow.lane_seconds > whole.lane_seconds);
            assert_true(slow.adjoint_lane_seconds > whole.adjoint_lane_seconds);
            assert_true(slow.latency >= whole.latency && (w > 8 || slow.latency > whole.latency));
            assert_true(!(whole.adjoint_window_seconds > 0) ||
                        slow.adjoint_window_seconds > whole.adjoint_window_seconds);
            assert_true(other == DPCRI_CORE_TURNS || slow.adjoint_latency > whole.adjoint_latency);
        } else {
            assert_true(slow.lane_seconds == whole.lane_seconds && slow.latency == whole.latency);
            assert_true(slow.adjoint_lane_seconds == whole.adjoint_lane_seconds);
        }
    }
    dpcri_core_let_be(core);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blank_models_have_zeros),
        cmocka_unit_test(the_golden_mlp_comes_out),
        cmocka_unit_test(advance_does_not_depend_on_the_split),
        cmocka_unit_test(rows_of_long_chains_are_those_alone),
        cmocka_unit_test(jacobians_agree_with_differences),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(wide_layers_work),
        cmocka_unit_test(parameters_have_pytorch_names_and_shapes),
        cmocka_unit_test(initialisation_does_not_depend_on_the_dtype),
        cmocka_unit_test(save_and_load_keep_everything),
        cmocka_unit_test(refused_memory_is_reported_and_nothing_leaks),
        cmocka_unit_test(refusals_name_what_is_wrong),
        cmocka_unit_test(planning_leaves_gradients_alone),
        cmocka_unit_test(steps_take_longer_on_other_cores),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
