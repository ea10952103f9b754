// SPDX-License-Identifier: MIT
// The backward pass by composing inside the callback (adjoint_window): against the adjoint loop within rounding, the
// same bits for any number of threads and any batch, with and without a tape; by the loop where the callback refuses or
// a product leaves the finite numbers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"
#include "sampled.h"

enum { LONGEST = 20000, B = 3, W = 4, NUMBERS = LONGEST * B * W };

static uint32_t seed = 1;

static void fill(float *x, int64_t count, double size) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(size * ((double)(seed >> 8) / (1 << 23) - 1));
    }
}

// A cell's chain and what goes in.
typedef struct chain {
    dpcr_context *context;
    dpcr_cell *cell;
    dpcr_steps steps;
    int64_t length, batch, width;
} chain;

static float weight[LONGEST * W * W], input[NUMBERS], z[NUMBERS], tape[NUMBERS], direct[NUMBERS], z0[B * W],
    last[B * W];

static chain chain_make(int64_t length, int64_t batch, int64_t width, dpcr_activation activation, double scale,
                        bool own, int threads) {
    chain c = {.steps = {.size = sizeof c.steps}, .length = length, .batch = batch, .width = width};
    const dpcr_context_options context = {.size = sizeof context, .threads = threads};
    assert_int_equal(dpcr_context_create(&context, &c.context, NULL), DPCR_OK);
    const int64_t states[3] = {length, batch, width}, weights[3] = {length, width, width};
    const dpcr_cell_options options = {
        .size = sizeof options,
        .kind = DPCR_CELL_DENSE,
        .dtype = DPCR_F32,
        .length = length,
        .batch = batch,
        .width = width,
        .activation = activation,
        .scale = scale,
        .weight = dpcr_array_make(weight, DPCR_F32, 2 + own, own ? weights : weights + 1),
        .input = dpcr_array_make(input, DPCR_F32, 3, states)};
    assert_int_equal(dpcr_cell_create(c.context, &options, &c.cell, NULL), DPCR_OK);
    assert_int_equal(dpcr_cell_steps(c.cell, &c.steps, NULL), DPCR_OK);
    return c;
}

static void chain_drop(chain *c) {
    dpcr_cell_destroy(c->cell);
    dpcr_context_destroy(c->context);
}

// The first `batch` sequences of arrays [length][B][w].
static dpcr_array sequences(const chain *c, float *data) {
    const int64_t all[3] = {c->length, B, c->width};
    dpcr_array a = dpcr_array_make(data, DPCR_F32, 3, all);
    a.shape[1] = c->batch;
    return a;
}

