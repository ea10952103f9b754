// SPDX-License-Identifier: MIT
// What the nonlinear driver promises around its numbers: reports and their phases, shared plans, refusals, callbacks'
// codes, dpcr_steps_check, the planner, refused memory, empty chains.
#include <pthread.h>
#include <stdbool.h>

#include "budget.h"
#include "deeppcr/model.h"
#include "solving.h"

// The report's histories: locked prefixes never shrink, the batch's is the smallest of its sequences', the last is all.
static void histories(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int m = 0; m <= SWEEP_METHODS; m++) {
        chain c = tanh_chain(120, 3, 2, DPCR_F64);  // for shooting, 7 chunks and a remainder
        void *z0 = starts(&c);
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = m < SWEEP_METHODS ? sweep_methods[m] : DPCR_METHOD_SHOOTING,
                                            .scheme = DPCR_SCHEME_PCR,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .max_sweeps = 1000};
        solved r = solve(context, &c, z0, &options);
        assert_true(r.report.history_length >= 2 && r.report.history_length < 2048);
        assert_non_null(strstr(r.sentence, "as asked"));
        for (int64_t k = 0; k < r.report.history_length; k++) {
            int64_t least = 120;
            double most = 0;
            for (int b = 0; b < 3; b++) {
                const int64_t front = r.sequence_fronts[k * 8 + b];
                if (k) assert_true(front >= r.sequence_fronts[(k - 1) * 8 + b]);
                least = front < least ? front : least;
                most = fmax(most, r.sequence_history[k * 8 + b]);
            }
            assert_int_equal(r.fronts[k], least);
            assert_true(r.history[k] <= most);
        }
        assert_int_equal(r.fronts[r.report.history_length - 1], 120);
        solved_free(&r);
        free(z0);
    }
    dpcr_context_destroy(context);
}

// A report's phases are parts of its seconds, and a method's work is in one of them.
static void phases(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int m = DPCR_METHOD_SEQUENTIAL; m < DPCR_METHOD_COUNT; m++) {
        chain c = tanh_chain(400, 2, 2, DPCR_F64);
        void *z0 = starts(&c);
        const dpcr_solve_options options = {.size = sizeof options, .method = (dpcr_method)m, .max_sweeps = 1000};
        solved r = solve(context, &c, z0, &options);
        const dpcr_solve_report *told = &r.report;
        const double parts = told->seconds_evaluate + told->seconds_linear + told->seconds_finish;
        assert_true(told->seconds_evaluate >= 0 && told->seconds_linear >= 0 && told->seconds_finish >= 0);
        if (m != DPCR_METHOD_SEQUENTIAL) assert_true(parts > 0);
        assert_true(parts <= told->seconds * (1 + 1e-9));
        solved_free(&r);
        free(z0);
    }
    dpcr_context_destroy(context);
}

typedef struct shared_plan {
    const dpcr_solve_plan *plan;
    const void *z0, *wanted;
    int64_t shape[3];
    int failures;
} shared_plan;

static void *execute_shared(void *argument) {
    shared_plan *s = argument;
    const size_t states = (size_t)(s->shape[0] * s->shape[1] * s->shape[2]) * sizeof(double),
                 bytes = dpcr_solve_plan_workspace(s->plan);
    void *workspace = solving_workspace(bytes), *data = malloc(states);
    const dpcr_array z0 = dpcr_array_make((void *)s->z0, DPCR_F64, 2, s->shape + 1),
                     z = dpcr_array_make(data, DPCR_F64, 3, s->shape);
    for (int i = 0; i < 20; i++) {
        memset(data, 0, states);
        if (dpcr_solve_execute(s->plan, &z0, &z, NULL, workspace, bytes, NULL, NULL) != DPCR_OK) s->failures++;
        if (memcmp(data, s->wanted, states) != 0) s->failures++;
    }
    free(workspace), free(data);
    return NULL;
}

// One plan, one context, several threads at once, each with a workspace of its own.
static void plans_are_shared(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = tanh_chain(200, 4, 4, DPCR_F64);
    dpcr_steps steps = chain_steps(&c);
    steps.flops = 0;  // unknown: always handed to the threads
    void *z0 = starts(&c);
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR, .backward = DPCR_SCHEME_PCR};
    solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    shared_plan jobs[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = (shared_plan){.plan = plan, .z0 = z0, .wanted = r.z, .shape = {200, 4, 4}};
        assert_int_equal(pthread_create(&threads[i], NULL, execute_shared, &jobs[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].failures, 0);
    }
    dpcr_solve_plan_destroy(plan);
    solved_free(&r);
    free(z0);
    dpcr_context_destroy(context);
}

