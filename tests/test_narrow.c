// SPDX-License-Identifier: MIT
// The narrow kernels of every level: the loop against a plain one in double, lanes against the loop bit for bit however
// a span is cut and wherever its arrays lie, Jacobians against the slopes, NaN that stays in its lane, and nothing read
// or written outside the arrays.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kern/narrow.h"

enum { LONGEST = 100, MOST_LANES = 100, W = DPCRI_NARROW_WIDTH, WIDEST = 17 };

enum { WEIGHTS, BIASES, IN, STATES, TAPE, USES, MOST_BYTES = 1 << 22 };
#include "guarded.h"
#include "noise.h"
#include "sampled.h"

static double at(const dpcri_narrow *n, const void *data, int64_t i) {
    return n->dtype == DPCR_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static void put(const dpcri_narrow *n, void *data, int64_t i, double x) {
    if (n->dtype == DPCR_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = (float)x;
}

static double value(int activation, double u) {
    switch (activation) {
        case DPCRI_ACT_IDENTITY: return u;
        case DPCRI_ACT_RELU: return u > 0 ? u : 0;
        case DPCRI_ACT_TANH: return tanh(u);
        default: return 1 / (1 + exp(-u));
    }
}

static double slope(int activation, double u) {
    switch (activation) {
        case DPCRI_ACT_IDENTITY: return 1;
        case DPCRI_ACT_RELU: return u > 0 ? 1 : 0;
        case DPCRI_ACT_TANH: return 1 - tanh(u) * tanh(u);
        default: return value(activation, u) * value(activation, -u);
    }
}

static double weight_at(const dpcri_narrow *n, int64_t step, int64_t i, int64_t j) {
    const int64_t w = n->width;
    if (n->diagonal && w > 1) return i == j ? at(n, n->weight, step * n->weight_step + i) : 0;
    return at(n, n->weight, step * n->weight_step + (n->weight_in_out ? j * w + i : i * w + j));
}

// One step in double; u to `u`.
static void plain_step(const dpcri_narrow *n, int64_t step, int64_t row, const double *z, double *next, double *u) {
    for (int64_t i = 0; i < n->width; i++) {
        u[i] = at(n, n->bias, step * n->bias_step + row * n->bias_row + i);
        for (int64_t j = 0; j < n->width; j++) u[i] += weight_at(n, step, i, j) * z[j];
    }
    for (int64_t i = 0; i < n->width; i++)
        next[i] = (n->residual ? z[i] + n->scale * value(n->activation, u[i]) : value(n->activation, u[i]));
}

// How the chain's numbers lie: weights shared, a step's own and apart, a record with the bias, or apart with gaps.
enum { SHARED, OWN, RECORD, GAPS, LAYOUTS };

typedef struct chain {
    dpcri_narrow n;
    char *weights, *biases;
    size_t element;
} chain;

static void fill(const dpcri_narrow *n, void *data, int64_t count, double size) {
    noise_fill(n->dtype, data, count, size);
}

static chain chain_make(dpcr_dtype dtype, int64_t w, int activation, int residual, int layout, int diagonal,
                        int64_t steps, int64_t rows) {
    chain c = {.element = dtype == DPCR_F64 ? 8 : 4};
    const int64_t values = diagonal ? w : w * w;
    c.n = (dpcri_narrow){.dtype = dtype,
                         .width = w,
                         .activation = activation,
                         .residual = residual,
                         .scale = residual ? 0.25 : 1,
                         .diagonal = diagonal,
                         .weight_in_out = layout == RECORD || (layout == SHARED && w == 2)};
    c.n.weight_step = layout == SHARED ? 0 : layout == OWN ? values : layout == RECORD ? values + w : values + 3;
    c.n.bias_step = layout == RECORD ? values + w : rows * w + (layout == GAPS ? 1 : 0);
    c.n.bias_row = layout == RECORD ? 0 : rows > 1 ? w : 0;
    const int64_t weights = layout == SHARED   ? values
                            : layout == RECORD ? steps * (values + w)
                                               : (steps - 1) * c.n.weight_step + values;
    const int64_t biases = (steps - 1) * c.n.bias_step + rows * w;
    c.weights = guarded(WEIGHTS, (size_t)weights * c.element, false);
    c.biases = guarded(BIASES, (size_t)biases * c.element, false);
    fill(&c.n, c.weights, weights, 0.9 / (double)w);
    fill(&c.n, c.biases, biases, 1.5);
    c.n.weight = c.weights;
    c.n.bias = layout == RECORD ? c.weights + (size_t)values * c.element : c.biases;
    assert_true(dpcri_narrow_serves(&c.n));
    return c;
}

// The loop, sequence by sequence, from in [rows][w]; states and slopes [steps][rows][w].
static void run_loop(const dpcri_narrow_kernels *k, const chain *c, int64_t steps, int64_t rows, const void *in,
                     void *states, void *slopes) {
    const int64_t w = c->n.width;
    for (int64_t r = 0; r < rows; r++) {
        dpcri_narrow n = c->n;
        n.bias = (const char *)n.bias + (size_t)(r * n.bias_row) * c->element;
        k->advance(&n, &(dpcri_narrow_run){.lanes = 1,
                                           .stride = 1,
                                           .steps = steps,
                                           .rows = 1,
                                           .in = (const char *)in + (size_t)(r * w) * c->element,
                                           .in_lane = w,
                                           .in_row = w,
                                           .states = (char *)states + (size_t)(r * w) * c->element,
                                           .states_step = rows * w,
                                           .slopes = slopes ? (char *)slopes + (size_t)(r * w) * c->element : NULL,
                                           .slopes_step = rows * w});
    }
}

// ---- the loop against double ----

static void check_loop(const dpcri_narrow_kernels *k, dpcr_dtype dtype, int64_t w, int activation, int residual,
                       int layout, int diagonal) {
    const int64_t steps = LONGEST;
    chain c = chain_make(dtype, w, activation, residual, layout, diagonal, steps, 1);
    double states[LONGEST * W], slopes[LONGEST * W], z[W], next[W], u[W], start[W];
    fill(&c.n, start, w, 1);
    run_loop(k, &c, steps, 1, start, states, slopes);
    const double tolerance = dtype == DPCR_F64 ? 2e-14 : 2e-6;
    for (int64_t l = 0; l < steps; l++) {
        for (int64_t i = 0; i < w; i++) z[i] = l ? at(&c.n, states, (l - 1) * w + i) : at(&c.n, start, i);
        plain_step(&c.n, l, 0, z, next, u);
        for (int64_t i = 0; i < w; i++) {
            const double got = at(&c.n, states, l * w + i), got_slope = at(&c.n, slopes, l * w + i);
            if (!(fabs(got - next[i]) <= tolerance * fmax(1, fabs(next[i]))))
                fail_msg("loop: width %d, activation %d, layout %d, step %d: %.9g, wanted %.9g", (int)w, activation,
                         layout, (int)l, got, next[i]);
            if (fabs(u[i]) > 1e-5 && !(fabs(got_slope - slope(activation, u[i])) <= 2 * tolerance))
                fail_msg("loop: width %d, activation %d, step %d: slope %.9g, wanted %.9g", (int)w, activation, (int)l,
                         got_slope, slope(activation, u[i]));
        }
    }
}

// ---- lanes against the loop ----

static void same(const chain *c, const char *what, const void *got, const void *wanted, int64_t lane, int64_t step,
                 int64_t lanes, int64_t steps) {
    if (memcmp(got, wanted, (size_t)c->n.width * c->element) != 0)
        fail_msg(
            "%s: width %d, activation %d, residual %d, diagonal %d, weight step %d, bias step %d, %d lanes of %d "
            "steps: "
            "lane %d, step %d: %.9g, the loop has %.9g",
            what, (int)c->n.width, c->n.activation, c->n.residual, c->n.diagonal, (int)c->n.weight_step,
            (int)c->n.bias_step, (int)lanes, (int)steps, (int)lane, (int)step, at(&c->n, got, 0), at(&c->n, wanted, 0));
}

static void check_untouched(const char *out, const char *tape, int64_t first, int64_t end, size_t element) {
    for (size_t byte = (size_t)first * element; byte < (size_t)end * element; byte++)
        if (out[byte] != 7 || tape[byte] != 7) fail_msg("written between the steps or rows");
}

// lanes of `steps` steps each, `stride` apart, and rows of a batch; gap: between steps, and with `apart` between the
// rows too; keep: 1 states, 2 slopes, 4 last.
static void check_lanes(const dpcri_narrow_kernels *k, const chain *c, int64_t lanes, int64_t stride, int64_t steps,
                        int64_t rows, int64_t gap, bool apart, int keep, const void *start, const void *states,
                        const void *slopes) {
    const int64_t w = c->n.width, row = apart ? w + gap : w, step = rows * row + gap, lane = steps * step + gap;
    const size_t e = c->element, bytes = (size_t)(lanes * rows * w) * e;
    char *in = guarded(IN, bytes, false), *out = guarded(STATES, (size_t)(lanes * lane) * e, false);
    char *tape = guarded(TAPE, (size_t)(lanes * lane) * e, false);
    memset(out, 7, (size_t)(lanes * lane) * e), memset(tape, 7, (size_t)(lanes * lane) * e);
    const size_t state = (size_t)(rows * w) * e;
    for (int64_t i = 0; i < lanes; i++)
        memcpy(in + (size_t)i * state,
               i * stride != 0 ? (const char *)states + (size_t)(i * stride - 1) * state : (const char *)start, state);
    k->advance(&c->n, &(dpcri_narrow_run){.lanes = lanes,
                                          .stride = stride,
                                          .steps = steps,
                                          .rows = rows,
                                          .in = in,
                                          .in_lane = rows * w,
                                          .in_row = w,
                                          .states = keep & 1 ? out : NULL,
                                          .states_lane = lane,
                                          .states_step = step,
                                          .states_row = row,
                                          .slopes = keep & 2 ? tape : NULL,
                                          .slopes_lane = lane,
                                          .slopes_step = step,
                                          .slopes_row = row,
                                          .last = keep & 4 ? in : NULL,
                                          .last_lane = rows * w,
                                          .last_row = w});
    for (int64_t i = 0; i < lanes; i++) {
        const size_t first = (size_t)(i * lane) * e, of = (size_t)(i * stride) * state, all = (size_t)steps * state;
        const bool whole = step == rows * w && (!(keep & 1) || !memcmp(out + first, (const char *)states + of, all)) &&
                           (!(keep & 2) || !memcmp(tape + first, (const char *)slopes + of, all));
        for (int64_t l = 0; !whole && l < steps; l++)
            for (int64_t r = 0; r < rows; r++) {
                const size_t here = first + (size_t)(l * step + r * row) * e;
                const size_t there = of + (size_t)l * state + (size_t)(r * w) * e;
                if (keep & 1) same(c, "states", out + here, (const char *)states + there, i, l, lanes, steps);
                if (keep & 2) same(c, "slopes", tape + here, (const char *)slopes + there, i, l, lanes, steps);
            }
        for (int64_t r = 0; r < rows && (keep & 4) && steps > 0; r++)
            same(c, "last", in + (size_t)i * state + (size_t)(r * w) * e,
                 (const char *)states + (size_t)(i * stride + steps - 1) * state + (size_t)(r * w) * e, i, steps, lanes,
                 steps);
    }
    // Nothing but the states' own places was written.
    for (int64_t i = 0; gap > 0 && i < lanes; i++) {
        const int64_t end = (i + 1) * lane;
        for (int64_t l = 0; l < steps; l++) {
            const int64_t here = i * lane + l * step;
            for (int64_t r = 0; r < rows; r++) check_untouched(out, tape, here + r * row + w, here + (r + 1) * row, e);
            check_untouched(out, tape, here + rows * row, here + step, e);
        }
        check_untouched(out, tape, i * lane + steps * step, end, e);
    }
}

static void check_splits(const dpcri_narrow_kernels *k, dpcr_dtype dtype, int64_t w, int activation, int residual,
                         int layout, int diagonal) {
    enum { STEPS = 700 };
    static int64_t run;
    const size_t e = dtype == DPCR_F64 ? 8 : 4;
    for (int64_t rows = 1; rows <= 3; rows += 2) {
        chain c = chain_make(dtype, w, activation, residual, layout, diagonal, STEPS, rows);
        char *states = malloc((size_t)(STEPS * rows * w) * e), *slopes = malloc((size_t)(STEPS * rows * w) * e);
        double start[3 * WIDEST];
        assert_non_null(states);
        assert_non_null(slopes);
        fill(&c.n, start, rows * w, 1);
        run_loop(k, &c, STEPS, rows, start, states, slopes);
        static const int64_t counts[] = {1, 2, 3, 7, 16, 33, 64, 81, 100}, lengths[] = {0, 1, 2, 5, 16, 17, 32, 48, 70};
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
                const int64_t most = (STEPS - lengths[j]) / counts[i];
                if (most < 1 || !sampled(run++)) continue;
                const int keep = (int)((i + 2 * j + (size_t)w) % 7) + 1;
                check_lanes(k, &c, counts[i], most, lengths[j], rows, j % 3 == 1, false, keep, start, states, slopes);
                check_lanes(k, &c, counts[i], 1, lengths[j], rows, 0, false, 5, start, states, slopes);
            }
        free(states), free(slopes);
    }
}

// Batches: their own kernels, with teams that are full and ones that are not.
static void check_batches(const dpcri_narrow_kernels *k, dpcr_dtype dtype, int64_t w, int activation, int residual,
                          int layout, int diagonal) {
    enum { STEPS = 60, MOST_ROWS = 70 };
    const size_t e = dtype == DPCR_F64 ? 8 : 4;
    static const int64_t batches[] = {4, 5, 16, 19, 70}, counts[] = {1, 2, 3, 6}, lengths[] = {0, 1, 9};
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        const int64_t rows = batches[b];
        chain c = chain_make(dtype, w, activation, residual, layout, diagonal, STEPS, rows);
        char *states = malloc((size_t)(STEPS * rows * w) * e), *slopes = malloc((size_t)(STEPS * rows * w) * e);
        double start[MOST_ROWS * W];
        assert_non_null(states);
        assert_non_null(slopes);
        fill(&c.n, start, rows * w, 1);
        run_loop(k, &c, STEPS, rows, start, states, slopes);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
                const int gap = (int)(i + j + b + (size_t)w + (size_t)activation) % 3;  // all three meet all the others
                check_lanes(k, &c, counts[i], 8, lengths[j], rows, gap, gap == 2, (int)(i + j) % 7 + 1, start, states,
                            slopes);
            }
        free(states), free(slopes);
    }
}

