// SPDX-License-Identifier: MIT
// Scheme chunked in windows (fused kernels) against the same scheme over spans: the same bits for every kernel of
// chunked.def at the level in force, any length, start, number of threads, with and without an initial state, in place,
// with infinities, NaN and denormals among the numbers; near and far beyond the caches. Arrays lie against an
// inaccessible page. Dense widths 4 and 8, float, with AVX-512 go through windows either way, of other strides: their
// sums are test_squares.c's.
#include "chain/chain_internal.h"
#include "chain/windows.h"
#include "kern/chunked.h"
#include "linear_common.h"
#include "rt/wisdom.h"
#include "sampled.h"

#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 5000, PLACES = 4, FAR_BYTES = 25000000 };  // windows.c: far from 24e6 on

typedef struct form {
    dpcr_structure structure;
    int64_t w, block, chunk;
} form;

static const form forms[] = {
#define DPCRI_CHUNKED(width, k, steps, name) \
    {k == 1 ? DPCR_DIAGONAL : k == width ? DPCR_DENSE : DPCR_BLOCK, width, k, steps},
#include "kern/chunked.def"
#undef DPCRI_CHUNKED
    {DPCR_DENSE, 8, 8, 65},  // by rows of matrices, where the level has that
};

static int64_t values_of(const form *f) {
    const dpcr_transition t = dpcr_transition_square(f->structure, f->w, f->block);
    return dpcr_transition_values(&t);
}

static dpcr_context *contexts[4];  // by threads
static unsigned char *places[PLACES];
static size_t room;

static int open_all(void **state) {
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    room = (FAR_BYTES + page - 1) / page * page;
    for (int i = 0; i < PLACES; i++) {
        unsigned char *base = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(base != MAP_FAILED);
        assert_int_equal(mprotect(base + page, room, PROT_READ | PROT_WRITE), 0);
        places[i] = base + page;
    }
    for (int threads = 1; threads <= 3; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        assert_int_equal(dpcr_context_create(&options, &contexts[threads], NULL), DPCR_OK);
    }
    const char *seed = getenv("DEEPPCR_TEST_SEED");
    if (seed) random_state = strtoull(seed, NULL, 0);
    printf("seed %llu\n", (unsigned long long)random_state);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) dpcr_context_destroy(contexts[threads]);
    return 0;
}

static void *place(int which, int64_t bytes, bool at_end) {
    assert_true((size_t)bytes <= room);
    return at_end ? places[which] + room - bytes : places[which];
}

typedef struct trial {
    form f;
    dpcr_dtype dtype;
    int64_t n, first;
    int transposed, threads;
    bool z0, in_place, at_end, hazards;
} trial;

static double draw(const trial *t) {
    static const double odd[] = {0.0, -0.0, 1e-44, -3e-42, 1e30, -INFINITY, NAN, 1.2e-38};
    if (t->hazards && random_below(400) == 0) return odd[random_below(8)];
    return random_signed();
}

static void *workspace_for(const dpcri_linear *p, const dpcr_chain_options *o, size_t *bytes) {
    *bytes = dpcri_linear_workspace(p, o);
    unsigned char *memory = aligned_alloc(64, *bytes + 128 - *bytes % 64);
    memset(memory, 0xff, *bytes + 64);
    return memory;
}

static dpcr_chain_report solve(const trial *t, const dpcri_linear *p) {
    const dpcr_chain_options o = {.size = sizeof o,
                                  .scheme = DPCR_SCHEME_CHUNKED,
                                  .chunk = t->f.chunk,
                                  .levels = 1,
                                  .warm_up = 1,
                                  .max_sweeps = 1};
    dpcr_chain_report report = {.size = sizeof report};
    size_t bytes = 0;
    unsigned char *workspace = workspace_for(p, &o, &bytes);
    dpcri_linear_solve(contexts[t->threads], p, &o, workspace, &report);
    for (size_t i = bytes; i < bytes + 64; i++) assert_int_equal(workspace[i], 0xff);
    free(workspace);
    return report;
}

