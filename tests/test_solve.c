// SPDX-License-Identifier: MIT
// The nonlinear driver on chains whose behaviour is known: exact prefixes, golden numbers, sweep counts, fallback, bits
// that depend neither on threads nor on neighbours.
#include "sampled.h"
#include "solving.h"

// k sweeps make the first k states exact, bit for bit, for every method, scheme and dtype.
static void exact_prefix(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int m = 0; m < SWEEP_METHODS; m++)
        for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++)
            for (int single = 0; single < 2; single++) {
                chain c = tanh_chain(23, 3, 4, single ? DPCR_F32 : DPCR_F64);
                void *z0 = starts(&c), *loop = loop_of(&c, z0);
                for (int k = 1; k <= 25; k += 3) {
                    const dpcr_solve_options options = {.size = sizeof options,
                                                        .method = sweep_methods[m],
                                                        .scheme = schemes[s],
                                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                                        .atol = -1,
                                                        .rtol = -1,
                                                        .max_sweeps = k,
                                                        .no_fallback = 1};
                    solved r = solve(context, &c, z0, &options);
                    assert_int_equal(r.status, DPCR_OK);
                    const size_t bytes = (size_t)((k < 23 ? k : 23) * 3 * 4) * dpcr_dtype_size(c.dtype);
                    assert_memory_equal(r.z, loop, bytes);
                    for (int b = 0; b < 3; b++) assert_true(r.locked[b] >= (k < 23 ? k : 23));
                    if (k >= 23) assert_int_equal(r.report.reason, DPCR_REASON_EXACT);
                    solved_free(&r);
                }
                free(z0), free(loop);
            }
    dpcr_context_destroy(context);
}

static void affine_takes_one_sweep(void **state) {
    (void)state;
    const double gain[2] = {0.9, 0};
    dpcr_context *context = solving_context(2);
    for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++) {
        chain c = {.step = step_affine, .length = 257, .batch = 2, .width = 3, .dtype = DPCR_F64, .parameters = gain};
        void *z0 = starts(&c), *loop = loop_of(&c, z0);
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = schemes[s],
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .atol = 1e-12,
                                            .rtol = 1e-12};
        solved r = solve(context, &c, z0, &options);
        assert_int_equal(r.report.sweeps, 1);
        assert_int_equal(r.report.reason, DPCR_REASON_CONVERGED);
        assert_true(largest_error(&c, r.z, loop) < 1e-13);
        solved_free(&r);
        free(z0), free(loop);
    }
    dpcr_context_destroy(context);
}

