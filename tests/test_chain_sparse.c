// SPDX-License-Identifier: MIT
// csr chains on the processor, by the loop and by overlapped chunks: the dense chain with the same entries, in the
// exact ring to the bit; overlap without tolerance the loop, a sequence that alone, any number of threads the same
// bits; NaN in one sequence; what forms products is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deeppcr/deeppcr.h"

enum { MOST_WIDTH = 40 };

static uint64_t state = 1;
static uint64_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}
static double number(void) { return (double)draw() / 1073741824.0 - 1.0; }

typedef struct sparse_case {
    int64_t length, batch, w;
    dpcr_dtype dtype;
    int transposed, shared_steps, shared_rows, starts;
    int64_t offsets[MOST_WIDTH + 1];
    int32_t columns[MOST_WIDTH * MOST_WIDTH];
    dpcr_pattern pattern;
    size_t size;
    void *values, *dense, *b, *z0, *z, *want;
} sparse_case;

static void set(const sparse_case *c, void *at, int64_t i, double x, uint32_t bits) {
    if (c->dtype == DPCR_F32) ((float *)at)[i] = (float)x;
    if (c->dtype == DPCR_F64) ((double *)at)[i] = x;
    if (c->dtype == DPCR_U32) ((uint32_t *)at)[i] = bits;
}

// Some rows are empty, some full.
static sparse_case make(dpcr_dtype dtype, int64_t length, int64_t batch, int64_t w, int transposed, double size) {
    sparse_case c = {.length = length, .batch = batch, .w = w, .dtype = dtype, .transposed = transposed};
    c.size = dpcr_dtype_size(dtype);
    c.shared_steps = draw() % 3 == 0, c.shared_rows = draw() % 3 == 0, c.starts = !transposed && draw() % 2;
    for (int64_t i = 0, e = 0; i < w; i++) {
        const uint64_t share = i % 5 == 3 ? 0 : i % 7 == 2 ? 8 : 1 + draw() % 4;
        for (int64_t j = 0; j < w; j++)
            if (draw() % 8 < share) c.columns[e++] = (int32_t)j;
        c.offsets[i + 1] = e;
    }
    const int64_t entries = c.offsets[w], steps = c.shared_steps ? 1 : length, rows = c.shared_rows ? 1 : batch;
    c.values = calloc((size_t)(steps * rows * entries) + 1, c.size);
    c.dense = calloc((size_t)(steps * rows * w * w), c.size);
    c.b = malloc((size_t)(length * batch * w) * c.size), c.z = malloc((size_t)(length * batch * w) * c.size);
    c.want = malloc((size_t)(length * batch * w) * c.size), c.z0 = malloc((size_t)(batch * w) * c.size);
    for (int64_t n = 0; n < steps * rows; n++)
        for (int64_t i = 0; i < w; i++)
            for (int64_t e = c.offsets[i]; e < c.offsets[i + 1]; e++) {
                const double x = size * number();
                const uint32_t bits = (uint32_t)draw();
                set(&c, c.values, n * entries + e, x, bits);
                set(&c, c.dense, (n * w + i) * w + c.columns[e], x, bits);
            }
    for (int64_t i = 0; i < length * batch * w; i++) set(&c, c.b, i, number(), (uint32_t)draw());
    for (int64_t i = 0; i < batch * w; i++) set(&c, c.z0, i, number(), (uint32_t)draw());
    return c;
}

static void drop(sparse_case *c) {
    void *const all[] = {c->values, c->dense, c->b, c->z0, c->z, c->want};
    for (int i = 0; i < 6; i++) free(all[i]);
}

