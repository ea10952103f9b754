// SPDX-License-Identifier: MIT
// Sparse matrices: patterns, csr transitions applied both ways, planned products of every two kinds, the kernels'
// bundles against single sequences; refusals, and memory that is refused.
#include "budget.h"
#include "kern/sparse.h"
#include "sampled.h"
#include "sparse_common.h"

#include "fenced.h"

static dpcr_array array_of(void *data, dpcr_dtype dtype, int64_t steps, int64_t rows, int64_t values) {
    return dpcr_array_make(data, dtype, 3, (const int64_t[]){steps, rows, values});
}

// The pattern in memory that ends at a fence.
static operand *fence(operand *o) {
    if (o->t.structure != DPCR_CSR) return o;
    const size_t offsets = (size_t)(o->t.rows + 1) * sizeof *o->offsets,
                 columns = (size_t)o->entries * sizeof *o->columns;
    o->pattern.offsets = memcpy(fenced(o->t.rows + 1, sizeof *o->offsets), o->offsets, offsets);
    o->pattern.columns = memcpy(fenced(o->entries, sizeof *o->columns), o->columns, columns);
    return o;
}

static void drop_fenced_operand(operand *o) {
    if (o->t.structure == DPCR_CSR) drop_fenced(o->pattern.offsets), drop_fenced(o->pattern.columns);
    drop_operand(o);
}

static const int64_t sizes[][3] = {{1, 1, 1},   {2, 3, 4},    {5, 1, 7},    {1, 9, 1},  {16, 16, 16},
                                   {7, 33, 18}, {40, 21, 70}, {19, 3, 130}, {3, 70, 9}, {64, 64, 64}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void applied(void **state) {
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int s = 0; s < SIZES; s++)
            for (int flags = 0; flags < 8; flags++) {
                const dpcr_dtype dtype = all_dtypes[d];
                const bool transposed = flags & 1, shared = flags & 2, with_r = flags & 4;
                operand *o = fence(make_operand(DPCR_CSR, sizes[s][0], sizes[s][1], s % 2 ? 300 : 800));
                const int64_t in = transposed ? o->t.rows : o->t.cols, out = transposed ? o->t.cols : o->t.rows,
                              v = o->entries, size = (int64_t)dpcr_dtype_size(dtype);
                assert_int_equal(dpcr_transition_check(&o->t, NULL), DPCR_OK);
                assert_int_equal(dpcr_pattern_check(&o->pattern, NULL), DPCR_OK);
                assert_true(dpcr_transition_apply_flops(&o->t) == 2 * (double)v);
                char *a = fenced(6 * v, (size_t)size), *x = fenced(6 * in, (size_t)size),
                     *y = fenced(6 * out, (size_t)size), *r = fenced(6 * out, (size_t)size);
                fill_values(dtype, true, a, 6 * v);
                fill_values(dtype, true, x, 6 * in);
                fill_values(dtype, true, r, 6 * out);
                memcpy(y, r, (size_t)(6 * out * size));
                const dpcr_array va = array_of(a, dtype, shared ? 1 : 3, 2, v), vx = array_of(x, dtype, 3, 2, in),
                                 vy = array_of(y, dtype, 3, 2, out);
                assert_int_equal(dpcr_transition_apply(&o->t, transposed, &va, &vx, with_r ? &vy : NULL, &vy, NULL),
                                 DPCR_OK);
                for (int64_t q = 0; q < 6; q++) {
                    char *dense = expand(&o->t, dtype, a + (shared ? q % 2 : q) * v * size);
                    for (int64_t i = 0; i < out; i++) {
                        uint32_t ring = with_r && d == 2 ? ((uint32_t *)r)[q * out + i] : 0;
                        double sum = with_r && d != 2 ? get(dtype, r, q * out + i) : 0;
                        for (int64_t j = 0; j < in; j++) {
                            const int64_t at = transposed ? j * o->t.cols + i : i * o->t.cols + j;
                            if (d == 2)
                                ring += ((uint32_t *)dense)[at] * ((uint32_t *)x)[q * in + j];
                            else
                                sum += get(dtype, dense, at) * get(dtype, x, q * in + j);
                        }
                        assert_true(get(dtype, y, q * out + i) == (d == 2 ? ring : sum));
                    }
                    free(dense);
                }
                drop_fenced(a), drop_fenced(x), drop_fenced(y), drop_fenced(r);
                drop_fenced_operand(o);
            }
}