static void golden_mlp(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = {.step = step_golden, .length = 16, .batch = 1, .width = 3, .dtype = DPCR_F64};
    const double z0[3] = {0.3, -0.7, 1.1}, z16[3] = {-0.067026199648, -0.149990247246, 0.077340242386};
    const double from_zero[] = {6.8e-1, 1.5e-1, 7.4e-3, 1.6e-5, 5.0e-11},
                 from_step[] = {6.8e-1, 2.9e-2, 3.9e-4, 1.4e-7};
    dpcr_solve_options options = {.size = sizeof options,
                                  .method = DPCR_METHOD_NEWTON,
                                  .scheme = DPCR_SCHEME_PCR,
                                  .backward = DPCR_SCHEME_PCR,
                                  .atol = 1e-12,
                                  .rtol = 1e-12,
                                  .guess = DPCR_GUESS_GIVEN};
    solved r = solve(context, &c, z0, &options);
    assert_int_equal(r.report.sweeps, 5);
    for (int k = 0; k < 5; k++) near(r.history[k] / from_zero[k], 1, 0.05);
    for (int i = 0; i < 3; i++) near(((double *)r.z)[45 + i], z16[i], 1e-12);
    solved_free(&r);
    options.guess = DPCR_GUESS_ZERO;
    r = solve(context, &c, z0, &options);
    assert_int_equal(r.report.sweeps, 4);
    for (int k = 0; k < 4; k++) near(r.history[k] / from_step[k], 1, 0.05);
    solved_free(&r);
    for (int m = 0; m < 2; m++) {  // the diagonal of these matrices says little: both need every update
        options.method = m ? DPCR_METHOD_JACOBI : DPCR_METHOD_DIAGONAL;
        options.guess = DPCR_GUESS_GIVEN;
        r = solve(context, &c, z0, &options);
        assert_in_range(r.report.sweeps, 15, 16);
        for (int i = 0; i < 3; i++) near(((double *)r.z)[45 + i], z16[i], 1e-12);
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

static void golden_backward(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const double z0[3] = {0.3, -0.7, 1.1}, dz0[3] = {0.006624280409, 0.003106916509, -0.004962087355};
    const int64_t shape[3] = {16, 1, 3};
    for (int backward = 1; backward < DPCR_SCHEME_OVERLAP; backward++) {
        chain c = {.step = step_golden, .length = 16, .batch = 1, .width = 3, .dtype = DPCR_F64};
        const dpcr_steps steps = chain_steps(&c);
        double z[48], got[3], last[3] = {1, 1, 1};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = DPCR_SCHEME_PCR,
                                            .backward = (dpcr_scheme)backward};
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = solving_workspace(bytes);
        const dpcr_array first = dpcr_array_make((void *)z0, DPCR_F64, 2, shape + 1),
                         states = dpcr_array_make(z, DPCR_F64, 3, shape);
        const dpcr_array end = dpcr_array_make(last, DPCR_F64, 2, shape + 1),
                         out = dpcr_array_make(got, DPCR_F64, 2, shape + 1);
        assert_int_equal(dpcr_solve_execute(plan, &first, &states, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
        assert_int_equal(
            dpcr_solve_backward(plan, &first, &states, NULL, NULL, &end, NULL, &out, workspace, bytes, NULL, NULL),
            DPCR_OK);
        for (int i = 0; i < 3; i++) near(got[i], dz0[i], 1e-11);
        free(workspace);
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
}

// A10 and A11.
static void rotation_and_compressor(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    const double start[2] = {1, 0.5}, one[1] = {1};
    dpcr_solve_options options = {.size = sizeof options,
                                  .method = DPCR_METHOD_NEWTON,
                                  .scheme = DPCR_SCHEME_PCR,
                                  .backward = DPCR_SCHEME_PCR,
                                  .atol = 1e-12,
                                  .rtol = 1e-12,
                                  .guess = DPCR_GUESS_GIVEN};
    chain c = {.step = step_rotation, .length = 256, .batch = 1, .width = 2, .dtype = DPCR_F64};
    solved r = solve(context, &c, start, &options);
    assert_in_range(r.report.sweeps, 10, 11);
    near(((double *)r.z)[510], 0.007268929066, 1e-12);
    near(((double *)r.z)[511], -0.088477593484, 1e-12);
    solved_free(&r);
    chain d = {.step = step_compressor, .length = 100, .batch = 1, .width = 1, .dtype = DPCR_F64};
    r = solve(context, &d, one, &options);
    assert_in_range(r.report.sweeps, 1, 4);
    near(((double *)r.z)[99], 0.109687369027, 1e-12);
    solved_free(&r);
    dpcr_context_destroy(context);
}

// A27: window and lock bound the rounds; without a window the lock alone ends right; the result is never NaN.
static void lorenz(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    const double z0[3] = {9.614521163788712, 17.519127090401067, 13.94230712158098};
    const double end[3] = {-10.154158193812533, -13.95863221553742, 23.76458244503134};
    const struct {
        int steps, window, rounds;
        double error;
    } cases[] = {{256, 16, 51, 1e-10},  {256, 32, 30, 1e-10},  {256, 64, 18, 1e-10}, {256, 0, 36, 1e-10},
                 {2048, 16, 399, 1e-8}, {2048, 32, 226, 1e-8}, {2048, 64, 125, 1e-8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double h = log(10) / 0.9 * (cases[i].steps == 256 ? 0.5 : 4) / cases[i].steps;
        chain c = {
            .step = step_lorenz, .length = cases[i].steps, .batch = 1, .width = 3, .dtype = DPCR_F64, .parameters = &h};
        void *loop = loop_of(&c, z0);
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = DPCR_SCHEME_SEQUENTIAL,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .atol = 1e-10,
                                            .rtol = 1e-10,
                                            .guess = DPCR_GUESS_STATE,
                                            .window = cases[i].window,
                                            .max_sweeps = 2000};
        solved r = solve(context, &c, z0, &options);
        assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
        assert_true(largest_error(&c, r.z, loop) <= cases[i].error);
        if (r.report.sweeps > cases[i].rounds + cases[i].rounds / 10 + 1)
            fail_msg("%d steps, window %d: %d rounds, wanted at most about %d", cases[i].steps, cases[i].window,
                     r.report.sweeps, cases[i].rounds);
        if (cases[i].steps == 256)
            for (int k = 0; k < 3; k++) near(((double *)r.z)[255 * 3 + k], end[k], 1e-9);
        solved_free(&r);
        free(loop);
    }
    dpcr_context_destroy(context);
}

// A chaotic map ends right, by fallback, within its budget.
static void chaotic_falls_back(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const double z0[1] = {0.3141};
    for (int m = 0; m < SWEEP_METHODS; m++) {
        if (sweep_methods[m] == DPCR_METHOD_BLOCK) continue;
        chain c = {.step = step_logistic, .length = 4096, .batch = 1, .width = 1, .dtype = DPCR_F64};
        void *loop = loop_of(&c, z0);
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = sweep_methods[m],
                                            .scheme = DPCR_SCHEME_PCR,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .max_sweeps = 5};
        solved r = solve(context, &c, z0, &options);
        assert_int_equal(r.report.reason, DPCR_REASON_FALLBACK);
        assert_true(r.locked[0] >= 5 && r.locked[0] < 4096);
        assert_memory_equal(r.z, loop, 4096 * sizeof(double));
        solved_free(&r);
        free(loop);
    }
    dpcr_context_destroy(context);
}

// With a budget that lasts, a chaotic chain must not be called converged where the tolerance of a locked prefix was
// amplified.
static void chaos_is_not_called_converged(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int64_t length = 20; length <= 400; length += TESTS_SANITIZED ? 95 : 20)
        for (int64_t window = 0; window <= 64; window += 32)
            for (int start = 0; start < 4; start++) {
                const double z0[1] = {0.1 + 0.19 * start};
                chain c = {.step = step_logistic, .length = length, .batch = 1, .width = 1, .dtype = DPCR_F64};
                void *loop = loop_of(&c, z0);
                const dpcr_solve_options options = {.size = sizeof options,
                                                    .method = DPCR_METHOD_NEWTON,
                                                    .scheme = DPCR_SCHEME_PCR,
                                                    .backward = DPCR_SCHEME_SEQUENTIAL,
                                                    .window = window,
                                                    .max_sweeps = 1000};
                solved r = solve(context, &c, z0, &options);
                assert_true(r.report.reason > 0);
                if (!(largest_error(&c, r.z, loop) <= 1e-9))
                    fail_msg("%d steps, window %d: %s, error %g", (int)length, (int)window,
                             dpcr_reason_name(r.report.reason), largest_error(&c, r.z, loop));
                solved_free(&r);
                free(loop);
            }
    dpcr_context_destroy(context);
}

// States up to 1e98 are no reason to clip or to give up.
static void growing_residual_network(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_growing, .length = 1024, .batch = 1, .width = 8, .dtype = DPCR_F64};
    void *z0 = starts(&c), *loop = loop_of(&c, z0);
    double most = 0;
    for (int64_t i = 0; i < 1024 * 8; i++) most = fmax(most, fabs(((double *)loop)[i]));
    assert_true(most > 1e60);
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_NEWTON,
                                        .scheme = DPCR_SCHEME_CHUNKED,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .guess = DPCR_GUESS_STATE,
                                        .max_sweeps = 400};
    solved r = solve(context, &c, z0, &options);
    assert_true(r.report.reason == DPCR_REASON_CONVERGED || r.report.reason == DPCR_REASON_RESIDUAL_ONLY);
    assert_true(largest_error(&c, r.z, loop) < 1e-9);
    solved_free(&r);
    free(z0), free(loop);
    dpcr_context_destroy(context);
}

