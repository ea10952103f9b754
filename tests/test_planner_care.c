// SPDX-License-Identifier: MIT
// The planner on chains that tell `coarse` or `slopes`: what it runs, when it looks again, what it keeps. By calls that
// are counted, and rates and costs that are given. And how many chunks overlap makes.
#include "solve/planner.h"
#include "solving.h"

typedef struct counted {
    chain c;  // the first, for its own callbacks
    int64_t rows, sweeps;
    const char *memory;  // the plan's
    double rate;
} counted;

// Sweeps' calls are those of many lanes, one step each.
static int count_advance(void *user, const dpcr_span *s, const dpcr_array *in, const dpcr_array *states,
                         const dpcr_array *last, const dpcr_array *tape) {
    counted *c = user;
    c->rows += s->lanes * s->steps * s->rows;
    c->sweeps += s->lanes >= 8 && s->steps == 1;
    return chain_advance(&c->c, s, in, states, last, tape);
}

static int exact_coarse(void *user, const dpcr_span *s, const dpcr_array *in, const dpcr_array *last) {
    return chain_advance(&((counted *)user)->c, s, in, NULL, last, NULL);
}

static void step_forgets(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b;
    for (int64_t i = 0; i < c->width; i++) {
        out[i] = 0.5 * in[i] + chain_noise(l, i, 9);
        for (int64_t k = 0; j && k < c->width; k++) j[i * c->width + k] = i == k ? 0.5 : 0;
    }
}

static void step_drifts(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = in[i] + 0.1 * chain_noise(l, i, 9);
}

// What is near meets bit for bit, what is far stays where it is.
static void step_rounds(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = floor(4 * in[i]) / 4;
}

enum { LONGEST = 4096 };

static const double *slopes_of(double slope) {
    static double slopes[LONGEST];
    for (int l = 0; l < LONGEST; l++) slopes[l] = slope;
    return slopes;
}

static dpcr_steps steps_of(counted *c, double slope) {
    dpcr_steps steps = chain_steps(&c->c);
    steps.user = c, steps.advance = count_advance;
    steps.linearise = NULL, steps.adjoint = NULL, steps.gradient = NULL;
    if (slope > 0) steps.slopes = slopes_of(slope);
    return steps;
}

// One thread; where `far`, what a sweep is multiplied by takes hours to read, by given rates.
static dpcr_context *context_of(bool far) {
    dpcr_context *context = solving_context(1);
    const dpcr_machine machine = {.size = sizeof machine, .threads = 1, .latency = 1e-4, .bandwidth = far ? 1e-3 : 0};
    assert_int_equal(dpcr_context_set_machine(context, &machine, NULL), DPCR_OK);
    return context;
}

static dpcr_solve_options options_of(double tolerance) {
    return (dpcr_solve_options){
        .size = sizeof(dpcr_solve_options), .atol = tolerance, .rtol = tolerance, .backward = DPCR_SCHEME_SEQUENTIAL};
}

