// SPDX-License-Identifier: MIT
// The suite for a device that is there, through the public calls alone: linear chains of every structure against the
// loop on the host (the exact ring to the bit), both directions, every short length and borders of blocks, shared
// transitions, in place, streams side by side, a NaN that stays in its sequence, the same bits from run to run. Without
// a device it is skipped (exit status 77), with the reason. It runs over the tests' stand-in too, which proves the
// suite, not a device.
//
//   DEEPPCR_DEVICE=cuda:N       which one (default cuda)
//   DEEPPCR_DEVICE_LAUNCHES=N   repeated launches (default 200)
//   DEEPPCR_DEVICE_SHARE=N      one chain of N of the suites over forms and lengths (default 1: all), for the simulator
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"

static dpcr_device there;
static const dpcr_device here = {.type = DPCR_HOST};
static dpcr_context *context;

static void ok(dpcr_status status, const dpcr_error *error) {
    if (status != DPCR_OK) fail_msg("%s", error->text);
}

// ---- one chain, on the host and on the device ----

enum { A, B, Z0, Z, ARRAYS };

typedef struct chain {
    dpcr_chain_shape shape;
    bool shared, start, in_place;
    dpcr_chain_plan *plan;
    dpcr_array host[ARRAYS], device[ARRAYS];
    size_t bytes[ARRAYS];
    void *workspace, *stream, *got;
} chain;

static void fill_numbers(const dpcr_array *array, int64_t count, uint64_t seed, double scale) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double value = scale * ((double)(int32_t)(seed >> 32) / 2147483648.0);
        if (array->dtype == DPCR_F32) ((float *)array->data)[i] = (float)value;
        if (array->dtype == DPCR_F64) ((double *)array->data)[i] = value;
        if (array->dtype == DPCR_U32) ((uint32_t *)array->data)[i] = (uint32_t)(seed >> 32);
    }
}

static void make_chain(chain *c, uint64_t seed) {
    const dpcr_chain_options on = {.size = sizeof on, .device = there};
    const int64_t n = c->shape.length, rows = c->shape.batch, w = c->shape.transition.rows;
    const int64_t values = dpcr_transition_values(&c->shape.transition);
    dpcr_error error = {0};
    c->shape.size = sizeof c->shape;
    ok(dpcr_chain_plan_create(context, &c->shape, &on, &c->plan, &error), &error);
    ok(dpcr_stream_create(there, &c->stream, &error), &error);
    const int64_t shapes[ARRAYS][3] = {{c->shared ? 1 : n, rows, values}, {n, rows, w}, {rows, w, 1}, {n, rows, w}};
    for (int i = 0; i < ARRAYS; i++) {
        const int64_t count = shapes[i][0] * shapes[i][1] * shapes[i][2];
        c->bytes[i] = (size_t)count * dpcr_dtype_size(c->shape.dtype);
        c->host[i] = dpcr_array_make(malloc(c->bytes[i] + 8), c->shape.dtype, i == Z0 ? 2 : 3, shapes[i]);
        assert_non_null(c->host[i].data);
        // Rows of A sum to less than 1: rounding does not grow.
        fill_numbers(&c->host[i], count, seed + 77 * (uint64_t)i,
                     i == A ? 0.9 / (double)(values / w > 1 ? values / w : 1) : 1);
        c->device[i] = c->host[i];
        c->device[i].device = there;
        ok(dpcr_device_allocate(there, c->bytes[i], &c->device[i].data, &error), &error);
        if (i != Z)
            ok(dpcr_device_copy(there, c->device[i].data, here, c->host[i].data, c->bytes[i], c->stream, &error),
               &error);
    }
    ok(dpcr_device_allocate(there, dpcr_chain_plan_workspace(c->plan), &c->workspace, &error), &error);
    c->got = malloc(c->bytes[Z] + 8);
    assert_non_null(c->got);
}

static void free_chain(chain *c) {
    for (int i = 0; i < ARRAYS; i++) {
        free(c->host[i].data);
        dpcr_device_release(there, c->device[i].data);
    }
    free(c->got);
    dpcr_device_release(there, c->workspace);
    dpcr_stream_destroy(there, c->stream);
    dpcr_chain_plan_destroy(c->plan);
}

// Into its stream: the solve, and the states back.
static void begin(chain *c) {
    dpcr_error error = {0};
    const dpcr_array *z = &c->device[c->in_place ? B : Z];
    ok(dpcr_chain_enqueue(c->plan, &c->device[A], &c->device[B], c->start ? &c->device[Z0] : NULL, z, c->workspace,
                          dpcr_chain_plan_workspace(c->plan), c->stream, &error),
       &error);
    ok(dpcr_device_copy(here, c->got, there, z->data, c->bytes[Z], c->stream, &error), &error);
}

