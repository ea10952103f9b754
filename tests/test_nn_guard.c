// SPDX-License-Identifier: MIT
// Network kernels and wide products with every array against an inaccessible page, at its end or at its beginning: one
// that reads or writes an element outside ends this program. Every level, float and double; those of many steps are in
// test_nn_steps.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>

#include "kern/nn_kernels.h"
#include "kern/wide.h"

enum { IN, WEIGHT, BIAS, RESIDUAL, OUT, SLOPE, DIRECT, KEPT, G, SUM, PACKED, USES, MOST_BYTES = 1 << 20 };
#include "guarded.h"
#include "sampled.h"

typedef struct place {
    const dpcri_nn_kernels *k;
    dpcr_dtype dtype;
    bool at_end;
    int64_t gap;  // between rows
} place;

static void *numbers(const place *p, int use, int64_t count) {
    char *data = guarded(use, (size_t)count * dpcr_dtype_size(p->dtype), !p->at_end);
    for (int64_t i = 0; i < count; i++) put_number(p->dtype, data, i, 0.01 * (double)(i % 7 + 1));
    return data;
}

static int64_t stride(const place *p, int64_t width) { return width + p->gap; }

// Rows of `width`, the last without the gap.
static void *rows_of(const place *p, int use, int64_t rows, int64_t width) {
    return numbers(p, use, rows > 0 ? (rows - 1) * stride(p, width) + width : 0);
}

static void products(const place *p, int64_t m, int64_t n, int64_t depth) {
    for (int form = 0; form < 6; form++) {
        const bool turned = form & 1, by_columns = form >= 4;
        dpcri_product q = {.m = m, .n = n, .depth = depth, .b_row = stride(p, turned ? depth : n)};
        q.a = by_columns ? rows_of(p, IN, depth, m) : rows_of(p, IN, m, depth);
        q.a_row = by_columns ? 1 : stride(p, depth), q.a_col = by_columns ? stride(p, m) : 1;
        q.b = turned ? rows_of(p, WEIGHT, n, depth) : rows_of(p, WEIGHT, depth, n);
        q.c = rows_of(p, OUT, m, n), q.c_row = stride(p, n);
        q.init = form < 2 ? NULL : form < 4 ? numbers(p, BIAS, n) : q.c;
        q.init_row = form < 4 ? 0 : q.c_row;
        (turned ? p->k->product_transposed : p->k->product)(&q);
        if (by_columns && !turned) p->k->product_summing(&q, numbers(p, SUM, m));
    }
}

static void layers(const place *p, int64_t rows, int64_t width, int64_t depth) {
    for (int mode = 0; mode < 4; mode++) {
        const int activation = (int)(rows + width + depth + mode) % DPCRI_ACT_COUNT;
        p->k->layer(&(dpcri_layer){.rows = rows,
                                   .depth = depth,
                                   .width = width,
                                   .activation = activation,
                                   .weight = numbers(p, WEIGHT, depth * width),
                                   .bias = numbers(p, BIAS, width),
                                   .in = rows_of(p, IN, rows, depth),
                                   .in_row = stride(p, depth),
                                   .residual = mode & 1 ? rows_of(p, RESIDUAL, rows, width) : NULL,
                                   .residual_row = stride(p, width),
                                   .scale = 0.5,
                                   .out = mode < 3 ? rows_of(p, OUT, rows, width) : NULL,
                                   .out_row = stride(p, width),
                                   .slope = mode & 2 ? rows_of(p, SLOPE, rows, width) : NULL,
                                   .slope_row = stride(p, width)});
    }
}

static void back(const place *p, int64_t rows, int64_t width, int64_t depth) {
    const int64_t row = stride(p, width);
    for (int mode = 0; mode < 4; mode++) {
        dpcri_slope_pass pass = {.rows = rows, .width = width, .scale = 0.5};
        pass.g = rows_of(p, G, rows, width), pass.g_row = row;
        if (mode & 1) pass.direct = rows_of(p, DIRECT, rows, width), pass.direct_row = row;
        if (mode & 2) pass.kept = rows_of(p, KEPT, rows, width), pass.kept_row = row;
        pass.slope = rows_of(p, SLOPE, rows, width), pass.slope_row = row;
        pass.e = rows_of(p, OUT, rows, width), pass.e_row = row;
        p->k->slope_pass(&pass);
        p->k->adjoint(&pass, &(dpcri_product){.m = rows,
                                              .n = width,
                                              .depth = width,
                                              .a = pass.e,
                                              .a_row = row,
                                              .a_col = 1,
                                              .b = numbers(p, WEIGHT, width * width),
                                              .b_row = width,
                                              .init = mode & 1 ? pass.g : NULL,
                                              .init_row = row,
                                              .c = pass.g,
                                              .c_row = row});
        pass.direct = pass.kept = NULL, pass.sum = numbers(p, SUM, width);
        if (mode & 1) pass.e = NULL, pass.slope = NULL, pass.scale = 1;
        void *const gradient = numbers(p, WEIGHT, depth * width);
        p->k->gradient(&pass, &(dpcri_product){.m = depth,
                                               .n = width,
                                               .depth = rows,
                                               .a = rows_of(p, IN, rows, depth),
                                               .a_row = 1,
                                               .a_col = stride(p, depth),
                                               .b = pass.e ? pass.e : pass.g,
                                               .b_row = row,
                                               .init = gradient,
                                               .init_row = width,
                                               .c = gradient,
                                               .c_row = width});
    }
}

