// SPDX-License-Identifier: MIT
// What a measurement of a linear chain taught is known again for the transitions that it was made with, and for no
// others of the same shape: overlap, which pays where a chain forgets, is no choice for one that keeps its past.
#include "linear_common.h"

enum { LENGTH = 20000, WIDTH = 2, VALUES = WIDTH * WIDTH };

static dpcr_status plan_for(dpcr_context *context, const float *a, int64_t step, dpcr_planning planning,
                            dpcr_chain_plan **plan) {
    dpcr_array typical = dpcr_array_make((void *)(uintptr_t)a, DPCR_F32, 3, (const int64_t[]){LENGTH, 1, VALUES});
    typical.strides[0] = step;
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = LENGTH,
                                    .batch = 1,
                                    .transition = dpcr_transition_square(DPCR_DENSE, WIDTH, 0),
                                    .dtype = DPCR_F32};
    const dpcr_chain_options options = {
        .size = sizeof options, .planning = planning, .planning_seconds = 0.02, .typical = &typical};
    return dpcr_chain_plan_create(context, &shape, &options, plan, NULL);
}

static void fill_turns(float *a, int64_t step, double factor) {
    for (int64_t l = 0; l < LENGTH; l++) {
        const double angle = 0.3 + (double)(l % 11);
        const double turn[VALUES] = {cos(angle), -sin(angle), sin(angle), cos(angle)};
        for (int64_t i = 0; i < VALUES; i++) a[l * step + i] = (float)(factor * turn[i]);
    }
}

static void others_are_measured_anew(void **state) {
    (void)state;
    enum { WIDE = VALUES + 3 };
    float *forgets = malloc(LENGTH * VALUES * sizeof *forgets), *keeps = malloc(LENGTH * VALUES * sizeof *keeps);
    float *apart = calloc(LENGTH * WIDE, sizeof *apart);
    fill_turns(forgets, VALUES, 0.5), fill_turns(keeps, VALUES, 1), fill_turns(apart, WIDE, 0.5);
    const dpcr_context_options options = {.size = sizeof options, .threads = 1};
    dpcr_context *context = NULL;
    dpcr_chain_plan *plan = NULL, *again = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    assert_int_equal(plan_for(context, forgets, VALUES, DPCR_PLANNING_MEASURE, &plan), DPCR_OK);
    assert_int_equal(plan_for(context, forgets, VALUES, DPCR_PLANNING_WISDOM, &again), DPCR_OK);
    assert_int_equal(dpcr_chain_plan_scheme(again), dpcr_chain_plan_scheme(plan));
    dpcr_chain_plan_destroy(again);
    assert_int_equal(plan_for(context, apart, WIDE, DPCR_PLANNING_WISDOM, &again), DPCR_OK);  // the same numbers
    dpcr_chain_plan_destroy(again);
    assert_int_equal(plan_for(context, keeps, VALUES, DPCR_PLANNING_WISDOM, &again), DPCR_ERROR_UNSUPPORTED);
    assert_int_equal(plan_for(context, keeps, VALUES, DPCR_PLANNING_MEASURE, &again), DPCR_OK);
    assert_non_null(strstr(dpcr_chain_plan_sentence(again), "measured"));
    assert_int_not_equal(dpcr_chain_plan_scheme(again), DPCR_SCHEME_OVERLAP);
    dpcr_chain_plan_destroy(again), dpcr_chain_plan_destroy(plan);
    dpcr_context_destroy(context);
    free(forgets), free(keeps), free(apart);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_measured_anew),
    };
    cmocka_set_test_filter(getenv("DEEPPCR_TEST_FILTER"));  // a pattern picks tests by name
    return cmocka_run_group_tests(tests, NULL, NULL);
}