static void finish(chain *c) {
    dpcr_error error = {0};
    ok(dpcr_stream_wait(there, c->stream, &error), &error);
}

static void host_solve(chain *c) {
    const dpcr_chain_options loop = {.size = sizeof loop, .scheme = DPCR_SCHEME_SEQUENTIAL};
    dpcr_chain_plan *plan = NULL;
    dpcr_error error = {0};
    ok(dpcr_chain_plan_create(context, &c->shape, &loop, &plan, &error), &error);
    ok(dpcr_chain_execute(plan, &c->host[A], &c->host[B], c->start ? &c->host[Z0] : NULL, &c->host[Z], NULL, 0, NULL,
                          &error),
       &error);
    dpcr_chain_plan_destroy(plan);
}

static double number(const void *data, dpcr_dtype dtype, int64_t i) {
    return dtype == DPCR_F32   ? (double)((const float *)data)[i]
           : dtype == DPCR_F64 ? ((const double *)data)[i]
                               : (double)((const uint32_t *)data)[i];
}

// A row of A sums to at most 0.9, so an error of w eps |b| a step adds up to ten times that; the device's order of sums
// makes as much again.
static void compare(const chain *c) {
    const dpcr_dtype dtype = c->shape.dtype;
    const double w = (double)c->shape.transition.rows;
    const double eps = dtype == DPCR_U32 ? 0 : dtype == DPCR_F32 ? 6e-8 : 1.2e-16, allowed = 400 * (w + 2) * eps;
    const int64_t count = c->shape.length * c->shape.batch * c->shape.transition.rows;
    for (int64_t i = 0; i < count; i++) {
        const double got = number(c->got, dtype, i), wanted = number(c->host[Z].data, dtype, i);
        if (!(fabs(got - wanted) <= allowed))
            fail_msg(
                "%s w %lld k %lld %s L %lld B %lld transposed %d shared %d z0 %d in place %d: state %lld is %.9g, the "
                "loop's %.9g",
                dpcr_structure_name(c->shape.transition.structure), (long long)c->shape.transition.rows,
                (long long)c->shape.transition.block, dpcr_dtype_name(dtype), (long long)c->shape.length,
                (long long)c->shape.batch, c->shape.transposed, c->shared, c->start, c->in_place, (long long)i, got,
                wanted);
    }
}

// Another one of the share each time, and every form, type and length in some.
static bool left_out(void) {
    static int64_t asked;
    const char *share = getenv("DEEPPCR_DEVICE_SHARE");
    return share && atoi(share) > 1 && ++asked % atoi(share) != 0;
}

static void once(dpcr_transition transition, dpcr_dtype dtype, int64_t length, int64_t batch, int variant) {
    if (left_out()) return;
    chain c = {.shape = {.length = length,
                         .batch = batch,
                         .transition = transition,
                         .dtype = dtype,
                         .transposed = variant & 1},
               .start = (variant & 2) && !(variant & 1),
               .shared = (variant & 4) != 0,
               .in_place = (variant & 8) != 0};
    make_chain(&c, (uint64_t)(length * 31 + variant));
    host_solve(&c);
    begin(&c);
    finish(&c);
    compare(&c);
    free_chain(&c);
}

// ---- suites ----

static dpcr_transition form(int i) {
    static const int kinds[][3] = {{DPCR_ZERO, 3, 0},     {DPCR_IDENTITY, 2, 0},  {DPCR_SCALAR, 3, 0},
                                   {DPCR_DIAGONAL, 1, 0}, {DPCR_DIAGONAL, 37, 0}, {DPCR_BLOCK, 6, 2},
                                   {DPCR_BLOCK, 6, 3},    {DPCR_BLOCK, 8, 4}};
    if (i < 8) return dpcr_transition_square((dpcr_structure)kinds[i][0], kinds[i][1], kinds[i][2]);
    return dpcr_transition_square(DPCR_DENSE, i - 7, 0);  // 1..16
}
enum { FORMS = 24 };

static void every_form(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 33, 257, 1025};
    for (int f = 0; f < FORMS; f++)
        for (int dtype = DPCR_F32; dtype <= DPCR_U32; dtype++)
            for (int l = 0; l < 4; l++)
                for (int variant = 0; variant < 16; variant += l == 3 ? 5 : 1)
                    if (l != 1 || variant < 4) once(form(f), (dpcr_dtype)dtype, lengths[l], 1 + f % 3, variant);
}

static void every_short_length(void **state) {
    (void)state;
    for (int64_t length = 1; length <= 130; length++)
        for (int i = 0; i < 3; i++)
            once(dpcr_transition_square(i == 0 ? DPCR_DIAGONAL : DPCR_DENSE, 1 + i, 0), DPCR_U32, length, 2,
                 (int)(length % 4));
}

