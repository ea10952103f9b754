// SPDX-License-Identifier: MIT
// Linear chains: every scheme against the loop. In the ring of uint32 and on signed permutations there is no rounding,
// so a missing level, a swapped operand or a boundary off by one changes the result; random numbers follow with
// tolerances.
#include "base/base.h"
#include "chain_problem.h"
#include "kern/kern.h"
#include "sampled.h"

static int64_t exact_errors(dpcr_dtype dtype, const width *which, int64_t from, int64_t to, int stop_at_first) {
    int64_t wrong = 0;
    const dpcr_transition t = dpcr_transition_square(which->structure, which->w, which->k);
    for (int64_t length = from; length <= to; length++)
        for (int flags = 0; flags < 4; flags++) {
            if (!sampled(length * 4 + flags)) continue;
            // Forward with and without z0, backward; shared transitions now and then; in place every other time.
            const bool shared_steps = flags == 3 && dtype == DPCR_U32;
            problem p = make(t, dtype, length, length % 3 == 0 ? 2 : 1, flags == 2, flags == 1 || flags == 3,
                             dtype == DPCR_U32 ? FILL_RANDOM : FILL_PERMUTATION, shared_steps, flags == 3);
            for (int i = 0; i < VARIANTS; i++) {
                const dpcr_chain_options options = variant(i);
                solve(&p, &options, (length + i) % 64 ? 1 : 2, (length + i) % 2 == 0);
                const int64_t here = wrong_states(&p, true);
                if (here && stop_at_first)
                    fail_msg("%s: %d states differ from the loop", describe(&p, &options), (int)here);
                wrong += here;
            }
            drop(&p);
        }
    return wrong;
}

static const width exact_widths[] = {
    {DPCR_DENSE, 2, 0}, {DPCR_BLOCK, 4, 2},    {DPCR_DIAGONAL, 3, 0}, {DPCR_SCALAR, 2, 0},
    {DPCR_DENSE, 5, 0}, {DPCR_IDENTITY, 2, 0}, {DPCR_ZERO, 2, 0},
};

static void ring(void **state) {
    (void)state;
    for (size_t i = 0; i < 4; i++) exact_errors(DPCR_U32, &exact_widths[i], 0, 130, 1);
    for (size_t i = 4; i < sizeof exact_widths / sizeof *exact_widths; i++)
        exact_errors(DPCR_U32, &exact_widths[i], 0, 40, 1);
}

// A9: rotations by 90 degrees, swaps and changes of sign among them.
static void permutations(void **state) {
    (void)state;
    static const width widths[] = {{DPCR_DENSE, 1, 0}, {DPCR_DENSE, 2, 0},    {DPCR_DENSE, 3, 0}, {DPCR_DENSE, 4, 0},
                                   {DPCR_BLOCK, 6, 2}, {DPCR_DIAGONAL, 5, 0}, {DPCR_SCALAR, 3, 0}};
    static const width wide[] = {{DPCR_DENSE, 5, 0},  {DPCR_DENSE, 8, 0},  {DPCR_DENSE, 16, 0}, {DPCR_DENSE, 20, 0},
                                 {DPCR_DENSE, 32, 0}, {DPCR_BLOCK, 16, 8}, {DPCR_BLOCK, 64, 2}, {DPCR_DIAGONAL, 70, 0}};
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            const bool every_length = widths[i].w == 2 || widths[i].structure == DPCR_DIAGONAL;
            exact_errors((dpcr_dtype)dtype, &widths[i], 1, every_length ? 130 : 20, 1);
            if (!every_length) exact_errors((dpcr_dtype)dtype, &widths[i], 126, 130, 1);
        }
        for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
            exact_errors((dpcr_dtype)dtype, &wide[i], 30, 34, 1);
            exact_errors((dpcr_dtype)dtype, &wide[i], 127, 129, 1);
        }
    }
}

