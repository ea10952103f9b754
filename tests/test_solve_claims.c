// SPDX-License-Identifier: MIT
// What a report claims of a solve: states that a mean square locked are those of a step that was made, an estimate is
// one by coarse steps, AUTO's choice has its own tolerances, and evaluations are those that callbacks made.
#include <stdbool.h>

#include "sampled.h"
#include "solving.h"

// Chains of one number, by a function of the step.
typedef struct scalars {
    double (*step)(int64_t l, double z);
    double (*coarse)(int64_t l, int64_t steps, double z);
    int64_t length, batch, made;  // made: evaluations so far, counted where one thread calls
    dpcr_dtype dtype;
} scalars;

static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    scalars *s = user;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t b = 0; b < span->rows; b++) {
            if (span->active && !span->active[b]) continue;
            double z = chain_get(in, c * in->strides[0] + b * in->strides[1]);
            for (int64_t k = 0; k < span->steps; k++) {
                z = s->step(span->first + c * span->stride + k, z);
                if (states)
                    chain_put(states, c * states->strides[0] + k * states->strides[1] + b * states->strides[2], z);
                if (tape) chain_put(tape, c * tape->strides[0] + b * tape->strides[tape->ndim - 2], z);
            }
            if (last) chain_put(last, c * last->strides[0] + b * last->strides[1], z);
            s->made += span->steps;
        }
    return 0;
}

static int coarse(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    const scalars *s = user;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t b = 0; b < span->rows; b++)
            chain_put(last, c * last->strides[0] + b * last->strides[1],
                      s->coarse(span->first + c * span->stride, span->steps,
                                chain_get(in, c * in->strides[0] + b * in->strides[1])));
    return 0;
}

static dpcr_steps steps_of(scalars *s) {
    return (dpcr_steps){.size = sizeof(dpcr_steps),
                        .dtype = s->dtype,
                        .width = 1,
                        .length = s->length,
                        .batch = s->batch,
                        .user = s,
                        .concurrent = 1,
                        .flops = 30,
                        .advance = advance,
                        .coarse = s->coarse ? coarse : NULL};
}

static solved solve_scalars(dpcr_context *context, scalars *s, const void *z0, const dpcr_solve_options *options,
                            const void *guess) {
    const dpcr_steps steps = steps_of(s);
    const chain c = {.length = s->length, .batch = s->batch, .width = 1, .dtype = s->dtype};
    return solve_steps(context, &steps, &c, z0, options, guess, 0);
}

// ---- locks by mean squares ----

static double largest_residual(const scalars *s, double z0, const double *z) {
    double most = 0;
    for (int64_t l = 0; l < s->length; l++) {
        const double far = fabs(s->step(l, l ? z[l - 1] : z0) - z[l]);
        if (!(far <= most)) most = far;
    }
    return most;
}

static double there_and_back(int64_t l, double z) { return z + 0.001 * log(z) + (l % 2 ? -5 : 5); }
static double drifting(int64_t l, double z) { return 0.999 * z + 0.01 * (double)(l % 5); }
static double falling(int64_t l, double z) { return 0.9 * z + 1e-170 * (double)l; }