static void refused(dpcr_context *context, const dpcr_steps *steps, const dpcr_solve_options *options,
                    dpcr_status wanted, const char *word) {
    dpcr_solve_plan *plan = (dpcr_solve_plan *)1;
    dpcr_error error = {0};
    assert_int_equal(dpcr_solve_plan_create(context, steps, options, &plan, &error), wanted);
    assert_int_equal(error.status, wanted);
    if (!strstr(error.text, word)) fail_msg("\"%s\" does not say %s", error.text, word);
    assert_null(plan);
}

static void refusals(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = tanh_chain(8, 1, 3, DPCR_F64);
    const dpcr_steps good = chain_steps(&c);
    dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_NEWTON};
    dpcr_steps steps = good;
    steps.advance = NULL;
    refused(context, &steps, &options, DPCR_ERROR_ARGUMENT, "advance");
    steps = good, steps.length = -1;
    refused(context, &steps, &options, DPCR_ERROR_ARGUMENT, "length");
    double *const told[] = {&steps.flops,
                            &steps.jacobian_flops,
                            &steps.latency,
                            &steps.lane_seconds,
                            &steps.adjoint_lane_seconds,
                            &steps.adjoint_latency,
                            &steps.coarse_flops,
                            &steps.adjoint_window_seconds,
                            &steps.weight_bytes,
                            &steps.gradient_latency,
                            &steps.gradient_lane_seconds};
    for (size_t i = 0; i < 3 * sizeof told / sizeof *told; i++) {
        steps = good, *told[i / 3] = i % 3 ? i % 3 > 1 ? HUGE_VAL : (double)NAN : -60;
        refused(context, &steps, &options, DPCR_ERROR_ARGUMENT, "wanted 0, unknown, or more");
    }
    steps = good, steps.dtype = DPCR_U32;
    refused(context, &steps, &options, DPCR_ERROR_ARGUMENT, "uint32");
    steps = good, steps.linearise = NULL;
    refused(context, &steps, &options, DPCR_ERROR_UNSUPPORTED, "sequential, overlap, picard, jacobi, parareal");
    options.method = DPCR_METHOD_JACOBI, options.backward = DPCR_SCHEME_PCR;
    refused(context, &steps, &options, DPCR_ERROR_UNSUPPORTED, "backward sequential");
    options = (dpcr_solve_options){.size = sizeof options, .method = DPCR_METHOD_BLOCK, .block = 2};
    refused(context, &good, &options, DPCR_ERROR_UNSUPPORTED, "divisor");
    options = (dpcr_solve_options){.size = sizeof options, .method = DPCR_METHOD_DAMPED, .damping = 1.5};
    refused(context, &good, &options, DPCR_ERROR_ARGUMENT, "damping");
    options = (dpcr_solve_options){.method = DPCR_METHOD_NEWTON};
    refused(context, &good, &options, DPCR_ERROR_ARGUMENT, "options.size");
    options = (dpcr_solve_options){.size = sizeof options, .method = DPCR_METHOD_NEWTON, .memory_limit = 100};
    refused(context, &good, &options, DPCR_ERROR_MEMORY, "limit");
    steps = good, steps.length = INT64_MAX / 2, steps.batch = INT64_MAX / 2;
    options = (dpcr_solve_options){.size = sizeof options, .method = DPCR_METHOD_NEWTON};
    refused(context, &steps, &options, DPCR_ERROR_OVERFLOW, "fit");
    dpcr_method method;
    dpcr_error error;
    assert_int_equal(dpcr_method_find("newtonn", &method, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "shooting"));
    // arguments of execute
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &good, &options, &plan, &error), DPCR_OK);
    double z[24], z0[3] = {0};
    const int64_t shape[3] = {8, 1, 3}, wrong[3] = {7, 1, 3};
    const dpcr_array first = dpcr_array_make(z0, DPCR_F64, 2, shape + 1),
                     states = dpcr_array_make(z, DPCR_F64, 3, wrong);
    const dpcr_array right = dpcr_array_make(z, DPCR_F64, 3, shape);
    assert_int_equal(dpcr_solve_execute(plan, &first, &states, NULL, NULL, 0, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "[7][1][3]"));
    assert_int_equal(dpcr_solve_execute(plan, &first, &right, NULL, NULL, 0, NULL, &error), DPCR_ERROR_MEMORY);
    const dpcr_array last = dpcr_array_make(z + 21, DPCR_F64, 2, shape + 1);
    assert_int_equal(dpcr_solve_execute(plan, &last, &right, NULL, NULL, 0, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "z0 shares memory with z"));
    dpcr_solve_plan_destroy(plan);
    int64_t ends[1] = {0};
    steps = good;
    steps.ends = ends;  // looked at when they are used
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), DPCR_OK);
    for (ends[0] = -1; ends[0] < 10; ends[0] += 10) {
        assert_int_equal(dpcr_solve_execute(plan, &first, &right, NULL, NULL, 0, NULL, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "ends[0]"));
    }
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

