// SPDX-License-Identifier: MIT
// What the planner measures: ways in turn and in pairs, with gradients; what it remembers of that; races; refused
// memory; callbacks that abort, measured or not.

#include "base/random.h"
#include "budget.h"
#include "planning.h"
#include "sampled.h"
#include "rt/race.h"
#include "solve/solve_internal.h"

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

// Chunks that fill a call are quicker on the way there, and slower on a way back alone; after a way there those are
// quicker that went there, as a tape that lies with its threads has it, in some chains in the driver's own alone.
typedef struct matching {
    chain c;
    bool own;
    int64_t there;  // steps from chunk to chunk on the way there; 0: the loop
} matching;

enum { MATCHING_LENGTH = 3000, MATCHING_LANES = 4, FULL = MATCHING_LENGTH / MATCHING_LANES };

static double part_of(const matching *m, const dpcr_span *span) {
    return (double)(span->lanes * span->steps) / (double)m->c.length;
}

static int matching_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                            const dpcr_array *last, const dpcr_array *tape) {
    matching *m = user;
    const bool loop = span->steps == m->c.length;
    if (loop || (span->lanes > 1 && span->stride != FULL)) spend((loop ? 4e-3 : 4e-4) * part_of(m, span));
    if (loop || span->lanes > 1) m->there = loop ? 0 : span->stride;
    return chain_advance(&m->c, span, in, states, last, tape);
}

static int matching_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                            const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                            const dpcr_array *first_out) {
    matching *m = user;
    const bool full = llabs(span->stride - FULL) <= 2;
    const bool alike = m->there > 0 && llabs(m->there - span->stride) <= 2 && !(m->own && full);
    const bool loop = span->lanes == 1 && span->steps > FULL;
    if (loop || (span->lanes > 1 && !alike)) spend((full && !loop ? 3e-3 : 2e-3) * part_of(m, span));
    return chain_adjoint(&m->c, span, in, tape, direct, last, adjoint, first_out);
}

// Whether what was chosen goes back as it went there, and in which chunks.
static bool chunks_alike_win(bool own, int64_t asked) {
    static const double tenth[2] = {0.1, 0};
    dpcr_context *context = solving_context(1);
    matching m = {.c = chain_of(step_forgets, MATCHING_LENGTH, 2, DPCR_F64), .own = own};
    m.c.parameters = tenth, m.c.batch = 1;  // of one sequence what is told is believed
    dpcr_steps steps = chain_steps(&m.c);
    steps.user = &m, steps.concurrent = 0, steps.lanes = MATCHING_LANES, steps.linearise = NULL, steps.gradient = NULL;
    steps.latency = steps.adjoint_latency = 1e-3, steps.lane_seconds = steps.adjoint_lane_seconds = 1e-9;
    steps.advance = matching_advance, steps.adjoint = matching_adjoint;
    const dpcr_solve_options options = {.size = sizeof options,
                                        .planning = DPCR_PLANNING_MEASURE,
                                        .planning_seconds = 0.6,
                                        .backward_chunk = asked,
                                        .consume_tape = 1};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    const dpcr_solve_options *o = dpcr_solve_plan_options(plan);
    const bool overlaps = o->method == DPCR_METHOD_OVERLAP && o->backward == DPCR_SCHEME_OVERLAP;
    const bool right = asked ? o->backward_chunk == asked
                       : own ? overlaps && o->chunk != FULL && o->backward_chunk == 0
                             : overlaps && o->chunk == FULL && o->backward_chunk == FULL;
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
    return right;
}

// But where a chunk was asked for.
static void overlaps_in_chunks_alike_are_tried(void **state) {
    (void)state;
    for (int own = 0; own < 2; own++)
        for (int attempts = 0; !chunks_alike_win(own, 0); attempts++) assert_true(attempts < 10);
    assert_true(chunks_alike_win(false, 500));
}

// A chain whose stand-in counts what it is asked for.
typedef struct rehearsing {
    chain c;  // what the callbacks take `user` for
    int64_t gradients, stand_ins, released;
    struct rehearsing *of;  // a stand-in's
    int64_t most;           // stand-ins that there is room for
    bool wrong;
} rehearsing;

