// SPDX-License-Identifier: MIT
// Chains in which a difference at a chunk's start grows by many powers of ten while their states stay moderate: the
// recurrences of (1 - rho/z)^w, companion matrices, whose products round by more than their states can bear. Every
// scheme is about as near to long double as the loop.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "solving.h"
#include "deeppcr/deeppcr.h"

enum { MOST = 8 };

static int64_t length = 4096;

static void put(dpcr_dtype dtype, void *x, int64_t i, double value) {
    if (dtype == DPCR_F64)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

static double at(dpcr_dtype dtype, const void *x, int64_t i) {
    return dtype == DPCR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

// Sequences of one companion matrix each, one behind the other or step by step.
typedef struct chain_of {
    dpcr_dtype dtype;
    int64_t w, batch;
    bool transposed, apart;
    void *a, *b, *z;
    dpcr_array va, vb, vz;
} chain_of;

static dpcr_array view(const chain_of *c, void *data, int64_t each) {
    dpcr_array array = dpcr_array_make(data, c->dtype, 3, (const int64_t[]){length, c->batch, each});
    if (c->apart) array.strides[0] = each, array.strides[1] = length * each;
    return array;
}

static int64_t place(const dpcr_array *x, int64_t l, int64_t row, int64_t i) {
    return l * x->strides[0] + row * x->strides[1] + i;
}

static chain_of make(dpcr_dtype dtype, int64_t w, bool transposed, int64_t batch, bool apart, const double *rho) {
    chain_of c = {.dtype = dtype, .w = w, .batch = batch, .transposed = transposed, .apart = apart};
    const size_t states = (size_t)(length * batch * w);
    c.a = calloc(states * (size_t)w, 8), c.b = calloc(states, 8), c.z = calloc(states, 8);
    c.va = view(&c, c.a, w * w), c.vb = view(&c, c.b, w), c.vz = view(&c, c.z, w);
    for (int64_t row = 0; row < batch; row++) {
        double polynomial[MOST + 1] = {1};
        for (int64_t i = 0; i < w; i++)
            for (int64_t q = w; q > 0; q--) polynomial[q] -= rho[row] * polynomial[q - 1];
        for (int64_t l = 0; l < length; l++)
            for (int64_t i = 0; i < w; i++) {
                put(dtype, c.a, place(&c.va, l, row, i * w), -polynomial[i + 1]);
                if (i + 1 < w) put(dtype, c.a, place(&c.va, l, row, i * w + i + 1), 1);
                put(dtype, c.b, place(&c.vb, l, row, i), chain_noise(l, row, i));
            }
    }
    return c;
}

static void drop(chain_of *c) { free(c->a), free(c->b), free(c->z); }

static dpcr_status run(const chain_of *c, dpcr_scheme scheme, int threads, bool in_place, dpcr_chain_report *report) {
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = length,
                                    .batch = c->batch,
                                    .transition = dpcr_transition_square(DPCR_DENSE, c->w, 0),
                                    .dtype = c->dtype,
                                    .transposed = c->transposed};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    dpcr_context *context = solving_context(threads);
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    void *const workspace = solving_workspace(bytes);
    *report = (dpcr_chain_report){.size = sizeof *report};
    const dpcr_status status =
        dpcr_chain_execute(plan, &c->va, &c->vb, NULL, in_place ? &c->vb : &c->vz, workspace, bytes, report, NULL);
    free(workspace);
    dpcr_chain_plan_destroy(plan);
    dpcr_context_destroy(context);
    return status;
}

// The largest distance from long double, of the largest state.
static double error_of(const chain_of *c) {
    const int64_t w = c->w;
    long double x[MOST] = {0}, next[MOST], most = 0, off = 0;
    for (int64_t m = 0; m < length; m++) {
        const int64_t l = c->transposed ? length - 1 - m : m;
        for (int64_t i = 0; i < w; i++) {
            next[i] = at(c->dtype, c->b, place(&c->vb, l, 0, i));
            for (int64_t q = 0; q < w && m > 0; q++) {
                const int64_t entry = c->transposed ? q * w + i : i * w + q;
                next[i] += at(c->dtype, c->a, place(&c->va, l + c->transposed, 0, entry)) * x[q];
            }
        }
        for (int64_t i = 0; i < w; i++) {
            x[i] = next[i];
            most = fmaxl(most, fabsl(x[i]));
            const long double d = fabsl(at(c->dtype, c->z, place(&c->vz, l, 0, i)) - x[i]);
            off = d <= off ? off : d;
        }
    }
    return (double)(off / most);
}

static const struct {
    dpcr_dtype dtype;
    int64_t w;
    double rho;
    bool corrected;  // by chunked, over 4096 steps
} cases[] = {
    {DPCR_F64, 2, 0.99, false}, {DPCR_F64, 2, 0.999, false}, {DPCR_F64, 3, 0.97, true},   {DPCR_F64, 3, 0.999, false},
    {DPCR_F64, 4, 0.9, true},   {DPCR_F64, 4, 0.99, false},  {DPCR_F64, 4, 0.999, false}, {DPCR_F64, 4, 1, false},
    {DPCR_F64, 5, 0.97, false}, {DPCR_F64, 6, 0.97, false},  {DPCR_F64, 8, 0.9, false},   {DPCR_F32, 2, 0.999, false},
    {DPCR_F32, 3, 0.97, false}, {DPCR_F32, 4, 0.9, false},   {DPCR_F32, 5, 0.9, false},
};

// Times the loop's error, or what is held to anyway: chunked's starts to 1e-10 (float: 1e-4), the states of the others
// to 1e-9 (1e-4), which the recurrence may make more of until it is seen.
static void as_near_as_the_loop(size_t k, bool transposed, size_t *by_scheme) {
    chain_of c = make(cases[k].dtype, cases[k].w, transposed, 1, false, &cases[k].rho);
    dpcr_chain_report report;
    assert_int_equal(run(&c, DPCR_SCHEME_SEQUENTIAL, 1, false, &report), DPCR_OK);
    const double loop = error_of(&c), held = c.dtype == DPCR_F64 ? 2e-9 : 1e-3;
    for (int scheme = DPCR_SCHEME_PCR; scheme <= DPCR_SCHEME_CHUNKED; scheme++) {
        assert_int_equal(run(&c, (dpcr_scheme)scheme, 2, false, &report), DPCR_OK);
        const double off = error_of(&c);
        if (!(off <= 100 * loop || off <= held))
            fail_msg("%s w %d rho %g, %d steps%s: %s is off by %g, the loop by %g", dpcr_dtype_name(c.dtype), (int)c.w,
                     cases[k].rho, (int)length, transposed ? ", back" : "", dpcr_scheme_name((dpcr_scheme)scheme), off,
                     loop);
        *by_scheme += report.finished_from == length;
        // Starts that were wrong by more than is held, once more from what they should be: without the loop.
        if (scheme == DPCR_SCHEME_CHUNKED && cases[k].corrected && length == 4096) {
            assert_int_equal(report.finished_from, length);
            assert_true(off <= 16 * loop);
        }
    }
    drop(&c);
}

static void schemes_are_as_near_as_the_loop(void **state) {
    (void)state;
    static const int64_t lengths[] = {155, 292, 4096};
    size_t by_scheme = 0;
    const size_t all = sizeof cases / sizeof *cases;
    for (size_t n = 0; n < 3; n++) {
        length = lengths[n];
        for (size_t k = 0; k < all; k++)
            for (int transposed = 0; transposed < 2; transposed++) as_near_as_the_loop(k, transposed, &by_scheme);
    }
    assert_in_range(by_scheme, 1, 3 * 3 * 2 * all - 20);  // some hold, some do not
}

// What becomes of a sequence hangs on itself alone: in a batch, step by step, as alone; by any number of threads.
static void sequences_keep_their_bits(void **state) {
    (void)state;
    static const double rho[3] = {0.5, 0.99, 0.999};
    for (int64_t w = 2; w <= 5; w++)
        for (int transposed = 0; transposed < 2; transposed++)
            for (int scheme = DPCR_SCHEME_PCR; scheme <= DPCR_SCHEME_CHUNKED; scheme++) {
                chain_of all = make(DPCR_F64, w, transposed, 3, false, rho),
                         apart = make(DPCR_F64, w, transposed, 3, true, rho);
                const int64_t first = transposed ? length - 1 : 0;  // whose state is b
                for (int64_t i = 0; i < w; i++) {
                    put(DPCR_F64, all.b, place(&all.vb, first, 1, i), -0.0);
                    put(DPCR_F64, apart.b, place(&apart.vb, first, 1, i), -0.0);
                }
                dpcr_chain_report report;
                assert_int_equal(run(&all, (dpcr_scheme)scheme, 2, false, &report), DPCR_OK);
                assert_int_equal(run(&apart, (dpcr_scheme)scheme, 1, false, &report), DPCR_OK);
                for (int64_t l = 0; l < length; l++)
                    for (int64_t row = 0; row < 3; row++)
                        assert_memory_equal((double *)all.z + place(&all.vz, l, row, 0),
                                            (double *)apart.z + place(&apart.vz, l, row, 0),
                                            (size_t)w * sizeof(double));
                drop(&all), drop(&apart);
            }
}

// In place nothing can be done again: what is not held is refused.
static void what_lies_in_place_is_refused(void **state) {
    (void)state;
    static const double rho[2] = {0.999, 0.5};
    for (int good = 0; good < 2; good++)
        for (int64_t w = 4; w <= 5; w++) {
            chain_of c = make(DPCR_F64, w, false, 1, false, &rho[good]);
            dpcr_chain_report report;
            assert_int_equal(run(&c, DPCR_SCHEME_CHUNKED, 2, true, &report), good ? DPCR_OK : DPCR_ERROR_UNSUPPORTED);
            drop(&c);
        }
}

// Over ranks: rank r has the steps from first(r) to first(r + 1).
typedef struct spread {
    const chain_of *c;
    dpcr_context *context;
    int64_t ranks, chunk, finished_from;
    bool in_place;
} spread;

static dpcr_status run_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    spread *s = user;
    const chain_of *c = s->c;
    const int64_t first = by->rank * length / s->ranks, count = (by->rank + 1) * length / s->ranks - first;
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = count,
                                    .batch = 1,
                                    .transition = dpcr_transition_square(DPCR_DENSE, c->w, 0),
                                    .dtype = c->dtype,
                                    .transposed = c->transposed};
    const dpcr_distributed_options options = {
        .size = sizeof options, .transport = by, .chunk = s->chunk, .deadline = 60};
    dpcr_distributed_report report = {.size = sizeof report};
    dpcr_array parts[3] = {c->va, c->vb, c->vz};
    for (int i = 0; i < 3; i++) {
        parts[i].shape[0] = count;
        parts[i].data = (char *)parts[i].data + first * parts[i].strides[0] * (int64_t)dpcr_dtype_size(c->dtype);
    }
    if (s->in_place) parts[2] = parts[1];
    const dpcr_status status = dpcr_chain_distributed(s->context, &shape, &options, &parts[0], &parts[1], NULL,
                                                      &parts[2], NULL, NULL, &report, error);
    if (by->rank == 0) s->finished_from = report.finished_from;
    return status;
}