static dpcr_status backward(const chain *c, dpcr_scheme scheme, bool taped, bool forward, float *lambda, float *dz0) {
    const dpcr_solve_options o = {.size = sizeof o, .method = DPCR_METHOD_SEQUENTIAL, .backward = scheme};
    const int64_t state[2] = {c->batch, c->width};
    const dpcr_array starts = dpcr_array_make(z0, DPCR_F32, 2, state), ends = dpcr_array_make(last, DPCR_F32, 2, state),
                     out = dpcr_array_make(dz0, DPCR_F32, 2, state), states = sequences(c, z),
                     slopes = sequences(c, tape), given = sequences(c, direct), adjoints = sequences(c, lambda);
    dpcr_solve_plan *plan = NULL;
    assert_int_equal(dpcr_solve_plan_create(c->context, &c->steps, &o, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(workspace);
    if (forward)
        assert_int_equal(dpcr_solve_execute(plan, &starts, &states, &slopes, workspace, bytes, NULL, NULL), DPCR_OK);
    const dpcr_status status = dpcr_solve_backward(plan, &starts, &states, taped ? &slopes : NULL, &given, &ends,
                                                   &adjoints, out.data ? &out : NULL, workspace, bytes, NULL, NULL);
    free(workspace);
    dpcr_solve_plan_destroy(plan);
    return status;
}

static float loop[NUMBERS], composed[NUMBERS], other[NUMBERS];

static void same(const chain *c, const float *a, const float *b, const char *what) {
    for (int64_t l = 0; l < c->length; l++)
        if (memcmp(a + l * B * c->width, b + l * B * c->width, (size_t)(c->batch * c->width) * sizeof *a) != 0)
            fail_msg("%s: length %d, batch %d, width %d, step %d", what, (int)c->length, (int)c->batch, (int)c->width,
                     (int)l);
}

static void check(int64_t length, int64_t width, double scale, bool own) {
    fill(weight, LONGEST * W * W, 0.9 / sqrt((double)width)), fill(input, NUMBERS, 1.5), fill(z0, B * W, 1);
    fill(last, B * W, 1), fill(direct, NUMBERS, 1);
    chain one = chain_make(length, B, width, DPCR_ACT_TANH, scale, own, 1);
    chain two = chain_make(length, B, width, DPCR_ACT_TANH, scale, own, 2);
    float dz0[2][B * W];
    assert_int_equal(backward(&one, DPCR_SCHEME_SEQUENTIAL, true, true, loop, dz0[0]), DPCR_OK);
    assert_int_equal(backward(&one, DPCR_SCHEME_CHUNKED, true, false, composed, dz0[1]), DPCR_OK);
    double size = 0, error = 0;
    for (int64_t i = 0; i < length * B * width; i++) {
        size = fmax(size, fabs((double)loop[i]));
        error = fmax(error, fabs((double)loop[i] - (double)composed[i]));
    }
    for (int64_t i = 0; i < B * width; i++) error = fmax(error, fabs((double)dz0[0][i] - (double)dz0[1][i]));
    // roundings of every step, which go on through the chain
    if (!(error <= 8 * sqrt((double)length) * (double)width * FLT_EPSILON * size))
        fail_msg("length %d, width %d, scale %g, own %d: off by %g of %g", (int)length, (int)width, scale, own, error,
                 size);
    if (one.steps.adjoint_window) {
        two.steps.flops = 0;  // unknown: always handed to the threads
        assert_int_equal(backward(&two, DPCR_SCHEME_CHUNKED, true, false, other, dz0[1]), DPCR_OK);
        same(&one, composed, other, "two threads");
        assert_int_equal(backward(&one, DPCR_SCHEME_CHUNKED, false, false, other, dz0[1]), DPCR_OK);
        same(&one, composed, other, "without a tape");
    }
    chain_drop(&one), chain_drop(&two);
    if (!one.steps.adjoint_window) return;
    // the first sequence alone, where its inputs lie as one sequence's
    float first[LONGEST * W];
    for (int64_t l = 0; l < length; l++)
        memcpy(first + l * width, input + l * B * width, (size_t)width * sizeof *first);
    memcpy(input, first, (size_t)(length * width) * sizeof *first);
    chain alone = chain_make(length, 1, width, DPCR_ACT_TANH, scale, own, 1);
    assert_int_equal(backward(&alone, DPCR_SCHEME_CHUNKED, true, false, other, dz0[1]), DPCR_OK);
    same(&alone, composed, other, "one sequence alone");
    chain_drop(&alone);
}

static void composing_is_the_loop(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 3, 255, 257, 1030, 4100, LONGEST};  // the last in several windows
    int64_t cases = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int64_t w = 1; w <= W; w++)
            for (int form = 0; form < 4; form++)
                if (sampled_for_races(cases++))
                    check(lengths[i], w, form & 1 ? 1 / sqrt((double)lengths[i]) : 0, form & 2);
}

