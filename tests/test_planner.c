// SPDX-License-Identifier: MIT
// The planner: candidates, measuring, other machines, callers who cancel, refused memory.
#include <limits.h>
#include <unistd.h>

#include "base/random.h"
#include "budget.h"
#include "planning.h"
#include "sampled.h"
#include "rt/race.h"
#include "solve/solve_internal.h"

// An estimate weighs chunks that fill whole calls too, forward and back: with a run-up of 328 steps the others are 328
// steps long, 12 of them.
static void estimates_weigh_full_calls(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = chain_of(step_forgets, 4096, 8, DPCR_F32);
    c.batch = 1;
    dpcr_steps steps = chain_steps(&c);
    steps.lanes = 8;
    const dpcr_solve_options options = {.size = sizeof options, .planning = DPCR_PLANNING_ESTIMATE, .warm_up = 328};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    dpcr_candidate each = {.size = sizeof each};
    int full[2] = {0};  // back, of 4095 steps: the first comes from z0
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++)
        if (each.backward)
            full[1] += each.scheme == DPCR_SCHEME_OVERLAP && each.chunk == 511;
        else
            full[0] += each.method == DPCR_METHOD_OVERLAP && each.chunk == 512;
    assert_int_equal(full[0], 1);
    assert_int_equal(full[1], 1);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// Chunks that are few run-ups long spend much on them: half as many are weighed too, where each thread gets one still.
static void estimates_weigh_longer_chunks(void **state) {
    (void)state;
    for (int threads = 2; threads <= 8; threads *= 4) {
        dpcr_context *context = solving_context(threads);
        chain c = chain_of(step_forgets, 1024, 8, DPCR_F32);
        c.batch = 1;
        dpcr_steps steps = chain_steps(&c);
        steps.lanes = 8;  // chunks of 128 steps by default
        const dpcr_solve_options options = {.size = sizeof options, .planning = DPCR_PLANNING_ESTIMATE, .warm_up = 60};
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        dpcr_candidate each = {.size = sizeof each};
        int longer = 0;
        for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++)
            longer += !each.backward && each.method == DPCR_METHOD_OVERLAP && each.chunk == 256;
        assert_int_equal(longer, threads == 2);
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
    }
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
            assert_true(evaluations <= 3 * 16 * c.batch);  // of a few steps of the loop
            assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_SEQUENTIAL);
            assert_int_equal(dpcr_solve_plan_backward(plan), DPCR_SCHEME_SEQUENTIAL);
        } else {
            assert_true(count > 2 && evaluations > 0);
        }
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
    }
}

// What was measured of such a chain is known where it is met again.
static void full_chains_that_were_measured_are_remembered(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = chain_of(step_forgets, 4096, 20, DPCR_F32);
    dpcr_steps steps = chain_steps(&c);
    steps.flops = 1e9;
    dpcr_solve_plan *measured = plan_of(context, &steps, DPCR_PLANNING_MEASURE), *plan = NULL;
    const dpcr_solve_options options = {.size = sizeof options};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    assert_null(strstr(dpcr_solve_plan_sentence(plan), "fill the processor"));
    assert_int_equal(dpcr_solve_plan_method(plan), dpcr_solve_plan_method(measured));
    dpcr_solve_plan_destroy(plan);
    c.length = steps.length = 2048;  // another chain
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    assert_non_null(strstr(dpcr_solve_plan_sentence(plan), "fill the processor"));
    dpcr_solve_plan_destroy(plan);
    dpcr_solve_plan_destroy(measured);
    dpcr_context_destroy(context);
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

// A run-up of all steps, however many are asked for: the planner weighs the same.
static void a_warm_up_beyond_the_chain_is_the_chain(void **state) {
    (void)state;
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO, DPCR_METHOD_OVERLAP, DPCR_METHOD_SHOOTING};
    dpcr_context *context = context_of_many_threads();
    chain c = chain_of(step_forgets, 3000, 2, DPCR_F32);
    dpcr_steps steps = chain_steps(&c);
    for (int m = 0; m < 3; m++) {
        dpcr_solve_options o = {.size = sizeof o, .method = methods[m], .warm_up = 3000};
        dpcr_solve_plan *plan = NULL, *beyond = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &plan, NULL), DPCR_OK);
        for (int shift = 0; shift < 3; shift++) {
            o.warm_up = INT64_MAX >> shift;
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &beyond, NULL), DPCR_OK);
            const dpcr_solve_options *a = dpcr_solve_plan_options(plan), *b = dpcr_solve_plan_options(beyond);
            assert_in_range(b->warm_up, 1, 3000);
            assert_in_range(b->chunk, 0, 3000);
            if (m > 0) assert_true(a->warm_up == b->warm_up && a->chunk == b->chunk);  // AUTO takes its time first
            dpcr_solve_plan_destroy(beyond);
        }
        dpcr_solve_plan_destroy(plan);
    }
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

