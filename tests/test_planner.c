// SPDX-License-Identifier: MIT
// The planner: how soon chains forget, candidates, measuring, wisdom and its file, other machines.
#include <limits.h>
#include <unistd.h>

#include "base/random.h"
#include "budget.h"
#include "rt/race.h"
#include "sampled.h"
#include "solve/planner.h"
#include "solving.h"

// ---- chains of known memory ----

// h <- 0.9 h + a number of the step's own.
static void step_forgets(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b;
    for (int64_t i = 0; i < c->width; i++) {
        out[i] = c->parameters[0] * in[i] + chain_noise(l, i, 9);
        for (int64_t k = 0; j && k < c->width; k++) j[i * c->width + k] = i == k ? c->parameters[0] : 0;
    }
}

// A rotation by one radian: keeps every distance.
static void step_turns(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)l, (void)b;
    const double x = in[0], y = in[1], m[4] = {cos(1), -sin(1), sin(1), cos(1)};
    out[0] = m[0] * x + m[1] * y, out[1] = m[2] * x + m[3] * y;
    if (j) memcpy(j, m, sizeof m);
}

// Grows for ten steps before it shrinks: relative to its size hardly at all in the first thirty-two.
static void step_swells(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b;
    out[0] = 0.9 * in[0] + 5 * in[1] + chain_noise(l, 0, 9), out[1] = 0.9 * in[1] + chain_noise(l, 1, 9);
    if (j) j[0] = 0.9, j[1] = 5, j[2] = 0, j[3] = 0.9;
}

// A delay line: all of the past, for `width` steps, and nothing then.
static void step_delays(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b;
    out[0] = chain_noise(l, 0, 9);
    for (int64_t i = 1; i < c->width; i++) out[i] = in[i - 1];
    for (int64_t i = 0; j && i < c->width * c->width; i++) j[i] = i / c->width == i % c->width + 1;
}

// A ring of numbers that moves on by one: keeps every distance, at any width.
static void step_circles(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b;
    for (int64_t i = 0; i < c->width; i++) out[i] = in[(i + 1) % c->width];
    for (int64_t i = 0; j && i < c->width * c->width; i++) j[i] = (i / c->width + 1) % c->width == i % c->width;
}

// All states become 1: the past is gone after one step.
static void step_dead(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b, (void)in;
    for (int64_t i = 0; i < c->width; i++) out[i] = 1;
    for (int64_t i = 0; j && i < c->width * c->width; i++) j[i] = 0;
}

static void step_breaks(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b, (void)in, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = l > 10 ? (double)NAN : 1;
}

static chain chain_of(chain_step step, int64_t length, int64_t width, dpcr_dtype dtype) {
    static const double nine_tenths[2] = {0.9, 0};
    return (chain){
        .step = step, .length = length, .batch = 3, .width = width, .dtype = dtype, .parameters = nine_tenths};
}

static dpcri_contraction contraction(dpcr_context *context, chain *c, double tolerance) {
    const dpcr_steps steps = chain_steps(c);
    return dpcri_contraction_of(context, &steps, NULL, tolerance, true, 512, NULL);
}

static void rates_are_those_of_the_chain(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    for (int dtype = 0; dtype < 2; dtype++) {
        chain c = chain_of(step_forgets, 20000, 2, dtype ? DPCR_F64 : DPCR_F32);
        dpcri_contraction found = contraction(context, &c, 1e-5);
        assert_int_equal(found.memory, DPCRI_MEMORY_FORGETS);
        near(found.rate, log(0.9), 0.02 * -log(0.9));
        // A distance of at most 2 comes down to 1e-5 of the largest state, which lies between 1 and 10.
        assert_in_range(found.within, 80, 120);
        assert_in_range(found.to_bits, dtype ? 280 : 110, dtype ? 400 : 220);
        const dpcr_steps steps = chain_steps(&c);
        const dpcri_contraction brief = dpcri_contraction_of(context, &steps, NULL, 1e-2, false, 512, NULL);
        assert_in_range(brief.within, 30, 70);
        assert_int_equal(brief.to_bits, 0);  // later than soon
        assert_true(brief.steps < found.to_bits);

        c.step = step_turns;
        found = contraction(context, &c, 1e-5);
        assert_int_equal(found.memory, DPCRI_MEMORY_KEEPS);
        near(found.rate, 0, 1e-3);
        assert_int_equal(found.within, 0);
        assert_int_equal(found.to_bits, 0);

        c.step = step_dead;
        found = contraction(context, &c, 1e-5);
        assert_int_equal(found.memory, DPCRI_MEMORY_FORGETS);
        assert_in_range(found.to_bits, 1, 4);

        c.step = step_breaks;
        found = contraction(context, &c, 1e-5);
        assert_int_equal(found.memory, DPCRI_MEMORY_UNKNOWN);
    }
    dpcr_context_destroy(context);
}