static void callbacks_abort(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int m = 1; m < DPCR_METHOD_COUNT; m++) {
        chain c = tanh_chain(100, 2, 2, DPCR_F64);
        c.fail_code = -42, c.fail_at = 50;
        double z0[4] = {0};
        const dpcr_solve_options options = {
            .size = sizeof options, .method = (dpcr_method)m, .chunk = 10, .warm_up = 5};
        solved r = solve(context, &c, z0, &options);
        assert_int_equal(r.status, DPCR_ERROR_CALLBACK);
        assert_int_equal(r.error.code, -42);
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// A positive code: what the span was to write counts as not finite, whatever the method; never a success over unwritten
// states.
static void positive_codes(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int m = 1; m < DPCR_METHOD_COUNT; m++) {
        chain c = tanh_chain(100, 2, 2, DPCR_F64);
        c.fail_code = 7, c.fail_at = 50;
        double z0[4] = {0};
        const dpcr_solve_options options = {
            .size = sizeof options, .method = (dpcr_method)m, .chunk = 10, .warm_up = 5};
        solved r = solve(context, &c, z0, &options);
        if (r.status == DPCR_OK && m != DPCR_METHOD_NEWTON && m != DPCR_METHOD_DIAGONAL && m != DPCR_METHOD_BLOCK &&
            m != DPCR_METHOD_DAMPED)
            for (int i = 0; i < 4; i++) assert_true(isnan(((double *)r.z)[99 * 4 + i]));
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// Steps that keep a state, shrink it, and let it grow; at `broken` (if not negative) they leave the finite numbers.
static int keep_shrink_grow(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                            const dpcr_array *last, const dpcr_array *tape) {
    const int64_t broken = *(const int64_t *)user;
    (void)tape;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t b = 0; b < span->rows; b++) {
            float x = ((const float *)in->data)[c * in->strides[0] + b * in->strides[1]];
            for (int64_t k = 0; k < span->steps; k++) {
                const int64_t l = span->first + c * span->stride + k;
                x *= l == broken ? NAN : l < 10 ? 1.0F : l < 12 ? 1e-9F : 1.01F;
                if (states)
                    ((float *)states->data)[c * states->strides[0] + k * states->strides[1] + b * states->strides[2]] =
                        x;
            }
            if (last) ((float *)last->data)[c * last->strides[0] + b * last->strides[1]] = x;
        }
    return 0;
}

// The loop's numbers, and NONFINITE where these are not, from a cold start and from the loop's own states.
static void the_loops_numbers_whatever_they_are(void **state) {
    (void)state;
    enum { L = 40, B = 2 };
    dpcr_context *context = solving_context(2);
    const float z0[B] = {1e8F, -3e9F};
    int64_t broken = -1;
    chain c = tanh_chain(L, B, 1, DPCR_F32);
    dpcr_steps steps = {.size = sizeof steps,
                        .user = &broken,
                        .length = L,
                        .batch = B,
                        .width = 1,
                        .dtype = DPCR_F32,
                        .flops = 1,
                        .advance = keep_shrink_grow};
    const dpcr_solve_options in_order = {.size = sizeof in_order, .method = DPCR_METHOD_SEQUENTIAL};
    static const dpcr_solve_options ways[] = {
        {.method = DPCR_METHOD_PICARD},
        {.method = DPCR_METHOD_PICARD, .lock = DPCR_LOCK_MEAN_SQUARE},
        {.method = DPCR_METHOD_PICARD, .lock = DPCR_LOCK_MEAN_SQUARE, .window = 7},
        {.method = DPCR_METHOD_JACOBI},
        {.method = DPCR_METHOD_PARATAA},
        {.method = DPCR_METHOD_PARAREAL},
        {.method = DPCR_METHOD_PARAREAL, .chunk = L},
    };
    for (broken = -1; broken < L; broken += broken < 0 ? 16 : 12) {  // none, 15, 27, 39
        solved loop = solve_steps(context, &steps, &c, z0, &in_order, NULL, 0);
        for (size_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++)
            for (int exact = 0; exact < 2; exact++) {
                dpcr_solve_options by = ways[i / 2];
                by.size = sizeof by;
                by.atol = by.rtol = exact ? -1 : 1e-6;
                by.guess = i % 2 ? DPCR_GUESS_GIVEN : DPCR_GUESS_STATE;
                solved r = solve_steps(context, &steps, &c, z0, &by, i % 2 ? loop.z : NULL, 0);
                assert_int_equal(r.status, DPCR_OK);
                if (broken >= 0 ? r.report.reason != DPCR_REASON_NONFINITE
                                : exact && r.report.reason != DPCR_REASON_EXACT)
                    fail_msg("way %zu, exact %d, broken at %lld: %s", i, exact, (long long)broken,
                             dpcr_reason_name(r.report.reason));
                for (int64_t k = 0; k < L * B; k++) {
                    const float got = ((float *)r.z)[k], wanted = ((float *)loop.z)[k];
                    assert_true(exact || broken >= 0 ? got == wanted || (isnan(got) && isnan(wanted)) : isfinite(got));
                }
                solved_free(&r);
            }
        solved_free(&loop);
    }
    dpcr_context_destroy(context);
}

// z' = z / 2 + 2, of which steps from the tenth on take nothing up to 2, where the loop from 0 never is.
static int step_of_a_domain(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                            const dpcr_array *last, const dpcr_array *tape) {
    int code = 0;
    (void)user, (void)tape;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t r = 0; r < span->rows; r++) {
            float z = ((const float *)in->data)[c * in->strides[0] + r * in->strides[1]];
            for (int64_t k = 0; k < span->steps; k++) {
                if (span->first + c * span->stride + k >= 10 && !(z > 2)) code = 1;
                z = 0.5f * z + 2;
                if (states)
                    ((float *)states->data)[c * states->strides[0] + k * states->strides[1] + r * states->strides[2]] =
                        z;
            }
            if (last) ((float *)last->data)[c * last->strides[0] + r * last->strides[1]] = z;
        }
    return code;
}

