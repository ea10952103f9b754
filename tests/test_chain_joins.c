// SPDX-License-Identifier: MIT
// Chunks of linear chains whose products lose what the states keep: they underflow where no state leaves the normal
// range, or stay finite where a state does not. The loop's states come out, in windows and over spans, the same bits
// for any number of threads; and chains that only round keep their chunks.
#include "chain/joins.h"
#include "linear_common.h"
#include "sampled.h"

enum { THREADS = 3 };

static int64_t length = 3000;

static dpcr_context *contexts[THREADS + 1];

static int open_all(void **state) {
    (void)state;
    for (int threads = 1; threads <= THREADS; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        assert_int_equal(dpcr_context_create(&options, &contexts[threads], NULL), DPCR_OK);
    }
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int threads = 1; threads <= THREADS; threads++) dpcr_context_destroy(contexts[threads]);
    return 0;
}

typedef struct form {
    dpcr_structure structure;
    int64_t w, block, chunk;
} form;

static const form forms[] = {
    {DPCR_SCALAR, 1, 0, 64},  {DPCR_DENSE, 1, 0, 64}, {DPCR_DIAGONAL, 2, 0, 64}, {DPCR_DIAGONAL, 4, 0, 32},
    {DPCR_DENSE, 2, 0, 64},   {DPCR_DENSE, 3, 0, 16}, {DPCR_DENSE, 4, 0, 44},    {DPCR_BLOCK, 4, 2, 28},
    {DPCR_BLOCK, 8, 4, 8},    {DPCR_DENSE, 8, 0, 65}, {DPCR_DENSE, 5, 0, 50},    {DPCR_DIAGONAL, 20, 0, 100},
    {DPCR_SCALAR, 3, 0, 100}, {DPCR_SCALAR, 1, 0, 0}, {DPCR_DENSE, 2, 0, 0},
};

typedef struct chain {
    dpcr_transition t;
    dpcr_dtype dtype;
    bool transposed;
    int64_t batch, values;
    void *a, *b;
} chain;

static int64_t places(const chain *c, int64_t each) { return length * c->batch * each; }

static chain make(const form *f, dpcr_dtype dtype, bool transposed, int64_t batch) {
    chain c = {.t = dpcr_transition_square(f->structure, f->w, f->block), .dtype = dtype, .transposed = transposed};
    c.batch = batch, c.values = dpcr_transition_values(&c.t);
    c.a = calloc((size_t)places(&c, c.values), dpcr_dtype_size(dtype));
    c.b = calloc((size_t)places(&c, f->w), dpcr_dtype_size(dtype));
    return c;
}

static void drop(chain *c) { free(c->a), free(c->b); }

// Step m along the recurrence of the last sequence: `factor` into the state m, of component i or, i < 0, of all. Wide
// ones also move each component to the next, of a block: all entries of the transitions come into use.
static void set_factor(chain *c, int64_t m, int64_t i, double factor, bool turns) {
    const int64_t l = c->transposed ? length - m : m, w = c->t.rows;
    if (l >= length) return;
    const int64_t k = c->t.structure == DPCR_DENSE ? w : c->t.structure == DPCR_BLOCK ? c->t.block : 1;
    for (int64_t row = 0; row < w; row++) {
        const int64_t next = turns ? row / k * k + (row + 1) % k : row, at = place_of(&c->t, row, next);
        if (i < 0 || row == i) put(c->dtype, c->a, (l * c->batch + c->batch - 1) * c->values + at, factor);
    }
}

static void set_right(chain *c, int64_t m, int64_t i, double value) {
    const int64_t l = c->transposed ? length - 1 - m : m;
    put(c->dtype, c->b, (l * c->batch + c->batch - 1) * c->t.rows + i, value);
}

static void *solve(const chain *c, dpcr_scheme scheme, int64_t chunk, int threads, bool in_place,
                   dpcr_chain_report *report) {
    const int64_t w = c->t.rows, states[3] = {length, c->batch, w}, maps[3] = {length, c->batch, c->values};
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = length,
                                    .batch = c->batch,
                                    .transition = c->t,
                                    .dtype = c->dtype,
                                    .transposed = c->transposed};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme, .chunk = chunk};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(contexts[threads], &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    const size_t room = (size_t)places(c, w) * dpcr_dtype_size(c->dtype);
    void *z = aligned_alloc(64, (room + 63) / 64 * 64);  // so that far ones go past the caches
    if (in_place) memcpy(z, c->b, room);
    const dpcr_array a = dpcr_array_make(c->a, c->dtype, 3, maps), vz = dpcr_array_make(z, c->dtype, 3, states),
                     b = in_place ? vz : dpcr_array_make(c->b, c->dtype, 3, states);
    *report = (dpcr_chain_report){.size = sizeof *report};
    assert_int_equal(dpcr_chain_execute(plan, &a, &b, NULL, &vz, workspace, bytes, report, NULL), DPCR_OK);
    free(workspace);
    dpcr_chain_plan_destroy(plan);
    return z;
}