static int64_t combinations(void (*check)(const dpcri_narrow_kernels *, dpcr_dtype, int64_t, int, int, int, int)) {
    int64_t run = 0;
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcri_narrow_kernels *k = dpcri_narrow_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            for (int64_t w = 1; k && w <= W; w++)
                for (int a = DPCRI_ACT_IDENTITY; a <= DPCRI_ACT_SIGMOID; a++)
                    for (int form = 0; form < 2 * LAYOUTS * 2; form++, run++)
                        if (sampled(run)) check(k, (dpcr_dtype)dtype, w, a, form & 1, form / 4, form / 2 & 1);
        }
    return run;
}

static void loop_is_the_chain(void **state) {
    (void)state;
    assert_true(combinations(check_loop) >= 2 * W * 4 * 4 * LAYOUTS);
}

static void lanes_are_the_loop(void **state) {
    (void)state;
    combinations(check_splits);
}

// Vectors of components, and two lanes a vector where they fill half of it: a lane alone is never one of two.
static void wide_lanes_are_the_loop(void **state) {
    (void)state;
    static const int64_t widths[] = {5, 6, 7, 8, 9, 16, 17};
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcri_narrow_kernels *k = dpcri_narrow_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            for (size_t i = 0; k && i < sizeof widths / sizeof *widths; i++)
                for (int a = DPCRI_ACT_IDENTITY; a <= DPCRI_ACT_SIGMOID; a++)
                    for (int form = 0; form < 2 * LAYOUTS; form++)
                        if ((a == DPCRI_ACT_TANH && form == 0) || ((int)i + a + 2 * form) % 7 == 0)
                            check_splits(k, (dpcr_dtype)dtype, widths[i], a, form & 1, form / 2, 1);
        }
}