static dpcr_context *context_of(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

// [2][2] products, the later factor shared over sequences, against the definition.
static void check_product(dpcr_context *context, dpcr_dtype dtype, dpcr_structure later, dpcr_structure earlier,
                          const int64_t size[3], int64_t in_thousand) {
    const int64_t m = size[0], k = later == DPCR_DIAGONAL ? m : size[1], n = earlier == DPCR_DIAGONAL ? k : size[2];
    operand *a = fence(make_operand(later, m, k, in_thousand)), *b = fence(make_operand(earlier, k, n, in_thousand));
    dpcr_product *product = NULL;
    assert_int_equal(dpcr_product_create(context, &a->t, &b->t, &product, NULL), DPCR_OK);
    const dpcr_transition *c = dpcr_product_transition(product);
    assert_true(c->rows == m && c->cols == n);
    assert_int_equal(dpcr_transition_check(c, NULL), DPCR_OK);
    if (c->structure == DPCR_CSR) assert_int_equal(dpcr_pattern_check(c->pattern, NULL), DPCR_OK);
    assert_true((c->structure == DPCR_DIAGONAL) == (later == DPCR_DIAGONAL && earlier == DPCR_DIAGONAL));
    const int64_t values = dpcr_transition_values(c), bytes = (int64_t)dpcr_dtype_size(dtype);
    char *va = fenced(2 * a->entries, (size_t)bytes), *vb = fenced(4 * b->entries, (size_t)bytes),
         *vc = fenced(4 * values, (size_t)bytes);
    memset(vc, 0xff, (size_t)(4 * values * bytes));
    for (int reuse = 0; reuse < 2; reuse++) {
        fill_values(dtype, true, va, 2 * a->entries);
        fill_values(dtype, true, vb, 4 * b->entries);
        const dpcr_array aa = array_of(va, dtype, 2, 1, a->entries), ab = array_of(vb, dtype, 2, 2, b->entries),
                         ac = array_of(vc, dtype, 2, 2, values);
        assert_int_equal(dpcr_product_execute(product, &aa, &ab, &ac, NULL), DPCR_OK);
        for (int64_t q = 0; q < 4; q++) {
            void *da = expand(&a->t, dtype, va + q / 2 * a->entries * bytes),
                 *db = expand(&b->t, dtype, vb + q * b->entries * bytes), *want = multiply(dtype, da, db, m, k, n),
                 *got = expand(c, dtype, vc + q * values * bytes);
            if (differences(dtype, got, want, m * n) != 0)
                fail_msg("%s: %s times %s, %d %d %d", dpcr_dtype_name(dtype), dpcr_structure_name(later),
                         dpcr_structure_name(earlier), (int)m, (int)k, (int)n);
            free(da), free(db), free(want), free(got);
        }
    }
    drop_fenced(va), drop_fenced(vb), drop_fenced(vc);
    dpcr_product_destroy(product);
    drop_fenced_operand(a), drop_fenced_operand(b);
}

static void products(void **state) {
    (void)state;
    int64_t cases = 0;
    dpcr_context *context = context_of(2);
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                for (int s = 0; s < SIZES; s++)
                    for (int64_t density = 0; density <= 600; density += 150)
                        if (sampled_for_races(cases++))
                            check_product(context, all_dtypes[d], operand_kinds[i], operand_kinds[j], sizes[s],
                                          density);
    dpcr_context_destroy(context);
}

// The pattern is the union, no more; flops are two for each pair that meets, counted one by one. Whether it is sparse.
static bool check_pattern(dpcr_context *context, const operand *a, const operand *b) {
    const int64_t rows = a->t.rows, cols = b->t.cols;
    dpcr_product *product = NULL;
    assert_int_equal(dpcr_product_create(context, &a->t, &b->t, &product, NULL), DPCR_OK);
    int64_t *reached = room_for(rows * cols), matches = 0, entries = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t e = a->offsets[i]; e < a->offsets[i + 1]; e++)
            for (int64_t f = b->offsets[a->columns[e]]; f < b->offsets[a->columns[e] + 1]; f++, matches++)
                entries += !reached[i * cols + b->columns[f]]++;
    assert_true(dpcr_product_flops(product) == 2 * (double)matches);
    const dpcr_transition *c = dpcr_product_transition(product);
    const bool sparse = entries <= rows * cols / 2;
    const dpcr_pattern *p = c->pattern;
    assert_int_equal(c->structure, sparse ? DPCR_CSR : DPCR_DENSE);
    for (int64_t i = 0, at = 0; sparse && i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            if (reached[i * cols + j]) assert_int_equal(p->columns[at++], j);
        assert_int_equal(p->offsets[i + 1], at);
    }
    free(reached);
    dpcr_product_destroy(product);
    return sparse;
}

