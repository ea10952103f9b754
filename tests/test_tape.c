// SPDX-License-Identifier: MIT
// The tape of the loop: one forward may be followed by several backward passes, unless the plan uses the tape up; and
// all of them, and the one without a tape, give the same bits. So do overlapped chunks that use it up and must meet bit
// for bit: where all stand, where some run again, and where nothing is forgotten. So do threads that take a part of the
// sequences each and add to the sums one after the other; one that fails does not leave the others waiting.
#include <stdatomic.h>

#include "rt/rt.h"
#include "sampled.h"
#include "solving.h"

enum { LAYERS = TESTS_FOR_RACES ? 100 : 170, BATCH = 37, WIDTH = 9 };

// The model's callbacks, watched.
typedef struct watched {
    dpcr_steps steps;
    int64_t batch, fails_at;  // the step whose adjoint aborts; -1: none
    bool last_rows_fail;      // whose gradient aborts
    bool armed;               // then the third question is the last
    int asked;
    _Atomic int64_t in_parts, by_tape;  // gradients of some rows; and those that have no adjoint states but in the tape
} watched;

typedef struct fixture {
    watched watch;
    int64_t batch, width;
    dpcr_context *context;
    dpcr_model *model;
    dpcr_solve_plan *plan;
    dpcr_array z0, z, tape, last, dz0;
    void *workspace;
    size_t bytes;
    int64_t count;
    int sweeps;  // of the last backward pass
} fixture;

static dpcr_array numbers(int ndim, int64_t a, int64_t b, int64_t c, double scale) {
    const int64_t shape[3] = {a, b, c};
    float *data = calloc((size_t)(a * b * (ndim == 3 ? c : 1)) + 16, sizeof *data);
    for (int64_t i = 0; i < a * b * (ndim == 3 ? c : 1); i++) data[i] = (float)(scale * chain_noise(i, a, ndim));
    return dpcr_array_make(data, DPCR_F32, ndim, shape);
}

static int says_stop(void *user) {
    watched *w = user;
    return w->armed && ++w->asked > 3;
}

static int watched_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                           const dpcr_array *last, const dpcr_array *tape) {
    const watched *w = user;
    return w->steps.advance(w->steps.user, span, in, states, last, tape);
}

static int watched_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                           const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                           const dpcr_array *first_out) {
    const watched *w = user;
    const int64_t end = span->first + (span->lanes - 1) * span->stride + span->steps;
    if (w->fails_at >= span->first && w->fails_at < end) return -7;
    return w->steps.adjoint(w->steps.user, span, in, tape, direct, last, adjoint, first_out);
}

static int watched_gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                            const dpcr_array *adjoint) {
    watched *w = user;
    if (span->rows < w->batch) w->in_parts++;
    if (!adjoint) w->by_tape++;
    if (w->last_rows_fail && span->row > 0 && span->row + span->rows == w->batch) return -8;
    return w->steps.gradient(w->steps.user, span, in, tape, adjoint);
}

