// SPDX-License-Identifier: MIT
// AUTO on chains whose loop waits: where the data forget their start it runs side by side, and where they do not in
// order, with the loop's bits both ways.
#include "chain_problem.h"
#include "sampled.h"

enum { LENGTH = 20000 };

static const dpcr_chain_options automatic = {.size = sizeof automatic};
static const dpcr_chain_options loop = {.size = sizeof loop, .scheme = DPCR_SCHEME_SEQUENTIAL};

static problem problem_of(int which, dpcr_dtype dtype, bool transposed, bool with_z0) {
    const dpcr_transition forms[] = {dpcr_transition_square(DPCR_DIAGONAL, 5, 0),
                                     dpcr_transition_square(DPCR_SCALAR, 3, 0),
                                     dpcr_transition_square(DPCR_BLOCK, 10, 5)};
    return make(forms[which], dtype, LENGTH, 1, transposed, with_z0, FILL_RANDOM, false, false);
}

static void same_as_the_loop(problem *p, int threads, bool in_place, dpcr_scheme wanted) {
    const size_t bytes = (size_t)(p->length * p->batch * p->w) * dpcr_dtype_size(p->dtype);
    void *expected = malloc(bytes), *b = malloc(bytes);
    assert_non_null(expected);
    assert_non_null(b);
    memcpy(b, p->b, bytes);
    solve(p, &loop, 1, false);
    memcpy(expected, p->z, bytes);
    const dpcr_chain_report report = solve(p, &automatic, threads, in_place);
    if (report.scheme != wanted)
        fail_msg("%s: ran %s, wanted %s", describe(p, &automatic), dpcr_scheme_name(report.scheme),
                 dpcr_scheme_name(wanted));
    assert_memory_equal(p->z, expected, bytes);
    assert_memory_equal(p->b, b, bytes);
    free(expected), free(b);
}

static void chains_that_forget_go_side_by_side(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
            for (int form = 0; form < 4; form++) {
                problem p = problem_of(which, (dpcr_dtype)dtype, form & 1, form == 2);
                for (int threads = 1; threads <= 3; threads++)
                    same_as_the_loop(&p, threads, form > 1, threads > 1 ? DPCR_SCHEME_OVERLAP : DPCR_SCHEME_SEQUENTIAL);
                drop(&p);
            }
}

// One step that keeps everything is enough where a place is looked at; elsewhere the boundaries tell.
static void chains_that_keep_their_past_go_in_order(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        problem p = problem_of(which, DPCR_F64, false, true);
        for (int64_t i = 0; i < LENGTH * p.values; i++) ((double *)p.a)[i] = 1;
        same_as_the_loop(&p, 2, false, DPCR_SCHEME_SEQUENTIAL);
        drop(&p);
    }
    problem p = problem_of(0, DPCR_F64, false, true);  // forgets at every place that is looked at, not between
    for (int64_t l = 0; l < LENGTH; l++)
        for (int64_t i = 0; i < p.values; i++)
            if (l % (LENGTH / 4) > 400) ((double *)p.a)[l * p.values + i] = i % 2 ? 1 : -1;
    same_as_the_loop(&p, 2, false, DPCR_SCHEME_OVERLAP);
    drop(&p);
}

// Whether AUTO offers to overlap such a chain: what it would choose otherwise is faster on some processors.
static bool offered(const problem *p, int threads) {
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .transition = p->t,
                                    .length = p->length,
                                    .batch = p->batch,
                                    .dtype = p->dtype,
                                    .transposed = p->transposed};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(contexts[threads], &shape, &automatic, &plan, NULL), DPCR_OK);
    const bool words = strstr(dpcr_chain_plan_sentence(plan), "side by side where it forgets") != NULL;
    dpcr_chain_plan_destroy(plan);
    return words;
}

// AUTO on two and on three threads against the loop, within `roundings` of the loop's largest state, and finite where
// that is. Returns whether it ran in overlapped chunks.
static bool near_the_loop(problem *p, double roundings) {
    const size_t count = (size_t)(p->length * p->w), bytes = count * sizeof(float);
    float *expected = malloc(bytes), *one = malloc(bytes);
    double largest = 0;
    assert_non_null(expected);
    assert_non_null(one);
    solve(p, &loop, 1, false);
    memcpy(expected, p->z, bytes);
    const dpcr_scheme scheme = solve(p, &automatic, 2, false).scheme;
    memcpy(one, p->z, bytes);
    for (size_t i = 0; i < count; i++)
        if (isfinite(expected[i])) largest = fmax(largest, fabs((double)expected[i]));
    for (size_t i = 0; i < count; i++) {
        const double bound = roundings * 1.2e-7 * largest;
        const bool same =
            isfinite(expected[i]) ? fabs((double)one[i] - (double)expected[i]) <= bound : !isfinite(one[i]);
        if (!same)
            fail_msg("%s: value %zu: %.9g, the loop's %.9g", describe(p, &automatic), i, (double)one[i],
                     (double)expected[i]);
    }
    if (solve(p, &automatic, 3, false).scheme == scheme) assert_memory_equal(p->z, one, bytes);
    free(expected), free(one);
    return scheme == DPCR_SCHEME_OVERLAP;
}