// Equal but for which NaN it is.
static bool same(dpcr_dtype dtype, const void *x, int64_t i, const void *y, int64_t j) {
    const size_t size = dpcr_dtype_size(dtype);
    if (memcmp((const char *)x + (size_t)i * size, (const char *)y + (size_t)j * size, size) == 0) return true;
    return isnan(get(dtype, x, i)) && isnan(get(dtype, y, j));
}

static void run(const trial *t) {
    const int64_t size = (int64_t)dpcr_dtype_size(t->dtype), w = t->f.w, values = values_of(&t->f), n = t->n;
    void *a = place(0, n * values * size, t->at_end), *b = place(1, n * w * size, t->at_end);
    void *z = t->in_place ? b : place(2, n * w * size, t->at_end), *z0 = place(3, w * size, t->at_end);
    for (int64_t i = 0; i < n * values; i++) put(t->dtype, a, i, 1.1 / sqrt((double)values / (double)w) * draw(t));
    for (int64_t i = 0; i < n * w; i++) put(t->dtype, b, i, draw(t));
    for (int64_t i = 0; i < w; i++) put(t->dtype, z0, i, draw(t));
    // Spread over a stride that windows do not serve.
    void *wide_a = malloc((size_t)((values + 1) * n * size)), *wide_b = malloc((size_t)((w + 1) * n * size));
    void *wide_z = t->in_place ? wide_b : malloc((size_t)((w + 1) * n * size));
    for (int64_t i = 0; i < n; i++) {
        memcpy((char *)wide_a + i * (values + 1) * size, (char *)a + i * values * size, (size_t)(values * size));
        memcpy((char *)wide_b + i * (w + 1) * size, (char *)b + i * w * size, (size_t)(w * size));
    }
    dpcri_linear p = {.transition = dpcr_transition_square(t->f.structure, w, t->f.block),
                      .dtype = t->dtype,
                      .transposed = t->transposed,
                      .length = n,
                      .rows = 1,
                      .first = t->first,
                      .a = wide_a,
                      .a_step = values + 1,
                      .b = wide_b,
                      .b_step = w + 1,
                      .z0 = t->z0 && !t->transposed ? z0 : NULL,
                      .z = wide_z,
                      .z_step = w + 1};
    const dpcr_chain_report spans = solve(t, &p);
    p.a = a, p.a_step = values, p.b = b, p.b_step = w, p.z = z, p.z_step = w;
    const dpcri_flow flow = dpcri_flow_of(contexts[1], &p);
    assert_true(n < 2 * t->f.chunk || t->f.block == 8 || dpcri_windows_serve(&flow, t->f.chunk));
    const dpcr_chain_report windows = solve(t, &p);
    assert_true(spans.applications == windows.applications && spans.compositions == windows.compositions &&
                spans.depth == windows.depth);
    for (int64_t i = 0; i < n * w; i++)
        if (!same(t->dtype, z, i, wide_z, i / w * (w + 1) + i % w))
            fail_msg("%s w %d %s%s n %d first %d threads %d z0 %d in place %d hazards %d: element %d is %g, wanted %g",
                     dpcr_structure_name(t->f.structure), (int)w, dpcr_dtype_name(t->dtype),
                     t->transposed ? " transposed" : "", (int)n, (int)t->first, t->threads, t->z0, t->in_place,
                     t->hazards, (int)i, get(t->dtype, z, i), get(t->dtype, wide_z, i / w * (w + 1) + i % w));
    if (!t->in_place) free(wide_z);
    free(wide_a);
    free(wide_b);
}

static void each(const form *f, bool hazards, int count) {
    for (int i = 0; i < count; i++)
        for (int flags = 0; flags < 4; flags++) {
            const trial t = {.f = *f,
                             .dtype = flags & 1 ? DPCR_F64 : DPCR_F32,
                             .transposed = flags >> 1,
                             .n = i < 4 ? i * f->chunk * 16 + 1 : 1 + random_below(MOST - 1),
                             .first = i % 2 ? 0 : random_below(3 * f->chunk),
                             .threads = 1 + i % 3,
                             .z0 = i / 2 % 2,
                             .in_place = i / 4 % 2,
                             .at_end = i / 3 % 2,
                             .hazards = hazards};
            run(&t);
        }
}