// Scouts alone would say that these keep their past.
static void late_forgetting_is_seen(void **state) {
    (void)state;
    static const double slow[1] = {0.99};
    dpcr_context *context = solving_context(1);
    chain c = chain_of(step_forgets, 4096, 1, DPCR_F64);
    c.parameters = slow;
    dpcri_contraction found = contraction(context, &c, 1e-5);
    assert_int_equal(found.memory, DPCRI_MEMORY_FORGETS);
    assert_in_range(found.within, 1000, 1300);
    c = chain_of(step_swells, 4096, 2, DPCR_F64);
    found = contraction(context, &c, 1e-5);
    assert_int_equal(found.memory, DPCRI_MEMORY_FORGETS);
    assert_in_range(found.within, 100, 250);
    c = chain_of(step_delays, 2048, 40, DPCR_F32);
    found = contraction(context, &c, 1e-5);
    assert_int_equal(found.memory, DPCRI_MEMORY_FORGETS);
    assert_in_range(found.to_bits, 40, 56);
    // And what does keep it costs a small part of the chain.
    c = chain_of(step_turns, 16384, 2, DPCR_F64);
    found = contraction(context, &c, 1e-5);
    assert_int_equal(found.memory, DPCRI_MEMORY_KEEPS);
    assert_true(found.evaluations < c.length);  // of two sequences
    dpcr_context_destroy(context);
}

// x <- 4 x (1 - x) has the Lyapunov exponent log 2, Lorenz about 0.9 a unit of time.
static void chaos_is_seen(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = {.step = step_logistic, .length = 5000, .batch = 1, .width = 1, .dtype = DPCR_F64};
    dpcr_steps steps = chain_steps(&c);
    double x = 0.3;
    const int64_t shape[2] = {1, 3};
    dpcr_array z0 = dpcr_array_make(&x, DPCR_F64, 2, (const int64_t[]){1, 1});
    dpcri_contraction found = dpcri_contraction_of(context, &steps, &z0, 1e-10, true, 512, NULL);
    assert_int_equal(found.memory, DPCRI_MEMORY_CHAOTIC);
    near(found.rate, log(2), 0.3);

    const double h = 0.01;
    double start[3] = {9.6, 17.5, 14};
    c = (chain){.step = step_lorenz, .length = 20000, .batch = 1, .width = 3, .dtype = DPCR_F64, .parameters = &h};
    steps = chain_steps(&c);
    z0 = dpcr_array_make(start, DPCR_F64, 2, shape);
    found = dpcri_contraction_of(context, &steps, &z0, 1e-10, true, 512, NULL);
    assert_int_equal(found.memory, DPCRI_MEMORY_CHAOTIC);
    assert_true(found.rate > 0.0005 && found.rate < 0.05);
    dpcr_context_destroy(context);
}

// ---- plans ----

static dpcr_solve_plan *plan_of(dpcr_context *context, const dpcr_steps *steps, dpcr_planning planning) {
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    const dpcr_solve_options options = {.size = sizeof options, .planning = planning, .planning_seconds = 0.05};
    if (dpcr_solve_plan_create(context, steps, &options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    return plan;
}

// Another machine than this one: estimates for it are the model's alone, and no step is timed.
static dpcr_context *context_of_many_threads(void) {
    dpcr_context *context = solving_context(2);
    const dpcr_machine many = {.size = sizeof many, .threads = 64};
    assert_int_equal(dpcr_context_set_machine(context, &many, NULL), DPCR_OK);
    return context;
}

// Wide chains that keep their past have nothing but the loop, both ways, and a plan of one takes a small part of a
// pass; narrow ones, whose Jacobians may pay, have more.
static void wide_chains_that_keep_their_past_are_left_to_the_loop(void **state) {
    (void)state;
    for (int64_t width = 2; width <= 20; width += 18) {
        dpcr_context *context = solving_context(2);
        chain c = chain_of(step_circles, 16384, width, DPCR_F32);
        c.batch = 1;
        const dpcr_steps steps = chain_steps(&c);
        dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
        dpcr_candidate each = {.size = sizeof each};
        int64_t count = 0, evaluations = 0;
        while (dpcr_solve_plan_candidate(plan, count, &each)) count++;
        dpcr_solve_plan_effort(plan, NULL, &evaluations);
        if (width == 20) {
            assert_int_equal(count, 2);
            assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_SEQUENTIAL);
            assert_int_equal(dpcr_solve_plan_backward(plan), DPCR_SCHEME_SEQUENTIAL);
            assert_true(evaluations > 0 && evaluations < c.length / 5);
        } else {
            assert_true(count > 2);
        }
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
    }
}

// Where a step's flops say that its sequences are all that the processor can do, nobody asks whether the chain forgets;
// a plan of one that hardly works looks at it, and has more than the loop.
static void chains_that_fill_the_processor_are_not_looked_at(void **state) {
    (void)state;
    for (int full = 0; full < 2; full++) {
        dpcr_context *context = solving_context(2);
        chain c = chain_of(step_forgets, 4096, 20, DPCR_F32);
        dpcr_steps steps = chain_steps(&c);
        steps.flops = full ? 1e9 : 1;
        dpcr_solve_plan *plan = NULL;
        const dpcr_solve_options options = {.size = sizeof options};
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        dpcr_candidate each = {.size = sizeof each};
        int64_t count = 0, evaluations = 0;
        while (dpcr_solve_plan_candidate(plan, count, &each)) count++;
        dpcr_solve_plan_effort(plan, NULL, &evaluations);
        assert_int_equal(strstr(dpcr_solve_plan_sentence(plan), "fill the processor") != NULL, full);
        if (full) {
            assert_int_equal(count, 2);
            assert_int_equal(evaluations, 0);
            assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_SEQUENTIAL);
            assert_int_equal(dpcr_solve_plan_backward(plan), DPCR_SCHEME_SEQUENTIAL);
        } else {
            assert_true(count > 2 && evaluations > 0);
        }
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
    }
}

// ---- a caller who wants it to end ----

typedef struct patience {
    chain c;
    int left, asked;     // questions that are answered with no; all
    int calls_after_no;  // of advance, once the answer was yes
} patience;