static void long_chains(void **state) {
    (void)state;
    static const int64_t lengths[] = {8191, 32769, 100003};
    for (int l = 0; l < 3; l++)
        for (int transposed = 0; transposed < 2; transposed++) {
            once(dpcr_transition_square(DPCR_DIAGONAL, 2, 0), DPCR_U32, lengths[l], 1, transposed);
            once(dpcr_transition_square(DPCR_DENSE, 2, 0), DPCR_U32, lengths[l], 1, transposed);
        }
    once(dpcr_transition_square(DPCR_DENSE, 4, 0), DPCR_F32, 32769, 1, 0);
    once(dpcr_transition_square(DPCR_DIAGONAL, 64, 0), DPCR_F32, 4099, 5, 0);
}

static void streams_side_by_side(void **state) {
    (void)state;
    chain c[3];
    memset(c, 0, sizeof c);
    for (int i = 0; i < 3; i++) {
        c[i].shape = (dpcr_chain_shape){
            .length = 3000 + i, .batch = 2, .transition = dpcr_transition_square(DPCR_DENSE, 2, 0), .dtype = DPCR_U32};
        make_chain(&c[i], 5 + (uint64_t)i);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) begin(&c[i]);
        for (int i = 2; i >= 0; i--) finish(&c[i]);
        for (int i = 0; i < 3; i++) {
            host_solve(&c[i]);
            compare(&c[i]);
        }
    }
    for (int i = 0; i < 3; i++) free_chain(&c[i]);
}

static void the_same_bits_again(void **state) {
    (void)state;
    const char *asked = getenv("DEEPPCR_DEVICE_LAUNCHES");
    const int launches = asked ? atoi(asked) : 200;
    chain c = {.shape = {.length = 5000,
                         .batch = 3,
                         .transition = dpcr_transition_square(DPCR_DENSE, 3, 0),
                         .dtype = DPCR_F32},
               .start = true};
    make_chain(&c, 11);
    begin(&c);
    finish(&c);
    void *first = malloc(c.bytes[Z]);
    assert_non_null(first);
    memcpy(first, c.got, c.bytes[Z]);
    for (int i = 0; i < launches; i++) {
        begin(&c);
        if (i % 8) continue;
        finish(&c);
        assert_memory_equal(first, c.got, c.bytes[Z]);
    }
    finish(&c);
    assert_memory_equal(first, c.got, c.bytes[Z]);
    free(first);
    free_chain(&c);
}

static void a_nan_stays_in_its_sequence(void **state) {
    (void)state;
    dpcr_error error = {0};
    chain c = {
        .shape = {
            .length = 2000, .batch = 3, .transition = dpcr_transition_square(DPCR_DENSE, 2, 0), .dtype = DPCR_F32}};
    make_chain(&c, 21);
    begin(&c);
    finish(&c);
    float *clean = malloc(c.bytes[Z]);
    assert_non_null(clean);
    memcpy(clean, c.got, c.bytes[Z]);
    ((float *)c.host[B].data)[(700 * 3 + 1) * 2] = NAN;  // step 700 of sequence 1
    ok(dpcr_device_copy(there, c.device[B].data, here, c.host[B].data, c.bytes[B], c.stream, &error), &error);
    begin(&c);
    finish(&c);
    const float *got = c.got;
    for (int64_t i = 0; i < 2000 * 3; i++)
        for (int j = 0; j < 2; j++) {
            const int64_t l = i / 3, row = i % 3, at = i * 2 + j;
            if (row != 1 || l < 700)
                assert_memory_equal(&got[at], &clean[at], sizeof *got);
            else if (l > 700)
                assert_true(isnan(got[at]));
        }
    free(clean);
    free_chain(&c);
}

int main(void) {
    const char *name = getenv("DEEPPCR_DEVICE");
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    if (dpcr_device_find(name ? name : "cuda", &there, &error) != DPCR_OK) {
        fprintf(stderr, "test_on_device: %s\n", error.text);
        return 1;
    }
    if (dpcr_device_describe(there, &info, &error) != DPCR_OK) {
        printf("test_on_device: skipped: %s\n", error.text);
        return 77;
    }
    printf("test_on_device: %s, compute capability %d.%d\n", info.name, info.major, info.minor);
    if (dpcr_context_create(NULL, &context, &error) != DPCR_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form),          cmocka_unit_test(every_short_length),
        cmocka_unit_test(long_chains),         cmocka_unit_test(streams_side_by_side),
        cmocka_unit_test(the_same_bits_again), cmocka_unit_test(a_nan_stays_in_its_sequence),
    };
    const int failed = cmocka_run_group_tests_name("on_device", tests, NULL, NULL);
    dpcr_context_destroy(context);
    return failed != 0;
}