static void windows_have_the_bits_of_spans(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) each(&forms[i], false, TESTS_SANITIZED ? 8 : 24);
}

static void hazards(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) each(&forms[i], true, TESTS_SANITIZED ? 6 : 12);
}

// States past the caches where z starts at a cache line, which a window of an odd start does not.
static void far_windows(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int flags = 0; flags < 4 && forms[i].w < 8; flags++) {
            if (!sampled(4 * (int64_t)i + flags)) continue;
            const form *f = &forms[i];
            const int64_t step = (values_of(f) + 2 * f->w) * (flags & 1 ? 8 : 4);
            const trial t = {.f = *f,
                             .dtype = flags & 1 ? DPCR_F64 : DPCR_F32,
                             .transposed = flags >> 1,
                             .n = FAR_BYTES / step - random_below(100),
                             .first = flags == 3 ? 5 : 0,
                             .threads = 1 + (int)(i + (size_t)flags) % 3,
                             .in_place = i == 1 && flags == 2,
                             .at_end = (i + (size_t)flags) % 4 == 3};
            run(&t);
        }
}

// Growing parts that no state has: a chunk's product leaves the finite numbers where the loop does not. Exactly: powers
// of two, b of the first component alone; from step `from` on the others grow.
static void products_that_overflow(void **state) {
    (void)state;
    static const int64_t lengths[] = {700, 9001};
    int seen = 0;
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
        for (int variant = 0; variant < 2 * 2 * 2 * 2 * 2 * 3; variant++) {
            const form *f = &forms[k];
            const bool wide = variant & 1, transposed = variant & 2, in_place = variant & 4;
            const int64_t n = lengths[variant >> 3 & 1], batch = variant & 16 ? 3 : 1;
            const int64_t from = variant / 32 == 2 ? n - 3 : variant / 32 ? n / 2 : 0;
            const dpcr_dtype dtype = wide ? DPCR_F64 : DPCR_F32;
            const size_t size = dpcr_dtype_size(dtype);
            if (f->w == 1 || !sampled((int64_t)k * 96 + variant)) continue;
            const int64_t w = f->w, values = values_of(f), sizes[3] = {n, batch, w}, ones[3] = {n, batch, values};
            void *a = calloc((size_t)(n * batch * values), size), *b = calloc((size_t)(n * batch * w), size);
            void *loop = calloc((size_t)(n * batch * w), size), *z = calloc((size_t)(n * batch * w), size);
            for (int64_t l = 0; l < n; l++)
                for (int64_t r = 0; r < batch; r++) {
                    const bool grows = r == batch / 2 && (transposed ? n - 1 - l : l) >= from;
                    for (int64_t i = 0; i < w; i++) {
                        const int64_t at = (l * batch + r) * values + i * f->block + i % f->block;  // the diagonal
                        const double value = i == 0 ? 0.5 : grows ? wide ? 0x1p140 : 0x1p20 : 0.25;
                        if (wide)
                            ((double *)a)[at] = value;
                        else
                            ((float *)a)[at] = (float)value;
                    }
                    const int64_t first = (l * batch + r) * w;
                    if (wide)
                        ((double *)b)[first] = 1;
                    else
                        ((float *)b)[first] = 1;
                }
            for (int threads = 1; threads <= 3; threads++)
                for (int scheme = 0; scheme < 2; scheme++) {
                    const dpcr_chain_shape shape = {.size = sizeof shape,
                                                    .length = n,
                                                    .batch = batch,
                                                    .transition = dpcr_transition_square(f->structure, w, f->block),
                                                    .dtype = dtype,
                                                    .transposed = transposed};
                    const dpcr_chain_options options = {
                        .size = sizeof options, .scheme = scheme ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL};
                    dpcr_chain_plan *plan = NULL;
                    assert_int_equal(dpcr_chain_plan_create(contexts[threads], &shape, &options, &plan, NULL), DPCR_OK);
                    const size_t bytes = dpcr_chain_plan_workspace(plan);
                    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64), *to = scheme ? z : loop;
                    if (in_place) memcpy(to, b, (size_t)(n * batch * w) * size);
                    const dpcr_array va = dpcr_array_make(a, dtype, 3, ones),
                                     vb = dpcr_array_make(in_place ? to : b, dtype, 3, sizes),
                                     vz = dpcr_array_make(to, dtype, 3, sizes);
                    dpcr_chain_report report = {.size = sizeof report};
                    assert_int_equal(dpcr_chain_execute(plan, &va, &vb, NULL, &vz, workspace, bytes, &report, NULL),
                                     DPCR_OK);
                    if (scheme && from < n - 3) {
                        assert_true(report.finished_from < n && report.finished_from >= from - f->chunk);
                        seen++;
                    } else {
                        assert_int_equal(report.finished_from, n);
                    }
                    if (scheme) assert_memory_equal(loop, z, (size_t)(n * batch * w) * size);
                    free(workspace);
                    dpcr_chain_plan_destroy(plan);
                }
            free(a), free(b), free(loop), free(z);
        }
    assert_true(seen > 100 / TESTS_ONE_OF);
}

