// SPDX-License-Identifier: MIT
// Optimisers: PyTorch's values, the schedule, the same bits at every level and for any number of threads, refusals.

// cmocka.h wants the first three before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "deeppcr/train.h"
#include "fixtures/optimiser_fixtures.h"
#include "kern/train_kernels.h"
#include "train/optimiser.h"

enum { CASES = sizeof fixtures / sizeof *fixtures };

static dpcr_context *make_context(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static dpcr_optimiser_options fixture_options(int i) {
    return (dpcr_optimiser_options){.size = sizeof(dpcr_optimiser_options),
                                    .kind = fixtures[i].kind,
                                    .rate = fixtures[i].rate,
                                    .momentum = fixtures[i].momentum,
                                    .beta1 = fixtures[i].beta1,
                                    .beta2 = fixtures[i].beta2,
                                    .epsilon = fixtures[i].epsilon,
                                    .weight_decay = fixtures[i].weight_decay,
                                    .warm_up = fixtures[i].warm_up,
                                    .total = fixtures[i].total};
}

static void put(dpcr_dtype dtype, void *at, int i, double value) {
    if (dtype == DPCR_F64)
        ((double *)at)[i] = value;
    else
        ((float *)at)[i] = (float)value;
}

static double get(dpcr_dtype dtype, const void *at, int i) {
    return dtype == DPCR_F64 ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

// The formulas of make_optimiser_fixtures.py.
static double start_value(int i) { return (i - 2) * 0.75 + 0.125; }
static double gradient_value(int step, int i) {
    if (i == 4 && step < 3) return 0;
    const double value = ((step * 7 + i * 13) % 29 - 14) / 64.0;
    return i == 3 ? value / 1048576 : value;
}

// The difference allowed grows with the steps only by rounding: in float a few ulp of the largest that the parameter
// was.
static void run_fixture(int i, dpcr_dtype dtype) {
    dpcr_context *context = make_context(1);
    dpcr_optimiser *optimiser = NULL;
    dpcr_error error = {0};
    double parameters[FIXTURE_COUNT], gradients[FIXTURE_COUNT];
    const dpcr_optimiser_options options = fixture_options(i);
    assert_int_equal(dpcr_optimiser_create(context, &options, dtype, FIXTURE_COUNT, &optimiser, &error), DPCR_OK);
    for (int j = 0; j < FIXTURE_COUNT; j++) put(dtype, parameters, j, start_value(j));
    for (int step = 0; step < FIXTURE_STEPS; step++) {
        for (int j = 0; j < FIXTURE_COUNT; j++) put(dtype, gradients, j, gradient_value(step, j));
        assert_int_equal(dpcr_optimiser_step(optimiser, parameters, gradients, &error), DPCR_OK);
        for (int j = 0; j < FIXTURE_COUNT; j++) {
            const double wanted = dtype == DPCR_F64 ? fixtures[i].f64[step][j] : fixtures[i].f32[step][j];
            const double got = get(dtype, parameters, j);
            const double allowed =
                dtype == DPCR_F64 ? 1e-12 : 4 * (double)FLT_EPSILON * fmax(fabs(start_value(j)), 0.5);
            if (!(fabs(got - wanted) <= allowed))
                fail_msg("case %d, %s, step %d, parameter %d: got %.17g, wanted %.17g", i, dpcr_dtype_name(dtype),
                         step + 1, j, got, wanted);
            assert_true(get(dtype, gradients, j) == gradient_value(step, j));
        }
    }
    dpcr_optimiser_destroy(optimiser);
    dpcr_context_destroy(context);
}

static void optimisers_give_pytorchs_values(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        run_fixture(i, DPCR_F64);
        run_fixture(i, DPCR_F32);
    }
}

static void the_schedule_gives_pytorchs_rates(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    for (int i = 0; i < CASES; i++) {
        dpcr_optimiser *optimiser = NULL;
        const dpcr_optimiser_options options = fixture_options(i);
        assert_int_equal(dpcr_optimiser_create(context, &options, DPCR_F32, 1, &optimiser, NULL), DPCR_OK);
        for (int step = 1; step <= FIXTURE_STEPS; step++) {
            const double got = dpcr_optimiser_rate(optimiser, step), wanted = fixtures[i].rates[step - 1];
            assert_true(fabs(got - wanted) <= 1e-14 * options.rate);
        }
        if (options.total) assert_true(dpcr_optimiser_rate(optimiser, options.total + 1) == 0);
        for (int64_t step = -1; step <= 0; step++) assert_true(dpcr_optimiser_rate(optimiser, step) == 0);
        dpcr_optimiser_destroy(optimiser);
    }
    dpcr_context_destroy(context);
}

static void warm_up_alone_ends_at_a_constant_rate(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_optimiser *optimiser = NULL;
    const dpcr_optimiser_options options = {.size = sizeof options, .kind = DPCR_SGD, .rate = 0.5, .warm_up = 5};
    assert_int_equal(dpcr_optimiser_create(context, &options, DPCR_F64, 0, &optimiser, NULL), DPCR_OK);
    const double wanted[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5};
    for (int step = 1; step <= 7; step++)
        assert_true(fabs(dpcr_optimiser_rate(optimiser, step) - wanted[step - 1]) < 1e-15);
    assert_true(dpcr_optimiser_rate(optimiser, 1000000) == 0.5);
    assert_int_equal(dpcr_optimiser_step(optimiser, NULL, NULL, NULL), DPCR_OK);
    dpcr_optimiser_destroy(optimiser);
    dpcr_context_destroy(context);
}

// ---- the same bits ----

static double wobble(int64_t i, int salt) {
    return sin((double)(i * 37 + salt * 101 + 1)) * pow(2, (double)((i * 7 + salt) % 21 - 14));
}

// Ten steps on `count` numbers; the result belongs to the caller.
static void *run_steps(dpcr_context *context, const dpcr_optimiser_options *options, dpcr_dtype dtype, int64_t count,
                       bool clear) {
    dpcr_optimiser *optimiser = NULL;
    assert_int_equal(dpcri_optimiser_create(context, options, dtype, count, &optimiser, NULL), DPCR_OK);
    void *p = calloc((size_t)count + 1, 8), *g = calloc((size_t)count + 1, 8);
    for (int64_t i = 0; i < count; i++) put(dtype, p, (int)i, wobble(i, 0));
    for (int step = 1; step <= 10; step++) {
        for (int64_t i = 0; i < count; i++) put(dtype, g, (int)i, wobble(i, step));
        dpcri_optimiser_update(optimiser, p, g, clear);
        for (int64_t i = 0; clear && i < count; i++) assert_true(get(dtype, g, (int)i) == 0);
    }
    free(g);
    dpcr_optimiser_destroy(optimiser);
    return p;
}

static void same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    const int64_t count = 3 * (1 << 14) + 77;
    dpcr_context *one = make_context(1), *three = make_context(3);
    for (int kind = DPCR_SGD; kind <= DPCR_ADAMW; kind++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcr_optimiser_options options = {.size = sizeof options,
                                                    .kind = (dpcr_optimiser_kind)kind,
                                                    .rate = 0.01,
                                                    .momentum = 0.9,
                                                    .weight_decay = 0.1};
            void *a = run_steps(one, &options, (dpcr_dtype)dtype, count, false);
            void *b = run_steps(three, &options, (dpcr_dtype)dtype, count, true);
            assert_memory_equal(a, b, (size_t)count * dpcr_dtype_size((dpcr_dtype)dtype));
            free(a);
            free(b);
        }
    dpcr_context_destroy(one);
    dpcr_context_destroy(three);
}