// Near the loop wherever that is finite, and no number elsewhere.
static void expect_the_loop(const chain *c, const form *f, dpcr_scheme scheme, int64_t latest) {
    dpcr_chain_report report;
    const int64_t w = c->t.rows;
    const bool pairs = scheme == DPCR_SCHEME_PCR || scheme == DPCR_SCHEME_BLELLOCH;  // and denormals keep less
    void *loop = solve(c, DPCR_SCHEME_SEQUENTIAL, 0, 1, false, &report), *first = NULL;
    for (int threads = 1; threads <= THREADS; threads++) {
        const bool in_place = pairs && threads == THREADS;  // has the same bits
        void *z = solve(c, scheme, scheme == DPCR_SCHEME_AUTO ? 0 : f->chunk, threads, in_place, &report);
        for (int64_t i = 0; i < places(c, w); i++) {
            const double got = get(c->dtype, z, i), want = get(c->dtype, loop, i);
            if (isfinite(want) ? !(fabs(got - want) <= (pairs ? 2e-3 : 1e-4) * fabs(want)) : isfinite(got))
                fail_msg("%s w %d %s%s batch %d %s threads %d chunk %d: step %d of %d is %g, the loop's %g",
                         dpcr_structure_name(c->t.structure), (int)w, dpcr_dtype_name(c->dtype),
                         c->transposed ? " transposed" : "", (int)c->batch, dpcr_scheme_name(report.scheme), threads,
                         (int)f->chunk, (int)(i / w / c->batch), (int)length, got, want);
        }
        if (report.scheme != DPCR_SCHEME_SEQUENTIAL && report.finished_from > latest)
            fail_msg("%s w %d %s%s batch %d threads %d chunk %d: finished from %d", dpcr_structure_name(c->t.structure),
                     (int)w, dpcr_dtype_name(c->dtype), c->transposed ? " transposed" : "", (int)c->batch, threads,
                     (int)f->chunk, (int)report.finished_from);
        if (scheme != DPCR_SCHEME_AUTO && first)
            assert_memory_equal(first, z, (size_t)places(c, w) * dpcr_dtype_size(c->dtype));
        if (first) free(z);
        if (!first) first = z;
    }
    free(first), free(loop);
}

// Where pcr and blelloch lose states hangs on the steps' numbers.
static void expect_of_others(const chain *c, const form *f) {
    expect_the_loop(c, f, DPCR_SCHEME_AUTO, length);
    if (length > 3000) return;
    static int turn;
    expect_the_loop(c, f, turn++ % 2 ? DPCR_SCHEME_PCR : DPCR_SCHEME_BLELLOCH, length);
}

// Runs `check` on every form, type, direction and batch.
static void for_all(void (*check)(const form *f, dpcr_dtype dtype, bool transposed, int64_t batch)) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int flags = 0; flags < 8; flags++)
            if (sampled(8 * (int64_t)i + flags))
                check(&forms[i], flags & 1 ? DPCR_F64 : DPCR_F32, flags & 2, flags & 4 ? 2 : 1);
}

// A large state shrinks by more than the range of products and grows back by as much, in whole chunks or in one, all of
// it or, beside others that stay, one component.
static void underflow(const form *f, dpcr_dtype dtype, bool transposed, int64_t batch) {
    const int64_t w = f->w, chunk = f->chunk ? f->chunk : 64;
    for (int kind = 0; kind < 6; kind++) {
        const bool inside = kind & 1, turns = kind < 2, alone = kind >= 4;
        const int64_t steps = inside ? chunk / 2 : chunk, from = 10 * chunk;
        const double decades = dtype == DPCR_F32 ? 45 : 330, factor = pow(10, -decades / (double)steps);
        if (alone && (w == 1 || f->structure == DPCR_SCALAR)) continue;
        chain c = make(f, dtype, transposed, batch);
        for (int64_t m = 0; m < length; m++) {
            const bool shrinks = m >= from && m < from + steps, grows = m >= from + steps && m < from + 2 * steps;
            const double value = shrinks ? factor : grows ? 1 / factor : 1;
            set_factor(&c, m, -1, alone ? 1 : value, turns);
            if (alone) set_factor(&c, m, w - 1, value, false);
        }
        set_right(&c, 0, w - 1, dtype == DPCR_F32 ? 1e20 : 1e200);
        expect_the_loop(&c, f, DPCR_SCHEME_CHUNKED, from + (inside ? 1 : 2) * chunk);
        expect_of_others(&c, f);
        drop(&c);
    }
}