// Residual networks drift: a small residual a step is not a small error. Converged means the estimate says so.
static void error_estimate_bounds_error(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int64_t length = 64; length <= 4096; length *= 4) {
        const double gain[2] = {1, 1 / sqrt((double)length)};
        chain c = {.step = step_tanh, .length = length, .batch = 2, .width = 4, .dtype = DPCR_F64, .parameters = gain};
        void *z0 = starts(&c), *loop = loop_of(&c, z0);
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = DPCR_SCHEME_BLELLOCH,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .atol = 1e-4,
                                            .rtol = 1e-4};
        solved r = solve(context, &c, z0, &options);
        assert_int_equal(r.report.reason, DPCR_REASON_CONVERGED);
        assert_true(r.report.error_estimate >= 0 && r.report.error_estimate <= 2e-4);
        assert_true(largest_error(&c, r.z, loop) <= 1e-4);
        assert_in_range(r.report.sweeps, 1, length > 1024 ? 9 : 6);
        solved_free(&r);
        free(z0), free(loop);
    }
    dpcr_context_destroy(context);
}

// A sequence that is not finite must not touch the others, and its own result is the loop's.
static void not_finite_stays_alone(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int m = 0; m < SWEEP_METHODS + 2; m++) {
        const dpcr_method method = m < SWEEP_METHODS    ? sweep_methods[m]
                                   : m == SWEEP_METHODS ? DPCR_METHOD_OVERLAP
                                                        : DPCR_METHOD_SHOOTING;
        chain c = tanh_chain(300, 3, 2, DPCR_F64);
        double z0[6] = {0.1, 0.2, NAN, 0.3, 0.5, -0.4}, clean[6] = {0.1, 0.2, 0.7, 0.3, 0.5, -0.4};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = method,
                                            .scheme = DPCR_SCHEME_CHUNKED,
                                            .backward = DPCR_SCHEME_SEQUENTIAL};
        solved bad = solve(context, &c, z0, &options), good = solve(context, &c, clean, &options);
        assert_int_equal(bad.status, DPCR_OK);
        for (int64_t l = 0; l < 300; l++)
            for (int b = 0; b < 3; b += 2)
                assert_memory_equal((double *)bad.z + l * 6 + b * 2, (double *)good.z + l * 6 + b * 2,
                                    2 * sizeof(double));
        assert_true(isnan(((double *)bad.z)[299 * 6 + 2]));
        if (m < SWEEP_METHODS) assert_int_equal(bad.reasons[1], DPCR_REASON_NONFINITE);
        assert_true(bad.reasons[0] > 0 && bad.reasons[2] > 0);
        solved_free(&bad), solved_free(&good);
    }
    dpcr_context_destroy(context);
}

