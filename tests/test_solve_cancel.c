// SPDX-License-Identifier: MIT
// A caller who stops the nonlinear driver is heard in all methods: between sweeps and within them, between stretches of
// the loop and within calls of chunks, both ways; also where nobody told how slow steps are.
#include <time.h>

#include "sampled.h"
#include "solving.h"

static dpcr_context *context_that_asks(int threads, int (*cancel)(void *user), void *user) {
    const dpcr_context_options made = {.size = sizeof made, .threads = threads, .cancel = cancel, .cancel_user = user};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&made, &context, NULL), DPCR_OK);
    return context;
}

static int cancel_now(void *user) { return ++*(int *)user > 3; }

static void cancel_stops(void **state) {
    (void)state;
    int asked = 0;
    dpcr_context *context = context_that_asks(1, cancel_now, &asked);
    chain c = {.step = step_logistic, .length = 1000, .batch = 1, .width = 1, .dtype = DPCR_F64};
    const double z0[1] = {0.3};
    for (int m = DPCR_METHOD_NEWTON; m < DPCR_METHOD_COUNT; m++) {
        const dpcr_solve_options options = {
            .size = sizeof options, .method = (dpcr_method)m, .block = 1, .max_sweeps = 50};
        asked = m == DPCR_METHOD_OVERLAP ? 3 : 0;
        solved r = solve(context, &c, z0, &options);
        if (r.status != DPCR_ERROR_CANCELLED) fail_msg("%s was not cancelled", dpcr_method_name((dpcr_method)m));
        solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// The loop looks between stretches of steps, and its bits do not depend on where those end. They begin with one step
// where those are told to be heavy.
static void cancel_stops_the_loop(void **state) {
    (void)state;
    int asked = 0;
    dpcr_context *context = context_that_asks(1, cancel_now, &asked);
    chain c = tanh_chain(1000, 2, 3, DPCR_F32);
    void *z0 = starts(&c);
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_SEQUENTIAL,
                                        .backward = DPCR_SCHEME_SEQUENTIAL};  // planning asks too
    dpcr_steps steps = chain_steps(&c);
    steps.flops = 1;
    solved whole = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
    assert_int_equal(whole.status, DPCR_OK);
    assert_int_equal(asked, 0);
    steps.flops = 1e9;  // a stretch is 64 steps at most
    solved stopped = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
    assert_int_equal(stopped.status, DPCR_ERROR_CANCELLED);
    assert_int_equal(asked, 4);
    asked = -100;
    solved split = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
    assert_int_equal(split.status, DPCR_OK);
    assert_in_range(asked + 100, 15, 100);
    assert_memory_equal(split.z, whole.z, solving_bytes(&c) - 64);
    solved_free(&whole), solved_free(&stopped), solved_free(&split);
    free(z0);
    dpcr_context_destroy(context);
}

static int asked_at(void *user) { return --*(int *)user == 0; }  // once, as a signal that was taken is forgotten

// A run that is faster asks by the clock less often, and never comes to the question.
static bool was_heard(const solved *s, int left) {
    return s->status == DPCR_ERROR_CANCELLED || (s->status == DPCR_OK && left > 0);
}

static int64_t longest[2];             // steps of a call of lanes, there and back
static int64_t unasked, most_unasked;  // such calls from question to question

static int64_t all_unasked, most_all;  // steps of a chunk alone from question to question, with few sequences

static void measure_call(const dpcr_span *span, int back) {
    all_unasked += span->steps;
    if (all_unasked > most_all) most_all = all_unasked;
    if (span->lanes == 1) return;
    if (span->steps > longest[back]) longest[back] = span->steps;
    if (++unasked > most_unasked) most_unasked = unasked;
}

static int asked_between_calls(void *user) {
    unasked = all_unasked = 0;
    return asked_at(user);
}

static int measured_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                            const dpcr_array *last, const dpcr_array *tape) {
    measure_call(span, 0);
    return chain_advance(user, span, in, states, last, tape);
}