static void *take_part_instead(void *user, const dpcr_rehearsal *r) {
    rehearsing *whose = user;
    const int64_t L = whose->c.length, R = whose->c.batch, w = whose->c.width;
    whose->wrong = whose->wrong || whose->of || r->size < sizeof *r || r->z.shape[0] != L || r->z.shape[1] != R ||
                   r->z.shape[2] != w || r->z0.shape[0] != R || r->z0.shape[1] != w || !r->z.data || r->tape.data;
    if (whose->stand_ins == whose->most) return NULL;
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

// Of which overlap is worth a trial.
static dpcr_steps rehearsing_steps(rehearsing *r) {
    static const double tenth[2] = {0.1, 0};
    r->c.parameters = tenth;
    dpcr_steps steps = chain_steps(&r->c);
    steps.user = r, steps.linearise = NULL, steps.lanes = 4;
    steps.latency = steps.adjoint_latency = 1e-3, steps.lane_seconds = steps.adjoint_lane_seconds = 1e-9;
    steps.gradient = count_gradients, steps.rehearse = take_part_instead, steps.rehearsed = leave_again;
    return steps;
}

typedef struct stand_in_case {
    const char *what;
    bool whole, pairs, limited, unreleased;
    int64_t most;      // as above
    int64_t expected;  // stand-ins; -1: two and more
} stand_in_case;

static void check_stand_ins(const stand_in_case *k) {
    dpcr_context *context = solving_context(1);
    rehearsing r = {.c = chain_of(step_forgets, 1500, 2, DPCR_F64), .most = k->most};
    dpcr_steps steps = rehearsing_steps(&r);
    steps.gradient_whole = k->whole;
    if (k->unreleased) steps.rehearsed = NULL;
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = k->pairs || !k->whole ? DPCR_METHOD_AUTO : DPCR_METHOD_SEQUENTIAL,
                                        .planning = DPCR_PLANNING_MEASURE,
                                        .planning_seconds = 0.05,
                                        .memory_limit = k->limited ? 1 << 24 : 0,
                                        .consume_tape = k->pairs};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
    dpcr_candidate each = {.size = sizeof each};
    int64_t timed = 0;
    for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &each); i++) timed += each.backward && each.measured > 0;
    const bool as_expected = k->expected < 0 ? r.stand_ins >= 2 : r.stand_ins == k->expected;
    if (timed < 2 || r.wrong || !as_expected || r.released != r.stand_ins)
        fail_msg("%s: %d ways timed, %d stand-ins, %d released%s", k->what, (int)timed, (int)r.stand_ins,
                 (int)r.released, r.wrong ? ", the caller's gradients or wrong arrays" : "");
    const bool makes = k->most > 1 && r.stand_ins > 0;
    assert_true(makes ? r.gradients > timed * r.c.length : r.gradients == 0);
    assert_int_equal(r.gradients % r.c.length, 0);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// Trials of ways back make gradients where a chain has a stand-in, never the caller's, and release it, whoever fails;
// where there is no room for one of several, none makes them.
static void trials_rehearse_gradients(void **state) {
    (void)state;
    enum { MANY = 100 };
    static const stand_in_case cases[] = {
        {.what = "one for all", .most = MANY, .expected = 1},
        {.what = "no room", .most = 0, .expected = 0},
        {.what = "a limit", .limited = true, .most = MANY, .expected = 0},
        {.what = "nobody releases", .unreleased = true, .most = MANY, .expected = 0},
        {.what = "no pairs", .whole = true, .most = MANY, .expected = 0},
        {.what = "pairs", .whole = true, .pairs = true, .most = MANY, .expected = -1},
        {.what = "no second", .whole = true, .pairs = true, .most = 1, .expected = 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_stand_ins(&cases[i]);
}

// Where nobody stands in, what gradients would take is added to what was measured, of both passes too.
static void gradients_are_added_to_trials(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    rehearsing r = {.c = chain_of(step_forgets, 1500, 2, DPCR_F64)};
    dpcr_steps steps = rehearsing_steps(&r);
    steps.rehearse = NULL, steps.gradient_latency = 10e-6;
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
    dpcr_solve_options close = only;  // what joins otherwise is another chain's
    close.join_tolerance = 1e-3;
    dpcr_solve_plan *unknown = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &close, &unknown, &error), DPCR_ERROR_UNSUPPORTED);
    dpcr_machine another = {.size = sizeof another,
                            .bandwidth = 1e9};  // of which nothing is known, as many threads or not
    assert_int_equal(dpcr_context_set_machine(context, &another, NULL), DPCR_OK);
    dpcr_solve_plan *there = plan_of(context, &steps, DPCR_PLANNING_ESTIMATE);
    assert_null(strstr(dpcr_solve_plan_sentence(there), "known from"));
    dpcr_solve_plan_destroy(there);
    for (int planning = DPCR_PLANNING_ESTIMATE + 1; planning < DPCR_PLANNING_COUNT; planning++) {  // of this one
        dpcr_solve_options timed = {.size = sizeof timed, .planning = (dpcr_planning)planning};
        dpcr_solve_plan *none = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &timed, &none, &error), DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.text, dpcr_planning_name(timed.planning)));
        assert_null(none);
        timed.method = DPCR_METHOD_SEQUENTIAL, timed.backward = DPCR_SCHEME_SEQUENTIAL;  // nothing to time
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &timed, &none, NULL), DPCR_OK);
        dpcr_solve_plan_destroy(none);
    }
    assert_int_equal(dpcr_context_set_machine(context, NULL, NULL), DPCR_OK);
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

