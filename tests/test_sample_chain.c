// SPDX-License-Identifier: MIT
// Samplers as chains: callbacks that agree, every method the loop's result, bits that depend on nothing else,
// inpainting, denoisers that explode.
#include "sampling_chain.h"

static void callbacks_agree(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    for (int i = 0; i < VARIANTS; i++) {
        const dpcr_sampler_options options = options_of(&variants[i]);
        dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
        const dpcr_steps *steps = dpcr_sampler_steps(sampler);
        double z0[B * 2 * W];
        const dpcr_array start = dpcr_array_make(z0, DPCR_F64, 2, (const int64_t[]){B, steps->width});
        dpcr_error error = {0};
        assert_int_equal(dpcr_sampler_start(sampler, NULL, &start, NULL), DPCR_OK);
        if (dpcr_steps_check(context, steps, &start, 1e-4, &error) != DPCR_OK)
            fail_msg("%s (%d): %s", dpcr_sampler_name(variants[i].kind), i, error.text);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

static void every_method_is_the_loop(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON,  DPCR_METHOD_DIAGONAL, DPCR_METHOD_BLOCK,
                                          DPCR_METHOD_PICARD,  DPCR_METHOD_JACOBI,   DPCR_METHOD_DAMPED,
                                          DPCR_METHOD_OVERLAP, DPCR_METHOD_SHOOTING, DPCR_METHOD_AUTO};
    for (int i = 0; i < VARIANTS; i++) {
        const dpcr_sampler_options options = options_of(&variants[i]);
        dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        solved loop = solve_sampler(context, sampler, &in_order, NULL);
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++)
            for (int64_t window = 0; window < N; window += 7) {
                dpcr_solve_options by = by_method(methods[k]);
                by.window = window;
                by.warm_up = 8;
                solved got = solve_sampler(context, sampler, &by, NULL);
                const double distance = path_distance(&got, &loop);
                if (!(distance < 1e-7) || got.report.reason < 0)
                    fail_msg("%s (%d) by %s, window %d: %g", dpcr_sampler_name(variants[i].kind), i,
                             dpcr_method_name(methods[k]), (int)window, distance);
                if (methods[k] == DPCR_METHOD_NEWTON && !window) assert_true(got.report.sweeps <= 12);
                path_free(&got);
            }
        path_free(&loop);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

// Tolerance 0: sweeps go on until the bits repeat, and then they are the loop's.
static void tolerance_zero_is_the_loop_bit_for_bit(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.2};
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL, DPCR_METHOD_PICARD,
                                          DPCR_METHOD_JACOBI};
    for (int i = 0; i < VARIANTS; i++) {
        const dpcr_sampler_options options = options_of(&variants[i]);
        dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        solved loop = solve_sampler(context, sampler, &in_order, NULL);
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
            dpcr_solve_options by = by_method(methods[k]);
            by.atol = by.rtol = -1;
            solved got = solve_sampler(context, sampler, &by, NULL);
            assert_int_equal(got.report.reason, DPCR_REASON_EXACT);
            for (int64_t p = 0; p < got.length * got.batch * got.width; p++)
                assert_true(((float *)got.z)[p] == ((float *)loop.z)[p]);
            path_free(&got);
        }
        path_free(&loop);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

static void an_affine_denoiser_takes_one_sweep(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.1, .affine = true};
    for (int i = 0; i < VARIANTS; i++) {
        if (variants[i].clip > 0) continue;
        const dpcr_sampler_options options = options_of(&variants[i]);
        dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
        dpcr_solve_options by = by_method(DPCR_METHOD_NEWTON);
        by.atol = by.rtol = 1e-9;
        solved got = solve_sampler(context, sampler, &by, NULL);
        assert_int_equal(got.report.reason, DPCR_REASON_CONVERGED);
        assert_int_equal(got.report.sweeps, 1);
        path_free(&got);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

// k sweeps make the first k states the loop's, bit for bit, whatever the method.
static void k_sweeps_make_k_steps(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 2};
    const dpcr_sampler_options options = options_of(&variants[0]);
    dpcr_sampler *sampler = make(context, &f, &variants[0], &options, 1);
    const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
    solved loop = solve_sampler(context, sampler, &in_order, NULL);
    for (int sweeps = 1; sweeps < 12; sweeps += 3) {
        dpcr_solve_options by = by_method(DPCR_METHOD_PICARD);
        by.max_sweeps = sweeps;
        by.no_fallback = 1;
        by.atol = by.rtol = -1;
        solved got = solve_sampler(context, sampler, &by, NULL);
        assert_int_equal(got.report.reason, DPCR_REASON_NOT_CONVERGED);
        for (int64_t p = 0; p < sweeps * W; p++) assert_true(((float *)got.z)[p] == ((float *)loop.z)[p]);
        path_free(&got);
    }
    path_free(&loop);
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

// A sample depends on its seed and number alone.
static void a_sample_is_its_own(void **state) {
    (void)state;
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.4};
    for (int i = 0; i < VARIANTS; i++) {
        dpcr_context *one = sampling_context(1), *three = sampling_context(3);
        dpcr_sampler_options options = options_of(&variants[i]);
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        dpcr_sampler *sampler = make(three, &f, &variants[i], &options, 5);
        solved all = solve_sampler(three, sampler, &in_order, NULL);
        dpcr_sampler_destroy(sampler);
        options.first_sample = 3;
        sampler = make(one, &f, &variants[i], &options, 1);
        solved alone = solve_sampler(one, sampler, &in_order, NULL);
        dpcr_sampler_destroy(sampler);
        const size_t bytes = sizeof(float) * (size_t)all.width;
        assert_memory_equal((const char *)path_end(&all) + 3 * bytes, path_end(&alone), bytes);
        path_free(&alone);
        options.seed++;
        sampler = make(one, &f, &variants[i], &options, 1);
        solved other = solve_sampler(one, sampler, &in_order, NULL);
        dpcr_sampler_destroy(sampler);
        assert_true(memcmp((const char *)path_end(&all) + 3 * bytes, path_end(&other), bytes) != 0);
        path_free(&other);
        path_free(&all);
        dpcr_context_destroy(one);
        dpcr_context_destroy(three);
    }
}

static void noise_is_normal(void **state) {
    (void)state;
    enum { MANY = 4000 };
    dpcr_context *context = sampling_context(2);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0};
    const dpcr_denoiser denoiser = formula_denoiser(&f, DPCR_PREDICT_EPSILON);
    const dpcr_sampler_options options = {.size = sizeof options, .steps = 1, .seed = 2};
    dpcr_sampler *sampler = NULL;
    double *z = malloc(sizeof *z * MANY * W), sum = 0, square = 0, cube = 0, fourth = 0, mixed = 0;
    const dpcr_array z0 = dpcr_array_make(z, DPCR_F64, 2, (const int64_t[]){MANY, W});
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, MANY, &sampler, NULL), DPCR_OK);
    assert_int_equal(dpcr_sampler_start(sampler, NULL, &z0, NULL), DPCR_OK);
    for (int i = 0; i < MANY * W; i++) {
        const double x = z[i];
        sum += x, square += x * x, cube += x * x * x, fourth += x * x * x * x;
        if (i % W) mixed += x * z[i - 1];
    }
    const double n = MANY * W;
    assert_true(fabs(sum / n) < 0.03 && fabs(square / n - 1) < 0.04 && fabs(cube / n) < 0.08);
    assert_true(fabs(fourth / n - 3) < 0.25 && fabs(mixed / n) < 0.03);
    free(z);
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