static int measured_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                            const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                            const dpcr_array *first_out) {
    measure_call(span, 1);
    return chain_adjoint(user, span, in, tape, direct, last, adjoint, first_out);
}

// So does overlap within a call of chunks, which may be the whole chain, both ways.
static void cancel_stops_a_call_of_chunks(void **state) {
    (void)state;
    int left = 0;
    dpcr_context *context = context_that_asks(1, asked_between_calls, &left);
    chain c = tanh_chain(1003, 2, 3, DPCR_F32);
    void *z0 = starts(&c);
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_OVERLAP,
                                        .chunk = 250,
                                        .warm_up = 20,
                                        .atol = 10,  // no chunk runs again
                                        .backward = DPCR_SCHEME_OVERLAP};
    dpcr_steps steps = chain_steps(&c);
    steps.lanes = 4;
    steps.flops = 1;
    steps.advance = measured_advance, steps.adjoint = measured_adjoint;
    solved whole = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
    assert_int_equal(whole.status, DPCR_OK);
    assert_true(longest[0] == 250 && longest[1] == 250);
    steps.flops = 1e9;  // a stretch is 64 steps
    left = 0, longest[0] = longest[1] = most_unasked = 0;
    solved split = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
    assert_int_equal(split.status, DPCR_OK);
    const int questions = -left;
    assert_true(longest[0] <= 64 && longest[1] <= 64);
    assert_int_equal(most_unasked, 2);  // the run-up's rest and what comes first after it
    assert_memory_equal(split.z, whole.z, solving_bytes(&c) - 64);
    assert_memory_equal(split.lambda, whole.lambda, solving_bytes(&c) - 64);
    for (int k = 1; k <= questions; k++) {
        left = k;
        solved stopped = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
        if (!was_heard(&stopped, left)) fail_msg("question %d of %d was not heard", k, questions);
        solved_free(&stopped);
    }
    solved_free(&whole), solved_free(&split);
    free(z0);
    dpcr_context_destroy(context);
}

// And where chunks that do not meet run again, or all of the chain in order, both ways.
static void cancel_stops_what_runs_again(void **state) {
    (void)state;
    int left = 0;
    dpcr_context *context = context_that_asks(1, asked_between_calls, &left);
    chain c = {.step = step_logistic, .length = 3000, .batch = 1, .width = 1, .dtype = DPCR_F64};
    const double z0[1] = {0.3};
    for (int64_t chunk = 40; chunk <= 600; chunk += 560) {
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_OVERLAP,
                                            .chunk = chunk,
                                            .warm_up = 20,
                                            .backward = DPCR_SCHEME_OVERLAP};
        dpcr_steps steps = chain_steps(&c);
        steps.lanes = 4;
        steps.flops = 1e9;
        steps.advance = measured_advance, steps.adjoint = measured_adjoint;
        left = 0, all_unasked = most_all = 0;
        solved whole = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
        assert_int_equal(whole.status, DPCR_OK);
        assert_int_equal(whole.report.reason, DPCR_REASON_FALLBACK);
        const int questions = -left;
        assert_true(questions > 3000 / 64);
        if (most_all > 5 * 64) fail_msg("%d steps unasked", (int)most_all);
        for (int k = 1; k <= questions; k += 1 + k / 16) {
            left = k;
            solved stopped = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
            if (!was_heard(&stopped, left)) fail_msg("question %d of %d was not heard", k, questions);
            solved_free(&stopped);
        }
        solved_free(&whole);
    }
    dpcr_context_destroy(context);
}