static void batches_give_the_loops_bits(void **state) {
    (void)state;
    combinations(check_batches);
}

// ---- activations ----

static void every_kernel(void (*check)(const dpcri_narrow_kernels *, dpcr_dtype)) {
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcri_narrow_kernels *k = dpcri_narrow_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            if (k) check(k, (dpcr_dtype)dtype);
        }
}

// act(b) for b of one step a lane (W = 0), and act(b_0) by the loop.
static void activation_bounds(const dpcri_narrow_kernels *k, dpcr_dtype dtype) {
    enum { POINTS = 20000 };
    static double x[POINTS], y[POINTS];
    const double zero[2] = {0};
    dpcri_narrow n = {
        .dtype = dtype, .width = 1, .activation = DPCRI_ACT_TANH, .weight = zero, .bias = x, .bias_step = 1};
    for (int64_t i = 0; i < POINTS; i++) put(&n, x, i, i % 2 ? noise(12) : pow(10, noise(5)) * (i % 4 ? 1 : -1) * 1e-4);
    dpcri_narrow_run run = {.lanes = POINTS, .stride = 1, .steps = 1, .rows = 1, .in = zero, .last = y, .last_lane = 1};
    k->advance(&n, &run);
    double absolute = 0, relative = 0, largest = 0;
    for (int64_t i = 0; i < POINTS; i++) {
        const double u = at(&n, x, i), wanted = tanh(u), error = fabs(at(&n, y, i) - wanted);
        absolute = fmax(absolute, error), relative = fmax(relative, error / fabs(wanted));
        largest = fmax(largest, fabs(at(&n, y, i)));
    }
    // float: 5.2e-7 and 5.6e-7 in the comment of narrow_activations.inc, without fma a little more
    if (!(absolute <= (dtype == DPCR_F64 ? 4e-16 : 6e-7)) || !(relative <= (dtype == DPCR_F64 ? 7e-16 : 6.5e-7)))
        fail_msg("tanh: %.3g absolute, %.3g relative", absolute, relative);
    assert_true(largest <= 1);
}

