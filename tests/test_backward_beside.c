// SPDX-License-Identifier: MIT
// The way back of the loop on one thread with the parameters' gradients beside it: the sums of one thread bit for bit,
// with adjoint states kept by the caller, in a ring and in the tape, whoever of the threads is late; a callback that
// fails and a caller who stops it end it. Passes find out whether other threads are worth it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deeppcr/deeppcr.h"

static dpcr_context *context_of(int threads, int (*cancel)(void *), void *user) {
    const dpcr_context_options options = {
        .size = sizeof options, .threads = threads, .cancel = cancel, .cancel_user = user};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

// ---- networks ----

typedef struct form {
    dpcr_architecture architecture;
    int64_t layers, width, batch;
    int layer_norm;
    size_t memory_limit;          // 0: none
    bool kept, direct, consumed;  // lambda is the caller's; gradients come in at every step; the tape is given up
} form;

typedef struct found {
    float *gradients, *lambda, *dz0;
    int64_t parameters;
} found;

static found way_back(const form *f, int threads) {
    const int64_t states = f->layers * f->batch * f->width, state = f->batch * f->width;
    const int64_t all[3] = {f->layers, f->batch, f->width};
    const dpcr_model_options options = {.size = sizeof options,
                                        .architecture = f->architecture,
                                        .layers = f->layers,
                                        .width = f->width,
                                        .activation = DPCR_ACT_TANH,
                                        .layer_norm = f->layer_norm,
                                        .seed = 3};
    const dpcr_solve_options solve = {.size = sizeof solve,
                                      .method = DPCR_METHOD_SEQUENTIAL,
                                      .backward = DPCR_SCHEME_SEQUENTIAL,
                                      .memory_limit = f->memory_limit,
                                      .consume_tape = f->consumed};
    dpcr_context *context = context_of(threads, NULL, NULL);
    dpcr_model *model = NULL;
    dpcr_solve_plan *plan = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_error error = {0};
    assert_int_equal(dpcr_model_create(context, &options, &model, &error), DPCR_OK);
    assert_int_equal(dpcr_model_steps(model, f->batch, &steps, &error), DPCR_OK);
    if (dpcr_solve_plan_create(context, &steps, &solve, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    const int64_t taped[3] = {f->layers, f->batch, steps.tape_values};
    found r = {.lambda = calloc((size_t)states, sizeof(float)), .dz0 = calloc((size_t)state, sizeof(float))};
    float *z0 = malloc((size_t)state * sizeof *z0), *last = malloc((size_t)state * sizeof *last);
    float *z = malloc((size_t)states * sizeof *z), *direct = malloc((size_t)states * sizeof *direct);
    float *tape = malloc((size_t)(f->layers * f->batch * steps.tape_values + 1) * sizeof *tape);
    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    for (int64_t i = 0; i < state; i++) z0[i] = (float)(i % 7) / 7, last[i] = (float)(i % 5) / 5;
    for (int64_t i = 0; i < states; i++) direct[i] = (float)(i % 11 - 5) / 50;
    const dpcr_array starts = dpcr_array_make(z0, DPCR_F32, 2, all + 1),
                     ends = dpcr_array_make(last, DPCR_F32, 2, all + 1),
                     out = dpcr_array_make(r.dz0, DPCR_F32, 2, all + 1),
                     slopes = dpcr_array_make(tape, DPCR_F32, 3, taped), path = dpcr_array_make(z, DPCR_F32, 3, all),
                     in = dpcr_array_make(direct, DPCR_F32, 3, all), kept = dpcr_array_make(r.lambda, DPCR_F32, 3, all);
    assert_int_equal(dpcr_solve_execute(plan, &starts, &path, &slopes, workspace, bytes, NULL, &error), DPCR_OK);
    if (dpcr_solve_backward(plan, &starts, &path, &slopes, f->direct ? &in : NULL, &ends, f->kept ? &kept : NULL, &out,
                            workspace, bytes, NULL, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    dpcr_model_vector(model, &r.parameters);
    r.gradients = malloc((size_t)r.parameters * sizeof(float));
    memcpy(r.gradients, dpcr_model_gradient_vector(model), (size_t)r.parameters * sizeof(float));
    free(z0), free(last), free(z), free(direct), free(tape), free(workspace);
    dpcr_solve_plan_destroy(plan), dpcr_model_destroy(model), dpcr_context_destroy(context);
    return r;
}

static void drop(found *r) { free(r->gradients), free(r->lambda), free(r->dz0); }

static void threads_agree(void **state) {
    (void)state;
    static const form forms[] = {
        {.architecture = DPCR_MLP, .layers = 700, .width = 32, .batch = 1},
        {.architecture = DPCR_MLP, .layers = 700, .width = 32, .batch = 1, .kept = true, .direct = true},
        {.architecture = DPCR_RESNET, .layers = 333, .width = 40, .batch = 5, .direct = true},
        {.architecture = DPCR_RESNET, .layers = 333, .width = 40, .batch = 8, .consumed = true},
        {.architecture = DPCR_MLP, .layers = 90, .width = 96, .batch = 3, .consumed = true, .direct = true},
        {.architecture = DPCR_MLP, .layers = 90, .width = 96, .batch = 3, .layer_norm = 1, .direct = true},
        {.architecture = DPCR_MLP, .layers = 61, .width = 300, .batch = 7, .memory_limit = 60000, .direct = true},
        {.architecture = DPCR_MLP, .layers = 5, .width = 256, .batch = 1, .memory_limit = 4096},
        {.architecture = DPCR_MLP, .layers = 1, .width = 512, .batch = 2},
        {.architecture = DPCR_RESNET, .layers = 64, .width = 64, .batch = 9},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const form *f = &forms[i];
        found one = way_back(f, 1);
        for (int threads = 2; threads <= 5; threads++) {
            found more = way_back(f, threads);
            if (memcmp(one.gradients, more.gradients, (size_t)one.parameters * sizeof(float)) != 0)
                fail_msg("form %d, %d threads: other gradients", (int)i, threads);
            if (memcmp(one.lambda, more.lambda, (size_t)(f->layers * f->batch * f->width) * sizeof(float)) != 0)
                fail_msg("form %d, %d threads: other adjoint states", (int)i, threads);
            if (memcmp(one.dz0, more.dz0, (size_t)(f->batch * f->width) * sizeof(float)) != 0)
                fail_msg("form %d, %d threads: another dz0", (int)i, threads);
            drop(&more);
        }
        drop(&one);
    }
}

// ---- threads that are late ----

// z_l = z_{l-1} + theta_l: every adjoint is the sum of what came in from the end on, as is theta's gradient.
enum { LENGTH = 600, WIDTH = 16 };

typedef struct late {
    int64_t slow_adjoint, slow_gradient;  // every so many calls are late; 0: none
    int64_t failing;                      // the step whose gradient or adjoint fails; -1: none
    bool in_adjoint;
    int64_t adjoint_us, step_us;            // that a step's adjoint and its gradient take
    bool far;                               // only on threads other than the loop's
    pthread_t caller;                       // of the loop
    int passes;                             // 0: one
    int elsewhere[30];                      // of each pass
    double flops;                           // told: how long the windows and the tasks are
    _Atomic int adjoints, gradients_after;  // calls; of gradient, after it failed
    _Atomic int failed, others;             // others: calls of gradient on other threads, in this pass
    double theta[LENGTH * WIDTH];
    _Atomic int made[LENGTH];
} late;

static void nap(int64_t us) { nanosleep(&(struct timespec){.tv_nsec = 1000 * us}, NULL); }

static double *at(const dpcr_array *x, int64_t lane, int64_t step) {
    return (double *)x->data + lane * x->strides[0] + step * x->strides[1];
}

static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    (void)user, (void)tape;
    for (int64_t c = 0; c < span->lanes; c++)
        for (int64_t i = 0; i < WIDTH; i++) {
            const double z = ((double *)in->data)[c * in->strides[0] + i];
            for (int64_t k = 0; states && k < span->steps; k++) at(states, c, k)[i] = z;
            if (last) ((double *)last->data)[c * last->strides[0] + i] = z;
        }
    return 0;
}

static int adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                   const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                   const dpcr_array *first_out) {
    late *l = user;
    (void)in, (void)tape;
    const int calls = ++l->adjoints;
    if (l->slow_adjoint && calls % l->slow_adjoint == 0) nap(300);
    if (l->adjoint_us) nap(span->steps * l->adjoint_us);
    for (int64_t i = 0; i < WIDTH; i++) {
        double g = ((double *)last->data)[i];
        for (int64_t k = span->steps - 1; k >= 0; k--) {
            g += at(direct, 0, k)[i];
            if (kept) at(kept, 0, k)[i] = g;
        }
        if (first_out) ((double *)first_out->data)[i] = g;
    }
    if (l->in_adjoint && span->first <= l->failing && l->failing < span->first + span->steps) return -7;
    return 0;
}

static int gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                    const dpcr_array *adjoints) {
    late *l = user;
    (void)in, (void)tape;
    if (l->failed) l->gradients_after++;
    if (l->slow_gradient && span->first / 3 % l->slow_gradient == 0) nap(300);
    const bool elsewhere = !pthread_equal(pthread_self(), l->caller);
    if (elsewhere) l->others++;
    if (l->step_us && (elsewhere || !l->far)) nap(span->lanes * l->step_us);
    for (int64_t c = 0; c < span->lanes; c++) {
        l->made[span->first + c]++;
        for (int64_t i = 0; i < WIDTH; i++)
            l->theta[(span->first + c) * WIDTH + i] += ((double *)adjoints->data)[c * adjoints->strides[0] + i];
        if (!l->in_adjoint && l->failing == span->first + c) {
            l->failed = 1;
            return -9;
        }
    }
    return 0;
}

static double lambda[LENGTH * WIDTH], z[LENGTH * WIDTH], direct[LENGTH * WIDTH], z0[WIDTH], dz0[WIDTH];

static void check_sums(const late *l) {
    double g[WIDTH] = {0};
    for (int64_t step = LENGTH - 1; step >= 0; step--) {
        assert_int_equal(l->made[step], 1);
        for (int64_t i = 0; i < WIDTH; i++) {
            g[i] += direct[step * WIDTH + i];
            if (l->theta[step * WIDTH + i] != g[i])
                fail_msg("step %d: %g, wanted %g", (int)step, l->theta[step * WIDTH + i], g[i]);
        }
    }
    assert_memory_equal(dz0, g, sizeof g);
}

static dpcr_status late_back(late *l, int threads, size_t memory_limit, int (*cancel)(void *), void *cancel_user,
                             bool kept, dpcr_error *error) {
    const int64_t all[3] = {LENGTH, 1, WIDTH};
    const dpcr_steps steps = {.size = sizeof steps,
                              .user = l,
                              .length = LENGTH,
                              .batch = 1,
                              .width = WIDTH,
                              .dtype = DPCR_F64,
                              .concurrent = 1,
                              .flops = l->flops,
                              .advance = advance,
                              .adjoint = adjoint,
                              .gradient = gradient};
    const dpcr_solve_options solve = {.size = sizeof solve,
                                      .method = DPCR_METHOD_SEQUENTIAL,
                                      .backward = DPCR_SCHEME_SEQUENTIAL,
                                      .memory_limit = memory_limit};
    dpcr_context *context = context_of(threads, cancel, cancel_user);
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &solve, &plan, error), DPCR_OK);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    for (int64_t i = 0; i < LENGTH * WIDTH; i++) direct[i] = (double)(i % 13 + 1);
    const dpcr_array starts = dpcr_array_make(z0, DPCR_F64, 2, all + 1),
                     out = dpcr_array_make(dz0, DPCR_F64, 2, all + 1), path = dpcr_array_make(z, DPCR_F64, 3, all),
                     in = dpcr_array_make(direct, DPCR_F64, 3, all), states = dpcr_array_make(lambda, DPCR_F64, 3, all);
    assert_int_equal(dpcr_solve_execute(plan, &starts, &path, NULL, workspace, bytes, NULL, error), DPCR_OK);
    dpcr_status status = DPCR_OK;
    l->caller = pthread_self();
    for (int pass = 0; pass == 0 || pass < l->passes; pass++) {
        l->others = 0;
        memset(l->theta, 0, sizeof l->theta);
        for (int64_t step = 0; step < LENGTH; step++) l->made[step] = 0;
        status = dpcr_solve_backward(plan, &starts, &path, NULL, &in, NULL, kept ? &states : NULL, &out, workspace,
                                     bytes, NULL, error);
        l->elsewhere[pass] = l->others;
        if (l->passes) check_sums(l);
    }
    free(workspace);
    dpcr_solve_plan_destroy(plan), dpcr_context_destroy(context);
    return status;
}