// Inpainting: at the end the known places are what is known; the others differ from a path without it; methods agree.
static void known_places_stay(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    const double mask[W] = {1, 0, 1, 0, 0, 1};
    double known[B * W];
    for (int i = 0; i < B * W; i++) known[i] = 0.1 * i - 0.7;
    const dpcr_array mask_view = dpcr_array_make((void *)(uintptr_t)mask, DPCR_F64, 1, (const int64_t[]){W});
    const dpcr_array known_view = dpcr_array_make(known, DPCR_F64, 2, (const int64_t[]){B, W});
    for (int i = 0; i < VARIANTS; i++) {
        dpcr_sampler_options options = options_of(&variants[i]);
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL), newton = by_method(DPCR_METHOD_NEWTON);
        dpcr_sampler *free_one = make(context, &f, &variants[i], &options, B);
        options.mask = &mask_view;
        options.known = &known_view;
        dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
        solved plain = solve_sampler(context, free_one, &in_order, NULL);
        solved loop = solve_sampler(context, sampler, &in_order, NULL),
               by = solve_sampler(context, sampler, &newton, NULL);
        assert_true(path_distance(&loop, &by) < 1e-7);
        const double *end = path_end(&loop), *other = path_end(&plain);
        for (int64_t b = 0; b < B; b++)
            for (int64_t k = 0; k < W; k++) {
                if (mask[k] != 0) assert_true(end[b * loop.width + k] == known[b * W + k]);
                if (mask[k] == 0 && variants[i].clip == 0)
                    assert_true(end[b * loop.width + k] != other[b * loop.width + k]);
            }
        double z0[B * 2 * W];
        const dpcr_array start = dpcr_array_make(z0, DPCR_F64, 2, (const int64_t[]){B, loop.width});
        dpcr_error error = {0};
        assert_int_equal(dpcr_sampler_start(sampler, NULL, &start, NULL), DPCR_OK);
        if (dpcr_steps_check(context, dpcr_sampler_steps(sampler), &start, 1e-4, &error) != DPCR_OK)
            fail_msg("%s", error.text);
        path_free(&plain);
        path_free(&loop);
        path_free(&by);
        dpcr_sampler_destroy(free_one);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

static void a_denoiser_that_explodes_ends_as_the_loop(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.35, .explodes = true};
    const dpcr_sampler_options options = options_of(&variants[2]);
    dpcr_sampler *sampler = make(context, &f, &variants[2], &options, B);
    const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
    solved loop = solve_sampler(context, sampler, &in_order, NULL);
    bool finite = true;
    for (int64_t i = 0; i < loop.length * loop.batch * loop.width; i++)
        finite = finite && isfinite(((float *)loop.z)[i]);
    assert_false(finite);
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL, DPCR_METHOD_PICARD};
    for (int k = 0; k < 3; k++) {
        const dpcr_solve_options by = by_method(methods[k]);
        solved got = solve_sampler(context, sampler, &by, NULL);
        assert_true(got.report.reason == DPCR_REASON_NONFINITE || got.report.reason == DPCR_REASON_FALLBACK);
        for (int64_t i = 0; i < got.length * got.batch * got.width; i++) {
            const float a = ((float *)got.z)[i], b = ((float *)loop.z)[i];
            assert_true((isnan(a) && isnan(b)) || a == b || fabsf(a - b) <= 1e-3f * fabsf(b));
        }
        path_free(&got);
    }
    path_free(&loop);
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