// The chosen one first, then by time; each made again has its workspace and prediction.
static void check_candidates(dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_chain_plan *plan) {
    const dpcr_chain_options *chosen = dpcr_chain_plan_options(plan);
    dpcr_chain_candidate each = {.size = sizeof each};
    double before = 0;
    int64_t count = 0;
    unsigned seen = 0;
    for (; dpcr_chain_plan_candidate(plan, count, &each); count++) {
        dpcr_chain_options same = {
            .size = sizeof same, .scheme = each.scheme, .chunk = each.chunk, .warm_up = each.warm_up};
        dpcr_chain_plan *made = NULL;
        if (count == 0)
            assert_true(each.scheme == chosen->scheme && each.workspace == dpcr_chain_plan_workspace(plan));
        else
            assert_true(each.measured >= (count > 1 ? before : 0));
        assert_true(each.size == sizeof each && each.measured > 0);
        assert_int_equal(dpcr_chain_plan_create(context, shape, &same, &made, NULL), DPCR_OK);
        assert_true(each.seconds > 0 && each.seconds == dpcr_chain_plan_seconds(made));
        assert_int_equal(each.workspace, dpcr_chain_plan_workspace(made));
        assert_true(!each.warm_up || each.scheme == DPCR_SCHEME_OVERLAP);
        dpcr_chain_plan_destroy(made);
        before = each.measured;
        seen |= 1u << each.scheme;
    }
    assert_true(seen >> DPCR_SCHEME_SEQUENTIAL & 1 && seen >> DPCR_SCHEME_OVERLAP & 1 && count >= 3);
    assert_false(dpcr_chain_plan_candidate(plan, -1, &each));
    assert_false(dpcr_chain_plan_candidate(plan, 0, NULL));
    // A caller of an older library's struct gets what it knows.
    dpcr_chain_candidate old = {.size = offsetof(dpcr_chain_candidate, seconds), .seconds = -1};
    assert_true(dpcr_chain_plan_candidate(plan, 0, &old));
    assert_true(old.seconds == -1 && old.scheme == chosen->scheme);
}

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
    check_candidates(context, &shape, plan);
    options.planning = DPCR_PLANNING_WISDOM;
    dpcr_chain_plan *again = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &again, &error), DPCR_OK);
    const dpcr_chain_options *known = dpcr_chain_plan_options(again);
    assert_true(known->scheme == chosen->scheme && known->chunk == chosen->chunk && known->warm_up == chosen->warm_up);
    dpcr_chain_candidate none = {.size = sizeof none};
    assert_false(dpcr_chain_plan_candidate(again, 0, &none));  // recalled, not timed
    assert_false(dpcr_chain_plan_candidate(NULL, 0, &none));
    dpcr_chain_plan_destroy(again);
    dpcr_chain_plan_destroy(plan);
    options.planning = DPCR_PLANNING_COUNT;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    dpcr_array other = typical;  // of another chain
    options.planning = DPCR_PLANNING_MEASURE;
    options.typical = &other;
    other.shape[2] = 1;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "typical is [4000][1][1] float32, wanted [4000][1][4] float32"));
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

// Whoever is stalled once, whenever that is: the fastest wins, also where there is time for one round alone.
typedef struct stalled {
    int64_t micros[4], runs, at;  // run number `at` of all takes 6 ms longer
} stalled;

static bool be_stalled_once(void *argument, int64_t i) {
    stalled *s = argument;
    race_time += 1e-6 * (double)s->micros[i] + (s->runs++ == s->at ? 6e-3 : 0);
    return true;
}

