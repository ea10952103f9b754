// SPDX-License-Identifier: MIT
// Linear chains: every scheme against the loop. In the ring of uint32 and on signed permutations there is no rounding,
// so a missing level, a swapped operand or a boundary off by one changes the result; random numbers follow with
// tolerances.
#include "base/base.h"
#include "chain/chain_internal.h"
#include "kern/kern.h"
#include "linear_common.h"

static dpcr_context *contexts[4];  // by threads

static int open_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        assert_int_equal(dpcr_context_create(&options, &contexts[threads], NULL), DPCR_OK);
    }
    return 0;
}

static int close_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) dpcr_context_destroy(contexts[threads]);
    return 0;
}

typedef struct problem {
    dpcr_transition t;
    dpcr_dtype dtype;
    int64_t length, batch, values, w;
    bool transposed, shared_steps, shared_rows;
    void *a, *b, *z0, *z;
    dpcr_array va, vb, v0, vz;
    long double *want,
        *scale;  // the loop's states and, on absolute values, the errors' scale; made when first asked for
    uint32_t *want_ring;
} problem;

static void *room(int64_t count) {
    void *memory = aligned_alloc(64, ((size_t)count * 8 + 127) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, ((size_t)count * 8 + 127) / 64 * 64);
    return memory;
}

static problem make(dpcr_transition t, dpcr_dtype dtype, int64_t length, int64_t batch, bool transposed, bool with_z0,
                    fill how, bool shared_steps, bool shared_rows) {
    problem p = {.t = t,
                 .dtype = dtype,
                 .length = length,
                 .batch = batch,
                 .transposed = transposed,
                 .w = t.rows,
                 .values = dpcr_transition_values(&t),
                 .shared_steps = shared_steps,
                 .shared_rows = shared_rows};
    const int64_t steps = shared_steps ? 1 : length, rows = shared_rows ? 1 : batch;
    p.a = room(steps * rows * p.values);
    p.b = room(length * batch * p.w);
    p.z = room(length * batch * p.w);
    for (int64_t i = 0; i < steps * rows; i++) fill_transition(&t, dtype, how, p.a, i * p.values);
    fill_vector(dtype, how, p.b, length * batch * p.w);
    p.va = dpcr_array_make(p.a, dtype, 3, (const int64_t[]){steps, rows, p.values});
    p.vb = dpcr_array_make(p.b, dtype, 3, (const int64_t[]){length, batch, p.w});
    p.vz = dpcr_array_make(p.z, dtype, 3, (const int64_t[]){length, batch, p.w});
    if (with_z0 && !transposed) {
        p.z0 = room(batch * p.w);
        fill_vector(dtype, how, p.z0, batch * p.w);
        p.v0 = dpcr_array_make(p.z0, dtype, 2, (const int64_t[]){batch, p.w});
    }
    return p;
}

static void drop(problem *p) {
    free(p->a);
    free(p->b);
    free(p->z0);
    free(p->z);
    free(p->want);
    free(p->scale);
    free(p->want_ring);
}

static dpcr_chain_shape shape_of(const problem *p) {
    return (dpcr_chain_shape){.size = sizeof(dpcr_chain_shape),
                              .length = p->length,
                              .batch = p->batch,
                              .transition = p->t,
                              .dtype = p->dtype,
                              .transposed = p->transposed};
}

