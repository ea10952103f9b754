// SPDX-License-Identifier: MIT
// Chains that are solved where their right-hand side lies, and whose products of transitions lose what the states keep:
// what a caller chose is refused afterwards, what the library chose (forward derivatives, the way back through a chain
// of steps) is done again by the loop.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>

#include "deeppcr/chain.h"
#include "solving.h"

enum { LENGTH = 1000, CHUNK = 64, ROWS = 2 };

static const dpcr_scheme schemes_that_lose[] = {DPCR_SCHEME_CHUNKED, DPCR_SCHEME_PCR, DPCR_SCHEME_BLELLOCH};
static bool overflows;  // a chunk grows by 10^48 instead

// Step m of a recurrence of which a chunk shrinks by 10^48 and the two after it grow by 10^24 each, while states stay
// in the range: no product leaves the finite numbers, which would be seen before anything is overwritten.
static double factor_of(int64_t m) {
    if (overflows) return m < CHUNK ? 1 : m / CHUNK % 2 ? pow(10, -48.0 / 64) : pow(10, 48.0 / 64);
    return m < CHUNK ? 1 : m / CHUNK % 3 == 1 ? pow(10, -48.0 / 64) : pow(10, 24.0 / 64);
}

typedef struct problem {
    float a[LENGTH * ROWS * 4], b[LENGTH * ROWS * 2], z[LENGTH * ROWS * 2], da[LENGTH * ROWS * 4], start[ROWS * 2];
    dpcr_chain_plan *plan;
    void *workspace;
    size_t bytes;
    dpcr_array va, vb, vz, vda, v0;
    bool apart;  // sequences lie one behind the other, as the kernels of windows want them, else step by step
} problem;

static void set_factors(problem *p, int64_t w, bool back) {
    for (int64_t m = 0; m < LENGTH; m++)
        for (int64_t row = 0; row < ROWS; row++)
            for (int64_t i = 0; i < w; i++)
                p->a[(p->apart ? row * LENGTH + m : m * ROWS + row) * w * w + i * w + i] =
                    row == 1 ? (float)factor_of(back ? LENGTH - m : m) : 1;
}

static dpcr_array array_of(const problem *p, float *data, int64_t each) {
    dpcr_array array = dpcr_array_make(data, DPCR_F32, 3, (const int64_t[]){LENGTH, ROWS, each});
    if (p->apart) array.strides[0] = each, array.strides[1] = LENGTH * each;
    return array;
}

static problem *make(dpcr_context *context, int64_t w, int64_t chunk, bool apart, dpcr_scheme scheme) {
    problem *p = calloc(1, sizeof *p);
    p->apart = apart;
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = LENGTH,
                                    .batch = ROWS,
                                    .transition = dpcr_transition_square(DPCR_DENSE, w, 0),
                                    .dtype = DPCR_F32};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme, .chunk = chunk};
    set_factors(p, w, false);
    for (int64_t i = 0; i < ROWS * w; i++) p->start[i] = 1e20f;
    p->va = array_of(p, p->a, w * w), p->vda = array_of(p, p->da, w * w);
    p->vb = array_of(p, p->b, w), p->vz = array_of(p, p->z, w);
    p->v0 = dpcr_array_make(p->start, DPCR_F32, 2, (const int64_t[]){ROWS, w});
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &p->plan, NULL), DPCR_OK);
    p->bytes = dpcr_chain_plan_workspace(p->plan);
    p->workspace = aligned_alloc(64, (p->bytes + 127) / 64 * 64);
    return p;
}

static void drop(problem *p) {
    dpcr_chain_plan_destroy(p->plan);
    free(p->workspace), free(p);
}

