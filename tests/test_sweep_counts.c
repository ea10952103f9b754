// SPDX-License-Identifier: MIT
// How many sweeps Newton needs on networks as they are initialised: the figures that the documentation states. Updates
// without the final check, largest of 20 seeds (of 4 where the networks are large; DEEPPCR_TEST_SEEDS=N: of N),
// tolerance 1e-4 on residuals and on corrections.
#include "sampled.h"
#include "solving.h"

static int seeds_of(int64_t length, int64_t width) {
    const char *told = getenv("DEEPPCR_TEST_SEEDS");
    if (told) return atoi(told);
    return TESTS_SANITIZED ? 1 : length * width > 10000 ? 4 : 20;
}

static int sweeps_of(dpcr_context *context, const dpcr_model_options *options, double *error) {
    dpcr_model *model = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_error text = {0};
    if (dpcr_model_create(context, options, &model, &text) != DPCR_OK) fail_msg("%s", text.text);
    if (dpcr_model_steps(model, 1, &steps, &text) != DPCR_OK) fail_msg("%s", text.text);
    chain c = {.length = options->layers, .batch = 1, .width = options->width, .dtype = options->dtype};
    double *z0 = calloc((size_t)c.width, sizeof *z0);
    for (int64_t i = 0; i < c.width; i++) z0[i] = 2 * chain_noise(i, (int64_t)options->seed, 11);
    const dpcr_solve_options newton = {.size = sizeof newton,
                                       .method = DPCR_METHOD_NEWTON,
                                       .scheme = DPCR_SCHEME_SEQUENTIAL,
                                       .backward = DPCR_SCHEME_SEQUENTIAL,
                                       .atol = 1e-4,
                                       .rtol = 1e-4};
    const dpcr_solve_options loop = {
        .size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    solved r = solve_steps(context, &steps, &c, z0, &newton, NULL, 0),
           q = solve_steps(context, &steps, &c, z0, &loop, NULL, 0);
    assert_int_equal(r.status, DPCR_OK);
    assert_int_equal(r.report.reason, DPCR_REASON_CONVERGED);
    *error = largest_error(&c, r.z, q.z);
    const int sweeps = r.report.sweeps;
    solved_free(&r), solved_free(&q);
    free(z0);
    dpcr_model_destroy(model);
    return sweeps;
}

static void counts(dpcr_architecture architecture, dpcr_activation activation, int64_t length, int64_t width,
                   int most) {
    const dpcr_context_options one = {.size = sizeof one, .threads = 1};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&one, &context, NULL), DPCR_OK);
    int largest = 0;
    double worst = 0;
    const int seeds = seeds_of(length, width);
    for (int seed = 0; seed < seeds; seed++) {
        const dpcr_model_options options = {.size = sizeof options,
                                            .architecture = architecture,
                                            .dtype = DPCR_F64,
                                            .layers = length,
                                            .width = width,
                                            .activation = activation,
                                            .seed = (uint64_t)seed};
        double error;
        const int sweeps = sweeps_of(context, &options, &error);
        if (sweeps > largest) largest = sweeps;
        if (error > worst) worst = error;
    }
    print_message("%s %s, %d layers, width %d: %d sweeps, error %.1e\n", architecture == DPCR_MLP ? "mlp" : "resnet",
                  dpcr_activation_name(activation), (int)length, (int)width, largest, worst);
    if (largest > most) fail_msg("wanted at most %d sweeps", most);
    if (worst > 1e-4) fail_msg("wanted an error of at most 1e-4");
    dpcr_context_destroy(context);
}

static void plain_networks(void **state) {
    (void)state;
    const dpcr_activation activations[] = {DPCR_ACT_RELU, DPCR_ACT_TANH};
    const int64_t widths[] = {2, 8, 32}, lengths[] = {64, 1024, 4096};
    for (int a = 0; a < 2; a++)
        for (int w = 0; w < 3; w++)
            for (int l = 0; l < 3; l++) counts(DPCR_MLP, activations[a], lengths[l], widths[w], 5);
}

static void residual_networks(void **state) {
    (void)state;
    const dpcr_activation activations[] = {DPCR_ACT_RELU, DPCR_ACT_TANH};
    const int64_t widths[] = {2, 8, 32}, lengths[] = {64, 1024, 4096};
    for (int a = 0; a < 2; a++)
        for (int w = 0; w < 3; w++)
            for (int l = 0; l < 3; l++)
                counts(DPCR_RESNET, activations[a], lengths[l], widths[w], lengths[l] > 1024 ? 9 : 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain_networks), cmocka_unit_test(residual_networks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