// Chunks and guesses that lie outside are not the chain's: what can be is the loop's, and none ends in NaN.
static void a_lane_outside_its_domain_spoils_no_other(void **state) {
    (void)state;
    enum { LENGTH = 20 };
    const int64_t shape[3] = {LENGTH, 1, 1};
    dpcr_context *context = solving_context(2);
    int solved_by = 0;
    for (int n = 0; n < 4 * DPCR_METHOD_COUNT; n++) {
        const dpcr_method method = (dpcr_method)(n / 4);
        const bool exact = n % 2, pieces = method == DPCR_METHOD_PARAREAL || method == DPCR_METHOD_OVERLAP;
        const dpcr_steps steps = {.size = sizeof steps,
                                  .length = LENGTH,
                                  .batch = 1,
                                  .width = 1,
                                  .dtype = DPCR_F32,
                                  .concurrent = n % 4 / 2,
                                  .jacobian = dpcr_transition_square(DPCR_DIAGONAL, 1, 0),
                                  .flops = 4,
                                  .advance = step_of_a_domain};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = method,
                                            .chunk = pieces ? 5 : 0,
                                            .warm_up = method == DPCR_METHOD_OVERLAP ? 2 : 0,
                                            .guess = DPCR_GUESS_STATE,
                                            .atol = exact ? -1 : 0,
                                            .rtol = exact ? -1 : 0};
        dpcr_solve_plan *plan = NULL;
        if (dpcr_solve_plan_create(context, &steps, &options, &plan, NULL) != DPCR_OK)
            continue;  // wants more callbacks
        float start = 0, states[LENGTH], z = 0;
        const dpcr_array z0 = dpcr_array_make(&start, DPCR_F32, 2, shape + 1);
        const dpcr_array to = dpcr_array_make(states, DPCR_F32, 3, shape);
        void *workspace = aligned_alloc(64, (dpcr_solve_plan_workspace(plan) + 64) / 64 * 64);
        dpcr_solve_report report = {.size = sizeof report};
        assert_int_equal(
            dpcr_solve_execute(plan, &z0, &to, NULL, workspace, dpcr_solve_plan_workspace(plan), &report, NULL),
            DPCR_OK);
        assert_true(report.reason > 0);
        for (int k = 0; k < LENGTH; k++) {
            z = 0.5f * z + 2;
            if (exact ? !(states[k] == z) : !(fabsf(states[k] - z) < 1e-4f))
                fail_msg("%s, %s: step %d is %g, not %g", dpcr_method_name(method), dpcr_reason_name(report.reason), k,
                         (double)states[k], (double)z);
        }
        solved_by++;
        free(workspace);
        dpcr_solve_plan_destroy(plan);
    }
    assert_true(solved_by >= 24);
    dpcr_context_destroy(context);
}

