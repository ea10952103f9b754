// SPDX-License-Identifier: MIT
// Samplers at their limits: batches of none, refusals in words, callbacks that abort, refused memory; and what a
// denoiser is asked for: rows a call, whether to go on, memory.
#include "budget.h"
#include "sampling_chain.h"

static int abort_predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                         void *m) {
    (void)user, (void)rows, (void)x, (void)times, (void)sequences, (void)m;
    return -7;
}

static void no_samples_are_a_batch_too(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(2);
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.2};
    const dpcr_denoiser denoiser = formula_denoiser(&f, DPCR_PREDICT_EPSILON);
    const dpcr_sampler_options options = options_of(&variants[0]);
    dpcr_sampler *sampler = NULL;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 0, &sampler, NULL), DPCR_OK);
    const dpcr_array none = dpcr_array_make(NULL, DPCR_F32, 2, (const int64_t[]){0, W});
    const int64_t states[3] = {dpcr_sampler_steps(sampler)->length, 0, dpcr_sampler_steps(sampler)->width};
    const dpcr_array z0 = dpcr_array_make(NULL, DPCR_F32, 2, states + 1),
                     z = dpcr_array_make(NULL, DPCR_F32, 3, states);
    assert_int_equal(dpcr_sampler_noise(sampler, &none, NULL), DPCR_OK);
    assert_int_equal(dpcr_sampler_start(sampler, &none, &z0, NULL), DPCR_OK);
    assert_int_equal(dpcr_sampler_start(sampler, NULL, &z0, NULL), DPCR_OK);
    for (int m = DPCR_METHOD_SEQUENTIAL; m <= DPCR_METHOD_PARATAA; m++) {
        dpcr_solve_options by = by_method((dpcr_method)m);
        by.block = 1;
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &by, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
        assert_int_equal(dpcr_solve_execute(plan, &z0, &z, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
        free(workspace);
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_sampler_destroy(sampler);
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
    REFUSED(first_sample, UINT32_MAX, "wanted 0 to 2^32 - 1 - batch");
    static const double level[N] = {5, 5}, far[N] = {1000, 5}, below[N] = {5, 4, 3, -1}, none[N] = {NAN};
    REFUSED(times, level, "time 2 of 24 is 5");
    REFUSED(times, far, "time 1 of 24 is 1000, wanted falling ones from 999");
    REFUSED(times, below, "time 4 of 24 is -1");
    REFUSED(times, none, "time 1 of");
    double close[N];
    for (int i = 0; i < N; i++) close[i] = 500 - 10 * i;
    close[3] = nextafter(close[4], 1000);
    REFUSED(times, close, "times 4 and 5 of 24");
    close[3] = nextafter(close[2], 0);
    REFUSED(times, close, "times 3 and 4 of 24");
    good.kind = DPCR_SAMPLER_DDPM;
    REFUSED(eta, 0.5, "ddim's alone");
    good = options_of(&variants[2]);
#undef REFUSED
    const dpcr_array known = dpcr_array_make((double[B *W]){0}, DPCR_F64, 2, (const int64_t[]){B, W});
    bad = good;
    bad.known = &known;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &bad, B, &sampler, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "known is given, but no mask"));
    static const double wrong[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 6; i++) {
        *(i % 2 ? &denoiser.flops : &denoiser.jacobian_flops) = wrong[i / 2];
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &good, B, &sampler, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "flops are"));
        denoiser = formula_denoiser(&f, DPCR_PREDICT_EPSILON);
    }
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
    dpcr_array folded = dpcr_array_make((double[B *W]){0}, DPCR_F64, 2, (const int64_t[]){B, W});
    folded.strides[0] = W - 1;
    assert_int_equal(dpcr_sampler_start(sampler, &folded, &known, &error), DPCR_OK);
    assert_int_equal(dpcr_sampler_start(sampler, &known, &folded, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "z0 is written, but its strides make it overlap itself"));
    assert_int_equal(dpcr_sampler_noise(sampler, &folded, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "x is written"));
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

// ---- calls ----

typedef struct told {
    int64_t calls, rows;  // rows: of the largest call
} told;

static int tell_predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences,
                        void *m) {
    told *t = user;
    (void)x, (void)times, (void)sequences;
    t->calls++;
    if (rows > t->rows) t->rows = rows;
    memset(m, 0, (size_t)rows * W * sizeof(float));
    return 0;
}

static int stop_at_work(void *user) { return ((const told *)user)->calls > 0; }

static dpcr_denoiser told_denoiser(told *t, double flops) {
    return (dpcr_denoiser){.size = sizeof(dpcr_denoiser),
                           .user = t,
                           .width = W,
                           .dtype = DPCR_F32,
                           .prediction = DPCR_PREDICT_EPSILON,
                           .flops = flops,
                           .predict = tell_predict};
}