static void patterns(void **state) {
    (void)state;
    dpcr_context *context = context_of(1);
    int sparse = 0, full = 0;
    for (int64_t density = 10; density < 400; density += 30) {
        operand *a = make_operand(DPCR_CSR, 60, 50, density), *b = make_operand(DPCR_CSR, 50, 45, density);
        *(check_pattern(context, a, b) ? &sparse : &full) += 1;
        drop_operand(a), drop_operand(b);
    }
    assert_true(sparse > 2 && full > 2);
    dpcr_context_destroy(context);
}

// Rows with the columns of others, near and far, some empty, and rows that differ in their last column alone.
static operand *make_alike(int64_t rows, int64_t cols, int64_t kinds, int64_t in_thousand) {
    operand *o = make_operand(DPCR_CSR, rows, cols, in_thousand),
            *from = make_operand(DPCR_CSR, kinds, cols, in_thousand);
    o->entries = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t kind = i < rows / 2 ? i % kinds : random_below(kinds + 1);
        for (int64_t e = from->offsets[kind % kinds]; kind < kinds && e < from->offsets[kind + 1]; e++)
            o->columns[o->entries++] = from->columns[e];
        const bool first = o->entries == o->offsets[i];
        if (random_below(5) == 0 && (first || o->columns[o->entries - 1] < cols - 1))
            o->columns[o->entries++] = (int32_t)cols - 1;
        o->offsets[i + 1] = o->entries;
    }
    drop_operand(from);
    return o;
}

static void patterns_of_rows_alike(void **state) {
    (void)state;
    int sparse = 0, full = 0;
    for (int threads = 1; threads <= 3; threads++) {
        dpcr_context *context = context_of(threads);
        for (int64_t kinds = 1; kinds < 40; kinds += 6)
            for (int64_t density = 20; density < 300; density += 40) {
                operand *a = make_alike(200, 50, kinds, density), *b = make_alike(50, 90, kinds, density);
                *(check_pattern(context, a, b) ? &sparse : &full) += 1;
                drop_operand(a), drop_operand(b);
            }
        dpcr_context_destroy(context);
    }
    assert_true(sparse > 20 && full > 20);
}

// Nothing anywhere, and entries that never meet: no memory holds the columns of none.
static void patterns_of_nothing(void **state) {
    (void)state;
    dpcr_context *context = context_of(2);
    static const int64_t none[] = {0, 0, 0, 0, 0}, first[] = {0, 1, 2, 2, 2};
    static const int32_t left[] = {2, 3};
    const dpcr_pattern empty = {4, 4, none, NULL}, apart = {4, 4, first, left};  // rows 0 and 1, columns 2 and 3
    const dpcr_pattern *const pairs[][2] = {{&empty, &empty}, {&apart, &empty}, {&empty, &apart}, {&apart, &apart}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        dpcr_product *product = NULL;
        const dpcr_transition a = {.structure = DPCR_CSR, .rows = 4, .cols = 4, .pattern = pairs[i][0]},
                              b = {.structure = DPCR_CSR, .rows = 4, .cols = 4, .pattern = pairs[i][1]};
        assert_int_equal(dpcr_product_create(context, &a, &b, &product, NULL), DPCR_OK);
        assert_int_equal(dpcr_product_transition(product)->structure, DPCR_CSR);
        assert_int_equal(dpcr_transition_values(dpcr_product_transition(product)), 0);
        dpcr_product_destroy(product);
    }
    dpcr_context_destroy(context);
}