// A guess of f_l(0), which is infinite; one that is no number, infinite, or so large that a sum with it is lost.
static void mean_locks_a_step_that_was_made(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    scalars s = {.step = there_and_back, .length = 200, .batch = 1, .dtype = DPCR_F64};
    dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_PICARD, .lock = DPCR_LOCK_MEAN_SQUARE, .atol = 1e-2, .rtol = -1};
    const double z0 = 3, guesses[] = {NAN, INFINITY, 1e38, -1e300, 1e5, 1e14};
    for (options.window = 4; options.window <= 256; options.window *= 2) {
        solved r = solve_scalars(context, &s, &z0, &options, NULL);
        assert_int_equal(r.status, DPCR_OK);
        const double residual = largest_residual(&s, z0, r.z);
        if (!(residual <= 2 * options.atol)) fail_msg("window %d: %g", (int)options.window, residual);
        solved_free(&r);
    }
    s.step = drifting, options.window = 0, options.atol = 1e-3, options.guess = DPCR_GUESS_GIVEN;
    for (int g = 0; g < 12; g++) {  // right up to there, so that the step there is locked at once
        const int64_t shape[1] = {200};
        double guess[200], found[200];
        float single[200];
        s.dtype = g % 2 ? DPCR_F32 : DPCR_F64;
        double z = z0;
        for (int l = 0; l < 200; l++) single[l] = (float)(guess[l] = l < 100 ? z = drifting(l, z) : guesses[g / 2]);
        const float few = (float)z0;
        solved r = solve_scalars(context, &s, g % 2 ? (const void *)&few : &z0, &options,
                                 g % 2 ? (const void *)single : guess);
        assert_int_equal(r.status, DPCR_OK);
        const dpcr_array states = dpcr_array_make(r.z, s.dtype, 1, shape);
        for (int l = 0; l < 200; l++) found[l] = chain_get(&states, l);
        const double residual = largest_residual(&s, z0, found);
        if (!(residual <= 2 * options.atol)) fail_msg("guess %g: %g", guesses[g / 2], residual);
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

static double wandering(int64_t l, double z) { return z + 0.02 * sin(z + 0.01 * (double)l) + (l % 2 ? 0.3 : -0.3); }

// Also where rounding takes more than the tolerance: a sequence's sweeps and bits do not hang on those beside it.
static void mean_locks_alone_as_among_others(void **state) {
    (void)state;
    enum { LENGTH = 512, BATCH = TESTS_FOR_RACES ? 256 : 4096 };
    dpcr_context *context = solving_context(1);
    double *z0 = calloc(BATCH, sizeof *z0);
    float *few = (float *)z0;
    for (int b = 0; b < BATCH; b++) few[b] = 100.1F;
    for (int64_t window = 0; window <= 64; window += 64) {
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_PICARD,
                                            .lock = DPCR_LOCK_MEAN_SQUARE,
                                            .guess = DPCR_GUESS_STATE,
                                            .window = window,
                                            .atol = 1e-6,
                                            .rtol = -1};
        scalars one = {.step = wandering, .length = LENGTH, .batch = 1, .dtype = DPCR_F32}, many = one;
        many.batch = BATCH;
        solved alone = solve_scalars(context, &one, z0, &options, NULL),
               among = solve_scalars(context, &many, z0, &options, NULL);
        assert_int_equal(alone.status, DPCR_OK);
        assert_int_equal(among.status, DPCR_OK);
        assert_int_equal(alone.report.sweeps, among.report.sweeps);
        for (int l = 0; l < LENGTH; l++)
            assert_memory_equal((float *)alone.z + l, (float *)among.z + (ptrdiff_t)l * BATCH, sizeof(float));
        solved_free(&alone), solved_free(&among);
    }
    free(z0);
    dpcr_context_destroy(context);
}

