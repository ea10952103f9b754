// SPDX-License-Identifier: MIT
// The examples' filters (examples/clipper.h, examples/ladder.h) as users' callbacks: they hold together, give the
// equations' numbers, the loop's bits by every way to run them, and the ladder the gradients of its parameters.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "../examples/clipper.h"
#include "../examples/ladder.h"

enum { LENGTH = 40000, CHANNELS = 2, RATE = 48000 };

static float sound[CHANNELS][LENGTH];

static int make_sound(void **state) {
    (void)state;
    for (int b = 0; b < CHANNELS; b++)
        for (int l = 0; l < LENGTH; l++)
            sound[b][l] = (float)(0.4 * sin(0.02 * l * (b + 1)) + 0.3 * sin(0.171 * l) * sin(0.0003 * l) + 0.05);
    return 0;
}

static dpcr_context *context_of(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

// z [LENGTH][CHANNELS][w] from silence, to the loop's bits.
static float *solve(const dpcr_steps *steps, dpcr_method method, int threads, dpcr_solve_report *report) {
    const dpcr_solve_options options = {
        .size = sizeof options, .method = method, .atol = -1, .rtol = -1, .warm_up = 500};
    const int64_t shape[] = {steps->length, steps->batch, steps->width};
    float silence[CHANNELS * 4] = {0}, *z = malloc((size_t)(shape[0] * shape[1] * shape[2]) * sizeof *z);
    const dpcr_array z0 = dpcr_array_make(silence, DPCR_F32, 2, shape + 1),
                     out = dpcr_array_make(z, DPCR_F32, 3, shape);
    dpcr_context *context = context_of(threads);
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, steps, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = (dpcr_solve_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    *report = (dpcr_solve_report){.size = sizeof *report};
    assert_int_equal(dpcr_solve_execute(plan, &z0, &out, NULL, workspace, bytes, report, NULL), DPCR_OK);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
    return z;
}

static void holds_together(const dpcr_steps *steps) {
    dpcr_context *context = context_of(1);
    dpcr_error error = {0};
    float start[CHANNELS * 4] = {0.1f, -0.2f, 0.3f, 0.05f, -0.1f, 0.02f, 0.3f, -0.4f};
    const dpcr_array z0 = dpcr_array_make(start, DPCR_F32, 2, (const int64_t[]){steps->batch, steps->width});
    if (dpcr_steps_check(context, steps, &z0, 1e-4, &error) != DPCR_OK) print_message("%s\n", error.text);
    assert_int_equal(error.status, DPCR_OK);
    dpcr_context_destroy(context);
}

static void any_way_has_the_loops_bits(const dpcr_steps *steps) {
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO, DPCR_METHOD_OVERLAP};
    dpcr_solve_report report;
    float *by_loop = solve(steps, DPCR_METHOD_SEQUENTIAL, 1, &report);
    for (int i = 0; i < 2; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            float *z = solve(steps, methods[i], threads, &report);
            assert_true(report.reason > 0);
            assert_memory_equal(z, by_loop, (size_t)(steps->length * steps->batch * steps->width) * sizeof *z);
            free(z);
        }
    assert_int_equal(report.method, DPCR_METHOD_OVERLAP);
    assert_int_equal(report.reason, DPCR_REASON_EXACT);  // not finished in order
    free(by_loop);
}

// v' = v + h / (R C) (u - v') - 2 h I_s / C sinh(v' / V), by bisection.
static double clipped(double v, double u) {
    const double t = 1 / (RATE * 2200 * 10e-9);
    double low = -2, high = 2;
    for (int i = 0; i < 40; i++) {
        const double x = 0.5 * (low + high);
        const double f = x - v - t * (u - x) + 2 * 2.52e-9 / (RATE * 10e-9) * sinh(x / 45.3e-3);
        if (f > 0)
            high = x;
        else
            low = x;
    }
    return 0.5 * (low + high);
}

static void clipper_is_its_equation(void **state) {
    (void)state;
    clipper filter = clipper_make(&sound[0][0], LENGTH, RATE, 4.5);
    const dpcr_steps steps = clipper_steps(&filter, CHANNELS);
    dpcr_solve_report report;
    holds_together(&steps);
    float *z = solve(&steps, DPCR_METHOD_SEQUENTIAL, 1, &report);
    double worst = 0, largest = 0;
    for (int b = 0; b < CHANNELS; b++) {
        double v = 0;
        for (int l = 0; l < 4000; l++) {
            v = clipped(v, 4.5 * (double)sound[b][l]);
            worst = fmax(worst, fabs(v - (double)z[l * CHANNELS + b]));
            largest = fmax(largest, fabs(v));
        }
    }
    assert_true(worst < 2e-6);
    assert_true(largest > 0.4 && largest < 1);  // 3 V come in: it clips
    free(z);
}

static void ladder_is_its_equation(void **state) {
    (void)state;
    ladder filter = ladder_make(&sound[0][0], LENGTH, RATE, 1200, 2.5);
    const dpcr_steps steps = ladder_steps(&filter, CHANNELS);
    dpcr_solve_report report;
    holds_together(&steps);
    float *z = solve(&steps, DPCR_METHOD_SEQUENTIAL, 1, &report);
    double worst = 0;
    for (int b = 0; b < CHANNELS; b++) {
        double y[4] = {0};
        for (int l = 0; l < 4000; l++) {
            double in = tanh(2 * (double)sound[b][l] - 2.5 * y[3]);
            for (int i = 0; i < 4; i++) {
                y[i] += (double)filter.g * (in - tanh(y[i]));
                in = tanh(y[i]);
                worst = fmax(worst, fabs(y[i] - (double)z[(l * CHANNELS + b) * 4 + i]));
            }
        }
    }
    assert_true(worst < 2e-5);
    free(z);
}

static void clipper_has_the_loops_bits(void **state) {
    (void)state;
    clipper filter = clipper_make(&sound[0][0], LENGTH, RATE, 4.5);
    const dpcr_steps mono = clipper_steps(&filter, 1), stereo = clipper_steps(&filter, CHANNELS);
    any_way_has_the_loops_bits(&mono);
    any_way_has_the_loops_bits(&stereo);
}

static void ladder_has_the_loops_bits(void **state) {
    (void)state;
    ladder filter = ladder_make(&sound[0][0], LENGTH, RATE, 3000, 1);
    const dpcr_steps mono = ladder_steps(&filter, 1), stereo = ladder_steps(&filter, CHANNELS);
    any_way_has_the_loops_bits(&mono);
    any_way_has_the_loops_bits(&stereo);
}

// Half the sum of the squares that come out, and its gradients where `gradient` is set.
static double energy(ladder *filter, dpcr_scheme backward, double *gradient) {
    const dpcr_steps steps = ladder_steps(filter, 1);
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL, .backward = backward, .warm_up = 400};
    const int64_t shape[] = {filter->length, 1, 4};
    float silence[4] = {0};
    float *z = calloc((size_t)filter->length * 4, sizeof *z), *direct = calloc((size_t)filter->length * 4, sizeof *z);
    const dpcr_array z0 = dpcr_array_make(silence, DPCR_F32, 2, shape + 1), az = dpcr_array_make(z, DPCR_F32, 3, shape),
                     ad = dpcr_array_make(direct, DPCR_F32, 3, shape);
    dpcr_context *context = context_of(2);
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = (dpcr_solve_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    assert_int_equal(dpcr_solve_execute(plan, &z0, &az, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
    double sum = 0;
    for (int64_t l = 0; l < filter->length; l++) {
        sum += 0.5 * (double)z[4 * l + 3] * (double)z[4 * l + 3];
        direct[4 * l + 3] = z[4 * l + 3];
    }
    if (gradient) {
        filter->gradient[0] = filter->gradient[1] = 0;
        const dpcr_status status =
            dpcr_solve_backward(plan, &z0, &az, NULL, &ad, NULL, NULL, NULL, workspace, bytes, NULL, NULL);
        assert_int_equal(status, DPCR_OK);
        gradient[0] = filter->gradient[0], gradient[1] = filter->gradient[1];
    }
    free(workspace), free(z), free(direct);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
    return sum;
}

static void ladder_knows_its_gradients(void **state) {
    (void)state;
    ladder filter = ladder_make(&sound[0][0], 12000, RATE, 1200, 1.5);
    double gradient[2], other[2];
    energy(&filter, DPCR_SCHEME_SEQUENTIAL, gradient);
    energy(&filter, DPCR_SCHEME_OVERLAP, other);
    for (int i = 0; i < 2; i++) {
        ladder more = filter, less = filter;
        if (i)
            more.k += 1e-2f, less.k -= 1e-2f;
        else
            more.g += 1e-3f, less.g -= 1e-3f;
        const double step = i ? (double)more.k - (double)less.k : (double)more.g - (double)less.g;
        const double up = energy(&more, DPCR_SCHEME_SEQUENTIAL, NULL);
        const double slope = (up - energy(&less, DPCR_SCHEME_SEQUENTIAL, NULL)) / step;
        assert_true(fabs(gradient[i] - slope) < 2e-3 * fabs(slope));
        assert_true(fabs(gradient[i] - other[i]) < 1e-4 * fabs(slope));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clipper_is_its_equation),    cmocka_unit_test(ladder_is_its_equation),
        cmocka_unit_test(clipper_has_the_loops_bits), cmocka_unit_test(ladder_has_the_loops_bits),
        cmocka_unit_test(ladder_knows_its_gradients),
    };
    return cmocka_run_group_tests(tests, make_sound, NULL);
}