static int has_lost_it(void *user) {
    patience *p = user;
    return p->asked++ >= p->left;
}

// Slow enough that somebody asks between two calls.
static int slow_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                        const dpcr_array *last, const dpcr_array *tape) {
    patience *p = user;
    p->calls_after_no += p->asked > p->left;
    const double start = dpcri_seconds();
    while (p->left < INT_MAX && dpcri_seconds() - start < 25e-3) continue;
    return chain_advance(&p->c, span, in, states, last, tape);
}

static void planning_ends_where_the_caller_cancels(void **state) {
    (void)state;
    for (int planning = DPCR_PLANNING_ESTIMATE; planning <= DPCR_PLANNING_MEASURE; planning++)
        for (int left = 0; left < 4; left += 1 + left) {
            patience p = {.c = chain_of(step_forgets, 400, 2, DPCR_F32), .left = left};
            dpcr_steps steps = chain_steps(&p.c);
            steps.user = &p;
            steps.advance = slow_advance;
            steps.linearise = NULL, steps.adjoint = NULL, steps.gradient = NULL;
            const dpcr_context_options wanted = {
                .size = sizeof wanted, .threads = 1, .cancel = has_lost_it, .cancel_user = &p};
            const dpcr_solve_options options = {
                .size = sizeof options, .planning = (dpcr_planning)planning, .backward = DPCR_SCHEME_SEQUENTIAL};
            dpcr_context *context = NULL;
            dpcr_solve_plan *plan = NULL;
            dpcr_error error = {0};
            assert_int_equal(dpcr_context_create(&wanted, &context, NULL), DPCR_OK);
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), DPCR_ERROR_CANCELLED);
            assert_non_null(strstr(error.text, "cancel"));
            assert_null(plan);
            assert_int_equal(p.calls_after_no, 0);
            p.left = INT_MAX;  // asked again by somebody with patience
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), DPCR_OK);
            dpcr_solve_plan_destroy(plan);
            dpcr_context_destroy(context);
        }
}

// A machine of many threads overlaps a chain that forgets, with the warm-up that the estimate found.
static void warm_up_is_what_the_chain_needs(void **state) {
    (void)state;
    dpcr_context *context = context_of_many_threads();
    chain c = chain_of(step_forgets, 20000, 2, DPCR_F32);
    dpcr_steps steps = chain_steps(&c);
    steps.latency = 1e-6;
    dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    double rate = 0;
    int64_t needed = 0;
    assert_string_equal(dpcr_solve_plan_memory(plan, &rate, &needed), "forgets");
    assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_OVERLAP);
    const dpcr_solve_options *o = dpcr_solve_plan_options(plan);
    assert_in_range(o->warm_up, needed, 2 * needed);
    dpcr_candidate first = {.size = sizeof first}, second = {.size = sizeof second};
    assert_true(dpcr_solve_plan_candidate(plan, 0, &first) && dpcr_solve_plan_candidate(plan, 1, &second));
    assert_int_equal(first.method, DPCR_METHOD_OVERLAP);
    assert_true(first.seconds <= second.seconds && first.workspace > 0);
    // The pinned options give the same plan, without a look at the chain.
    dpcr_solve_plan *again = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, o, &again, NULL), DPCR_OK);
    assert_int_equal(dpcr_solve_plan_method(again), DPCR_METHOD_OVERLAP);
    assert_int_equal(dpcr_solve_plan_options(again)->warm_up, o->warm_up);
    assert_int_equal(dpcr_solve_plan_workspace(again), dpcr_solve_plan_workspace(plan));
    dpcr_solve_plan_destroy(again);
    dpcr_solve_plan_destroy(plan);

    c.step = step_turns;
    plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    assert_true(dpcr_solve_plan_method(plan) != DPCR_METHOD_OVERLAP);
    assert_non_null(strstr(dpcr_solve_plan_sentence(plan), "keeps its past"));
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

static void told(dpcr_context *context, const dpcr_steps *steps, double wake, dpcr_method method, dpcr_scheme back,
                 const char *words) {
    const dpcr_machine m = {
        .size = sizeof m, .threads = 2, .flops = 50e9, .latency = 1e-9, .region = 1e-6, .wake = wake};
    assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
    dpcr_solve_plan *plan = plan_of(context, steps, DPCR_PLANNING_ESTIMATE);
    const char *sentence = dpcr_solve_plan_sentence(plan);
    if (dpcr_solve_plan_method(plan) != method || dpcr_solve_plan_backward(plan) != back ||
        !strstr(sentence, "where its threads wake first") != !words || (words && !strstr(sentence, words)))
        fail_msg("waking in %g s: %s", wake, sentence);
    dpcr_solve_plan_destroy(plan);
}