static void a_caller_is_told(void **state) {
    (void)state;
    for (int form = 0; form < 8; form++) {
        dpcr_context *context = solving_context(1 + form / 4);
        const int64_t w = 1 + form % 2,
                      chunk = form & 2 ? CHUNK + 1 : CHUNK;  // other chunks than the kernels' go in spans
        problem *p = make(context, w, chunk, chunk == CHUNK, DPCR_SCHEME_CHUNKED),
                *loop = make(context, w, 0, chunk == CHUNK, DPCR_SCHEME_SEQUENTIAL);
        dpcr_error error = {0};
        assert_int_equal(
            dpcr_chain_execute(loop->plan, &loop->va, &loop->vb, &loop->v0, &loop->vb, NULL, 0, NULL, NULL), DPCR_OK);
        assert_int_equal(
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vz, p->workspace, p->bytes, NULL, &error), DPCR_OK);
        for (int64_t i = 0; i < LENGTH * ROWS * w; i++) assert_true(fabsf(p->z[i] / loop->b[i] - 1) <= 1e-4f);
        assert_int_equal(
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vb, p->workspace, p->bytes, NULL, &error),
            DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "place"));
        // Going back; and where nothing is lost nothing is refused.
        set_factors(p, w, true);
        for (int64_t i = 0; i < LENGTH * ROWS * w; i++) p->b[i] = i / w == LENGTH * ROWS - 1 ? 1e20f : 0;
        assert_int_equal(
            dpcr_chain_vjp(p->plan, &p->va, &p->v0, &p->vz, &p->vb, NULL, &p->vb, NULL, p->workspace, p->bytes, &error),
            DPCR_ERROR_UNSUPPORTED);
        for (int64_t i = 0; i < LENGTH * ROWS * w * w; i++) p->a[i] *= p->a[i] == 1 ? 0.9f : 0;
        for (int64_t i = 0; i < LENGTH * ROWS * w; i++) p->b[i] = (float)chain_noise(i, 1, 2);
        assert_int_equal(
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vb, p->workspace, p->bytes, NULL, &error), DPCR_OK);
        drop(p), drop(loop);
        dpcr_context_destroy(context);
    }
}

// A product that overflows behind one that underflows is seen before the chunk that it is of is overwritten; by spans
// not.
static void what_overflows_is_mended(void **state) {
    (void)state;
    overflows = true;
    for (int form = 0; form < 8; form++) {
        dpcr_context *context = solving_context(1 + form / 4);
        const int64_t w = 1 + form % 2;
        problem *p = make(context, w, CHUNK, form & 2, DPCR_SCHEME_CHUNKED),
                *loop = make(context, w, 0, form & 2, DPCR_SCHEME_SEQUENTIAL);
        dpcr_chain_report report = {.size = sizeof report};
        assert_int_equal(
            dpcr_chain_execute(loop->plan, &loop->va, &loop->vb, &loop->v0, &loop->vb, NULL, 0, NULL, NULL), DPCR_OK);
        const dpcr_status status =
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vb, p->workspace, p->bytes, &report, NULL);
        assert_int_equal(status, form & 2 ? DPCR_OK : DPCR_ERROR_UNSUPPORTED);
        assert_int_equal(report.finished_from, status == DPCR_OK ? 2 * CHUNK : 0);
        for (int64_t i = 0; status == DPCR_OK && i < LENGTH * ROWS * w; i++)
            assert_true(fabsf(p->b[i] / loop->b[i] - 1) <= 1e-4f);
        drop(p), drop(loop);
        dpcr_context_destroy(context);
    }
    overflows = false;
}

// What dies away to the smallest numbers and below is nothing that chunks lose, in place or not.
static void what_dies_away_is_not_lost(void **state) {
    (void)state;
    for (int form = 0; form < 24; form++) {
        dpcr_context *context = solving_context(1 + form / 12);
        const int before = dpcr_flush_denormals(form >> 1 & 1);
        const int64_t w = 1 + form % 2;
        problem *p = make(context, w, 0, form & 1, schemes_that_lose[form / 4 % 3]);
        dpcr_chain_report report = {.size = sizeof report};
        for (int64_t i = 0; i < LENGTH * ROWS * w * w; i++) p->a[i] = p->a[i] > 0 ? (i & 1 ? 0.8f : 0.85f) : 0.01f;
        for (int64_t i = 0; i < ROWS * w; i++) p->start[i] = 1;
        assert_int_equal(
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vz, p->workspace, p->bytes, &report, NULL),
            DPCR_OK);
        assert_int_equal(report.finished_from, LENGTH);
        assert_int_equal(
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vb, p->workspace, p->bytes, &report, NULL),
            DPCR_OK);
        assert_int_equal(report.finished_from, LENGTH);
        assert_memory_equal(p->b, p->z, sizeof(float) * (size_t)(LENGTH * ROWS * w));
        dpcr_flush_denormals(before);
        drop(p);
        dpcr_context_destroy(context);
    }
}

