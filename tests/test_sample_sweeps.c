// SPDX-License-Identifier: MIT
// Methods of samplers that need no Jacobian of a step: parareal, parataa, ParaDiGMS's locks and units, guesses, and
// what `auto` weighs.
#include <unistd.h>

#include "sampling_chain.h"

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

// By given rates, sweeps and evaluations are those of the chain at hand, counted by a trial: what forgets its guess in
// two sweeps is taken by picard where a row in a window costs a quarter of the loop's step, what needs many is not, and
// the prediction is the evaluations that the method then makes. The trial is made once, where solves have taken so long
// that it is a small part of them or where it was given the time, for no more than the loop costs, and only where two
// sweeps would be ahead; else planning evaluates nothing.
static const variant forgetful = {DPCR_SAMPLER_DDIM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_V};
enum { COUNTED = 100, PLANS = 4 };

typedef struct counting {
    double gain, row;  // of the loop's step
    bool tried, taken;
    double planning_seconds;
    int tried_by;  // the plan's number
} counting;

static dpcr_steps with_costs(const dpcr_sampler *sampler, const counting *c) {
    dpcr_steps steps = *dpcr_sampler_steps(sampler);
    steps.latency = 40e-6, steps.lane_seconds = c->row * steps.latency;
    steps.linearise = NULL, steps.coarse = NULL, steps.coarse_linearise = NULL;
    return steps;
}

// The plans one after another, each followed by a solve in order, the first of two loops' time, others of a hundred.
static dpcr_solve_plan *plan_again(dpcr_context *context, dpcr_sampler *sampler, const counting *c, int64_t *rows) {
    const dpcr_steps steps = with_costs(sampler, c);
    double start[W];
    const dpcr_array z0 = dpcr_array_make(start, DPCR_F64, 2, (const int64_t[]){1, W});
    assert_int_equal(dpcr_sampler_start(sampler, NULL, &z0, NULL), DPCR_OK);
    dpcr_solve_options by = by_method(DPCR_METHOD_AUTO);
    by.atol = by.rtol = 1e-3, by.guess = DPCR_GUESS_STATE, by.start = &z0, by.planning_seconds = c->planning_seconds;
    dpcr_solve_plan *plan = NULL;
    for (int n = 0; n < PLANS; n++) {
        int64_t told = 0;
        dpcr_solve_plan_destroy(plan);
        dpcr_sampler_counts_reset(sampler);
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &by, &plan, NULL), DPCR_OK);
        dpcr_sampler_counts(sampler, &rows[n], NULL, NULL);
        dpcr_solve_plan_effort(plan, NULL, &told);
        assert_int_equal(told, rows[n]);
        if ((dpcr_solve_plan_method(plan) != DPCR_METHOD_SEQUENTIAL) != (c->taken && n >= c->tried_by))
            fail_msg("plan %d, gain %g: %s", n, c->gain, dpcr_solve_plan_sentence(plan));
        assert_true((rows[n] > 0) == (c->tried && n == c->tried_by));
        const dpcr_solve_report report = {.size = sizeof report,
                                          .method = DPCR_METHOD_SEQUENTIAL,
                                          .reason = DPCR_REASON_SEQUENTIAL,
                                          .seconds = (n ? 100 : 2) * COUNTED * steps.latency};
        if (dpcr_solve_plan_method(plan) == DPCR_METHOD_SEQUENTIAL)
            assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    }
    return plan;
}

static int check_predictions(dpcr_context *context, dpcr_sampler *sampler, const dpcr_solve_plan *plan, double row) {
    dpcr_candidate c = {.size = sizeof c};
    int told = 0;
    for (int k = 0; dpcr_solve_plan_candidate(plan, k, &c); k++) {
        if (c.method != DPCR_METHOD_PICARD && c.method != DPCR_METHOD_PARATAA) continue;
        dpcr_solve_options with = *dpcr_solve_plan_options(plan);
        with.method = c.method, with.max_sweeps = 0, with.start = NULL;
        solved got = solve_sampler(context, sampler, &with, NULL);
        assert_true(c.sweeps == got.report.sweeps);
        const double work = (double)got.report.evaluations * row;
        assert_true(fabs(c.seconds - work) <= 0.02 * work);
        path_free(&got);
        told++;
    }
    return told;
}