// Dense chains that AUTO would solve otherwise. Up to width 4 the loop's bits; wider, chunks join within eight
// roundings, and what that leaves is no more than the loop's own.
static void dense_chains_that_forget_go_side_by_side(void **state) {
    (void)state;
    const int64_t widths[] = {4, 5, 8, 12};
    for (int i = 0; i < 4; i++)
        for (int form = 0; form < 3; form++) {
            const dpcr_transition dense = dpcr_transition_square(DPCR_DENSE, widths[i], 0);
            problem p = make(dense, DPCR_F32, 2 * LENGTH, 1, form & 1, form == 2, FILL_RANDOM, false, false);
            const bool cut = offered(&p, 2);
            assert_int_equal(near_the_loop(&p, cut && widths[i] <= 4 ? 0 : 32), cut);
            drop(&p);
        }
}

// rho times a random orthogonal matrix: every direction shrinks by rho a step.
static void fill_rotation(float *a, int64_t w, double rho) {
    double q[32][32];
    for (int64_t i = 0; i < w; i++) {
        for (int64_t k = 0; k < w; k++) q[i][k] = random_signed();
        for (int64_t j = 0; j <= i; j++) {  // against the rows before, then to length 1
            double dot = 0;
            for (int64_t k = 0; k < w; k++) dot += q[i][k] * q[j][k];
            for (int64_t k = 0; k < w; k++) q[i][k] = j < i ? q[i][k] - dot * q[j][k] : q[i][k] / sqrt(dot);
        }
        for (int64_t k = 0; k < w; k++) a[i * w + k] = (float)(rho * q[i][k]);
    }
}

static void rotations_that_shrink_are_found_out(void **state) {
    (void)state;
    const int64_t widths[] = {4, 8, 16, 32}, lengths[] = {4096, 6000, 20000};
    const double rates[] = {0.3, 0.5, 0.7, 0.9}, scales[] = {1, 1e-8, 1e9};
    for (int i = 0; i < 4 * 3 * 4; i++) {
        if (!sampled(i)) continue;
        const int64_t w = widths[i % 4], n = lengths[i / 4 % 3];
        problem p =
            make(dpcr_transition_square(DPCR_DENSE, w, 0), DPCR_F32, n, 1, false, false, FILL_RANDOM, false, false);
        for (int64_t l = 0; l < n; l++) fill_rotation((float *)p.a + l * w * w, w, rates[i / 12]);
        for (int64_t k = 0; k < n * w; k++) ((float *)p.b)[k] *= (float)scales[i % 3];
        const bool cut = near_the_loop(&p, 500);
        // At 0.9 some 150 steps are a run-up: too long a part of a short chain.
        if (offered(&p, 2) && !cut && !(rates[i / 12] > 0.8 && n < 10000))
            fail_msg("%s by %g a step at %g: in order", describe(&p, &automatic), rates[i / 12], scales[i % 3]);
        drop(&p);
    }
}

// Where nobody has looked a stretch keeps all that enters it: its boundaries are wrong however small the states are.
static void stretches_that_keep_their_past_are_seen(void **state) {
    (void)state;
    const int64_t w = 8, n = 2 * LENGTH;
    for (int i = 0; i < 2; i++) {
        problem p =
            make(dpcr_transition_square(DPCR_DENSE, w, 0), DPCR_F32, n, 1, false, false, FILL_RANDOM, false, false);
        for (int64_t l = 11000; l < 13000; l++) fill_rotation((float *)p.a + l * w * w, w, 1);
        for (int64_t k = 0; k < n * w; k++) ((float *)p.b)[k] *= i ? 1e-8f : 1;
        near_the_loop(&p, 2000);
        drop(&p);
    }
}