static void whoever_is_late(void **state) {
    (void)state;
    static const int64_t slow[][2] = {{0, 0}, {3, 0}, {0, 5}, {2, 7}, {0, 1}};
    static const size_t limits[] = {0, 20000, 2048, 900};
    static const double flops[] = {10000, 2e5};
    for (size_t s = 0; s < sizeof slow / sizeof *slow; s++)
        for (size_t m = 0; m < sizeof limits / sizeof *limits; m++)
            for (int threads = 2; threads <= 4; threads++) {
                late l = {.slow_adjoint = slow[s][0],
                          .slow_gradient = slow[s][1],
                          .failing = -1,
                          .flops = flops[threads % 2 || limits[m]]};
                dpcr_error error = {0};
                if (late_back(&l, threads, limits[m], NULL, NULL, s % 2, &error) != DPCR_OK) fail_msg("%s", error.text);
                check_sums(&l);
            }
}

// Where other threads' gradients come late the loop's own thread makes them, after some passes; where they are as quick
// the others go on. One try in many will do: threads of a busy machine come when they may.
static bool finds_them(bool far, int threads) {
    late l = {.far = far, .step_us = 40, .adjoint_us = 5, .failing = -1, .passes = 30, .flops = 10000};
    dpcr_error error = {0};
    if (late_back(&l, threads, 0, NULL, NULL, threads == 2, &error) != DPCR_OK) fail_msg("%s", error.text);
    bool tried = false, right = true;
    for (int pass = 0; pass < 5; pass++) tried = tried || l.elsewhere[pass] > 0;
    for (int pass = 26; pass < 30; pass++) right = right && (l.elsewhere[pass] == 0) == far;
    return tried && right;
}