// Blocks as wide as that are asked too, in place or not: nothing is lost of what dies away (kind 0) and of sums that
// come back to nothing but their rounding (1), everything where a product vanishes (2), which a derivative finds by
// itself.
static void wide_blocks_are_looked_at(void **state) {
    (void)state;
    enum { WIDTH = 70, STEPS = 5 * CHUNK };
    static float a[STEPS * WIDTH * WIDTH], b[STEPS * WIDTH], z[STEPS * WIDTH], dz[STEPS * WIDTH], start[WIDTH];
    dpcr_context *context = solving_context(2);
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = STEPS,
                                    .batch = 1,
                                    .transition = dpcr_transition_square(DPCR_DENSE, WIDTH, 0),
                                    .dtype = DPCR_F32};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = DPCR_SCHEME_CHUNKED, .chunk = CHUNK};
    const int64_t states[3] = {STEPS, 1, WIDTH};
    const dpcr_array va = dpcr_array_make(a, DPCR_F32, 3, (const int64_t[]){STEPS, 1, WIDTH * WIDTH}),
                     v0 = dpcr_array_make(start, DPCR_F32, 2, (const int64_t[]){1, WIDTH}),
                     vb = dpcr_array_make(b, DPCR_F32, 3, states), vz = dpcr_array_make(z, DPCR_F32, 3, states),
                     vd = dpcr_array_make(dz, DPCR_F32, 3, states);
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    void *workspace = solving_workspace(bytes);
    for (int kind = 0; kind < 3; kind++) {
        for (int64_t m = 0; m < STEPS; m++)
            for (int64_t i = 0; i < WIDTH; i++) {
                // Each component moves on to the next.
                a[(m * WIDTH + i) * WIDTH + (i + 1) % WIDTH] = kind == 0 ? 0.5f : kind == 1 ? 1 : (float)factor_of(m);
                const int64_t at = m % CHUNK;  // 28 numbers, the same again taken off, and nothing
                const float noise = (float)chain_noise(at % 28, 5, 6);
                b[m * WIDTH + i] = kind == 1 && at < 56 ? at < 28 ? noise : -noise : 0;
            }
        for (int64_t i = 0; i < WIDTH; i++) start[i] = kind == 0 ? 1 : kind == 1 ? 0 : 1e20f;
        const dpcr_array *const z0 = kind == 1 ? NULL : &v0;
        dpcr_chain_report report = {.size = sizeof report};
        assert_int_equal(dpcr_chain_execute(plan, &va, &vb, z0, &vz, workspace, bytes, &report, NULL), DPCR_OK);
        assert_int_equal(report.finished_from, kind < 2 ? STEPS : 2 * CHUNK);
        // Sums of which nothing but rounding is left are made again from better starts, where b is still there.
        assert_int_equal(dpcr_chain_execute(plan, &va, &vb, z0, &vb, workspace, bytes, NULL, NULL),
                         kind == 0 ? DPCR_OK : DPCR_ERROR_UNSUPPORTED);
        if (kind == 0) assert_memory_equal(b, z, sizeof z);
        assert_int_equal(dpcr_chain_jvp(plan, &va, z0, &vz, NULL, NULL, z0, &vd, workspace, bytes, NULL), DPCR_OK);
        for (int64_t i = 0; kind == 2 && i < STEPS * WIDTH; i++) assert_true(fabsf(dz[i] / z[i] - 1) <= 1e-4f);
    }
    free(workspace);
    dpcr_chain_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// pcr and blelloch have b until they have looked, going back too.
