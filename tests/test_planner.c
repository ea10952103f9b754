// SPDX-License-Identifier: MIT
// The planner: candidates, other machines, callers who cancel, refused memory. What it measures:
// test_planner_measure.c.
#include <limits.h>

#include "budget.h"
#include "planning.h"
#include "sampled.h"
#include "solve/solve_internal.h"

// Overlaps, there or back, that an estimate of the chain weighs with chunks of so many steps; -1: of any.
static int overlaps_weighed(dpcr_context *context, const dpcr_steps *steps, int64_t warm_up, bool back, int64_t chunk) {
    const dpcr_solve_options options = {.size = sizeof options, .planning = DPCR_PLANNING_ESTIMATE, .warm_up = warm_up};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, steps, &options, &plan, NULL), DPCR_OK);
    dpcr_candidate each = {.size = sizeof each};
    int count = 0;
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++) {
        const bool overlaps = back ? each.scheme == DPCR_SCHEME_OVERLAP : each.method == DPCR_METHOD_OVERLAP;
        count += !each.backward == !back && overlaps && (chunk < 0 || each.chunk == chunk);
    }
    dpcr_solve_plan_destroy(plan);
    return count;
}

static dpcr_steps narrow_steps(chain *c, int64_t length, int64_t width, int64_t lanes) {
    *c = chain_of(step_forgets, length, width, DPCR_F32);
    c->batch = 1;
    dpcr_steps steps = chain_steps(c);
    steps.lanes = lanes;
    return steps;
}

// An estimate weighs chunks that fill whole calls too, forward and back: with a run-up of 328 steps the others are 328
// steps long, 12 of them.
static void estimates_weigh_full_calls(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c;
    const dpcr_steps steps = narrow_steps(&c, 4096, 8, 8);
    assert_int_equal(overlaps_weighed(context, &steps, 328, false, 512), 1);
    assert_int_equal(overlaps_weighed(context, &steps, 328, true, 511), 1);  // of 4095: the first comes from z0
    dpcr_context_destroy(context);
}

// But not by the model alone where they lie pages apart, 64 narrow chunks on the same sets of a cache.
static void estimates_leave_aliased_chunks_out(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c;
    for (int64_t chunk = 1023; chunk <= 1024; chunk++) {
        const dpcr_steps steps = narrow_steps(&c, 64 * chunk, 2, 64);
        const int full = overlaps_weighed(context, &steps, 20, false, chunk);
        assert_int_equal(full, chunk == 1023);
        assert_true(overlaps_weighed(context, &steps, 20, false, -1) > full);
    }
    dpcr_context_destroy(context);
}

// Chunks that are few run-ups long spend much on them: half as many are weighed too, where each thread gets one still.
static void estimates_weigh_longer_chunks(void **state) {
    (void)state;
    chain c;
    const dpcr_steps steps = narrow_steps(&c, 1024, 8, 8);  // chunks of 128 steps by default
    for (int threads = 2; threads <= 8; threads *= 4) {
        dpcr_context *context = solving_context(threads);
        assert_int_equal(overlaps_weighed(context, &steps, 60, false, 256), threads == 2);
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

// What would have to be finished in order after all has cost about the loop's time by then: of overlap three sweeps
// where it is three times ahead, else two.
static void overlap_has_a_budget(void **state) {
    (void)state;
    for (int threads = 2; threads <= 64; threads *= 32) {
        dpcr_context *context = solving_context(2);
        // Told of more than its threads: the steps are priced as they say, not timed here.
        const dpcr_machine machine = {.size = sizeof machine, .threads = threads, .latency = 1e-9};
        assert_int_equal(dpcr_context_set_machine(context, &machine, NULL), DPCR_OK);
        chain c = chain_of(step_forgets, 20000, 2, DPCR_F32);
        dpcr_steps steps = chain_steps(&c);
        steps.latency = 1e-6, steps.linearise = NULL, steps.batch = c.batch = 1;
        dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
        assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_OVERLAP);
        assert_int_equal(dpcr_solve_plan_options(plan)->max_sweeps, threads > 2 ? 3 : 2);
        dpcr_solve_plan_destroy(plan);
        const dpcr_solve_options asked = {.size = sizeof asked, .max_sweeps = 7};
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &asked, &plan, NULL), DPCR_OK);
        assert_int_equal(dpcr_solve_plan_options(plan)->max_sweeps, 7);
        dpcr_solve_plan_destroy(plan);
        dpcr_context_destroy(context);
    }
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
    dpcr_context *context = solving_context(1);  // a machine of other flops is another one: no step is timed
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
    dpcr_context *context = solving_context(1);  // what one sequence tells of its lanes is believed: no step is timed
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
    const dpcr_machine m = {.size = sizeof m, .threads = threads, .latency = 1e-9, .wake = 1e-9, .region = 1e-6};
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
    dpcr_context *context = solving_context(1);  // a machine of another latency is another one: no step is timed
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