// z / 2 + 1 / 2, which ends at 1; step 39 is the root of what is above 1.
static void step_to_the_edge(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b;
    for (int i = 0; i < 2; i++) out[i] = l == 39 ? sqrt(in[i] - 1) : 0.5 * in[i] + 0.5;
    if (j) j[0] = j[3] = l == 39 ? 0 : 0.5, j[1] = j[2] = 0;
}

// A state within the tolerance may lie where the next step has no value though the loop's has one: the loop's result,
// and no word of numbers that are not finite.
static void an_edge_is_not_the_end(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    int finished = 0;
    for (int m = 0; m < 2 * SWEEP_METHODS; m++) {
        chain c = {.step = step_to_the_edge, .length = 60, .batch = 2, .width = 2, .dtype = DPCR_F32};
        const float z0[4] = {1, 1, 1, 1};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = sweep_methods[m / 2],
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .atol = 1e-3,
                                            .window = 10,
                                            .no_fallback = m % 2};
        solved r = solve(context, &c, z0, &options);
        void *loop = loop_of(&c, z0);
        assert_int_equal(r.status, DPCR_OK);
        assert_true(isfinite(((float *)loop)[239]));
        for (int b = 0; b < 2; b++) {
            assert_int_not_equal(r.reasons[b], DPCR_REASON_NONFINITE);
            assert_true(m % 2 ? r.reasons[b] != DPCR_REASON_FALLBACK : r.reasons[b] > 0);
            if (r.reasons[b] != DPCR_REASON_FALLBACK) continue;
            finished++;
            for (int l = 0; l < 60; l++)
                assert_memory_equal((float *)r.z + 4 * l + 2 * b, (float *)loop + 4 * l + 2 * b, 2 * sizeof(float));
        }
        free(loop), solved_free(&r);
    }
    assert_true(finished > 0);
    dpcr_context_destroy(context);
}

// -0, and the next step asks for its sign.
static void step_of_signs(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b;
    out[0] = l % 2 ? copysign(0.5, in[0]) : -0.0;
    if (j) j[0] = 0;
}

