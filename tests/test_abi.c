// SPDX-License-Identifier: MIT
// Structs that lie within others keep their size, and what lies behind them its place: a program built on an older
// header is served (docs/design.md). What one of them gains takes the place of its reserved numbers. On a machine of 64
// bits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>

#include "deeppcr/deeppcr.h"

#define SIZE(STRUCT) "sizeof(" #STRUCT ")", sizeof(STRUCT)
#define BEHIND(STRUCT, FIELD) "offsetof(" #STRUCT ", " #FIELD ")", offsetof(STRUCT, FIELD)

static const struct {
    const char *what;
    size_t got, wanted;
} places[] = {
    {SIZE(dpcr_array), 120},
    {SIZE(dpcr_device), 8},
    {SIZE(dpcr_error), 520},
    {SIZE(dpcr_transition), 40},
    {SIZE(dpcr_solve_options), 256},
    {SIZE(dpcr_optimiser_options), 112},
    {SIZE(dpcr_recurrent_options), 120},
    {SIZE(dpcr_noise_options), 72},
    {SIZE(dpcr_train_phases), 64},
    {BEHIND(dpcr_recurrent_plan_options, sample), 296},
    {BEHIND(dpcr_recurrent_ranks, recompute), 280},
    {BEHIND(dpcr_chain_shape, dtype), 64},
    {BEHIND(dpcr_sequence_options, symbols), 128},
    {BEHIND(dpcr_swap_options, moment), 144},
    {BEHIND(dpcr_train_options, solve), 136},
    {BEHIND(dpcr_train_options, seed), 392},
    {BEHIND(dpcr_train_state, threads), 176},
    {BEHIND(dpcr_sampler_options, spacing), 88},
    {BEHIND(dpcr_diffusion_options, seed), 136},
    {BEHIND(dpcr_learn_options, seed), 136},
};

static void structs_keep_their_places(void **state) {
    (void)state;
    if (sizeof(void *) != 8) skip();
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].got != places[i].wanted)
            fail_msg("%s is %zu, wanted %zu", places[i].what, places[i].got, places[i].wanted);
    // May grow: nothing lies behind it.
    assert_int_equal(offsetof(dpcr_sequence_train_options, train) + sizeof(dpcr_train_options),
                     sizeof(dpcr_sequence_train_options));
}

// What a newer header means by them is not known here.
static void reserved_numbers_are_refused(void **state) {
    (void)state;
    dpcr_context *context = NULL;
    dpcr_error error = {0};
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    const dpcr_solve_options solve = {.size = sizeof solve, .reserved = {[7] = 1}};
    const dpcr_steps steps = {.size = sizeof steps};
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &solve, &plan, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "solve: options: reserved[7] is 1, wanted 0");
    const dpcr_recurrent_options recurrent = {.size = sizeof recurrent, .reserved = {[3] = 2}};
    dpcr_recurrent *network = NULL;
    assert_int_equal(dpcr_recurrent_create(context, &recurrent, &network, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "recurrent_create: reserved[3] is 2, wanted 0");
    const dpcr_noise_options noise = {.size = sizeof noise, .reserved = {3}};
    assert_int_equal(dpcr_noise_fill(&noise, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "noise schedule: reserved[0] is 3, wanted 0");
    const dpcr_optimiser_options sgd = {.size = sizeof sgd, .kind = DPCR_SGD, .rate = 1, .reserved = {[1] = 4}};
    dpcr_optimiser *optimiser = NULL;
    assert_int_equal(dpcr_optimiser_create(context, &sgd, DPCR_F32, 1, &optimiser, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "optimiser options: reserved[1] is 4, wanted 0");
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(structs_keep_their_places),
                                       cmocka_unit_test(reserved_numbers_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