// ---- AUTO, whose chunks are chosen for their fused kernels ----

enum { LENGTH = 16384, PAD = 3 };

typedef struct chain {
    int64_t batch, w;
    float *a, *b, *z;  // z of the loop
} chain;

static chain draw_chain(int64_t batch, int64_t w) {
    chain c = {.batch = batch, .w = w};
    const size_t states = (size_t)(LENGTH * batch * w);
    c.a = malloc(states * (size_t)w * sizeof *c.a), c.b = malloc(states * sizeof *c.b);
    c.z = malloc(states * sizeof *c.z);
    for (size_t i = 0; i < states * (size_t)w; i++) c.a[i] = (float)random_signed();
    for (size_t i = 0; i < states; i++) c.b[i] = (float)random_signed();
    return c;
}

static void drop_chain(chain *c) { free(c->a), free(c->b), free(c->z); }

// Rows of w + pad numbers.
static dpcr_array states_of(const chain *c, float *data, int64_t pad) {
    dpcr_array x = dpcr_array_make(data, DPCR_F32, 3, (const int64_t[]){LENGTH, c->batch, c->w});
    x.strides[1] = c->w + pad, x.strides[0] = c->batch * (c->w + pad);
    return x;
}

static dpcr_array values_of_chain(const chain *c) {
    return dpcr_array_make(c->a, DPCR_F32, 3, (const int64_t[]){LENGTH, c->batch, c->w * c->w});
}

static dpcr_chain_plan *plan_of(const chain *c, dpcr_scheme scheme) {
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = LENGTH,
                                    .batch = c->batch,
                                    .transition = dpcr_transition_square(DPCR_DENSE, c->w, 0),
                                    .dtype = DPCR_F32};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(contexts[1], &shape, &options, &plan, NULL), DPCR_OK);
    return plan;
}

static void *workspace_of(const dpcr_chain_plan *plan) {
    return aligned_alloc(64, (dpcr_chain_plan_workspace(plan) + 127) / 64 * 64);
}

// The scheme that ran.
static dpcr_scheme execute(const chain *c, const dpcr_chain_plan *plan, float *z, int64_t pad) {
    const dpcr_array a = values_of_chain(c), b = states_of(c, c->b, 0), vz = states_of(c, z, pad);
    dpcr_chain_report report = {.size = sizeof report};
    void *workspace = workspace_of(plan);
    assert_int_equal(
        dpcr_chain_execute(plan, &a, &b, NULL, &vz, workspace, dpcr_chain_plan_workspace(plan), &report, NULL),
        DPCR_OK);
    free(workspace);
    return report.scheme;
}

