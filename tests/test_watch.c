// SPDX-License-Identifier: MIT
// The caller's cancel function inside long linear chains, scans, plans of products and filters: asked by every scheme
// and derivative, and whichever answer ends the call; where nobody says stop, the looks change no bit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/bppsa.h"
#include "deeppcr/chain.h"
#include "deeppcr/context.h"
#include "deeppcr/filter.h"
#include "sampled.h"

typedef struct asked {
    int times, stop_at;  // 0: never
} asked;

static int ask(void *user) {
    asked *a = user;
    return ++a->times == a->stop_at;
}

static dpcr_context *context_of(asked *a, int threads) {
    dpcr_context *context = NULL;
    const dpcr_context_options options = {
        .size = sizeof options, .threads = threads, .cancel = a ? ask : NULL, .cancel_user = a};
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static float *noise(int64_t count) {
    float *x = malloc((size_t)count * sizeof *x);
    uint32_t seed = 1;
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return x;
}

// ---- linear chains ----

enum { WIDTH = 64, LENGTH = 20000 };  // one A for all steps

typedef enum call { EXECUTE, TRANSPOSED, JVP, VJP, CALLS } call;

typedef struct chain {
    float *a, *b, *z0, *z, *dz0;
} chain;

static dpcr_status run(dpcr_context *context, const chain *c, dpcr_structure structure, dpcr_scheme scheme, call what) {
    const int dense = structure == DPCR_DENSE;
    const int64_t values[3] = {LENGTH, 1, dense ? WIDTH * WIDTH : WIDTH}, states[3] = {LENGTH, 1, WIDTH},
                  state[2] = {1, WIDTH};
    dpcr_array a = dpcr_array_make(c->a, DPCR_F32, 3, values);
    const dpcr_array b = dpcr_array_make(c->b, DPCR_F32, 3, states), z = dpcr_array_make(c->z, DPCR_F32, 3, states),
                     z0 = dpcr_array_make(c->z0, DPCR_F32, 2, state), dz0 = dpcr_array_make(c->dz0, DPCR_F32, 2, state);
    a.strides[0] = 0;
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = LENGTH,
                                    .batch = 1,
                                    .transition = {.structure = structure, .rows = WIDTH, .cols = WIDTH},
                                    .dtype = DPCR_F32,
                                    .transposed = what == TRANSPOSED};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    void *work = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(work);
    dpcr_error error = {0};
    dpcr_status status = DPCR_OK;
    if (what == JVP)
        status = dpcr_chain_jvp(plan, &a, &z0, &b, NULL, &b, &z0, &z, work, bytes, &error);
    else if (what == VJP)
        status = dpcr_chain_vjp(plan, &a, &z0, &b, &b, NULL, &z, &dz0, work, bytes, &error);
    else
        status = dpcr_chain_execute(plan, &a, &b, what == TRANSPOSED ? NULL : &z0, &z, work, bytes, NULL, &error);
    if (status != DPCR_OK && status != DPCR_ERROR_CANCELLED) fail_msg("%s", error.text);
    free(work);
    dpcr_chain_plan_destroy(plan);
    return status;
}

static chain make(void) {
    chain c = {.a = noise(WIDTH * WIDTH), .b = noise((int64_t)LENGTH * WIDTH), .z0 = noise(WIDTH), .dz0 = noise(WIDTH)};
    for (int64_t i = 0; i < WIDTH * WIDTH; i++) c.a[i] *= 0.1f;
    c.z = calloc((size_t)LENGTH * WIDTH, sizeof *c.z);
    assert_non_null(c.z);
    return c;
}

static void drop(chain *c) { free(c->a), free(c->b), free(c->z0), free(c->z), free(c->dz0); }

static void every_scheme_stops(void **state) {
    (void)state;
    chain c = make();
    for (int threads = 1; threads < 3; threads++)
        for (int scheme = DPCR_SCHEME_SEQUENTIAL; scheme < DPCR_SCHEME_COUNT; scheme++)
            for (int what = 0; what < CALLS; what++) {
                // Products of dense matrices take long: where they stop matters, not what they are of.
                const int dense = scheme == DPCR_SCHEME_SEQUENTIAL || scheme == DPCR_SCHEME_OVERLAP;
                asked a = {.stop_at = 1};
                dpcr_context *context = context_of(&a, threads);
                const dpcr_status status =
                    run(context, &c, dense ? DPCR_DENSE : DPCR_DIAGONAL, (dpcr_scheme)scheme, (call)what);
                if (status != DPCR_ERROR_CANCELLED || a.times < 1)
                    fail_msg("%s, call %d: status %d after %d questions", dpcr_scheme_name((dpcr_scheme)scheme), what,
                             (int)status, a.times);
                dpcr_context_destroy(context);
            }
    drop(&c);
}

