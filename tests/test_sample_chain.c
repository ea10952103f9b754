// SPDX-License-Identifier: MIT
// Samplers as chains: callbacks that agree, every method the loop's result, bits that depend on nothing else,
// inpainting, denoisers that explode, refusals, refused memory.
#include "budget.h"
#include "sampling.h"

enum { W = 6, B = 3, N = 24 };

typedef struct variant {
    dpcr_sampler_kind kind;
    double eta, clip;
    dpcr_spacing spacing;
    dpcr_prediction prediction;
} variant;

static const variant variants[] = {
    {DPCR_SAMPLER_DDPM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_DDPM, 0, 1, DPCR_SPACING_TRAILING, DPCR_PREDICT_X0},
    {DPCR_SAMPLER_DDIM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_DDIM, 0.5, 2, DPCR_SPACING_LINSPACE, DPCR_PREDICT_V},
    {DPCR_SAMPLER_DPM_SOLVER, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_DPM_SOLVER, 0, 1, DPCR_SPACING_KARRAS, DPCR_PREDICT_V},
    {DPCR_SAMPLER_EULER, 0, 0, DPCR_SPACING_KARRAS, DPCR_PREDICT_EPSILON},
    {DPCR_SAMPLER_HEUN, 0, 0, DPCR_SPACING_KARRAS, DPCR_PREDICT_X0},
    {DPCR_SAMPLER_HEUN, 0, 1.5, DPCR_SPACING_TRAILING, DPCR_PREDICT_EPSILON},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static dpcr_sampler_options options_of(const variant *v) {
    return (dpcr_sampler_options){.size = sizeof(dpcr_sampler_options),
                                  .kind = v->kind,
                                  .eta = v->eta,
                                  .clip = v->clip,
                                  .spacing = v->spacing,
                                  .steps = N,
                                  .seed = 11};
}

static dpcr_sampler *make(dpcr_context *context, formula *f, const variant *v, const dpcr_sampler_options *options,
                          int64_t batch) {
    const dpcr_denoiser denoiser = formula_denoiser(f, v->prediction);
    dpcr_sampler *sampler = NULL;
    dpcr_error error = {0};
    if (dpcr_sampler_create(context, &denoiser, options, batch, &sampler, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    return sampler;
}

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

// ---- the samplers' own methods ----

static solved solve_by(dpcr_sampler *sampler, const dpcr_sampling_options *options) {
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    dpcr_error error = {0};
    solved p = {.length = steps->length, .batch = steps->batch, .width = steps->width, .dtype = steps->dtype};
    p.z0 = calloc((size_t)(p.batch * p.width), dpcr_dtype_size(p.dtype));
    p.z = calloc(1, path_bytes(&p));
    p.report.size = sizeof p.report;
    const int64_t shape[3] = {p.length, p.batch, p.width};
    const dpcr_array z0 = dpcr_array_make(p.z0, p.dtype, 2, shape + 1), z = dpcr_array_make(p.z, p.dtype, 3, shape);
    assert_int_equal(dpcr_sampler_start(sampler, NULL, &z0, NULL), DPCR_OK);
    if (dpcr_sampler_solve(sampler, options, &z0, &z, &p.report, &error) != DPCR_OK) fail_msg("%s", error.text);
    return p;
}

static bool serves(const variant *v, dpcr_sampling_method method) {
    return method != DPCR_SAMPLING_PARATAA || (v->kind != DPCR_SAMPLER_DPM_SOLVER && v->kind != DPCR_SAMPLER_HEUN);
}

static void the_samplers_own_methods_are_the_loop(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int i = 0; i < VARIANTS; i++) {
            formula f = {.width = W, .dtype = (dpcr_dtype)dtype, .gain = 0.2};
            const dpcr_sampler_options options = options_of(&variants[i]);
            dpcr_sampler *sampler = make(context, &f, &variants[i], &options, B);
            const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
            solved loop = solve_sampler(context, sampler, &in_order, NULL);
            static const dpcr_sampling_options ways[] = {
                {.method = DPCR_SAMPLING_PARAREAL},
                {.method = DPCR_SAMPLING_PARAREAL, .block = 7},
                {.method = DPCR_SAMPLING_PARAREAL, .block = 100},
                {.method = DPCR_SAMPLING_PARATAA},
                {.method = DPCR_SAMPLING_PARATAA, .window = 9, .order = 3},
                {.method = DPCR_SAMPLING_PARATAA, .memory = 1},
                {.method = DPCR_SAMPLING_PARATAA, .memory = 4, .window = 13},
                {.method = DPCR_SAMPLING_PARATAA, .order = 5, .memory = 3},
            };
            for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
                for (int exact = 0; exact < 2; exact++) {
                    if (!serves(&variants[i], ways[k].method)) continue;
                    dpcr_sampling_options by = ways[k];
                    by.size = sizeof by;
                    by.tolerance = exact ? -1 : dtype == DPCR_F64 ? 1e-9 : 1e-5;
                    solved got = solve_by(sampler, &by);
                    const double far = path_distance(&got, &loop);
                    if (exact ? far != 0 : !(far < (dtype == DPCR_F64 ? 1e-6 : 2e-2)))
                        fail_msg("%s (%d), way %d, exact %d: %g after %d sweeps", dpcr_sampler_name(variants[i].kind),
                                 i, (int)k, exact, far, got.report.sweeps);
                    if (exact) assert_int_equal(got.report.reason, DPCR_REASON_EXACT);
                    const int64_t blocks = by.block ? (N + by.block - 1) / by.block : 5;
                    if (by.method == DPCR_SAMPLING_PARAREAL) assert_true(got.report.sweeps <= blocks);
                    assert_true(got.report.sweeps <= N + 1);
                    path_free(&got);
                }
            path_free(&loop);
            dpcr_sampler_destroy(sampler);
        }
    dpcr_context_destroy(context);
}

// A sample's bits do not depend on its neighbours; a budget that is spent ends in order; what explodes ends as the
// loop.
static void the_samplers_own_methods_at_their_limits(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    for (int way = 1; way <= 2; way++) {
        formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.3};
        dpcr_sampler_options options = options_of(&variants[0]);
        dpcr_sampling_options by = {.size = sizeof by, .method = (dpcr_sampling_method)way, .tolerance = 1e-3};
        dpcr_sampler *sampler = make(context, &f, &variants[0], &options, 5);
        solved all = solve_by(sampler, &by);
        dpcr_sampler_destroy(sampler);
        for (int b = 0; b < 5; b++) {
            options.first_sample = b;
            sampler = make(context, &f, &variants[0], &options, 1);
            solved one = solve_by(sampler, &by);
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
            by.tolerance = -1;
            solved got = solve_by(sampler, &by);
            assert_int_equal(got.report.reason, explodes ? DPCR_REASON_EXACT : DPCR_REASON_FALLBACK);
            for (int64_t i = 0; i < N * B * W; i++) {
                const float x = ((float *)got.z)[i], y = ((float *)loop.z)[i];
                assert_true(x == y || (isnan(x) && isnan(y)));
            }
            path_free(&got);
            path_free(&loop);
            dpcr_sampler_destroy(sampler);
        }
    }
    dpcr_context_destroy(context);
}

static void the_samplers_own_methods_refuse(void **state) {
    (void)state;
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.3};
    dpcr_error error = {0};
    dpcr_sampling_method method;
    assert_int_equal(dpcr_sampling_method_find("parataa", &method, NULL), DPCR_OK);
    assert_string_equal(dpcr_sampling_method_name(method), "parataa");
    assert_int_equal(dpcr_sampling_method_find("newton", &method, &error), DPCR_ERROR_ARGUMENT);
    for (int way = 1; way <= 2; way++) {
        dpcr_status status = DPCR_ERROR_MEMORY;
        for (int64_t allowed = 0; status != DPCR_OK; allowed++) {
            budget b = {.left = 1000};
            const dpcr_context_options in = budget_options(&b);
            const dpcr_sampler_options options = options_of(&variants[2]);
            dpcr_context *context = NULL;
            float z0[B * W], z[N * B * W];
            const int64_t shape[3] = {N, B, W};
            const dpcr_array start = dpcr_array_make(z0, DPCR_F32, 2, shape + 1);
            const dpcr_array states = dpcr_array_make(z, DPCR_F32, 3, shape);
            assert_int_equal(dpcr_context_create(&in, &context, NULL), DPCR_OK);
            dpcr_sampler *sampler = make(context, &f, &variants[2], &options, B);
            dpcr_sampling_options by = {.size = sizeof by, .method = (dpcr_sampling_method)way, .memory = 5};
            assert_int_equal(dpcr_sampler_start(sampler, NULL, &start, NULL), DPCR_OK);
            assert_int_equal(dpcr_sampler_solve(sampler, &by, &start, &states, NULL, &error), DPCR_ERROR_ARGUMENT);
            by.memory = 0;
            assert_int_equal(dpcr_sampler_solve(sampler, &by, &states, &start, NULL, &error), DPCR_ERROR_ARGUMENT);
            b.left = allowed;
            status = dpcr_sampler_solve(sampler, &by, &start, &states, NULL, NULL);
            assert_true(status == DPCR_OK || status == DPCR_ERROR_MEMORY);
            dpcr_sampler_destroy(sampler);
            dpcr_context_destroy(context);
            assert_int_equal(b.live, 0);
        }
    }
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

static int abort_predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                         void *m) {
    (void)user, (void)rows, (void)x, (void)times, (void)sequences, (void)m;
    return -7;
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

static void refusals_are_in_words(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    dpcr_denoiser denoiser = formula_denoiser(&f, DPCR_PREDICT_EPSILON);
    dpcr_sampler_options good = options_of(&variants[2]), bad;
    dpcr_sampler *sampler = NULL;
    dpcr_error error = {0};
#define REFUSED(field, value, words)                                                                           \
    bad = good;                                                                                                \
    bad.field = value;                                                                                         \
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &bad, B, &sampler, &error), DPCR_ERROR_ARGUMENT); \
    if (!strstr(error.text, words)) fail_msg("%s", error.text)
    REFUSED(size, 8, "options.size is 8");
    REFUSED(kind, (dpcr_sampler_kind)9, "kind 9");
    REFUSED(spacing, (dpcr_spacing)7, "spacing 7");
    REFUSED(steps, 1001, "1001 steps");
    REFUSED(skip, N, "left out");
    REFUSED(eta, 1.5, "eta is 1.5");
    REFUSED(eta, NAN, "eta is");
    REFUSED(clip, -1, "clip -1");
    REFUSED(noise.steps, -3, "-3 steps");
    REFUSED(noise.beta_first, 0.5, "beta from 0.5");
    REFUSED(noise.beta_first, 1e-17, "2.3e-16");  // sigma would be 0
    REFUSED(noise.beta_last, 0.99, "2.3e-308");   // alpha would
    REFUSED(first_sample, UINT32_MAX, "first_sample");
    good.kind = DPCR_SAMPLER_DDPM;
    REFUSED(eta, 0.5, "ddim's alone");
    good = options_of(&variants[2]);