static dpcr_chain_report solve(problem *p, const dpcr_chain_options *options, int threads, bool in_place) {
    const dpcr_chain_shape shape = shape_of(p);
    dpcr_chain_plan *plan = NULL;
    dpcr_error error = {0};
    if (dpcr_chain_plan_create(contexts[threads], &shape, options, &plan, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    unsigned char *workspace = aligned_alloc(64, bytes + 64);
    memset(workspace, 0xff, bytes + 64);  // NaN in both floating-point types: nothing may be taken over from before
    dpcr_chain_report report = {.size = sizeof report};
    if (in_place) memcpy(p->z, p->b, (size_t)(p->length * p->batch * p->w) * dpcr_dtype_size(p->dtype));
    if (dpcr_chain_execute(plan, &p->va, in_place ? &p->vz : &p->vb, p->z0 ? &p->v0 : NULL, &p->vz, workspace, bytes,
                           &report, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    for (size_t i = bytes; i < bytes + 64; i++) assert_int_equal(workspace[i], 0xff);
    free(workspace);
    dpcr_chain_plan_destroy(plan);
    return report;
}

static loop_case loop_of(const problem *p) {
    const int64_t rows = p->shared_rows ? 1 : p->batch;
    return (loop_case){.t = p->t,
                       .dtype = p->dtype,
                       .length = p->length,
                       .batch = p->batch,
                       .values = p->values,
                       .transposed = p->transposed,
                       .a = p->a,
                       .b = p->b,
                       .z0 = p->z0,
                       .a_step = p->shared_steps ? 0 : rows * p->values,
                       .a_row = p->shared_rows ? 0 : p->values};
}

static const char *describe(const problem *p, const dpcr_chain_options *o) {
    static char text[256];
    snprintf(text, sizeof text, "%s %s %s w %d k %d L %d B %d%s chunk %d levels %d warm %d",
             dpcr_scheme_name(o->scheme), dpcr_dtype_name(p->dtype), dpcr_structure_name(p->t.structure), (int)p->w,
             (int)p->t.block, (int)p->length, (int)p->batch, p->transposed ? " transposed" : "", (int)o->chunk,
             o->levels, (int)o->warm_up);
    return text;
}

static void run_plain_loop(problem *p) {
    const size_t count = (size_t)(p->length * p->batch * p->w) + 1;
    loop_case c = loop_of(p);
    p->want = calloc(count, sizeof *p->want);
    p->scale = calloc(count, sizeof *p->scale);
    p->want_ring = calloc(count, sizeof *p->want_ring);
    plain_loop(&c, p->want, p->want_ring);
    c.absolute = true;
    if (p->dtype != DPCR_U32) plain_loop(&c, p->scale, p->want_ring);
}

// Elements that differ from the loop: bit for bit where `exact`, else by more than rounding explains.
static int64_t wrong_states(problem *p, bool exact) {
    if (!p->want) run_plain_loop(p);
    const int64_t count = p->length * p->batch * p->w;
    const double bound = epsilon_of(p->dtype) * 4.0 * (double)(p->w + 4) * (double)(p->length + 2);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        if (p->dtype == DPCR_U32)
            wrong += ((const uint32_t *)p->z)[i] != p->want_ring[i];
        else if (exact)
            wrong += get(p->dtype, p->z, i) != (double)p->want[i];
        else
            wrong += !(fabsl(get(p->dtype, p->z, i) - p->want[i]) <= (long double)bound * p->scale[i]);
    }
    return wrong;
}

// Options that between them take every path: limits of the tree, chunks of one step to longer than the chain, warm-ups
// shorter and longer than chunks.
static const dpcr_chain_options variants[] = {
    {.scheme = DPCR_SCHEME_SEQUENTIAL},
    {.scheme = DPCR_SCHEME_PCR},
    {.scheme = DPCR_SCHEME_BLELLOCH},
    {.scheme = DPCR_SCHEME_BLELLOCH, .levels = 1},
    {.scheme = DPCR_SCHEME_BLELLOCH, .levels = 2},
    {.scheme = DPCR_SCHEME_BLELLOCH, .levels = 4},
    {.scheme = DPCR_SCHEME_CHUNKED},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 1},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 2},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 7},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 33},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 1000},
    {.scheme = DPCR_SCHEME_OVERLAP},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 1, .warm_up = 3},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 5, .warm_up = 1, .max_sweeps = 1},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 8, .warm_up = 33, .max_sweeps = 2},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 40, .warm_up = 4, .max_sweeps = 100},
    {.scheme = DPCR_SCHEME_AUTO},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static dpcr_chain_options variant(int i) {
    dpcr_chain_options options = variants[i];
    options.size = sizeof options;
    return options;
}

typedef struct width {
    dpcr_structure structure;
    int64_t w, k;
} width;