static void passes_find_the_threads(void **state) {
    (void)state;
    for (int far = 0; far < 2; far++)
        for (int threads = 2; threads <= 4 - 2 * far; threads += 2) {
            int tries = 0;
            while (!finds_them(far, threads)) assert_true(++tries < 30);
        }
}

// ---- ends before its time ----

static void a_callback_that_fails(void **state) {
    (void)state;
    static const size_t limits[] = {0, 2048};
    for (int in_adjoint = 0; in_adjoint < 2; in_adjoint++)
        for (size_t m = 0; m < sizeof limits / sizeof *limits; m++)
            for (int64_t failing = 0; failing < LENGTH; failing += 149) {
                const int threads = failing % 2 ? 2 : 3;
                late l = {.slow_gradient = 11, .failing = failing, .in_adjoint = in_adjoint, .flops = m ? 2e5 : 10000};
                dpcr_error error = {0};
                assert_int_equal(late_back(&l, threads, limits[m], NULL, NULL, false, &error), DPCR_ERROR_CALLBACK);
                assert_int_equal(error.code, in_adjoint ? -7 : -9);
                for (int64_t step = 0; step < LENGTH; step++)
                    assert_true(l.made[step] <= (in_adjoint && step <= failing ? 0 : 1));
                // The others end what they are at, and no more than the ring holds if the one that failed is held up.
                assert_true(l.gradients_after < LENGTH / 4);
            }
}