static void random_numbers(void **state) {
    (void)state;
    static const width widths[] = {
        {DPCR_ZERO, 5, 0},      {DPCR_IDENTITY, 5, 0}, {DPCR_SCALAR, 1, 0},  {DPCR_SCALAR, 5, 0}, {DPCR_DIAGONAL, 1, 0},
        {DPCR_DIAGONAL, 19, 0}, {DPCR_BLOCK, 6, 3},    {DPCR_BLOCK, 32, 16}, {DPCR_DENSE, 1, 0},  {DPCR_DENSE, 2, 0},
        {DPCR_DENSE, 3, 0},     {DPCR_DENSE, 8, 0},    {DPCR_DENSE, 17, 0},  {DPCR_DENSE, 33, 0}};
    static const int64_t lengths[] = {1, 2, 3, 64, 131}, batches[] = {1, 3, 8};
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int l = 0; l < 5; l++)
                for (int flags = l % 2; flags<6; flags += widths[i].w> 16 ? 3 : 1) {
                    if (!sampled(((int64_t)i * 5 + l) * 6 + flags)) continue;
                    const dpcr_transition t = dpcr_transition_square(widths[i].structure, widths[i].w, widths[i].k);
                    problem p = make(t, (dpcr_dtype)dtype, lengths[l], batches[(l + flags) % 3], flags % 2,
                                     flags / 2 != 1, FILL_RANDOM, flags / 2 == 1, flags / 2 == 2);
                    for (int v = 0; v < VARIANTS; v++) {
                        const dpcr_chain_options options = variant(v);
                        solve(&p, &options, l == 4 && i % 4 == 0 ? 2 : 1, v % 2);
                        const int64_t wrong = wrong_states(&p, false);
                        if (wrong) fail_msg("%s: %d states off", describe(&p, &options), (int)wrong);
                    }
                    drop(&p);
                }
}

static void *copy_of(const problem *p) {
    const size_t bytes = (size_t)(p->length * p->batch * p->w) * dpcr_dtype_size(p->dtype);
    void *copy = malloc(bytes + 1);
    memcpy(copy, p->z, bytes);
    return copy;
}

// Same bits for any number of threads; and overlap with tolerance 0 has the loop's.
static void threads_and_overlap(void **state) {
    (void)state;
    // Few cases: on a machine whose cores are taken, handing a region to another thread costs milliseconds.
    static const width widths[] = {{DPCR_DENSE, 2, 0}, {DPCR_DENSE, 8, 0},    {DPCR_DENSE, 21, 0},
                                   {DPCR_BLOCK, 8, 2}, {DPCR_DIAGONAL, 9, 0}, {DPCR_SCALAR, 6, 0}};
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int flags = (int)(i + (size_t)dtype) % 2; flags < 4; flags += 3) {
                const dpcr_transition t = dpcr_transition_square(widths[i].structure, widths[i].w, widths[i].k);
                problem p = make(t, (dpcr_dtype)dtype, widths[i].w < 8 ? 701 : 151, flags / 2 ? 5 : 1, flags % 2, true,
                                 FILL_RANDOM, false, false);
                const size_t bytes = (size_t)(p.length * p.batch * p.w) * dpcr_dtype_size(p.dtype);
                const dpcr_chain_options loop = variant(0);
                solve(&p, &loop, 1, false);
                void *wanted = copy_of(&p);
                for (int v = 0; v < VARIANTS; v++) {
                    const dpcr_chain_options options = variant(v);
                    if (options.scheme == DPCR_SCHEME_AUTO || options.chunk == 1 || options.levels > 1) continue;
                    solve(&p, &options, 1, false);
                    void *one = copy_of(&p);
                    if (options.scheme == DPCR_SCHEME_OVERLAP && memcmp(one, wanted, bytes) != 0)
                        fail_msg("%s: not the loop's bits", describe(&p, &options));
                    for (int threads = 2; threads <= 3; threads++) {
                        solve(&p, &options, threads, threads == 3);
                        if (memcmp(one, p.z, bytes) != 0)
                            fail_msg("%s: %d threads, other bits", describe(&p, &options), threads);
                    }
                    free(one);
                }
                free(wanted);
                drop(&p);
            }
}