// What is written may not overlap itself: states, the adjoint states, the gradient by z0.
static void outputs_do_not_overlap_themselves(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = tanh_chain(8, 2, 3, DPCR_F64);
    dpcr_steps steps = chain_steps(&c);
    steps.tape_values = 1;
    const dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    double numbers[4][48] = {{0}};
    const int64_t shape[3] = {8, 2, 3};
    dpcr_array z0 = dpcr_array_make(numbers[0], DPCR_F64, 2, shape + 1),
               z = dpcr_array_make(numbers[1], DPCR_F64, 3, shape),
               lambda = dpcr_array_make(numbers[2], DPCR_F64, 3, shape),
               dz0 = dpcr_array_make(numbers[3], DPCR_F64, 2, shape + 1);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = solving_workspace(bytes);
    z0.strides[0] = 0;  // one start for all is read
    assert_int_equal(dpcr_solve_execute(plan, &z0, &z, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
    const int64_t taped[3] = {8, 2, 1};
    dpcr_array tape = dpcr_array_make(numbers[2], DPCR_F64, 3, taped);
    tape.strides[1] = 0;
    dpcr_error refusal = {0};
    assert_int_equal(dpcr_solve_execute(plan, &z0, &z, &tape, workspace, bytes, NULL, &refusal), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(refusal.text, "tape is written"));
    for (int i = 0; i < 4; i++) {
        dpcr_array *array = i < 2 ? &z : i < 3 ? &lambda : &dz0;
        const dpcr_array right = *array;
        dpcr_error error = {0};
        array->strides[i == 1] = i == 2 ? 5 : 0;  // a step of 6 numbers is 5 from the next
        const dpcr_status status =
            i < 2 ? dpcr_solve_execute(plan, &z0, &z, NULL, workspace, bytes, NULL, &error)
                  : dpcr_solve_backward(plan, &z0, &z, NULL, NULL, NULL, &lambda, &dz0, workspace, bytes, NULL, &error);
        assert_int_equal(status, DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, i < 2 ? " z is written" : i < 3 ? "lambda is written" : "dz0 is written"));
        *array = right;
    }
    assert_int_equal(dpcr_solve_backward(plan, &z0, &z, NULL, NULL, NULL, &lambda, &dz0, workspace, bytes, NULL, NULL),
                     DPCR_OK);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// With no_fallback every step is written: where no sweep came, the state before it.
static void what_is_left_open_is_written(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    static const dpcr_method methods[] = {DPCR_METHOD_NEWTON,  DPCR_METHOD_DIAGONAL, DPCR_METHOD_JACOBI,
                                          DPCR_METHOD_PICARD,  DPCR_METHOD_PARATAA,  DPCR_METHOD_PARAREAL,
                                          DPCR_METHOD_OVERLAP, DPCR_METHOD_SHOOTING};
    int open = 0;
    for (int n = 0; n < 8 * 12; n++) {
        const int64_t width = 1 << n % 3, batch = 1 + n / 3 % 2, length = 60, numbers = length * batch * width;
        const int64_t shape[3] = {length, batch, width};
        const dpcr_model_options o = {.size = sizeof o,
                                      .architecture = DPCR_RESNET,
                                      .layers = length,
                                      .width = width,
                                      .activation = DPCR_ACT_TANH,
                                      .seed = (uint64_t)n,
                                      .scale = 1.2};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = methods[n / 12],
                                            .guess = n % 12 < 6 ? DPCR_GUESS_ZERO : DPCR_GUESS_STATE,
                                            .window = n % 12 < 6 || n / 12 > 4 ? 0 : 16,
                                            .max_sweeps = 2,
                                            .no_fallback = 1};
        dpcr_model *model = NULL;
        dpcr_solve_plan *plan = NULL;
        dpcr_steps steps = {.size = sizeof steps};
        int64_t count = 0;
        float start[8] = {0.5f, -1, 0.3f, 2, -0.2f, 0.7f, 1, -2}, *z = malloc((size_t)numbers * sizeof *z);
        assert_int_equal(dpcr_model_create(context, &o, &model, NULL), DPCR_OK);
        float *theta = dpcr_model_vector(model, &count);
        for (int64_t i = 0; i < count; i++) theta[i] *= 3;
        assert_int_equal(dpcr_model_steps(model, batch, &steps, NULL), DPCR_OK);
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        for (int64_t i = 0; i < numbers; i++) z[i] = 12345;
        const dpcr_array z0 = dpcr_array_make(start, DPCR_F32, 2, shape + 1),
                         to = dpcr_array_make(z, DPCR_F32, 3, shape);
        void *workspace = aligned_alloc(64, (dpcr_solve_plan_workspace(plan) + 64) / 64 * 64);
        dpcr_solve_report report = {.size = sizeof report};
        assert_int_equal(
            dpcr_solve_execute(plan, &z0, &to, NULL, workspace, dpcr_solve_plan_workspace(plan), &report, NULL),
            DPCR_OK);
        open += report.reason == DPCR_REASON_NOT_CONVERGED;
        for (int64_t i = 0; i < numbers; i++)
            if (z[i] == 12345)
                fail_msg("%s, width %d: number %d is not written", dpcr_method_name(options.method), (int)width,
                         (int)i);
        free(workspace), free(z);
        dpcr_solve_plan_destroy(plan);
        dpcr_model_destroy(model);
    }
    assert_true(open > 50);
    dpcr_context_destroy(context);
}

static void steps_check_catches(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    dpcr_error error = {0};
    chain c = tanh_chain(30, 2, 3, DPCR_F64);
    double *z0 = starts(&c);
    const int64_t shape[2] = {2, 3};
    const dpcr_array first = dpcr_array_make(z0, DPCR_F64, 2, shape);
    dpcr_steps steps = chain_steps(&c);
    if (dpcr_steps_check(context, &steps, &first, 1e-6, &error) != DPCR_OK) fail_msg("%s", error.text);
    c.wrong_jacobian = 1;
    assert_int_equal(dpcr_steps_check(context, &steps, &first, 1e-6, &error), DPCR_ERROR_CALLBACK);
    assert_non_null(strstr(error.text, "Jacobian"));
    c.wrong_jacobian = 0, c.wrong_stride = 1;
    assert_int_equal(dpcr_steps_check(context, &steps, &first, 1e-6, &error), DPCR_ERROR_CALLBACK);
    assert_non_null(strstr(error.text, "stride"));
    c.wrong_stride = 0, c.wrong_adjoint_stride = 1;
    assert_int_equal(dpcr_steps_check(context, &steps, &first, 1e-6, &error), DPCR_ERROR_CALLBACK);
    assert_non_null(strstr(error.text, "adjoint, in lanes"));
    c.wrong_adjoint_stride = 0;
    const double big[2] = {0.9, 0};
    chain affine = {.step = step_affine, .length = 30, .batch = 2, .width = 3, .dtype = DPCR_F32, .parameters = big};
    float far[6] = {5000, -4000, 3000, 1, 2, 3};
    const dpcr_array from = dpcr_array_make(far, DPCR_F32, 2, shape);
    steps = chain_steps(&affine);
    if (dpcr_steps_check(context, &steps, &from, 1e-3, &error) != DPCR_OK) fail_msg("%s", error.text);
    free(z0);
    dpcr_context_destroy(context);
}

static void planner_explains(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = tanh_chain(64, 16, 8, DPCR_F32);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan *plan = NULL;
    const dpcr_solve_options options = {.size = sizeof options};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    assert_true(dpcr_solve_plan_method(plan) != DPCR_METHOD_AUTO);
    assert_true(dpcr_solve_plan_backward(plan) != DPCR_SCHEME_AUTO);
    assert_non_null(strstr(dpcr_solve_plan_sentence(plan), "loop takes"));
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// Of a batch of none every candidate's prediction is a number, of the way back by Jacobians too.
static void planner_weighs_nothing(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = tanh_chain(88, 0, 1, DPCR_F64);
    dpcr_steps steps = chain_steps(&c);
    steps.adjoint = NULL, steps.lanes = 2;
    dpcr_solve_plan *plan = NULL;
    const dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_NEWTON};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    dpcr_candidate found = {.size = sizeof found};
    int count = 0;
    for (; dpcr_solve_plan_candidate(plan, count, &found); count++) assert_true(isfinite(found.seconds));
    assert_true(count > 0);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// On a machine of many threads, whose rates are not this one's, a long narrow chain without a batch pays, a full batch
// never does.
static void planner_chooses(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const dpcr_machine many = {.size = sizeof many,
                               .threads = 256,
                               .flops = 5e10,
                               .latency = 1e-9,
                               .region = 5e-6,
                               .bandwidth = 1e11,
                               .cache_bytes = {32768, 1 << 20, 1 << 25},
                               .cache_bandwidth = {2e11, 1e11, 5e10}};
    assert_int_equal(dpcr_context_set_machine(context, &many, NULL), DPCR_OK);
    for (int full = 0; full < 2; full++) {
        chain c = tanh_chain(full ? 200 : 20000, full ? 5000 : 1, 2, DPCR_F32);
        dpcr_steps steps = chain_steps(&c);
        steps.latency = 1e-6;
        if (full) steps.flops = 1e6;
        dpcr_solve_plan *plan = NULL;
        const dpcr_solve_options options = {.size = sizeof options};
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        assert_int_equal(dpcr_solve_plan_method(plan), full ? DPCR_METHOD_SEQUENTIAL : DPCR_METHOD_OVERLAP);
        const char *sentence = full ? "sequential:" : "overlap:";
        assert_int_equal(strncmp(dpcr_solve_plan_sentence(plan), sentence, strlen(sentence)), 0);
        dpcr_solve_plan_destroy(plan);
        // With tolerances of each step's own only a method that looks at the steps, which can be asked for again.
        static double scale[20000];
        for (int i = 0; i < 20000; i++) scale[i] = 0.5;
        const dpcr_solve_options scaled = {.size = sizeof scaled, .step_scale = scale};
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &scaled, &plan, NULL), DPCR_OK);
        assert_int_not_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_OVERLAP);
        assert_int_not_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_SHOOTING);
        dpcr_solve_plan *again = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, dpcr_solve_plan_options(plan), &again, NULL), DPCR_OK);
        dpcr_solve_plan_destroy(again);
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
}