static void parareal_keeps_signs(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    for (int exact = 0; exact < 2; exact++) {
        chain c = {.step = step_of_signs, .length = 24, .batch = 1, .width = 1, .dtype = DPCR_F64};
        const double z0[1] = {0.3};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_PARAREAL,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .chunk = 3,
                                            .atol = exact ? -1 : 0};
        solved r = solve(context, &c, z0, &options);
        void *loop = loop_of(&c, z0);
        assert_int_equal(r.report.reason, DPCR_REASON_EXACT);
        assert_memory_equal(r.z, loop, 24 * sizeof(double));
        free(loop), solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// Rows of a batch come out with the bits they have alone, forward and backward, for any window and any number of
// threads.
static void batch_equals_separate(void **state) {
    (void)state;
    const int64_t windows[] = {0, 1, 7, 40};
    for (int m = 0; m < SWEEP_METHODS + 3; m++)
        for (size_t k = 0; k < sizeof windows / sizeof *windows; k++)
            for (size_t s = 0; s < 4; s++) {
                if (!sampled(((int64_t)m * 4 + (int64_t)k) * 4 + (int64_t)s)) continue;
                const dpcr_method method = m < SWEEP_METHODS        ? sweep_methods[m]
                                           : m == SWEEP_METHODS     ? DPCR_METHOD_OVERLAP
                                           : m == SWEEP_METHODS + 1 ? DPCR_METHOD_SHOOTING
                                                                    : DPCR_METHOD_SEQUENTIAL;
                chain c = tanh_chain(67, 5, 4, k % 2 ? DPCR_F32 : DPCR_F64);
                const size_t real = dpcr_dtype_size(c.dtype), row = 4 * real;
                void *z0 = starts(&c);
                const dpcr_solve_options options = {.size = sizeof options,
                                                    .method = method,
                                                    .scheme = schemes[s],
                                                    .backward = schemes[s],
                                                    .window = windows[k],
                                                    .warm_up = 8,
                                                    .chunk = 12};
                dpcr_context *two = solving_context(2), *one = solving_context(1), *three = solving_context(3);
                dpcr_steps steps = chain_steps(&c);
                if (k == 0) steps.flops = 0;  // unknown: always handed to the threads
                solved all = solve_steps(two, &steps, &c, z0, &options, NULL, 1),
                       more = solve_steps(three, &steps, &c, z0, &options, NULL, 1);
                assert_int_equal(all.status, DPCR_OK);
                assert_memory_equal(all.z, more.z, solving_bytes(&c) - 64);
                assert_memory_equal(all.lambda, more.lambda, solving_bytes(&c) - 64);
                for (int b = 0; b < 5; b++) {
                    chain alone = c;
                    alone.batch = 1;
                    steps = chain_steps(&alone);
                    solved each = solve_steps(one, &steps, &alone, (char *)z0 + (size_t)b * row, &options, NULL, 0);
                    assert_int_equal(each.status, DPCR_OK);
                    for (int64_t l = 0; l < c.length; l++)
                        if (memcmp((char *)all.z + (size_t)(l * 5 + b) * row, (char *)each.z + (size_t)l * row, row) !=
                            0)
                            fail_msg("method %s, scheme %s, window %d: row %d differs at step %d",
                                     dpcr_method_name(method), dpcr_scheme_name(schemes[s]), (int)windows[k], b,
                                     (int)l);
                    solved_free(&each);
                }
                solved_free(&all), solved_free(&more);
                free(z0);
                dpcr_context_destroy(one), dpcr_context_destroy(two), dpcr_context_destroy(three);
            }
}

// Large windows take the loop over delta piece by piece while A is in cache; small ones, here each sequence alone, do
// not. Both give the same bits, for any number of threads and with windows.
static void fused_sweeps_have_the_same_bits(void **state) {
    (void)state;
    const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DAMPED, DPCR_METHOD_BLOCK, DPCR_METHOD_DIAGONAL};
    const int64_t windows[] = {0, 200};
    enum { ROWS = 40, WIDTH = 6, LENGTH = 250 };
    dpcr_context *one = solving_context(1), *two = solving_context(2);
    for (int m = 0; m < 4; m++)
        for (int k = 0; k < 2; k++) {
            if ((TESTS_SANITIZED && (m + k) % 2) || (TESTS_ONE_OF > 5 && m > 1)) continue;
            chain c = tanh_chain(m == 3 ? 2 * LENGTH : LENGTH, ROWS, WIDTH, DPCR_F64);
            double *z0 = starts(&c);
            const dpcr_solve_options options = {.size = sizeof options,
                                                .method = methods[m],
                                                .scheme = DPCR_SCHEME_SEQUENTIAL,
                                                .backward = DPCR_SCHEME_SEQUENTIAL,
                                                .window = windows[k]};
            solved all = solve(one, &c, z0, &options), more = solve(two, &c, z0, &options);
            assert_int_equal(all.status, DPCR_OK);
            assert_memory_equal(all.z, more.z, solving_bytes(&c) - 64);
            for (int b = 0; b < ROWS; b += 13 * (TESTS_SANITIZED ? 3 : 1)) {
                chain alone = c;
                alone.batch = 1;
                solved each = solve(one, &alone, z0 + b * WIDTH, &options);
                for (int64_t l = 0; l < c.length; l++)
                    assert_memory_equal((double *)all.z + (l * ROWS + b) * WIDTH, (double *)each.z + l * WIDTH,
                                        WIDTH * sizeof(double));
                solved_free(&each);
            }
            solved_free(&all), solved_free(&more);
            free(z0);
        }
    dpcr_context_destroy(one), dpcr_context_destroy(two);
}

