// SPDX-License-Identifier: MIT
// Cells as chains: dpcr_steps_check over kinds, widths, dtypes and forms; the loop against plain C; overlap bit for bit
// the loop's; gradients against differences; refusals in words; and the length over which a PyTorch-like RNN forgets.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"
#include "noise.h"
#include "sampled.h"

enum { L = 23, B = 3 };

typedef struct fixture {
    dpcr_context *context;
    dpcr_cell *cell;
    dpcr_steps steps;
    dpcr_cell_options o;
    char *weight, *input, *input_gradient, *weight_gradient;
    int64_t weights, inputs;
    size_t element;
} fixture;

static double at(dpcr_dtype dtype, const void *data, int64_t i) {
    return dtype == DPCR_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}
static void fill(dpcr_dtype dtype, void *data, int64_t n, double size) { noise_fill(dtype, data, n, size); }

static fixture make(dpcr_dtype dtype, dpcr_cell_kind kind, int64_t w, dpcr_activation activation, double scale, int own,
                    int64_t length, int64_t batch) {
    fixture f = {.element = dpcr_dtype_size(dtype)};
    const bool dense = kind == DPCR_CELL_DENSE;
    const int64_t values = dense ? w * w : w, shape[3] = {length, w, w}, states[3] = {length, batch, w};
    f.weights = own ? length * values : values, f.inputs = length * batch * w;
    f.weight = calloc((size_t)f.weights + 1, f.element), f.input = calloc((size_t)f.inputs + 1, f.element);
    f.weight_gradient = calloc((size_t)f.weights + 1, f.element);
    f.input_gradient = calloc((size_t)f.inputs + 1, f.element);
    fill(dtype, f.weight, f.weights, dense ? 1.2 / (double)w : 0.9), fill(dtype, f.input, f.inputs, 1.5);
    assert_int_equal(dpcr_context_create(NULL, &f.context, NULL), DPCR_OK);
    const int ndim = dense ? 2 : 1;
    f.o = (dpcr_cell_options){.size = sizeof f.o,
                              .kind = kind,
                              .dtype = dtype,
                              .length = length,
                              .batch = batch,
                              .width = w,
                              .activation = activation,
                              .scale = scale,
                              .weight = dpcr_array_make(f.weight, dtype, ndim + own, own ? shape : shape + 1),
                              .input = dpcr_array_make(f.input, dtype, 3, states),
                              .input_gradient = dpcr_array_make(f.input_gradient, dtype, 3, states)};
    if (own) f.o.weight_gradient = dpcr_array_make(f.weight_gradient, dtype, ndim + 1, shape);
    dpcr_error error;
    if (dpcr_cell_create(f.context, &f.o, &f.cell, &error) != DPCR_OK) fail_msg("%s", error.text);
    f.steps.size = sizeof f.steps;
    assert_int_equal(dpcr_cell_steps(f.cell, &f.steps, &error), DPCR_OK);
    assert_true(f.steps.weight_bytes == (own ? (double)values * (double)f.element : 0));
    return f;
}

static void drop(fixture *f) {
    dpcr_cell_destroy(f->cell);
    dpcr_context_destroy(f->context);
    free(f->weight), free(f->input), free(f->input_gradient), free(f->weight_gradient);
}

static double value(dpcr_activation a, double u) {
    switch (a) {
        case DPCR_ACT_IDENTITY: return u;
        case DPCR_ACT_RELU: return u > 0 ? u : 0;
        case DPCR_ACT_SIGMOID: return 1 / (1 + exp(-u));
        case DPCR_ACT_GELU: return 0.5 * u * erfc(-u / sqrt(2));
        case DPCR_ACT_SILU: return u / (1 + exp(-u));
        default: return tanh(u);
    }
}