static void looks_change_no_bit(void **state) {
    (void)state;
    chain c = make();
    asked never = {0};
    dpcr_context *with = context_of(&never, 2), *without = context_of(NULL, 2);
    const size_t bytes = (size_t)LENGTH * WIDTH * sizeof *c.z;
    float *kept = malloc(bytes);
    assert_non_null(kept);
    for (int what = 0; what < CALLS; what++) {
        assert_int_equal(run(without, &c, DPCR_DENSE, DPCR_SCHEME_SEQUENTIAL, (call)what), DPCR_OK);
        memcpy(kept, c.z, bytes);
        memset(c.z, 0, bytes);
        never.times = 0;
        assert_int_equal(run(with, &c, DPCR_DENSE, DPCR_SCHEME_SEQUENTIAL, (call)what), DPCR_OK);
        assert_true(never.times > 0);
        assert_memory_equal(kept, c.z, bytes);
    }
    free(kept);
    dpcr_context_destroy(with), dpcr_context_destroy(without);
    drop(&c);
}

// ---- a question under a lock ----

static int turn, locked, answer, unlocked_with;

static int take_lock(void) {
    assert_int_equal(locked++, 0);
    return ++turn;
}

static int ask_locked(void) {
    assert_int_equal(locked, 1);
    return answer;
}

static void let_go(int taken) {
    assert_int_equal(locked--, 1);
    unlocked_with = taken;
}

// What the lock gave comes back to it, and the answer is the caller's, also where a long call asks.
static void a_question_holds_its_lock(void **state) {
    (void)state;
    dpcr_locked_cancel question = {.lock = take_lock, .cancel = ask_locked, .unlock = let_go};
    turn = 41;
    for (answer = -1; answer < 2; answer++) {
        assert_int_equal(dpcr_cancel_locked(&question), answer);
        assert_int_equal(locked, 0);
        assert_int_equal(unlocked_with, turn);
    }
    assert_int_equal(turn, 44);
    chain c = make();
    for (answer = 0; answer < 2; answer++) {
        const int before = turn;
        dpcr_context *context = NULL;
        const dpcr_context_options options = {
            .size = sizeof options, .threads = 2, .cancel = dpcr_cancel_locked, .cancel_user = &question};
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        assert_int_equal(run(context, &c, DPCR_DENSE, DPCR_SCHEME_SEQUENTIAL, EXECUTE),
                         answer ? DPCR_ERROR_CANCELLED : DPCR_OK);
        assert_true(turn > before && locked == 0);
        dpcr_context_destroy(context);
    }
    drop(&c);
}

// ---- scans ----

enum { SIDE = 64, SCANNED = 64 };  // dense products of a tree of all levels

// stop_at of `a`: 0, with a plan that was made before anybody asks.
static dpcr_status scan(asked *a, int threads, int stop_at, float *values, float *gradients) {
    dpcr_context *context = context_of(a, threads);
    dpcr_transition steps[SCANNED];
    dpcr_array jacobians[SCANNED], g[SCANNED];
    for (int l = 0; l < SCANNED; l++) {
        const int64_t entries[2] = {1, SIDE * SIDE}, state[2] = {1, SIDE};
        steps[l] = (dpcr_transition){.structure = DPCR_DENSE, .rows = SIDE, .cols = SIDE};
        jacobians[l] = dpcr_array_make(values, DPCR_F32, 2, entries);
        g[l] = dpcr_array_make(gradients + (ptrdiff_t)l * SIDE, DPCR_F32, 2, state);
    }
    const dpcr_array last = dpcr_array_make(values, DPCR_F32, 2, (const int64_t[2]){1, SIDE});
    const dpcr_bppsa_shape shape = {
        .size = sizeof shape, .length = SCANNED, .batch = 1, .steps = steps, .dtype = DPCR_F32};
    dpcr_bppsa_plan *plan = NULL;
    dpcr_error error = {0};
    void *work = NULL;
    dpcr_status status = dpcr_bppsa_plan_create(context, &shape, NULL, &plan, &error);
    if (status == DPCR_OK) {
        const size_t bytes = dpcr_bppsa_plan_workspace(plan);
        work = aligned_alloc(64, (bytes + 127) / 64 * 64);
        assert_non_null(work);
        if (a) *a = (asked){.stop_at = stop_at};
        status = dpcr_bppsa_execute(plan, jacobians, &last, g, work, bytes, &error);
    }
    if (status != DPCR_OK && status != DPCR_ERROR_CANCELLED) fail_msg("%s", error.text);
    free(work);
    dpcr_bppsa_plan_destroy(plan);
    dpcr_context_destroy(context);
    return status;
}