static void pairs_go_on_in_place(void **state) {
    (void)state;
    for (int form = 0; form < 8; form++) {
        overflows = form & 1;
        dpcr_context *context = solving_context(1 + form / 4);
        const dpcr_scheme scheme = form & 2 ? DPCR_SCHEME_PCR : DPCR_SCHEME_BLELLOCH;
        problem *p = make(context, 1, 0, false, scheme), *loop = make(context, 1, 0, false, DPCR_SCHEME_SEQUENTIAL);
        dpcr_chain_report report = {.size = sizeof report};
        assert_int_equal(
            dpcr_chain_execute(loop->plan, &loop->va, &loop->vb, &loop->v0, &loop->vb, NULL, 0, NULL, NULL), DPCR_OK);
        assert_int_equal(
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vb, p->workspace, p->bytes, &report, NULL),
            DPCR_OK);
        assert_true(report.finished_from < LENGTH);
        for (int64_t i = 0; i < LENGTH * ROWS; i++) assert_true(fabsf(p->b[i] / loop->b[i] - 1) <= 2e-3f);
        set_factors(p, 1, true);
        for (int64_t i = 0; i < LENGTH * ROWS; i++) p->b[i] = loop->b[i] = i / ROWS == LENGTH - 1 ? 1e20f : 0;
        assert_int_equal(
            dpcr_chain_vjp(loop->plan, &p->va, &p->v0, &loop->vz, &loop->vb, NULL, &loop->vb, NULL, NULL, 0, NULL),
            DPCR_OK);
        assert_int_equal(
            dpcr_chain_vjp(p->plan, &p->va, &p->v0, &p->vz, &p->vb, NULL, &p->vb, NULL, p->workspace, p->bytes, NULL),
            DPCR_OK);
        for (int64_t i = 0; i < LENGTH * ROWS; i++) assert_true(fabsf(p->b[i] / loop->b[i] - 1) <= 2e-3f);
        drop(p), drop(loop);
        dpcr_context_destroy(context);
    }
    overflows = false;
}

