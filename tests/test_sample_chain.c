// SPDX-License-Identifier: MIT
// Samplers as chains: callbacks that agree, every method the loop's result, bits that depend on nothing else,
// inpainting, denoisers that explode.
#include "sampling_chain.h"
#include "sampled.h"

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

// What the chain says it has: the model's kinks, and those of x0 cut.
static void kinks_are_the_models_and_the_clips(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    for (int i = 0; i < VARIANTS; i++)
        for (int kinks = DPCR_KINKS_NONE; kinks <= DPCR_KINKS_AFFINE; kinks++) {
            formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2, .relu = true, .kinks = (dpcr_kinks)kinks};
            const dpcr_sampler_options options = options_of(&variants[i]);
            dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
            int wanted = kinks;
            if (variants[i].clip > 0 || (kinks && variants[i].kind == DPCR_SAMPLER_HEUN)) wanted = DPCR_KINKS_CURVED;
            assert_int_equal(dpcr_sampler_steps(sampler)->kinks, wanted);
            dpcr_sampler_destroy(sampler);
        }
    const dpcr_sampler_options options = options_of(&variants[0]);
    formula f = {.width = W, .dtype = DPCR_F64, .kinks = DPCR_KINKS_AFFINE};
    dpcr_denoiser denoiser = formula_denoiser(&f, DPCR_PREDICT_EPSILON);
    dpcr_sampler *sampler = NULL;
    denoiser.size = offsetof(dpcr_denoiser, kinks);  // of a program that was built before it came
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, B, &sampler, NULL), DPCR_OK);
    assert_int_equal(dpcr_sampler_steps(sampler)->kinks, DPCR_KINKS_NONE);
    dpcr_sampler_destroy(sampler);
    denoiser.size = sizeof denoiser;
    const int wrong[] = {-1, DPCR_KINKS_AFFINE + 1};
    for (int i = 0; i < 2; i++) {
        dpcr_error error = {0};
        denoiser.kinks = (dpcr_kinks)wrong[i];
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, B, &sampler, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "kinks"));
    }
    dpcr_context_destroy(context);
}