// Every method and scheme agrees with the loop, forward and backward, also with a memory limit that forces windows.
static void agrees_with_loop(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const int64_t lengths[] = {1, 2, 3, 17, 64, 129}, widths[] = {1, 2, 6};
    int64_t runs = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t j = 0; j < sizeof widths / sizeof *widths; j++)
            for (int m = 1; m < DPCR_METHOD_COUNT; m++)
                for (size_t s = 0; s < 4; s++) {
                    if ((m == DPCR_METHOD_BLOCK && widths[j] % 2) || !sampled(runs++)) continue;
                    chain c = tanh_chain(lengths[i], 3, widths[j], DPCR_F64);
                    double theta[2][129 * 6] = {{0}};
                    void *z0 = starts(&c), *loop = loop_of(&c, z0);
                    dpcr_solve_options options = {.size = sizeof options,
                                                  .method = (dpcr_method)m,
                                                  .scheme = schemes[s],
                                                  .backward = schemes[s],
                                                  .atol = 1e-11,
                                                  .rtol = 1e-11,
                                                  .warm_up = 4,
                                                  .chunk = 9,
                                                  .memory_limit = j == 2 && m != DPCR_METHOD_SHOOTING ? 60000 : 0};
                    dpcr_steps steps = chain_steps(&c);
                    c.gradients = theta[0];
                    solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
                    if (r.status != DPCR_OK) fail_msg("%s: %s", dpcr_method_name((dpcr_method)m), r.error.text);
                    assert_true(r.report.reason > 0);
                    assert_true(largest_error(&c, r.z, loop) < 1e-9);
                    if (options.memory_limit) assert_true(r.report.bytes <= options.memory_limit);
                    options.method = DPCR_METHOD_SEQUENTIAL, options.backward = DPCR_SCHEME_SEQUENTIAL;
                    c.gradients = theta[1];
                    solved q = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
                    assert_true(largest_error(&c, r.lambda, q.lambda) < 1e-9);
                    for (int k = 0; k < 3 * widths[j]; k++) near(((double *)r.dz0)[k], ((double *)q.dz0)[k], 1e-9);
                    for (int64_t k = 0; k < lengths[i] * widths[j]; k++) near(theta[0][k], theta[1][k], 1e-9);
                    solved_free(&r), solved_free(&q);
                    free(z0), free(loop);
                }
    dpcr_context_destroy(context);
}

// Every structure of the Jacobian with every method, wide enough that a row that is written too long shows.
static void structures_of_the_jacobian(void **state) {
    (void)state;
    const struct {
        dpcr_structure structure;
        double block;
    } kinds[] = {{DPCR_IDENTITY, 0}, {DPCR_SCALAR, 0}, {DPCR_DIAGONAL, 0},
                 {DPCR_DIAGONAL, 1}, {DPCR_BLOCK, 4},  {DPCR_DENSE, 4}};
    dpcr_context *context = solving_context(2);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int m = 1; m < DPCR_METHOD_COUNT; m++)
            for (int window = 0; window < 60; window += 59) {
                if (!sampled(((int64_t)k * DPCR_METHOD_COUNT + m) * 2 + (window > 0))) continue;
                chain c = {.step = step_blocks,
                           .length = 150,
                           .batch = 5,
                           .width = 20,
                           .dtype = DPCR_F64,
                           .parameters = &kinds[k].block,
                           .jacobian = dpcr_transition_square(kinds[k].structure, 20, 4)};
                const dpcr_steps steps = chain_steps(&c);
                void *z0 = starts(&c), *loop = loop_of(&c, z0);
                dpcr_solve_options options = {.size = sizeof options,
                                              .method = (dpcr_method)m,
                                              .scheme = DPCR_SCHEME_CHUNKED,
                                              .backward = DPCR_SCHEME_CHUNKED,
                                              .window = window,
                                              .block = 2};
                solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
                if (r.status != DPCR_OK) fail_msg("%s: %s", dpcr_method_name((dpcr_method)m), r.error.text);
                assert_true(r.report.reason > 0);
                for (int b = 0; b < 5; b++) assert_true(r.locked[b] >= 0 && r.locked[b] <= 150);
                if (!(largest_error(&c, r.z, loop) < 1e-8))
                    fail_msg("structure %s, method %s: error %g", dpcr_structure_name(kinds[k].structure),
                             dpcr_method_name((dpcr_method)m), largest_error(&c, r.z, loop));
                if (m == DPCR_METHOD_NEWTON) assert_int_equal(r.report.reason, DPCR_REASON_CONVERGED);
                options.method = DPCR_METHOD_SEQUENTIAL, options.backward = DPCR_SCHEME_SEQUENTIAL;
                solved q = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
                assert_true(largest_error(&c, r.lambda, q.lambda) < 1e-8);
                solved_free(&r), solved_free(&q);
                free(z0), free(loop);
            }
    dpcr_context_destroy(context);
}

