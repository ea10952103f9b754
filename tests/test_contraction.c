// SPDX-License-Identifier: MIT
// How soon chains forget, as the planner sees it.
#include "planning.h"

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

static void step_shrinks(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = c->parameters[0] * in[i];
}

// States that only shrink come near each other, and are as far apart beside their size as they began: within a
// tolerance at once, by the rate alone, or not until both are 0.
static void shrinking_is_no_forgetting(void **state) {
    (void)state;
    static const double rates[][1] = {{0.9}, {0.98}, {0.4}};
    dpcr_context *context = solving_context(1);
    for (int i = 0; i < 3; i++) {
        chain c = chain_of(step_shrinks, 20000, 2, DPCR_F64);
        c.parameters = rates[i];
        const dpcri_contraction found = contraction(context, &c, 1e-5);
        assert_int_equal(found.memory, DPCRI_MEMORY_KEEPS);
        assert_true(found.within == 0 && found.to_bits == 0);
    }
    dpcr_context_destroy(context);
}

static void step_drifts(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = c->parameters[0] * in[i] - 1.5 + 0.1 * chain_noise(l, i, 9);
}

// Logarithms of likelihoods drift away, and what was added to one is never forgotten: beside what the states have
// become it is less and less, and within a loose tolerance soon.
static void drifting_is_no_forgetting(void **state) {
    (void)state;
    static const double all[1] = {1}, most[1] = {0.99};
    dpcr_context *context = solving_context(1);
    for (int i = 0; i < 4; i++) {
        chain c = chain_of(step_drifts, 100000, 2, i % 2 ? DPCR_F64 : DPCR_F32);
        c.parameters = all;
        const double tolerance = i < 2 ? 1e-6 : 4e-3;
        dpcri_contraction found = contraction(context, &c, tolerance);
        assert_int_equal(found.memory, DPCRI_MEMORY_KEEPS);
        assert_true(found.within == 0 && found.to_bits == 0);
        near(found.rate, 0, 1e-3);
        c.parameters = most;  // a hundred steps until the states are as large as they get, and it does forget
        found = contraction(context, &c, tolerance);
        assert_int_equal(found.memory, DPCRI_MEMORY_FORGETS);
        assert_in_range(found.within, 60, 1400);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_the_chain), cmocka_unit_test(shrinking_is_no_forgetting),
        cmocka_unit_test(late_forgetting_is_seen),      cmocka_unit_test(chaos_is_seen),
        cmocka_unit_test(drifting_is_no_forgetting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