static void scans_stop_and_looks_change_no_bit(void **state) {
    (void)state;
    enum { BYTES = SCANNED * SIDE * sizeof(float) };
    float *values = noise((int64_t)SIDE * SIDE), *kept = calloc(2, BYTES), *gradients = kept + SCANNED * SIDE;
    assert_non_null(kept);
    for (int i = 0; i < SIDE * SIDE; i++) values[i] *= 0.1f;
    for (int threads = 1; threads < 3; threads++) {
        asked a = {.stop_at = 1};
        assert_int_equal(scan(&a, threads, 0, values, gradients), DPCR_ERROR_CANCELLED);  // while it is planned
        a = (asked){0};
        assert_int_equal(scan(&a, threads, 1, values, gradients), DPCR_ERROR_CANCELLED);  // while it runs
        assert_int_equal(a.times, 1);
        assert_int_equal(scan(NULL, threads, 0, values, kept), DPCR_OK);
        memset(gradients, 0, BYTES);
        a = (asked){0};
        assert_int_equal(scan(&a, threads, 0, values, gradients), DPCR_OK);
        assert_true(a.times > 0);
        assert_memory_equal(kept, gradients, BYTES);
    }
    free(kept), free(values);
}

// ---- patterns of products ----

enum { INNER = 1000, MANY_ROWS = 60000 };

// Rows that begin where the next one would have ended: `apart` places further on each, all of `each` columns.
static dpcr_pattern rows_of(int64_t rows, int64_t each, int64_t apart) {
    int64_t *offsets = malloc((size_t)(rows + 1) * sizeof *offsets);
    int32_t *columns = malloc((size_t)(rows * each) * sizeof *columns);
    assert_true(offsets && columns);
    for (int64_t i = 0; i <= rows; i++) offsets[i] = i * each;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = i * apart % (INNER - each + 1);
        for (int64_t k = 0; k < each; k++) columns[i * each + k] = (int32_t)(from + k);
    }
    return (dpcr_pattern){rows, INNER, offsets, columns};
}

// The product of `a`, and of rows of b of `each` columns.
static dpcr_status plan_product(asked *asks, int threads, const dpcr_pattern *a, int64_t each) {
    const dpcr_pattern b = rows_of(INNER, each, 1);
    const dpcr_transition later = dpcr_transition_csr(a), earlier = dpcr_transition_csr(&b);
    dpcr_context *context = context_of(asks, threads);
    dpcr_product *product = NULL;
    dpcr_error error = {0};
    const dpcr_status status = dpcr_product_create(context, &later, &earlier, &product, &error);
    if (status == DPCR_ERROR_CANCELLED) {
        assert_null(product);
        assert_non_null(strstr(error.text, "cancel"));
    } else if (status != DPCR_OK) {
        fail_msg("%s", error.text);
    }
    dpcr_product_destroy(product);
    dpcr_context_destroy(context);
    free((void *)b.offsets), free((void *)b.columns);
    return status;
}