// Large enough for many tasks: the same pattern and bits for any number of threads.
static void threads_agree(void **state) {
    (void)state;
    operand *a = make_operand(DPCR_CSR, 600, 500, 30), *b = make_operand(DPCR_CSR, 500, 700, 30);
    float *va = room_for(a->entries), *vb = room_for(b->entries), *first = NULL;
    fill_values(DPCR_F32, false, va, a->entries);
    fill_values(DPCR_F32, false, vb, b->entries);
    int64_t values = 0;
    for (int threads = 1; threads <= 3; threads++) {
        dpcr_context *context = context_of(threads);
        dpcr_product *product = NULL;
        assert_int_equal(dpcr_product_create(context, &a->t, &b->t, &product, NULL), DPCR_OK);
        const dpcr_transition *c = dpcr_product_transition(product);
        assert_int_equal(c->structure, DPCR_CSR);
        assert_int_equal(dpcr_pattern_check(c->pattern, NULL), DPCR_OK);
        if (!first) values = dpcr_transition_values(c);
        assert_int_equal(dpcr_transition_values(c), values);
        float *vc = room_for(values);
        const dpcr_array aa = array_of(va, DPCR_F32, 1, 1, a->entries), ab = array_of(vb, DPCR_F32, 1, 1, b->entries),
                         ac = array_of(vc, DPCR_F32, 1, 1, values);
        assert_int_equal(dpcr_product_execute(product, &aa, &ab, &ac, NULL), DPCR_OK);
        if (first) {
            assert_memory_equal(first, vc, (size_t)values * sizeof *vc);
            free(vc);
        } else {
            first = vc;
        }
        dpcr_product_destroy(product);
        dpcr_context_destroy(context);
    }
    free(first), free(va), free(vb);
    drop_operand(a), drop_operand(b);
}

// ---- the kernels: lane g of a bundle has the bits of sequence g alone ----

// Values of every lane, [lanes][count], and packed.
typedef struct lanes_of {
    char *apart, *packed;
    int64_t count, size;
    bool bundled;
} lanes_of;

static lanes_of make_lanes(const dpcri_sparse_kernels *k, dpcr_dtype dtype, int64_t count, bool bundled) {
    lanes_of l = {.count = count, .size = (int64_t)dpcr_dtype_size(dtype), .bundled = bundled};
    const int64_t lanes = bundled ? k->lanes : 1;
    l.apart = fenced(lanes * count, (size_t)l.size);
    l.packed = fenced(lanes * count, (size_t)l.size);
    fill_values(dtype, false, l.apart, lanes * count);
    if (bundled)
        k->pack(count, lanes, l.apart, count, l.packed);
    else
        memcpy(l.packed, l.apart, (size_t)(count * l.size));
    return l;
}

static void *lane(const lanes_of *l, int64_t g) { return l->apart + (l->bundled ? g : 0) * l->count * l->size; }

static void drop_lanes(lanes_of *l) { drop_fenced(l->apart), drop_fenced(l->packed); }

static dpcri_matrix matrix_of(const dpcr_transition *t, void *values, bool bundled) {
    const dpcr_pattern *p = t->pattern;
    return (dpcri_matrix){t->structure,          t->rows, t->cols, p ? p->offsets : NULL,
                          p ? p->columns : NULL, values,  bundled};
}