// Squares that underflow are no zeros: exact is exact.
static void mean_of_small_numbers(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    scalars s = {.step = falling, .length = 100, .batch = 1, .dtype = DPCR_F64};
    const double z0 = 1e-168;
    dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_PICARD, .lock = DPCR_LOCK_MEAN_SQUARE, .atol = -1};
    for (int tiny = 0; tiny < 2; tiny++) {
        if (tiny) options.atol = 1e-172, options.rtol = -1;
        solved r = solve_scalars(context, &s, &z0, &options, NULL);
        assert_int_equal(r.status, DPCR_OK);
        assert_in_range(r.report.sweeps, 3, 60);
        if (!tiny) assert_int_equal(r.report.reason, DPCR_REASON_EXACT);
        const double residual = largest_residual(&s, z0, r.z);
        if (!(residual <= (tiny ? 2e-172 : 0))) fail_msg("%g", residual);
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// ---- estimates ----

static double bistable(int64_t l, double z) { return (void)l, tanh(1.5 * z); }

// Without `coarse` corrections know nothing of what a chain makes of errors.
static void nothing_is_estimated_by_the_identity(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    scalars s = {.step = bistable, .length = 400, .batch = 1, .dtype = DPCR_F64};
    const double z0 = 1e-15;
    dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_PARAREAL};
    solved r = solve_scalars(context, &s, &z0, &options, NULL);
    assert_int_equal(r.status, DPCR_OK);
    assert_int_equal(r.report.reason, DPCR_REASON_RESIDUAL_ONLY);
    assert_true(r.report.error_estimate < 0);
    solved_free(&r);
    for (int k = 0; k < 2; k++) {
        options.confirm = k ? 1e-6 : -1;
        r = solve_scalars(context, &s, &z0, &options, NULL);
        assert_int_equal(r.status, DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(r.error.text, "no callback coarse, by which errors of parareal are estimated"));
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

enum { LAST_CHUNK = 90 };
static double growing_at_last(int64_t l, double z) { return l < LAST_CHUNK ? 0.5 * z + 0.1 : 2 * z - 0.3; }
static double all_of_it(int64_t l, int64_t steps, double z) {
    for (int64_t k = 0; k < steps; k++) z = growing_at_last(l + k, z);
    return z;
}

// What the last chunk makes of its start's error counts in the first sweep too.
static void first_sweep_sees_the_last_chunk(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    scalars s = {.step = growing_at_last, .coarse = all_of_it, .length = 100, .batch = 1, .dtype = DPCR_F64};
    const double z0 = 0.7;
    double guess[100], z = z0;
    for (int64_t l = 0; l < s.length; l++) guess[l] = (z = growing_at_last(l, z)) + 1e-9;
    for (int k = 0; k < 3; k++) {
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_PARAREAL,
                                            .guess = DPCR_GUESS_GIVEN,
                                            .atol = 1e-6,
                                            .chunk = 10,
                                            .confirm = k == 0   ? 1e-8
                                                       : k == 1 ? 1e-5
                                                                : 1e-11};
        solved r = solve_scalars(context, &s, &z0, &options, guess);
        assert_int_equal(r.status, DPCR_OK);
        double most = 0;
        z = z0;
        for (int64_t l = 0; l < s.length; l++) {
            z = growing_at_last(l, z);
            most = fmax(most, fabs(((double *)r.z)[l] - z) / fmax(1, fabs(z)));
        }
        if (r.report.reason != DPCR_REASON_EXACT && !(most <= r.report.error_estimate))
            fail_msg("confirm %g: error %g, estimate %g", options.confirm, most, r.report.error_estimate);
        if (!(most <= options.confirm)) fail_msg("confirm %g: error %g", options.confirm, most);
        assert_int_equal(r.report.sweeps == 1, k == 1);
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

enum { FEW = 8 };
static double bends[FEW], turns[FEW];
static double bending(int64_t l, double z) { return 0.6 * z + turns[l] + 2 * bends[l] * sin(2 * z + 3 * turns[l]); }
static double straight(int64_t l, int64_t steps, double z) {
    for (int64_t k = 0; k < steps; k++) z = 0.6 * z + turns[l + k];
    return z;
}

// Coarse steps that miss what the steps make of errors: one correction may be far less than the error, which the next
// one shows.
static void few_steps_want_a_second_look(void **state) {
    (void)state;
    static const dpcr_method methods[] = {DPCR_METHOD_PICARD, DPCR_METHOD_JACOBI, DPCR_METHOD_PARATAA};
    enum { DRAWS = TESTS_SANITIZED ? 100 : 1000 };
    dpcr_context *context = solving_context(1);
    scalars s = {.step = bending, .coarse = straight, .length = FEW, .batch = 1, .dtype = DPCR_F64};
    int beyond = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        const double z0 = chain_noise(draw, 0, 7);
        double right[FEW], z = z0;
        for (int64_t l = 0; l < FEW; l++) bends[l] = chain_noise(draw, l, 8), turns[l] = chain_noise(draw, l, 9);
        for (int64_t l = 0; l < FEW; l++) right[l] = z = bending(l, z);
        for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
            const dpcr_solve_options options = {
                .size = sizeof options, .method = methods[m], .atol = 1e-2, .rtol = -1, .confirm = 1e-1};
            solved r = solve_scalars(context, &s, &z0, &options, NULL);
            assert_int_equal(r.status, DPCR_OK);
            double most = 0;
            for (int64_t l = 0; l < FEW; l++)
                most = fmax(most, fabs(((double *)r.z)[l] - right[l]) / fmax(1, fabs(right[l])));
            beyond += !(most <= options.confirm);
            solved_free(&r);
        }
    }
    assert_int_equal(beyond, 0);  // 38 of 3000 where one correction was enough
    dpcr_context_destroy(context);
}

static void estimate_alone_wants_no_limit(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    scalars s = {.step = growing_at_last, .coarse = all_of_it, .length = 100, .batch = 1, .dtype = DPCR_F64};
    const double z0 = 0.7;
    dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_PICARD, .confirm = -1, .memory_limit = 10 << 20};
    solved r = solve_scalars(context, &s, &z0, &options, NULL);
    assert_int_equal(r.status, DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(r.error.text, "confirm is -1, the estimate alone, beside a memory_limit"));
    solved_free(&r);
    options.confirm = 1;
    r = solve_scalars(context, &s, &z0, &options, NULL);
    assert_int_equal(r.status, DPCR_OK);
    solved_free(&r);
    dpcr_context_destroy(context);
}

