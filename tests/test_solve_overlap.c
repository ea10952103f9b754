// SPDX-License-Identifier: MIT
// Overlapped chunks: the loop's bits wherever the cuts lie, within the tolerance else. Where chunks do not join within
// their sweeps what is then done in order is the loop, bit for bit, also where boundaries or reruns had come within the
// tolerance and the chain has carried that on.
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "solving.h"

enum { LENGTH = 32768, CHUNK = 512, LATCH = 2300, LATCH_END = 4500, KEEPS = 10000, KEEPS_END = 20000 };

// With tolerance 0 overlap has the loop's bits: chains that forget, chains that do not, budgets of one sweep and of
// many.
static void overlap_has_the_loops_bits(void **state) {
    (void)state;
    const double forgets[2] = {0.9, 0}, keeps[2] = {1, 0.05}, bistable[2] = {2.5, 0};
    const double *const kinds[] = {forgets, keeps, bistable};
    dpcr_context *context = solving_context(2);
    for (int kind = 0; kind < 3; kind++)
        for (int single = 0; single < 2; single++)
            for (int sweeps = 1; sweeps <= 3; sweeps++)
                for (int64_t length = 1; length < 3000; length = length * 3 + 1) {
                    chain c = {.step = step_tanh,
                               .length = length,
                               .batch = 2,
                               .width = 2,
                               .dtype = single ? DPCR_F32 : DPCR_F64,
                               .parameters = kinds[kind]};
                    void *z0 = starts(&c), *loop = loop_of(&c, z0);
                    const dpcr_solve_options options = {.size = sizeof options,
                                                        .method = DPCR_METHOD_OVERLAP,
                                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                                        .atol = -1,
                                                        .rtol = -1,
                                                        .warm_up = 32,
                                                        .chunk = 41,
                                                        .max_sweeps = sweeps};
                    solved r = solve(context, &c, z0, &options);
                    assert_int_equal(r.status, DPCR_OK);
                    assert_memory_equal(r.z, loop, solving_bytes(&c) - 64);
                    if (kind == 1 && length > 1000) assert_int_equal(r.report.reason, DPCR_REASON_FALLBACK);
                    if (kind == 0 && single) assert_int_equal(r.report.reason, DPCR_REASON_EXACT);
                    solved_free(&r);
                    free(z0), free(loop);
                }
    dpcr_context_destroy(context);
}

// However many lanes the callback likes, and wherever the cuts then lie: the loop's bits; reruns of single chunks and
// of whole groups, and what is left of the chain after the last group.
static void overlap_cuts(void **state) {
    (void)state;
    const double forgets[2] = {0.9, 0}, slowly[2] = {0.999, 0}, keeps[2] = {1, 0.05};
    const double *const kinds[] = {forgets, slowly, keeps};
    const int64_t lanes[] = {0, 1, 3, 16, 80}, lengths[] = {1, 2, 63, 129, 1000, 4097, 20011};
    const int64_t warm_ups[] = {1, 7, 48};
    dpcr_context *context = solving_context(2);
    for (int kind = 0; kind < 3; kind++)
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
            chain c = {.step = step_tanh,
                       .length = lengths[n],
                       .batch = 1 + (int64_t)n % 2,
                       .width = 1 + (int64_t)n % 3,
                       .dtype = DPCR_F32,
                       .parameters = kinds[kind]};
            void *z0 = starts(&c), *loop = loop_of(&c, z0);
            for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
                for (size_t m = 0; m < sizeof warm_ups / sizeof *warm_ups; m++) {
                    dpcr_steps steps = chain_steps(&c);
                    steps.lanes = lanes[i];
                    const dpcr_solve_options options = {.size = sizeof options,
                                                        .method = DPCR_METHOD_OVERLAP,
                                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                                        .atol = -1,
                                                        .rtol = -1,
                                                        .warm_up = warm_ups[m]};
                    solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
                    assert_int_equal(r.status, DPCR_OK);
                    assert_memory_equal(r.z, loop, solving_bytes(&c) - 64);
                    solved_free(&r);
                }
            free(z0), free(loop);
        }
    dpcr_context_destroy(context);
}