static void products_that_underflow(void **state) {
    (void)state;
    for_all(underflow);
}

// A component of which a product loses all, beside a large one that it goes into and that does not go into it: the
// terms of its own sums are small.
static void beside_a_large_one(void **state) {
    (void)state;
    const form f = {DPCR_DENSE, 2, 0, 64};
    for (int flags = 0; flags < 4; flags++) {
        const bool transposed = flags & 1;
        chain c = make(&f, flags & 2 ? DPCR_F64 : DPCR_F32, transposed, 1);
        const double shrinks = c.dtype == DPCR_F64 ? 1e-5 : 0.2;
        for (int64_t m = 0; m < length; m++) {
            set_factor(&c, m, 0, m >= 640 && m < 704 ? shrinks : m >= 704 && m < 768 ? 1 / shrinks : 1, false);
            set_factor(&c, m, 1, 1, false);
            const int64_t l = transposed ? length - m : m;  // component 1 takes component 0 too
            if (l < length) put(c.dtype, c.a, l * c.values + (transposed ? 1 : 2), 1e-3);
        }
        set_right(&c, 0, 0, c.dtype == DPCR_F64 ? 1e10 : 1e20);
        expect_the_loop(&c, &f, DPCR_SCHEME_CHUNKED, 704);
        expect_of_others(&c, &f);
        drop(&c);
    }
}

// A state overflows inside a chunk whose product is finite.
static void overflow(const form *f, dpcr_dtype dtype, bool transposed, int64_t batch) {
    const int64_t chunk = f->chunk ? f->chunk : 64, from = 20 * chunk + 2;
    const double factor = dtype == DPCR_F32 ? 1e8 : 1e80;
    chain c = make(f, dtype, transposed, batch);
    for (int64_t m = 0; m < length; m++) {
        const bool grows = m == from || m == from + 1, shrinks = m == from + 3 || m == from + 4;
        set_factor(&c, m, -1, grows ? factor : shrinks ? 1 / factor : 0.99, false);
    }
    set_right(&c, from - chunk, 0, dtype == DPCR_F32 ? 1e30 : 1e200);
    expect_the_loop(&c, f, DPCR_SCHEME_CHUNKED, from + chunk);
    expect_of_others(&c, f);
    drop(&c);
}

static void states_that_overflow(void **state) {
    (void)state;
    for_all(overflow);
}

// Sums that come back to nothing but their rounding, states that die away, and what is random: chunks join.
static void rounding(const form *f, dpcr_dtype dtype, bool transposed, int64_t batch) {
    static const double factors[] = {1, 1, 1, 0.999, 0.5, 0.1, 1e-3, -1};
    for (int kind = 0; kind < 8; kind++) {
        chain c = make(f, dtype, transposed, batch);
        for (int64_t m = 0; m < length; m++) {
            set_factor(&c, m, -1, factors[kind], kind % 2);
            for (int64_t i = 0; i < f->w; i++) {
                if (kind == 0 && m % 40 < 20)
                    set_right(&c, m, i, m % 2 ? -0.1 * (double)((m - 1) % 7) : 0.1 * (double)(m % 7));
                if (kind == 1 && m % 97 == 0) set_right(&c, m, i, m % 2 ? -0.3 : 0.3);
                if (kind == 4 && m == 0) set_right(&c, m, i, 1);
                if (kind != 0 && kind != 1 && kind != 4) set_right(&c, m, i, random_signed());
            }
        }
        for (int threads = 1; threads <= 2; threads++) {
            dpcr_chain_report report;
            for (int scheme = DPCR_SCHEME_PCR; scheme <= DPCR_SCHEME_CHUNKED; scheme++) {
                if (scheme != DPCR_SCHEME_CHUNKED && (kind < 2 || threads < 2)) continue;  // 0, 1: rounding alone
                free(solve(&c, (dpcr_scheme)scheme, f->chunk, threads, false, &report));
                if (report.finished_from < length)
                    fail_msg("%s %s w %d kind %d: finished from %d", dpcr_scheme_name(report.scheme),
                             dpcr_structure_name(f->structure), (int)f->w, kind, (int)report.finished_from);
            }
        }
        drop(&c);
    }
}

static void rounding_finishes_nothing(void **state) {
    (void)state;
    for_all(rounding);
}