static void one_stall_decides_nothing(void **state) {
    (void)state;
    enum { LOOKS = 16 };
    for (int fastest = 0; fastest < 4; fastest++)
        for (int hurried = 0; hurried < 2; hurried++)
            for (int64_t at = hurried ? LOOKS : 0; at < 100; at++) {
                stalled s = {.micros = {690, 815, 982, 700}, .at = at};
                double median[4];
                s.micros[fastest] = 115;
                const int64_t winner = dpcri_race(4, be_stalled_once, &s, hurried ? 0.015 : 0.2, race_clock, median);
                if (winner != fastest) fail_msg("stalled in run %d: %d wins", (int)at, (int)winner);
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

// ---- refused memory ----

static const dpcr_solve_options quick = {
    .size = sizeof quick, .planning = DPCR_PLANNING_MEASURE, .planning_seconds = 1e-3, .consume_tape = 1};

static dpcr_status plan_model(dpcr_context *context, budget *b, int64_t granted) {
    const dpcr_model_options options = {.size = sizeof options, .architecture = DPCR_MLP, .layers = 300, .width = 8};
    dpcr_model *model = NULL;
    dpcr_solve_plan *plan = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_model_create(context, &options, &model, NULL), DPCR_OK);
    assert_int_equal(dpcr_model_steps(model, 1, &steps, NULL), DPCR_OK);
    b->left = granted;
    const dpcr_status status = dpcr_solve_plan_create(context, &steps, &quick, &plan, NULL);
    dpcr_solve_plan_destroy(plan);
    dpcr_model_destroy(model);
    return status;
}

static dpcr_status plan_network(dpcr_context *context, budget *b, int64_t granted) {
    enum { LENGTH = 500, BATCH = 2, INPUTS = 3 };
    const dpcr_recurrent_options options = {.size = sizeof options, .kind = DPCR_GRU, .inputs = INPUTS, .hidden = 16};
    const int64_t shape[] = {LENGTH, BATCH, INPUTS};
    static float x[LENGTH * BATCH * INPUTS];
    for (int i = 0; i < LENGTH * BATCH * INPUTS; i++) x[i] = sinf((float)i);
    const dpcr_recurrent_pass sample = {.size = sizeof sample, .x = dpcr_array_make(x, DPCR_F32, 3, shape)};
    const dpcr_recurrent_plan_options wanted = {
        .size = sizeof wanted, .length = LENGTH, .batch = BATCH, .training = 1, .solve = quick, .sample = &sample};
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_plan *plan = NULL;
    assert_int_equal(dpcr_recurrent_create(context, &options, &network, NULL), DPCR_OK);
    b->left = granted;
    const dpcr_status status = dpcr_recurrent_plan_create(network, &wanted, &plan, NULL);
    dpcr_recurrent_plan_destroy(plan);
    dpcr_recurrent_destroy(network);
    return status;
}

// Every request for memory while ways back are tried refused in turn: the plan is made all the same, or memory is
// what is wrong, and nothing is kept.
static void no_room_for_stand_ins(void **state) {
    (void)state;
    for (int recurrent = 0; recurrent < 2; recurrent++) {
        bool enough = false;
        for (int64_t granted = 0; !enough; granted += TESTS_ONE_OF) {
            budget b = {.left = INT64_MAX};
            const dpcr_context_options with = budget_options(&b);
            dpcr_context *context = NULL;
            assert_true(granted < 1000);
            assert_int_equal(dpcr_context_create(&with, &context, NULL), DPCR_OK);
            const dpcr_status status =
                recurrent ? plan_network(context, &b, granted) : plan_model(context, &b, granted);
            enough = b.left > 0;
            assert_true(status == DPCR_OK || (!enough && status == DPCR_ERROR_MEMORY));
            b.left = INT64_MAX;
            dpcr_context_destroy(context);
            assert_int_equal(b.live, 0);
        }
    }
}

// ---- callbacks that abort ----

enum { ADVANCE, LINEARISE, ADJOINT, WINDOW, COARSE, CALLBACKS };

// Callbacks of which one returns `code` when it is called for the time `bad`.
typedef struct moody {
    chain c;
    int calls[CALLBACKS], all;
    int callback, bad, code;
    int at;  // of all calls
} moody;

static int mood(moody *m, int callback) {
    m->all++;
    if (++m->calls[callback] != m->bad || callback != m->callback) return 0;
    m->at = m->all;
    return m->code;
}

static int moody_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                         const dpcr_array *last, const dpcr_array *tape) {
    const int code = mood(user, ADVANCE);
    return code ? code : chain_advance(&((moody *)user)->c, span, in, states, last, tape);
}