// Chunks that joined bit for bit are the loop's result, and are called that.
static void assert_joined(const chain *c, const solved *r, const void *loop) {
    const size_t bytes = (size_t)(c->length * c->batch * c->width) * dpcr_dtype_size(c->dtype);
    const bool bits = r->report.error_estimate == 0;
    assert_int_equal(r->report.reason, bits ? DPCR_REASON_EXACT : DPCR_REASON_CONVERGED);
    assert_true(!bits || memcmp(r->z, loop, bytes) == 0);
}

static void tolerant_overlap_is_close(void **state) {
    (void)state;
    const double forgets[2] = {0.9, 0};
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_tanh, .length = 5000, .batch = 1, .width = 8, .dtype = DPCR_F32, .parameters = forgets};
    void *z0 = starts(&c), *loop = loop_of(&c, z0);
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_OVERLAP,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .atol = 1e-6,
                                        .rtol = 1e-6};
    solved r = solve(context, &c, z0, &options);
    assert_joined(&c, &r, loop);
    assert_true(largest_error(&c, r.z, loop) < 2e-6);
    solved_free(&r);
    free(z0), free(loop);
    dpcr_context_destroy(context);
}

static void step_doubling(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b, (void)j;
    for (int64_t i = 0; i < c->width; i++) out[i] = l == 0 ? -1 : 2 * in[i] + 1;
}

static void step_staying(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b, (void)j;
    memcpy(out, in, (size_t)c->width * sizeof *out);
}

// The chain comes to -1 and stays there; what runs up from anywhere else is infinite, and agrees with no finite state.
static void a_run_up_that_overflows_is_wrong(void **state) {
    (void)state;
    dpcr_context *context = solving_context(2);
    chain c = {.step = step_doubling, .length = 4000, .batch = 1, .width = 2, .dtype = DPCR_F32};
    float z0[2] = {5, 5};
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_OVERLAP,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .warm_up = 200,
                                        .atol = 1e-6,
                                        .rtol = 1e-6};
    solved r = solve(context, &c, z0, &options);
    assert_int_equal(r.report.reason, DPCR_REASON_FALLBACK);
    for (int64_t i = 0; i < 2 * c.length; i++) assert_true(((const float *)r.z)[i] == -1);
    solved_free(&r);
    z0[0] = HUGE_VALF;  // this one stays infinite to its end: its states are right, and no error is told of them
    c.step = step_staying;
    r = solve(context, &c, z0, &options);
    assert_int_equal(r.report.reason, DPCR_REASON_RESIDUAL_ONLY);
    assert_true(isinf(((const float *)r.z)[2 * c.length - 2]));
    solved_free(&r);
    dpcr_context_destroy(context);
}

// Chunks of 128 steps would lie 2048 bytes apart: those of one group are a line longer, the others' one shorter, and
// the last has the remainder; evaluations tell that no chunk ran twice.
static void overlap_moves_chunks_off_each_other(void **state) {
    (void)state;
    static const double forgets[2] = {0.5, 0};
    for (int64_t rest = 0; rest < 12; rest += 11) {
        dpcr_context *context = solving_context(2);
        chain c = tanh_chain(32 * 128 + rest, 1, 4, DPCR_F32);
        c.parameters = forgets;
        void *z0 = starts(&c);
        const dpcr_solve_options options = {
            .size = sizeof options, .method = DPCR_METHOD_OVERLAP, .warm_up = 24, .atol = 1e-4, .rtol = 1e-4};
        solved r = solve(context, &c, z0, &options);
        void *loop = loop_of(&c, z0);
        assert_joined(&c, &r, loop);
        assert_int_equal(r.report.evaluations, c.length + 31 * 24);
        for (int64_t i = 0; i < 4 * c.length; i++) near(((float *)r.z)[i], ((float *)loop)[i], 1e-5);
        free(loop), free(z0), solved_free(&r);
        dpcr_context_destroy(context);
    }
}

// Component 0 forgets everywhere, 2 keeps its past in a late stretch, so that the budget is spent; 1 grows in an
// earlier stretch from a kick far below any tolerance.
static void step_latch(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b, (void)j;
    const double u = sin(0.7 * (double)l);
    out[0] = 0.5 * in[0] + 5 * u;
    out[1] = tanh((l >= LATCH && l < LATCH_END ? 1.03 : 0.3) * in[1]) + (l == LATCH + 10 ? 1e-13 : 0);
    out[2] = (l >= KEEPS && l < KEEPS_END ? 1 : 0.3) * in[2] + u;
}

