// SPDX-License-Identifier: MIT
// What is asked of a handle that is NULL, as after a call that failed, is answered by nothing.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

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

// What is wrong is said of what it is.
static void words(void **state) {
    (void)state;
    dpcr_error error = {0};
    double time;
    dpcr_schedule_kind kind;
    assert_int_equal(dpcr_recurrent_parameter(NULL, 0, NULL, 0, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "recurrent_parameter: no network given");
    assert_int_equal(dpcr_sampler_step(NULL, 0, &time, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "sampler_step: sampler is NULL");
    assert_int_equal(dpcr_schedule_find("1F1B", &kind, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "no schedule '1F1B'; there are gpipe, 1f1b, "));
    assert_non_null(strstr(error.text, "layerpipe, best"));
}

// A report whose size is not set could tell nothing, so it is refused before anything is computed.
static void reports_without_size(void **state) {
    (void)state;
    enum { L = 5 };
    double w[1] = {0.5}, x[L] = {1, 1, 1, 1, 1}, start[1] = {0}, z[L] = {0}, direct[L] = {0};
    const int64_t shape[] = {L, 1, 1};
    const dpcr_array z0 = dpcr_array_make(start, DPCR_F64, 2, shape + 1), path = dpcr_array_make(z, DPCR_F64, 3, shape),
                     g = dpcr_array_make(direct, DPCR_F64, 3, shape);
    const dpcr_cell_options options = {.size = sizeof options,
                                       .kind = DPCR_CELL_DIAGONAL,
                                       .dtype = DPCR_F64,
                                       .length = L,
                                       .batch = 1,
                                       .width = 1,
                                       .weight = dpcr_array_make(w, DPCR_F64, 1, shape + 1),
                                       .input = dpcr_array_make(x, DPCR_F64, 3, shape)};
    dpcr_context *context = NULL;
    dpcr_cell *cell = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    dpcr_solve_report report = {0};
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    assert_int_equal(dpcr_cell_create(context, &options, &cell, NULL), DPCR_OK);
    assert_int_equal(dpcr_cell_steps(cell, &steps, NULL), DPCR_OK);
    assert_int_equal(dpcr_solve_plan_create(context, &steps, NULL, &plan, NULL), DPCR_OK);
    const size_t bytes = (dpcr_solve_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = aligned_alloc(64, bytes + 64);
    assert_int_equal(dpcr_solve_execute(plan, &z0, &path, NULL, workspace, bytes, &report, &error),
                     DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "solve: the report's size is 0, wanted sizeof(dpcr_solve_report)");
    assert_true(z[L - 1] == 0);
    report.size = sizeof report;
    assert_int_equal(dpcr_solve_execute(plan, &z0, &path, NULL, workspace, bytes, &report, &error), DPCR_OK);
    assert_true(report.reason > 0 && z[L - 1] != 0);
    report.size = sizeof report.size;
    assert_int_equal(
        dpcr_solve_backward(plan, &z0, &path, NULL, &g, NULL, NULL, NULL, workspace, bytes, &report, &error),
        DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "backward: the report's size is 8, wanted sizeof(dpcr_solve_report)");
    dpcr_solve_plan_destroy(plan);
    dpcr_cell_destroy(cell);
    free(workspace);

    // Of a network each of them, the last too.
    const dpcr_recurrent_options two = {
        .size = sizeof two, .kind = DPCR_GRU, .dtype = DPCR_F64, .inputs = 1, .hidden = 1, .layers = 2};
    const dpcr_recurrent_plan_options run = {.size = sizeof run, .length = L, .batch = 1};
    const dpcr_recurrent_pass pass = {.size = sizeof pass, .x = options.input, .y = path};
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_plan *passes = NULL;
    dpcr_solve_report reports[2] = {{.size = sizeof reports[0]}};
    assert_int_equal(dpcr_recurrent_create(context, &two, &network, NULL), DPCR_OK);
    assert_int_equal(dpcr_recurrent_plan_create(network, &run, &passes, NULL), DPCR_OK);
    const size_t wanted = (dpcr_recurrent_plan_workspace(passes) + 63) / 64 * 64;
    workspace = aligned_alloc(64, wanted + 64);
    assert_int_equal(dpcr_recurrent_execute(passes, &pass, NULL, workspace, wanted, reports, &error),
                     DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "recurrent_execute: the report's size is 0, wanted sizeof(dpcr_solve_report)");
    reports[1].size = sizeof reports[1];
    assert_int_equal(dpcr_recurrent_execute(passes, &pass, NULL, workspace, wanted, reports, &error), DPCR_OK);
    assert_true(reports[1].reason > 0);
    dpcr_recurrent_plan_destroy(passes);
    dpcr_recurrent_destroy(network);
    free(workspace);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),   cmocka_unit_test(products_and_jacobians),
        cmocka_unit_test(filters), cmocka_unit_test(schedules),
        cmocka_unit_test(words),   cmocka_unit_test(reports_without_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