// Beside its own size: y and d, of one place, against sigmoid(u) and its slope. From 2 to 6 last places; what is
// denormal in the result within one of the least.
static void sigmoid_is(dpcr_dtype dtype, const char *who, double u, double y, double d) {
    const double fall = exp(-fabs(u)), r = 1 / (1 + fall), wanted = u >= 0 ? r : fall * r, slope = fall * r * r;
    const double eps = dtype == DPCR_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    const double least = dtype == DPCR_F64 ? DBL_TRUE_MIN : (double)FLT_TRUE_MIN;
    if (!(fabs(y - wanted) <= 3 * eps * wanted + 1.01 * least) || !(fabs(d - slope) <= 4 * eps * slope + 1.01 * least))
        fail_msg("%s: sigmoid(%.9g) = %.9g and %.9g, wanted %.9g and %.9g", who, u, y, d, wanted, slope);
}

static void check_sigmoid(const dpcri_narrow_kernels *k, dpcr_dtype dtype, int64_t w) {
    enum { LANES = 800 };
    static double x[LANES * WIDEST], y[LANES * WIDEST], d[LANES * WIDEST], a[LANES * W * W];
    const double most = dtype == DPCR_F64 ? 760 : 112;
    double weight[W * W + WIDEST] = {0}, zero[WIDEST] = {0};
    dpcri_narrow n = {.dtype = dtype,
                      .width = w,
                      .activation = DPCRI_ACT_SIGMOID,
                      .diagonal = w > W,
                      .weight = weight,
                      .bias = x,
                      .bias_step = w};
    for (int64_t i = 0; i < w; i++) put(&n, weight, w > W ? i : i * w + i, 1);
    for (int64_t i = 0; i < LANES * w; i++) put(&n, x, i, i % 2 ? noise(most) : i % 4 ? noise(20) : noise(1e-3));
    dpcri_narrow_run run = {.lanes = LANES,
                            .stride = 1,
                            .steps = 1,
                            .rows = 1,
                            .in = zero,
                            .states = y,
                            .states_lane = w,
                            .slopes = d,
                            .slopes_lane = w};
    k->advance(&n, &run);
    for (int64_t i = 0; i < LANES * w; i++) sigmoid_is(dtype, "lanes", at(&n, x, i), at(&n, y, i), at(&n, d, i));
    run.lanes = 1;
    for (run.first = 0; run.first < LANES; run.first++) {
        k->advance(&n, &run);
        for (int64_t i = 0; i < w; i++)
            sigmoid_is(dtype, "loop", at(&n, x, run.first * w + i), at(&n, y, i), at(&n, d, i));
    }
    if (w > W) return;
    dpcri_narrow_point point = {
        .lanes = LANES, .stride = 1, .rows = 1, .in = zero, .f = y, .f_lane = w, .a = a, .a_lane = w * w};
    k->linearise(&n, &point);
    for (int64_t i = 0; i < LANES * w; i++)
        sigmoid_is(dtype, "linearise", at(&n, x, i), at(&n, y, i), at(&n, a, i / w * w * w + i % w * (w + 1)));
}