// ---- parareal and parataa ----

static void parareal_and_parataa_are_the_loop(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int i = 0; i < VARIANTS; i++) {
            formula f = {.width = W, .dtype = (dpcr_dtype)dtype, .gain = 0.2};
            const dpcr_sampler_options options = options_of(&variants[i]);
            dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
            const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
            solved loop = solve_sampler(context, sampler, &in_order, NULL);
            static const dpcr_solve_options ways[] = {
                {.method = DPCR_METHOD_PARAREAL},
                {.method = DPCR_METHOD_PARAREAL, .chunk = 7},
                {.method = DPCR_METHOD_PARAREAL, .chunk = 100},
                {.method = DPCR_METHOD_PARATAA},
                {.method = DPCR_METHOD_PARATAA, .guess = DPCR_GUESS_STATE, .window = 9, .order = 3},
                {.method = DPCR_METHOD_PARATAA, .mixed = 1},
                {.method = DPCR_METHOD_PARATAA, .guess = DPCR_GUESS_STATE, .mixed = 4, .window = 13},
                {.method = DPCR_METHOD_PARATAA, .order = 5, .mixed = 3},
            };
            for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
                for (int exact = 0; exact < 2; exact++) {
                    dpcr_solve_options by = ways[k];
                    by.size = sizeof by;
                    by.atol = by.rtol = exact ? -1 : dtype == DPCR_F64 ? 1e-9 : 1e-5;
                    solved got = solve_sampler(context, sampler, &by, NULL);
                    const double far = path_distance(&got, &loop);
                    if (exact ? far != 0 : !(far < (dtype == DPCR_F64 ? 1e-6 : 2e-2)))
                        fail_msg("%s (%d), way %d, exact %d: %g after %d sweeps", dpcr_sampler_name(variants[i].kind),
                                 i, (int)k, exact, far, got.report.sweeps);
                    if (exact) assert_int_equal(got.report.reason, DPCR_REASON_EXACT);
                    const int64_t chunks = by.chunk ? (N + by.chunk - 1) / by.chunk : 5;
                    if (by.method == DPCR_METHOD_PARAREAL) assert_true(got.report.sweeps <= chunks);
                    assert_true(got.report.sweeps <= N + 1);
                    path_free(&got);
                }
            path_free(&loop);
            dpcr_sampler_destroy(sampler);
        }
    dpcr_context_destroy(context);
}

// A sample's bits do not depend on its neighbours; a budget that is spent ends in order; what explodes ends as the
// loop; p sweeps of parareal make the first p chunks the loop's.
static void parareal_and_parataa_at_their_limits(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    for (int m = DPCR_METHOD_PARAREAL; m <= DPCR_METHOD_PARATAA; m++)
        for (int window = 0; window < 20; window += 11) {
            formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.3};
            dpcr_sampler_options options = options_of(&variants[0]);
            dpcr_solve_options by = by_method((dpcr_method)m);
            by.atol = by.rtol = 1e-3;
            by.confirm = window ? 0.05 : 0;
            by.window = window;
            dpcr_sampler *sampler = make(context, &f, &variants[0], &options, 5);
            solved all = solve_sampler(context, sampler, &by, NULL);
            dpcr_sampler_destroy(sampler);
            for (int b = 0; b < 5; b++) {
                options.first_sample = b;
                sampler = make(context, &f, &variants[0], &options, 1);
                solved one = solve_sampler(context, sampler, &by, NULL);
                for (int l = 0; l < N; l++)
                    assert_memory_equal((float *)one.z + l * W, (float *)all.z + (l * 5 + b) * W, W * sizeof(float));
                path_free(&one);
                dpcr_sampler_destroy(sampler);
            }
            path_free(&all);
            for (int explodes = 0; explodes < 2; explodes++) {
                f.explodes = explodes;
                if (explodes) f.gain = 0.35;
                const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
                options.first_sample = 0;
                sampler = make(context, &f, &variants[2], &options, B);
                solved loop = solve_sampler(context, sampler, &in_order, NULL);
                by.max_sweeps = explodes ? 100 : 2;
                by.atol = by.rtol = -1;
                solved got = solve_sampler(context, sampler, &by, NULL);
                assert_int_equal(got.report.reason, explodes ? DPCR_REASON_NONFINITE : DPCR_REASON_FALLBACK);
                for (int64_t i = 0; i < N * B * W; i++) {
                    const float x = ((float *)got.z)[i], y = ((float *)loop.z)[i];
                    assert_true(x == y || (isnan(x) && isnan(y)));
                }
                by.no_fallback = 1;
                by.max_sweeps = 1;
                solved cut = solve_sampler(context, sampler, &by, NULL);
                if (!explodes) assert_int_equal(cut.report.reason, DPCR_REASON_NOT_CONVERGED);
                const int64_t right = (m == DPCR_METHOD_PARAREAL ? 5 : 1) * (int64_t)W;
                for (int64_t b = 0; b < B && !explodes; b++)
                    for (int64_t i = 0; i < right; i++) {
                        const int64_t at = i / W * B * W + b * W + i % W;
                        assert_true(((float *)cut.z)[at] == ((float *)loop.z)[at]);
                    }
                by.no_fallback = by.max_sweeps = 0;
                path_free(&cut);
                path_free(&got);
                path_free(&loop);
                dpcr_sampler_destroy(sampler);
            }
        }
    dpcr_context_destroy(context);
}