// A recurrent network of 32, batch 1: 36 us by the loop, some 25 us by chunks on two threads that are awake, more on
// one. Two that have to wake first may cost what they gain otherwise, not more; a long chain gains all the same, and
// going back, one thread by itself.
static void a_rare_caller_does_not_lose(void **state) {
    (void)state;
    static const double tenth[2] = {0.1, 0};
    dpcr_context *context = solving_context(1);  // a machine of two threads is another one: no step is timed
    chain c = chain_of(step_forgets, 1024, 2, DPCR_F32);
    c.parameters = tenth, c.batch = 1;
    dpcr_steps steps = chain_steps(&c);
    steps.linearise = NULL;
    steps.lanes = 16, steps.latency = 35e-9, steps.lane_seconds = 25e-9;
    steps.adjoint_latency = 105e-9, steps.adjoint_lane_seconds = 30e-9;
    told(context, &steps, 1e-9, DPCR_METHOD_OVERLAP, DPCR_SCHEME_OVERLAP, NULL);
    told(context, &steps, 5e-6, DPCR_METHOD_OVERLAP, DPCR_SCHEME_OVERLAP, NULL);
    told(context, &steps, 12e-6, DPCR_METHOD_OVERLAP, DPCR_SCHEME_OVERLAP, NULL);
    told(context, &steps, 40e-6, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_OVERLAP, "us where its threads wake first");
    steps.length = c.length = 100 * 1024;
    told(context, &steps, 100e-6, DPCR_METHOD_OVERLAP, DPCR_SCHEME_OVERLAP, NULL);
    // One thread alone that gains by lanes needs none to wake.
    steps.length = c.length = 1024;
    steps.lane_seconds = 4e-9;
    told(context, &steps, 100e-6, DPCR_METHOD_OVERLAP, DPCR_SCHEME_OVERLAP, NULL);
    const dpcr_machine bad = {.size = sizeof bad, .wake = -1};
    assert_int_equal(dpcr_context_set_machine(context, &bad, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(context);
}

// More cores never make a prediction much slower: handing work to more threads takes longer, nothing else does.
static void predictions_are_in_order(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = chain_of(step_forgets, 100000, 2, DPCR_F32);
    dpcr_steps steps = chain_steps(&c);
    steps.latency = 20e-9;
    double before = HUGE_VAL;
    for (int cores = 1; cores <= 4096; cores *= 8) {
        const dpcr_machine m = {.size = sizeof m,
                                .threads = cores,
                                .flops = 2e10,
                                .latency = 1e-9,
                                .region = 1e-6,
                                .bandwidth = 2e10,
                                .cache_bytes = {32 << 10, 1 << 20, 32 << 20},
                                .cache_bandwidth = {1e11, 5e10, 3e10},
                                .wake = 2e-6};
        assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
        dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
        dpcr_candidate best = {.size = sizeof best};
        assert_true(dpcr_solve_plan_candidate(plan, 0, &best));
        if (!(best.seconds <= before * 1.1))
            fail_msg("%d cores: %s in %g s, before %g s", cores, dpcr_method_name(best.method), best.seconds, before);
        before = best.seconds;
        dpcr_solve_plan_destroy(plan);
    }
    assert_true(before < 100000 * 20e-9 / 20);
    dpcr_machine bad = {.size = sizeof bad, .flops = -1};
    assert_int_equal(dpcr_context_set_machine(context, &bad, NULL), DPCR_ERROR_ARGUMENT);
    bad.flops = NAN;
    assert_int_equal(dpcr_context_set_machine(context, &bad, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(context);
}

// ---- measuring ----

// Both directions are timed, the winner is what was fastest, the gradients are untouched, and the second plan knows.
// Lanes are quick forward, but the adjoint of what they left behind is slow.
typedef struct grudge {
    chain c;
    bool by_lanes;
} grudge;

static void spend(double seconds) {
    const double start = dpcri_seconds();
    while (dpcri_seconds() - start < seconds) continue;
}

static int grudge_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                          const dpcr_array *last, const dpcr_array *tape) {
    grudge *g = user;
    const bool loop = span->steps == g->c.length;
    if (loop) spend(2e-3);
    if (loop || span->lanes > 1) g->by_lanes = !loop;
    return chain_advance(&g->c, span, in, states, last, tape);
}

static int grudge_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                          const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                          const dpcr_array *first_out) {
    grudge *g = user;
    if (g->by_lanes) spend(5e-3);
    return chain_adjoint(&g->c, span, in, tape, direct, last, adjoint, first_out);
}

// For training what is best forward alone need not be it. Whether a plan saw that, and its repetition knew it.
static bool passes_are_measured_together(bool training) {
    bool right = true;
    dpcr_context *context = solving_context(1);
    grudge g = {.c = chain_of(step_forgets, 1500, 2, DPCR_F64)};
    dpcr_steps steps = chain_steps(&g.c);
    steps.user = &g, steps.concurrent = 0, steps.lanes = 4, steps.linearise = NULL, steps.gradient = NULL;
    steps.advance = grudge_advance, steps.adjoint = grudge_adjoint;
    const dpcr_solve_options options = {
        .size = sizeof options, .planning = DPCR_PLANNING_MEASURE, .planning_seconds = 0.3, .consume_tape = training};
    dpcr_solve_plan *plan = NULL;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        right = right && dpcr_solve_plan_method(plan) == (training ? DPCR_METHOD_SEQUENTIAL : DPCR_METHOD_OVERLAP);
        const bool told = strstr(dpcr_solve_plan_sentence(plan), "both passes: sequential and") != NULL;
        right = right && told == (training && !again);  // remembered the second time
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
    return right;
}

// A busy machine may disturb a measurement: of a few one must be right.
static void both_passes_are_measured_together(void **state) {
    (void)state;
    for (int training = 0; training < 2; training++) {
        int attempts = 0;
        while (!passes_are_measured_together(training)) assert_true(++attempts < 10);
    }
}

static void measured_plans_are_remembered(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = chain_of(step_forgets, 3000, 2, DPCR_F64);
    c.gradients = calloc((size_t)(c.length * c.width), sizeof *c.gradients);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_error error = {0};
    dpcr_solve_plan *plan = NULL;
    const dpcr_solve_options only = {.size = sizeof only, .planning = DPCR_PLANNING_WISDOM};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &only, &plan, &error), DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "nothing is known"));
    plan = plan_of(context, &steps, DPCR_PLANNING_MEASURE);
    dpcr_candidate each = {.size = sizeof each}, best[2] = {{0}};
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++) {
        if (best[each.backward].size == 0) best[each.backward] = each;
        if (each.measured > 0) assert_true(best[each.backward].measured <= 1.011 * each.measured);
    }
    assert_true(best[0].measured > 0 && best[1].measured > 0);
    assert_int_equal(dpcr_solve_plan_method(plan), best[0].method);
    for (int64_t i = 0; i < c.length * c.width; i++) assert_true(c.gradients[i] == 0);
    for (int planning = 0; planning < DPCR_PLANNING_COUNT; planning++) {
        dpcr_solve_plan *again = plan_of(context, &steps, (dpcr_planning)planning);
        assert_int_equal(dpcr_solve_plan_method(again), dpcr_solve_plan_method(plan));
        assert_int_equal(dpcr_solve_plan_backward(again), dpcr_solve_plan_backward(plan));
        assert_int_equal(dpcr_solve_plan_options(again)->max_sweeps, dpcr_solve_plan_options(plan)->max_sweeps);
        assert_non_null(strstr(dpcr_solve_plan_sentence(again), "known from an earlier measurement"));
        dpcr_solve_plan_destroy(again);
    }
    dpcr_solve_plan_destroy(plan);
    dpcr_wisdom_forget(context);
    assert_int_equal(dpcr_wisdom_count(context), 0);
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &only, &plan, &error), DPCR_ERROR_UNSUPPORTED);
    free(c.gradients);
    dpcr_context_destroy(context);
}