// The loop asks for all samples of a step at once: a denoiser's call may take as long for many as for one.
static void a_step_of_the_loop_is_one_call(void **state) {
    (void)state;
    static const struct { int64_t batch, calls; } cases[] = {{1, 1}, {7, 1}, {100, 1}, {1000, 1}, {5000, 2}};
    dpcr_context *context = sampling_context(2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        told t = {0};
        const dpcr_denoiser denoiser = told_denoiser(&t, 0);
        const dpcr_sampler_options options = {.size = sizeof options, .kind = DPCR_SAMPLER_DDIM, .steps = 5};
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        dpcr_sampler *sampler = NULL;
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, cases[i].batch, &sampler, NULL), DPCR_OK);
        solved loop = solve_sampler(context, sampler, &in_order, NULL);
        assert_int_equal(t.calls, 5 * cases[i].calls);
        assert_int_equal(t.rows, cases[i].calls == 1 ? cases[i].batch : 4096);
        path_free(&loop);
        dpcr_sampler_destroy(sampler);
    }
    dpcr_context_destroy(context);
}

// Whatever was told of its flops, a denoiser's loop is asked after a few steps whether it is to go on.
static void a_long_loop_is_asked_early(void **state) {
    (void)state;
    static const double flops[] = {0, 1, 1e9};
    for (int i = 0; i < 3; i++) {
        told t = {0};
        const dpcr_context_options stopping = {
            .size = sizeof stopping, .threads = 1, .cancel = stop_at_work, .cancel_user = &t};
        dpcr_context *context = NULL;
        dpcr_sampler *sampler = NULL;
        dpcr_solve_plan *plan = NULL;
        const dpcr_denoiser denoiser = told_denoiser(&t, flops[i]);
        const dpcr_sampler_options options = {.size = sizeof options, .kind = DPCR_SAMPLER_DDPM};
        const dpcr_solve_options in_order = by_method(DPCR_METHOD_SEQUENTIAL);
        assert_int_equal(dpcr_context_create(&stopping, &context, NULL), DPCR_OK);
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 1, &sampler, NULL), DPCR_OK);
        const dpcr_steps *steps = dpcr_sampler_steps(sampler);
        assert_int_equal(dpcr_solve_plan_create(context, steps, &in_order, &plan, NULL), DPCR_OK);
        float start[W], *path = calloc((size_t)(steps->length * W), sizeof *path);
        const int64_t shape[3] = {steps->length, 1, W};
        const dpcr_array z0 = dpcr_array_make(start, DPCR_F32, 2, shape + 1),
                         z = dpcr_array_make(path, DPCR_F32, 3, shape);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
        assert_int_equal(dpcr_sampler_start(sampler, NULL, &z0, NULL), DPCR_OK);
        assert_int_equal(t.calls, 0);  // with a method that is named nothing is tried
        assert_int_equal(dpcr_solve_execute(plan, &z0, &z, NULL, workspace, bytes, NULL, NULL), DPCR_ERROR_CANCELLED);
        assert_int_equal(t.calls, 1);  // of 1000
        free(workspace);
        free(path);
        dpcr_solve_plan_destroy(plan);
        dpcr_sampler_destroy(sampler);
        dpcr_context_destroy(context);
    }
}

// What AUTO remembers of a model that tells no number is not taken for another one's.
static void models_without_a_number_are_told_apart(void **state) {
    (void)state;
    dpcr_context *context = sampling_context(1);
    told one = {0}, two = {0};
    uint64_t seen[3];
    for (int i = 0; i < 3; i++) {
        const dpcr_denoiser denoiser = told_denoiser(i == 1 ? &two : &one, 0);
        const dpcr_sampler_options options = {.size = sizeof options, .kind = DPCR_SAMPLER_DDIM, .steps = 5};
        dpcr_sampler *sampler = NULL;
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 1, &sampler, NULL), DPCR_OK);
        seen[i] = dpcr_sampler_steps(sampler)->identity;
        dpcr_sampler_destroy(sampler);
    }
    assert_true(seen[0] == seen[2] && seen[0] != seen[1]);
    dpcr_context_destroy(context);
}

static size_t asked;
static void *count_bytes(void *user, size_t bytes, size_t alignment) {
    (void)user;
    asked += bytes;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void release(void *user, void *memory) {
    (void)user;
    free(memory);
}

// Of wide states no more rows than there may be at work, nor than fit some memory.
static void wide_states_take_what_they_need(void **state) {
    (void)state;
    enum { STEPS = 20, WIDE = 1 << 16 };
    const dpcr_context_options counting = {
        .size = sizeof counting, .threads = 1, .allocate = count_bytes, .release = release};
    dpcr_context *context = NULL;
    dpcr_sampler *sampler = NULL;
    told t = {0};
    dpcr_denoiser denoiser = told_denoiser(&t, 0);
    denoiser.width = WIDE;
    const dpcr_sampler_options options = {.size = sizeof options, .kind = DPCR_SAMPLER_DDIM, .steps = STEPS};
    assert_int_equal(dpcr_context_create(&counting, &context, NULL), DPCR_OK);
    asked = 0;
    assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 1, &sampler, NULL), DPCR_OK);
    assert_true(asked < (4 * STEPS + 2) * WIDE * sizeof(float));
    dpcr_sampler_destroy(sampler);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_samples_are_a_batch_too),      cmocka_unit_test(refusals_are_in_words),
        cmocka_unit_test(refused_memory_leaks_nothing),    cmocka_unit_test(a_step_of_the_loop_is_one_call),
        cmocka_unit_test(a_long_loop_is_asked_early),      cmocka_unit_test(models_without_a_number_are_told_apart),
        cmocka_unit_test(wide_states_take_what_they_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