static void check_apply(dpcr_dtype dtype, dpcr_structure structure, int64_t rows, int64_t cols, bool bundled) {
    const dpcri_sparse_kernels *k = dpcri_sparse_kernels_get(dtype);
    operand *o = fence(make_operand(structure, rows, structure == DPCR_DIAGONAL ? rows : cols, 400));
    lanes_of a = make_lanes(k, dtype, o->entries, bundled), x = make_lanes(k, dtype, o->t.cols, true);
    char *y = fenced(rows * k->lanes, (size_t)a.size), *unpacked = fenced(rows * k->lanes, (size_t)a.size),
         *want = fenced(rows, (size_t)a.size);
    const dpcri_matrix m = matrix_of(&o->t, a.packed, bundled);
    k->bundle.apply(&m, x.packed, y, 0, rows / 3);
    k->bundle.apply(&m, x.packed, y, rows / 3, rows);
    k->unpack(rows, k->lanes, y, unpacked, rows);
    for (int64_t g = 0; g < k->lanes; g++) {
        const dpcri_matrix one = matrix_of(&o->t, lane(&a, g), false);
        k->single.apply(&one, lane(&x, g), want, 0, rows / 2);
        k->single.apply(&one, lane(&x, g), want, rows / 2, rows);
        assert_memory_equal(unpacked + g * rows * a.size, want, (size_t)(rows * a.size));
    }
    drop_fenced(y), drop_fenced(unpacked), drop_fenced(want);
    drop_lanes(&a), drop_lanes(&x);
    drop_fenced_operand(o);
}

static void check_compose(dpcr_context *context, dpcr_dtype dtype, dpcr_structure later, dpcr_structure earlier,
                          const int64_t size[3], bool a_bundled, bool b_bundled) {
    const dpcri_sparse_kernels *k = dpcri_sparse_kernels_get(dtype);
    const int64_t m = size[0], inner = later == DPCR_DIAGONAL ? m : size[1],
                  n = earlier == DPCR_DIAGONAL ? inner : size[2];
    operand *oa = fence(make_operand(later, m, inner, 150)), *ob = fence(make_operand(earlier, inner, n, 150));
    dpcr_product *product = NULL;
    assert_int_equal(dpcr_product_create(context, &oa->t, &ob->t, &product, NULL), DPCR_OK);
    const dpcr_transition *t = dpcr_product_transition(product);
    const int64_t values = dpcr_transition_values(t), lanes = a_bundled || b_bundled ? k->lanes : 1;
    lanes_of a = make_lanes(k, dtype, oa->entries, a_bundled), b = make_lanes(k, dtype, ob->entries, b_bundled);
    char *c = fenced(values * lanes, (size_t)a.size), *unpacked = fenced(values * lanes, (size_t)a.size),
         *want = fenced(values, (size_t)a.size);
    int32_t *places = fenced(n, sizeof *places);
    const dpcri_matrix ma = matrix_of(&oa->t, a.packed, a_bundled), mb = matrix_of(&ob->t, b.packed, b_bundled),
                       mc = matrix_of(t, c, lanes > 1);
    k->bundle.compose(&ma, &mb, &mc, places, 0, m / 2);
    k->bundle.compose(&ma, &mb, &mc, places, m / 2, m);
    if (lanes > 1)
        k->unpack(values, lanes, c, unpacked, values);
    else
        memcpy(unpacked, c, (size_t)(values * a.size));
    for (int64_t g = 0; g < lanes; g++) {
        const dpcri_matrix one_a = matrix_of(&oa->t, lane(&a, g), false), one_b = matrix_of(&ob->t, lane(&b, g), false),
                           one_c = matrix_of(t, want, false);
        k->single.compose(&one_a, &one_b, &one_c, places, 0, m);
        assert_memory_equal(unpacked + g * values * a.size, want, (size_t)(values * a.size));
    }
    drop_fenced(c), drop_fenced(unpacked), drop_fenced(want), drop_fenced(places);
    drop_lanes(&a), drop_lanes(&b);
    dpcr_product_destroy(product);
    drop_fenced_operand(oa), drop_fenced_operand(ob);
}

static void bundles(void **state) {
    (void)state;
    dpcr_context *context = context_of(1);
    for (int d = 0; d < 3; d++)
        for (int s = 0; s < SIZES; s++)
            for (int i = 0; i < 3; i++) {
                for (int shared = 0; shared < 2; shared++)
                    check_apply(all_dtypes[d], operand_kinds[i], sizes[s][0], sizes[s][1], !shared);
                for (int j = 0; j < 3; j++)
                    for (int shared = 0; shared < 4; shared++)
                        check_compose(context, all_dtypes[d], operand_kinds[i], operand_kinds[j], sizes[s], shared & 1,
                                      shared & 2);
            }
    dpcr_context_destroy(context);
}