// ---- error estimates ----

// With `confirm` the result is within it of the loop and the estimate no less than the error; without, residuals of the
// same size leave more. As tolerances are per number times max(1, |z|), so are distances here.
static void estimates_are_no_less_than_the_error(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    static const dpcr_method methods[] = {DPCR_METHOD_PICARD, DPCR_METHOD_DIAGONAL, DPCR_METHOD_PARATAA,
                                          DPCR_METHOD_PARAREAL};
    int confirmed = 0;
    for (int i = 0; i < VARIANTS; i++)
        for (size_t k = 0; k < 4; k++)
            for (int tight = 0; tight < 3; tight++) {
                formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.15 + 0.1 * tight};
                const dpcr_sampler_options options = options_of(&variants[i]);
                dpcr_sampler *sampler = make(context, &f, &variants[i], &options, 1);
                const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
                solved loop = solve_sampler(context, sampler, &in_order, NULL);
                dpcr_solve_options by = by_method(methods[k]);
                by.atol = by.rtol = 1e-2;
                solved bare = solve_sampler(context, sampler, &by, NULL);
                by.confirm = tight == 2 ? -1 : tight ? 1e-7 : 1e-2;
                solved got = solve_sampler(context, sampler, &by, NULL);
                const double far = path_distance(&got, &loop), estimate = got.report.error_estimate;
                if (tight == 2 && methods[k] != DPCR_METHOD_PARAREAL) {
                    assert_true(got.report.reason == DPCR_REASON_RESIDUAL_ONLY ||
                                got.report.reason == DPCR_REASON_EXACT);
                } else if (got.report.reason == DPCR_REASON_CONVERGED) {
                    assert_true(estimate >= 0 && estimate <= by.confirm);
                    confirmed++;
                } else {
                    assert_true(tight == 2 || got.report.reason == DPCR_REASON_FALLBACK ||
                                got.report.reason == DPCR_REASON_EXACT);
                }
                double scale = 1;
                for (int64_t p = 0; p < loop.length * loop.width; p++) scale = fmax(scale, fabs(((double *)loop.z)[p]));
                if (estimate >= 0 && !(far <= scale * estimate + 1e-12))
                    fail_msg("%s (%d) by %s, %d: estimate %g, error %g", dpcr_sampler_name(variants[i].kind), i,
                             dpcr_method_name(methods[k]), tight, estimate, far);
                path_free(&loop), path_free(&bare), path_free(&got);
                dpcr_sampler_destroy(sampler);
            }
    assert_true(confirmed > 40);
    dpcr_context_destroy(context);
}

// The same over paths drawn at random, few steps and many, eta up to 1, with and without clipping, loose and tight: an
// estimate is no bound, so a few may fall short, none by far.
static void estimates_seldom_fall_short(void **state) {
    (void)state;
    enum { PATHS = 120 };
    static const dpcr_method methods[] = {DPCR_METHOD_PICARD, DPCR_METHOD_DIAGONAL, DPCR_METHOD_PARATAA};
    static const int64_t lengths[] = {2, 3, 4, 5, 7, 9, 12, 16, 24, 40};
    dpcr_context *context = sampling_context(1);
    int estimates = 0, below = 0;
    uint64_t random = 1;
    for (int path = 0; path < PATHS; path++) {
        double u[8];
        for (int i = 0; i < 8; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            u[i] = (double)(random >> 11) * 0x1p-53;
        }
        variant v = variants[(int)(u[0] * VARIANTS)];
        if (v.kind == DPCR_SAMPLER_DDIM) v.eta = floor(3 * u[1]) / 2;
        if (u[2] < 0.5) v.clip = 0;
        formula f = {.width = 1 + (int64_t)(8 * u[3]), .dtype = DPCR_F64, .gain = 0.02 + 0.5 * u[4]};
        dpcr_sampler_options options = options_of(&v);
        options.steps = lengths[(int)(10 * u[5])];
        options.seed = (uint64_t)path + 1;
        dpcr_sampler *sampler = make(context, &f, &v, &options, 1);
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        solved loop = solve_sampler(context, sampler, &in_order, NULL);
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
            dpcr_solve_options by = by_method(methods[k]);
            by.confirm = pow(10, -5 * u[6]);
            by.atol = by.rtol = by.confirm * (u[7] < 0.5 ? 0.1 : 10);
            solved got = solve_sampler(context, sampler, &by, NULL);
            const double estimate = got.report.error_estimate;
            double error = 0;
            for (int64_t l = 0; l < got.length; l++) {
                double most = 0, scale = 1;
                for (int64_t i = l * got.width; i < (l + 1) * got.width; i++) {
                    most = fmax(most, fabs(((double *)got.z)[i] - ((double *)loop.z)[i]));
                    scale = fmax(scale, fabs(((double *)loop.z)[i]));
                }
                error = fmax(error, most / scale);
            }
            if (estimate >= 0) estimates++, below += error > estimate + 1e-12;
            if (!(estimate < 0 ? error < 1e-9 : error <= 3 * estimate + 1e-12))
                fail_msg("path %d by %s: estimate %g, error %g, %d steps, reason %d", path,
                         dpcr_method_name(methods[k]), estimate, error, (int)options.steps, (int)got.report.reason);
            path_free(&got);
        }
        path_free(&loop);
        dpcr_sampler_destroy(sampler);
    }
    print_message("%d of %d estimates below the error\n", below, estimates);
    assert_true(estimates > 2 * PATHS && 50 * below <= estimates);
    dpcr_context_destroy(context);
}