// Steps that take a lane as long as alone, for they wait for their weights, go back in one chunk a thread, which the
// plan tells; those that lanes speed up go in more.
static void heavy_steps_go_back_in_one_chunk_a_thread(void **state) {
    (void)state;
    static const double tenth[2] = {0.1, 0};
    dpcr_context *context = solving_context(1);  // a machine of several threads is another one: no step is timed
    chain c = chain_of(step_forgets, 1025, 2, DPCR_F32);
    c.parameters = tenth, c.batch = 1;
    dpcr_steps steps = chain_steps(&c);
    steps.linearise = NULL;
    steps.lanes = 8, steps.latency = steps.lane_seconds = 40e-9;
    steps.adjoint_latency = 60e-9;
    for (int threads = 1; threads <= 4; threads++)
        for (int heavy = 0; heavy < 2; heavy++) {
            steps.adjoint_lane_seconds = heavy ? 60e-9 : 20e-9;
            const dpcr_machine m = {.size = sizeof m, .threads = threads, .wake = 1e-9};
            assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
            dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
            const dpcr_solve_options *o = dpcr_solve_plan_options(plan);
            const bool alone = heavy && threads > 1;
            assert_int_equal(o->backward, heavy && threads == 1 ? DPCR_SCHEME_SEQUENTIAL : DPCR_SCHEME_OVERLAP);
            // Forward's chunk is not left to stand for the way back.
            assert_true((o->backward_chunk == 1024 / threads) == alone);
            if (o->backward == DPCR_SCHEME_OVERLAP && o->chunk > 0) assert_true(o->backward_chunk > 0);
            dpcr_candidate each = {.size = sizeof each};
            bool listed = false;
            for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++)
                listed = listed || (each.backward && each.chunk == 1024 / threads && each.workspace > 0);
            assert_int_equal(listed, alone);
            dpcr_solve_plan_destroy(plan);
        }
    dpcr_context_destroy(context);
}

static double loop_back_seconds(dpcr_context *context, const dpcr_steps *steps, int threads) {
    const dpcr_machine m = {.size = sizeof m, .threads = threads, .wake = 1e-9, .region = 1e-6};
    assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
    dpcr_solve_plan *plan = plan_of(context, steps, DPCR_PLANNING_ESTIMATE);
    dpcr_candidate each = {.size = sizeof each};
    double seconds = 0;
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++)
        if (each.backward && each.scheme == DPCR_SCHEME_SEQUENTIAL) seconds = each.seconds;
    dpcr_solve_plan_destroy(plan);
    return seconds;
}

static int no_gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                       const dpcr_array *adjoints) {
    (void)user, (void)span, (void)in, (void)tape, (void)adjoints;
    return 0;
}