static dpcr_status solve(sparse_case *c, int threads, const dpcr_transition *t, const void *values, int64_t each,
                         dpcr_scheme scheme, void *z, dpcr_chain_report *report, dpcr_error *error) {
    const dpcr_context_options threaded = {.size = sizeof threaded, .threads = threads};
    const dpcr_chain_options o = {.size = sizeof o, .scheme = scheme, .chunk = 7, .warm_up = 5, .max_sweeps = 2};
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = c->length,
                                    .batch = c->batch,
                                    .transition = *t,
                                    .dtype = c->dtype,
                                    .transposed = c->transposed};
    const int64_t of_a[3] = {c->shared_steps ? 1 : c->length, c->shared_rows ? 1 : c->batch, each};
    const int64_t of_b[3] = {c->length, c->batch, c->w};
    const dpcr_array a = dpcr_array_make((void *)(uintptr_t)values, c->dtype, 3, of_a);
    const dpcr_array b = dpcr_array_make(c->b, c->dtype, 3, of_b), out = dpcr_array_make(z, c->dtype, 3, of_b);
    const dpcr_array z0 = dpcr_array_make(c->z0, c->dtype, 2, of_b + 1);
    dpcr_context *context = NULL;
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_context_create(&threaded, &context, error), DPCR_OK);
    dpcr_status status = dpcr_chain_plan_create(context, &shape, &o, &plan, error);
    if (status == DPCR_OK) {
        const size_t bytes = dpcr_chain_plan_workspace(plan);
        void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
        memset(workspace, 0x5a, bytes);
        status = dpcr_chain_execute(plan, &a, &b, c->starts ? &z0 : NULL, &out, workspace, bytes, report, error);
        free(workspace);
    }
    dpcr_chain_plan_destroy(plan);
    dpcr_context_destroy(context);
    return status;
}

static void as_csr(sparse_case *c, int threads, dpcr_scheme scheme, void *z, dpcr_chain_report *report) {
    dpcr_error error = {0};
    c->pattern = (dpcr_pattern){.rows = c->w, .cols = c->w, .offsets = c->offsets, .columns = c->columns};
    const dpcr_transition t = dpcr_transition_csr(&c->pattern);
    if (solve(c, threads, &t, c->values, c->offsets[c->w], scheme, z, report, &error) != DPCR_OK)
        fail_msg("%s", error.text);
}

static void it_is_the_dense_chain(void **unused) {
    (void)unused;
    static const dpcr_dtype dtypes[] = {DPCR_U32, DPCR_F64, DPCR_F32};
    for (int n = 0; n < 90; n++) {
        const int64_t w = 1 + (int64_t)(draw() % MOST_WIDTH), length = 1 + (int64_t)(draw() % 60);
        sparse_case c = make(dtypes[n % 3], length, 1 + (int64_t)(draw() % 9), w, n / 3 % 2, 1.5 / sqrt((double)w));
        const dpcr_transition dense = dpcr_transition_square(DPCR_DENSE, w, 0);
        const size_t count = (size_t)(length * c.batch * w);
        dpcr_error error = {0};
        dpcr_chain_report report = {.size = sizeof report};
        assert_int_equal(solve(&c, 1, &dense, c.dense, w * w, DPCR_SCHEME_SEQUENTIAL, c.want, NULL, &error), DPCR_OK);
        memset(c.z, 0xff, count * c.size);
        as_csr(&c, 1, n % 2 ? DPCR_SCHEME_AUTO : DPCR_SCHEME_SEQUENTIAL, c.z, &report);
        assert_int_equal(report.scheme, DPCR_SCHEME_SEQUENTIAL);
        for (size_t i = 0; i < count; i++) {
            if (c.dtype == DPCR_U32) assert_int_equal(((uint32_t *)c.z)[i], ((uint32_t *)c.want)[i]);
            if (c.dtype == DPCR_U32) continue;
            const double got = c.dtype == DPCR_F32 ? (double)((float *)c.z)[i] : ((double *)c.z)[i];
            const double want = c.dtype == DPCR_F32 ? (double)((float *)c.want)[i] : ((double *)c.want)[i];
            if (!(fabs(got - want) <= (c.dtype == DPCR_F32 ? 1e-4 : 1e-12) * (1 + fabs(want))))
                fail_msg("case %d, number %zu: %.9g, not %.9g", n, i, got, want);
        }
        // Several threads, overlapped chunks, and in the place of b: to the bit.
        memcpy(c.want, c.z, count * c.size);
        as_csr(&c, 3, DPCR_SCHEME_SEQUENTIAL, c.z, NULL);
        assert_memory_equal(c.want, c.z, count * c.size);
        memset(c.z, 0xff, count * c.size);
        as_csr(&c, 2, DPCR_SCHEME_OVERLAP, c.z, &report);
        assert_int_equal(report.scheme, DPCR_SCHEME_OVERLAP);
        assert_memory_equal(c.want, c.z, count * c.size);
        as_csr(&c, 2, DPCR_SCHEME_SEQUENTIAL, c.b, NULL);
        assert_memory_equal(c.want, c.b, count * c.size);
        drop(&c);
    }
}