// One step over a span is the sampler's own step where the span is one, noise and all; its Jacobian agrees with central
// differences. (dpm-solver++'s own step knows the one before.)
static void coarse_steps_are_longer_steps(void **state) {
    (void)state;
    enum { SPAN = 5, LANES = 3 };
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    for (int i = 0; i < VARIANTS; i++) {
        const dpcr_sampler_options options = options_of(&variants[i]);
        dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
        const dpcr_steps *s = dpcr_sampler_steps(sampler);
        const int64_t w = s->width, all = LANES * B * w, shape[3] = {LANES, B, w}, squares[3] = {LANES, B, w * w};
        double in[LANES * B * 2 * W], out[LANES * B * 2 * W], longer[LANES * B * 2 * W], a[LANES * B * 4 * W * W];
        for (int64_t k = 0; k < all; k++) in[k] = 0.7 * sin((double)k);
        const dpcr_array from = dpcr_array_make(in, DPCR_F64, 3, shape), to = dpcr_array_make(out, DPCR_F64, 3, shape),
                         coarse = dpcr_array_make(longer, DPCR_F64, 3, shape),
                         jacobian = dpcr_array_make(a, DPCR_F64, 3, squares);
        dpcr_span span = {.size = sizeof span, .lanes = LANES, .stride = 7, .steps = 1, .rows = B};
        for (span.first = 0; span.first < N - 2 * 7 && variants[i].kind != DPCR_SAMPLER_DPM_SOLVER; span.first += 3) {
            assert_int_equal(s->advance(s->user, &span, &from, NULL, &to, NULL), 0);
            assert_int_equal(s->coarse(s->user, &span, &from, &coarse), 0);
            for (int64_t k = 0; k < all; k++) assert_true(fabs(out[k] - longer[k]) < 1e-12);
        }
        span.first = 2, span.steps = SPAN;
        assert_int_equal(s->coarse(s->user, &span, &from, &coarse), 0);
        assert_int_equal(s->coarse_linearise(s->user, &span, &from, &to, &jacobian), 0);
        assert_memory_equal(out, longer, (size_t)all * sizeof *out);
        for (int64_t q = 0; q < w; q++) {
            const double h = 1e-5;
            for (int side = 0; side < 2; side++) {
                for (int64_t k = q; k < all; k += w) in[k] += side ? -h : h;
                assert_int_equal(s->coarse(s->user, &span, &from, side ? &coarse : &to), 0);
                for (int64_t k = q; k < all; k += w) in[k] -= side ? -h : h;
            }
            for (int64_t k = 0; k < all; k++)
                if (fabs((out[k] - longer[k]) / (2 * h) - a[k * w + q]) > 1e-6)
                    fail_msg("%s (%d): d %d / d %d is %g by differences, %g", dpcr_sampler_name(variants[i].kind), i,
                             (int)(k % w), (int)q, (out[k] - longer[k]) / (2 * h), a[k * w + q]);
        }
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

static int no_coarse(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    (void)user, (void)span, (void)in, (void)last;
    return 1;
}

static int no_jacobian(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last,
                       const dpcr_array *a) {
    (void)user, (void)span, (void)in, (void)last, (void)a;
    return 1;
}

static int abort_coarse(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    (void)user, (void)span, (void)in, (void)last;
    return -7;
}

// Where coarse steps cannot be made nothing is estimated by them: chunks run until they are the loop's, or so many that
// what is left hangs on none. What was locked stays so meanwhile. A coarse step that aborts ends the solve with its
// code.
static void coarse_steps_that_are_missing(void **state) {
    (void)state;
    static const dpcr_method methods[] = {DPCR_METHOD_PICARD, DPCR_METHOD_PARATAA, DPCR_METHOD_PARAREAL};
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    const dpcr_sampler_options options = options_of(&variants[2]);
    dpcr_sampler *sampler = make(context, &f, &variants[2], &options, B);
    const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
    solved loop = solve_sampler(context, sampler, &in_order, NULL);
    for (size_t k = 0; k < 3; k++)
        for (int way = 0; way < 3; way++) {
            dpcr_steps steps = *dpcr_sampler_steps(sampler);
            if (way != 2) steps.coarse = no_coarse;
            steps.coarse_linearise = way ? no_jacobian : NULL;
            dpcr_solve_options by = by_method(methods[k]);
            by.atol = by.rtol = 1e-3, by.confirm = 1e-2;
            int64_t locked[64] = {0};
            const dpcr_solve_report report = {.locked_history = locked, .history_capacity = 64};
            solved got = solve_steps(context, sampler, &steps, &by, NULL, &report);
            assert_true(got.report.history_length > 2 && got.report.history_length <= 64);
            for (int64_t i = 1; i < got.report.history_length; i++) assert_true(locked[i] >= locked[i - 1]);
            double scale = 1;
            for (int64_t i = 0; i < N * B * W; i++) scale = fmax(scale, fabs(((double *)loop.z)[i]));
            const double far = path_distance(&got, &loop), estimate = got.report.error_estimate;
            const bool exact = got.report.reason == DPCR_REASON_EXACT;
            if (!(exact ? far == 0 : got.report.reason == DPCR_REASON_CONVERGED && far <= scale * estimate))
                fail_msg("%s, way %d: reason %d after %d sweeps, estimate %g, error %g", dpcr_method_name(methods[k]),
                         way, (int)got.report.reason, got.report.sweeps, estimate, far);
            path_free(&got);
            if (way || methods[k] == DPCR_METHOD_PICARD) continue;
            steps.coarse = abort_coarse;
            dpcr_solve_plan *plan = NULL;
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &by, &plan, NULL), DPCR_OK);
            const size_t bytes = dpcr_solve_plan_workspace(plan);
            void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
            const int64_t shape[3] = {N, B, W};
            const dpcr_array z0 = dpcr_array_make(loop.z0, DPCR_F64, 2, shape + 1);
            double z[N * B * W];
            const dpcr_array states = dpcr_array_make(z, DPCR_F64, 3, shape);
            dpcr_error error = {0};
            assert_int_equal(dpcr_solve_execute(plan, &z0, &states, NULL, workspace, bytes, NULL, &error),
                             DPCR_ERROR_CALLBACK);
            assert_int_equal(error.code, -7);
            assert_non_null(strstr(error.text, "coarse"));
            free(workspace);
            dpcr_solve_plan_destroy(plan);
        }
    path_free(&loop);
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

// ParaDiGMS as its authors state it, written out for one sample: the window's states move by the sum of their drifts;
// it goes on past the steps whose corrections' mean square is within (tolerance sigma)^2, and the next.
static void locks_of_paradigms(void **state) {
    (void)state;
    enum { WINDOW = 9 };
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.4};
    const dpcr_sampler_options options = options_of(&variants[0]);
    dpcr_sampler *sampler = make(context, &f, &variants[0], &options, 1);
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    double x[N + 1][W], scale[N], fx[N][W], next[N + 1][W];
    const dpcr_array z0 = dpcr_array_make(x[0], DPCR_F64, 2, (const int64_t[]){1, W});
    const double tolerance = 0.1;
    int sweeps = 0;
    assert_int_equal(dpcr_sampler_scale(sampler, scale, NULL), DPCR_OK);
    assert_int_equal(dpcr_sampler_start(sampler, NULL, &z0, NULL), DPCR_OK);
    for (int l = 1; l <= N; l++) memcpy(x[l], x[0], sizeof x[0]);
    for (int begin = 0; begin < N; sweeps++) {
        const int end = begin + WINDOW < N ? begin + WINDOW : N;
        const dpcr_span span = {.size = sizeof span,
                                .first = begin,
                                .lanes = end - begin,
                                .stride = 1,
                                .steps = 1,
                                .rows = 1,
                                .device = {DPCR_HOST, 0}};
        const int64_t shape[3] = {end - begin, 1, W};
        const dpcr_array in = dpcr_array_make(x[begin], DPCR_F64, 3, shape);
        const dpcr_array out = dpcr_array_make(fx[begin], DPCR_F64, 3, shape);
        assert_int_equal(steps->advance(steps->user, &span, &in, NULL, &out, NULL), 0);
        int good = 0;
        memcpy(next[begin], x[begin], sizeof next[begin]);
        for (int l = begin; l < end; l++) {
            double square = 0;
            for (int i = 0; i < W; i++) {
                next[l + 1][i] = next[l][i] + (fx[l][i] - x[l][i]);
                square += (next[l + 1][i] - x[l + 1][i]) * (next[l + 1][i] - x[l + 1][i]);
            }
            if (good == l - begin && square / W <= tolerance * tolerance * scale[l] * scale[l]) good++;
        }
        memcpy(x[begin + 1], next[begin + 1], sizeof next[0] * (size_t)(end - begin));
        begin += good + 1 < end - begin ? good + 1 : end - begin;
        for (int l = end + 1; l <= N; l++) memcpy(x[l], x[end], sizeof x[0]);
    }
    dpcr_solve_options by = by_method(DPCR_METHOD_PICARD);
    by.atol = by.rtol = tolerance, by.step_scale = scale, by.lock = DPCR_LOCK_MEAN_SQUARE;
    by.window = WINDOW, by.guess = DPCR_GUESS_STATE;
    solved got = solve_sampler(context, sampler, &by, NULL);
    assert_int_equal(got.report.reason, DPCR_REASON_SCALED);
    assert_int_equal(got.report.sweeps, sweeps);
    for (int l = 0; l < N; l++)
        for (int i = 0; i < W; i++) assert_true(fabs(((double *)got.z)[l * W + i] - x[l + 1][i]) < 1e-9);
    path_free(&got);
    by.method = DPCR_METHOD_NEWTON;
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, steps, &by, &plan, NULL), DPCR_ERROR_UNSUPPORTED);
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