static int after_some_adjoints(void *user) { return ((late *)user)->adjoints > 10; }

static void a_caller_who_stops_it(void **state) {
    (void)state;
    late l = {.slow_gradient = 11, .failing = -1, .flops = 2e5};
    dpcr_error error = {0};
    assert_int_equal(late_back(&l, 2, 2048, after_some_adjoints, &l, false, &error), DPCR_ERROR_CANCELLED);
    assert_true(l.adjoints < 20);
}

static int after_some_gradients(void *user) {
    const late *l = user;
    int64_t made = 0;
    for (int64_t step = 0; step < LENGTH; step++) made += l->made[step];
    return made > LENGTH / 4;
}

// The loop is at its end long before, for all adjoint states have room.
static void a_caller_who_stops_the_gradients(void **state) {
    (void)state;
    late l = {.slow_gradient = 1, .failing = -1, .flops = 2e5};
    dpcr_error error = {0};
    assert_int_equal(late_back(&l, 2, 2048, after_some_gradients, &l, true, &error), DPCR_ERROR_CANCELLED);
    int64_t made = 0;
    for (int64_t step = 0; step < LENGTH; step++) made += l.made[step];
    assert_true(made < LENGTH);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_agree),           cmocka_unit_test(whoever_is_late),
        cmocka_unit_test(passes_find_the_threads), cmocka_unit_test(a_callback_that_fails),
        cmocka_unit_test(a_caller_who_stops_it),   cmocka_unit_test(a_caller_who_stops_the_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