// ---- tolerances ----

// AUTO takes parataa by the tolerances that parataa has by name, where they are defaults.
static void choice_has_its_own_tolerances(void **state) {
    (void)state;
    enum { LENGTH = 2000 };
    static double slopes[LENGTH];
    dpcr_context *context = solving_context(2);
    dpcr_machine machine = {.size = sizeof machine};
    assert_int_equal(dpcr_context_machine(context, &machine, NULL), DPCR_OK);
    machine.threads = 64;  // where it is ahead
    assert_int_equal(dpcr_context_set_machine(context, &machine, NULL), DPCR_OK);
    for (int l = 0; l < LENGTH; l++) slopes[l] = 1;
    for (int k = 0; k < 8; k++) {
        scalars s = {.step = drifting, .length = LENGTH, .batch = 1, .dtype = k % 2 ? DPCR_F64 : DPCR_F32};
        const double full = k % 2 ? DPCR_TOLERANCE_F64 : DPCR_TOLERANCE_F32;
        const bool own[2] = {k / 2 % 2, k / 4};
        dpcr_steps steps = steps_of(&s);
        steps.slopes = slopes, steps.flops = 1e6, steps.latency = 1e-4;
        const dpcr_solve_options options = {
            .size = sizeof options, .atol = own[0] ? 3 * full : 0, .rtol = own[1] ? 5 * full : 0};
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        const dpcr_solve_options *chosen = dpcr_solve_plan_options(plan);
        assert_int_equal(chosen->method, DPCR_METHOD_PARATAA);
        assert_true(chosen->atol == (own[0] ? 3 * full : DPCR_UNCONFIRMED * full));
        assert_true(chosen->rtol == (own[1] ? 5 * full : DPCR_UNCONFIRMED * full));
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
}

// A negative tolerance is none, and so is the other where it is left 0; so a plan's options tell, to be asked for
// again.
static void none_is_none_of_both(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO, DPCR_METHOD_PICARD, DPCR_METHOD_JACOBI,
                                          DPCR_METHOD_OVERLAP};
    static const double cases[][4] = {{-1, 0, -1, -1},
                                      {0, -1, -1, -1},
                                      {-2, -3, -1, -1},
                                      {-1, 1e-3, -1, 1e-3},
                                      {0.5, -1, 0.5, -1}};  // asked for, told
    scalars s = {.step = drifting, .length = 50, .batch = 1, .dtype = DPCR_F64};
    const dpcr_steps steps = steps_of(&s);
    for (int k = 0; k < 20; k++) {
        const double *c = cases[k / 4];
        const dpcr_solve_options options = {
            .size = sizeof options, .method = methods[k % 4], .atol = c[0], .rtol = c[1]};
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        const dpcr_solve_options *told = dpcr_solve_plan_options(plan);
        if (told->atol != c[2] || told->rtol != c[3])
            fail_msg("%s, %g and %g: %g and %g", dpcr_method_name(options.method), c[0], c[1], told->atol, told->rtol);
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
}

// ---- evaluations ----

static double settling(int64_t l, double z) { return 0.6 * z + 0.1 * sin(z) + 0.01 * (double)(l % 7); }
static double about_settling(int64_t l, int64_t steps, double z) {
    return (void)l, pow(0.65, (double)steps) * (z - 0.08) + 0.08;
}

// The step's derivative, by a difference.
static int slope(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f, const dpcr_array *a) {
    scalars *s = user;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t b = 0; b < span->rows; b++) {
            if (span->active && !span->active[b]) continue;
            const int64_t l = span->first + c * span->stride;
            const double z = chain_get(in, c * in->strides[0] + b * in->strides[1]);
            if (f) chain_put(f, c * f->strides[0] + b * f->strides[1], s->step(l, z));
            chain_put(a, c * a->strides[0] + b * a->strides[1], (s->step(l, z + 1e-4) - s->step(l, z - 1e-4)) / 2e-4);
            s->made += f != NULL;
        }
    return 0;
}