// From another sample's path, and from the path of the sample itself: no sweep too many, and the same pictures.
static void paths_of_others_are_guesses(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_PICARD, DPCR_METHOD_PARATAA,
                                          DPCR_METHOD_PARAREAL};
    const dpcr_sampler_options options = options_of(&variants[2]);
    dpcr_sampler *sampler = make(context, &f, &variants[2], &options, 1);
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
    solved loop = solve_sampler(context, sampler, &in_order, NULL);
    for (int k = 0; k < 4; k++)
        for (int near = 0; near < 2; near++) {
            dpcr_solve_options by = by_method(methods[k]);
            by.atol = by.rtol = 1e-8;
            solved cold = solve_sampler(context, sampler, &by, NULL);
            by.guess = DPCR_GUESS_GIVEN;
            dpcr_solve_plan *plan = NULL;
            assert_int_equal(dpcr_solve_plan_create(context, steps, &by, &plan, NULL), DPCR_OK);
            const size_t bytes = dpcr_solve_plan_workspace(plan);
            void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
            double z[N * W];
            for (int i = 0; i < N * W; i++) z[i] = ((double *)loop.z)[i] + (near ? 1e-5 * cos(i) : 0);
            const dpcr_array z0 = dpcr_array_make(loop.z0, DPCR_F64, 2, (const int64_t[]){1, W});
            const dpcr_array states = dpcr_array_make(z, DPCR_F64, 3, (const int64_t[]){N, 1, W});
            dpcr_solve_report report = {.size = sizeof report};
            assert_int_equal(dpcr_solve_execute(plan, &z0, &states, NULL, workspace, bytes, &report, NULL), DPCR_OK);
            for (int i = 0; i < N * W; i++) assert_true(fabs(z[i] - ((double *)loop.z)[i]) < 1e-5);
            if (near)
                assert_true(report.sweeps < cold.report.sweeps);
            else
                assert_true(report.sweeps <= 1);
            free(workspace);
            dpcr_solve_plan_destroy(plan);
            path_free(&cold);
        }
    path_free(&loop);
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