// pcr and blelloch, wherever the first state that a product lost lies among the steps that are looked at together: the
// loop goes on from there, from the earliest of two sequences. What overflows is no number that they may keep.
static void pairs_of_every_length(void **state) {
    (void)state;
    static const form f = {DPCR_SCALAR, 1, 0, 0};
    const int64_t before = length;
    for (int flags = 0; flags < 8; flags++)
        for (length = 60; length < 200; length += TESTS_SANITIZED ? 17 : 1) {
            const bool overflows = flags & 1, transposed = flags & 2;
            const dpcr_scheme scheme = flags & 4 ? DPCR_SCHEME_PCR : DPCR_SCHEME_BLELLOCH;
            chain c = make(&f, DPCR_F32, transposed, 2);
            dpcr_chain_report report;
            for (int64_t m = 0; m < length; m++) {
                const int64_t l = transposed ? length - m : m, phase = m / 50, at = 40 + length % 33;
                const double value = overflows ? (m == at || m == at + 1       ? 1e8
                                                  : m == at + 3 || m == at + 4 ? 1e-8
                                                                               : 1)
                                               : (phase == 1   ? 0.2
                                                  : phase == 2 ? 5
                                                               : 1);
                for (int row = 0; row < 2 && l < length; row++) put(c.dtype, c.a, 2 * l + row, row ? 1 : value);
            }
            const int64_t first = 2 * (transposed ? length - 2 : 1);
            put(c.dtype, c.b, first, overflows ? 1e30 : 1e20), put(c.dtype, c.b, first + 1, 1);
            expect_the_loop(&c, &f, scheme, length);
            free(solve(&c, scheme, 0, 2, false, &report));
            if (overflows && scheme == DPCR_SCHEME_PCR && length > 130) assert_in_range(report.finished_from, 41, 130);
            drop(&c);
        }
    length = before;
}

// A caller's NaN goes on as in the loop, and no step is done again for it.
static void pairs_keep_what_is_no_number(void **state) {
    (void)state;
    static const form f = {DPCR_DENSE, 2, 0, 0};
    for (int scheme = DPCR_SCHEME_PCR; scheme <= DPCR_SCHEME_BLELLOCH; scheme++) {
        chain c = make(&f, DPCR_F64, false, 2);
        for (int64_t m = 0; m < length; m++) {
            set_factor(&c, m, -1, 0.9, true);
            set_right(&c, m, 0, m == 700 ? NAN : random_signed());
        }
        expect_the_loop(&c, &f, (dpcr_scheme)scheme, length);
        dpcr_chain_report report;
        free(solve(&c, (dpcr_scheme)scheme, 0, 2, scheme == DPCR_SCHEME_PCR, &report));
        assert_int_equal(report.finished_from, length);
        drop(&c);
    }
}

// Arrays that no cache holds.
static void far_chains(void **state) {
    (void)state;
    if (TESTS_SANITIZED) return;
    const form far[] = {{DPCR_SCALAR, 1, 0, 64}, {DPCR_DENSE, 2, 0, 64}};
    for (int i = 0; i < 4; i++) {
        length = i < 2 ? 2100000 : 800000;
        underflow(&far[i / 2], DPCR_F32, i % 2, 1);
        overflow(&far[i / 2], DPCR_F32, i % 2, 1);
    }
    length = 3000;
}

// A caller's denormals may be flushed.
static void without_denormals(void **state) {
    (void)state;
    const int before = dpcr_flush_denormals(1);
    for_all(underflow);
    dpcr_flush_denormals(before);
}

// What is compared in float, many at once, is within the bound in double too, where each is asked: what becomes of a
// sequence would hang on those beside it.
static void near_at_once_is_near(void **state) {
    (void)state;
    int near = 0;
    for (int i = 0; i < 20000; i++) {
        const double bound = i % 2 ? 1e-3 : 1e-4, nearly = 1 + (i % 41 - 20) * 1e-7;
        const float want = (float)ldexp(1 + i / 20000.0, i % 200 - 100), z = (float)(want * (1 + bound * nearly));
        const dpcri_chunk_states one = {&z, 1, 1}, wanted = {&want, 1, 1};
        if (!dpcri_states_near(DPCR_F32, &one, &wanted, 1, 1, bound)) continue;
        near++;
        assert_true(fabs((double)z - (double)want) <= bound * fabs((double)want));
    }
    assert_true(near > 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_that_underflow), cmocka_unit_test(beside_a_large_one),
        cmocka_unit_test(states_that_overflow),    cmocka_unit_test(rounding_finishes_nothing),
        cmocka_unit_test(without_denormals),       cmocka_unit_test(far_chains),
        cmocka_unit_test(pairs_of_every_length),   cmocka_unit_test(pairs_keep_what_is_no_number),
        cmocka_unit_test(near_at_once_is_near),
    };
    cmocka_set_test_filter(getenv("DEEPPCR_TEST_FILTER"));  // a pattern picks tests by name
    return cmocka_run_group_tests(tests, open_all, close_all);
}