// The last component mixes with no other. In a stretch where nobody has looked it grows from next to nothing, or
// remembers what is small beside the others, or all do that are tiny there: its numbers are the loop's all the same.
static void components_that_go_their_own_way_are_seen(void **state) {
    (void)state;
    const int64_t n = 2 * LENGTH, lo = 1500, hi = 9500;
    for (int i = 0; i < 12; i++) {
        const int kind = i / 4;
        const bool is_double = i & 1, transposed = i & 2;
        const int64_t w = is_double ? 5 : 8;
        problem p = make(dpcr_transition_square(DPCR_DENSE, w, 0), is_double ? DPCR_F64 : DPCR_F32, n, 1, transposed,
                         false, FILL_RANDOM, false, false);
        const double little = is_double ? 1e-17 : 1e-8, large = is_double ? 1e15 : 1e6;
        const double growth = exp(log(1 / little) / (double)(hi - lo));
        for (int64_t m = 0; m < n;
             m++) {  // along the recurrence; the transposed one's transition m lies one further on
            const bool within = m > lo && m < hi;
            const int64_t l = transposed ? n - m : m, step = transposed ? n - 1 - m : m;
            for (int64_t k = 0; l < n && k < w * w; k++) {
                const int64_t row = k / w, col = k % w;
                double a = row != col ? (row < w - 1 && col < w - 1 ? 0.05 : 0) : 0.3;
                if (within && kind == 2) a = row == col;
                if (within && row == w - 1 && col == w - 1) a = kind == 0 ? growth : 1;
                put(p.dtype, p.a, l * w * w + k, a);
            }
            for (int64_t k = 0; k < w; k++) {
                const double drawn = get(p.dtype, p.b, step * w + k);
                double b = kind == 1 ? large * drawn : drawn;
                if (k == w - 1) b = kind == 0 ? (m == lo + 1 ? little : 0) : kind == 1 ? fabs(drawn) * 0.01 : drawn;
                if (within && kind == 2) b = fabs(drawn) * little * 1e-3;
                put(p.dtype, p.b, step * w + k, b);
            }
        }
        const size_t bytes = (size_t)(n * w) * dpcr_dtype_size(p.dtype);
        void *expected = malloc(bytes);
        assert_non_null(expected);
        solve(&p, &loop, 1, false);
        memcpy(expected, p.z, bytes);
        const dpcr_scheme ran = solve(&p, &automatic, 2, false).scheme;
        for (int64_t l = 0; l < n; l++) {
            const double x = get(p.dtype, p.z, l * w + w - 1), y = get(p.dtype, expected, l * w + w - 1);
            if (!(fabs(x - y) <= 1e-3 * fabs(y)))
                fail_msg("%s by %s, kind %d: step %lld is %g, the loop's %g", describe(&p, &automatic),
                         dpcr_scheme_name(ran), kind, (long long)l, x, y);
        }
        free(expected);
        drop(&p);
    }
}

// What overflows and stays so, past many a boundary that starts from finite numbers.
static void an_infinite_end_is_no_start(void **state) {
    (void)state;
    const int64_t w = 8, n = 2 * LENGTH;
    problem p = make(dpcr_transition_square(DPCR_DENSE, w, 0), DPCR_F32, n, 1, false, false, FILL_RANDOM, false, false);
    for (int64_t i = 0; i < n * w * w; i++) ((float *)p.a)[i] = 0.1f;
    for (int64_t i = 0; i < w; i++) ((float *)p.b)[12000 * w + i] = ((float *)p.b)[12001 * w + i] = 3e38f;
    assert_int_equal(near_the_loop(&p, 64), offered(&p, 2));
    assert_true(isinf(((float *)p.z)[n * w - 1]));
    drop(&p);
}

// Permutations keep everything, and every order of sums gives the same integers: whatever is chosen, it is no overlap.
static void dense_chains_that_keep_their_past_are_not_cut(void **state) {
    (void)state;
    for (int64_t w = 3; w <= 12; w += w < 5 ? 1 : 3) {
        problem p = make(dpcr_transition_square(DPCR_DENSE, w, 0), DPCR_F32, 2 * LENGTH, 1, false, true,
                         FILL_PERMUTATION, false, false);
        const size_t bytes = (size_t)(p.length * p.w) * sizeof(float);
        float *expected = malloc(bytes);
        assert_non_null(expected);
        solve(&p, &loop, 1, false);
        memcpy(expected, p.z, bytes);
        assert_int_not_equal(solve(&p, &automatic, 2, false).scheme, DPCR_SCHEME_OVERLAP);
        assert_memory_equal(p.z, expected, bytes);
        free(expected);
        drop(&p);
    }
}

// A number that is not finite stays where the loop has it.
static void what_is_not_finite_stays(void **state) {
    (void)state;
    problem p = problem_of(0, DPCR_F32, false, true);
    ((float *)p.b)[(LENGTH / 3) * p.w + 2] = NAN;
    ((float *)p.b)[(LENGTH / 2) * p.w + 3] = INFINITY;
    const size_t bytes = (size_t)(LENGTH * p.w) * sizeof(float);
    float *expected = malloc(bytes);
    assert_non_null(expected);
    solve(&p, &loop, 1, false);
    memcpy(expected, p.z, bytes);
    assert_int_equal(solve(&p, &automatic, 2, false).scheme, DPCR_SCHEME_OVERLAP);
    for (int64_t i = 0; i < LENGTH * p.w; i++) {
        const float *x = (const float *)p.z + i, *y = expected + i;
        assert_true(isnan(*x) ? isnan(*y) : memcmp(x, y, sizeof *x) == 0);
    }
    free(expected);
    drop(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_that_forget_go_side_by_side),
        cmocka_unit_test(chains_that_keep_their_past_go_in_order),
        cmocka_unit_test(dense_chains_that_forget_go_side_by_side),
        cmocka_unit_test(rotations_that_shrink_are_found_out),
        cmocka_unit_test(stretches_that_keep_their_past_are_seen),
        cmocka_unit_test(components_that_go_their_own_way_are_seen),
        cmocka_unit_test(an_infinite_end_is_no_start),
        cmocka_unit_test(dense_chains_that_keep_their_past_are_not_cut),
        cmocka_unit_test(what_is_not_finite_stays),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