// A sequence among others has the bits that it has alone, where sums are of rounding too.
static void pcr_does_not_mix_sequences(void **state) {
    (void)state;
    enum { MANY = 40 };
    static float a[LENGTH * MANY], b[LENGTH * MANY], z[LENGTH * MANY], one_a[LENGTH], one_b[LENGTH], one[LENGTH];
    dpcr_context *context = solving_context(2);
    for (int i = 0; i < LENGTH * MANY; i++)
        a[i] = i % MANY < 20 ? 1 : 1.013f, b[i] = i / MANY % 40 < 20 ? (float)chain_noise(i, 3, 4) : 0;
    for (int64_t row = -1; row < MANY; row++) {
        const int64_t rows = row < 0 ? MANY : 1, shape3[3] = {LENGTH, rows, 1};
        for (int64_t l = 0; row >= 0 && l < LENGTH; l++) one_a[l] = a[l * MANY + row], one_b[l] = b[l * MANY + row];
        const dpcr_chain_shape shape = {.size = sizeof shape,
                                        .length = LENGTH,
                                        .batch = rows,
                                        .transition = dpcr_transition_square(DPCR_DIAGONAL, 1, 0),
                                        .dtype = DPCR_F32};
        const dpcr_chain_options options = {.size = sizeof options, .scheme = DPCR_SCHEME_PCR};
        dpcr_chain_plan *plan = NULL;
        assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_chain_plan_workspace(plan);
        void *workspace = solving_workspace(bytes);
        const dpcr_array va = dpcr_array_make(row < 0 ? a : one_a, DPCR_F32, 3, shape3),
                         vb = dpcr_array_make(row < 0 ? b : one_b, DPCR_F32, 3, shape3),
                         vz = dpcr_array_make(row < 0 ? z : one, DPCR_F32, 3, shape3);
        assert_int_equal(dpcr_chain_execute(plan, &va, &vb, NULL, &vz, workspace, bytes, NULL, NULL), DPCR_OK);
        for (int64_t l = 0; row >= 0 && l < LENGTH; l++) assert_true(one[l] == z[l * MANY + row]);
        free(workspace);
        dpcr_chain_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
}

// Along z0, with a da that is small beside it; z is what z0 leads to.
static void forward_derivatives_are_the_loops(void **state) {
    (void)state;
    for (int form = 0; form < 24; form++) {
        overflows = form >= 12 && form % 8 > 3;
        dpcr_context *context = solving_context(1 + form / 4 % 2);
        const int64_t w = 1 + form % 2, chunk = form & 2 ? CHUNK + 1 : CHUNK;
        problem *p = make(context, w, chunk, chunk == CHUNK, schemes_that_lose[form / 8]),
                *loop = make(context, w, 0, chunk == CHUNK, DPCR_SCHEME_SEQUENTIAL);
        float *const got = calloc(LENGTH * ROWS * 2, sizeof *got), *const want =
                                                                       calloc(LENGTH * ROWS * 2, sizeof *want);
        dpcr_array vgot = p->vz, vwant = p->vz;
        vgot.data = got, vwant.data = want;
        assert_int_equal(
            dpcr_chain_execute(p->plan, &p->va, &p->vb, &p->v0, &p->vz, p->workspace, p->bytes, NULL, NULL), DPCR_OK);
        for (int64_t i = 0; i < LENGTH * ROWS * w * w; i++) p->da[i] = 1e-3f * p->a[i];
        const dpcr_array *const da = form & 2 ? &p->vda : NULL;
        assert_int_equal(
            dpcr_chain_jvp(p->plan, &p->va, &p->v0, &p->vz, da, NULL, &p->v0, &vgot, p->workspace, p->bytes, NULL),
            DPCR_OK);
        assert_int_equal(dpcr_chain_jvp(loop->plan, &p->va, &p->v0, &p->vz, da, NULL, &p->v0, &vwant, NULL, 0, NULL),
                         DPCR_OK);
        for (int64_t i = 0; i < LENGTH * ROWS * w; i++)
            assert_true(fabsf(got[i] / want[i] - 1) <= (form < 8 ? 1e-4f : 2e-3f));
        free(got), free(want);
        drop(p), drop(loop);
        dpcr_context_destroy(context);
    }
    overflows = false;
}

// The factors go back from the last step, which alone has a gradient.
static void step_factors(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double factor = b == 1 ? factor_of(c->length - l) : 1;
    out[0] = factor * in[0];
    if (j) j[0] = factor;
}

static void going_back_is_the_loops(void **state) {
    (void)state;
    enum { COUNT = LENGTH * ROWS };
    static float z[COUNT], direct[COUNT], lambda[2][COUNT];
    for (int form = 0; form < 12; form++) {
        const int threads = 1 + form % 2;
        overflows = form & 2;
        dpcr_context *context = solving_context(threads);
        chain c = {.step = step_factors, .length = LENGTH, .batch = ROWS, .width = 1, .dtype = DPCR_F32};
        const dpcr_steps steps = chain_steps(&c);
        float start[ROWS] = {0}, dz0[2][ROWS];
        const int64_t shape[3] = {LENGTH, ROWS, 1};
        const dpcr_array vz = dpcr_array_make(z, DPCR_F32, 3, shape),
                         v0 = dpcr_array_make(start, DPCR_F32, 2, shape + 1),
                         vd = dpcr_array_make(direct, DPCR_F32, 3, shape);
        direct[COUNT - 1] = direct[COUNT - 2] = 1e20f;
        for (int turn = 0; turn < 2; turn++) {
            const dpcr_solve_options options = {
                .size = sizeof options,
                .method = DPCR_METHOD_SEQUENTIAL,
                .backward = turn ? schemes_that_lose[form / 4] : DPCR_SCHEME_SEQUENTIAL};
            dpcr_solve_plan *plan = NULL;
            assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
            const size_t bytes = dpcr_solve_plan_workspace(plan);
            void *workspace = solving_workspace(bytes);
            const dpcr_array out = dpcr_array_make(lambda[turn], DPCR_F32, 3, shape),
                             first = dpcr_array_make(dz0[turn], DPCR_F32, 2, shape + 1);
            dpcr_solve_report report = {.size = sizeof report};
            assert_int_equal(dpcr_solve_execute(plan, &v0, &vz, NULL, workspace, bytes, NULL, NULL), DPCR_OK);
            assert_int_equal(
                dpcr_solve_backward(plan, &v0, &vz, NULL, &vd, NULL, &out, &first, workspace, bytes, &report, NULL),
                DPCR_OK);
            if (turn) assert_int_equal(report.reason, DPCR_REASON_FALLBACK);
            free(workspace);
            dpcr_solve_plan_destroy(plan);
        }
        const float bound = form < 4 ? 1e-4f : 2e-3f;
        for (int i = 0; i < COUNT; i++) assert_true(fabsf(lambda[1][i] / lambda[0][i] - 1) <= bound);
        for (int i = 0; i < ROWS; i++) assert_true(fabsf(dz0[1][i] / dz0[0][i] - 1) <= bound);
        dpcr_context_destroy(context);
    }
    overflows = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_caller_is_told),
                                       cmocka_unit_test(what_overflows_is_mended),
                                       cmocka_unit_test(what_dies_away_is_not_lost),
                                       cmocka_unit_test(wide_blocks_are_looked_at),
                                       cmocka_unit_test(pairs_go_on_in_place),
                                       cmocka_unit_test(pcr_does_not_mix_sequences),
                                       cmocka_unit_test(forward_derivatives_are_the_loops),
                                       cmocka_unit_test(going_back_is_the_loops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