static int64_t exact_errors(dpcr_dtype dtype, const width *which, int64_t from, int64_t to, int stop_at_first) {
    int64_t wrong = 0;
    const dpcr_transition t = dpcr_transition_square(which->structure, which->w, which->k);
    for (int64_t length = from; length <= to; length++)
        for (int flags = 0; flags < 4; flags++) {
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

// A sequence's bits are those that it has alone; a NaN stays where it is.
static void sequences_are_alone(void **state) {
    (void)state;
    static const width widths[] = {{DPCR_DENSE, 2, 0},    {DPCR_DENSE, 8, 0},  {DPCR_DENSE, 11, 0},  {DPCR_BLOCK, 6, 3},
                                   {DPCR_DIAGONAL, 5, 0}, {DPCR_SCALAR, 3, 0}, {DPCR_IDENTITY, 3, 0}};
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int v = 0; v < VARIANTS; v++)
                for (int transposed = 0; transposed < 2; transposed++) {
                    const dpcr_transition t = dpcr_transition_square(widths[i].structure, widths[i].w, widths[i].k);
                    problem p = make(t, (dpcr_dtype)dtype, 77, 7, transposed, true, FILL_RANDOM, false, false);
                    dpcr_chain_options options = variant(v);
                    if (options.scheme == DPCR_SCHEME_AUTO) options.scheme = DPCR_SCHEME_PCR;
                    put(p.dtype, p.b, (40 * 7 + 3) * p.w, NAN);
                    if (p.values) put(p.dtype, p.a, (50 * 7 + 3) * p.values, NAN);
                    solve(&p, &options, 1, false);
                    void *all = copy_of(&p);
                    const size_t size = dpcr_dtype_size(p.dtype);
                    for (int64_t row = 0; row < 7; row++) {
                        problem alone = p;
                        alone.batch = 1;
                        alone.va.data = (char *)p.a + (size_t)(row * p.values) * size;
                        alone.vb.data = (char *)p.b + (size_t)(row * p.w) * size;
                        alone.v0.data = p.z0 ? (char *)p.z0 + (size_t)(row * p.w) * size : NULL;
                        alone.vz.data = (char *)p.z + (size_t)(row * p.w) * size;
                        alone.va.shape[1] = alone.vb.shape[1] = alone.vz.shape[1] = alone.v0.shape[0] = 1;
                        solve(&alone, &options, 1, false);
                    }
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

// ---- derivatives ----

typedef struct tangents {
    problem p;
    dpcr_chain_plan *plan;
    void *workspace, *da, *db, *dz0, *dz, *g, *ga, *gb, *gz0;
    dpcr_array vda, vdb, vdz0, vdz, vg, vga, vgb, vgz0;
} tangents;

static tangents differentiate(width which, int64_t length, int64_t batch, bool with_z0,
                              const dpcr_chain_options *options) {
    tangents d = {.p = make(dpcr_transition_square(which.structure, which.w, which.k), DPCR_F64, length, batch, false,
                            with_z0, FILL_RANDOM, false, false)};
    problem *p = &d.p;
    const dpcr_chain_shape shape = shape_of(p);
    assert_int_equal(dpcr_chain_plan_create(contexts[1], &shape, options, &d.plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(d.plan);
    d.workspace = room((int64_t)bytes / 8 + 8);
    const int64_t states = length * batch * p->w, values = length * batch * p->values;
    void **const arrays[] = {&d.da, &d.ga, &d.db, &d.dz, &d.g, &d.gb, &d.dz0, &d.gz0};
    dpcr_array *const views[] = {&d.vda, &d.vga, &d.vdb, &d.vdz, &d.vg, &d.vgb, &d.vdz0, &d.vgz0};
    for (int i = 0; i < 8; i++) {
        const int64_t count = i < 2 ? values : i < 6 ? states : batch * p->w;
        *arrays[i] = room(count);
        fill_vector(DPCR_F64, FILL_RANDOM, *arrays[i], count);
        *views[i] =
            i < 6 ? dpcr_array_make(*arrays[i], DPCR_F64, 3, (const int64_t[]){length, batch, i < 2 ? p->values : p->w})
                  : dpcr_array_make(*arrays[i], DPCR_F64, 2, (const int64_t[]){batch, p->w});
    }
    dpcr_error error = {0};
    const dpcr_array *z0 = p->z0 ? &p->v0 : NULL;
    if (dpcr_chain_execute(d.plan, &p->va, &p->vb, z0, &p->vz, d.workspace, bytes, NULL, &error) ||
        dpcr_chain_jvp(d.plan, &p->va, z0, &p->vz, &d.vda, &d.vdb, &d.vdz0, &d.vdz, d.workspace, bytes, &error) ||
        dpcr_chain_vjp(d.plan, &p->va, z0, &p->vz, &d.vg, &d.vga, &d.vgb, &d.vgz0, d.workspace, bytes, &error))
        fail_msg("%s", error.text);
    return d;
}

static void forget(tangents *d) {
    void *const arrays[] = {d->workspace, d->da, d->db, d->dz0, d->dz, d->g, d->ga, d->gb, d->gz0};
    for (int i = 0; i < 9; i++) free(arrays[i]);
    dpcr_chain_plan_destroy(d->plan);
    drop(&d->p);
}

static double dot(const void *x, const void *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((const double *)x)[i] * ((const double *)y)[i];
    return sum;
}

static const width derivative_widths[] = {{DPCR_ZERO, 2, 0},     {DPCR_IDENTITY, 2, 0}, {DPCR_SCALAR, 3, 0},
                                          {DPCR_DIAGONAL, 3, 0}, {DPCR_BLOCK, 6, 2},    {DPCR_DENSE, 3, 0},
                                          {DPCR_DENSE, 7, 0}};

static void adjoint(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 30, 65};
    for (size_t i = 0; i < 7; i++)
        for (int v = 0; v < VARIANTS; v++)
            for (int l = 0; l < 4; l++)
                for (int with_z0 = 0; with_z0 < 2; with_z0++) {
                    const dpcr_chain_options options = variant(v);
                    tangents d = differentiate(derivative_widths[i], lengths[l], 2, with_z0, &options);
                    const int64_t states = lengths[l] * 2 * d.p.w;
                    const double left = dot(d.g, d.dz, states);
                    // Without z0 a perturbation dz0 still enters through A_0.
                    const double right = dot(d.ga, d.da, lengths[l] * 2 * d.p.values) + dot(d.gb, d.db, states) +
                                         dot(d.gz0, d.dz0, 2 * d.p.w);
                    if (!(fabs(left - right) <= 1e-12 * (double)states * (1 + fabs(left))))
                        fail_msg("%s: <g, dz> = %.17g, <vjp, d> = %.17g", describe(&d.p, &options), left, right);
                    forget(&d);
                }
}

static double loss_at(const problem *p, const void *g) {
    const int64_t count = p->length * p->batch * p->w;
    long double *z = calloc((size_t)count, sizeof *z), loss = 0;
    uint32_t *unused = calloc((size_t)count, sizeof *unused);
    const loop_case c = loop_of(p);
    plain_loop(&c, z, unused);
    for (int64_t i = 0; i < count; i++) loss += z[i] * ((const double *)g)[i];
    free(z);
    free(unused);
    return (double)loss;
}

static void check_gradient(const problem *p, const void *g, double *argument, const double *gradient, int64_t count) {
    const double h = 1e-6;
    for (int64_t i = 0; i < count; i++) {
        const double kept = argument[i];
        argument[i] = kept + h;
        const double above = loss_at(p, g);
        argument[i] = kept - h;
        const double below = loss_at(p, g);
        argument[i] = kept;
        assert_true(fabs((above - below) / (2 * h) - gradient[i]) < 1e-7 * (1 + fabs(gradient[i])));
    }
}

static void finite_differences(void **state) {
    (void)state;
    for (size_t i = 2; i < 7; i++)
        for (int v = 0; v < VARIANTS; v += 3) {
            const dpcr_chain_options options = variant(v);
            tangents d = differentiate(derivative_widths[i], 9, 2, true, &options);
            check_gradient(&d.p, d.g, d.p.a, d.ga, 9 * 2 * d.p.values);
            check_gradient(&d.p, d.g, d.p.b, d.gb, 9 * 2 * d.p.w);
            check_gradient(&d.p, d.g, d.p.z0, d.gz0, 2 * d.p.w);
            forget(&d);
        }
}

// ---- refusals, memory, empty ----

static void expect(dpcr_status got, dpcr_status wanted, dpcr_error *error, const char *words) {
    if (got != wanted || error->status != wanted || !strstr(error->text, words) || strchr(error->text, '\n'))
        fail_msg("got %s \"%s\", wanted %s with \"%s\"", dpcr_status_name(got), error->text, dpcr_status_name(wanted),
                 words);
    *error = (dpcr_error){0};
}

static void plan_refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    dpcr_chain_plan *plan = NULL;
    const dpcr_chain_shape good = {.size = sizeof good,
                                   .length = 8,
                                   .batch = 2,
                                   .transition = dpcr_transition_square(DPCR_DENSE, 3, 0),
                                   .dtype = DPCR_F32};
    const dpcr_chain_options fine = {.size = sizeof fine};
#define PLAN(s, o) dpcr_chain_plan_create(contexts[1], s, o, &plan, &e)
    expect(dpcr_chain_plan_create(NULL, &good, &fine, &plan, &e), DPCR_ERROR_ARGUMENT, &e, "context is NULL");
    expect(dpcr_chain_plan_create(contexts[1], NULL, &fine, &plan, &e), DPCR_ERROR_ARGUMENT, &e, "shape is NULL");
    expect(dpcr_chain_plan_create(contexts[1], &good, &fine, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "plan is NULL");
    dpcr_chain_shape s = good;
    dpcr_chain_options o = fine;
    s.size = 8;
    expect(PLAN(&s, &o), DPCR_ERROR_ARGUMENT, &e, "shape.size");
    s = good;
    s.transition.cols = 2;
    expect(PLAN(&s, &o), DPCR_ERROR_UNSUPPORTED, &e, "3x2");
    s = good, s.length = -1;
    expect(PLAN(&s, &o), DPCR_ERROR_ARGUMENT, &e, "length -1");
    s = good, s.dtype = (dpcr_dtype)9;
    expect(PLAN(&s, &o), DPCR_ERROR_ARGUMENT, &e, "dtype is 9");
    s = good, s.length = INT64_MAX / 2;
    expect(PLAN(&s, &o), DPCR_ERROR_OVERFLOW, &e, "address space");
    s = good, s.length = INT64_MAX / 64, o.scheme = DPCR_SCHEME_PCR;
    expect(PLAN(&s, &o), DPCR_ERROR_OVERFLOW, &e, "sequential needs none");
    s = good, s.transition = dpcr_transition_square(DPCR_BLOCK, 6, 4);
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "divisor");
    s = good, s.transition = dpcr_transition_square((dpcr_structure)17, 6, 4);
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "structure is 17");
    s = good, s.transition = dpcr_transition_square(DPCR_DIAGONAL, 0, 0);
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "positive");
    o = fine, o.size = 3;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "options.size");
    o = fine, o.scheme = (dpcr_scheme)40;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "scheme is 40");
    o = fine, o.chunk = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "chunk");
    o = fine, o.levels = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "levels");
    o = fine, o.warm_up = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "warm_up");
    o = fine, o.max_sweeps = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "max_sweeps");
    o = fine, o.tolerance = NAN;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "tolerance");
    s = good, s.dtype = DPCR_U32, o = fine, o.tolerance = 1, o.scheme = DPCR_SCHEME_OVERLAP;
    expect(PLAN(&s, &o), DPCR_ERROR_UNSUPPORTED, &e, "tolerance 0 works");
