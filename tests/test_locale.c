// SPDX-License-Identifier: MIT
// Programs in a locale whose numbers have a comma: what they save is what others save, and they read it all.
#include <locale.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "deeppcr/deeppcr.h"

// ---- a locale, which machines need not have ----

// A glibc file of LC_NUMERIC: its magic number, how many entries, where each lies, and they: decimal point, thousands
// separator (none), grouping (none), the first two as wide characters, the character set.
static const unsigned char comma_numeric[] = {
    0x14, 0x11, 0x03, 0x20, 6, 0, 0, 0,   32, 0, 0, 0,   34, 0, 0, 0, 35, 0, 0, 0,   36,  0,   0,   0,   40,
    0,    0,    0,    44,   0, 0, 0, ',', 0,  0, 0, ',', 0,  0, 0, 0, 0,  0, 0, 'U', 'T', 'F', '-', '8', 0};

static char folder[] = P_tmpdir "/deeppcr-locale-XXXXXX", file[64];

static int make_locale(void **state) {
    char path[64];
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(path, sizeof path, "%s/comma", folder);
    if (mkdir(path, 0700) != 0) return -1;
    snprintf(path, sizeof path, "%s/comma/LC_NUMERIC", folder);
    FILE *out = fopen(path, "wb");
    if (!out) return -1;
    const size_t written = fwrite(comma_numeric, sizeof comma_numeric, 1, out);
    return fclose(out) == 0 && written == 1 ? setenv("LOCPATH", folder, 1) : -1;
}

