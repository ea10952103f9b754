// SPDX-License-Identifier: MIT
// The backward pass in overlapped chunks against the adjoint loop: bit for bit with tolerance 0, within the tolerance
// else, also on chains that do not forget; for any number of threads, lanes, rows and windows. Forward too, the lanes
// of a call are shared among threads that would have none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <stdio.h>

#include "chains.h"
#include "solving.h"

static const double forgets[2] = {0.9, 0}, keeps[2] = {0.5, 0.05};

static dpcr_solve_options options_of(dpcr_scheme backward, double tolerance) {
    return (dpcr_solve_options){.size = sizeof(dpcr_solve_options),
                                .method = DPCR_METHOD_SEQUENTIAL,
                                .backward = backward,
                                .warm_up = 40,
                                .atol = tolerance,
                                .rtol = tolerance};
}

static solved run(dpcr_context *context, chain *c, int64_t lanes, void *z0, const dpcr_solve_options *options) {
    dpcr_steps steps = chain_steps(c);
    steps.lanes = lanes;
    steps.flops = 0;  // unknown: always handed to the threads
    solved s = solve_steps(context, &steps, c, z0, options, NULL, 1);
    if (s.status != DPCR_OK) fail_msg("%s", s.error.text);
    return s;
}

static double largest_size(const chain *c, const void *x) {
    const int64_t shape[1] = {c->length * c->batch * c->width};
    const dpcr_array a = dpcr_array_make((void *)x, c->dtype, 1, shape);
    double size = 0;
    for (int64_t i = 0; i < shape[0]; i++) size = fmax(size, fabs(chain_get(&a, i)));
    return size;
}

static void same_bits(const chain *c, const solved *a, const solved *b, const char *what) {
    if (memcmp(a->lambda, b->lambda, solving_bytes(c) - 64) != 0 ||
        memcmp(a->dz0, b->dz0, (size_t)(c->batch * c->width) * dpcr_dtype_size(c->dtype)) != 0)
        fail_msg("%s: length %d, batch %d, width %d", what, (int)c->length, (int)c->batch, (int)c->width);
}

// Lengths around chunk counts, step 0 apart, lanes that do not divide.
static void tolerance_zero_is_the_loop(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const int64_t lengths[] = {1, 2, 3, 79, 81, 82, 200, 513, 1024, 1500}, lanes[] = {0, 1, 3, 8};
    for (int keep = 0; keep < 2; keep++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t k = 0; k < sizeof lanes / sizeof *lanes; k++) {
                chain c = {.step = step_tanh,
                           .length = lengths[i],
                           .batch = 3,
                           .width = 1 + (int64_t)(i + k) % 3,
                           .dtype = k % 2 ? DPCR_F32 : DPCR_F64,
                           .parameters = keep ? keeps : forgets};
                void *z0 = starts(&c);
                dpcr_solve_options o = options_of(DPCR_SCHEME_OVERLAP, -1);
                solved chunks = run(context, &c, lanes[k], z0, &o);
                o.chunk = 23;
                solved short_ones = run(context, &c, lanes[k], z0, &o);
                o = options_of(DPCR_SCHEME_SEQUENTIAL, -1);
                solved loop = run(context, &c, lanes[k], z0, &o);
                same_bits(&c, &chunks, &loop, keep ? "a chain that keeps" : "a chain that forgets");
                same_bits(&c, &short_ones, &loop, "short chunks");
                solved_free(&chunks), solved_free(&loop), solved_free(&short_ones);
                free(z0);
            }
    dpcr_context_destroy(context);
}