// Work that takes long asks on the way, forward and backward; whichever question is answered yes ends the call.
static void cancel_stops_at_any_question(void **state) {
    (void)state;
    int left = 0;
    dpcr_context *context = context_that_asks(2, asked_at, &left);
    chain c = tanh_chain(1000, 2, 3, DPCR_F32);
    void *z0 = starts(&c);
    dpcr_steps steps = chain_steps(&c);
    steps.flops = 1e9;
    steps.concurrent = 0;
    steps.lanes = 2;
    for (int overlap = 0; overlap < 2; overlap++) {
        const dpcr_solve_options options = {
            .size = sizeof options,
            .method = overlap ? DPCR_METHOD_OVERLAP : DPCR_METHOD_SEQUENTIAL,
            .backward = overlap ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL,
            .warm_up = 8,
        };
        left = 0;
        solved whole = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
        assert_int_equal(whole.status, DPCR_OK);
        int questions = -left;
        assert_in_range(questions, 20, 200);  // of tasks or stretches of 64 steps each way
        for (int k = 1; k <= questions; k++) {
            left = k;
            solved stopped = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
            if (!was_heard(&stopped, left)) fail_msg("overlap %d: question %d was not heard", overlap, k);
            solved_free(&stopped);
        }
        left = 0;
        solved again = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
        assert_int_equal(again.status, DPCR_OK);
        assert_memory_equal(again.z, whole.z, solving_bytes(&c) - 64);
        assert_memory_equal(again.lambda, whole.lambda, solving_bytes(&c) - 64);
        solved_free(&again), solved_free(&whole);
    }
    free(z0);
    dpcr_context_destroy(context);
}

static int linearised;  // calls
static int count_linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                           const dpcr_array *a) {
    linearised++;
    return chain_linearise(user, span, in, f, a);
}

// A sweep asks once at least beside the question between sweeps, and so does the scan of the way back; whichever
// question is answered yes ends the call, and what was left of the sweep or the scan is left out.
static void cancel_stops_within_a_sweep(void **state) {
    (void)state;
    int left = 0;
    dpcr_context *context = context_that_asks(1, asked_at, &left);
    chain c = tanh_chain(20000, 1, 8, DPCR_F32);
    void *z0 = starts(&c);
    dpcr_steps steps = chain_steps(&c);
    steps.flops = 1;
    steps.linearise = count_linearise;
    for (int way = 0; way < 3; way++) {  // sweeps that keep A, or make it piece by piece; back by a scan
        const dpcr_solve_options options = {
            .size = sizeof options,
            .method = way < 2 ? DPCR_METHOD_NEWTON : DPCR_METHOD_SEQUENTIAL,
            .scheme = way ? DPCR_SCHEME_SEQUENTIAL : DPCR_SCHEME_PCR,
            .backward = way < 2 ? DPCR_SCHEME_SEQUENTIAL : DPCR_SCHEME_PCR,
            .max_sweeps = 50,
        };
        left = linearised = 0;
        solved whole = solve_steps(context, &steps, &c, z0, &options, NULL, way == 2);
        assert_int_equal(whole.status, DPCR_OK);
        assert_true(linearised >= 16);
        const int sweeps = way < 2 ? whole.report.sweeps : 1, questions = -left;
        if (questions < 2 * sweeps) fail_msg("way %d: %d questions in %d sweeps", way, questions, sweeps);
        for (int k = 1; k <= 2 * sweeps; k++) {
            left = k, linearised = 0;
            solved stopped = solve_steps(context, &steps, &c, z0, &options, NULL, way == 2);
            if (stopped.status != DPCR_ERROR_CANCELLED) fail_msg("way %d: question %d was not heard", way, k);
            if (way < 2 && k <= 2) assert_in_range(linearised, 0, 4);
            if (way == 2 && k == 1) assert_memory_not_equal(stopped.lambda, whole.lambda, solving_bytes(&c) - 64);
            solved_free(&stopped);
        }
        solved_free(&whole);
    }
    free(z0);
    dpcr_context_destroy(context);
}

static int64_t evaluated, most_evaluated;  // steps of all lanes from question to question

static int asked_between_steps(void *user) {
    evaluated = 0;
    return asked_at(user);
}