static int remove_locale(void **state) {
    char path[64];
    (void)state;
    setlocale(LC_ALL, "C");
    unlink(file);
    snprintf(path, sizeof path, "%s/comma/LC_NUMERIC", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/comma", folder);
    rmdir(path);
    return rmdir(folder);
}

static void numbers_have(char point) {
    char text[8];
    assert_non_null(setlocale(LC_NUMERIC, point == ',' ? "comma" : "C"));
    snprintf(text, sizeof text, "%.1f", 1.5);
    assert_int_equal(text[1], point);
}

// For each way: saved with the one point, read with the other.
typedef struct way {
    char saved, read;
} way;
static const way ways[] = {{',', ','}, {',', '.'}, {'.', ','}};
enum { WAYS = sizeof ways / sizeof *ways };

static dpcr_context *open_context(void) {
    const dpcr_context_options options = {.size = sizeof options, .threads = 1};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

#define FINE(call, error) assert_string_equal((call) == DPCR_OK ? "" : (error)->text, "")

static void networks(void **state) {
    (void)state;
    dpcr_context *context = open_context();
    dpcr_error error = {0};
    for (const way *w = ways; w < ways + WAYS; w++) {
        const dpcr_model_options options = {.size = sizeof options,
                                            .architecture = DPCR_RESNET,
                                            .inputs = 3,
                                            .outputs = 2,
                                            .layers = 4,
                                            .width = 3,
                                            .scale = 0.75};
        dpcr_model *model = NULL, *again = NULL;
        numbers_have(w->saved);
        FINE(dpcr_model_create(context, &options, &model, &error), &error);
        FINE(dpcr_model_save(model, file, &error), &error);
        numbers_have(w->read);
        FINE(dpcr_model_load(context, file, &again, &error), &error);
        assert_true(dpcr_model_get_options(again)->scale == 0.75);
        dpcr_model_destroy(again);
        dpcr_model_destroy(model);
    }
    dpcr_context_destroy(context);
}

static void recurrent_networks(void **state) {
    (void)state;
    dpcr_context *context = open_context();
    dpcr_error error = {0};
    for (const way *w = ways; w < ways + WAYS; w++) {
        const dpcr_recurrent_options options = {
            .size = sizeof options, .kind = DPCR_GRU, .inputs = 2, .hidden = 3, .clip = 2.5};
        dpcr_recurrent *network = NULL, *again = NULL;
        numbers_have(w->saved);
        FINE(dpcr_recurrent_create(context, &options, &network, &error), &error);
        FINE(dpcr_recurrent_save(network, file, &error), &error);
        numbers_have(w->read);
        FINE(dpcr_recurrent_load(context, file, NULL, DPCR_GRU, &again, &error), &error);
        assert_true(dpcr_recurrent_get_options(again)->clip == 2.5);
        dpcr_recurrent_destroy(again);
        dpcr_recurrent_destroy(network);
    }
    dpcr_context_destroy(context);
}

static void denoisers(void **state) {
    (void)state;
    dpcr_context *context = open_context();
    dpcr_error error = {0};
    for (const way *w = ways; w < ways + WAYS; w++) {
        const dpcr_diffusion_options options = {.size = sizeof options,
                                                .rows = 2,
                                                .cols = 2,
                                                .width = 4,
                                                .hidden = 3,
                                                .depth = 1,
                                                .noise = {.size = sizeof options.noise, .beta_first = 1.5e-4}};
        dpcr_diffusion *model = NULL, *again = NULL;
        numbers_have(w->saved);
        FINE(dpcr_diffusion_create(context, &options, NULL, &model, &error), &error);
        FINE(dpcr_diffusion_save(model, file, &error), &error);
        numbers_have(w->read);
        FINE(dpcr_diffusion_load(context, file, &again, &error), &error);
        assert_true(dpcr_diffusion_get_options(again)->noise.beta_first == 1.5e-4);
        dpcr_diffusion_destroy(again);
        dpcr_diffusion_destroy(model);
    }
    dpcr_context_destroy(context);
}

// What was measured of a linear and of a nonlinear chain, and the machine's rates.
static void wisdom(void **state) {
    (void)state;
    enum { LENGTH = 600 };
    static float weight[4] = {0.25f, 0.125f, -0.125f, 0.25f}, x[LENGTH * 2];
    dpcr_error error = {0};
    for (const way *w = ways; w < ways + WAYS; w++) {
        dpcr_context *from = open_context(), *to = open_context();
        const dpcr_cell_options options = {.size = sizeof options,
                                           .kind = DPCR_CELL_DENSE,
                                           .length = LENGTH,
                                           .batch = 1,
                                           .width = 2,
                                           .weight = dpcr_array_make(weight, DPCR_F32, 2, (const int64_t[]){2, 2}),
                                           .input = dpcr_array_make(x, DPCR_F32, 3, (const int64_t[]){LENGTH, 1, 2})};
        const dpcr_chain_shape shape = {.size = sizeof shape,
                                        .length = LENGTH,
                                        .batch = 1,
                                        .transition = dpcr_transition_square(DPCR_DENSE, 2, 0),
                                        .dtype = DPCR_F32};
        dpcr_solve_options solve = {
            .size = sizeof solve, .planning = DPCR_PLANNING_MEASURE, .planning_seconds = 0.01, .rtol = 1.5e-5};
        dpcr_chain_options linear = {
            .size = sizeof linear, .planning = DPCR_PLANNING_MEASURE, .planning_seconds = 0.01, .tolerance = 1.5e-5};
        dpcr_machine before = {.size = sizeof before}, after = {.size = sizeof after};
        dpcr_steps steps = {.size = sizeof steps};
        dpcr_cell *cell = NULL;
        dpcr_solve_plan *plan = NULL, *again = NULL;
        dpcr_chain_plan *chain = NULL, *chain_again = NULL;
        FINE(dpcr_cell_create(from, &options, &cell, &error), &error);
        FINE(dpcr_cell_steps(cell, &steps, &error), &error);

        numbers_have(w->saved);
        FINE(dpcr_solve_plan_create(from, &steps, &solve, &plan, &error), &error);
        FINE(dpcr_chain_plan_create(from, &shape, &linear, &chain, &error), &error);
        FINE(dpcr_context_machine(from, &before, &error), &error);
        FINE(dpcr_wisdom_save(from, file, &error), &error);

        numbers_have(w->read);
        FINE(dpcr_wisdom_load(to, file, &error), &error);
        solve.planning = linear.planning = DPCR_PLANNING_WISDOM;
        FINE(dpcr_solve_plan_create(to, &steps, &solve, &again, &error), &error);
        assert_int_equal(dpcr_solve_plan_method(again), dpcr_solve_plan_method(plan));
        FINE(dpcr_chain_plan_create(to, &shape, &linear, &chain_again, &error), &error);
        FINE(dpcr_context_machine(to, &after, &error), &error);
        assert_true(after.flops > 0.999999 * before.flops && after.flops < 1.000001 * before.flops);
        assert_true(after.latency > 0.999999 * before.latency && after.latency < 1.000001 * before.latency);

        dpcr_solve_plan_destroy(again);
        dpcr_solve_plan_destroy(plan);
        dpcr_chain_plan_destroy(chain_again);
        dpcr_chain_plan_destroy(chain);
        dpcr_cell_destroy(cell);
        dpcr_context_destroy(to);
        dpcr_context_destroy(from);
    }
}

static void profiles(void **state) {
    (void)state;
    static const char graph[] =
        "node1 -- Linear -- forward_compute_time=1.500, backward_compute_time=2.500, activation_size=100.5, "
        "parameter_size=10.0\n";
    dpcr_context *context = open_context();
    dpcr_error error = {0};
    dpcr_profile profile = {0};
    numbers_have(',');
    FINE(dpcr_profile_read(context, graph, strlen(graph), &profile, &error), &error);
    assert_true(profile.forward[0] == 1.5 && profile.activation_bytes[0] == 100.5);
    dpcr_profile_free(context, &profile);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(networks), cmocka_unit_test(recurrent_networks), cmocka_unit_test(denoisers),
        cmocka_unit_test(wisdom),   cmocka_unit_test(profiles),
    };
    return cmocka_run_group_tests(tests, make_locale, remove_locale);
}