static void elementwise(const place *p, int64_t rows, int64_t width, int64_t unused) {
    const int64_t row = stride(p, width), turned = stride(p, rows);
    (void)unused;
    void *const in = rows_of(p, IN, rows, width), *const out = rows_of(p, OUT, rows, width),
                *const reciprocal = rows_of(p, SUM, rows, 1), *const gamma = numbers(p, WEIGHT, width),
                *const residual = rows_of(p, RESIDUAL, rows, width), *const beta = numbers(p, BIAS, width);
    p->k->transpose(rows, width, in, row, rows_of(p, KEPT, width, rows), turned);
    p->k->multiply_add(rows, width, residual, row, 0.5, in, row, gamma, 0, out, row);
    p->k->multiply_add(rows, width, NULL, 0, 0.5, in, row, NULL, 0, out, row);
    p->k->scale_rows(rows, width, 0.5, rows_of(p, DIRECT, 1, rows), in, row, 1, out, row);
    p->k->norm(rows, width, in, row, gamma, beta, residual, row, reciprocal, stride(p, 1), out, row);
    for (int turn = 0; turn < 2; turn++)
        p->k->norm_apply(turn, rows, width, gamma, residual, row, reciprocal, stride(p, 1), in, row, out, row);
    for (int a = 0; a < DPCRI_ACT_COUNT; a++)
        p->k->activate(a, width, gamma, a % 3 ? numbers(p, G, width) : NULL, a % 2 ? numbers(p, SLOPE, width) : NULL);
}

static void every_size(void (*check)(const place *p, int64_t rows, int64_t width, int64_t depth)) {
    static const int64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17},
                         widths[] = {1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80};
    static const int64_t depths[] = {1, 2, 5, 8, 16, 19, 33, 64};
    int64_t run = 0;
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int form = 0; form < 8; form++) {
            const dpcr_dtype dtype = form & 1 ? DPCR_F64 : DPCR_F32;
            const place p = {dpcri_nn_kernels_at((dpcri_isa)level, dtype), dtype, form & 2, form & 4 ? 3 : 0};
            for (size_t i = 0; p.k && i < sizeof counts / sizeof *counts; i++)
                for (size_t j = 0; j < sizeof widths / sizeof *widths; j++, run++)
                    if (sampled(run)) check(&p, counts[i], widths[j], depths[(i + j) % 8]);
        }
}

static void products_stay_inside(void **state) {
    (void)state;
    every_size(products);
}

static void layers_stay_inside(void **state) {
    (void)state;
    every_size(layers);
}

static void the_way_back_stays_inside(void **state) {
    (void)state;
    every_size(back);
}

static void elementwise_passes_stay_inside(void **state) {
    (void)state;
    every_size(elementwise);
}

static void wide(const place *p, const dpcri_wide_kernels *k, int64_t rows, int64_t columns, int64_t depth) {
    const int64_t panels = dpcri_wide_panels(k, columns);
    void *const packed = numbers(p, PACKED, panels * k->panel * depth);
    for (int turned = 0; turned < 2; turned++) {
        const int64_t row = stride(p, turned ? depth : columns);
        k->pack(turned, depth, columns,
                turned ? rows_of(p, WEIGHT, columns, depth) : rows_of(p, WEIGHT, depth, columns), row, 0, panels,
                packed);
    }
    for (int mode = 0; mode < 4; mode++)
        k->product(&(dpcri_wide_product){.rows = rows,
                                         .depth = depth,
                                         .columns = columns,
                                         .a = rows_of(p, IN, rows, depth),
                                         .a_row = stride(p, depth),
                                         .packed = packed,
                                         .init = mode & 1 ? numbers(p, BIAS, columns) : NULL,
                                         .c = rows_of(p, OUT, rows, columns),
                                         .c_row = stride(p, columns),
                                         .streams = mode & 2});
}

static void wide_products_stay_inside(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 4, 7, 8, 13}, depths[] = {1, 2, 3, 16, 31, 64};
    static const int64_t columns[] = {1, 3, 16, 17, 33, 63, 64, 65, 80, 96, 128, 130, 200, 256, 320, 390};
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int form = 0; form < 8; form++) {
            const dpcr_dtype dtype = form & 1 ? DPCR_F64 : DPCR_F32;
            const place p = {NULL, dtype, form & 2, form & 4 ? 3 : 0};
            const dpcri_wide_kernels *k = dpcri_wide_kernels_at((dpcri_isa)level, dtype);
            for (size_t i = 0; k && i < sizeof counts / sizeof *counts; i++)
                for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
                    wide(&p, k, counts[i], columns[j], depths[(i + j) % 6]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_stay_inside),      cmocka_unit_test(layers_stay_inside),
        cmocka_unit_test(the_way_back_stays_inside), cmocka_unit_test(elementwise_passes_stay_inside),
        cmocka_unit_test(wide_products_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