// Backward by the loop, or, with a run-up, by chunks of 20 steps. f->watch.fails_at is set, the rest made.
static void make_shape(fixture *f, dpcr_architecture architecture, int consume, int layer_norm, int64_t warm_up,
                       int threads, int64_t batch, int64_t width) {
    const dpcr_context_options context = {
        .size = sizeof context, .threads = threads, .cancel = says_stop, .cancel_user = &f->watch};
    assert_int_equal(dpcr_context_create(&context, &f->context, NULL), DPCR_OK);
    f->batch = f->watch.batch = batch, f->width = width;
    const dpcr_model_options options = {.size = sizeof options,
                                        .architecture = architecture,
                                        .layers = LAYERS,
                                        .width = width,
                                        .layer_norm = layer_norm,
                                        .seed = 5};
    const dpcr_solve_options solve = {.size = sizeof solve,
                                      .method = DPCR_METHOD_SEQUENTIAL,
                                      .backward = warm_up ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL,
                                      .warm_up = warm_up,
                                      .chunk = warm_up ? 20 : 0,
                                      .atol = -1,
                                      .rtol = -1,
                                      .consume_tape = consume};
    dpcr_steps *model = &f->watch.steps;
    *model = (dpcr_steps){.size = sizeof *model};
    assert_int_equal(dpcr_model_create(f->context, &options, &f->model, NULL), DPCR_OK);
    assert_int_equal(dpcr_model_steps(f->model, batch, model, NULL), DPCR_OK);
    dpcr_steps steps = {.size = sizeof steps,
                        .user = &f->watch,
                        .length = LAYERS,
                        .batch = batch,
                        .width = width,
                        .dtype = DPCR_F32,
                        .concurrent = 1,
                        .jacobian = model->jacobian,
                        .flops = model->flops,
                        .jacobian_flops = model->jacobian_flops,
                        .tape_values = model->tape_values,
                        .gradient_from_tape = model->gradient_from_tape,
                        .gradient_rows = model->gradient_rows,
                        .advance = watched_advance,
                        .adjoint = watched_adjoint,
                        .gradient = watched_gradient};
    assert_int_equal(dpcr_solve_plan_create(f->context, &steps, &solve, &f->plan, NULL), DPCR_OK);
    f->bytes = dpcr_solve_plan_workspace(f->plan);
    f->workspace = solving_workspace(f->bytes);
    f->z0 = numbers(2, batch, width, 0, 1), f->z = numbers(3, LAYERS, batch, width, 0);
    f->tape = numbers(3, LAYERS, batch, steps.tape_values, 0), f->last = numbers(2, batch, width, 0, 1);
    f->dz0 = numbers(2, batch, width, 0, 0);
    dpcr_model_vector(f->model, &f->count);
    assert_int_equal(dpcr_solve_execute(f->plan, &f->z0, &f->z, &f->tape, f->workspace, f->bytes, NULL, NULL), DPCR_OK);
}

static fixture *make(dpcr_architecture architecture, int consume, int layer_norm, int64_t warm_up, int threads) {
    fixture *f = calloc(1, sizeof *f);
    f->watch.fails_at = -1;
    make_shape(f, architecture, consume, layer_norm, warm_up, threads, BATCH, WIDTH);
    return f;
}

static float *gradients(fixture *f, int with_tape) {
    float *copy = malloc((size_t)f->count * sizeof *copy);
    dpcr_solve_report report = {.size = sizeof report};
    dpcr_model_zero_gradients(f->model);
    assert_int_equal(dpcr_solve_backward(f->plan, &f->z0, &f->z, with_tape ? &f->tape : NULL, NULL, &f->last, NULL,
                                         &f->dz0, f->workspace, f->bytes, &report, NULL),
                     DPCR_OK);
    f->sweeps = report.sweeps;
    memcpy(copy, dpcr_model_gradient_vector(f->model), (size_t)f->count * sizeof *copy);
    return copy;
}

static void drop(fixture *f) {
    void *const owned[] = {f->z0.data, f->z.data, f->tape.data, f->last.data, f->dz0.data, f->workspace};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    dpcr_solve_plan_destroy(f->plan);
    dpcr_model_destroy(f->model);
    dpcr_context_destroy(f->context);
    free(f);
}

static void backward_may_be_repeated(void **state) {
    (void)state;
    for (int norm = 0; norm < 2; norm++) {
        fixture *f = make(DPCR_RESNET, 0, norm, 0, 2);
        const size_t bytes = (size_t)f->count * sizeof(float);
        float *first = gradients(f, 1), *second = gradients(f, 1), *recomputed = gradients(f, 0);
        double size = 0;
        for (int64_t i = 0; i < f->count; i++) size = fmax(size, fabs((double)first[i]));
        assert_true(size > 1e-3);
        assert_memory_equal(first, second, bytes);
        assert_memory_equal(first, recomputed, bytes);
        fixture *g = make(DPCR_RESNET, 1, norm, 0, 2);
        float *consumed = gradients(g, 1);
        assert_memory_equal(first, consumed, bytes);
        assert_memory_equal(f->dz0.data, g->dz0.data, BATCH * WIDTH * sizeof(float));
        free(first), free(second), free(recomputed), free(consumed);
        drop(f), drop(g);
    }
}