static void sweeps_are_counted(void **state) {
    (void)state;
    static const counting cases[] = {{0.02, 0.25, true, true, 0, 2},  {5, 0.25, true, false, 0, 2},
                                     {0.02, 0.9, false, false, 0, 2}, {0.02, 0.25, true, true, 10, 0},
                                     {5, 0.25, true, false, 10, 0},   {0.02, 0.9, false, false, 10, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dpcr_context *context = sampling_context(1);
        const dpcr_machine machine = {.size = sizeof machine, .threads = 1, .latency = 1e-9};
        assert_int_equal(dpcr_context_set_machine(context, &machine, NULL), DPCR_OK);
        formula f = {.width = W, .dtype = DPCR_F64, .gain = cases[i].gain};
        dpcr_sampler_options options = options_of(&forgetful);
        options.steps = COUNTED;
        dpcr_sampler *sampler = make(context, &f, &forgetful, &options, 1);
        int64_t rows[PLANS];
        dpcr_solve_plan *plan = plan_again(context, sampler, &cases[i], rows);
        // Picard and parataa, each for at most the loop's time and two evaluations more.
        assert_true(rows[cases[i].tried_by] <= 2 * (int64_t)(COUNTED / cases[i].row + 2 * COUNTED));
        if (cases[i].taken) assert_int_equal(check_predictions(context, sampler, plan, cases[i].row * 40e-6), 2);
        dpcr_solve_plan_destroy(plan);
        dpcr_sampler_destroy(sampler);
        dpcr_context_destroy(context);
    }
}

// What a plan of a chain that tells no costs evaluates, whatever the clock says (without a start there are no trials):
// a few steps, and rows of two calls of a sweep at most; the next plan nothing, and one whose wisdom came from a file
// neither.
static void plan_thrice(const variant *kind, int64_t length, int64_t width, int64_t batch, int threads,
                        const char *file) {
    dpcr_context *contexts[2] = {sampling_context(threads), sampling_context(threads)};
    formula f = {.width = width, .dtype = DPCR_F32, .gain = 0.2};
    dpcr_sampler_options options = options_of(kind);
    options.steps = length;
    dpcr_sampler *sampler = make(contexts[0], &f, kind, &options, batch);
    const dpcr_steps *steps = dpcr_sampler_steps(sampler);
    const int64_t networks = kind->kind == DPCR_SAMPLER_HEUN ? 2 : 1;  // of a step, at most
    dpcr_solve_options by = by_method(DPCR_METHOD_AUTO);
    by.atol = by.rtol = 1e-3, by.confirm = 1e-2, by.guess = DPCR_GUESS_STATE;
    by.backward = DPCR_SCHEME_SEQUENTIAL;
    for (int n = 0; n < 3; n++) {
        dpcr_solve_plan *plan = NULL;
        int64_t rows = 0, calls = 0, told = 0;
        dpcr_sampler_counts_reset(sampler);
        assert_int_equal(dpcr_solve_plan_create(contexts[n / 2], steps, &by, &plan, NULL), DPCR_OK);
        dpcr_sampler_counts(sampler, &rows, NULL, &calls);
        dpcr_solve_plan_effort(plan, NULL, &told);
        assert_in_range(rows, told, networks * told);
        if (n > 0 || length < 32)
            assert_int_equal(rows, 0);
        else
            assert_in_range(told, 2 * batch, batch * (40 + length / 8));
        assert_true(calls <= networks * (10 + length / 8));
        dpcr_solve_plan_destroy(plan);
        if (n == 1) assert_int_equal(dpcr_wisdom_save(contexts[0], file, NULL), DPCR_OK);
        if (n == 1) assert_int_equal(dpcr_wisdom_load(contexts[1], file, NULL), DPCR_OK);
    }
    dpcr_sampler_destroy(sampler);
    for (int i = 0; i < 2; i++) dpcr_context_destroy(contexts[i]);
}

static void planning_is_a_small_part(void **state) {
    (void)state;
    static const variant kinds[] = {{DPCR_SAMPLER_DDIM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_DDPM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_DPM_SOLVER, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_EULER, 0, 0, DPCR_SPACING_KARRAS, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_HEUN, 0, 0, DPCR_SPACING_KARRAS, DPCR_PREDICT_V}};
    static const int64_t lengths[] = {20, 50, 100, 1000};
    char file[64];
    snprintf(file, sizeof file, "%s/deeppcr-planning-%ld", P_tmpdir, (long)getpid());
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0; i < 4; i++)
            for (int threads = 1; threads <= 2; threads++) {
                plan_thrice(&kinds[k], lengths[i], W, 1, threads, file);
                plan_thrice(&kinds[k], lengths[i], 4 * W, 3, threads, file);
            }
    unlink(file);
}