static void overlap_has_the_loops_bits(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int64_t w = 1; w <= 40; w++)
            for (int transposed = 0; transposed < 2; transposed++) {
                if (!sampled(2 * w + transposed)) continue;
                const dpcr_structure structure = w % 5 == 4 ? DPCR_DIAGONAL : DPCR_DENSE;
                problem p = make(dpcr_transition_square(structure, w, 0), (dpcr_dtype)dtype, 300, 1 + w % 3, transposed,
                                 true, FILL_RANDOM, false, false);
                const size_t bytes = (size_t)(p.length * p.batch * p.w) * dpcr_dtype_size(p.dtype);
                const dpcr_chain_options loop = variant(0);
                solve(&p, &loop, 1, false);
                void *wanted = copy_of(&p);
                for (int v = 0; v < VARIANTS; v++) {
                    const dpcr_chain_options options = variant(v);
                    if (options.scheme != DPCR_SCHEME_OVERLAP) continue;
                    solve(&p, &options, 1, v % 2);
                    if (memcmp(p.z, wanted, bytes) != 0) fail_msg("%s: not the loop's bits", describe(&p, &options));
                }
                free(wanted);
                drop(&p);
            }
}

// Into the sequence's own place among the others.
static void solve_alone(const problem *p, int64_t row, const dpcr_chain_options *options) {
    const size_t size = dpcr_dtype_size(p->dtype);
    problem alone = *p;
    alone.batch = 1;
    alone.va.data = (char *)p->a + (size_t)(row * p->values) * size;
    alone.vb.data = (char *)p->b + (size_t)(row * p->w) * size;
    alone.v0.data = p->z0 ? (char *)p->z0 + (size_t)(row * p->w) * size : NULL;
    alone.vz.data = (char *)p->z + (size_t)(row * p->w) * size;
    alone.va.shape[1] = alone.vb.shape[1] = alone.vz.shape[1] = alone.v0.shape[0] = 1;
    solve(&alone, options, 1, false);
}

// A sequence's bits are those that it has alone; a NaN stays where it is.
static void sequences_are_alone(void **state) {
    (void)state;
    static const width widths[] = {{DPCR_DENSE, 2, 0},  {DPCR_DENSE, 8, 0},   {DPCR_DENSE, 11, 0},
                                   {DPCR_BLOCK, 6, 3},  {DPCR_BLOCK, 10, 2},  {DPCR_DIAGONAL, 5, 0},
                                   {DPCR_SCALAR, 3, 0}, {DPCR_IDENTITY, 3, 0}};
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int v = 0; v < VARIANTS; v++)
                for (int transposed = 0; transposed < 2; transposed++) {
                    if (!sampled(((int64_t)i * VARIANTS + v) * 2 + transposed)) continue;
                    const dpcr_transition t = dpcr_transition_square(widths[i].structure, widths[i].w, widths[i].k);
                    problem p = make(t, (dpcr_dtype)dtype, 77, 7, transposed, true, FILL_RANDOM, false, false);
                    dpcr_chain_options options = variant(v);
                    if (options.scheme == DPCR_SCHEME_AUTO) options.scheme = DPCR_SCHEME_PCR;
                    put(p.dtype, p.b, (40 * 7 + 3) * p.w, NAN);
                    if (p.values) put(p.dtype, p.a, (50 * 7 + 3) * p.values, NAN);
                    solve(&p, &options, 1, false);
                    void *all = copy_of(&p);
                    const size_t size = dpcr_dtype_size(p.dtype);
                    for (int64_t row = 0; row < 7; row++) solve_alone(&p, row, &options);
                    for (int64_t l = 0; l < 77; l++)
                        for (int64_t row = 0; row < 7; row++)
                            for (int64_t j = 0; j < p.w; j++) {
                                const int64_t at = (l * 7 + row) * p.w + j;
                                const double together = get(p.dtype, all, at), apart = get(p.dtype, p.z, at);
                                if (row != 3 && isnan(together))
                                    fail_msg("%s: NaN reached row %d", describe(&p, &options), (int)row);
                                if (row != 3 &&
                                    memcmp((char *)all + (size_t)at * size, (char *)p.z + (size_t)at * size, size) != 0)
                                    fail_msg("%s: row %d differs alone (%g, %g)", describe(&p, &options), (int)row,
                                             together, apart);
                                if (row == 3 && isnan(together) != isnan(apart))
                                    fail_msg("%s: other NaN", describe(&p, &options));
                                // Steps before the first NaN are numbers.
                                if (row == 3 && (transposed ? l > 50 : l < 40) && isnan(together))
                                    fail_msg("%s: NaN went against the chain, to step %d", describe(&p, &options),
                                             (int)l);
                            }
                    free(all);
                    drop(&p);
                }
}