#undef PLAN
    assert_null(plan);
    assert_true(dpcr_chain_plan_create(contexts[1], &good, NULL, &plan, NULL) == DPCR_OK);
    assert_non_null(strstr(dpcr_chain_plan_sentence(plan), "sequential: chunked would"));
    assert_int_equal(dpcr_chain_plan_scheme(plan), DPCR_SCHEME_SEQUENTIAL);
    dpcr_chain_plan_destroy(plan);
    dpcr_chain_plan_destroy(NULL);
    dpcr_scheme scheme;
    for (int i = 0; i < DPCR_SCHEME_COUNT; i++) {
        assert_int_equal(dpcr_scheme_find(dpcr_scheme_name((dpcr_scheme)i), &scheme, NULL), DPCR_OK);
        assert_int_equal(scheme, i);
    }
    expect(dpcr_scheme_find("quick", &scheme, &e), DPCR_ERROR_ARGUMENT, &e, "quick");
    assert_string_equal(dpcr_scheme_name((dpcr_scheme)99), "unknown");
}

static void execute_refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    problem p = make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F32, 8, 2, false, true, FILL_RANDOM, false, false);
    const dpcr_chain_shape shape = shape_of(&p);
    const dpcr_chain_options options = {.size = sizeof options, .scheme = DPCR_SCHEME_PCR};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(contexts[1], &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    unsigned char *workspace = room((int64_t)bytes / 8 + 16);
    dpcr_array x;
#define RUN(a, b, z0, z) dpcr_chain_execute(plan, a, b, z0, z, workspace, bytes, NULL, &e)
    expect(dpcr_chain_execute(NULL, &p.va, &p.vb, NULL, &p.vz, workspace, bytes, NULL, &e), DPCR_ERROR_ARGUMENT, &e,
           "plan is NULL");
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace, bytes - 1, NULL, &e), DPCR_ERROR_MEMORY, &e,
           "workspace");
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, NULL, bytes, NULL, &e), DPCR_ERROR_MEMORY, &e, "NULL");
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace + 4, bytes, NULL, &e), DPCR_ERROR_ARGUMENT, &e,
           "alignment");
    dpcr_chain_report report = {.size = 1};
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace, bytes, &report, &e), DPCR_ERROR_ARGUMENT, &e,
           "report.size");
    expect(RUN(NULL, &p.vb, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "a is NULL");
    expect(RUN(&p.va, NULL, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "b is NULL");
    x = p.vb, x.shape[0] = 7;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "b is [7][2][3] float32, wanted [8][2][3] float32");
    x = p.vb, x.dtype = DPCR_F64;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "float64");
    x = p.vb, x.ndim = 2;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "b is");
    x = p.vb, x.device.type = DPCR_CUDA;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_UNSUPPORTED, &e, "host memory");
    x = p.vb, x.strides[2] = 2;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "contiguous");
    x = p.vb, x.strides[0] = INT64_MAX / 2;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_OVERFLOW, &e, "address space");
    x = p.vb, x.data = NULL;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "data of b is NULL");
    x = p.vz, x.strides[0] = 0;
    expect(RUN(&p.va, &p.vb, NULL, &x), DPCR_ERROR_ARGUMENT, &e, "overlap");
    x = p.vz, x.strides[0] = 3, x.strides[1] = 24;
    expect(RUN(&p.va, &p.vz, NULL, &x), DPCR_ERROR_ARGUMENT, &e, "other strides");
    x = p.v0, x.shape[0] = 1;
    expect(RUN(&p.va, &p.vb, &x, &p.vz), DPCR_ERROR_ARGUMENT, &e, "z0 is [1][3] float32, wanted [2][3] float32");