// Of three sequences that end after different sweeps, with a tape and without.
static void evaluations_are_those_made(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_PICARD,   DPCR_METHOD_JACOBI,
                                          DPCR_METHOD_PARATAA,    DPCR_METHOD_PARAREAL, DPCR_METHOD_OVERLAP,
                                          DPCR_METHOD_SHOOTING};
    for (int m = 0; m < 7; m++)
        for (int k = 0; k < 8; k++) {
            const bool shoots = methods[m] == DPCR_METHOD_SHOOTING;
            scalars s = {
                .step = settling, .coarse = shoots ? NULL : about_settling, .length = 103, .batch = k & 1 ? 3 : 1};
            s.dtype = DPCR_F64;
            const bool taped = k & 2, confirmed = k & 4 && methods[m] != DPCR_METHOD_SEQUENTIAL && !shoots;
            dpcr_steps steps = steps_of(&s);
            if (shoots) steps.linearise = slope, steps.jacobian = dpcr_transition_square(DPCR_DENSE, 1, 0);
            steps.tape_values = 1;
            const dpcr_solve_options options = {.size = sizeof options,
                                                .method = methods[m],
                                                .backward = DPCR_SCHEME_SEQUENTIAL,
                                                .chunk = 10,
                                                .warm_up = 25,
                                                .max_sweeps = 200,
                                                .confirm = confirmed ? 1e-6 : 0};
            const double z0[3] = {0.3, 1e6, -1e3};
            double z[309], tape[309];
            const int64_t shape[3] = {103, s.batch, 1};
            const dpcr_array first = dpcr_array_make((void *)z0, DPCR_F64, 2, shape + 1),
                             states = dpcr_array_make(z, DPCR_F64, 3, shape),
                             taken = dpcr_array_make(tape, DPCR_F64, 3, shape);
            dpcr_solve_plan *plan = NULL;
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
            const size_t bytes = dpcr_solve_plan_workspace(plan);
            void *workspace = solving_workspace(bytes);
            dpcr_solve_report report = {.size = sizeof report};
            s.made = 0;
            assert_int_equal(
                dpcr_solve_execute(plan, &first, &states, taped ? &taken : NULL, workspace, bytes, &report, NULL),
                DPCR_OK);
            if (report.evaluations != s.made)
                fail_msg("%s, batch %d%s%s: told %lld, made %lld", dpcr_method_name(methods[m]), (int)s.batch,
                         taped ? ", tape" : "", confirmed ? ", confirmed" : "", (long long)report.evaluations,
                         (long long)s.made);
            free(workspace);
            dpcr_solve_plan_destroy(plan);
        }
    dpcr_context_destroy(context);
}

// ---- neighbours ----

enum { LONG = 5000 };  // more than a window of the way back, of one sequence and of three