// What a measurement allowed newton to take is part of what is known, whatever would be predicted now.
static void sweeps_that_were_allowed_are_remembered(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = chain_of(step_forgets, 3000, 2, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    dpcri_known known = {
        .chosen = {true},
        .candidate = {{.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_CHUNKED, .measured = 1e-4}}};
    for (known.max_sweeps = 23; known.max_sweeps < 1000; known.max_sweeps *= 9) {
        dpcri_wisdom_remember(context, plan->key, &known);
        dpcr_solve_plan *again = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
        assert_int_equal(dpcr_solve_plan_method(again), DPCR_METHOD_NEWTON);
        assert_int_equal(dpcr_solve_plan_options(again)->max_sweeps, known.max_sweeps);
        dpcr_solve_plan_destroy(again);
    }
    // A record of older wisdom, without: what is predicted once holds from then on.
    dpcri_known then;
    known.max_sweeps = 0;
    dpcri_wisdom_remember(context, plan->key, &known);
    dpcr_solve_plan *again = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    assert_true(dpcri_wisdom_recall(context, plan->key, &then));
    assert_true(then.max_sweeps > 0 && then.max_sweeps == dpcr_solve_plan_options(again)->max_sweeps);
    dpcr_solve_plan_destroy(again);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// The plan of a measurement gives the same bits as one that asks for what it chose.
static void measured_plans_can_be_pinned(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = chain_of(step_forgets, 2000, 2, DPCR_F32);
    const dpcr_steps steps = chain_steps(&c);
    void *z0 = starts(&c);
    const dpcr_array start = dpcr_array_make(z0, c.dtype, 2, (const int64_t[]){c.batch, c.width});
    const dpcr_solve_options measure = {
        .size = sizeof measure, .planning = DPCR_PLANNING_MEASURE, .planning_seconds = 0.02, .start = &start};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &measure, &plan, NULL), DPCR_OK);
    const dpcr_solve_options pinned = *dpcr_solve_plan_options(plan);
    assert_null(pinned.start);
    solved a = solve_steps(context, &steps, &c, z0, &measure, NULL, 1);
    solved b = solve_steps(context, &steps, &c, z0, &pinned, NULL, 1);
    assert_int_equal(a.status, DPCR_OK);
    assert_int_equal(b.status, DPCR_OK);
    assert_memory_equal(a.z, b.z, solving_bytes(&c) - 64);
    assert_memory_equal(a.lambda, b.lambda, solving_bytes(&c) - 64);
    solved_free(&a), solved_free(&b);
    dpcr_solve_plan_destroy(plan);
    free(z0);
    dpcr_context_destroy(context);
}

// ---- learning ----

static dpcr_steps slow_steps(chain *c) {
    dpcr_steps steps = chain_steps(c);
    steps.latency = 1e-3;  // so that parallel predictions win
    return steps;
}