// Chunks that hardly begin early, and whose borders may be off, are told apart by their lengths: backward_chunk is
// taken before chunk, which is forward's too.
static void chunks_of_their_own(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_tanh, .length = 500, .batch = 2, .width = 2, .dtype = DPCR_F64, .parameters = keeps};
    void *z0 = starts(&c);
    dpcr_solve_options o = options_of(DPCR_SCHEME_OVERLAP, 1e9);
    o.warm_up = 1;
    solved usual = run(context, &c, 4, z0, &o);
    o.chunk = 23;
    solved short_ones = run(context, &c, 4, z0, &o);
    o.chunk = 100, o.backward_chunk = 23;
    solved own = run(context, &c, 4, z0, &o);
    same_bits(&c, &own, &short_ones, "chunks of their own");
    assert_memory_not_equal(usual.lambda, own.lambda, solving_bytes(&c) - 64);
    o.backward_chunk = INT64_MAX;  // as long as the chain: the loop
    solved one = run(context, &c, 4, z0, &o);
    o = options_of(DPCR_SCHEME_SEQUENTIAL, -1);
    solved loop = run(context, &c, 4, z0, &o);
    same_bits(&c, &one, &loop, "one chunk");
    dpcr_steps steps = chain_steps(&c);
    dpcr_solve_plan *plan = NULL;
    o.backward_chunk = -1;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &plan, NULL), DPCR_ERROR_ARGUMENT);
    solved_free(&usual), solved_free(&short_ones), solved_free(&own), solved_free(&one), solved_free(&loop);
    free(z0);
    dpcr_context_destroy(context);
}

// What became of the way back is told: by the loop, to the bit, within the tolerance, or finished in order, where
// no_fallback changes nothing.
// One component that no state has grows on the way back beyond all numbers.
static void step_apart(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)l, (void)b;
    out[0] = 0.9 * in[0], out[1] = 5 * in[1];
    if (j) j[0] = 0.9, j[1] = j[2] = 0, j[3] = 5;
}

static void products_that_overflow_are_told(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_apart, .length = 600, .batch = 2, .width = 2, .dtype = DPCR_F64};
    double z0[4] = {1, 0, -1, 0};
    dpcr_solve_options o = options_of(DPCR_SCHEME_CHUNKED, -1);
    o.backward_chunk = 23;
    solved s = run(context, &c, 4, z0, &o);
    assert_int_equal(s.back.reason, DPCR_REASON_FALLBACK);
    solved_free(&s);
    dpcr_context_destroy(context);
}

static void the_way_back_is_told(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    const struct {
        const double *parameters;
        dpcr_scheme backward;
        int64_t warm_up, chunk;
        double tolerance;
        dpcr_reason reason;
    } ways[] = {{forgets, DPCR_SCHEME_SEQUENTIAL, 40, 23, -1, DPCR_REASON_SEQUENTIAL},
                {forgets, DPCR_SCHEME_CHUNKED, 40, 23, -1, DPCR_REASON_CONVERGED},
                {forgets, DPCR_SCHEME_OVERLAP, 600, 23, -1, DPCR_REASON_EXACT},
                {forgets, DPCR_SCHEME_OVERLAP, 40, 23, 0.1, DPCR_REASON_RESIDUAL_ONLY},
                {keeps, DPCR_SCHEME_OVERLAP, 1, 4, -1, DPCR_REASON_FALLBACK}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int strict = 0; strict < 2; strict++) {
            chain c = {.step = step_tanh,
                       .length = 600,
                       .batch = 2,
                       .width = 2,
                       .dtype = DPCR_F64,
                       .parameters = ways[i].parameters};
            void *z0 = starts(&c);
            dpcr_solve_options o = options_of(ways[i].backward, ways[i].tolerance);
            o.warm_up = ways[i].warm_up, o.backward_chunk = ways[i].chunk, o.no_fallback = strict;
            solved s = run(context, &c, 4, z0, &o);
            if (s.back.reason != ways[i].reason) fail_msg("way %d: %s", (int)i, dpcr_reason_name(s.back.reason));
            o = options_of(DPCR_SCHEME_SEQUENTIAL, -1);
            solved loop = run(context, &c, 4, z0, &o);
            if (ways[i].reason == DPCR_REASON_FALLBACK) same_bits(&c, &s, &loop, "finished in order");
            solved_free(&s), solved_free(&loop);
            free(z0);
        }
    dpcr_context_destroy(context);
}