// Every chunk's end is off by what its run-up does not see; component 1 forgets that to below the tolerance within the
// first steps of a chunk, where a rerun stops, and what is left of it grows in the chunk's middle.
static void step_meeting(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b, (void)j;
    const int64_t at = l % CHUNK;
    const double u = sin(0.7 * (double)l);
    out[0] = 0.5 * in[0] + u;
    out[1] = tanh((at < 64 ? 0.7 : at < 440 ? 1.03 : 0.9) * in[1]) + (at == CHUNK - 20 ? 1 : 0);
    out[2] = (l >= KEEPS && l < KEEPS_END ? 1 : 0.3) * in[2] + u;
}

static void what_is_finished_is_the_loop(void **state) {
    (void)state;
    static void (*const steps[])(const chain *, int64_t, int64_t, const double *, double *, double *) = {step_latch,
                                                                                                         step_meeting};
    for (int i = 0; i < 8; i++) {
        const int64_t batch = i & 1 ? 3 : 1;
        const int threads = i & 2 ? 2 : 1;
        dpcr_context *context = solving_context(threads);
        chain c = {.step = steps[i / 4], .length = LENGTH, .batch = batch, .width = 3, .dtype = DPCR_F64};
        double z0[9] = {0};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_OVERLAP,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .chunk = CHUNK,
                                            .warm_up = i / 4 ? 8 : 64,
                                            .atol = i / 4 ? 1e-6 : 0,
                                            .rtol = i / 4 ? 1e-6 : 0};
        solved r = solve(context, &c, z0, &options);
        void *loop = loop_of(&c, z0);
        assert_int_equal(r.report.reason, DPCR_REASON_FALLBACK);
        assert_memory_equal(r.z, loop, (size_t)(LENGTH * batch * 3) * sizeof(double));
        free(loop), solved_free(&r);
        dpcr_context_destroy(context);
    }
}

// Reruns that meet what is stored within the tolerance alone leave boundaries that join: the estimate is of the
// meetings.
static void step_nearing(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)l, (void)b, (void)j;
    out[0] = c->parameters[0] * in[0] + (1 - c->parameters[0]) * c->parameters[1];
    out[1] = 1;  // beside which the other is small, and known
}

static void what_met_within_the_tolerance_is_told(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    int told = 0;
    for (int i = 0; i < 60; i++) {
        const double parameters[2] = {1 - 1e-3, 1e-10 * pow(1000, i / 59.0)};
        chain c = {.step = step_nearing, .length = 16384, .batch = 1, .width = 2, .dtype = DPCR_F64};
        c.parameters = parameters;
        double z0[2] = {0, 1};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_OVERLAP,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .chunk = 256,
                                            .warm_up = 16};
        solved r = solve(context, &c, z0, &options);
        void *loop = loop_of(&c, z0);
        const bool finished = r.report.reason == DPCR_REASON_FALLBACK || r.report.reason == DPCR_REASON_EXACT;
        if (!finished && r.report.sweeps > 1 && largest_error(&c, r.z, loop) > 0) {
            assert_true(r.report.error_estimate != 0);  // less than 0: not known
            told++;
        }
        free(loop), solved_free(&r);
    }
    assert_true(told > 0);
    dpcr_context_destroy(context);
}

// A stretch, between the places that a plan looks at, that keeps a kick below any tolerance and lets it grow; all else
// forgets at once.
static void step_kept(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b, (void)j;
    out[0] = 0.5 * in[0] + sin(0.7 * (double)l);
    out[1] = tanh((l >= 4900 && l < 7400 ? 1.03 : 0) * in[1]) + (l == 5080 ? 1e-13 : 0);
}