static void solves_are_learned_from(void **state) {
    (void)state;
    dpcr_context *context = context_of_many_threads();
    chain c = chain_of(step_forgets, 20000, 2, DPCR_F32);
    const dpcr_steps steps = slow_steps(&c);
    dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_OVERLAP);
    const int64_t first = dpcr_solve_plan_options(plan)->warm_up;
    dpcr_solve_report report = {
        .size = sizeof report, .method = DPCR_METHOD_OVERLAP, .reason = DPCR_REASON_CONVERGED, .sweeps = 2};
    assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    dpcr_solve_plan_destroy(plan);
    plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);  // the warm-up was too short
    assert_int_equal(dpcr_solve_plan_options(plan)->warm_up, 2 * first);
    report.reason = DPCR_REASON_FALLBACK;
    assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    dpcr_solve_plan_destroy(plan);
    plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);  // overlap had to be finished in order
    assert_true(dpcr_solve_plan_method(plan) != DPCR_METHOD_OVERLAP);
    if (dpcr_solve_plan_method(plan) == DPCR_METHOD_NEWTON) {
        report = (dpcr_solve_report){
            .size = sizeof report, .method = DPCR_METHOD_NEWTON, .reason = DPCR_REASON_CONVERGED, .sweeps = 9};
        assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
        dpcr_solve_plan_destroy(plan);
        plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
        dpcr_candidate each = {.size = sizeof each};
        for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++)
            if (each.method == DPCR_METHOD_NEWTON) assert_true(each.sweeps == 9);
    }
    report.method = DPCR_METHOD_PICARD;  // of another plan
    assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    assert_int_equal(dpcr_solve_plan_learn(NULL, &report, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// ---- the wisdom file ----

typedef struct wisdom_file {
    char path[64], *text;
    long bytes;
} wisdom_file;

static void read_back(wisdom_file *f) {
    FILE *file = fopen(f->path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    f->bytes = ftell(file);
    rewind(file);
    f->text = malloc((size_t)f->bytes + 1);
    assert_int_equal(fread(f->text, 1, (size_t)f->bytes, file), f->bytes);
    f->text[f->bytes] = 0;
    fclose(file);
}

static wisdom_file written_wisdom(dpcr_context *context) {
    wisdom_file f = {.path = "deeppcr-wisdom-XXXXXX"};
    const int fd = mkstemp(f.path);
    assert_true(fd >= 0);
    close(fd);
    chain c = chain_of(step_forgets, 500, 2, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan_destroy(plan_of(context, &steps, DPCR_PLANNING_MEASURE));
    dpcr_error error = {0};
    if (dpcr_wisdom_save(context, f.path, &error) != DPCR_OK) fail_msg("%s", error.text);
    read_back(&f);
    return f;
}

static void wisdom_goes_round(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2), *other = solving_context(2);
    wisdom_file f = written_wisdom(context);
    dpcr_error error = {0};
    if (dpcr_wisdom_load(other, f.path, &error) != DPCR_OK) fail_msg("%s", error.text);
    assert_int_equal(dpcr_wisdom_count(other), dpcr_wisdom_count(context));
    assert_true(dpcr_wisdom_count(other) >= 2);  // the chain, and the machine's rates
    dpcr_machine x = {.size = sizeof x}, y = {.size = sizeof y};
    assert_int_equal(dpcr_context_machine(context, &x, NULL), DPCR_OK);
    assert_int_equal(dpcr_context_machine(other, &y, NULL), DPCR_OK);
    assert_true(fabs(x.flops / y.flops - 1) < 1e-8 && fabs(x.bandwidth / y.bandwidth - 1) < 1e-8);
    chain c = chain_of(step_forgets, 500, 2, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan_destroy(plan_of(other, &steps, DPCR_PLANNING_WISDOM));
    // Saved again it is the same, byte for byte.
    wisdom_file again = f;
    assert_int_equal(dpcr_wisdom_save(other, f.path, NULL), DPCR_OK);
    read_back(&again);
    assert_int_equal(again.bytes, f.bytes);
    assert_memory_equal(again.text, f.text, (size_t)f.bytes);
    unlink(f.path);
    free(f.text), free(again.text);
    assert_int_equal(dpcr_wisdom_load(other, f.path, &error), DPCR_ERROR_IO);
    assert_int_equal(dpcr_wisdom_save(other, "/nowhere/at/all", &error), DPCR_ERROR_IO);
    assert_int_equal(dpcr_wisdom_load(NULL, f.path, &error), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(other);
    dpcr_context_destroy(context);
}

static void refused(dpcr_context *context, const char *text, size_t bytes, const char *word) {
    dpcr_error error = {0};
    assert_int_equal(dpcri_wisdom_parse(context, "a file", text, bytes, &error), DPCR_ERROR_FORMAT);
    if (!strstr(error.text, word)) fail_msg("got '%s', wanted '%s' in it", error.text, word);
    assert_int_equal(dpcr_wisdom_count(context), 0);
}

// A copy with a checksum that fits.
static char *sealed(const char *format, const char *version, const char *machine) {
    static char text[1024];
    const int used = snprintf(text, sizeof text - 32, format, version, machine);
    uint64_t sum = 0xcbf29ce484222325u;
    for (int i = 0; i < used; i++) sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3u;
    snprintf(text + used, 32, "sum %016llx\n", (unsigned long long)sum);
    return text;
}

static void damaged_wisdom_is_refused(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2), *clean = solving_context(2);
    wisdom_file f = written_wisdom(context);
    const size_t bytes = (size_t)f.bytes;
    for (size_t n = 0; n < bytes; n++) refused(clean, f.text, n, "wisdom");
    for (size_t i = 0; i < bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            if (!sampled((int64_t)i * 8 + bit)) continue;
            f.text[i] ^= (char)(1 << bit);
            refused(clean, f.text, bytes, "wisdom");
            f.text[i] ^= (char)(1 << bit);
        }
    assert_int_equal(dpcri_wisdom_parse(clean, "a file", f.text, bytes, NULL), DPCR_OK);
    dpcr_wisdom_forget(clean);
    char name[256];
    dpcri_machine_name(name, sizeof name);
    static const char format[] = "deeppcr wisdom 1\nversion %s\nmachine %s\nkey = value\n";
    const char *text = sealed(format, dpcr_version(), name);
    assert_int_equal(dpcri_wisdom_parse(clean, "a file", text, strlen(text), NULL), DPCR_OK);
    dpcr_wisdom_forget(clean);
    text = sealed(format, "0.0.1", name);
    refused(clean, text, strlen(text), "another library");
    text = sealed(format, dpcr_version(), "VAX 11/780, portable, 1 processors");
    refused(clean, text, strlen(text), "another machine");
    text = sealed("deeppcr wisdom 2\nversion %s\nmachine %s\n", dpcr_version(), name);
    refused(clean, text, strlen(text), "not 'deeppcr wisdom 1'");
    text = sealed("deeppcr wisdom 1\nversion %s\nmachine %s\nkey value\n", dpcr_version(), name);
    refused(clean, text, strlen(text), "line 4");
    text = sealed("deeppcr wisdom 1\nversion %s\nmachine %s\nkey = va\tlue\n", dpcr_version(), name);
    refused(clean, text, strlen(text), "line 4");
    text = sealed("deeppcr wisdom 1\nversion %s\nmachine %s\nkey = value", dpcr_version(), name);
    refused(clean, text, strlen(text), "line 4");
    refused(clean, "", 0, "no wisdom");
    unlink(f.path);
    free(f.text);
    dpcr_context_destroy(clean);
    dpcr_context_destroy(context);
}

// A value that nobody wrote so, under the right key and checksum, is as good as none.
static void strange_values_are_not_believed(void **state) {
    (void)state;
    static const char *const values[] = {
        "nonsense",
        "forward",
        "forward overlap auto chunk -1 warm-up 3 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "forward auto auto chunk 0 warm-up 3 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "forward overlap auto chunk 0 warm-up 3 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0 more",
        "backward sequential auto chunk 0 warm-up 0 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0",
        "seen sweeps -4 warm-up 0 failed 0",
        "seen sweeps 0 warm-up 0 failed 0 told 6 -1 5",
        "forward newton pcr chunk 0 warm-up 0 sweeps 1 seconds 1; seen sweeps 0 warm-up 0 failed 0 most -1",
        "seen sweeps 0 warm-up 0 failed 0 told 6 3 5 work 2.7 nan 3",
        "seen sweeps 0 warm-up 0 failed 0 told 6 3 5 work -2.7 1 3",
        "seen sweeps 0 warm-up 0 failed 0 told 6 3 5 work 2.7 1"};
    dpcr_context *context = solving_context(1);
    dpcri_known known;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        assert_true(dpcri_wisdom_set(context, "k", values[i]));
        assert_false(dpcri_wisdom_recall(context, "k", &known));
        assert_false(known.chosen[0] || known.chosen[1]);
    }
    assert_true(dpcri_wisdom_set(
        context, "k", "forward overlap auto chunk 0 warm-up 3 sweeps 1 seconds 1; seen sweeps 7 warm-up 0 failed 0"));
    assert_true(dpcri_wisdom_recall(context, "k", &known));
    assert_true(known.chosen[0] && !known.chosen[1] && known.candidate[0].warm_up == 3 && known.sweeps == 7);
    known.max_sweeps = 17;
    dpcri_wisdom_remember(context, "k", &known);
    assert_true(dpcri_wisdom_recall(context, "k", &known));
    assert_true(known.max_sweeps == 17 && known.candidate[0].warm_up == 3);
    const dpcri_known told = {.told = {6, 3, 5}, .work = {2.75, 3, 3.125}};
    dpcri_wisdom_remember(context, "k", &told);
    assert_true(dpcri_wisdom_recall(context, "k", &known));
    assert_memory_equal(known.told, told.told, sizeof told.told);
    assert_memory_equal(known.work, told.work, sizeof told.work);
    assert_false(dpcri_wisdom_set(context, "a = b", "c"));
    assert_false(dpcri_wisdom_set(context, "", "c"));
    assert_false(dpcri_wisdom_set(context, "k", "two\nlines"));
    dpcr_context_destroy(context);
}

// ---- linear chains ----

static void linear_chains_are_measured_too(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const int64_t n = 4000, w = 2;
    float *a = malloc((size_t)(n * w * w) * sizeof *a);
    for (int64_t i = 0; i < n * w * w; i++) a[i] = (float)(0.6 * chain_noise(i, 1, 2));
    const dpcr_array typical = dpcr_array_make(a, DPCR_F32, 3, (const int64_t[]){n, 1, w * w});
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = n,
                                    .batch = 1,
                                    .transition = dpcr_transition_square(DPCR_DENSE, w, 0),
                                    .dtype = DPCR_F32};
    dpcr_chain_options options = {.size = sizeof options, .planning = DPCR_PLANNING_WISDOM, .typical = &typical};
    dpcr_chain_plan *plan = NULL;
    dpcr_error error = {0};
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, &error), DPCR_ERROR_UNSUPPORTED);
    options.planning = DPCR_PLANNING_MEASURE;
    options.planning_seconds = 0.02;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, &error), DPCR_OK);
    assert_non_null(strstr(dpcr_chain_plan_sentence(plan), "measured"));
    const dpcr_chain_options *chosen = dpcr_chain_plan_options(plan);
    assert_true(chosen->scheme != DPCR_SCHEME_AUTO && !chosen->typical);
    options.planning = DPCR_PLANNING_WISDOM;
    dpcr_chain_plan *again = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &again, &error), DPCR_OK);
    const dpcr_chain_options *known = dpcr_chain_plan_options(again);
    assert_true(known->scheme == chosen->scheme && known->chunk == chosen->chunk && known->warm_up == chosen->warm_up);
    dpcr_chain_plan_destroy(again);
    dpcr_chain_plan_destroy(plan);
    options.planning = DPCR_PLANNING_COUNT;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    options = (dpcr_chain_options){.size = sizeof options, .planning_seconds = NAN};
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    free(a);
    dpcr_context_destroy(context);
}