// Adjoint states of `batch` sequences alike, where going back is linear chains, one after the other.
static double *way_back(dpcr_context *context, int64_t batch) {
    scalars s = {.step = settling, .length = LONG, .batch = batch, .dtype = DPCR_F64};
    dpcr_steps steps = steps_of(&s);
    steps.linearise = slope, steps.jacobian = dpcr_transition_square(DPCR_DENSE, 1, 0);
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    const int64_t shape[3] = {LONG, batch, 1};
    const size_t numbers = (size_t)(LONG * batch);
    double *z = calloc(numbers, sizeof *z), *lambda = calloc(numbers, sizeof *z), *given = calloc(numbers, sizeof *z);
    double z0[3] = {0.3, 0.3, 0.3};
    for (size_t i = 0; i < numbers; i++) given[i] = 1.0 / (double)(3 + (int64_t)i / batch % 17);
    const dpcr_array first = dpcr_array_make(z0, DPCR_F64, 2, shape + 1),
                     states = dpcr_array_make(z, DPCR_F64, 3, shape),
                     direct = dpcr_array_make(given, DPCR_F64, 3, shape),
                     adjoints = dpcr_array_make(lambda, DPCR_F64, 3, shape);
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = solving_workspace(bytes);
    assert_int_equal(dpcr_solve_execute(plan, &first, &states, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
    assert_int_equal(
        dpcr_solve_backward(plan, &first, &states, NULL, &direct, NULL, &adjoints, NULL, workspace, bytes, NULL, NULL),
        DPCR_OK);
    free(workspace), free(z), free(given);
    dpcr_solve_plan_destroy(plan);
    return lambda;
}

static void windows_back_lie_as_for_one_sequence(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    double *one = way_back(context, 1), *three = way_back(context, 3);
    for (int64_t l = 0; l < LONG; l++)
        for (int64_t b = 0; b < 3; b++)
            if (one[l] != three[3 * l + b]) fail_msg("step %d: %.17g, in a batch %.17g", (int)l, one[l], three[3 * l]);
    free(one), free(three);
    dpcr_context_destroy(context);
}

static double halving(int64_t l, double z) { return (void)l, 0.5 * z; }
static int no_coarse(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    return (void)user, (void)span, (void)in, (void)last, 1;
}

// A cycle that confirms carries nothing of a sequence that has not moved, whatever is beside it.
static void nothing_is_carried_of_who_has_not_moved(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    for (int64_t batch = 1; batch <= 2; batch++) {
        scalars s = {.step = halving, .length = 25, .batch = batch, .dtype = DPCR_F64};
        dpcr_steps steps = steps_of(&s);
        steps.coarse = no_coarse;
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_JACOBI,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .atol = 1e-3,
                                            .rtol = 1e-3,
                                            .confirm = 1e-2};
        const chain c = {.length = 25, .batch = batch, .width = 1, .dtype = DPCR_F64};
        const double z0[2] = {0, 1};
        solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
        assert_int_equal(r.status, DPCR_OK);
        assert_int_equal(r.reasons[0], DPCR_REASON_CONVERGED);
        assert_int_equal(r.sweeps[0], 1);
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// What stands behind a report of an older version is not looked at, as AddressSanitizer sees.
static void an_old_report_has_no_seconds(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    double slopes[400];
    for (int l = 0; l < 400; l++) slopes[l] = 0.5;
    scalars s = {.step = halving, .length = 400, .batch = 1, .dtype = DPCR_F64};
    dpcr_steps steps = steps_of(&s);
    steps.slopes = slopes;
    const dpcr_solve_options options = {.size = sizeof options, .backward = DPCR_SCHEME_SEQUENTIAL};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = offsetof(dpcr_solve_report, evaluations);
    dpcr_solve_report *report = calloc(1, bytes);
    assert_non_null(report);
    report->size = bytes, report->method = dpcr_solve_plan_method(plan), report->sweeps = 1;
    assert_int_equal(dpcr_solve_plan_learn(plan, report, NULL), DPCR_OK);
    free(report);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_locks_a_step_that_was_made),
        cmocka_unit_test(mean_locks_alone_as_among_others),
        cmocka_unit_test(mean_of_small_numbers),
        cmocka_unit_test(nothing_is_estimated_by_the_identity),
        cmocka_unit_test(first_sweep_sees_the_last_chunk),
        cmocka_unit_test(few_steps_want_a_second_look),
        cmocka_unit_test(estimate_alone_wants_no_limit),
        cmocka_unit_test(choice_has_its_own_tolerances),
        cmocka_unit_test(none_is_none_of_both),
        cmocka_unit_test(evaluations_are_those_made),
        cmocka_unit_test(windows_back_lie_as_for_one_sequence),
        cmocka_unit_test(nothing_is_carried_of_who_has_not_moved),
        cmocka_unit_test(an_old_report_has_no_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