typedef struct buffers {
    double p[80], m[80], v[80], g[80];
} buffers;

static buffers make_buffers(dpcr_dtype dtype) {
    buffers b = {0};
    for (int i = 0; i < 70; i++) {
        put(dtype, b.p, i, wobble(i, 1));
        put(dtype, b.m, i, wobble(i, 2));
        put(dtype, b.v, i, fabs(wobble(i, 3)));
        put(dtype, b.g, i, wobble(i, 4));
    }
    return b;
}

// Every size up to four vectors and a tail: nothing behind the last number is touched, all levels agree bit for bit.
static void same_bits_at_every_level(void **state) {
    (void)state;
    const dpcri_sgd_update sgd = {.rate = 0.1, .momentum = 0.9, .decay = 0.01};
    const dpcri_adam_update adam = {.keep = 0.999,
                                    .decay = 0.01,
                                    .pull = 0.1,
                                    .beta2 = 0.99,
                                    .rest2 = 0.01,
                                    .step = 0.02,
                                    .root = 1.5,
                                    .epsilon = 1e-8};
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int n = 0; n <= 65; n++)
            for (int level = DPCRI_PORTABLE; level <= (int)dpcri_isa_level(); level++) {
                const size_t bytes = (size_t)n * dpcr_dtype_size((dpcr_dtype)dtype), all = sizeof(double) * 80;
                const buffers before = make_buffers((dpcr_dtype)dtype);
                buffers wanted[2] = {before, before}, got[2] = {before, before};
                const dpcri_train_kernels *k = dpcri_train_kernels_at(DPCRI_PORTABLE, (dpcr_dtype)dtype);
                k->sgd(n, wanted[0].p, wanted[0].m, wanted[0].g, false, &sgd);
                k->adam(n, wanted[1].p, wanted[1].m, wanted[1].v, wanted[1].g, false, &adam);
                k = dpcri_train_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
                if (!k) continue;  // a sanitizer's build lacks a level
                k->sgd(n, got[0].p, got[0].m, got[0].g, true, &sgd);
                k->adam(n, got[1].p, got[1].m, got[1].v, got[1].g, true, &adam);
                for (int i = 0; i < 2; i++) {
                    assert_memory_equal(got[i].p, wanted[i].p, all);
                    assert_memory_equal(got[i].m, wanted[i].m, all);
                    assert_memory_equal(got[i].v, wanted[i].v, all);
                    assert_memory_equal((char *)got[i].g + bytes, (const char *)before.g + bytes, all - bytes);
                    for (int j = 0; j < n; j++) assert_true(get((dpcr_dtype)dtype, got[i].g, j) == 0);
                    assert_memory_equal((char *)got[i].p + bytes, (const char *)before.p + bytes, all - bytes);
                }
            }
}