// Where starts were seen to agree bit for bit soon, AUTO joins chunks within rounding, whatever the tolerance is, and
// says it in the options that make the same plan again; a run-up of the caller's that is shorter than that is left to
// the tolerance.
static void auto_joins_closely_what_meets_soon(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = {.step = step_kept, .length = 65536, .batch = 1, .width = 2, .dtype = DPCR_F64};
    double z0[2] = {0};
    void *loop = loop_of(&c, z0);
    for (int i = 0; i < 3; i++) {
        dpcr_steps steps = chain_steps(&c);
        steps.linearise = NULL, steps.lanes = 16, steps.latency = 1e-6, steps.lane_seconds = 1e-9;
        dpcr_solve_options options = {.size = sizeof options, .backward = DPCR_SCHEME_SEQUENTIAL, .chunk = 1024};
        if (i == 2) options.warm_up = 36;
        dpcr_solve_plan *plan = NULL;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        const dpcr_solve_options chosen = *dpcr_solve_plan_options(plan);
        dpcr_solve_plan_destroy(plan);
        assert_int_equal(chosen.method, DPCR_METHOD_OVERLAP);
        assert_true(i < 2 ? chosen.join_tolerance == 16 * DBL_EPSILON : chosen.join_tolerance == 0);
        assert_true(chosen.atol == DPCR_TOLERANCE_F64 && chosen.rtol == DPCR_TOLERANCE_F64);
        solved r = solve_steps(context, &steps, &c, z0, i == 1 ? &chosen : &options, NULL, 0);
        assert_int_equal(r.report.method, DPCR_METHOD_OVERLAP);
        const bool same = memcmp(r.z, loop, (size_t)(c.length * c.width) * sizeof(double)) == 0;
        assert_int_equal(same, i < 2);  // by the tolerance the kick is lost
        if (i == 2) assert_int_equal(r.report.reason, DPCR_REASON_RESIDUAL_ONLY);
        assert_true(i != 2 || r.report.error_estimate < 0);  // a component kept what it began with
        assert_true(i == 2 || r.report.reason == DPCR_REASON_EXACT || r.report.reason == DPCR_REASON_FALLBACK);
        solved_free(&r);
    }
    free(loop);
    dpcr_context_destroy(context);
}

// A component that adds up what is no more than rounding at each boundary, beside one that forgets.
static void step_adding(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b, (void)j;
    out[0] = in[0] + 2e-8;
    out[1] = 0.3 * in[1] + sin(0.7 * (double)l);
}

// Chunks that begin with other sums join within the tolerance: the estimate is of all that they miss.
static void sums_of_roundings_are_told(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = {.step = step_adding, .batch = 1, .width = 2, .dtype = DPCR_F32};
    const float z0[2] = {0, 0.5F};
    for (c.length = 512; c.length <= 8192; c.length *= 4) {
        const dpcr_solve_options options = {
            .size = sizeof options, .method = DPCR_METHOD_OVERLAP, .backward = DPCR_SCHEME_SEQUENTIAL, .chunk = 64};
        solved r = solve(context, &c, z0, &options);
        void *loop = loop_of(&c, z0);
        const double error = largest_error(&c, r.z, loop), allowed = 2 * DPCR_TOLERANCE_F32;
        assert_int_equal(error > allowed, c.length > 512);
        assert_true(r.report.error_estimate >= 0.9 * error);
        assert_int_equal(r.report.reason, error > allowed ? DPCR_REASON_RESIDUAL_ONLY : DPCR_REASON_CONVERGED);
        free(loop), solved_free(&r);
    }
    dpcr_context_destroy(context);
}

// The same sum, by more a chunk, beside a component that run-ups are too short for.
static void step_adding_late(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b, (void)j;
    out[0] = in[0] + 3e-8;
    out[1] = 0.9 * in[1] + sin(0.7 * (double)l);
}

// Chunks run again for the other component's sake, and meet what is stored while the sum is off by less than the
// tolerance: what each missed so counts, though it began with no defect.
static void sums_that_meet_are_told(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = {.step = step_adding_late, .length = 16384, .batch = 1, .width = 2, .dtype = DPCR_F64};
    const double z0[2] = {0, 0.5};
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_OVERLAP,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .chunk = 256,
                                        .warm_up = 16,
                                        .atol = 1e-5,
                                        .rtol = 1e-5};
    solved r = solve(context, &c, z0, &options);
    void *loop = loop_of(&c, z0);
    const double error = largest_error(&c, r.z, loop);
    assert_true(r.report.sweeps > 1 && error > 10 * 2e-5);
    assert_true(r.report.error_estimate >= 0.5 * error);  // where they met is measured by the state's size
    assert_int_equal(r.report.reason, DPCR_REASON_RESIDUAL_ONLY);
    free(loop), solved_free(&r);
    dpcr_context_destroy(context);
}