#undef RUN
    expect(dpcr_chain_jvp(plan, &p.va, NULL, &p.vz, NULL, NULL, NULL, &p.vz, workspace, bytes, &e), DPCR_ERROR_ARGUMENT,
           &e, "dz is z");
    expect(dpcr_chain_vjp(plan, &p.va, NULL, &p.vz, &p.vb, NULL, NULL, NULL, workspace, bytes, &e), DPCR_ERROR_ARGUMENT,
           &e, "db is NULL");
    dpcr_chain_plan_destroy(plan);
    dpcr_chain_shape backward = shape;
    backward.transposed = 1;
    assert_int_equal(dpcr_chain_plan_create(contexts[1], &backward, &options, &plan, NULL), DPCR_OK);
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, &p.v0, &p.vz, workspace, bytes, NULL, &e), DPCR_ERROR_UNSUPPORTED, &e,
           "transposed");
    expect(dpcr_chain_jvp(plan, &p.va, NULL, &p.vz, NULL, NULL, NULL, &p.vb, workspace, bytes, &e),
           DPCR_ERROR_UNSUPPORTED, &e, "transposed");
    expect(dpcr_chain_vjp(plan, &p.va, NULL, &p.vz, &p.vb, NULL, &p.vb, NULL, workspace, bytes, &e),
           DPCR_ERROR_UNSUPPORTED, &e, "transposed");
    dpcr_chain_plan_destroy(plan);
    free(workspace);
    drop(&p);
}

