// SPDX-License-Identifier: MIT
// What is asked of a handle that is NULL, as after a call that failed, is answered by nothing.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>

#include "deeppcr/deeppcr.h"

static void plans(void **state) {
    (void)state;
    assert_null(dpcr_bppsa_plan_cost(NULL));
    assert_null(dpcr_bppsa_plan_level(NULL, 0));
    assert_int_equal(dpcr_bppsa_plan_levels(NULL), 0);
    assert_int_equal(dpcr_bppsa_plan_workspace(NULL), 0);
    assert_null(dpcr_chain_plan_options(NULL));
    assert_int_equal(dpcr_chain_plan_workspace(NULL), 0);
    assert_null(dpcr_solve_plan_options(NULL));
    assert_int_equal(dpcr_solve_plan_workspace(NULL), 0);
    assert_int_equal(dpcr_recurrent_plan_workspace(NULL), 0);
    assert_int_equal(dpcr_recurrent_plan_tape(NULL), 0);
    dpcr_bppsa_plan_destroy(NULL);
    dpcr_chain_plan_destroy(NULL);
    dpcr_solve_plan_destroy(NULL);
    dpcr_recurrent_plan_destroy(NULL);
}

static void products_and_jacobians(void **state) {
    (void)state;
    int64_t size[2] = {7, 7};
    assert_null(dpcr_product_transition(NULL));
    assert_true(dpcr_product_flops(NULL) == 0);
    assert_null(dpcr_jacobian_transition(NULL));
    assert_int_equal(dpcr_jacobian_shared(NULL), 0);
    dpcr_jacobian_output(NULL, size);
    assert_int_equal(size[0], 0);
    assert_int_equal(size[1], 0);
    dpcr_jacobian_output(NULL, NULL);
    assert_int_equal(dpcr_transition_values(NULL), 0);
    assert_int_equal(dpcr_transition_capabilities(NULL), 0);
    assert_true(dpcr_transition_apply_flops(NULL) == 0 && dpcr_transition_compose_flops(NULL) == 0);
    const dpcr_transition unfinished = {.structure = DPCR_CSR, .rows = 3, .cols = 3};
    assert_int_equal(dpcr_transition_values(&unfinished), 0);
    dpcr_product_destroy(NULL);
    dpcr_jacobian_destroy(NULL);
}

static void filters(void **state) {
    (void)state;
    assert_int_equal(dpcr_filter_sections(NULL), 0);
    assert_int_equal(dpcr_filter_order(NULL), 0);
    assert_int_equal(dpcr_filter_memory(NULL), 0);
    dpcr_filter_destroy(NULL);
}

static void schedules(void **state) {
    (void)state;
    char text[8] = "before";
    const dpcr_action action = {.stage = 3, .part = 1};
    const dpcr_schedule_costs costs = dpcr_profile_costs(NULL);
    assert_int_equal(costs.size, sizeof costs);
    assert_true(costs.forward == 0 && !costs.stage_forward);
    assert_string_equal(dpcr_action_text(NULL, text, sizeof text), "");
    assert_string_equal(dpcr_action_text(&action, NULL, 8), "");
    assert_ptr_equal(dpcr_action_text(&action, text, 0), text);
    assert_string_equal(dpcr_action_text(&action, text, sizeof text), "3F0.1");
    dpcr_schedule_free(NULL, NULL);
    dpcr_simulation_free(NULL, NULL);
    dpcr_profile_free(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),
        cmocka_unit_test(products_and_jacobians),
        cmocka_unit_test(filters),
        cmocka_unit_test(schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