static void sigmoid_bounds(const dpcri_narrow_kernels *k, dpcr_dtype dtype) {
    for (int64_t w = 1; w <= W; w++) check_sigmoid(k, dtype, w);
    check_sigmoid(k, dtype, WIDEST);
}

static void sigmoid_is_accurate_beside_its_size(void **state) {
    (void)state;
    every_kernel(sigmoid_bounds);
}

static void limits(const dpcri_narrow_kernels *k, dpcr_dtype dtype) {
    enum { POINTS = 6 };
    double x[POINTS], y[POINTS], one[POINTS];
    const double zero[2] = {0};
    static const double inputs[POINTS] = {NAN, INFINITY, -INFINITY, 0, 1e30, -1e30};
    for (int a = DPCRI_ACT_IDENTITY; a <= DPCRI_ACT_SIGMOID; a++) {
        dpcri_narrow n = {.dtype = dtype, .width = 1, .activation = a, .weight = zero, .bias = x, .bias_step = 1};
        for (int64_t i = 0; i < POINTS; i++) put(&n, x, i, inputs[i]);
        dpcri_narrow_run run = {
            .lanes = POINTS, .stride = 1, .steps = 1, .rows = 1, .in = zero, .last = y, .last_lane = 1};
        k->advance(&n, &run);
        for (int64_t i = 0; i < POINTS; i++) {
            run.lanes = 1, run.first = i, run.last = one;
            k->advance(&n, &run);
            const double got = at(&n, y, i), alone = at(&n, one, 0), wanted = value(a, inputs[i]);
            if (i == 0)
                assert_true(isnan(got) && isnan(alone));
            else
                assert_true(got == alone && (got == wanted || fabs(got - wanted) <= 1e-6 * fmax(1, fabs(wanted))));
        }
    }
}