static void ranks_are_as_near_as_the_loop(void **state) {
    (void)state;
    length = 4096;
    for (int64_t w = 3; w <= 4; w++)
        for (int transposed = 0; transposed < 2; transposed++)
            for (int64_t ranks = 3; ranks <= 8; ranks += 5) {
                const double rho = 0.999;
                chain_of c = make(DPCR_F64, w, transposed, 1, false, &rho);
                spread s = {.c = &c, .context = solving_context(1), .ranks = ranks};
                dpcr_chain_report report;
                dpcr_error error = {0};
                assert_int_equal(run(&c, DPCR_SCHEME_SEQUENTIAL, 1, false, &report), DPCR_OK);
                const double loop = error_of(&c);
                if (dpcr_ranks_run(s.context, ranks, run_rank, &s, &error) != DPCR_OK) fail_msg("%s", error.text);
                const double off = error_of(&c);
                if (!(off <= 100 * loop || off <= 2e-9))
                    fail_msg("w %d, %d ranks%s: off by %g, the loop by %g", (int)w, (int)ranks,
                             transposed ? ", back" : "", off, loop);
                assert_in_range(s.finished_from, 1, length - 1);
                dpcr_context_destroy(s.context);
                drop(&c);
            }
}

// A product overflows where no state does: chunks run in order, and nothing is carried on from them, so that in place
// nothing is refused.
static void ranks_in_place_go_on_in_order(void **state) {
    (void)state;
    const double rho = 0.5;
    length = 2000;
    chain_of c = make(DPCR_F64, 2, false, 1, false, &rho);
    double *const a = c.a, *const b = c.b;
    for (int64_t l = 0; l < length; l++) {
        memcpy(a + 4 * l, (const double[4]){0.5, 0, 0, 5}, 4 * sizeof *a);
        b[2 * l + 1] = 0;  // the second component grows, and is never driven
    }
    spread s = {.c = &c, .context = solving_context(1), .ranks = 4, .chunk = 480, .in_place = true};
    double *const given = malloc((size_t)length * 2 * sizeof *given);
    memcpy(given, b, (size_t)length * 2 * sizeof *given);
    dpcr_error error = {0};
    if (dpcr_ranks_run(s.context, s.ranks, run_rank, &s, &error) != DPCR_OK) fail_msg("%s", error.text);
    double want = 0;
    for (int64_t l = 0; l < length; l++) {
        want = 0.5 * want + given[2 * l];
        assert_true(fabs(b[2 * l] - want) <= 1e-13 && b[2 * l + 1] == 0);
    }
    free(given);
    dpcr_context_destroy(s.context);
    drop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemes_are_as_near_as_the_loop), cmocka_unit_test(sequences_keep_their_bits),
        cmocka_unit_test(what_lies_in_place_is_refused),   cmocka_unit_test(ranks_are_as_near_as_the_loop),
        cmocka_unit_test(ranks_in_place_go_on_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