// A race of entrants of known speed, by a clock that only they move, has the fastest as its winner, the plainer of two
// equals, and ends in time. Now and then somebody takes the processor away: that is nobody's fault.
typedef struct runners {
    int64_t micros[4];
    int failing;
    uint64_t runs;
    bool disturbed;
} runners;

static double race_time;

static double race_clock(void) { return race_time; }

static bool take_a_while(void *argument, int64_t i) {
    runners *s = argument;
    race_time += 1e-6 * (double)s->micros[i];
    if (s->disturbed && dpcri_random_uniform(1, 2, s->runs++) < 0.05) race_time += 4e-3;
    return i != s->failing;
}

static void races_have_the_right_winner(void **state) {
    (void)state;
    double median[4];
    for (int disturbed = 0; disturbed < 2; disturbed++) {
        runners s = {.micros = {300, 100, 100, 200}, .failing = -1, .disturbed = disturbed};
        const double start = race_time;
        assert_int_equal(dpcri_race(4, take_a_while, &s, 0.05, race_clock, median), 1);
        assert_true(race_time - start < 0.06);
        for (int64_t k = 0; k < 4; k++) assert_true(median[k] >= 0.99e-6 * (double)s.micros[k]);
        s.failing = 1;
        assert_int_equal(dpcri_race(4, take_a_while, &s, 0.05, race_clock, median), 2);
        assert_true(median[1] == HUGE_VAL);
        s.failing = 0;
        assert_int_equal(dpcri_race(1, take_a_while, &s, 0.1, race_clock, median), -1);
    }
}