static void tolerance_holds(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    for (int keep = 0; keep < 2; keep++)
        for (int64_t w = 1; w <= 12; w += 11) {
            chain c = {.step = step_tanh, .length = 900, .batch = 2, .width = w, .dtype = DPCR_F64};
            c.parameters = keep ? keeps : forgets;
            void *z0 = starts(&c);
            dpcr_solve_options o = options_of(DPCR_SCHEME_OVERLAP, 1e-9);
            o.warm_up = 25;
            solved chunks = run(context, &c, 4, z0, &o);
            o = options_of(DPCR_SCHEME_SEQUENTIAL, 1e-9);
            solved loop = run(context, &c, 4, z0, &o);
            assert_true(largest_error(&c, chunks.lambda, loop.lambda) <= 1e-7 * largest_size(&c, loop.lambda));
            solved_free(&chunks), solved_free(&loop);
            free(z0);
        }
    dpcr_context_destroy(context);
}

// With a tolerance too: any number of threads; without one, windows.
static void bits_depend_on_nothing_else(void **state) {
    (void)state;
    dpcr_context *one = solving_context(1), *two = solving_context(2), *three = solving_context(3);
    chain c = {.step = step_tanh, .length = 700, .batch = 4, .width = 5, .dtype = DPCR_F32, .parameters = forgets};
    void *z0 = starts(&c);
    dpcr_solve_options o = options_of(DPCR_SCHEME_OVERLAP, 1e-6);
    o.warm_up = 12;
    solved a = run(one, &c, 8, z0, &o), b = run(two, &c, 8, z0, &o), d = run(three, &c, 8, z0, &o);
    same_bits(&c, &a, &b, "two threads"), same_bits(&c, &a, &d, "three threads");
    o = options_of(DPCR_SCHEME_OVERLAP, -1);
    solved whole = run(two, &c, 8, z0, &o);
    o.memory_limit = 40000;
    solved windows = run(two, &c, 8, z0, &o);
    same_bits(&c, &whole, &windows, "windows");
    solved_free(&a), solved_free(&b), solved_free(&d), solved_free(&whole), solved_free(&windows);
    free(z0);
    dpcr_context_destroy(one), dpcr_context_destroy(two), dpcr_context_destroy(three);
}

static _Atomic int64_t most_lanes;

static int advance_and_note(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                            const dpcr_array *last, const dpcr_array *tape) {
    if (span->lanes > most_lanes) most_lanes = span->lanes;
    return chain_advance(user, span, in, states, last, tape);
}

// The same states, reruns and all, however the chunks of a call are shared.
static void threads_share_lanes_forward(void **state) {
    (void)state;
    const int64_t lanes[] = {2, 5, 8, 15, 16}, lengths[] = {63, 700, 1000};
    for (int keep = 0; keep < 2; keep++)
        for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
            for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
                chain c = {.step = step_tanh,
                           .length = lengths[n],
                           .batch = 1 + (int64_t)n,
                           .width = 3,
                           .dtype = DPCR_F32,
                           .parameters = keep ? keeps : forgets};
                void *z0 = starts(&c);
                dpcr_solve_options o = options_of(DPCR_SCHEME_SEQUENTIAL, 1e-6);
                o.method = DPCR_METHOD_OVERLAP, o.warm_up = 4, o.chunk = lengths[n] / 8;
                solved first = {0};
                for (int threads = 1; threads <= 4; threads++) {
                    dpcr_context *context = solving_context(threads);
                    dpcr_steps steps = chain_steps(&c);
                    steps.lanes = lanes[i], steps.flops = 0, steps.advance = advance_and_note;
                    most_lanes = 0;
                    solved s = solve_steps(context, &steps, &c, z0, &o, NULL, 0);
                    assert_int_equal(s.status, DPCR_OK);
                    const int64_t chunks = c.length / o.chunk, share = (chunks + threads - 1) / threads;
                    if (s.report.sweeps == 1)
                        assert_true(most_lanes <= (lanes[i] < 16 && share < lanes[i] ? share : lanes[i]));
                    if (threads > 1) {
                        assert_memory_equal(first.z, s.z, solving_bytes(&c) - 64);
                        assert_int_equal(first.report.evaluations, s.report.evaluations);
                        assert_int_equal(first.report.reason, s.report.reason);
                        solved_free(&s);
                    } else {
                        first = s;
                    }
                    dpcr_context_destroy(context);
                }
                solved_free(&first);
                free(z0);
            }
}