// Batches that no cache holds ask for what later steps read, of the next stretch where they go stretch by stretch.
static void batches_from_memory(void **state) {
    (void)state;
    static const width widths[] = {{DPCR_DENSE, 2, 0}, {DPCR_DENSE, 3, 0}, {DPCR_DENSE, 4, 0}, {DPCR_DENSE, 5, 0},
                                   {DPCR_DENSE, 8, 0}, {DPCR_DENSE, 9, 0}, {DPCR_BLOCK, 8, 2}};
    static const int64_t batches[] = {66, 35, 17, 19, 13, 5, 17};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = DPCR_SCHEME_SEQUENTIAL};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            if (!sampled(2 * (int64_t)i + transposed)) continue;
            const dpcr_transition t = dpcr_transition_square(widths[i].structure, widths[i].w, widths[i].k);
            problem p = make(t, DPCR_F32, 16000, batches[i], transposed, false, FILL_RANDOM, false, false);
            assert_true(p.length * p.batch * (p.values + 2 * p.w) * 4 > 20000000);  // linear.c: more comes from memory
            solve(&p, &options, 1, false);
            void *all = copy_of(&p);
            for (int64_t row = 0; row < p.batch; row++) solve_alone(&p, row, &options);
            assert_memory_equal(p.z, all, (size_t)(p.length * p.batch * p.w) * sizeof(float));
            free(all);
            drop(&p);
        }
}

// A20: s <- S s + D, where a product of swapped operands gives other numbers.
static void operand_order(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        double s[] = {2, 3, 5, 7}, d[] = {1, 1, 1, 1}, z[4];
        problem p = {.t = dpcr_transition_square(DPCR_DENSE, 1, 0),
                     .dtype = DPCR_F64,
                     .length = 4,
                     .batch = 1,
                     .w = 1,
                     .values = 1,
                     .a = s,
                     .b = d,
                     .z = z};
        p.va = dpcr_array_make(s, DPCR_F64, 3, (const int64_t[]){4, 1, 1});
        p.vb = dpcr_array_make(d, DPCR_F64, 3, (const int64_t[]){4, 1, 1});
        p.vz = dpcr_array_make(z, DPCR_F64, 3, (const int64_t[]){4, 1, 1});
        const dpcr_chain_options options = variant(v);
        solve(&p, &options, 2, false);
        assert_true(z[0] == 1 && z[1] == 4 && z[2] == 21 && z[3] == 148);
    }
}

// A word of permutations of five letters: the state tells where a letter is. T to 2000, every scheme exact.
static void word_problem(void **state) {
    (void)state;
    const dpcr_transition t = dpcr_transition_square(DPCR_DENSE, 5, 0);
    problem p = make(t, DPCR_F32, 2000, 1, false, true, FILL_PERMUTATION, false, false);
    memset(p.b, 0, (size_t)(p.length * p.w) * sizeof(float));
    for (int i = 0; i < VARIANTS; i++) {
        const dpcr_chain_options options = variant(i);
        solve(&p, &options, 2, false);
        assert_int_equal(wrong_states(&p, true), 0);
    }
    drop(&p);
}

static int64_t tree_compositions(int64_t n, int levels) {
    int64_t sum = 0;
    for (int d = 0; d < levels && d < 60; d++) sum += n >> (d + 1) > 0 ? (n >> (d + 1)) - 1 : 0;
    return sum;
}

static void counts(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 15, 16, 63, 64, 1000};
    for (int i = 0; i < 7; i++)
        for (int levels = 0; levels <= 8; levels++) {
            const int64_t n = lengths[i];
            problem p =
                make(dpcr_transition_square(DPCR_DENSE, 2, 0), DPCR_F64, n, 3, false, false, FILL_RANDOM, false, false);
            const dpcr_chain_options tree = {.size = sizeof tree, .scheme = DPCR_SCHEME_BLELLOCH, .levels = levels};
            const dpcr_chain_report r = solve(&p, &tree, 1, false);
            assert_int_equal(r.applications, 3 * (n - 1) + r.compositions);  // a composition of affine maps has one
            assert_int_equal(r.compositions, 3 * tree_compositions(n, levels ? levels - 1 : 60));
            if (levels == 0) assert_true(r.compositions <= 3 * n);
            const dpcr_chain_options pcr = {.size = sizeof pcr, .scheme = DPCR_SCHEME_PCR};
            const dpcr_chain_report q = solve(&p, &pcr, 1, false);
            int64_t applications = 0, compositions = 0, depth = 0;
            for (int64_t s = 1; s < n; s *= 2, depth++) {
                applications += n - s;
                compositions += 2 * s < n ? n - 2 * s : 0;
            }
            assert_int_equal(q.applications, 3 * applications);
            assert_int_equal(q.compositions, 3 * compositions);
            assert_int_equal(q.depth, depth);
            const dpcr_chain_options loop = {.size = sizeof loop, .scheme = DPCR_SCHEME_SEQUENTIAL};
            const dpcr_chain_report s = solve(&p, &loop, 1, false);
            assert_int_equal(s.applications, 3 * (n - 1));
            assert_int_equal(s.compositions, 0);
            assert_int_equal(s.depth, n);
            assert_true(s.finished_from == n && s.sweeps == 1 && s.scheme == DPCR_SCHEME_SEQUENTIAL && s.seconds >= 0);
            drop(&p);
        }
}