typedef struct meter {
    int left, live;
} meter;

static void *counted_allocate(void *user, size_t bytes, size_t alignment) {
    meter *m = user;
    if (m->left-- <= 0) return NULL;
    m->live++;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counted_release(void *user, void *memory) {
    ((meter *)user)->live--;
    free(memory);
}

static void out_of_memory(void **state) {
    (void)state;
    meter m = {.left = 1};
    const dpcr_context_options options = {.size = sizeof options,
                                          .threads = 1,
                                          .allocate = counted_allocate,
                                          .release = counted_release,
                                          .allocator_user = &m};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = 64,
                                    .batch = 2,
                                    .transition = dpcr_transition_square(DPCR_DENSE, 3, 0),
                                    .dtype = DPCR_F64};
    int refused = 0;
    for (int allowed = 0;; allowed++, refused++) {
        dpcr_error e = {0};
        dpcr_chain_plan *plan = NULL;
        const int before = m.live;
        m.left = allowed;
        const dpcr_status status = dpcr_chain_plan_create(context, &shape, NULL, &plan, &e);
        if (status == DPCR_OK) {
            dpcr_chain_plan_destroy(plan);
            assert_int_equal(m.live, before);
            break;
        }
        assert_null(plan);
        assert_int_equal(m.live, before);
        expect(status, DPCR_ERROR_MEMORY, &e, "no memory for the plan");
    }
    assert_true(refused > 0);
    // Execute allocates nothing.
    problem p = make(shape.transition, DPCR_F64, 64, 2, false, false, FILL_RANDOM, false, false);
    for (int v = 0; v < VARIANTS; v++) {
        const dpcr_chain_options o = variant(v);
        dpcr_chain_plan *plan = NULL;
        m.left = 100;
        assert_int_equal(dpcr_chain_plan_create(context, &shape, &o, &plan, NULL), DPCR_OK);
        m.left = 0;
        void *workspace = room((int64_t)dpcr_chain_plan_workspace(plan) / 8 + 8);
        assert_int_equal(
            dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace, dpcr_chain_plan_workspace(plan), NULL, NULL),
            DPCR_OK);
        assert_int_equal(m.left, 0);
        free(workspace);
        dpcr_chain_plan_destroy(plan);
    }
    drop(&p);
    dpcr_context_destroy(context);
    assert_int_equal(m.live, 0);
}