// Shooting's coarse chain, large enough that a plain one would go by blocks of sequences: same bits on any threads.
static void large_shooting(void **state) {
    (void)state;
    dpcr_context *one = solving_context(1), *four = solving_context(4);
    chain c = tanh_chain(1200, 48, 6, DPCR_F64);
    void *z0 = starts(&c), *loop = loop_of(&c, z0);
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_SHOOTING,
                                        .scheme = DPCR_SCHEME_SEQUENTIAL,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .chunk = 4};
    solved a = solve(one, &c, z0, &options), b = solve(four, &c, z0, &options);
    assert_true(a.report.reason > 0 && a.report.reason != DPCR_REASON_FALLBACK);
    assert_memory_equal(a.z, b.z, solving_bytes(&c) - 64);
    assert_true(largest_error(&c, a.z, loop) < 1e-8);
    solved_free(&a), solved_free(&b);
    free(z0), free(loop);
    dpcr_context_destroy(one), dpcr_context_destroy(four);
}

// Small windows with large batches: more blocks of sequences than pieces of the window.
static void many_sequences_in_small_windows(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const double four = 4;
    chain c = {.step = step_blocks, .length = 6, .batch = 3000, .width = 8, .dtype = DPCR_F64, .parameters = &four};
    void *z0 = starts(&c), *loop = loop_of(&c, z0);
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_BLOCK,
                                        .scheme = DPCR_SCHEME_SEQUENTIAL,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .window = 2,
                                        .block = 4};
    solved r = solve(context, &c, z0, &options);
    assert_int_equal(r.status, DPCR_OK);
    assert_true(largest_error(&c, r.z, loop) < 1e-9);
    solved_free(&r);
    free(z0), free(loop);
    dpcr_context_destroy(context);
}

// A guess that is right but for an infinity, or for a NaN, is not taken for converged there.
static void guesses_that_are_not_finite(void **state) {
    (void)state;
    const double bad[] = {INFINITY, -INFINITY, NAN};
    dpcr_context *context = solving_context(1);
    for (int m = 0; m < SWEEP_METHODS; m++)
        for (int k = 0; k < 3; k++)
            for (int64_t at = 0; at < 30; at += 29) {
                chain c = tanh_chain(30, 1, 2, DPCR_F64);
                void *z0 = starts(&c);
                double *loop = loop_of(&c, z0), *guess = loop_of(&c, z0);
                guess[2 * at] = bad[k];
                const dpcr_solve_options options = {.size = sizeof options,
                                                    .method = sweep_methods[m],
                                                    .scheme = DPCR_SCHEME_PCR,
                                                    .backward = DPCR_SCHEME_SEQUENTIAL,
                                                    .guess = DPCR_GUESS_GIVEN};
                const dpcr_steps steps = chain_steps(&c);
                solved r = solve_steps(context, &steps, &c, z0, &options, guess, 0);
                assert_true(r.report.reason > 0);
                assert_true(largest_error(&c, r.z, loop) < 1e-8);
                solved_free(&r);
                free(z0), free(loop), free(guess);
            }
    dpcr_context_destroy(context);
}

