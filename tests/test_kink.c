// SPDX-License-Identifier: MIT
// ReLU's kink: chains whose units are closed at a first guess and open in the chain, or the other way round, are not
// called solved, by windows, by sweeps over all states or by auto. Beside the loop, over starts far below the
// tolerance.
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "solving.h"

#include "deeppcr/deeppcr.h"
#include "noise.h"
#include "sampled.h"

typedef struct kinked {
    dpcr_dtype dtype;
    int64_t width, length, own;  // own: each step has its W
    double scale, tolerance;     // 0: no residual; the default
    double *weight, *x, *z0;
} kinked;

static kinked make(dpcr_dtype dtype, int64_t w, int64_t length, bool own, double start) {
    kinked k = {.dtype = dtype, .width = w, .length = length, .own = own};
    k.weight = calloc((size_t)((own ? length : 1) * w * w), sizeof(double));
    k.x = calloc((size_t)(length * w), sizeof(double)), k.z0 = calloc((size_t)w, sizeof(double));
    for (int64_t i = 0; i < w; i++) k.z0[i] = start * (double)(1 + i % 3);
    return k;
}

static void *as(dpcr_dtype dtype, double *numbers, int64_t count) {
    for (int64_t i = 0; dtype == DPCR_F32 && i < count; i++) ((float *)numbers)[i] = (float)numbers[i];
    return numbers;
}

typedef struct way {
    dpcr_method method;
    dpcr_scheme scheme;  // AUTO: by windows, where there are some
    int64_t window;
} way;

static const way ways[] = {
    {.method = DPCR_METHOD_NEWTON},
    {.method = DPCR_METHOD_SHOOTING},
    {.method = DPCR_METHOD_AUTO},
    {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL},
    {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR},
    {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL, .window = 11},
    {.method = DPCR_METHOD_SHOOTING, .scheme = DPCR_SCHEME_SEQUENTIAL},
};

// Every way: where it says that it agrees with the loop, it does.
static void claims(const char *what, kinked *k) {
    const int64_t w = k->width, L = k->length, shape[3] = {L, w, w}, states[3] = {L, 1, w};
    const int64_t weights = (k->own ? L : 1) * w * w;
    dpcr_context *const context = solving_context(1);
    const dpcr_cell_options o = {
        .size = sizeof o,
        .kind = DPCR_CELL_DENSE,
        .dtype = k->dtype,
        .length = L,
        .batch = 1,
        .width = w,
        .activation = DPCR_ACT_RELU,
        .scale = k->scale,
        .weight = dpcr_array_make(as(k->dtype, k->weight, weights), k->dtype, k->own ? 3 : 2, shape + !k->own),
        .input = dpcr_array_make(as(k->dtype, k->x, L * w), k->dtype, 3, states)};
    dpcr_cell *cell = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    assert_int_equal(dpcr_cell_create(context, &o, &cell, NULL), DPCR_OK);
    assert_int_equal(dpcr_cell_steps(cell, &steps, NULL), DPCR_OK);
    assert_int_equal(steps.window != NULL, w <= 4);
    void *const z0 = as(k->dtype, k->z0, w);
    const chain c = {.length = L, .batch = 1, .width = w, .dtype = k->dtype};
    const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
    solved by_loop = solve_steps(context, &steps, &c, z0, &loop, NULL, 0);
    for (size_t m = 0; m < sizeof ways / sizeof *ways; m++) {
        const dpcr_solve_options by = {.size = sizeof by,
                                       .method = ways[m].method,
                                       .scheme = ways[m].scheme,
                                       .window = ways[m].window,
                                       .atol = k->tolerance,
                                       .rtol = k->tolerance};
        solved s = solve_steps(context, &steps, &c, z0, &by, NULL, 0);
        assert_int_equal(s.status, DPCR_OK);
        const double error = largest_error(&c, s.z, by_loop.z), most = fmax(3 * k->tolerance, 1e-4);
        if (s.reasons[0] != DPCR_REASON_RESIDUAL_ONLY && !(error <= most))
            fail_msg("%s, %s, scheme %d, window %d, dtype %d, w %d: reason %d, and off by %g", what,
                     dpcr_method_name(ways[m].method), (int)ways[m].scheme, (int)ways[m].window, (int)k->dtype, (int)w,
                     s.reasons[0], error);
        solved_free(&s);
    }
    solved_free(&by_loop);
    dpcr_cell_destroy(cell);
    dpcr_context_destroy(context);
    free(k->weight), free(k->x), free(k->z0);
}

// W so many times a cycle of the components: from the first guess, 0, nothing grows.
static void closed_units_open(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int64_t w = 1; w <= 6; w++)
            for (int slow = 0; slow < 2; slow++) {
                kinked k = make((dpcr_dtype)dtype, w, slow ? 1500 : 20, false, 1e-9);
                for (int64_t i = 0; i < w; i++) k.weight[i * w + (i + 1) % w] = slow ? 1.02 : 5;
                k.tolerance = 1e-4;
                claims(slow ? "slow growth" : "growth", &k);
            }
}

