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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(structs_keep_their_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