// A model of ReLUs that says so: what is called right is the loop's up to rounding, whatever the tolerance.
static void a_denoiser_of_relus_is_right(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_SHOOTING};
    int by_sweeps = 0;
    for (int i = 0; i < VARIANTS; i++)
        for (int draw = 0; draw < 12; draw++) {
            formula f = {
                .width = W, .dtype = DPCR_F64, .gain = 0.1 * (draw + 1), .relu = true, .kinks = DPCR_KINKS_AFFINE};
            const dpcr_sampler_options options = options_of(&variants[i]);
            dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
            const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
            solved loop = solve_sampler(context, sampler, &in_order, NULL);
            double largest = 1;
            for (int64_t n = 0; n < loop.length * loop.batch * loop.width; n++)
                largest = fmax(largest, fabs(number_at(loop.z, loop.dtype, n)));
            for (int k = 0; k < 2; k++) {
                dpcr_solve_options by = by_method(methods[k]);
                by.atol = by.rtol = 1e-2;
                solved got = solve_sampler(context, sampler, &by, NULL);
                const double distance = path_distance(&got, &loop);
                if (!(distance <= 1e-11 * largest) || got.report.reason < 0)
                    fail_msg("%s (%d), gain %g, by %s: %g of %g", dpcr_sampler_name(variants[i].kind), i, f.gain,
                             dpcr_method_name(methods[k]), distance, largest);
                by_sweeps += got.report.reason == DPCR_REASON_CONVERGED;
                path_free(&got);
            }
            path_free(&loop);
            dpcr_sampler_destroy(sampler);
        }
    assert_true(by_sweeps >= VARIANTS * 12);
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
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON, DPCR_METHOD_DIAGONAL, DPCR_METHOD_PICARD,
                                          DPCR_METHOD_JACOBI, DPCR_METHOD_PARATAA,  DPCR_METHOD_PARAREAL};
    for (size_t k = 0; k < sizeof methods / sizeof *methods; k++)
        for (int sweeps = 1; sweeps < 12; sweeps += 3) {
            dpcr_solve_options by = by_method(methods[k]);
            by.max_sweeps = sweeps;
            by.no_fallback = 1;
            by.atol = by.rtol = -1;
            if (methods[k] == DPCR_METHOD_PARAREAL) by.chunk = 1;  // blocks of one step
            solved got = solve_sampler(context, sampler, &by, NULL);
            const size_t exact = (size_t)(got.report.reason == DPCR_REASON_EXACT ? N : sweeps) * W * sizeof(float);
            assert_true(got.report.reason == DPCR_REASON_EXACT || got.report.reason == DPCR_REASON_NOT_CONVERGED);
            assert_memory_equal(got.z, loop.z, exact);
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
        if (!sampled(i)) continue;
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

// The spacing's times given one by one make the spacing's steps, bit for bit; any others the steps between them, whole
// or not; options of before there were times are read as far as they go.
static void times_are_the_callers(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    static const double uneven[5] = {970.25, 640, 300, 12, 0};
    for (int v = 0; v < VARIANTS; v++) {
        dpcr_sampler_options options = options_of(&variants[v]);
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL), at_once = by_method(DPCR_METHOD_PICARD);
        double times[N];
        options.noise.size = sizeof options.noise;
        assert_int_equal(dpcr_spacing_fill(options.spacing, &options.noise, N, times, NULL), DPCR_OK);
        dpcr_sampler *spaced = make(context, &f, &variants[v], &options, B);
        options.spacing = DPCR_SPACING_LEADING, options.times = times;
        dpcr_sampler *listed = make(context, &f, &variants[v], &options, B);
        for (int i = 0; i < N; i++) times[i] = NAN;  // they have been copied
        options.size = offsetof(dpcr_sampler_options, times), options.spacing = variants[v].spacing;
        dpcr_sampler *older = make(context, &f, &variants[v], &options, B);
        solved a = solve_sampler(context, spaced, &in_order, NULL), b = solve_sampler(context, listed, &in_order, NULL),
               c = solve_sampler(context, older, &in_order, NULL);
        assert_memory_equal(a.z, b.z, path_bytes(&a));
        assert_memory_equal(a.z, c.z, path_bytes(&a));
        assert_true(dpcr_sampler_steps(spaced)->identity == dpcr_sampler_steps(listed)->identity);
        options.size = sizeof options, options.steps = 5, options.times = uneven;
        dpcr_sampler *few = make(context, &f, &variants[v], &options, B);
        solved d = solve_sampler(context, few, &in_order, NULL), e = solve_sampler(context, few, &at_once, NULL);
        assert_true(path_distance(&d, &e) < 1e-6);
        for (int l = 0; l < 5; l++) {
            double time = -1;
            assert_int_equal(dpcr_sampler_step(few, l, &time, NULL, NULL), DPCR_OK);
            assert_true(time == uneven[l]);
        }
        path_free(&a), path_free(&b), path_free(&c), path_free(&d), path_free(&e);
        dpcr_sampler_destroy(spaced), dpcr_sampler_destroy(listed);
        dpcr_sampler_destroy(older), dpcr_sampler_destroy(few);
    }
    dpcr_context_destroy(context);
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
        cmocka_unit_test(kinks_are_the_models_and_the_clips),
        cmocka_unit_test(a_denoiser_of_relus_is_right),
        cmocka_unit_test(every_method_is_the_loop),
        cmocka_unit_test(tolerance_zero_is_the_loop_bit_for_bit),
        cmocka_unit_test(an_affine_denoiser_takes_one_sweep),
        cmocka_unit_test(k_sweeps_make_k_steps),
        cmocka_unit_test(a_sample_is_its_own),
        cmocka_unit_test(times_are_the_callers),
        cmocka_unit_test(noise_is_normal),
        cmocka_unit_test(known_places_stay),
        cmocka_unit_test(a_denoiser_that_explodes_ends_as_the_loop),
        cmocka_unit_test(denoisers_are_asked_at_trained_times_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