// Sweeps: 1 where all chunks stood, up to 3 where some ran again, 4 where sequences went in order.
static void chunks_use_it_up_as_the_loop_does(void **state) {
    (void)state;
    static const struct {
        dpcr_architecture architecture;
        int64_t warm_up;
        int least, most;
    } cases[] = {{DPCR_MLP, 130, 1, 1}, {DPCR_MLP, 70, 2, 3}, {DPCR_MLP, 3, 4, 4}, {DPCR_RESNET, 20, 4, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture *f = make(cases[i].architecture, 1, 0, 0, 1);
        float *loop = gradients(f, 1);
        for (int threads = 1; threads <= 2; threads++) {
            fixture *g = make(cases[i].architecture, 1, 0, cases[i].warm_up, threads);
            float *chunks = gradients(g, 1);
            assert_in_range(g->sweeps, cases[i].least, cases[i].most);
            assert_memory_equal(loop, chunks, (size_t)f->count * sizeof(float));
            assert_memory_equal(f->dz0.data, g->dz0.data, BATCH * WIDTH * sizeof(float));
            free(chunks);
            drop(g);
        }
        free(loop);
        drop(f);
    }
}

static const struct {
    int64_t batch, width;
    int threads;
} shared[] = {{128, 32, 2}, {150, 33, 2}, {200, 20, 3}, {257, 48, 4}, {300, 64, 3}};

static fixture *make_shared(size_t i, int consume, int threads, int64_t fails_at) {
    fixture *f = calloc(1, sizeof *f);
    f->watch.fails_at = fails_at;
    make_shape(f, DPCR_RESNET, consume, 0, 0, threads, shared[i].batch, shared[i].width);
    return f;
}

static void parts_add_one_after_the_other(void **state) {
    (void)state;
    for (size_t i = TESTS_SANITIZED; i < sizeof shared / sizeof *shared; i += 1 + TESTS_SANITIZED) {
        fixture *f = make_shared(i, 0, 1, -1), *one = make_shared(i, 1, 1, -1);
        fixture *many = make_shared(i, 1, shared[i].threads, -1);
        float *kept = gradients(f, 1), *alone = gradients(one, 1), *parts = gradients(many, 1);
        const size_t bytes = (size_t)f->count * sizeof(float), states = (size_t)(f->batch * f->width) * sizeof(float);
        assert_memory_equal(kept, alone, bytes);
        assert_memory_equal(kept, parts, bytes);
        assert_memory_equal(f->dz0.data, one->dz0.data, states);
        assert_memory_equal(f->dz0.data, many->dz0.data, states);
        assert_true(f->watch.in_parts == 0 && one->watch.in_parts == 0 && many->watch.in_parts > 0);
        assert_true(f->watch.by_tape == 0 && one->watch.by_tape > 0 && many->watch.by_tape == many->watch.in_parts);
        free(kept), free(alone), free(parts);
        drop(f), drop(one), drop(many);
    }
}

// Where the tape is kept, or not even there: adjoint states lie in the workspace, or with the caller.
static void parts_beside_the_tape(void **state) {
    (void)state;
    for (size_t i = TESTS_SANITIZED; i < sizeof shared / sizeof *shared; i += 1 + TESTS_SANITIZED) {
        fixture *one = make_shared(i, 0, 1, -1), *many = make_shared(i, 0, shared[i].threads, -1);
        const size_t bytes = (size_t)one->count * sizeof(float),
                     states = (size_t)(one->batch * one->width) * sizeof(float);
        dpcr_array lambda[2];
        for (int k = 0; k < 2; k++) {
            fixture *f = k ? many : one;
            lambda[k] = numbers(3, LAYERS, f->batch, f->width, 0);
            dpcr_model_zero_gradients(f->model);
            assert_int_equal(dpcr_solve_backward(f->plan, &f->z0, &f->z, &f->tape, NULL, &f->last, &lambda[k], &f->dz0,
                                                 f->workspace, f->bytes, NULL, NULL),
                             DPCR_OK);
        }
        assert_memory_equal(lambda[0].data, lambda[1].data, LAYERS * states);
        assert_memory_equal(dpcr_model_gradient_vector(one->model), dpcr_model_gradient_vector(many->model), bytes);
        assert_true(one->watch.in_parts == 0 && many->watch.in_parts > 0);
        for (int with_tape = 0; with_tape < 2; with_tape++) {
            many->watch.in_parts = 0;
            float *alone = gradients(one, with_tape), *parts = gradients(many, with_tape);
            assert_memory_equal(alone, parts, bytes);
            assert_memory_equal(one->dz0.data, many->dz0.data, states);
            assert_true(many->watch.in_parts > 0);
            free(alone), free(parts);
        }
        free(lambda[0].data), free(lambda[1].data);
        drop(one), drop(many);
    }
}

static void one_that_fails_ends_all(void **state) {
    (void)state;
    static const int64_t steps[] = {0, 1, 60, LAYERS - 1};
    for (size_t i = 0; i < 2 * sizeof steps / sizeof *steps; i++) {
        fixture *f = make_shared(2, i % 2, shared[2].threads, steps[i / 2]);
        dpcr_error error;
        assert_int_equal(dpcr_solve_backward(f->plan, &f->z0, &f->z, &f->tape, NULL, &f->last, NULL, &f->dz0,
                                             f->workspace, f->bytes, NULL, &error),
                         DPCR_ERROR_CALLBACK);
        assert_int_equal(error.code, -7);
        drop(f);
    }
    fixture *f = make_shared(2, 1, shared[2].threads, -1);
    dpcr_error error;
    f->watch.last_rows_fail = true;
    assert_int_equal(dpcr_solve_backward(f->plan, &f->z0, &f->z, &f->tape, NULL, &f->last, NULL, &f->dz0, f->workspace,
                                         f->bytes, NULL, &error),
                     DPCR_ERROR_CALLBACK);
    assert_int_equal(error.code, -8);
    drop(f);
}

// A gradient that comes in at every step, by as many threads as a caller lets work and by all.
static void parts_follow_the_limit(void **state) {
    (void)state;
    for (size_t i = TESTS_SANITIZED; i < sizeof shared / sizeof *shared; i += 1 + TESTS_SANITIZED) {
        float *first = NULL;
        for (int turn = 0; turn < 2 * (shared[i].threads + 1); turn += 1 + 2 * TESTS_SANITIZED) {
            const int limit = turn / 2;
            fixture *f = make_shared(i, turn % 2, shared[i].threads, -1);
            const dpcr_array direct = numbers(3, LAYERS, f->batch, f->width, 1e-2);
            dpcri_threads_limit(limit);
            dpcr_model_zero_gradients(f->model);
            assert_int_equal(dpcr_solve_backward(f->plan, &f->z0, &f->z, &f->tape, &direct, &f->last, NULL, &f->dz0,
                                                 f->workspace, f->bytes, NULL, NULL),
                             DPCR_OK);
            dpcri_threads_limit(0);
            assert_int_equal(f->watch.in_parts > 0, limit != 1);
            const size_t bytes = (size_t)f->count * sizeof(float);
            if (!first)
                memcpy(first = malloc(bytes), dpcr_model_gradient_vector(f->model), bytes);
            else
                assert_memory_equal(first, dpcr_model_gradient_vector(f->model), bytes);
            free(direct.data);
            drop(f);
        }
        free(first);
    }
}

static void a_caller_who_says_stop_ends_all(void **state) {
    (void)state;
    fixture *f = make_shared(2, 1, shared[2].threads, -1);
    f->watch.armed = true;
    assert_int_equal(dpcr_solve_backward(f->plan, &f->z0, &f->z, &f->tape, NULL, &f->last, NULL, &f->dz0, f->workspace,
                                         f->bytes, NULL, NULL),
                     DPCR_ERROR_CANCELLED);
    assert_true(f->watch.asked > 3);
    drop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_may_be_repeated),       cmocka_unit_test(chunks_use_it_up_as_the_loop_does),
        cmocka_unit_test(parts_add_one_after_the_other),  cmocka_unit_test(parts_beside_the_tape),
        cmocka_unit_test(one_that_fails_ends_all),        cmocka_unit_test(parts_follow_the_limit),
        cmocka_unit_test(a_caller_who_says_stop_ends_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