// The parameters' gradients come on top of the loop on one thread, lie beside it on more, as far as they are shorter,
// and are shared after it where sequences fill the threads.
static void gradients_are_reckoned(void **state) {
    (void)state;
    static const double tenth[2] = {0.1, 0};
    dpcr_context *context = solving_context(1);  // a machine of several threads is another one: no step is timed
    chain c = chain_of(step_forgets, 1000, 2, DPCR_F32);
    c.parameters = tenth, c.batch = 1;
    dpcr_steps steps = chain_steps(&c);
    steps.linearise = NULL, steps.gradient = NULL, steps.flops = 5000;
    steps.latency = steps.lane_seconds = steps.adjoint_latency = steps.adjoint_lane_seconds = 100e-9;
    const double bare = loop_back_seconds(context, &steps, 1);
    assert_true(fabs(bare - 100e-6) < 5e-6);
    steps.gradient_latency = 60e-9;
    assert_true(loop_back_seconds(context, &steps, 1) == bare);  // of no gradients
    steps.gradient = no_gradient;
    assert_true(fabs(loop_back_seconds(context, &steps, 1) - bare - 60e-6) < 1e-9);
    assert_true(fabs(loop_back_seconds(context, &steps, 2) - bare) < 1e-9);
    steps.gradient_latency = 300e-9;
    assert_true(fabs(loop_back_seconds(context, &steps, 2) - (bare + 300e-6) / 2) < 1e-9);
    steps.flops = 50;  // too few for another thread
    assert_true(fabs(loop_back_seconds(context, &steps, 2) - bare - 300e-6) < 1e-9);
    steps.flops = 5000, steps.batch = c.batch = 32, steps.gradient_lane_seconds = 20e-9;
    const double with = loop_back_seconds(context, &steps, 2);
    steps.gradient = NULL;
    assert_true(fabs(with - loop_back_seconds(context, &steps, 2) - 320e-6) < 1e-9);
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

// A chain whose stand-in counts what it is asked for.
typedef struct rehearsing {
    chain c;  // what the callbacks take `user` for
    int64_t gradients, stand_ins, released;
    struct rehearsing *of;  // a stand-in's
    bool none, wrong;
} rehearsing;

static void *take_part_instead(void *user, const dpcr_rehearsal *r) {
    rehearsing *whose = user;
    const int64_t L = whose->c.length, R = whose->c.batch, w = whose->c.width;
    whose->wrong = whose->wrong || whose->of || r->size < sizeof *r || r->z.shape[0] != L || r->z.shape[1] != R ||
                   r->z.shape[2] != w || r->z0.shape[0] != R || r->z0.shape[1] != w || !r->z.data || r->tape.data;
    if (whose->none) return NULL;
    rehearsing *stand_in = malloc(sizeof *stand_in);
    *stand_in = *whose;
    stand_in->of = whose;
    whose->stand_ins++;
    return stand_in;
}

static void leave_again(void *stand_in) {
    rehearsing *of = ((rehearsing *)stand_in)->of;
    of->released++;
    free(stand_in);
}

static int count_gradients(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                           const dpcr_array *adjoints) {
    rehearsing *whose = user;
    (void)in, (void)tape, (void)adjoints;
    if (whose->of)
        whose->of->gradients += span->lanes;
    else
        whose->wrong = true;  // the caller's own
    return 0;
}

// Trials of ways back make gradients where a chain has a stand-in, never the caller's, and release it, whoever fails.
static void trials_rehearse_gradients(void **state) {
    (void)state;
    static const double tenth[2] = {0.1, 0};
    for (int round = 0; round < 6; round++) {
        const bool none = round == 1, limited = round == 2, whole = round == 3 || round == 4, pairs = round == 4,
                   fails = round == 5;
        dpcr_context *context = solving_context(1);
        rehearsing r = {.c = chain_of(step_forgets, 1500, 2, DPCR_F64), .none = none};
        r.c.parameters = tenth;
        dpcr_steps steps = chain_steps(&r.c);
        steps.user = &r, steps.linearise = NULL, steps.lanes = 4;
        steps.latency = 1e-3, steps.lane_seconds = 1e-9;  // so that overlap is worth a trial
        steps.adjoint_latency = 1e-3, steps.adjoint_lane_seconds = 1e-9;
        steps.gradient = count_gradients, steps.gradient_whole = whole;
        steps.rehearse = take_part_instead, steps.rehearsed = fails ? NULL : leave_again;
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = pairs || !whole ? DPCR_METHOD_AUTO : DPCR_METHOD_SEQUENTIAL,
                                            .planning = DPCR_PLANNING_MEASURE,
                                            .planning_seconds = 0.05,
                                            .memory_limit = limited ? 1 << 24 : 0,
                                            .consume_tape = pairs};
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        dpcr_candidate each = {.size = sizeof each};
        int64_t timed = 0;
        for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++) timed += each.backward && each.measured > 0;
        assert_true(timed >= 2);
        assert_false(r.wrong);
        assert_true(pairs ? r.stand_ins >= 2 : r.stand_ins == (round == 0));
        assert_int_equal(r.released, r.stand_ins);
        assert_true(r.gradients % r.c.length == 0);
        assert_true(r.gradients > (r.stand_ins ? timed * r.c.length : 0) || r.stand_ins == 0);
        if (r.stand_ins == 0) assert_int_equal(r.gradients, 0);
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
    }
}