// 2^4000 is no float, but 2^4000 times 0 is 0 for the loop.
static void products_beyond_the_numbers_go_by_the_loop(void **state) {
    (void)state;
    enum { L = 4000 };
    float dz0[B * W];
    chain c = chain_make(L, 1, 1, DPCR_ACT_IDENTITY, 0, false, 1);
    weight[0] = 2;
    memset(input, 0, sizeof input), memset(z0, 0, sizeof z0), memset(last, 0, sizeof last);
    memset(direct, 0, sizeof direct);
    direct[10 * B] = 1;
    assert_int_equal(backward(&c, DPCR_SCHEME_SEQUENTIAL, true, true, loop, dz0), DPCR_OK);
    if (c.steps.adjoint_window) {
        assert_int_equal(backward(&c, DPCR_SCHEME_CHUNKED, true, false, composed, dz0), DPCR_OK);
        same(&c, loop, composed, "beyond the numbers");
        assert_true(dz0[0] == 2048);
    }
    chain_drop(&c);
}

static int answer;
static int calls;

static int refuses(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *slopes,
                   const dpcr_array *given, const dpcr_array *ends, const dpcr_array *adjoint, const dpcr_array *first,
                   const dpcr_handover *handover) {
    (void)user, (void)span, (void)in, (void)slopes, (void)given, (void)ends, (void)adjoint, (void)first, (void)handover;
    calls++;
    return answer;
}

static void what_is_refused_goes_by_the_loop(void **state) {
    (void)state;
    enum { L = 300 };
    float dz0[B * W];
    chain c = chain_make(L, B, 2, DPCR_ACT_TANH, 0, true, 1);
    fill(weight, LONGEST * W * W, 0.7), fill(input, NUMBERS, 1.5), fill(z0, B * W, 1), fill(last, B * W, 1);
    assert_int_equal(backward(&c, DPCR_SCHEME_SEQUENTIAL, true, true, loop, dz0), DPCR_OK);
    c.steps.adjoint_window = refuses, c.steps.adjoint_window_steps = 0;
    answer = 1, calls = 0;
    assert_int_equal(backward(&c, DPCR_SCHEME_CHUNKED, true, false, composed, dz0), DPCR_OK);
    assert_int_equal(calls, B);
    same(&c, loop, composed, "refused");
    answer = -7;
    assert_int_equal(backward(&c, DPCR_SCHEME_CHUNKED, true, false, composed, dz0), DPCR_ERROR_CALLBACK);
    chain_drop(&c);
}

static int (*served)(void *, const dpcr_span *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                     const dpcr_array *, const dpcr_array *, const dpcr_array *, const dpcr_handover *);
static int64_t refused_from, refused_to, failing;

// Windows with steps of a range are refused, as is what holds such a window; one aborts.
static int refuses_some(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *slopes,
                        const dpcr_array *given, const dpcr_array *ends, const dpcr_array *adjoint,
                        const dpcr_array *first, const dpcr_handover *handover) {
    if (span->first <= failing && failing < span->first + span->steps) return -7;
    if (span->first < refused_to && span->first + span->steps > refused_from) return 1;
    return served(user, span, in, slopes, given, ends, adjoint, first, handover);
}

// One sequence, whose windows threads share: some by the loop, the same bits; a callback that aborts ends the call.
static void threads_share_windows(void **state) {
    (void)state;
    for (int64_t w = 1; w <= W; w++) {
        float dz0[3][B * W];
        fill(weight, LONGEST * W * W, 0.9), fill(input, NUMBERS, 1.5), fill(z0, B * W, 1);
        fill(last, B * W, 1), fill(direct, NUMBERS, 1);
        for (int threads = 1; threads <= 3; threads++) {
            chain c = chain_make(LONGEST, 1, w, DPCR_ACT_TANH, 0.01, true, threads);
            c.steps.flops = 0;  // unknown: always handed to the threads
            if (!c.steps.adjoint_window) {
                chain_drop(&c);
                return;
            }
            served = c.steps.adjoint_window, c.steps.adjoint_window = refuses_some;
            refused_from = LONGEST / 3, refused_to = 2 * LONGEST / 3, failing = -1;
            float *to = threads == 1 ? composed : other;
            assert_int_equal(backward(&c, DPCR_SCHEME_CHUNKED, true, threads == 1, to, dz0[threads - 1]), DPCR_OK);
            same(&c, composed, to, "windows of several threads");
            assert_memory_equal(dz0[0], dz0[threads - 1], (size_t)w * sizeof **dz0);
            failing = LONGEST / 2;
            assert_int_equal(backward(&c, DPCR_SCHEME_CHUNKED, true, false, other, dz0[2]), DPCR_ERROR_CALLBACK);
            chain_drop(&c);
        }
    }
}