static int halving_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                           const dpcr_array *last, const dpcr_array *tape) {
    (void)user;
    evaluated += span->lanes * span->steps;
    if (evaluated > most_evaluated) most_evaluated = evaluated;
    for (int64_t c = 0; c < span->lanes; c++) {
        double z = chain_get(in, c * in->strides[0]);
        for (int64_t k = 0; k < span->steps; k++) {
            z = 0.5 * z + (double)((span->first + c * span->stride + k) % 3);
            if (states) chain_put(states, c * states->strides[0] + k * states->strides[1], z);
            if (tape) chain_put(tape, c * tape->strides[0], z);
        }
        if (last) chain_put(last, c * last->strides[0], z);
    }
    return 0;
}

static int halving_coarse(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    (void)user;
    for (int64_t c = 0; c < span->lanes; c++)
        chain_put(last, c * last->strides[0], ldexp(chain_get(in, c * in->strides[0]), -(int)span->steps) + 2);
    return 0;
}

// No method evaluates all of a chain of slow steps unasked: not for its guess, nor for what confirms it, nor for the
// tape; nor parareal a long chunk.
static void cancel_stops_whole_evaluations(void **state) {
    (void)state;
    enum { LENGTH = 3000 };
    int left = 0, sweeps = 0;
    static double z[LENGTH], tape[LENGTH];
    const double z0 = 0.3;
    const int64_t shape[3] = {LENGTH, 1, 1};
    const dpcr_array first = dpcr_array_make((void *)&z0, DPCR_F64, 2, shape + 1),
                     states = dpcr_array_make(z, DPCR_F64, 3, shape), taken = dpcr_array_make(tape, DPCR_F64, 3, shape);
    dpcr_steps steps = {.size = sizeof steps,
                        .dtype = DPCR_F64,
                        .width = 1,
                        .length = LENGTH,
                        .batch = 1,
                        .flops = 1e6,  // stretches of 192 steps of one lane, 64 of six
                        .tape_values = 1,
                        .advance = halving_advance,
                        .coarse = halving_coarse};
    static const dpcr_method methods[] = {DPCR_METHOD_PICARD, DPCR_METHOD_JACOBI, DPCR_METHOD_PARAREAL};
    dpcr_context *context = context_that_asks(1, asked_between_steps, &left);
    double right[LENGTH], before = z0;
    for (int l = 0; l < LENGTH; l++) right[l] = before = 0.5 * before + l % 3;
    for (int k = 0; k < 6; k++) {
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = methods[k / 2],
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .chunk = 500,
                                            .max_sweeps = 200,
                                            .confirm = k / 2 < 2 ? 1e-6 : 0};
        dpcr_solve_plan *plan = NULL;
        steps.concurrent = k % 2;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = solving_workspace(bytes);
        left = 0, evaluated = most_evaluated = 0;
        dpcr_solve_report report = {.size = sizeof report};
        assert_int_equal(dpcr_solve_execute(plan, &first, &states, &taken, workspace, bytes, &report, NULL), DPCR_OK);
        const int questions = -left;
        if (k % 2) assert_int_equal(report.sweeps, sweeps);  // lanes in one call or a task each
        sweeps = report.sweeps;
        for (int l = 0; l < LENGTH; l++) near(z[l], right[l], fmax(2 * options.confirm, 1e-9));
        // A sweep asks by the clock; beside the sweeps' questions there are those for guess, cycles and tape.
        if (k / 2 == 2 && most_evaluated > 6 * 64) fail_msg("%d steps unasked", (int)most_evaluated);
        if (questions < 2 * report.sweeps + (k / 2 == 2 ? 16 : 40))
            fail_msg("%s: %d questions in %d sweeps", dpcr_method_name(methods[k / 2]), questions, report.sweeps);
        for (int question = 1; question <= questions; question += 1 + question / (TESTS_SANITIZED ? 4 : 16)) {
            left = question;
            const dpcr_status status = dpcr_solve_execute(plan, &first, &states, &taken, workspace, bytes, NULL, NULL);
            // A faster run asks by the clock less often.
            if (status != DPCR_ERROR_CANCELLED && !(status == DPCR_OK && left > 0))
                fail_msg("%s: question %d of %d was not heard", dpcr_method_name(methods[k / 2]), question, questions);
        }
        free(workspace);
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
}