static int moody_linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                           const dpcr_array *a) {
    const int code = mood(user, LINEARISE);
    return code ? code : chain_linearise(&((moody *)user)->c, span, in, f, a);
}

static int moody_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                         const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                         const dpcr_array *first_out) {
    const int code = mood(user, ADJOINT);
    return code ? code : chain_adjoint(&((moody *)user)->c, span, in, tape, direct, last, adjoint, first_out);
}

static int moody_window(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                        dpcr_window *window) {
    (void)span, (void)in, (void)states, (void)window;
    const int code = mood(user, WINDOW);
    return code ? code : 1;
}

static int moody_coarse(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    const int code = mood(user, COARSE);
    return code ? code : chain_advance(&((moody *)user)->c, span, in, NULL, last, NULL);
}

// Plans while that call returns `code`.
static dpcr_status plan_moody(moody *m, bool weighed, dpcr_planning planning, int code, dpcr_error *error) {
    dpcr_steps steps = chain_steps(&m->c);
    const double zeros[6] = {0};
    const dpcr_array start = dpcr_array_make((void *)(uintptr_t)zeros, DPCR_F64, 2, (const int64_t[]){3, 2});
    const dpcr_solve_options options = {
        .size = sizeof options, .planning = planning, .planning_seconds = weighed ? 0.1 : 0.01, .start = &start};
    dpcr_context *context = solving_context(1);
    dpcr_solve_plan *plan = NULL;
    steps.user = m, steps.lanes = 8, steps.gradient = NULL;
    steps.advance = moody_advance, steps.linearise = moody_linearise, steps.adjoint = moody_adjoint;
    steps.window = moody_window;
    if (weighed) steps.coarse = moody_coarse;
    memset(m->calls, 0, sizeof m->calls);
    m->all = m->at = 0, m->code = code;
    const dpcr_status status = dpcr_solve_plan_create(context, &steps, &options, &plan, error);
    assert_true((status == DPCR_OK) == (plan != NULL));
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
    return status;
}

// Whichever of planning's calls returns it; a positive code tells it nothing.
static void planning_ends_with_a_callbacks_negative_code(void **state) {
    (void)state;
    int heeded[CALLBACKS] = {0};
    for (int k = 0; k < 4 * CALLBACKS; k++) {
        const dpcr_planning planning = k % 4 / 2 ? DPCR_PLANNING_MEASURE : DPCR_PLANNING_ESTIMATE;
        const bool weighed = k % 2;
        for (int bad = 1;; bad *= 4) {
            moody m = {.c = chain_of(step_forgets, 400, 2, DPCR_F64), .callback = k / 4, .bad = bad};
            dpcr_error error = {0};
            const dpcr_status status = plan_moody(&m, weighed, planning, -42, &error);
            if (m.at == 0) break;  // it was made before
            if (status != DPCR_ERROR_CALLBACK || error.code != -42) fail_msg("%d: call %d was not heeded", k, bad);
            assert_non_null(strstr(error.text, "code -42"));
            if (!weighed && planning == DPCR_PLANNING_ESTIMATE) assert_int_equal(m.all, m.at);
            assert_int_equal(plan_moody(&m, weighed, planning, 7, &error), DPCR_OK);
            heeded[k / 4]++;
        }
    }
    for (int i = 0; i < CALLBACKS; i++) assert_true(heeded[i] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_passes_are_measured_together),
        cmocka_unit_test(overlaps_in_chunks_alike_are_tried),
        cmocka_unit_test(trials_rehearse_gradients),
        cmocka_unit_test(gradients_are_added_to_trials),
        cmocka_unit_test(measured_plans_are_remembered),
        cmocka_unit_test(sweeps_that_were_allowed_are_remembered),
        cmocka_unit_test(measured_plans_can_be_pinned),
        cmocka_unit_test(run_ups_of_both_ways_are_pinned),
        cmocka_unit_test(linear_chains_are_measured_too),
        cmocka_unit_test(races_have_the_right_winner),
        cmocka_unit_test(one_stall_decides_nothing),
        cmocka_unit_test(what_others_left_in_caches_does_not_count),
        cmocka_unit_test(no_room_for_stand_ins),
        cmocka_unit_test(planning_ends_with_a_callbacks_negative_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