// Of few long rows, most of the time goes into counting; of many that are all alike, into comparing and copying them.
static void patterns_stop(void **state) {
    (void)state;
    const dpcr_pattern patterns[] = {rows_of(INNER, 600, 1), rows_of(MANY_ROWS, 20, 0)};
    for (int threads = 1 + TESTS_FOR_RACES; threads < 3; threads++)
        for (int i = 0; i < 2; i++) {
            asked a = {.stop_at = 1};
            assert_int_equal(plan_product(&a, threads, &patterns[i], 400), DPCR_ERROR_CANCELLED);
            assert_int_equal(a.times, 1);
            a = (asked){0};
            assert_int_equal(plan_product(&a, threads, &patterns[i], 400), DPCR_OK);
            assert_true(a.times > 0);
        }
    asked inside = {0};  // not after each of the passes alone
    assert_int_equal(plan_product(&inside, 1, &patterns[0], 999), DPCR_OK);
    assert_true(inside.times > 3);
    for (int i = 0; i < 2; i++) free((void *)patterns[i].offsets), free((void *)patterns[i].columns);
}

// ---- filters ----

enum { ORDER = 128, SAMPLES = TESTS_SANITIZED ? 20000 : 60000 };

typedef enum filtering { FORWARD, ADJOINT, GRADIENT, FILTERINGS } filtering;

// Coefficients, signals in and out, and sums.
typedef struct sound {
    double b[ORDER + 1], a[ORDER + 1], gb[ORDER + 1], ga[ORDER + 1], x[SAMPLES], y[SAMPLES], g[SAMPLES];
} sound;

static dpcr_status filter(dpcr_context *context, sound *s, filtering what) {
    dpcr_filter *made = NULL;
    assert_int_equal(dpcr_filter_create_ba(context, ORDER + 1, s->b, ORDER + 1, s->a, &made, NULL), DPCR_OK);
    const int64_t shape[2] = {1, SAMPLES};
    const dpcr_array x = dpcr_array_make(s->x, DPCR_F64, 2, shape), y = dpcr_array_make(s->y, DPCR_F64, 2, shape),
                     g = dpcr_array_make(s->g, DPCR_F64, 2, shape);
    dpcr_error error = {0};
    dpcr_status status = DPCR_OK;
    memset(s->gb, 0, sizeof s->gb);
    memset(s->ga, 0, sizeof s->ga);
    if (what == GRADIENT)
        status = dpcr_filter_gradient(made, &x, NULL, &g, NULL, s->gb, s->ga, &y, NULL, &error);
    else if (what == ADJOINT)
        status = dpcr_filter_adjoint(made, &x, NULL, &y, NULL, &error);
    else
        status = dpcr_filter_execute(made, &x, NULL, &y, NULL, &error);
    if (status != DPCR_OK && status != DPCR_ERROR_CANCELLED) fail_msg("%s", error.text);
    dpcr_filter_destroy(made);
    return status;
}

// Of 128 poles near the circle, which are not cut into stretches.
static void filters_stop_and_looks_change_no_bit(void **state) {
    (void)state;
    sound *s = calloc(2, sizeof *s), *kept = s + 1;
    float *random = noise(SAMPLES);
    assert_non_null(s);
    for (int i = 0; i < SAMPLES; i++) s->x[i] = s->g[SAMPLES - 1 - i] = (double)random[i];
    s->a[0] = 1, s->a[ORDER] = -0.999;
    for (int i = 0; i <= ORDER; i++) s->b[i] = (double)random[i];
    asked never = {0};
    dpcr_context *with = context_of(&never, 2), *without = context_of(NULL, 2);
    for (int what = 0; what < FILTERINGS; what++) {
        asked once = {.stop_at = 1};
        dpcr_context *stopping = context_of(&once, 2);
        assert_int_equal(filter(stopping, s, (filtering)what), DPCR_ERROR_CANCELLED);
        dpcr_context_destroy(stopping);
        assert_int_equal(filter(without, s, (filtering)what), DPCR_OK);
        *kept = *s;
        memset(s->y, 0, sizeof s->y);
        never.times = 0;
        assert_int_equal(filter(with, s, (filtering)what), DPCR_OK);
        assert_true(never.times > 0);
        assert_memory_equal(kept, s, sizeof *s);
    }
    dpcr_context_destroy(with), dpcr_context_destroy(without);
    free(random);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scheme_stops),
        cmocka_unit_test(looks_change_no_bit),
        cmocka_unit_test(a_question_holds_its_lock),
        cmocka_unit_test(scans_stop_and_looks_change_no_bit),
        cmocka_unit_test(patterns_stop),
        cmocka_unit_test(filters_stop_and_looks_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