// Lanes that nobody sits in are zeros, and are not written back.
static void partial_bundles(void **state) {
    (void)state;
    const dpcri_sparse_kernels *k = dpcri_sparse_kernels_get(DPCR_F32);
    float from[3 * 5], packed[5 * 16], back[3 * 5];
    fill_values(DPCR_F32, false, from, 15);
    memset(packed, 0xff, sizeof packed);
    memset(back, 0xff, sizeof back);
    k->pack(5, 2, from, 5, packed);
    for (int64_t e = 0; e < 5; e++)
        for (int64_t g = 0; g < k->lanes; g++) assert_true(packed[e * k->lanes + g] == (g < 2 ? from[g * 5 + e] : 0));
    k->unpack(5, 2, packed, back, 5);
    assert_memory_equal(back, from, 10 * sizeof *from);
    for (int i = 10; i < 15; i++) assert_true(isnan(back[i]));
    float lines[16 * 40], turned[40 * 16], again[16 * 40];  // whole ones, from the last to the first
    const int64_t n = k->lanes;
    fill_values(DPCR_F32, false, lines, n * 40);
    k->pack(40, n, lines + (n - 1) * 40, -40, turned);
    k->unpack(40, n, turned, again + (n - 1) * 40, -40);
    for (int64_t e = 0; e < 40; e++)
        for (int64_t g = 0; g < n; g++) assert_true(turned[e * n + g] == lines[(n - 1 - g) * 40 + e]);
    assert_memory_equal(again, lines, (size_t)(n * 40) * sizeof *lines);
}