// A named method has the same bits for any number of threads, whatever AUTO then takes for the way back.
static void forward_knows_nothing_of_the_way_back(void **state) {
    (void)state;
    for (int back = 0; back < 2; back++) {
        solved first = {0};
        chain c = {
            .step = step_tanh, .length = 2048, .batch = 1, .width = 14, .dtype = DPCR_F32, .parameters = forgets};
        void *z0 = starts(&c);
        for (int threads = 1; threads <= 4; threads++) {
            dpcr_context *context = solving_context(threads);
            dpcr_solve_options o = {.size = sizeof o, .method = DPCR_METHOD_OVERLAP};
            o.backward = back ? DPCR_SCHEME_SEQUENTIAL : DPCR_SCHEME_AUTO;
            dpcr_steps steps = chain_steps(&c);
            steps.flops = 2 * 14 * 14;
            dpcr_solve_plan *plan = NULL;
            dpcr_error error = {0};
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &plan, &error), DPCR_OK);
            assert_int_equal(dpcr_solve_plan_options(plan)->warm_up, 64);
            dpcr_solve_plan_destroy(plan);
            solved s = solve_steps(context, &steps, &c, z0, &o, NULL, 0);
            assert_int_equal(s.status, DPCR_OK);
            if (threads > 1) {
                assert_memory_equal(first.z, s.z, solving_bytes(&c) - 64);
                solved_free(&s);
            } else {
                first = s;
            }
            dpcr_context_destroy(context);
        }
        solved_free(&first);
        free(z0);
    }
}

// One sequence's adjoint is not finite: the others keep their bits, and it has the loop's.
static void a_spoiled_sequence_stays_alone(void **state) {
    (void)state;
    enum { L = 400, B = 3, W = 2 };
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_tanh, .length = L, .batch = B, .width = W, .dtype = DPCR_F64, .parameters = forgets};
    double *z0 = starts(&c), *z = loop_of(&c, z0), last[B * W], direct[L * B * W] = {0}, lambda[3][L * B * W];
    const int64_t shape[3] = {L, B, W};
    const dpcr_array first = dpcr_array_make(z0, DPCR_F64, 2, shape + 1), zs = dpcr_array_make(z, DPCR_F64, 3, shape),
                     end = dpcr_array_make(last, DPCR_F64, 2, shape + 1),
                     given = dpcr_array_make(direct, DPCR_F64, 3, shape);
    for (int i = 0; i < B * W; i++) last[i] = 1 + i;
    for (int way = 0; way < 3; way++) {
        const dpcr_steps steps = chain_steps(&c);
        const dpcr_solve_options o = options_of(way ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL, -1);
        direct[200 * B * W + 1 * W] = way < 2 ? NAN : 0;
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = solving_workspace(bytes);
        const dpcr_array out = dpcr_array_make(lambda[way], DPCR_F64, 3, shape);
        assert_int_equal(
            dpcr_solve_backward(plan, &first, &zs, NULL, &given, &end, &out, NULL, workspace, bytes, NULL, NULL),
            DPCR_OK);
        free(workspace);
        dpcr_solve_plan_destroy(plan);
    }
    for (int64_t l = 0; l < L; l++)
        for (int64_t i = 0; i < B * W; i++) {
            const double loop = lambda[0][l * B * W + i], chunks = lambda[1][l * B * W + i];
            if (isnan(loop))
                assert_true(isnan(chunks));
            else
                assert_true(loop == chunks);
            if (i / W != 1) assert_true(chunks == lambda[2][l * B * W + i]);
        }
    free(z0), free(z);
    dpcr_context_destroy(context);
}

// Chunks of 20 steps that keep all they are given; step 181 takes 1e10 of its own gradient, 1, and of what comes to it
// from 19 steps further right, which all but cancels that: a run-up of 10 steps sees 1e10, where all states are
// about 1.
enum { STALE_CHUNK = 20, STALE_STEP = 1 + 9 * STALE_CHUNK, STALE_LENGTH = 1 + 12 * STALE_CHUNK };

static void step_that_cancels(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double a = l == STALE_STEP ? 1e10 : 1;
    (void)c, (void)b;
    out[0] = a * in[0];
    if (j) j[0] = a;
}

