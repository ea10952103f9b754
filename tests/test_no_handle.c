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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),
        cmocka_unit_test(products_and_jacobians),
        cmocka_unit_test(filters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