// db of a gradient, written into padded rows.
static void pull_back(const chain *c, const dpcr_chain_plan *plan, float *db) {
    const dpcr_array a = values_of_chain(c), z = states_of(c, c->z, 0), g = states_of(c, c->b, 0);
    const dpcr_array to = states_of(c, db, PAD);
    void *workspace = workspace_of(plan);
    assert_int_equal(
        dpcr_chain_vjp(plan, &a, NULL, &z, &g, NULL, &to, NULL, workspace, dpcr_chain_plan_workspace(plan), NULL),
        DPCR_OK);
    free(workspace);
}

// And a tangent.
static void push_forward(const chain *c, const dpcr_chain_plan *plan, float *dz) {
    const dpcr_array a = values_of_chain(c), z = states_of(c, c->z, 0), db = states_of(c, c->b, 0);
    const dpcr_array to = states_of(c, dz, PAD);
    void *workspace = workspace_of(plan);
    assert_int_equal(
        dpcr_chain_jvp(plan, &a, NULL, &z, NULL, &db, NULL, &to, workspace, dpcr_chain_plan_workspace(plan), NULL),
        DPCR_OK);
    free(workspace);
}

// Where states do not lie one after another the loop goes, with its bits; derivatives too.
static void auto_leaves_chunks_that_lie_apart(void **state) {
    (void)state;
    chain c = draw_chain(1, 2);
    dpcr_chain_plan *chosen = plan_of(&c, DPCR_SCHEME_AUTO), *loop = plan_of(&c, DPCR_SCHEME_SEQUENTIAL);
    const size_t padded = (size_t)(LENGTH * (c.w + PAD));
    float *got = calloc(padded, sizeof *got), *want = calloc(padded, sizeof *want);
    assert_int_equal(execute(&c, chosen, c.z, 0), dpcr_chain_plan_scheme(chosen));
    assert_int_not_equal(execute(&c, chosen, got, PAD), DPCR_SCHEME_CHUNKED);
    execute(&c, loop, want, PAD);
    assert_memory_equal(got, want, padded * sizeof *got);
    pull_back(&c, chosen, got), pull_back(&c, loop, want);
    assert_memory_equal(got, want, padded * sizeof *got);
    push_forward(&c, chosen, got), push_forward(&c, loop, want);
    assert_memory_equal(got, want, padded * sizeof *got);
    dpcr_chain_plan_destroy(chosen), dpcr_chain_plan_destroy(loop);
    free(got), free(want), drop_chain(&c);
}

// Chunks that a measurement chose without fused kernels stay: other lengths, and several sequences.
static void measured_chunks_stay(void **state) {
    (void)state;
    static const struct {
        int64_t batch;
        const char *key, *value;
    } known[] = {{1,
                  "linear float32 L16384 B1 w2 dense0 transposed 0 typical 0 threads 1 chunk 0 levels 0 warm-up 0 "
                  "tol 0 sweeps 0",
                  "chunked chunk 129 warm-up 64"},
                 {3,
                  "linear float32 L16384 B3 w2 dense0 transposed 0 typical 0 threads 1 chunk 0 levels 0 warm-up 0 "
                  "tol 0 sweeps 0",
                  "chunked chunk 64 warm-up 64"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        dpcri_wisdom_set(contexts[1], known[i].key, known[i].value);
        chain c = draw_chain(known[i].batch, 2);
        dpcr_chain_plan *plan = plan_of(&c, DPCR_SCHEME_AUTO);
        assert_non_null(strstr(dpcr_chain_plan_sentence(plan), "known from an earlier measurement"));
        for (int64_t l = 0; l < LENGTH * c.batch * 4; l++) c.a[l] = l % 4 == 0 || l % 4 == 3;  // nothing is forgotten
        assert_int_equal(execute(&c, plan, c.z, 0), DPCR_SCHEME_CHUNKED);
        dpcr_chain_plan_destroy(plan);
        drop_chain(&c);
    }
    dpcr_wisdom_forget(contexts[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(windows_have_the_bits_of_spans),
                                       cmocka_unit_test(hazards),
                                       cmocka_unit_test(far_windows),
                                       cmocka_unit_test(products_that_overflow),
                                       cmocka_unit_test(auto_leaves_chunks_that_lie_apart),
                                       cmocka_unit_test(measured_chunks_stay)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