// The planner weighs all that samplers offer, and says so.
static void auto_weighs_them(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.2};
    dpcr_sampler_options options = options_of(&variants[2]);
    options.steps = 100;
    dpcr_sampler *sampler = make(context, &f, &variants[2], &options, 1);
    dpcr_solve_options by = by_method(DPCR_METHOD_AUTO);
    by.atol = by.rtol = 1e-3;
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &by, &plan, NULL), DPCR_OK);
    unsigned seen = 0;
    dpcr_candidate c = {.size = sizeof c};
    for (int i = 0; dpcr_solve_plan_candidate(plan, i, &c); i++) {
        if (!c.backward) seen |= 1u << c.method;
        assert_true(c.seconds > 0 && c.workspace > 0);
    }
    const unsigned wanted = 1u << DPCR_METHOD_SEQUENTIAL | 1u << DPCR_METHOD_NEWTON | 1u << DPCR_METHOD_PICARD |
                            1u << DPCR_METHOD_PARAREAL | 1u << DPCR_METHOD_PARATAA;
    assert_int_equal(seen & wanted, wanted);
    assert_non_null(strstr(dpcr_solve_plan_sentence(plan), "parareal"));
    dpcr_solve_plan_destroy(plan);
    // Of the sweeps that a solve took, those that confirmed are priced apart; what is exact had none.
    static const struct {
        dpcr_reason reason;
        double confirm;
        int learned;
    } solves[] = {{DPCR_REASON_RESIDUAL_ONLY, -1, 7},
                  {DPCR_REASON_CONVERGED, 1e-2, 6},
                  {DPCR_REASON_EXACT, -1, 8},
                  {DPCR_REASON_RESIDUAL_ONLY, 0, 8}};
    for (size_t i = 0; i < sizeof solves / sizeof *solves; i++) {
        by.confirm = solves[i].confirm;
        by.method = DPCR_METHOD_PICARD;
        assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &by, &plan, NULL), DPCR_OK);
        const dpcr_solve_report report = {
            .size = sizeof report, .method = by.method, .reason = solves[i].reason, .sweeps = 8};
        assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
        dpcr_solve_plan_destroy(plan);
        by.method = DPCR_METHOD_AUTO;
        assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &by, &plan, NULL), DPCR_OK);
        for (int k = 0; dpcr_solve_plan_candidate(plan, k, &c); k++)
            if (!c.backward && c.method == DPCR_METHOD_PICARD) assert_true(c.sweeps == solves[i].learned);
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