// Where nobody stands in, what gradients would take is added to what was measured, of both passes too.
static void gradients_are_added_to_trials(void **state) {
    (void)state;
    static const double tenth[2] = {0.1, 0};
    dpcr_context *context = solving_context(1);
    rehearsing r = {.c = chain_of(step_forgets, 1500, 2, DPCR_F64)};
    r.c.parameters = tenth;
    dpcr_steps steps = chain_steps(&r.c);
    steps.user = &r, steps.linearise = NULL, steps.lanes = 4;
    steps.latency = 1e-3, steps.lane_seconds = 1e-9;
    steps.adjoint_latency = 1e-3, steps.adjoint_lane_seconds = 1e-9;
    steps.gradient = count_gradients, steps.gradient_latency = 10e-6;
    const dpcr_solve_options options = {
        .size = sizeof options, .planning = DPCR_PLANNING_MEASURE, .planning_seconds = 0.3, .consume_tape = 1};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    assert_false(r.wrong);
    dpcr_candidate each = {.size = sizeof each};
    int64_t timed = 0;
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++) {
        if (!each.backward || !(each.measured > 0)) continue;
        assert_true(each.measured >= 15e-3);
        timed++;
    }
    assert_true(timed >= 2);
    const char *loops = strstr(dpcr_solve_plan_sentence(plan), ", the loops ");
    double seconds = 0;
    assert_non_null(loops);
    assert_int_equal(sscanf(loops, ", the loops %lf ms", &seconds), 1);
    if (!(seconds >= 15)) fail_msg("%s", loops);
    assert_true(strstr(loops, " ms") != NULL);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
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

// Threads share a call of chunks that go one after another or may do so, and not one of which each is a place of
// vectors.
static void threads_share_calls_of_lanes_in_turn(void **state) {
    (void)state;
    dpcr_steps steps = {.size = sizeof steps,
                        .width = 64,
                        .concurrent = 1,
                        .jacobian = dpcr_transition_square(DPCR_DIAGONAL, 64, 0),
                        .lanes = 1};
    assert_int_equal(dpcri_overlap_lanes(&steps, 2, 2), 1);
    assert_int_equal(dpcri_overlap_lanes(&steps, 16, 2), 8);
    assert_int_equal(dpcri_overlap_lanes(&steps, 16, 1), 16);
    steps.lanes = 16;
    assert_int_equal(dpcri_overlap_lanes(&steps, 16, 2), 16);
    steps.lanes = 0;
    assert_int_equal(dpcri_overlap_lanes(&steps, 16, 2), 8);
    assert_int_equal(dpcri_overlap_lanes(&steps, 32, 2), 16);
    steps.concurrent = 0;
    assert_int_equal(dpcri_overlap_lanes(&steps, 16, 2), 16);
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

// The way back's run-up is a plan's own, or forward's, and one of the options that make the plan again.
static void run_ups_of_both_ways_are_pinned(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = chain_of(step_forgets, 2000, 2, DPCR_F32);
    const dpcr_steps steps = chain_steps(&c);
    void *z0 = starts(&c);
    dpcr_solve_options options = {.size = sizeof options,
                                  .method = DPCR_METHOD_OVERLAP,
                                  .backward = DPCR_SCHEME_OVERLAP,
                                  .warm_up = 268,
                                  .chunk = 300};
    solved results[3];
    for (int i = 0; i < 3; i++) {
        dpcr_solve_plan *plan = NULL;
        if (i == 1) options.backward_warm_up = 9;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        assert_int_equal(dpcr_solve_plan_options(plan)->warm_up, 268);
        assert_int_equal(dpcr_solve_plan_options(plan)->backward_warm_up, i == 0 ? 268 : 9);
        results[i] = solve_steps(context, &steps, &c, z0, &options, NULL, 1);
        assert_int_equal(results[i].status, DPCR_OK);
        options = *dpcr_solve_plan_options(plan);
        if (i == 0) options.backward_warm_up = 0;
        dpcr_solve_plan_destroy(plan);
    }
    const size_t bytes = solving_bytes(&c) - 64;
    assert_memory_equal(results[0].z, results[1].z, bytes);
    assert_memory_not_equal(results[0].lambda, results[1].lambda, bytes);
    assert_memory_equal(results[1].z, results[2].z, bytes);
    assert_memory_equal(results[1].lambda, results[2].lambda, bytes);
    for (int i = 0; i < 3; i++) solved_free(&results[i]);
    options.backward_warm_up = -1;
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "backward_warm_up"));
    free(z0);
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