static void tanh_is_as_accurate_as_stated(void **state) {
    (void)state;
    every_kernel(activation_bounds);
}

static void limits_are_the_functions_own(void **state) {
    (void)state;
    every_kernel(limits);
}

// A NaN in one lane's start stays there; so does one that comes with a bias.
static void nan_stays(const dpcri_narrow_kernels *k, dpcr_dtype dtype) {
    enum { LANES = 40, STEPS = 37 };
    for (int64_t w = 1; w <= W; w++) {
        chain c = chain_make(dtype, w, DPCRI_ACT_TANH, 0, SHARED, 0, LANES * STEPS, 1);
        double in[LANES * W] = {0}, states[LANES * STEPS * W];
        put(&c.n, in, 11 * w, NAN);
        put(&c.n, c.biases, (20 * STEPS + 5) * w, NAN);
        k->advance(&c.n, &(dpcri_narrow_run){.lanes = LANES,
                                             .stride = STEPS,
                                             .steps = STEPS,
                                             .rows = 1,
                                             .in = in,
                                             .in_lane = w,
                                             .states = states,
                                             .states_lane = STEPS * w,
                                             .states_step = w});
        for (int64_t l = 0; l < LANES; l++)
            for (int64_t s = 0; s < STEPS; s++) {
                const bool tainted = l == 11 || (l == 20 && s >= 5);
                assert_true(isnan(at(&c.n, states, (l * STEPS + s) * w)) == tainted);
            }
    }
}