// Overlap: one sweep on a chain that forgets; a chain that does not is finished in order, at most twice the loop's
// work; a tolerance bounds the defect at the boundaries.
static void overlap_reports(void **state) {
    (void)state;
    problem p =
        make(dpcr_transition_square(DPCR_DENSE, 2, 0), DPCR_F32, 10000, 2, false, true, FILL_RANDOM, false, false);
    dpcr_chain_options o = {.size = sizeof o, .scheme = DPCR_SCHEME_OVERLAP, .chunk = 500, .warm_up = 200};
    dpcr_chain_report r = solve(&p, &o, 2, false);
    assert_int_equal(r.sweeps, 1);
    assert_int_equal(r.finished_from, p.length);
    assert_int_equal(r.applications, 2 * (10000 + 19 * 200 - 19));
    o.warm_up = 2;
    o.tolerance = 1e-3;
    r = solve(&p, &o, 2, false);
    loop_case c = loop_of(&p);
    long double *z = calloc(40000, sizeof *z);
    uint32_t *unused = calloc(40000, sizeof *unused);
    plain_loop(&c, z, unused);
    for (int i = 0; i < 40000; i++) assert_true(fabsl(get(DPCR_F32, p.z, i) - z[i]) < 1e-2L);
    free(z);
    free(unused);
    drop(&p);
    problem q =
        make(dpcr_transition_square(DPCR_IDENTITY, 2, 0), DPCR_F64, 4096, 1, false, true, FILL_RANDOM, false, false);
    const dpcr_chain_options remembers = {.size = sizeof o, .scheme = DPCR_SCHEME_OVERLAP, .chunk = 100, .warm_up = 16};
    r = solve(&q, &remembers, 2, false);
    assert_int_equal(r.sweeps, 3);
    assert_true(r.finished_from > 0 && r.finished_from < q.length);
    assert_int_equal(wrong_states(&q, false), 0);
    drop(&q);
}

// Run-ups and chunks longer than any chain are one chunk, the loop; UndefinedBehaviorSanitizer sees what overflows.
static void endless_run_ups_are_the_loop(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        const dpcr_structure structure = i < 4 ? DPCR_DENSE : DPCR_DIAGONAL;
        problem p =
            make(dpcr_transition_square(structure, 3, 0), DPCR_F64, 364, 2, false, true, FILL_RANDOM, false, false);
        const int64_t run_ups[] = {INT64_MAX, INT64_MAX - 1, INT64_MAX / 2 + 1, INT64_MAX / 16};
        const dpcr_chain_options endless = {.size = sizeof endless,
                                            .scheme = DPCR_SCHEME_OVERLAP,
                                            .chunk = i % 4 == 1   ? 16
                                                     : i % 4 == 2 ? INT64_MAX
                                                                  : 0,
                                            .warm_up = run_ups[i % 4]};
        const dpcr_chain_report r = solve(&p, &endless, 2, false);
        assert_true(r.applications > 0 && r.depth > 0);
        assert_int_equal(r.finished_from, p.length);
        drop(&p);
    }
}