static void step_of_two_rates(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)j;
    out[0] = (b == 0 ? 0.3 : 0.86) * in[0] + 0.1 * cos((double)l);
}

// Chunks shorter than their run-up: of a sequence that meets in bits there is an estimate, 0, of the other one none.
static void an_estimate_is_of_all_sequences(void **state) {
    (void)state;
    dpcr_context *context = solving_context(1);
    chain c = {.step = step_of_two_rates, .length = 1000, .batch = 2, .width = 1, .dtype = DPCR_F64};
    double z0[2] = {3, 3};
    const dpcr_solve_options options = {.size = sizeof options,
                                        .method = DPCR_METHOD_OVERLAP,
                                        .backward = DPCR_SCHEME_SEQUENTIAL,
                                        .chunk = 32,
                                        .warm_up = 64,
                                        .atol = 0.1,
                                        .rtol = 1e-9};
    solved r = solve(context, &c, z0, &options);
    void *loop = loop_of(&c, z0);
    assert_true(largest_error(&c, r.z, loop) > 0);
    assert_int_equal(r.report.reason, DPCR_REASON_RESIDUAL_ONLY);
    assert_true(r.report.error_estimate < 0);
    free(loop), solved_free(&r);
    dpcr_context_destroy(context);
}

// Shrinks to next to nothing and comes back, as layers without biases do: there what a run-up began with is as far from
// the chain, beside its size, as ever. The second sequence dies, which no run-up does.
static void step_returning(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double a = b == 1 && l == 1500 ? 0 : l % 8192 < 4096 ? 0.985 : 1.5;
    if (j) memset(j, 0, (size_t)(c->width * c->width) * sizeof *j);
    for (int64_t i = 0; i < c->width; i++) {
        out[i] = tanh(a * in[i]);
        if (j) j[i * c->width + i] = a * (1 - out[i] * out[i]);
    }
}

static void what_shrank_is_not_forgotten(void **state) {
    (void)state;
    static const dpcr_method methods[] = {DPCR_METHOD_OVERLAP, DPCR_METHOD_AUTO};
    for (int i = 0; i < 16; i++) {
        dpcr_context *context = solving_context(1 + i / 8);
        chain c = {
            .step = step_returning, .length = 16384, .batch = 2, .width = 2, .dtype = i & 1 ? DPCR_F32 : DPCR_F64};
        const double z64[4] = {3, -2, 1, 1};
        const float z32[4] = {3, -2, 1, 1};
        const void *z0 = i & 1 ? (const void *)z32 : z64;
        dpcr_steps steps = chain_steps(&c);
        steps.lanes = 16, steps.latency = 1e-6, steps.lane_seconds = 1e-9;
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = methods[i / 2 & 1],
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .chunk = i & 2 ? 0 : 512,
                                            .warm_up = i & 2 ? 0 : 2000,
                                            .join_tolerance = i & 4 ? 1e-6 : 0};
        solved r = solve_steps(context, &steps, &c, z0, &options, NULL, 0);
        void *loop = loop_of(&c, z0);
        assert_int_equal(r.status, DPCR_OK);
        assert_true(largest_error(&c, r.z, loop) <= (i & 2 ? 1e-4 : 0));
        if (i & 2)
            assert_int_not_equal(r.report.method, DPCR_METHOD_OVERLAP);
        else
            assert_int_equal(r.report.reason, DPCR_REASON_FALLBACK);
        free(loop), solved_free(&r);
        dpcr_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_has_the_loops_bits),          cmocka_unit_test(overlap_cuts),
        cmocka_unit_test(tolerant_overlap_is_close),           cmocka_unit_test(a_run_up_that_overflows_is_wrong),
        cmocka_unit_test(overlap_moves_chunks_off_each_other), cmocka_unit_test(what_is_finished_is_the_loop),
        cmocka_unit_test(auto_joins_closely_what_meets_soon),  cmocka_unit_test(what_met_within_the_tolerance_is_told),
        cmocka_unit_test(sums_of_roundings_are_told),          cmocka_unit_test(sums_that_meet_are_told),
        cmocka_unit_test(an_estimate_is_of_all_sequences),     cmocka_unit_test(what_shrank_is_not_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