// What is known of a chain is not taken for another's of its shape: another schedule's, without slopes too, or another
// model's. Batches with other noise are the same.
static void other_chains_are_planned_anew(void **state) {
    (void)state;
    static const variant kinds[] = {{DPCR_SAMPLER_DPM_SOLVER, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_DPM_SOLVER, 0, 0, DPCR_SPACING_KARRAS, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_DPM_SOLVER, 0, 1, DPCR_SPACING_LEADING, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_DDIM, 0, 0, DPCR_SPACING_LEADING, DPCR_PREDICT_V},
                                    {DPCR_SAMPLER_DDIM, 0, 1, DPCR_SPACING_LEADING, DPCR_PREDICT_V}};
    dpcr_context *context = sampling_context(1);
    formula f = {.width = W, .dtype = DPCR_F32, .gain = 0.2};
    dpcr_solve_options by = by_method(DPCR_METHOD_AUTO);
    by.atol = by.rtol = 1e-3, by.guess = DPCR_GUESS_STATE, by.backward = DPCR_SCHEME_SEQUENTIAL;
    for (int run = 0; run < 20; run++) {
        const variant *kind = &kinds[run % 5];
        dpcr_denoiser denoiser = formula_denoiser(&f, kind->prediction);
        dpcr_sampler_options options = options_of(kind);
        dpcr_sampler *sampler = NULL;
        dpcr_solve_plan *plan = NULL;
        int64_t rows = 0;
        denoiser.identity = (uint64_t)(run / 10);
        options.steps = 50, options.seed = (uint64_t)run, options.first_sample = run;
        assert_int_equal(dpcr_sampler_create(context, &denoiser, &options, 1, &sampler, NULL), DPCR_OK);
        assert_int_equal(dpcr_solve_plan_create(context, dpcr_sampler_steps(sampler), &by, &plan, NULL), DPCR_OK);
        dpcr_sampler_counts(sampler, &rows, NULL, NULL);
        if ((rows > 0) != (run / 5 % 2 == 0)) fail_msg("run %d: %lld rows", run, (long long)rows);
        dpcr_solve_plan_destroy(plan);
        dpcr_sampler_destroy(sampler);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parareal_and_parataa_are_the_loop),
        cmocka_unit_test(parareal_and_parataa_at_their_limits),
        cmocka_unit_test(locks_of_paradigms),
        cmocka_unit_test(paths_of_others_are_guesses),
        cmocka_unit_test(auto_weighs_them),
        cmocka_unit_test(sweeps_are_counted),
        cmocka_unit_test(planning_is_a_small_part),
        cmocka_unit_test(other_chains_are_planned_anew),
        cmocka_unit_test(tolerances_in_units_of_the_noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