static double race_clock(void *argument) {
    (void)argument;
    return race_time;
}

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

// Who runs after another one finds its data in the wrong thread's cache, and is not told to be slower for it.
typedef struct movers {
    int64_t micros[2], moved[2], last;
} movers;

static bool take_what_others_had(void *argument, int64_t i) {
    movers *m = argument;
    race_time += 1e-6 * (double)(m->micros[i] + (i == m->last ? 0 : m->moved[i]));
    m->last = i;
    return true;
}

static void what_others_left_in_caches_does_not_count(void **state) {
    (void)state;
    static const int64_t scale[] = {1, 5, 15};
    for (size_t k = 0; k < sizeof scale / sizeof *scale; k++) {
        movers m = {.micros = {330 * scale[k], 290 * scale[k]}, .moved = {0, 150 * scale[k]}};
        double median[2];
        assert_int_equal(dpcri_race(2, take_what_others_had, &m, 0.2, race_clock, median), 1);
        for (int i = 0; i < 2; i++) assert_true(fabs(1e6 * median[i] - (double)m.micros[i]) < 1e-3);
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
        cmocka_unit_test(wide_chains_that_keep_their_past_are_left_to_the_loop),
        cmocka_unit_test(estimates_weigh_full_calls),
        cmocka_unit_test(estimates_weigh_longer_chunks),
        cmocka_unit_test(chains_that_fill_the_processor_are_not_looked_at),
        cmocka_unit_test(full_chains_that_were_measured_are_remembered),
        cmocka_unit_test(planning_ends_where_the_caller_cancels),
        cmocka_unit_test(warm_up_is_what_the_chain_needs),
        cmocka_unit_test(a_warm_up_beyond_the_chain_is_the_chain),
        cmocka_unit_test(a_rare_caller_does_not_lose),
        cmocka_unit_test(heavy_steps_go_back_in_one_chunk_a_thread),
        cmocka_unit_test(gradients_are_reckoned),
        cmocka_unit_test(predictions_are_in_order),
        cmocka_unit_test(both_passes_are_measured_together),
        cmocka_unit_test(trials_rehearse_gradients),
        cmocka_unit_test(gradients_are_added_to_trials),
        cmocka_unit_test(measured_plans_are_remembered),
        cmocka_unit_test(sweeps_that_were_allowed_are_remembered),
        cmocka_unit_test(threads_share_calls_of_lanes_in_turn),
        cmocka_unit_test(measured_plans_can_be_pinned),
        cmocka_unit_test(run_ups_of_both_ways_are_pinned),
        cmocka_unit_test(linear_chains_are_measured_too),
        cmocka_unit_test(races_have_the_right_winner),
        cmocka_unit_test(what_others_left_in_caches_does_not_count),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(refused_memory_costs_knowledge_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