// ParaDiGMS's rule: residuals in units of each step's noise; a reason of its own, and the tolerance is kept in those
// units.
static void tolerances_in_units_of_the_noise(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    for (int i = 0; i < VARIANTS; i++) {
        const dpcr_sampler_options options = options_of(&variants[i]);
        dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
        double scale[N];
        assert_int_equal(dpcr_sampler_scale(sampler, scale, NULL), DPCR_OK);
        for (int l = 0; l < N; l++) {
            double variance = 0;
            assert_int_equal(dpcr_sampler_step(sampler, l, NULL, &variance, NULL), DPCR_OK);
            assert_true(scale[l] > 0 && (variants[i].kind != DPCR_SAMPLER_DDPM || variance == 0 ||
                                         fabs(scale[l] - sqrt(variance)) < 1e-15));
        }
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        solved loop = solve_sampler(context, sampler, &in_order, NULL);
        dpcr_solve_options by = by_method(DPCR_METHOD_PICARD);
        by.atol = by.rtol = 1e-5;
        by.window = 10;
        solved coarse = solve_sampler(context, sampler, &by, NULL);
        by.step_scale = scale;
        solved got = solve_sampler(context, sampler, &by, NULL);
        assert_int_equal(coarse.report.reason, DPCR_REASON_RESIDUAL_ONLY);
        assert_int_equal(got.report.reason, DPCR_REASON_SCALED);
        assert_true(got.report.evaluations >= coarse.report.evaluations);
        assert_true(path_distance(&got, &loop) < 0.05);
        for (int l = 0; l < N; l++) scale[l] = 1;
        solved same = solve_sampler(context, sampler, &by, NULL);
        assert_memory_equal(same.z, coarse.z, path_bytes(&same));
        scale[3] = -1;
        dpcr_solve_plan *plan = NULL;
        dpcr_error error = {0};
        assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &by, &plan, &error),
                         DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "step 3 is -1"));
        by.method = DPCR_METHOD_OVERLAP;
        assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &by, &plan, &error),
                         DPCR_ERROR_UNSUPPORTED);
        path_free(&loop);
        path_free(&coarse);
        path_free(&got);
        path_free(&same);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

static int within_times(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                        void *m) {
    (void)sequences;
    memcpy(m, x, (size_t)(rows * W) * sizeof(double));
    for (int64_t i = 0; i < rows; i++)
        if (!(times[i] >= 0 && times[i] <= *(const double *)user)) return -1;
    return 0;
}

// Heun's second reading at the last step too, where that ends at abar_0.
static void denoisers_are_asked_at_trained_times_alone(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    double last = 999;
    const dpcr_denoiser denoiser = {
        .size = sizeof denoiser, .user = &last, .width = W, .dtype = DPCR_F64, .predict = within_times};
    for (int kind = 0; kind < DPCR_SAMPLER_COUNT; kind++)
        for (int spacing = 0; spacing < DPCR_SPACING_COUNT; spacing++)
            for (int keep = 0; keep < 2; keep++) {
                const dpcr_sampler_options options = {.size = sizeof options,
                                                      .kind = (dpcr_sampler_kind)kind,
                                                      .spacing = (dpcr_spacing)spacing,
                                                      .steps = N,
                                                      .keep_last = keep};
                const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
                dpcr_sampler *sampler = NULL;
                assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, B, &sampler, NULL), DPCR_OK);
                solved loop = solve_sampler(context, sampler, &in_order, NULL);
                path_free(&loop);
                dpcr_sampler_destroy(sampler);
            }
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callbacks_agree),
        cmocka_unit_test(every_method_is_the_loop),
        cmocka_unit_test(tolerance_zero_is_the_loop_bit_for_bit),
        cmocka_unit_test(an_affine_denoiser_takes_one_sweep),
        cmocka_unit_test(k_sweeps_make_k_steps),
        cmocka_unit_test(a_sample_is_its_own),
        cmocka_unit_test(noise_is_normal),
        cmocka_unit_test(known_places_stay),
        cmocka_unit_test(a_denoiser_that_explodes_ends_as_the_loop),
        cmocka_unit_test(parareal_and_parataa_are_the_loop),
        cmocka_unit_test(parareal_and_parataa_at_their_limits),
        cmocka_unit_test(estimates_are_no_less_than_the_error),
        cmocka_unit_test(estimates_seldom_fall_short),
        cmocka_unit_test(coarse_steps_are_longer_steps),
        cmocka_unit_test(coarse_steps_that_are_missing),
        cmocka_unit_test(locks_of_paradigms),
        cmocka_unit_test(paths_of_others_are_guesses),
        cmocka_unit_test(auto_weighs_them),
        cmocka_unit_test(tolerances_in_units_of_the_noise),
        cmocka_unit_test(denoisers_are_asked_at_trained_times_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