static double loop_seconds_of(dpcr_context *context, const dpcr_steps *steps, const dpcr_machine *m) {
    assert_int_equal(dpcr_context_set_machine(context, m, NULL), DPCR_OK);
    dpcr_solve_plan *plan = plan_of(context, steps, DPCR_PLANNING_ESTIMATE);
    dpcr_candidate each = {.size = sizeof each};
    double seconds = 0;
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++)
        if (!each.backward && each.method == DPCR_METHOD_SEQUENTIAL) seconds = each.seconds;
    dpcr_solve_plan_destroy(plan);
    return seconds;
}

// What is not described is this machine's, so steps are timed for any count of cores, not for other flops or caches.
static void steps_are_timed_whatever_the_cores(void **state) {
    (void)state;
    static const double tenth[2] = {0.1, 0};
    dpcr_context *context = solving_context(1);
    chain c = chain_of(step_forgets, 1000, 2, DPCR_F32);
    c.parameters = tenth, c.batch = 2;
    dpcr_steps steps = chain_steps(&c);
    steps.latency = steps.lane_seconds = 1e-3;  // far from what it takes
    for (int cores = 1; cores <= 4; cores *= 2) {
        const dpcr_machine m = {.size = sizeof m, .threads = cores};
        assert_true(loop_seconds_of(context, &steps, &m) < 0.5);
    }
    const dpcr_machine others[] = {{.size = sizeof *others, .threads = 2, .flops = 1e10},
                                   {.size = sizeof *others, .threads = 2, .cache_bytes = {0, 1 << 20, 0}}};
    for (int i = 0; i < 2; i++) assert_true(loop_seconds_of(context, &steps, &others[i]) > 0.9);
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
    dpcr_error error = {0};
    bad = (dpcr_machine){.size = sizeof bad, .threads = 1e-300};
    assert_int_equal(dpcr_context_set_machine(context, &bad, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "1e-300 threads"));
    dpcr_context_destroy(context);
}

// Predictions of a chain whose steps have weights of their own, forward and back: the least and the loop's.
typedef struct predicted {
    double least, loop;
} predicted;

static void predict(dpcr_context *context, const dpcr_steps *steps, predicted told[2]) {
    dpcr_solve_plan *plan = plan_of(context, steps, DPCR_PLANNING_ESTIMATE);
    dpcr_candidate each = {.size = sizeof each};
    for (int back = 0; back < 2; back++) told[back] = (predicted){.least = HUGE_VAL};
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++) {
        predicted *p = &told[each.backward != 0];
        const bool overlap = each.backward ? each.scheme == DPCR_SCHEME_OVERLAP : each.method == DPCR_METHOD_OVERLAP;
        if (overlap && each.chunk > 0 && steps->weight_bytes > 1024) {
            const double again = (double)(steps->length / each.chunk - 1) * (double)each.warm_up;
            assert_true(each.seconds >= ((double)steps->length + again) * steps->weight_bytes / 2e10);
        }
        p->least = fmin(p->least, each.seconds);
        if (each.backward ? each.scheme == DPCR_SCHEME_SEQUENTIAL : each.method == DPCR_METHOD_SEQUENTIAL)
            p->loop = each.seconds;
    }
    dpcr_solve_plan_destroy(plan);
}