// ---- states too wide to lie beside a window ----

enum { WIDEST = 8192, FEW_STEPS = 3 };

static int keeps_all(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                     const dpcr_array *last_state, const dpcr_array *slopes) {
    (void)user, (void)in, (void)states, (void)last_state, (void)slopes, (void)span;
    return 0;
}

// lambda is the same at every step.
static int hands_back(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *slopes,
                      const dpcr_array *more, const dpcr_array *right, const dpcr_array *adjoint,
                      const dpcr_array *out) {
    (void)user, (void)in, (void)slopes, (void)more;
    for (int64_t k = 0; adjoint && k < span->steps; k++)
        memcpy((float *)adjoint->data + k * adjoint->strides[1], right->data, WIDEST * sizeof(float));
    if (out) memmove(out->data, right->data, WIDEST * sizeof(float));
    return 0;
}

static int serves_nothing(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *slopes,
                          const dpcr_array *more, const dpcr_array *right, const dpcr_array *adjoint,
                          const dpcr_array *out, const dpcr_handover *handover) {
    (void)user, (void)span, (void)in, (void)slopes, (void)more, (void)right, (void)adjoint, (void)out, (void)handover;
    return 1;
}

static void wide_states_lie_in_the_workspace(void **state) {
    (void)state;
    static float states[FEW_STEPS * WIDEST], from[WIDEST], out[WIDEST];
    const int64_t shape[3] = {FEW_STEPS, 1, WIDEST}, edge[2] = {1, WIDEST};
    const dpcr_context_options options = {.size = sizeof options, .threads = 2};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    const dpcr_steps steps = {.size = sizeof steps,
                              .length = FEW_STEPS,
                              .batch = 1,
                              .width = WIDEST,
                              .dtype = DPCR_F32,
                              .concurrent = 1,
                              .jacobian = {.structure = DPCR_DIAGONAL, .rows = WIDEST, .cols = WIDEST},
                              .advance = keeps_all,
                              .adjoint = hands_back,
                              .adjoint_window = serves_nothing};
    const dpcr_solve_options solve = {
        .size = sizeof solve, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_CHUNKED};
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    if (dpcr_solve_plan_create(context, &steps, &solve, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *work = aligned_alloc(64, (bytes + 64) / 64 * 64);
    fill(from, WIDEST, 1);
    const dpcr_array z_all = dpcr_array_make(states, DPCR_F32, 3, shape),
                     start = dpcr_array_make(from, DPCR_F32, 2, edge), back = dpcr_array_make(out, DPCR_F32, 2, edge);
    if (dpcr_solve_backward(plan, &start, &z_all, NULL, NULL, &start, NULL, &back, work, bytes, NULL, &error) !=
        DPCR_OK)
        fail_msg("%s", error.text);
    assert_memory_equal(from, out, sizeof from);
    free(work);
    dpcr_solve_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// Products that overflow in the middle of a window, where what comes out of it is finite again.
static void products_that_overflow_inside_go_by_the_loop(void **state) {
    (void)state;
    enum { L = 2049 };
    float dz0[B * W];
    chain c = chain_make(L, 1, 1, DPCR_ACT_IDENTITY, 0, true, 1);
    memset(input, 0, sizeof input), memset(z0, 0, sizeof z0), memset(direct, 0, sizeof direct);
    for (int64_t l = 0; l < L; l++) {
        const int64_t from_right = L - 1 - l;
        weight[l] = from_right < 640 || from_right >= 1664 ? 0.9f : 1.1f;
    }
    last[0] = 1;
    assert_int_equal(backward(&c, DPCR_SCHEME_SEQUENTIAL, true, true, loop, dz0), DPCR_OK);
    if (c.steps.adjoint_window) {
        assert_int_equal(backward(&c, DPCR_SCHEME_CHUNKED, true, false, composed, dz0), DPCR_OK);
        for (int64_t l = 0; l < L; l++) {
            const double x = (double)composed[l * B], y = (double)loop[l * B];
            if (!(fabs(x - y) <= 1e-3 * fabs(y))) fail_msg("step %d: %g, the loop has %g", (int)l, x, y);
        }
    }
    chain_drop(&c);
}

// Many sequences on several threads.
static void threads_share_sequences(void **state) {
    (void)state;
    enum { MANY = 40, L = 600, WIDE = 2 };
    static float weights[WIDE * WIDE], inputs[L * MANY * WIDE], states[L * MANY * WIDE], ends[MANY * WIDE],
        found[3][L * MANY * WIDE];
    fill(weights, WIDE * WIDE, 0.6), fill(inputs, L * MANY * WIDE, 1.5), fill(ends, MANY * WIDE, 1);
    for (int threads = 1; threads <= 3; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        dpcr_context *context = NULL;
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        const int64_t all[3] = {L, MANY, WIDE}, square[2] = {WIDE, WIDE};
        const dpcr_cell_options made = {.size = sizeof made,
                                        .kind = DPCR_CELL_DENSE,
                                        .dtype = DPCR_F32,
                                        .length = L,
                                        .batch = MANY,
                                        .width = WIDE,
                                        .weight = dpcr_array_make(weights, DPCR_F32, 2, square),
                                        .input = dpcr_array_make(inputs, DPCR_F32, 3, all)};
        dpcr_cell *cell = NULL;
        dpcr_steps steps = {.size = sizeof steps};
        assert_int_equal(dpcr_cell_create(context, &made, &cell, NULL), DPCR_OK);
        assert_int_equal(dpcr_cell_steps(cell, &steps, NULL), DPCR_OK);
        steps.flops = 0;  // unknown: always handed to the threads
        const dpcr_solve_options o = {
            .size = sizeof o, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_CHUNKED};
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &o, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
        assert_non_null(workspace);
        static float starts[MANY * WIDE];
        const dpcr_array first = dpcr_array_make(starts, DPCR_F32, 2, all + 1),
                         z_ = dpcr_array_make(states, DPCR_F32, 3, all),
                         end = dpcr_array_make(ends, DPCR_F32, 2, all + 1),
                         out = dpcr_array_make(found[threads - 1], DPCR_F32, 3, all);
        assert_int_equal(dpcr_solve_execute(plan, &first, &z_, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
        assert_int_equal(
            dpcr_solve_backward(plan, &first, &z_, NULL, NULL, &end, &out, NULL, workspace, bytes, NULL, NULL),
            DPCR_OK);
        assert_memory_equal(found[threads - 1], found[0], sizeof found[0]);
        free(workspace);
        dpcr_solve_plan_destroy(plan);
        dpcr_cell_destroy(cell);
        dpcr_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(composing_is_the_loop),
        cmocka_unit_test(products_beyond_the_numbers_go_by_the_loop),
        cmocka_unit_test(what_is_refused_goes_by_the_loop),
        cmocka_unit_test(threads_share_windows),
        cmocka_unit_test(wide_states_lie_in_the_workspace),
        cmocka_unit_test(products_that_overflow_inside_go_by_the_loop),
        cmocka_unit_test(threads_share_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