// A plan's own options find the windows again that a limit of memory left, whichever pass had needed shorter ones.
static void pinned_under_a_limit(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = tanh_chain(400, 3, 4, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    static const dpcr_method methods[] = {DPCR_METHOD_PICARD, DPCR_METHOD_NEWTON, DPCR_METHOD_PARATAA};
    for (int m = 0; m < 3; m++)
        for (int part = 1; part < 16; part++) {
            dpcr_solve_options options = {
                .size = sizeof options, .method = methods[m], .backward = DPCR_SCHEME_PCR, .guess = DPCR_GUESS_STEP};
            dpcr_solve_plan *plan = NULL, *again = NULL;
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
            options.memory_limit = dpcr_solve_plan_workspace(plan) / 16 * (size_t)part;
            dpcr_solve_plan_destroy(plan);
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
            assert_true(dpcr_solve_plan_workspace(plan) <= options.memory_limit);
            assert_int_equal(dpcr_solve_plan_create(context, &steps, dpcr_solve_plan_options(plan), &again, NULL),
                             DPCR_OK);
            assert_int_equal(dpcr_solve_plan_options(again)->window, dpcr_solve_plan_options(plan)->window);
            assert_int_equal(dpcr_solve_plan_workspace(again), dpcr_solve_plan_workspace(plan));
            dpcr_solve_plan_destroy(again), dpcr_solve_plan_destroy(plan);
        }
    dpcr_context_destroy(context);
}

// A sequence's bits are those that it has alone, whether its neighbours need more sweeps or fewer.
static void sequences_are_alone(void **state) {
    (void)state;
    enum { B = 6, W = 3 };
    dpcr_context *context = solving_context(2);
    static const double drifts[2] = {0.9, 0.3};
    for (int m = 1; m < DPCR_METHOD_COUNT; m++) {
        chain all = tanh_chain(60, B, W, DPCR_F64), one = tanh_chain(60, 1, W, DPCR_F64);
        all.parameters = one.parameters = drifts;
        double *z0 = starts(&all);
        for (int i = 0; i < B * W; i++) z0[i] *= i / W % 2 ? 1e-3 : 3;
        const dpcr_solve_options options = {
            .size = sizeof options, .method = (dpcr_method)m, .block = 3, .atol = 1e-2, .rtol = 1e-4, .warm_up = 4};
        solved together = solve(context, &all, z0, &options);
        assert_int_equal(together.status, DPCR_OK);
        for (int b = 0; b < B; b++) {
            solved alone = solve(context, &one, z0 + (ptrdiff_t)b * W, &options);
            assert_int_equal(alone.report.reason, together.reasons[b]);
            for (int l = 0; l < 60; l++)
                if (memcmp((double *)alone.z + (ptrdiff_t)l * W, (double *)together.z + ((ptrdiff_t)l * B + b) * W,
                           W * sizeof(double)) != 0)
                    fail_msg("%s: row %d has other bits alone at step %d", dpcr_method_name((dpcr_method)m), b, l);
            solved_free(&alone);
        }
        solved_free(&together);
        free(z0);
    }
    dpcr_context_destroy(context);
}

// + 0.1, but that the last step of sequence 1 has no value, or (parameters[0] == 1) one that is infinite.
static void step_breaks_at_the_end(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)j;
    out[0] = l + 1 < c->length || b == 0 ? in[0] + 0.1 : c->parameters[0] == 1 ? HUGE_VAL : NAN;
}