// ---- refusals and refused memory ----

static void wrong_options_are_refused(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = chain_of(step_forgets, 100, 2, DPCR_F64);
    const dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    double few[2] = {0, 0};
    const dpcr_array start = dpcr_array_make(few, DPCR_F64, 2, (const int64_t[]){1, 2});
    dpcr_solve_options options = {.size = sizeof options, .start = &start};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "options.start"));
    options = (dpcr_solve_options){.size = sizeof options, .planning = DPCR_PLANNING_COUNT};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "planning"));
    options = (dpcr_solve_options){.size = sizeof options, .planning_seconds = -1};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    dpcr_planning planning;
    for (int i = 0; i < DPCR_PLANNING_COUNT; i++) {
        assert_int_equal(dpcr_planning_find(dpcr_planning_name((dpcr_planning)i), &planning, &error), DPCR_OK);
        assert_int_equal(planning, i);
    }
    assert_int_equal(dpcr_planning_find("guess", &planning, &error), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(context);
}

// Planning needs little: refused what measuring takes, it estimates; refused what wisdom takes, it forgets.
static void refused_memory_costs_knowledge_only(void **state) {
    (void)state;
    int succeeded = 0;
    for (int64_t allowed = 0; allowed < 80; allowed += TESTS_ONE_OF) {
        budget b = {.left = allowed};
        const dpcr_context_options options = budget_options(&b);
        dpcr_context *context = NULL;
        chain c = tanh_chain(300, 2, 3, DPCR_F64);
        dpcr_steps steps = chain_steps(&c);
        steps.lanes = 8;
        dpcr_solve_plan *plan = NULL;
        const dpcr_solve_options measure = {
            .size = sizeof measure, .planning = DPCR_PLANNING_MEASURE, .planning_seconds = 1e-4};
        dpcr_status status = dpcr_context_create(&options, &context, NULL);
        if (status == DPCR_OK) status = dpcr_solve_plan_create(context, &steps, &measure, &plan, NULL);
        assert_true(status == DPCR_OK || status == DPCR_ERROR_MEMORY);
        if (status == DPCR_OK) {
            status = dpcr_wisdom_save(context, "/dev/null", NULL);
            assert_true(status == DPCR_OK || status == DPCR_ERROR_MEMORY);
        }
        succeeded += status == DPCR_OK;
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
    }
    assert_true(succeeded > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_the_chain),
        cmocka_unit_test(late_forgetting_is_seen),
        cmocka_unit_test(chaos_is_seen),
        cmocka_unit_test(wide_chains_that_keep_their_past_are_left_to_the_loop),
        cmocka_unit_test(chains_that_fill_the_processor_are_not_looked_at),
        cmocka_unit_test(planning_ends_where_the_caller_cancels),
        cmocka_unit_test(warm_up_is_what_the_chain_needs),
        cmocka_unit_test(a_rare_caller_does_not_lose),
        cmocka_unit_test(predictions_are_in_order),
        cmocka_unit_test(both_passes_are_measured_together),
        cmocka_unit_test(measured_plans_are_remembered),
        cmocka_unit_test(sweeps_that_were_allowed_are_remembered),
        cmocka_unit_test(measured_plans_can_be_pinned),
        cmocka_unit_test(solves_are_learned_from),
        cmocka_unit_test(wisdom_goes_round),
        cmocka_unit_test(damaged_wisdom_is_refused),
        cmocka_unit_test(strange_values_are_not_believed),
        cmocka_unit_test(linear_chains_are_measured_too),
        cmocka_unit_test(races_have_the_right_winner),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(refused_memory_costs_knowledge_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