static void empty(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++)
        for (int transposed = 0; transposed < 2; transposed++) {
            const dpcr_chain_options options = variant(v);
            problem none = make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F32, 0, 4, transposed, true, FILL_RANDOM,
                                false, false);
            solve(&none, &options, 2, false);
            drop(&none);
            problem nobody = make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F32, 5, 0, transposed, true,
                                  FILL_RANDOM, false, false);
            solve(&nobody, &options, 2, false);
            drop(&nobody);
        }
}

// Without an initial state the first transition is not read, in either direction.
static void first_transition_is_not_read(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        problem p =
            make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F64, 50, 1, v % 2, false, FILL_RANDOM, false, false);
        for (int i = 0; i < 9; i++) ((double *)p.a)[i] = NAN;
        const dpcr_chain_options options = variant(v);
        solve(&p, &options, 2, false);
        for (int i = 0; i < 150; i++) assert_false(isnan(((double *)p.z)[i]));
        drop(&p);
    }
}

#ifdef DPCRI_MUTANTS
// Faults in the library must show, in the ring and in floating point.
static void mutants_are_caught(void **state) {
    (void)state;
    for (int mutant = 1; mutant <= 2; mutant++) {
        dpcri_mutant = 0;
        assert_int_equal(exact_errors(DPCR_U32, &exact_widths[0], 4, 40, 0), 0);
        dpcri_mutant = mutant;
        assert_true(exact_errors(DPCR_U32, &exact_widths[0], 4, 40, 0) > 0);
        assert_true(exact_errors(DPCR_F64, &exact_widths[0], 4, 40, 0) > 0);
        dpcri_mutant = 0;
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
        cmocka_unit_test(operand_order),
        cmocka_unit_test(word_problem),
        cmocka_unit_test(counts),
        cmocka_unit_test(overlap_reports),
        cmocka_unit_test(anchoring),
        cmocka_unit_test(adjoint),
        cmocka_unit_test(finite_differences),
        cmocka_unit_test(plan_refusals),
        cmocka_unit_test(execute_refusals),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(empty),
        cmocka_unit_test(first_transition_is_not_read),
    };
    cmocka_set_test_filter(getenv("DEEPPCR_TEST_FILTER"));  // a pattern picks tests by name
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