// A tiny number that grows beside a large one that stays: each counts by itself.
static void tiny_numbers_grow_beside_large_ones(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int slow = 0; slow < 2; slow++) {
            kinked k = make((dpcr_dtype)dtype, 2, slow ? 1500 : 20, false, dtype == DPCR_F32 ? 1e-9 : 1e-17);
            k.weight[0] = 1, k.weight[3] = slow ? dtype == DPCR_F32 ? 1.02 : 1.04 : dtype == DPCR_F32 ? 5 : 12;
            k.z0[0] = 1;
            k.tolerance = 1e-4;
            claims("beside", &k);
        }
}

// A chain that dies at every 32nd step, of which the ends of chunks are.
static void dead_chains_stay_dead(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int fine = 0; fine < 2; fine++) {
            kinked k = make((dpcr_dtype)dtype, 1, 1500, false, fine ? 1e-12 : 1e-6);
            k.weight[0] = 1.02;
            for (int64_t l = 31; l < k.length; l += 32) k.x[l] = fine ? -1e-12 : -9.7e-6;
            k.tolerance = fine ? 0 : 2.1e-4;
            claims(fine ? "dead, default tolerance" : "dead", &k);
        }
}

// With the residual an open unit of W = -1 takes all of an error away, and a closed one keeps it.
static void residuals_keep_what_opens(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
        kinked k = make((dpcr_dtype)dtype, 1, 128, true, 1e-11);
        for (int64_t l = 0; l < k.length; l++) k.weight[l] = l % 2 ? 1 : -1;
        k.scale = 1;
        claims("residual", &k);
        for (int run = 0; run < 40; run++) {
            if (!sampled(run)) continue;
            kinked drawn = make((dpcr_dtype)dtype, 1 + run % 6, 128, true, 1e-9);
            for (int64_t i = 0; i < drawn.length * drawn.width * drawn.width; i++) drawn.weight[i] = noise(1.7);
            drawn.scale = 0.5;
            claims("drawn", &drawn);
        }
    }
}

// Of a tiny state all units may be open, and W W = 0; with one closed it grows.
static void products_that_vanish_are_no_agreement(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
        kinked k = make((dpcr_dtype)dtype, 2, 200, false, 0);
        k.weight[0] = 1.2, k.weight[1] = 1.44, k.weight[2] = -1, k.weight[3] = -1.2;
        k.z0[0] = 1e-11;
        claims("products", &k);
    }
}

// An RNN of ReLUs from a state far below the tolerance, without inputs: as closed_units_open.
static void networks_open(void **state) {
    (void)state;
    enum { T = 24, H = 6 };
    dpcr_context *const context = solving_context(1);
    const dpcr_recurrent_options options = {
        .size = sizeof options, .kind = DPCR_RNN_RELU, .dtype = DPCR_F64, .inputs = 1, .hidden = H, .no_bias = 1};
    dpcr_recurrent *network = NULL;
    assert_int_equal(dpcr_recurrent_create(context, &options, &network, NULL), DPCR_OK);
    int64_t count = 0;
    double *const weights = dpcr_recurrent_vector(network, &count);
    assert_int_equal(count, H + H * H);
    memset(weights, 0, (size_t)count * sizeof *weights);
    for (int64_t i = 0; i < H; i++) weights[H + i * H + (i + 1) % H] = 5;
    double x[T] = {0}, h0[H], y[2][T * H];
    for (int64_t i = 0; i < H; i++) h0[i] = 1e-14;
    const int64_t in[3] = {T, 1, 1}, first[3] = {1, 1, H}, out[3] = {T, 1, H};
    for (int newton = 0; newton < 2; newton++) {
        const dpcr_recurrent_plan_options by = {
            .size = sizeof by,
            .length = T,
            .batch = 1,
            .solve = {.size = sizeof by.solve, .method = newton ? DPCR_METHOD_NEWTON : DPCR_METHOD_SEQUENTIAL}};
        const dpcr_recurrent_pass pass = {.size = sizeof pass,
                                          .x = dpcr_array_make(x, DPCR_F64, 3, in),
                                          .h0 = dpcr_array_make(h0, DPCR_F64, 3, first),
                                          .y = dpcr_array_make(y[newton], DPCR_F64, 3, out)};
        dpcr_recurrent_plan *plan = NULL;
        dpcr_error error = {0};
        if (dpcr_recurrent_plan_create(network, &by, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
        const size_t bytes = dpcr_recurrent_plan_workspace(plan);
        void *const workspace = solving_workspace(bytes);
        assert_int_equal(dpcr_recurrent_execute(plan, &pass, NULL, workspace, bytes, NULL, &error), DPCR_OK);
        free(workspace);
        dpcr_recurrent_plan_destroy(plan);
    }
    assert_true(y[0][T * H - 1] > 100);
    for (int64_t i = 0; i < T * H; i++) assert_true(fabs(y[1][i] - y[0][i]) <= 1e-12 * fabs(y[0][i]));
    dpcr_recurrent_destroy(network);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_units_open),
        cmocka_unit_test(tiny_numbers_grow_beside_large_ones),
        cmocka_unit_test(dead_chains_stay_dead),
        cmocka_unit_test(residuals_keep_what_opens),
        cmocka_unit_test(products_that_vanish_are_no_agreement),
        cmocka_unit_test(networks_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