static void a_nan_is_its_sequences(void **unused) {
    (void)unused;
    sparse_case c = make(DPCR_F64, 20, 5, 17, 0, 0.3);
    const size_t row = 17, step = 5 * row;
    as_csr(&c, 2, DPCR_SCHEME_SEQUENTIAL, c.want, NULL);
    ((double *)c.b)[4 * step + 2 * row] = NAN;
    as_csr(&c, 2, DPCR_SCHEME_SEQUENTIAL, c.z, NULL);
    for (size_t i = 0; i < 20 * step; i++)
        if (i % step / row != 2) assert_true(((double *)c.z)[i] == ((double *)c.want)[i]);
    assert_true(isnan(((double *)c.z)[4 * step + 2 * row]));
    drop(&c);
}

static void an_empty_pattern_is_b(void **unused) {
    (void)unused;
    sparse_case c = make(DPCR_F32, 4, 2, 3, 0, 1);
    memset(c.offsets, 0, sizeof c.offsets);
    as_csr(&c, 1, DPCR_SCHEME_SEQUENTIAL, c.z, NULL);
    assert_memory_equal(c.z, c.b, 24 * sizeof(float));
    drop(&c);
}

static void what_forms_products_is_refused(void **unused) {
    (void)unused;
    sparse_case c = make(DPCR_F64, 8, 1, 4, 0, 1);
    c.pattern = (dpcr_pattern){.rows = 4, .cols = 4, .offsets = c.offsets, .columns = c.columns};
    dpcr_transition t = dpcr_transition_csr(&c.pattern);
    dpcr_error error = {0};
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_PCR, DPCR_SCHEME_BLELLOCH, DPCR_SCHEME_CHUNKED};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(solve(&c, 1, &t, c.values, c.offsets[4], schemes[i], c.z, NULL, &error),
                         DPCR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "sequential and overlap work"));
    }
    dpcr_context *context = NULL;
    dpcr_chain_plan *plan = NULL;
    const dpcr_chain_shape shape = {.size = sizeof shape, .length = 8, .batch = 1, .transition = t, .dtype = DPCR_F64};
    assert_int_equal(dpcr_context_create(NULL, &context, &error), DPCR_OK);
    assert_int_equal(dpcr_chain_plan_create(context, &shape, NULL, &plan, &error), DPCR_OK);
    assert_non_null(strstr(dpcr_chain_plan_sentence(plan), "form no products"));
    const int64_t of_b[3] = {8, 1, 4}, of_a[3] = {8, 1, c.offsets[4]};
    const dpcr_array a = dpcr_array_make(c.values, DPCR_F64, 3, of_a), z = dpcr_array_make(c.z, DPCR_F64, 3, of_b);
    const dpcr_array dz = dpcr_array_make(c.want, DPCR_F64, 3, of_b);
    assert_int_equal(dpcr_chain_jvp(plan, &a, NULL, &z, NULL, NULL, NULL, &dz, NULL, 0, &error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "csr"));
    dpcr_chain_plan_destroy(plan);
    c.columns[c.offsets[3] > 0 ? c.offsets[3] - 1 : 0] = 4;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, NULL, &plan, &error), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(context);
    drop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_dense_chain),
        cmocka_unit_test(a_nan_is_its_sequences),
        cmocka_unit_test(an_empty_pattern_is_b),
        cmocka_unit_test(what_forms_products_is_refused),
    };
    return cmocka_run_group_tests_name("chain_sparse", tests, NULL, NULL);
}