// ---- refusals, memory ----

static void refuse(dpcr_context *context, dpcr_optimiser_options options, dpcr_dtype dtype, int64_t count,
                   const char *words) {
    dpcr_error error = {0};
    dpcr_optimiser *optimiser = (dpcr_optimiser *)&error;
    assert_int_equal(dpcr_optimiser_create(context, &options, dtype, count, &optimiser, &error), DPCR_ERROR_ARGUMENT);
    assert_null(optimiser);
    if (!strstr(error.text, words)) fail_msg("got \"%s\", wanted words \"%s\"", error.text, words);
}

static void bad_options_are_refused_in_words(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_optimiser_options good = {.size = sizeof good, .kind = DPCR_ADAM, .rate = 0.1};
#define REFUSE(field, value, words)               \
    do {                                          \
        dpcr_optimiser_options bad = good;        \
        bad.field = value;                        \
        refuse(context, bad, DPCR_F32, 3, words); \
    } while (0)
    REFUSE(size, 8, "size is 8");
    REFUSE(kind, (dpcr_optimiser_kind)0, "kind is 0");
    REFUSE(kind, (dpcr_optimiser_kind)9, "kind is 9");
    REFUSE(rate, -1, "rate is -1");
    REFUSE(rate, NAN, "rate is");
    REFUSE(rate, INFINITY, "rate is inf");
    REFUSE(momentum, -0.5, "momentum is -0.5");
    REFUSE(beta1, 1, "beta1 is 1");
    REFUSE(beta2, -0.1, "beta2 is -0.1");
    REFUSE(beta2, NAN, "beta2 is");
    REFUSE(epsilon, -1e-8, "epsilon is -1e-08");
    REFUSE(weight_decay, -1, "weight_decay is -1");
    REFUSE(warm_up, -1, "warm_up is -1");
    REFUSE(total, -2, "total is -2");
    REFUSE(total, -1, "total is -1");  // only training knows how many steps there are
#undef REFUSE
    dpcr_optimiser_options bad = good;
    bad.warm_up = 10, bad.total = 9;
    refuse(context, bad, DPCR_F32, 3, "at least warm_up, 10");
    refuse(context, good, DPCR_U32, 3, "dtype is uint32");
    refuse(context, good, DPCR_F32, -3, "count is -3");
    dpcr_optimiser *optimiser = NULL;
    assert_int_equal(dpcr_optimiser_create(context, &good, DPCR_F64, INT64_MAX / 2, &optimiser, NULL),
                     DPCR_ERROR_OVERFLOW);
    assert_int_equal(dpcr_optimiser_create(context, NULL, DPCR_F64, 1, &optimiser, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_optimiser_step(NULL, NULL, NULL, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_optimiser_destroy(NULL);
    dpcr_context_destroy(context);
}

static void every_refused_allocation_comes_back_as_an_error(void **state) {
    (void)state;
    dpcr_status status = DPCR_ERROR_MEMORY;
    for (int64_t allowed = 1; status != DPCR_OK; allowed++) {
        budget f = {.left = 1};
        const dpcr_context_options options = budget_options(&f);
        dpcr_context *context = NULL;
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        const dpcr_optimiser_options o = {.size = sizeof o, .kind = DPCR_ADAMW, .rate = 0.1};
        dpcr_optimiser *optimiser = NULL;
        f.left = allowed - 1;
        status = dpcr_optimiser_create(context, &o, DPCR_F32, 100, &optimiser, NULL);
        if (status != DPCR_OK) {
            assert_int_equal(status, DPCR_ERROR_MEMORY);
            assert_int_equal(f.live, 1);
        } else {
            float p[100] = {0}, g[100] = {0};
            assert_int_equal(f.live, 2);  // a loop on a device wants no state here
            status = dpcr_optimiser_step(optimiser, p, g, NULL);
            assert_int_equal(dpcr_optimiser_updates(optimiser), status == DPCR_OK);
        }
        dpcr_optimiser_destroy(optimiser);
        dpcr_context_destroy(context);
        assert_int_equal(f.live, 0);
        assert_true(allowed < 10);
    }
}

// The state goes to another optimiser, which goes on with the same bits.
static void a_state_is_taken_over(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(NULL, &context, NULL), DPCR_OK);
    for (int kind = DPCR_SGD; kind <= DPCR_ADAMW; kind++) {
        const dpcr_optimiser_options options = {.size = sizeof options,
                                                .kind = (dpcr_optimiser_kind)kind,
                                                .rate = 0.01,
                                                .momentum = 0.9,
                                                .warm_up = 3,
                                                .total = 9};
        dpcr_optimiser *one = NULL, *other = NULL;
        dpcr_array first, second, to_first, to_second;
        float p[COUNT], q[COUNT], g[COUNT];
        assert_int_equal(dpcr_optimiser_create(context, &options, DPCR_F32, COUNT, &one, NULL), DPCR_OK);
        assert_int_equal(dpcr_optimiser_create(context, &options, DPCR_F32, COUNT, &other, NULL), DPCR_OK);
        for (int i = 0; i < COUNT; i++) p[i] = sinf((float)i), g[i] = cosf(0.3f * (float)i);
        for (int step = 0; step < 4; step++) assert_int_equal(dpcr_optimiser_step(one, p, g, NULL), DPCR_OK);
        memcpy(q, p, sizeof q);
        assert_int_equal(dpcr_optimiser_state(one, &first, &second, NULL), DPCR_OK);
        assert_int_equal(dpcr_optimiser_state(other, &to_first, &to_second, NULL), DPCR_OK);
        assert_true(first.shape[0] == COUNT && !second.data == (kind == DPCR_SGD));
        memcpy(to_first.data, first.data, sizeof p);
        if (second.data) memcpy(to_second.data, second.data, sizeof p);
        assert_int_equal(dpcr_optimiser_resume(other, dpcr_optimiser_updates(one), NULL), DPCR_OK);
        assert_int_equal(dpcr_optimiser_updates(other), 4);
        for (int step = 0; step < 4; step++) {
            assert_int_equal(dpcr_optimiser_step(one, p, g, NULL), DPCR_OK);
            assert_int_equal(dpcr_optimiser_step(other, q, g, NULL), DPCR_OK);
        }
        assert_memory_equal(p, q, sizeof p);
        assert_int_equal(dpcr_optimiser_resume(other, -1, NULL), DPCR_ERROR_ARGUMENT);
        assert_int_equal(dpcr_optimiser_state(NULL, &first, &second, NULL), DPCR_ERROR_ARGUMENT);
        dpcr_optimiser_destroy(one), dpcr_optimiser_destroy(other);
    }
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_is_taken_over),
        cmocka_unit_test(optimisers_give_pytorchs_values),
        cmocka_unit_test(the_schedule_gives_pytorchs_rates),
        cmocka_unit_test(warm_up_alone_ends_at_a_constant_rate),
        cmocka_unit_test(same_bits_for_any_number_of_threads),
        cmocka_unit_test(same_bits_at_every_level),
        cmocka_unit_test(bad_options_are_refused_in_words),
        cmocka_unit_test(every_refused_allocation_comes_back_as_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