// 64 cores read no faster than the memory gives, one no faster than it can alone; a chunk's run-up is read once more.
// Weights that the caches hold, on the way back with as large gradients, are counted by what steps tell of themselves,
// as if none were told.
static void weights_come_from_memory(void **state) {
    (void)state;
    enum { LENGTH = 65536, CACHE = 32 << 20 };
    static const double tenth[2] = {0.1, 0};
    dpcr_context *context = solving_context(1);  // 64 cores are another machine: no step is timed
    const dpcr_machine m = {.size = sizeof m,
                            .threads = 64,
                            .flops = 2e10,
                            .latency = 1e-9,
                            .region = 1e-6,
                            .bandwidth = 2e10,
                            .thread_bandwidth = 1e10,
                            .cache_bytes = {32 << 10, 1 << 20, CACHE},
                            .cache_bandwidth = {1e11, 5e10, 3e10},
                            .wake = 2e-6};
    assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
    chain c = chain_of(step_forgets, LENGTH, 2, DPCR_F32);
    c.parameters = tenth, c.batch = 1;
    dpcr_steps steps = chain_steps(&c);
    assert_non_null(steps.gradient);
    steps.lanes = 16, steps.latency = 400e-9, steps.lane_seconds = 300e-9;
    steps.adjoint_latency = 500e-9, steps.adjoint_lane_seconds = 400e-9;
    predicted none[2], near[2], between[2], far[2], twice[2];
    predict(context, &steps, none);
    steps.weight_bytes = CACHE / LENGTH / 2;
    predict(context, &steps, near);
    steps.weight_bytes = CACHE / LENGTH;
    predict(context, &steps, between);
    steps.weight_bytes = 16384;
    predict(context, &steps, far);
    steps.weight_bytes = 32768;
    predict(context, &steps, twice);
    for (int back = 0; back < 2; back++) {
        assert_true(near[back].least == none[back].least && near[back].loop == none[back].loop);
        assert_true((between[back].least > none[back].least) == back);
        assert_true(none[back].loop > 10 * none[back].least);
        const double bytes = (back ? 3 : 1) * (double)LENGTH * 16384;  // gradients are read and written
        if (!(far[back].least >= bytes / 2e10 && far[back].least < 1.1 * bytes / 2e10 + none[back].least))
            fail_msg("back %d: %g s, wanted %g", back, far[back].least, bytes / 2e10);
        if (!(far[back].loop >= bytes / 1e10 && far[back].loop < 1.1 * bytes / 1e10))
            fail_msg("back %d: the loop %g s, wanted %g", back, far[back].loop, bytes / 1e10);
        assert_true(twice[back].least > 1.8 * far[back].least && twice[back].loop > 1.8 * far[back].loop);
    }
    dpcr_context_destroy(context);
}

// So do those of networks, by windows and by their Jacobians too, and the states that any way writes; the loop, which
// one thread runs, takes what one thread gets.
static void networks_wait_for_memory(dpcr_context *context, dpcr_architecture architecture, int64_t layers, int64_t w,
                                     int64_t batch) {
    const dpcr_model_options options = {.size = sizeof options,
                                        .architecture = architecture,
                                        .layers = layers,
                                        .width = w,
                                        .activation = DPCR_ACT_TANH};
    const double bytes = 4 * (double)(w * w + w), states = 4 * (double)(w * batch), rows = (double)batch;
    dpcr_model *model = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_create(context, &options, &model, NULL), DPCR_OK);
    assert_int_equal(dpcr_model_steps(model, batch, &steps, NULL), DPCR_OK);
    dpcr_solve_plan *plan = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    dpcr_candidate each = {.size = sizeof each};
    int windows = 0;
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++) {
        const bool window = each.backward ? steps.adjoint_window && each.scheme == DPCR_SCHEME_CHUNKED
                                          : each.scheme == DPCR_SCHEME_AUTO && (each.method == DPCR_METHOD_NEWTON ||
                                                                                each.method == DPCR_METHOD_SHOOTING);
        const bool loop = !each.backward && each.method == DPCR_METHOD_SEQUENTIAL;
        // Going back states are read and adjoints written, and gradients are read and written; each sequence in windows
        // goes past all weights, and so does each block of rows of the loop.
        const double blocks = ceil(rows / (double)dpcri_row_block(&steps));
        const double weights = (w <= 4 && window ? rows : loop ? blocks : 1) * bytes, all = weights + states;
        const double rate = loop && batch == 1 ? 8e6 : 1e7;
        const double least = (double)layers * (each.backward ? all + states + 2 * bytes : all) / rate;
        windows += window;
        if (!(each.seconds >= 0.999 * least))
            fail_msg("width %d, batch %d, %s, %s: %g s, wanted %g", (int)w, (int)batch, dpcr_method_name(each.method),
                     dpcr_scheme_name(each.scheme), each.seconds, least);
    }
    assert_true(windows > 0 || w > 4);
    dpcr_solve_plan_destroy(plan);
    dpcr_model_destroy(model);
}