// What is claimed of residuals holds for the states that come back, however steep the chain.
// Few steps are the loop's before an estimate says so, and none is told then.
static void short_chains_are_exact(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    for (int64_t length = 1; length <= 4; length++)
        for (int shooting = 0; shooting < 2; shooting++) {
            chain c = tanh_chain(length, 2, 2, DPCR_F64);
            void *z0 = starts(&c), *loop = loop_of(&c, z0);
            const dpcr_solve_options o = {.size = sizeof o,
                                          .method = shooting ? DPCR_METHOD_SHOOTING : DPCR_METHOD_NEWTON,
                                          .chunk = 1,
                                          .guess = DPCR_GUESS_ZERO,
                                          .atol = 1e-12,
                                          .rtol = 1e-12};
            solved s = solve(context, &c, z0, &o);
            const bool exact = s.report.reason == DPCR_REASON_EXACT;
            assert_true(exact || (length > 1 && s.report.reason == DPCR_REASON_CONVERGED));
            assert_true(exact ? s.report.error_estimate <= 0 : s.report.error_estimate >= 0);
            assert_true(!exact || largest_error(&c, s.z, loop) == 0);
            solved_free(&s);
            free(loop), free(z0);
        }
    dpcr_context_destroy(context);
}

static void residuals_are_as_claimed(void **state) {
    (void)state;
    const double steep[2] = {2.5, 0};
    dpcr_context *context = solving_context(1);
    for (int m = 1; m < SWEEP_METHODS; m++) {
        chain c = {.step = step_tanh, .length = 60, .batch = 1, .width = 2, .dtype = DPCR_F64, .parameters = steep};
        double *z0 = starts(&c);
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = sweep_methods[m],
                                            .scheme = DPCR_SCHEME_PCR,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .atol = 1e-3,
                                            .rtol = 1e-3,
                                            .max_sweeps = 1000};
        solved r = solve(context, &c, z0, &options);
        assert_true(r.report.reason > 0);
        for (int64_t l = 0; l < 60; l++) {
            double f[2];
            const double *z = r.z;
            c.step(&c, l, 0, l ? z + 2 * (l - 1) : z0, f, NULL);
            for (int i = 0; i < 2; i++) near(z[2 * l + i], f[i], 1e-3 + 1e-3 * fabs(z[2 * l + i]) + 1e-12);
        }
        solved_free(&r);
        free(z0);
    }
    dpcr_context_destroy(context);
}

// Backward against finite differences of the loop: dLoss/dz0 with a gradient on every step.
static void backward_against_differences(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = tanh_chain(40, 2, 3, DPCR_F64);
    double *z0 = starts(&c);
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR, .backward = DPCR_SCHEME_PCR};
    const dpcr_steps steps = chain_steps(&c);
    solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
    for (int i = 0; i < 6; i++) {
        double loss[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            const double kept = z0[i], h = 1e-5;
            z0[i] = kept + (side ? -h : h);
            double *z = loop_of(&c, z0);
            for (int64_t k = 0; k < 40 * 6; k++) loss[side] += chain_noise(k, 7, 9) * z[k];
            free(z);
            z0[i] = kept;
        }
        near(((double *)r.dz0)[i], (loss[0] - loss[1]) / 2e-5, 1e-8);
    }
    solved_free(&r);
    free(z0);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_prefix),
        cmocka_unit_test(affine_takes_one_sweep),
        cmocka_unit_test(golden_mlp),
        cmocka_unit_test(golden_backward),
        cmocka_unit_test(rotation_and_compressor),
        cmocka_unit_test(lorenz),
        cmocka_unit_test(chaotic_falls_back),
        cmocka_unit_test(chaos_is_not_called_converged),
        cmocka_unit_test(growing_residual_network),
        cmocka_unit_test(error_estimate_bounds_error),
        cmocka_unit_test(not_finite_stays_alone),
        cmocka_unit_test(an_edge_is_not_the_end),
        cmocka_unit_test(parareal_keeps_signs),
        cmocka_unit_test(batch_equals_separate),
        cmocka_unit_test(fused_sweeps_have_the_same_bits),
        cmocka_unit_test(agrees_with_loop),
        cmocka_unit_test(structures_of_the_jacobian),
        cmocka_unit_test(large_shooting),
        cmocka_unit_test(many_sequences_in_small_windows),
        cmocka_unit_test(guesses_that_are_not_finite),
        cmocka_unit_test(short_chains_are_exact),
        cmocka_unit_test(residuals_are_as_claimed),
        cmocka_unit_test(backward_against_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