// A sequence that keeps its past in a late stretch spends the sweeps, and is the loop's from then on, bit for bit, what
// was within the tolerance before too: component 0 keeps, 1 grows in an earlier stretch from a kick below the
// tolerance, or is pushed just before every run-up, forgets that in a chunk's first steps to below it, and grows from
// what is left. Its neighbour, which joins within the tolerance everywhere, has the bits that it has alone.
static void what_overlap_finishes_is_the_loop(void **state) {
    (void)state;
    enum { L = 16384, CHUNK = 512, W = 2 };
    for (int kind = 0; kind < 4; kind++) {
        const bool nears = kind & 1, transposed = kind & 2;
        problem p = make(dpcr_transition_square(DPCR_DIAGONAL, W, 0), DPCR_F64, L, 2, transposed, false, FILL_RANDOM,
                         false, false);
        double *const a = p.a, *const b = p.b;
        for (int64_t m = 0; m < L; m++)
            for (int64_t row = 0; row < 2; row++) {
                const int64_t l = transposed ? L - m : m, step = transposed ? L - 1 - m : m, at = m % CHUNK;
                double *const values = a + (l * 2 + row) * W, *const right = b + (step * 2 + row) * W;
                const bool kicked = m == 1310;
                if (l < L) values[0] = row == 0 && m >= 8000 && m < 14000 ? 1 : 0.3;
                if (l < L)
                    values[1] = nears ? (at < 250 ? 0.93 : at < 440 ? 1.03 : 0.9) : m > 1300 && m < 3000 ? 1.005 : 0.3;
                right[1] = nears ? at == CHUNK - 20 : kicked ? 1e-9 : 0;
            }
        const dpcr_chain_options loop = {.size = sizeof loop, .scheme = DPCR_SCHEME_SEQUENTIAL};
        const dpcr_chain_options overlap = {
            .size = sizeof overlap, .scheme = DPCR_SCHEME_OVERLAP, .chunk = CHUNK, .warm_up = 16, .tolerance = 1e-5};
        double *const expected = malloc(2 * L * W * sizeof *expected), *const together =
                                                                           malloc(2 * L * W * sizeof *together);
        solve(&p, &loop, 1, false);
        memcpy(expected, p.z, 2 * L * W * sizeof *expected);
        const dpcr_chain_report r = solve(&p, &overlap, 2, false);
        memcpy(together, p.z, 2 * L * W * sizeof *together);
        assert_true(r.finished_from > 0 && r.finished_from < 8000);
        bool neighbour_differs = false;
        for (int64_t l = 0; l < L; l++) {
            assert_memory_equal(together + l * 2 * W, expected + l * 2 * W, W * sizeof *together);
            neighbour_differs |= memcmp(together + l * 2 * W + W, expected + l * 2 * W + W, W * sizeof *together) != 0;
        }
        assert_true(neighbour_differs);
        // Sequence 0 made as the other one is.
        for (int64_t l = 0; l < L; l++) {
            memcpy(a + l * 2 * W, a + l * 2 * W + W, W * sizeof *a);
            memcpy(b + l * 2 * W, b + l * 2 * W + W, W * sizeof *b);
        }
        assert_int_equal(solve(&p, &overlap, 2, false).finished_from, L);
        for (int64_t l = 0; l < L; l++)
            assert_memory_equal((double *)p.z + l * 2 * W + W, together + l * 2 * W + W, W * sizeof *together);
        free(expected), free(together);
        drop(&p);
    }
}