static int coarse_breaks_at_the_end(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    (void)user;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t b = 0; b < span->rows; b++)
            chain_put(last, c * last->strides[0] + b * last->strides[1],
                      chain_get(in, c * in->strides[0] + b * in->strides[1]) + 0.1 * (double)span->steps);
    return 0;
}

// Parareal's boundaries agree long before its last chunk has been looked at; what stands there is no result.
static void parareal_looks_at_the_end(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    for (int i = 0; i < 4; i++) {
        const double kind = i % 2, z0[2] = {0.3, 0.4};
        chain c = {.step = step_breaks_at_the_end, .length = 16, .batch = 2, .width = 1, .parameters = &kind};
        c.dtype = DPCR_F64;
        const dpcr_solve_options options = {
            .size = sizeof options, .method = DPCR_METHOD_PARAREAL, .confirm = i < 2 ? 0 : 1e-3};
        dpcr_steps steps = chain_steps(&c);
        if (i >= 2) steps.coarse = coarse_breaks_at_the_end;
        solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
        assert_int_equal(r.status, DPCR_OK);
        assert_int_equal(r.report.reason, DPCR_REASON_NONFINITE);
        assert_int_equal(r.reasons[1], DPCR_REASON_NONFINITE);
        assert_true(r.reasons[0] > 0 && fabs(((double *)r.z)[30] - 1.9) < 1e-9);
        assert_true(!isfinite(((double *)r.z)[31]) && fabs(((double *)r.z)[29] - 1.9) < 1e-9);
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// The estimate is the largest of the batch, that of a sequence which a single round confirmed included: here of the one
// whose guess is off by less than the tolerance.
static void estimate_of_the_batch(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = tanh_chain(20, 2, 1, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_NEWTON,
                                        .scheme = DPCR_SCHEME_SEQUENTIAL,
                                        .guess = DPCR_GUESS_GIVEN,
                                        .atol = 1e-5,
                                        .rtol = -1};
    void *z0 = starts(&c);
    double *guess = loop_of(&c, z0);
    guess[10] += 9e-6;                                    // step 5 of sequence 0
    for (int l = 0; l < 20; l++) guess[2 * l + 1] = 0.9;  // sequence 1
    solved r = solve_steps(context, &steps, &c, z0, &options, guess, 0);
    assert_int_equal(r.report.reason, DPCR_REASON_CONVERGED);
    assert_true(r.sweeps[0] < r.sweeps[1]);
    near(r.report.error_estimate, 9e-6, 1e-7);
    solved_free(&r);
    free(z0), free(guess);
    dpcr_context_destroy(context);
}

static void out_of_memory(void **state) {
    (void)state;
    int succeeded = 0;
    for (int64_t allowed = 0; allowed < 20 && !succeeded; allowed++) {
        budget b = {.left = allowed};
        const dpcr_context_options options = budget_options(&b);
        dpcr_context *context = NULL;
        chain c = tanh_chain(30, 2, 3, DPCR_F64);
        dpcr_steps steps = chain_steps(&c);
        dpcr_solve_plan *plan = NULL;
        double z0[6] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6};
        const int64_t shape[2] = {2, 3};
        const dpcr_array first = dpcr_array_make(z0, DPCR_F64, 2, shape);
        dpcr_status status = dpcr_context_create(&options, &context, NULL);
        if (status == DPCR_OK) status = dpcr_solve_plan_create(context, &steps, NULL, &plan, NULL);
        if (status == DPCR_OK) status = dpcr_steps_check(context, &steps, &first, 1e-6, NULL);
        assert_true(status == DPCR_OK || status == DPCR_ERROR_MEMORY);
        succeeded = status == DPCR_OK;
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
    }
    assert_true(succeeded);
}

static void empty_chains(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int m = 0; m < DPCR_METHOD_COUNT; m++)
        for (int which = 0; which < 2; which++) {
            chain c = tanh_chain(which ? 0 : 5, which ? 2 : 0, 2, DPCR_F64);
            double z0[4] = {1, 2, 3, 4};
            const dpcr_solve_options options = {.size = sizeof options, .method = (dpcr_method)m};
            const dpcr_steps steps = chain_steps(&c);
            solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
            if (r.status != DPCR_OK) fail_msg("%s: %s", dpcr_method_name((dpcr_method)m), r.error.text);
            solved_free(&r);
        }
    dpcr_context_destroy(context);
}