static void every_way_waits_for_memory(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    const dpcr_machine m = {.size = sizeof m,
                            .threads = 8,
                            .bandwidth = 1e7,
                            .thread_bandwidth = 8e6,
                            .cache_bytes = {32 << 10, 64 << 10, 256 << 10},
                            .wake = 1e-9};
    assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
    for (int residual = 0; residual < 2; residual++) {
        const dpcr_architecture architecture = residual ? DPCR_RESNET : DPCR_MLP;
        networks_wait_for_memory(context, architecture, 1 << 16, 2, 1);
        networks_wait_for_memory(context, architecture, 1 << 14, 2, 32);
        networks_wait_for_memory(context, architecture, 1 << 12, 32, 1);
        networks_wait_for_memory(context, architecture, 1 << 12, 32, 256);
    }
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
    // Two lanes of narrow dense steps go one after another, so a thread takes them; more fill a vector, of 16 or, where
    // the costs say so, of 8.
    steps.width = 4, steps.concurrent = 1, steps.jacobian = dpcr_transition_square(DPCR_DENSE, 4, 0);
    for (int half = 0; half < 2; half++) {
        const int64_t lanes = half ? 8 : 16;
        steps.lanes = lanes, steps.latency = 13e-9, steps.lane_seconds = 9e-9;
        assert_true(dpcri_overlap_fills(&steps));
        assert_int_equal(dpcri_overlap_lanes(&steps, 2, 2), 1);
        assert_int_equal(dpcri_overlap_lanes(&steps, 4, 2), 2);
        assert_int_equal(dpcri_overlap_lanes(&steps, 5, 2), lanes);
        assert_int_equal(dpcri_overlap_lanes(&steps, 8, 2), lanes);
    }
    steps.lane_seconds = 13e-9;
    assert_true(!dpcri_overlap_fills(&steps));
    assert_int_equal(dpcri_overlap_lanes(&steps, 8, 2), 4);
}

// Eight places of one vector take as long whichever of them are filled: five and eight chunks of a narrow chain go to
// one call of one thread, sixteen to two of two.
static void places_of_a_vector_are_not_halved(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);  // a machine of two threads is another one: no step is timed
    const dpcr_machine m = {.size = sizeof m, .threads = 2, .region = 1e-6, .wake = 1e-9};
    assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
    static const int64_t chunks[] = {3200, 2000, 1000};
    double seconds[3] = {0};
    for (int i = 0; i < 3; i++) {
        chain c;
        dpcr_steps steps = narrow_steps(&c, 1 << 14, 4, 8);
        const dpcr_solve_options options = {
            .size = sizeof options, .planning = DPCR_PLANNING_ESTIMATE, .chunk = chunks[i], .warm_up = 108};
        dpcr_solve_plan *plan = NULL;
        dpcr_candidate each = {.size = sizeof each};
        steps.latency = 13e-9, steps.lane_seconds = 9e-9, steps.linearise = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        for (int64_t k = 0; dpcr_solve_plan_candidate(plan, k, &each); k++)
            if (!each.backward && each.method == DPCR_METHOD_OVERLAP) seconds[i] = each.seconds;
        dpcr_solve_plan_destroy(plan);
    }
    if (!(seconds[1] > 1.6 * seconds[2])) fail_msg("8 chunks %g s, 16 %g", seconds[1], seconds[2]);
    if (!(seconds[0] > 3200 * 8 * 9e-9)) fail_msg("5 chunks %g s, a call of all places more", seconds[0]);
    dpcr_context_destroy(context);
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
        cmocka_unit_test(estimates_leave_aliased_chunks_out),
        cmocka_unit_test(estimates_weigh_longer_chunks),
        cmocka_unit_test(chains_that_fill_the_processor_are_not_looked_at),
        cmocka_unit_test(full_chains_that_were_measured_are_remembered),
        cmocka_unit_test(planning_ends_where_the_caller_cancels),
        cmocka_unit_test(warm_up_is_what_the_chain_needs),
        cmocka_unit_test(overlap_has_a_budget),
        cmocka_unit_test(a_warm_up_beyond_the_chain_is_the_chain),
        cmocka_unit_test(a_rare_caller_does_not_lose),
        cmocka_unit_test(heavy_steps_go_back_in_one_chunk_a_thread),
        cmocka_unit_test(gradients_are_reckoned),
        cmocka_unit_test(steps_are_timed_whatever_the_cores),
        cmocka_unit_test(predictions_are_in_order),
        cmocka_unit_test(weights_come_from_memory),
        cmocka_unit_test(every_way_waits_for_memory),
        cmocka_unit_test(threads_share_calls_of_lanes_in_turn),
        cmocka_unit_test(places_of_a_vector_are_not_halved),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(refused_memory_costs_knowledge_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