// The plain loop in double, [L][B][w] from z0 [B][w].
static void plain_loop(const fixture *f, const double *z0, double *z) {
    const int64_t w = f->o.width, batch = f->o.batch, values = f->o.kind == DPCR_CELL_DENSE ? w * w : w;
    for (int64_t l = 0; l < f->o.length; l++)
        for (int64_t b = 0; b < batch; b++)
            for (int64_t i = 0; i < w; i++) {
                const double *before = l ? z + ((l - 1) * batch + b) * w : z0 + b * w;
                const int64_t first = f->weights > values ? l * values : 0;
                double u = at(f->o.dtype, f->input, (l * batch + b) * w + i);
                if (f->o.kind == DPCR_CELL_DIAGONAL)
                    u += at(f->o.dtype, f->weight, first + i) * before[i];
                else
                    for (int64_t j = 0; j < w; j++) u += at(f->o.dtype, f->weight, first + i * w + j) * before[j];
                z[(l * batch + b) * w + i] =
                    f->o.scale != 0 ? before[i] + f->o.scale * value(f->o.activation, u) : value(f->o.activation, u);
            }
}

static void solve(const fixture *f, dpcr_method method, void *z0, void *z, dpcr_reason *reason) {
    const int64_t states[3] = {f->o.length, f->o.batch, f->o.width};
    const dpcr_array start = dpcr_array_make(z0, f->o.dtype, 2, states + 1);
    const dpcr_array out = dpcr_array_make(z, f->o.dtype, 3, states);
    const dpcr_solve_options options = {
        .size = sizeof options, .method = method, .backward = DPCR_SCHEME_SEQUENTIAL, .atol = -1, .rtol = -1};
    dpcr_solve_report report = {.size = sizeof report};
    dpcr_solve_plan *plan = NULL;
    dpcr_error error;
    if (dpcr_solve_plan_create(f->context, &f->steps, &options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    const size_t bytes = dpcr_solve_plan_workspace(plan), whole = (bytes + 63) / 64 * 64;
    void *workspace = whole ? aligned_alloc(64, whole) : NULL;
    if (dpcr_solve_execute(plan, &start, &out, NULL, workspace, bytes, &report, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    *reason = report.reason;
    free(workspace);
    dpcr_solve_plan_destroy(plan);
}

static const int64_t widths[] = {1, 2, 3, 4, 5, 8, 16, 33, 65};
enum { WIDTHS = sizeof widths / sizeof *widths };

static void check_form(dpcr_dtype dtype, dpcr_cell_kind kind, int64_t w, dpcr_activation a, double scale, int own) {
    fixture f = make(dtype, kind, w, a, scale, own, L, B);
    double z0[B * 65], start[B * 65], *expected = malloc(L * B * 65 * sizeof *expected),
                                      *z = malloc(L * B * 65 * sizeof *z);
    fill(dtype, z0, B * w, 1);
    for (int64_t i = 0; i < B * w; i++) start[i] = at(dtype, z0, i);
    const int64_t shape[2] = {B, w};
    const dpcr_array in = dpcr_array_make(z0, dtype, 2, shape);
    const double tolerance = dtype == DPCR_F64 ? 1e-8 : 2e-3;
    dpcr_error error;
    if (dpcr_steps_check(f.context, &f.steps, &in, tolerance, &error) != DPCR_OK)
        fail_msg("kind %d, width %d, activation %d, scale %g, own %d: %s", (int)kind, (int)w, (int)a, scale, own,
                 error.text);
    dpcr_steps older = f.steps;  // of a program that was built before there was an identity
    older.size = offsetof(dpcr_steps, identity);
    assert_int_equal(dpcr_steps_check(f.context, &older, &in, tolerance, &error), DPCR_OK);
    older.size -= sizeof older.launch;
    assert_int_equal(dpcr_steps_check(f.context, &older, &in, tolerance, &error), DPCR_ERROR_ARGUMENT);
    plain_loop(&f, start, expected);
    dpcr_reason reason;
    solve(&f, DPCR_METHOD_SEQUENTIAL, z0, z, &reason);
    for (int64_t i = 0; i < L * B * w; i++)
        if (!(fabs(at(dtype, z, i) - expected[i]) <= (dtype == DPCR_F64 ? 1e-12 : 2e-5) * fmax(1, fabs(expected[i]))))
            fail_msg("kind %d, width %d, activation %d: %.9g at %d, wanted %.9g", (int)kind, (int)w, (int)a,
                     at(dtype, z, i), (int)i, expected[i]);
    free(expected), free(z);
    drop(&f);
}

static void steps_are_as_documented(void **state) {
    (void)state;
    int64_t run = 0;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int kind = DPCR_CELL_DENSE; kind <= DPCR_CELL_DIAGONAL; kind++)
            for (int i = 0; i < WIDTHS; i++)
                for (int a = DPCR_ACT_IDENTITY; a < DPCR_ACT_COUNT; a++)
                    for (int form = 0; form < 4; form++) {
                        if (!sampled(run++)) continue;
                        check_form((dpcr_dtype)dtype, (dpcr_cell_kind)kind, widths[i], (dpcr_activation)a,
                                   form & 1 ? 0.3 : 0, form / 2);
                    }
}

// A chain that forgets: chunks side by side have the loop's bits, whatever the batch.
static void overlap_is_the_loop(void **state) {
    (void)state;
    enum { LONG = 6000 };
    for (int i = 0; i < 6; i++)
        for (int form = 0; form < 4; form++) {
            const int64_t w = widths[i], batch = form & 2 ? 2 : 1;
            const dpcr_cell_kind kind = form & 1 || w > 4 ? DPCR_CELL_DIAGONAL : DPCR_CELL_DENSE;
            fixture f = make(DPCR_F32, kind, w, DPCR_ACT_DEFAULT, 0, 0, LONG, batch);
            float z0[64] = {0}, *a = calloc((size_t)(LONG * batch * w), sizeof *a);
            float *b = calloc((size_t)(LONG * batch * w), sizeof *b);
            dpcr_reason reason;
            solve(&f, DPCR_METHOD_SEQUENTIAL, z0, a, &reason);
            solve(&f, DPCR_METHOD_OVERLAP, z0, b, &reason);
            assert_true(reason == DPCR_REASON_EXACT || reason == DPCR_REASON_FALLBACK);
            assert_memory_equal(a, b, (size_t)(LONG * batch * w) * sizeof *a);
            free(a), free(b);
            drop(&f);
        }
}

// Where denormals are flushed, states that differ by one look equal to a subtraction: the loop's bits are still asked
// for.
static void flushed_differences_are_differences(void **state) {
    (void)state;
    const int before = dpcr_flush_denormals(1);
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int i = 0; i < WIDTHS; i++)
            for (int method = DPCR_METHOD_SEQUENTIAL + 1; method < DPCR_METHOD_COUNT; method++) {
                const int64_t w = widths[i];
                if (method == DPCR_METHOD_BLOCK && w % 2 != 0) continue;
                fixture f = make((dpcr_dtype)dtype, DPCR_CELL_DENSE, w, DPCR_ACT_DEFAULT, 0, 0, L, B);
                double z0[B * 65], loop[L * B * 65], z[L * B * 65];
                const double tiny = dtype == DPCR_F64 ? 1e-307 : 1e-37;
                fill(f.o.dtype, f.input, f.inputs, tiny), fill(f.o.dtype, z0, B * w, tiny);
                dpcr_reason reason;
                solve(&f, DPCR_METHOD_SEQUENTIAL, z0, loop, &reason);
                solve(&f, (dpcr_method)method, z0, z, &reason);
                for (int64_t k = 0; k < L * B * w; k++)
                    if (at(f.o.dtype, z, k) != at(f.o.dtype, loop, k))
                        fail_msg("width %d, %s: %g at %d, the loop has %g", (int)w,
                                 dpcr_method_name((dpcr_method)method), at(f.o.dtype, z, k), (int)k,
                                 at(f.o.dtype, loop, k));
                drop(&f);
            }
    dpcr_flush_denormals(before);
}

// ---- gradients ----

// sum of c . z over all steps, by the callback
static double loss_of(const fixture *f, const double *z0, const double *c) {
    const int64_t w = f->o.width, n = f->o.length * f->o.batch * w;
    const int64_t in_shape[3] = {1, f->o.batch, w}, out_shape[4] = {1, f->o.length, f->o.batch, w};
    double *z = malloc((size_t)n * sizeof *z), sum = 0;
    const dpcr_array in = dpcr_array_make((void *)(uintptr_t)z0, DPCR_F64, 3, in_shape);
    const dpcr_array out = dpcr_array_make(z, DPCR_F64, 4, out_shape);
    const dpcr_span span = {.size = sizeof span, .lanes = 1, .stride = 1, .steps = f->o.length, .rows = f->o.batch};
    assert_int_equal(f->steps.advance(f->steps.user, &span, &in, &out, NULL, NULL), 0);
    for (int64_t i = 0; i < n; i++) sum += c[i] * z[i];
    free(z);
    return sum;
}

static void check_difference(const fixture *f, const double *z0, const double *c, double *theta, double gradient) {
    const double keep = *theta, h = 1e-5;
    *theta = keep + h;
    const double up = loss_of(f, z0, c);
    *theta = keep - h;
    const double down = loss_of(f, z0, c);
    *theta = keep;
    const double wanted = (up - down) / (2 * h);
    if (!(fabs(wanted - gradient) <= 1e-6 * fmax(1, fabs(wanted))))
        fail_msg("gradient %.9g, wanted %.9g", gradient, wanted);
}

static void check_gradients(dpcr_cell_kind kind, int64_t w, double scale, int own, int with_tape) {
    fixture f = make(DPCR_F64, kind, w, DPCR_ACT_TANH, scale, own, L, B);
    const int64_t n = L * B * w, states[3] = {L, B, w}, one[3] = {1, B, w};
    double z0[B * 65], *c = malloc((size_t)n * 8), *z = malloc((size_t)n * 8), *tape = malloc((size_t)n * 8);
    double *lambda = malloc((size_t)n * 8), *shared = calloc((size_t)(w * w), 8), dz0[B * 65], zero[B * 65] = {0};
    fill(DPCR_F64, z0, B * w, 1), fill(DPCR_F64, c, n, 1);
    const int64_t steps_shape[4] = {1, L, B, w};
    const dpcr_array in = dpcr_array_make(z0, DPCR_F64, 3, one), out = dpcr_array_make(z, DPCR_F64, 4, steps_shape);
    const dpcr_array slopes = dpcr_array_make(tape, DPCR_F64, 4, steps_shape);
    const dpcr_span down = {.size = sizeof down, .lanes = 1, .stride = 1, .steps = L, .rows = B};
    assert_int_equal(f.steps.advance(f.steps.user, &down, &in, &out, NULL, &slopes), 0);
    double *before = malloc((size_t)n * 8);
    memcpy(before, z0, (size_t)(B * w) * 8), memcpy(before + B * w, z, (size_t)(n - B * w) * 8);
    const dpcr_array ins = dpcr_array_make(before, DPCR_F64, 4, steps_shape);
    const dpcr_array direct = dpcr_array_make(c, DPCR_F64, 4, steps_shape);
    const dpcr_array kept = dpcr_array_make(lambda, DPCR_F64, 4, steps_shape);
    const dpcr_array last = dpcr_array_make(zero, DPCR_F64, 3, one), first = dpcr_array_make(dz0, DPCR_F64, 3, one);
    assert_int_equal(
        f.steps.adjoint(f.steps.user, &down, &ins, with_tape ? &slopes : NULL, &direct, &last, &kept, &first), 0);
    const dpcr_span across = {.size = sizeof across, .lanes = L, .stride = 1, .steps = 1, .rows = B};
    const dpcr_array in_lanes = dpcr_array_make(before, DPCR_F64, 3, states);
    const dpcr_array tape_lanes = dpcr_array_make(tape, DPCR_F64, 3, states);
    const dpcr_array adjoints = dpcr_array_make(lambda, DPCR_F64, 3, states);
    assert_int_equal(f.steps.gradient(f.steps.user, &across, &in_lanes, with_tape ? &tape_lanes : NULL, &adjoints), 0);
    for (int64_t i = 0; i < B * w; i++) check_difference(&f, z0, c, &z0[i], dz0[i]);
    for (int64_t i = 0; i < f.inputs; i += 1 + f.inputs / 40)
        check_difference(&f, z0, c, (double *)(void *)f.input + i, ((double *)(void *)f.input_gradient)[i]);
    double *dw = own ? (double *)(void *)f.weight_gradient : shared;
    if (!own) {
        const dpcr_array start = dpcr_array_make(z0, DPCR_F64, 2, states + 1),
                         all = dpcr_array_make(z, DPCR_F64, 3, states);
        const int64_t square[2] = {w, w};
        const dpcr_array sum = dpcr_array_make(shared, DPCR_F64, kind == DPCR_CELL_DENSE ? 2 : 1, square);
        assert_int_equal(dpcr_cell_weight_gradient(f.cell, &start, &all, &sum, NULL), DPCR_OK);
    }
    for (int64_t i = 0; i < f.weights; i += 1 + f.weights / 40)
        check_difference(&f, z0, c, (double *)(void *)f.weight + i, dw[i]);
    free(c), free(z), free(tape), free(lambda), free(shared), free(before);
    drop(&f);
}

static void gradients_agree_with_differences(void **state) {
    (void)state;
    for (int kind = DPCR_CELL_DENSE; kind <= DPCR_CELL_DIAGONAL; kind++)
        for (int i = 0; i < WIDTHS; i++)
            for (int form = 0; form < 8; form++) {
                if (TESTS_SANITIZED && (form + 2 * i + kind) % 3 != 0) continue;  // meets both values of all three
                check_gradients((dpcr_cell_kind)kind, widths[i], form & 1 ? 0.3 : 0, form >> 1 & 1, form >> 2);
            }
}

// ---- refusals ----

static void refused(fixture *f, const dpcr_cell_options *o, dpcr_status status, const char *word) {
    dpcr_cell *cell = (dpcr_cell *)(uintptr_t)1;
    dpcr_error error = {0};
    assert_int_equal(dpcr_cell_create(f->context, o, &cell, &error), status);
    assert_null(cell);
    if (!strstr(error.text, word)) fail_msg("\"%s\" does not name \"%s\"", error.text, word);
}

static void misuse_is_refused_in_words(void **state) {
    (void)state;
    fixture f = make(DPCR_F32, DPCR_CELL_DENSE, 2, DPCR_ACT_DEFAULT, 0, 0, L, B);
    dpcr_error error;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_cell_options o = f.o;
    assert_int_equal(dpcr_cell_get_options(f.cell)->activation, DPCR_ACT_TANH);
    assert_null(dpcr_cell_get_options(NULL));
    assert_int_equal(dpcr_cell_create(f.context, &o, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_cell_steps(NULL, &steps, &error), DPCR_ERROR_ARGUMENT);
    refused(&f, NULL, DPCR_ERROR_ARGUMENT, "options");
    o.size = 8, refused(&f, &o, DPCR_ERROR_ARGUMENT, "size"), o = f.o;
    o.kind = (dpcr_cell_kind)9, refused(&f, &o, DPCR_ERROR_ARGUMENT, "kind"), o = f.o;
    o.dtype = DPCR_U32, refused(&f, &o, DPCR_ERROR_UNSUPPORTED, "uint32"), o = f.o;
    o.width = 0, refused(&f, &o, DPCR_ERROR_ARGUMENT, "width"), o = f.o;
    o.width = 5000, refused(&f, &o, DPCR_ERROR_ARGUMENT, "width"), o = f.o;
    o.length = -1, refused(&f, &o, DPCR_ERROR_ARGUMENT, "length"), o = f.o;
    o.activation = DPCR_ACT_COUNT, refused(&f, &o, DPCR_ERROR_ARGUMENT, "activation"), o = f.o;
    o.scale = INFINITY, refused(&f, &o, DPCR_ERROR_ARGUMENT, "scale"), o = f.o;
    o.weight.data = NULL, refused(&f, &o, DPCR_ERROR_ARGUMENT, "weight"), o = f.o;
    o.weight.shape[0] = 3, refused(&f, &o, DPCR_ERROR_ARGUMENT, "weight"), o = f.o;
    o.weight.strides[0] = 3, refused(&f, &o, DPCR_ERROR_ARGUMENT, "rows"), o = f.o;
    o.input.shape[1] = B + 1, refused(&f, &o, DPCR_ERROR_ARGUMENT, "input"), o = f.o;
    o.input_gradient.dtype = DPCR_F64, refused(&f, &o, DPCR_ERROR_ARGUMENT, "input_gradient"), o = f.o;
    o.input_gradient.strides[0] = 1, refused(&f, &o, DPCR_ERROR_ARGUMENT, "input_gradient is written"), o = f.o;
    float own[L * 4] = {0};
    const int64_t shape[3] = {L, 2, 2};
    o.weight_gradient = dpcr_array_make(own, DPCR_F32, 3, shape);
    refused(&f, &o, DPCR_ERROR_ARGUMENT, "weight_gradient"), o = f.o;
    // an older caller's options, without the gradients
    o.size = offsetof(dpcr_cell_options, input_gradient);
    dpcr_cell *cell = NULL;
    assert_int_equal(dpcr_cell_create(f.context, &o, &cell, &error), DPCR_OK);
    assert_int_equal(dpcr_cell_steps(cell, &steps, &error), DPCR_OK);
    assert_null(steps.gradient);
    // older steps, after which the caller keeps something else
    memset(&steps, 0x55, sizeof steps);
    steps.size = offsetof(dpcr_steps, identity);
    dpcr_steps kept = steps;
    assert_int_equal(dpcr_cell_steps(cell, &steps, &error), DPCR_OK);
    assert_int_equal(steps.size, kept.size);
    assert_int_equal(steps.length, L);
    assert_memory_equal((char *)&steps + kept.size, (char *)&kept + kept.size, sizeof steps - kept.size);
    steps.size--;
    assert_int_equal(dpcr_cell_steps(cell, &steps, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "size"));
    float z0[B * 2] = {0}, z[L * B * 2] = {0}, w[4] = {0};
    const int64_t states[3] = {L, B, 2}, square[2] = {2, 2};
    const dpcr_array start = dpcr_array_make(z0, DPCR_F32, 2, states + 1),
                     all = dpcr_array_make(z, DPCR_F32, 3, states);
    dpcr_array sum = dpcr_array_make(w, DPCR_F32, 2, square);
    assert_int_equal(dpcr_cell_weight_gradient(cell, &start, &all, &sum, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_cell_weight_gradient(f.cell, &start, &start, &sum, &error), DPCR_ERROR_ARGUMENT);
    sum.strides[0] = 3;
    assert_int_equal(dpcr_cell_weight_gradient(f.cell, &start, &all, &sum, &error), DPCR_ERROR_ARGUMENT);
    dpcr_cell_destroy(cell);
    dpcr_cell_destroy(NULL);
    drop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_as_documented),
        cmocka_unit_test(overlap_is_the_loop),
        cmocka_unit_test(flushed_differences_are_differences),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(misuse_is_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