// The worse first: whatever the order they come in, one of the two, and no cycle.
static void of_two_reasons_the_worse_is_told(void **state) {
    (void)state;
    static const dpcr_reason order[] = {DPCR_REASON_NONFINITE, DPCR_REASON_NOT_CONVERGED, DPCR_REASON_FALLBACK,
                                        DPCR_REASON_SCALED,    DPCR_REASON_RESIDUAL_ONLY, DPCR_REASON_CONVERGED,
                                        DPCR_REASON_EXACT,     DPCR_REASON_SEQUENTIAL};
    enum { REASONS = sizeof order / sizeof *order };
    for (int i = 0; i < REASONS; i++)
        for (int k = i; k < REASONS; k++) {
            assert_int_equal(dpcr_reason_worse(order[i], order[k]), order[i]);
            assert_int_equal(dpcr_reason_worse(order[k], order[i]), order[i]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positive_codes),
        cmocka_unit_test(histories),
        cmocka_unit_test(plans_are_shared),
        cmocka_unit_test(refusals),
        cmocka_unit_test(of_two_reasons_the_worse_is_told),
        cmocka_unit_test(a_lane_outside_its_domain_spoils_no_other),
        cmocka_unit_test(outputs_do_not_overlap_themselves),
        cmocka_unit_test(what_is_left_open_is_written),
        cmocka_unit_test(callbacks_abort),
        cmocka_unit_test(steps_check_catches),
        cmocka_unit_test(planner_explains),
        cmocka_unit_test(planner_weighs_nothing),
        cmocka_unit_test(planner_chooses),
        cmocka_unit_test(parareal_looks_at_the_end),
        cmocka_unit_test(estimate_of_the_batch),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(empty_chains),
        cmocka_unit_test(the_loops_numbers_whatever_they_are),
        cmocka_unit_test(phases),
        cmocka_unit_test(pinned_under_a_limit),
        cmocka_unit_test(sequences_are_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