// The driver's ranges: a row whose first steps have A = 0 and b = 0 has the same bits when the range starts after them.
static void anchoring(void **state) {
    (void)state;
    static const width widths[] = {
        {DPCR_DENSE, 2, 0}, {DPCR_DENSE, 9, 0}, {DPCR_BLOCK, 4, 2}, {DPCR_DIAGONAL, 3, 0}, {DPCR_SCALAR, 2, 0}};
    for (int dtype = DPCR_F32; dtype <= DPCR_U32; dtype++)
        for (size_t i = 0; i < 5; i++)
            for (int v = 0; v < VARIANTS - 1; v++)
                for (int64_t zeros = 0; zeros <= 40; zeros += 1 + zeros / 7)
                    for (int transposed = 0; transposed < 2; transposed++) {
                        if (!sampled((((int64_t)i * VARIANTS + v) * 41 + zeros) * 2 + transposed)) continue;
                        const dpcr_transition t = dpcr_transition_square(widths[i].structure, widths[i].w, widths[i].k);
                        problem p = make(t, (dpcr_dtype)dtype, 101, 2, transposed, false, FILL_RANDOM, false, false);
                        const size_t size = dpcr_dtype_size(p.dtype);
                        // In the order of the recurrence the first `zeros` steps; A of a transposed step lies one
                        // further.
                        for (int64_t m = 0; m < zeros; m++) {
                            const int64_t l = transposed ? 100 - m : m, a_of = transposed ? l + 1 : l;
                            memset((char *)p.b + (size_t)(l * 2 * p.w) * size, 0, (size_t)(2 * p.w) * size);
                            if (a_of < 101)
                                memset((char *)p.a + (size_t)(a_of * 2 * p.values) * size, 0,
                                       (size_t)(2 * p.values) * size);
                        }
                        dpcr_chain_options options = variant(v);
                        dpcri_chain_defaults(&t, 101, 2, &options);
                        dpcri_linear whole = {.transition = t,
                                              .dtype = p.dtype,
                                              .transposed = transposed,
                                              .length = 101,
                                              .rows = 2,
                                              .first = 13,
                                              .a = p.a,
                                              .a_step = 2 * p.values,
                                              .a_row = p.values,
                                              .b = p.b,
                                              .b_step = 2 * p.w,
                                              .b_row = p.w,
                                              .z = p.z,
                                              .z_step = 2 * p.w,
                                              .z_row = p.w};
                        const size_t bytes = dpcri_linear_workspace(&whole, &options);
                        void *workspace = room((int64_t)bytes / 8 + 8);
                        dpcri_linear_solve(contexts[1], &whole, &options, workspace, NULL);
                        void *early = copy_of(&p);
                        memset(p.z, 0xff, (size_t)(101 * 2 * p.w) * size);
                        dpcri_linear rest = whole;
                        rest.first += zeros;
                        rest.length -= zeros;
                        if (!transposed) {
                            rest.a = (const char *)p.a + (size_t)(zeros * 2 * p.values) * size;
                            rest.b = (const char *)p.b + (size_t)(zeros * 2 * p.w) * size;
                            rest.z = (char *)p.z + (size_t)(zeros * 2 * p.w) * size;
                        }
                        assert_true(dpcri_linear_workspace(&rest, &options) <= bytes);
                        dpcri_linear_solve(contexts[1], &rest, &options, workspace, NULL);
                        const size_t from = transposed ? 0 : (size_t)(zeros * 2 * p.w) * size;
                        if (memcmp((char *)early + from, (char *)p.z + from,
                                   (size_t)((101 - zeros) * 2 * p.w) * size) != 0)
                            fail_msg("%s after %d zeros: other bits", describe(&p, &options), (int)zeros);
                        free(early);
                        free(workspace);
                        drop(&p);
                    }
}

#ifdef DPCRI_MUTANTS
// Faults in the library must show, in the ring and in floating point.
static void mutants_are_caught(void **state) {
    (void)state;
    const int chosen = dpcri_mutant;  // by the environment, for the tests that follow
    for (int mutant = 1; mutant <= 2; mutant++) {
        dpcri_mutant = 0;
        assert_int_equal(exact_errors(DPCR_U32, &exact_widths[0], 4, 40, 0), 0);
        dpcri_mutant = mutant;
        assert_true(exact_errors(DPCR_U32, &exact_widths[0], 4, 40, 0) > 0);
        assert_true(exact_errors(DPCR_F64, &exact_widths[0], 4, 40, 0) > 0);
        dpcri_mutant = chosen;
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifdef DPCRI_MUTANTS
        cmocka_unit_test(mutants_are_caught),
#endif
        cmocka_unit_test(ring),
        cmocka_unit_test(permutations),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(threads_and_overlap),
        cmocka_unit_test(overlap_has_the_loops_bits),
        cmocka_unit_test(sequences_are_alone),
        cmocka_unit_test(batches_from_memory),
        cmocka_unit_test(operand_order),
        cmocka_unit_test(word_problem),
        cmocka_unit_test(counts),
        cmocka_unit_test(endless_run_ups_are_the_loop),
        cmocka_unit_test(overlap_reports),
        cmocka_unit_test(what_overlap_finishes_is_the_loop),
        cmocka_unit_test(anchoring),
    };
    cmocka_set_test_filter(getenv("DEEPPCR_TEST_FILTER"));  // a pattern picks tests by name
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