#undef REFUSED
    const dpcr_array known = dpcr_array_make((double[B *W]){0}, DPCR_F64, 2, (const int64_t[]){B, W});
    bad = good;
    bad.known = &known;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &bad, B, &sampler, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "mask"));
    denoiser.width = 0;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &good, B, &sampler, &error), DPCR_ERROR_ARGUMENT);
    denoiser = formula_denoiser(&f, (dpcr_prediction)5);
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &good, B, &sampler, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_sampler_create(NULL, &denoiser, &good, B, &sampler, NULL), DPCR_ERROR_ARGUMENT);
    assert_null(sampler);

    // Without Jacobians the methods that need one are refused; a callback that aborts ends the solve with its code.
    denoiser = formula_denoiser(&f, DPCR_PREDICT_EPSILON);
    denoiser.linearise = NULL;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &good, B, &sampler, NULL), DPCR_OK);
    dpcr_solve_plan *plan = NULL;
    const dpcr_solve_options newton = by_method(DPCR_METHOD_NEWTON), in_order = by_method(DPCR_METHOD_SEQUENTIAL);
    assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &newton, &plan, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "linearise"));
    double time = 0, variance = 1;
    assert_int_equal(dpcr_sampler_step(sampler, N, &time, &variance, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_sampler_step(sampler, 0, &time, &variance, NULL), DPCR_OK);
    assert_true(time == 41 * (N - 1) && variance == 0);
    const dpcr_array narrow = dpcr_array_make((double[B *W]){0}, DPCR_F64, 2, (const int64_t[]){B, W - 1});
    assert_int_equal(dpcr_sampler_start(sampler, NULL, &narrow, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_sampler_start(sampler, &narrow, &known, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_sampler_noise(sampler, &narrow, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_sampler_destroy(sampler);

    denoiser.predict = abort_predict;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &good, 1, &sampler, NULL), DPCR_OK);
    assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &in_order, &plan, NULL), DPCR_OK);
    double z0[W], z[N * W];
    const int64_t shape[3] = {N, 1, W};
    const dpcr_array start = dpcr_array_make(z0, DPCR_F64, 2, shape + 1),
                     states = dpcr_array_make(z, DPCR_F64, 3, shape);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
    assert_int_equal(dpcr_sampler_start(sampler, NULL, &start, NULL), DPCR_OK);
    assert_int_equal(dpcr_solve_execute(plan, &start, &states, NULL, workspace, bytes, NULL, &error),
                     DPCR_ERROR_CALLBACK);
    assert_int_equal(error.code, -7);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

static void refused_memory_leaks_nothing(void **state) {
    (void)state;
    formula f = {.width = W, .dtype = DPCR_F64, .gain = 0.2};
    const dpcr_denoiser denoiser = formula_denoiser(&f, DPCR_PREDICT_EPSILON);
    const double mask[W] = {1};
    double known[B * W] = {0};
    const dpcr_array mask_view = dpcr_array_make((void *)(uintptr_t)mask, DPCR_F64, 1, (const int64_t[]){W});
    const dpcr_array known_view = dpcr_array_make(known, DPCR_F64, 2, (const int64_t[]){B, W});
    for (int i = 0; i < VARIANTS; i += 4) {
        dpcr_sampler_options options = options_of(&variants[i]);
        options.mask = &mask_view;
        options.known = &known_view;
        dpcr_status status = DPCR_ERROR_MEMORY;
        for (int64_t allowed = 0; status != DPCR_OK; allowed++) {
            budget b = {.left = 1000};
            const dpcr_context_options in = budget_options(&b);
            dpcr_context *context = NULL;
            dpcr_sampler *sampler = NULL;
            assert_int_equal(dpcr_context_create(&in, &context, NULL), DPCR_OK);
            b.left = allowed;
            status = dpcr_sampler_create(context, &denoiser, &options, B, &sampler, NULL);
            assert_true(status == DPCR_OK || (status == DPCR_ERROR_MEMORY && !sampler));
            dpcr_sampler_destroy(sampler);
            dpcr_context_destroy(context);
            assert_int_equal(b.live, 0);
            assert_true(allowed < 40);
        }
    }
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
        cmocka_unit_test(the_samplers_own_methods_are_the_loop),
        cmocka_unit_test(the_samplers_own_methods_at_their_limits),
        cmocka_unit_test(the_samplers_own_methods_refuse),
        cmocka_unit_test(tolerances_in_units_of_the_noise),
        cmocka_unit_test(denoisers_are_asked_at_trained_times_alone),
        cmocka_unit_test(refusals_are_in_words),
        cmocka_unit_test(refused_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