static void refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    dpcr_context *context = context_of(1);
    int64_t offsets[] = {0, 2, 3};
    int32_t columns[] = {0, 2, 1};
    dpcr_pattern p = {2, 3, offsets, columns};
    assert_int_equal(dpcr_pattern_check(&p, NULL), DPCR_OK);
    expect(dpcr_pattern_check(NULL, &e), DPCR_ERROR_ARGUMENT, &e, "NULL");
    p.rows = 0;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "0x3");
    p.rows = 2, p.cols = (int64_t)INT32_MAX + 1;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "2147483647");
    p.cols = 2;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "row 0 has column 2");
    p.cols = 3, columns[1] = 0;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "column 0 after 0");
    columns[1] = 2, columns[2] = -1;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "row 1 has column -1");
    columns[2] = 1, offsets[1] = 4;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "row 0 ends at 4");
    offsets[1] = -1;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "row 0 ends at -1");
    offsets[1] = 2, offsets[0] = 1;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "from 1");
    offsets[0] = 0, p.columns = NULL;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "columns is NULL");
    p.columns = columns, p.offsets = NULL;
    expect(dpcr_pattern_check(&p, &e), DPCR_ERROR_ARGUMENT, &e, "offsets is NULL");
    p.offsets = offsets;
    dpcr_transition t = dpcr_transition_csr(&p);
    t.cols = 2;
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "2x2 with a pattern of 2x3");
    t.cols = 3, t.block = 1;
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "block");
    t.block = 0, t.pattern = NULL;
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "NULL");
    t = dpcr_transition_csr(NULL);
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "positive");
    t = dpcr_transition_csr(&p);
    assert_int_equal(dpcr_transition_capabilities(&t), DPCR_CAN_APPLY | DPCR_HAS_VALUES);
    double data[64] = {0};
    dpcr_array three = array_of(data, DPCR_F64, 1, 1, 3), two = array_of(data + 8, DPCR_F64, 1, 1, 2);
    expect(dpcr_transition_compose(&t, &three, &three, &three, &e), DPCR_ERROR_UNSUPPORTED, &e, "dpcr_product");
    dpcr_product *product = NULL;
    const dpcr_transition block = dpcr_transition_square(DPCR_BLOCK, 4, 2),
                          square = dpcr_transition_square(DPCR_DENSE, 2, 0);
    expect(dpcr_product_create(NULL, &t, &t, &product, &e), DPCR_ERROR_ARGUMENT, &e, "context is NULL");
    expect(dpcr_product_create(context, &t, &t, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "product is NULL");
    expect(dpcr_product_create(context, NULL, &t, &product, &e), DPCR_ERROR_ARGUMENT, &e, "NULL");
    expect(dpcr_product_create(context, &t, &t, &product, &e), DPCR_ERROR_ARGUMENT, &e, "later is 2x3, earlier 2x3");
    expect(dpcr_product_create(context, &block, &block, &product, &e), DPCR_ERROR_UNSUPPORTED, &e, "later is block");
    const dpcr_transition wide = {.structure = DPCR_DENSE, .rows = INT64_MAX / 2, .cols = 1},
                          tall = {.structure = DPCR_DENSE, .rows = 1, .cols = INT64_MAX / 2};
    expect(dpcr_product_create(context, &wide, &tall, &product, &e), DPCR_ERROR_OVERFLOW, &e, "too many values");
    assert_null(product);
    assert_int_equal(dpcr_product_create(context, &square, &t, &product, NULL), DPCR_OK);
    dpcr_array four = array_of(data + 16, DPCR_F64, 1, 1, 4), six = array_of(data + 32, DPCR_F64, 1, 1, 6);
    expect(dpcr_product_execute(NULL, &four, &three, &six, &e), DPCR_ERROR_ARGUMENT, &e, "product is NULL");
    expect(dpcr_product_execute(product, &four, &three, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "NULL");
    expect(dpcr_product_execute(product, &three, &three, &six, &e), DPCR_ERROR_ARGUMENT, &e, "later is");
    expect(dpcr_product_execute(product, &four, &two, &six, &e), DPCR_ERROR_ARGUMENT, &e, "earlier is");
    expect(dpcr_product_execute(product, &four, &three, &two, &e), DPCR_ERROR_ARGUMENT, &e, "c is");
    six.data = four.data;
    expect(dpcr_product_execute(product, &four, &three, &six, &e), DPCR_ERROR_ARGUMENT, &e, "one of the inputs");
    dpcr_product_destroy(product);
    dpcr_product_destroy(NULL);
    dpcr_context_destroy(context);
}

static void memory_refused(void **state) {
    (void)state;
    operand *a = make_operand(DPCR_CSR, 30, 30, 60), *b = make_operand(DPCR_CSR, 30, 30, 60);
    float va[900], vb[900], vc[900];
    fill_values(DPCR_F32, false, va, 900);
    fill_values(DPCR_F32, false, vb, 900);
    int refused = 0, done = 0;
    for (int64_t grants = 0; !done && grants < 40; grants++) {
        budget left = {.left = grants};
        const dpcr_context_options options = budget_options(&left);
        dpcr_context *context = NULL;
        dpcr_error error = {0};
        dpcr_product *product = NULL;
        if (dpcr_context_create(&options, &context, NULL) != DPCR_OK) continue;
        dpcr_status status = dpcr_product_create(context, &a->t, &b->t, &product, &error);
        if (status == DPCR_OK) {
            const dpcr_transition *c = dpcr_product_transition(product);
            assert_int_equal(c->structure, DPCR_CSR);
            const dpcr_array aa = array_of(va, DPCR_F32, 1, 1, a->entries),
                             ab = array_of(vb, DPCR_F32, 1, 1, b->entries),
                             ac = array_of(vc, DPCR_F32, 1, 1, dpcr_transition_values(c));
            status = dpcr_product_execute(product, &aa, &ab, &ac, &error);
            done = status == DPCR_OK;
        } else {
            assert_null(product);
        }
        if (!done) {
            expect(status, DPCR_ERROR_MEMORY, &error, "refused");
            refused++;
        }
        dpcr_product_destroy(product);
        dpcr_context_destroy(context);
        assert_int_equal(left.live, 0);
    }
    assert_true(done && refused >= 4);
    drop_operand(a), drop_operand(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(applied),
                                       cmocka_unit_test(products),
                                       cmocka_unit_test(patterns),
                                       cmocka_unit_test(patterns_of_rows_alike),
                                       cmocka_unit_test(patterns_of_nothing),
                                       cmocka_unit_test(threads_agree),
                                       cmocka_unit_test(bundles),
                                       cmocka_unit_test(partial_bundles),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(memory_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