static void nan_stays_in_its_lane(void **state) {
    (void)state;
    every_kernel(nan_stays);
}

// ---- Jacobians ----

static void check_linearise(const dpcri_narrow_kernels *k, dpcr_dtype dtype, int64_t w, int activation, int residual,
                            int layout, int diagonal) {
    enum { LANES = 37 };
    for (int64_t rows = 1; rows <= 3; rows += 2) {
        chain c = chain_make(dtype, w, activation, residual, layout, diagonal, LANES, rows);
        const int64_t values = diagonal ? w : w * w;
        double in[LANES * 3 * W], f[LANES * 3 * W], last[LANES * 3 * W], a[LANES * 3 * W * W];
        fill(&c.n, in, LANES * rows * w, 1);
        dpcri_narrow_point point = {.lanes = LANES,
                                    .stride = 1,
                                    .rows = rows,
                                    .in = in,
                                    .in_lane = rows * w,
                                    .in_row = w,
                                    .f = f,
                                    .f_lane = rows * w,
                                    .f_row = w,
                                    .a = a,
                                    .a_lane = rows * values,
                                    .a_row = values};
        k->linearise(&c.n, &point);
        k->advance(&c.n, &(dpcri_narrow_run){.lanes = LANES,
                                             .stride = 1,
                                             .steps = 1,
                                             .rows = rows,
                                             .in = in,
                                             .in_lane = rows * w,
                                             .in_row = w,
                                             .last = last,
                                             .last_lane = rows * w,
                                             .last_row = w});
        assert_memory_equal(f, last, (size_t)(LANES * rows * w) * c.element);
        for (int64_t l = 0; l < LANES * rows; l++) {
            double z[W], next[W], u[W];
            for (int64_t i = 0; i < w; i++) z[i] = at(&c.n, in, l * w + i);
            plain_step(&c.n, l / rows, l % rows, z, next, u);
            for (int64_t i = 0; i < w; i++)
                for (int64_t j = 0; j < w; j++) {
                    if (diagonal && i != j) continue;
                    const double d = slope(activation, u[i]) * weight_at(&c.n, l / rows, i, j);
                    const double wanted = residual ? (i == j) + c.n.scale * d : d;
                    const double got = at(&c.n, a, l * values + (diagonal ? i : i * w + j));
                    if (fabs(u[i]) > 1e-5 && !(fabs(got - wanted) <= (dtype == DPCR_F64 ? 1e-14 : 4e-6)))
                        fail_msg("Jacobian: width %d, activation %d, layout %d: %.9g, wanted %.9g", (int)w, activation,
                                 layout, got, wanted);
                }
        }
        point.f = NULL;
        k->linearise(&c.n, &point);
    }
}

static void jacobians_are_the_slopes(void **state) {
    (void)state;
    combinations(check_linearise);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_chain),
        cmocka_unit_test(lanes_are_the_loop),
        cmocka_unit_test(wide_lanes_are_the_loop),
        cmocka_unit_test(batches_give_the_loops_bits),
        cmocka_unit_test(tanh_is_as_accurate_as_stated),
        cmocka_unit_test(sigmoid_is_accurate_beside_its_size),
        cmocka_unit_test(limits_are_the_functions_own),
        cmocka_unit_test(nan_stays_in_its_lane),
        cmocka_unit_test(jacobians_are_the_slopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