static dpcr_solve_plan *count_plan(dpcr_context *context, counted *c, const dpcr_steps *steps,
                                   const dpcr_solve_options *options) {
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    int64_t told = 0;
    c->rows = c->sweeps = 0;
    if (dpcr_solve_plan_create(context, steps, options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    dpcr_solve_plan_effort(plan, NULL, &told);
    assert_int_equal(told, c->rows);
    c->memory = dpcr_solve_plan_memory(plan, &c->rate, NULL);
    return plan;
}

static void plan_once(dpcr_context *context, counted *c, const dpcr_steps *steps, const dpcr_solve_options *options) {
    dpcr_solve_plan_destroy(count_plan(context, c, steps, options));
}

// Plans, and lets it learn from a solve in order of so many seconds.
static void learn_seconds(dpcr_context *context, counted *c, const dpcr_steps *steps, const dpcr_solve_options *options,
                          double seconds) {
    dpcr_solve_plan *plan = count_plan(context, c, steps, options);
    const dpcr_solve_report report = {
        .size = sizeof report, .method = DPCR_METHOD_SEQUENTIAL, .reason = DPCR_REASON_SEQUENTIAL, .seconds = seconds};
    assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_SEQUENTIAL);
    assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    dpcr_solve_plan_destroy(plan);
}

// Steps that take less than the flops that they tell at the processor's peak, as on a device: their bound says nothing,
// nor what of them would have to be read, and a sweep's call is timed.
static void steps_made_elsewhere_are_timed(void **state) {
    (void)state;
    dpcr_context *context = context_of(true);
    counted c = {.c = {.step = step_forgets, .length = 256, .batch = 1, .width = 2, .dtype = DPCR_F64}};
    dpcr_steps steps = steps_of(&c, 1);
    const dpcr_solve_options options = options_of(1e-3);
    steps.flops = 1e15;
    plan_once(context, &c, &steps, &options);
    assert_int_equal(c.sweeps, 2);
    dpcr_context_destroy(context);
}

// A sweep's call that would take too long is not timed, once and for all later plans, until planning is given the time
// or solves have taken long enough; then by two runs, and never again.
static void too_long_a_call_is_timed_later(void **state) {
    (void)state;
    for (int learns = 0; learns < 2; learns++) {
        dpcr_context *context = context_of(true);
        counted c = {.c = {.step = step_forgets, .length = 256, .batch = 1, .width = 2, .dtype = DPCR_F64}};
        const dpcr_steps steps = steps_of(&c, 1);
        dpcr_solve_options options = options_of(1e-3);
        dpcr_solve_plan *bounded = count_plan(context, &c, &steps, &options);
        const char *sentence = dpcr_solve_plan_sentence(bounded);
        if (!strstr(sentence, " at best, too little to gain for a closer look, the loop takes ") ||
            strstr(sentence, "sweeps"))
            fail_msg("a bound told as a prediction: %s", sentence);
        dpcr_solve_plan_destroy(bounded);
        assert_int_equal(c.rows, 3);
        plan_once(context, &c, &steps, &options);
        assert_int_equal(c.rows, 0);
        if (learns) {
            // A clock that is wrong leaves what is known.
            static const double wrong[] = {-1, NAN, 0};
            for (int i = 0; i < 3; i++) {
                learn_seconds(context, &c, &steps, &options, wrong[i]);
                assert_int_equal(c.rows, 0);
            }
            learn_seconds(context, &c, &steps, &options, 1e6);
            assert_int_equal(c.rows, 0);
            learn_seconds(context, &c, &steps, &options, 4e6);
            assert_int_equal(c.rows, 0);  // a thirty-second of the first was not enough
        } else {
            options.planning_seconds = 1e6;
        }
        plan_once(context, &c, &steps, &options);
        assert_int_equal(c.sweeps, 2);
        assert_in_range(c.rows, 2 * 16, 2 * 16 + 2 + 256 / 16);
        plan_once(context, &c, &steps, &options);
        assert_int_equal(c.rows, 0);
        dpcr_context_destroy(context);
    }
}

// A memory that was looked at is kept where nothing was timed, of a rate that is not finite too, and a solve's endless
// seconds.
static void memory_is_kept(void **state) {
    (void)state;
    dpcr_context *context = context_of(false);
    counted c = {.c = {.step = step_rounds, .length = 2048, .batch = 1, .width = 1, .dtype = DPCR_F64}};
    dpcr_steps steps = steps_of(&c, 0.5);
    steps.lanes = 16, steps.latency = 1e-6, steps.lane_seconds = 1e-6;
    const dpcr_solve_options options = options_of(1e-3);
    plan_once(context, &c, &steps, &options);
    assert_true(c.rows > 0 && c.rate == -HUGE_VAL);
    assert_string_equal(c.memory, "keeps its past");
    for (int i = 0; i < 3; i++) {
        plan_once(context, &c, &steps, &options);
        assert_int_equal(c.rows, 0);
        assert_string_equal(c.memory, "keeps its past");
        assert_true(c.rate < -1e6 && isfinite(c.rate));
        if (i == 0) learn_seconds(context, &c, &steps, &options, HUGE_VAL);
    }
    dpcr_context_destroy(context);
}

// Where only overlap may gain, since bits must meet, it is not taken by the processor's peak: lanes are timed.
static void overlap_is_timed(void **state) {
    (void)state;
    dpcr_context *context = context_of(false);
    counted c = {.c = {.step = step_forgets, .length = LONGEST, .batch = 1, .width = 1, .dtype = DPCR_F32}};
    dpcr_steps steps = steps_of(&c, 0.5);
    steps.lanes = 16;
    const dpcr_solve_options options = options_of(-1);
    dpcr_solve_plan *plan = count_plan(context, &c, &steps, &options);
    dpcr_candidate candidate = {.size = sizeof candidate};
    bool listed = false;
    for (int i = 0; dpcr_solve_plan_candidate(plan, i, &candidate); i++)
        listed = listed || candidate.method == DPCR_METHOD_OVERLAP;
    assert_true(listed);
    assert_int_equal(c.sweeps, 2);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// That there is too little to gain forward says nothing of the way back.
static void way_back_is_chosen_for_itself(void **state) {
    (void)state;
    dpcr_context *context = context_of(true);
    counted c = {.c = {.step = step_forgets,
                       .length = LONGEST,
                       .batch = 1,
                       .width = 2,
                       .dtype = DPCR_F64,
                       .jacobian = dpcr_transition_square(DPCR_DIAGONAL, 2, 0)}};
    dpcr_steps steps = steps_of(&c, 1);
    steps.linearise = chain_linearise;
    dpcr_solve_options options = options_of(1e-3);
    options.backward = DPCR_SCHEME_AUTO;
    dpcr_solve_plan *plan = count_plan(context, &c, &steps, &options);
    assert_int_equal(c.sweeps, 0);
    assert_int_equal(dpcr_solve_plan_method(plan), DPCR_METHOD_SEQUENTIAL);
    assert_int_not_equal(dpcr_solve_plan_backward(plan), DPCR_SCHEME_SEQUENTIAL);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// A trial of parareal takes its chunks and coarse steps one after another, so about the loop's time however cheap a row
// of a sweep's call is: not before solves have taken sixteen times as long.
static void parareal_is_no_cheap_trial(void **state) {
    (void)state;
    dpcr_context *context = context_of(false);
    counted c = {.c = {.step = step_drifts, .length = 100, .batch = 1, .width = 1, .dtype = DPCR_F64}};
    dpcr_steps steps = steps_of(&c, 0);
    steps.coarse = exact_coarse, steps.lanes = 16;
    steps.latency = 1e-3, steps.lane_seconds = 1e-6;
    double x = 0.3;
    const dpcr_array start = dpcr_array_make(&x, DPCR_F64, 2, (const int64_t[]){1, 1});
    dpcr_solve_options options = options_of(1e-3);
    options.start = &start;
    dpcr_solve_plan *plan = NULL;
    for (int n = 0; n < 4; n++) {
        dpcr_solve_plan_destroy(plan);
        c.rows = 0;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        if ((c.rows > 0) != (n == 2))
            fail_msg("plan %d: %lld rows, %s", n, (long long)c.rows, dpcr_solve_plan_sentence(plan));
        const dpcr_solve_report report = {.size = sizeof report,
                                          .method = dpcr_solve_plan_method(plan),
                                          .reason = DPCR_REASON_SEQUENTIAL,
                                          .seconds = n ? 10 : 0.1};
        if (n < 2) assert_int_equal(dpcr_solve_plan_learn(plan, &report, NULL), DPCR_OK);
    }
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// ---- memory ----

typedef struct largest {
    size_t bytes;
} largest;

// Few chunks are as many as kernels take whole and threads halve, but where lanes are places of vectors.
static void few_chunks_are_even(void **state) {
    (void)state;
    static const int64_t warm_ups[] = {600, 256, 170, 128, 100, 80, 68, 64, 50};
    static const int64_t wide[] = {1, 2, 4, 4, 4, 4, 8, 8, 8}, narrow[] = {1, 2, 3, 4, 5, 6, 7, 8, 10};
    chain c = tanh_chain(1024, 1, 16, DPCR_F32);
    dpcr_steps steps = chain_steps(&c);
    for (int i = 0; i < 9; i++) {
        steps.width = 16, steps.lanes = 8;
        assert_int_equal(dpcri_overlap_chunks(&steps, 1024, warm_ups[i]), wide[i]);
        steps.width = 2, steps.lanes = 80;
        assert_int_equal(dpcri_overlap_chunks(&steps, 1024, warm_ups[i]), narrow[i]);
    }
    steps.width = 16, steps.lanes = 3;
    assert_int_equal(dpcri_overlap_chunks(&steps, 1024, 128), 3);  // no more than one call takes
}

static void *allocate(void *user, size_t bytes, size_t alignment) {
    largest *l = user;
    if (bytes > l->bytes) l->bytes = bytes;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void release(void *user, void *memory) {
    (void)user;
    free(memory);
}

// To time a step takes no room for Jacobians.
static void a_step_wants_its_states_only(void **state) {
    (void)state;
    largest most = {0};
    const dpcr_context_options own = {
        .size = sizeof own, .threads = 1, .allocate = allocate, .release = release, .allocator_user = &most};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&own, &context, NULL), DPCR_OK);
    counted c = {.c = {.step = step_forgets, .length = 64, .batch = 64, .width = CHAIN_MAX_WIDTH, .dtype = DPCR_F64}};
    dpcr_steps steps = steps_of(&c, 1);
    steps.linearise = chain_linearise;
    const dpcr_solve_options options = options_of(-1);
    most.bytes = 0;
    plan_once(context, &c, &steps, &options);
    assert_true(c.rows >= 2);
    assert_true(most.bytes < 8 * (size_t)dpcr_transition_values(&steps.jacobian) * sizeof(double));
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_made_elsewhere_are_timed),
        cmocka_unit_test(too_long_a_call_is_timed_later),
        cmocka_unit_test(memory_is_kept),
        cmocka_unit_test(overlap_is_timed),
        cmocka_unit_test(way_back_is_chosen_for_itself),
        cmocka_unit_test(parareal_is_no_cheap_trial),
        cmocka_unit_test(few_chunks_are_even),
        cmocka_unit_test(a_step_wants_its_states_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
