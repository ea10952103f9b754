// SPDX-License-Identifier: MIT
// Wide products of every level against their definition, bit for bit: all shapes of tiles, with streams and without,
// rows apart, panels apart, memory past the ends untouched.

// cmocka.h wants the first three before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kern/wide.h"

static double value(int64_t i, int64_t j) {
    return sin(0.37 * (double)i + 1.91 * (double)j + 0.1 * (double)(i * j % 7));
}

static void put_number(void *x, dpcr_dtype dtype, int64_t i, double v) {
    if (dtype == DPCR_F32)
        ((float *)x)[i] = (float)v;
    else
        ((double *)x)[i] = v;
}

// One term of a sum as the level computes it.
static double step(dpcr_dtype dtype, bool fused, double x, double y, double sum) {
    if (dtype == DPCR_F64) return fused ? fma(x, y, sum) : x * y + sum;
    const float a = (float)x, b = (float)y, c = (float)sum;
    return fused ? (double)fmaf(a, b, c) : (double)(a * b + c);
}

static double get_number(const void *x, dpcr_dtype dtype, int64_t i) {
    return dtype == DPCR_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

typedef struct shape {
    int64_t rows, depth, columns;
    bool streams;
} shape;

static void check_shape(dpcri_isa level, dpcr_dtype dtype, shape s, bool transposed, bool bias) {
    const dpcri_wide_kernels *k = dpcri_wide_kernels_at(level, dtype);
    const int64_t panels = dpcri_wide_panels(k, s.columns), a_row = s.depth + 3, c_row = s.columns + 5;
    void *a = calloc((size_t)(s.rows * a_row) + 1, k->element), *c = calloc((size_t)(s.rows * c_row) + 1, k->element);
    void *b = calloc((size_t)(s.depth * s.columns) + 1, k->element), *init = calloc((size_t)s.columns + 1, k->element);
    const size_t bytes = (size_t)(panels * k->panel * (s.depth + 1)) * k->element;
    void *packed = aligned_alloc(64, (bytes + 63) / 64 * 64);
    for (int64_t i = 0; i < s.rows * a_row; i++) put_number(a, dtype, i, value(i, 1));
    for (int64_t i = 0; i < s.rows * c_row; i++) put_number(c, dtype, i, 77);
    for (int64_t j = 0; j < s.columns; j++) put_number(init, dtype, j, value(3, j));
    for (int64_t q = 0; q < s.depth; q++)
        for (int64_t j = 0; j < s.columns; j++)
            put_number(b, dtype, transposed ? j * s.depth + q : q * s.columns + j, value(q, j));
    const int64_t half = panels / 2;
    k->pack(transposed, s.depth, s.columns, b, transposed ? s.depth : s.columns, 0, half, packed);
    k->pack(transposed, s.depth, s.columns, b, transposed ? s.depth : s.columns, half, panels, packed);
    dpcri_wide_product p = {.rows = s.rows,
                            .depth = s.depth,
                            .columns = s.columns,
                            .a = a,
                            .a_row = a_row,
                            .packed = packed,
                            .init = bias ? init : NULL,
                            .c = c,
                            .c_row = c_row,
                            .streams = s.streams};
    for (p.to = (s.rows + s.columns) % 2 ? s.depth / 3 : 0; p.to > 0 && p.to < s.depth;
         p.from = p.to, p.to += 1 + s.depth / 3)
        k->product(&p);  // some terms of the sums after others
    p.to = 0;
    k->product(&p);
    for (int64_t i = 0; i < s.rows; i++) {
        for (int64_t j = 0; j < s.columns; j++) {
            double sum = bias ? get_number(init, dtype, j) : 0;
            for (int64_t q = 0; q < s.depth; q++)
                sum = step(dtype, dpcri_isa_fuses((dpcri_isa)level), get_number(a, dtype, i * a_row + q),
                           get_number(b, dtype, transposed ? j * s.depth + q : q * s.columns + j), sum);
            if (get_number(c, dtype, i * c_row + j) != sum)
                fail_msg("level %d, streams %d, %lld x %lld x %lld: row %lld, column %lld: %.17g, wanted %.17g",
                         (int)level, s.streams, (long long)s.rows, (long long)s.depth, (long long)s.columns,
                         (long long)i, (long long)j, get_number(c, dtype, i * c_row + j), sum);
        }
        for (int64_t j = s.columns; j < c_row; j++) assert_true(get_number(c, dtype, i * c_row + j) == 77);
    }
    free(a), free(b), free(c), free(init), free(packed);
}

static void products_are_their_definition(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 3, 16, 17, 33, 63, 64, 65, 80, 96, 128, 130, 200, 256, 320, 390};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (dpcr_dtype dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            if (!dpcri_wide_kernels_at((dpcri_isa)level, dtype)) continue;
            for (int64_t rows = 0; rows <= 13; rows++)
                for (int i = 0; i < 2 * COLUMNS; i++) {
                    const int c = i / 2;
                    check_shape((dpcri_isa)level, dtype, (shape){rows, 9 + rows % 3, columns[c], i % 2}, (rows + c) % 2,
                                c % 3);
                }
            for (int streams = 0; streams < 2; streams++) {
                check_shape((dpcri_isa)level, dtype, (shape){14, 1030, 70, streams}, true, true);  // two parts of depth
                check_shape((dpcri_isa)level, dtype, (shape){1, 1030, 140, streams}, false, true);
                check_shape((dpcri_isa)level, dtype, (shape){3, 0, 20, streams}, false, true);
            }
        }
}

// NaN and infinity stay in their row.
static void hazards_stay_in_their_row(void **state) {
    (void)state;
    enum { ROWS = 9, DEPTH = 20, COLUMNS = 100 };
    for (int level = 0; level < DPCRI_ISA_COUNT; level++) {
        const dpcri_wide_kernels *k = dpcri_wide_kernels_at((dpcri_isa)level, DPCR_F32);
        float a[ROWS * DEPTH], b[DEPTH * COLUMNS], clean[ROWS * COLUMNS], c[ROWS * COLUMNS];
        if (!k) continue;
        float *packed = aligned_alloc(64, sizeof(float) * (size_t)(dpcri_wide_panels(k, COLUMNS) * k->panel * DEPTH));
        for (int i = 0; i < ROWS * DEPTH; i++) a[i] = (float)value(i, 2);
        for (int i = 0; i < DEPTH * COLUMNS; i++) b[i] = (float)value(i, 5);
        k->pack(false, DEPTH, COLUMNS, b, COLUMNS, 0, dpcri_wide_panels(k, COLUMNS), packed);
        dpcri_wide_product p = {.rows = ROWS,
                                .depth = DEPTH,
                                .columns = COLUMNS,
                                .a = a,
                                .a_row = DEPTH,
                                .packed = packed,
                                .c = clean,
                                .c_row = COLUMNS};
        k->product(&p);
        a[4 * DEPTH + 7] = NAN;
        p.c = c;
        k->product(&p);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++)
                if (i == 4)
                    assert_true(isnan(c[i * COLUMNS + j]));
                else
                    assert_true(c[i * COLUMNS + j] == clean[i * COLUMNS + j]);
        free(packed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_their_definition),
        cmocka_unit_test(hazards_stay_in_their_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