// ---- steps of which nothing is told, or their latency alone: a millisecond each ----

static void take_time(const dpcr_span *span) {
    const int64_t steps = span->lanes * span->steps;
    const struct timespec time = {.tv_sec = (time_t)(steps / 1000), .tv_nsec = (long)(steps % 1000 * 1000000)};
    nanosleep(&time, NULL);
    evaluated += steps;
    if (evaluated > most_evaluated) most_evaluated = evaluated;
}

static int slow_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                        const dpcr_array *last, const dpcr_array *tape) {
    take_time(span);
    return chain_advance(user, span, in, states, last, tape);
}

static int slow_linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                          const dpcr_array *a) {
    take_time(span);
    return chain_linearise(user, span, in, f, a);
}

static int slow_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                        const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                        const dpcr_array *first_out) {
    take_time(span);
    return chain_adjoint(user, span, in, tape, direct, last, adjoint, first_out);
}

// The clock tells: some times a second there is a question, and no bit hangs on it.
static void cancel_is_asked_by_the_clock(void **state) {
    (void)state;
    int left = 0;
    dpcr_context *context = context_that_asks(1, asked_between_steps, &left), *plain = solving_context(1);
    chain c = tanh_chain(200, 1, 3, DPCR_F64);
    void *z0 = starts(&c);
    static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON};
    for (int k = 0; k < 6; k++) {
        const dpcr_method method = methods[k / 2];
        const bool overlaps = method == DPCR_METHOD_OVERLAP;
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = method,
                                            .chunk = overlaps ? 50 : 0,
                                            .warm_up = overlaps ? 20 : 0,
                                            .atol = overlaps ? 10 : 0,  // no chunk runs again
                                            .max_sweeps = 4,
                                            .backward = overlaps ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL};
        dpcr_steps steps = chain_steps(&c);
        steps.lanes = 4;
        steps.flops = k % 2 ? 10 : 0, steps.latency = k % 2 ? 1e-3 : 0;
        const int back = method != DPCR_METHOD_NEWTON;
        solved right = solve_steps(plain, &steps, &c, z0, &options, NULL, back);
        steps.advance = slow_advance, steps.linearise = slow_linearise, steps.adjoint = slow_adjoint;
        left = 0, evaluated = most_evaluated = 0;
        solved slow = solve_steps(context, &steps, &c, z0, &options, NULL, back);
        assert_int_equal(right.status, DPCR_OK);
        assert_int_equal(slow.status, DPCR_OK);
        if (most_evaluated > 128)
            fail_msg("%s: %d ms without a question", dpcr_method_name(method), (int)most_evaluated);
        assert_memory_equal(slow.z, right.z, solving_bytes(&c) - 64);
        if (back) assert_memory_equal(slow.lambda, right.lambda, solving_bytes(&c) - 64);
        solved_free(&slow), solved_free(&right);
        left = 2;
        slow = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
        assert_int_equal(slow.status, DPCR_ERROR_CANCELLED);
        solved_free(&slow);
    }
    free(z0);
    dpcr_context_destroy(plain);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancel_stops),
        cmocka_unit_test(cancel_stops_the_loop),
        cmocka_unit_test(cancel_stops_a_call_of_chunks),
        cmocka_unit_test(cancel_stops_what_runs_again),
        cmocka_unit_test(cancel_stops_at_any_question),
        cmocka_unit_test(cancel_stops_within_a_sweep),
        cmocka_unit_test(cancel_stops_whole_evaluations),
        cmocka_unit_test(cancel_is_asked_by_the_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