// What a chunk began with by mistake is no measure of what is small.
static void a_wrong_start_sets_no_scale(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_that_cancels, .length = STALE_LENGTH, .batch = 1, .width = 1, .dtype = DPCR_F64};
    const dpcr_steps steps = chain_steps(&c);
    const int64_t shape[3] = {STALE_LENGTH, 1, 1};
    double start[1] = {0}, z[STALE_LENGTH] = {0}, g[STALE_LENGTH] = {0}, lambda[2][STALE_LENGTH];
    const dpcr_array z0 = dpcr_array_make(start, DPCR_F64, 2, shape + 1), zs = dpcr_array_make(z, DPCR_F64, 3, shape),
                     direct = dpcr_array_make(g, DPCR_F64, 3, shape);
    g[STALE_STEP] = 1;
    g[STALE_STEP + STALE_CHUNK - 1] = -1 + 1e-10;
    for (int way = 0; way < 2; way++) {
        dpcr_solve_options o = options_of(way ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL, 1e-9);
        o.chunk = STALE_CHUNK, o.warm_up = STALE_CHUNK / 2;
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = solving_workspace(bytes);
        const dpcr_array to = dpcr_array_make(lambda[way], DPCR_F64, 3, shape);
        assert_int_equal(
            dpcr_solve_backward(plan, &z0, &zs, NULL, &direct, NULL, &to, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
        free(workspace);
        dpcr_solve_plan_destroy(plan);
    }
    assert_true(fabs(lambda[0][0] - 1) < 1e-3);
    for (int l = 0; l < STALE_LENGTH; l++)
        if (!(fabs(lambda[1][l] - lambda[0][l]) <= 1e-7))
            fail_msg("lambda %d is %g, the loop's %g", l, lambda[1][l], lambda[0][l]);
    dpcr_context_destroy(context);
}

static _Atomic int64_t adjoint_steps;

static int adjoint_and_count(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                             const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                             const dpcr_array *first_out) {
    adjoint_steps += span->lanes * span->steps;
    return chain_adjoint(user, span, in, tape, direct, last, adjoint, first_out);
}

// Which chunks run again does not follow from what the workspace held before.
static void a_used_workspace_is_as_good(void **state) {
    (void)state;
    enum { L = 400, W = 2 };
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_tanh, .length = L, .batch = 1, .width = W, .dtype = DPCR_F64, .parameters = keeps};
    double *z0 = starts(&c), *z = loop_of(&c, z0), last[W] = {1, -2};
    const int64_t shape[3] = {L, 1, W};
    const dpcr_array first = dpcr_array_make(z0, DPCR_F64, 2, shape + 1), zs = dpcr_array_make(z, DPCR_F64, 3, shape),
                     end = dpcr_array_make(last, DPCR_F64, 2, shape + 1);
    dpcr_steps steps = chain_steps(&c);
    steps.adjoint = adjoint_and_count;
    dpcr_solve_options o = options_of(DPCR_SCHEME_OVERLAP, 1e-3);
    o.chunk = 50, o.warm_up = 5;
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = solving_workspace(bytes);
    int64_t counted[2];
    for (int used = 0; used < 2; used++) {
        memset(workspace, used ? 0xff : 0, bytes);
        adjoint_steps = 0;
        assert_int_equal(
            dpcr_solve_backward(plan, &first, &zs, NULL, NULL, &end, NULL, NULL, workspace, bytes, NULL, NULL),
            DPCR_OK);
        counted[used] = adjoint_steps;
    }
    assert_true(counted[0] > L);
    assert_int_equal(counted[1], counted[0]);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    free(z0), free(z);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tolerance_zero_is_the_loop),
                                       cmocka_unit_test(chunks_of_their_own),
                                       cmocka_unit_test(the_way_back_is_told),
                                       cmocka_unit_test(products_that_overflow_are_told),
                                       cmocka_unit_test(tolerance_holds),
                                       cmocka_unit_test(bits_depend_on_nothing_else),
                                       cmocka_unit_test(threads_share_lanes_forward),
                                       cmocka_unit_test(forward_knows_nothing_of_the_way_back),
                                       cmocka_unit_test(a_spoiled_sequence_stays_alone),
                                       cmocka_unit_test(a_wrong_start_sets_no_scale),
                                       cmocka_unit_test(a_used_workspace_is_as_good)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
