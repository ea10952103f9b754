// SPDX-License-Identifier: MIT
// Network kernels of every level against plain loops: products bit for bit (one fma a term, k ascending; a multiply and
// an add on the portable level), activations against long double libm in units in the last place.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "eights.h"
#include "kern/nn_kernels.h"

enum { SEED = 7 };

typedef struct variant {
    dpcri_isa level;
    dpcr_dtype dtype;
    const dpcri_nn_kernels *k;
} variant;

static const char *const level_names[] = {"portable", "avx2", "avx512"};

static int variants(variant list[6]) {
    int n = 0;
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcri_nn_kernels *k = dpcri_nn_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            if (k) list[n++] = (variant){(dpcri_isa)level, (dpcr_dtype)dtype, k};
        }
    return n;
}

static double get(const variant *v, const void *p, int64_t i) {
    return v->dtype == DPCR_F32 ? (double)((const float *)p)[i] : ((const double *)p)[i];
}
static void set(const variant *v, void *p, int64_t i, double x) {
    if (v->dtype == DPCR_F32)
        ((float *)p)[i] = (float)x;
    else
        ((double *)p)[i] = x;
}
static double multiply_add(const variant *v, double a, double b, double c) {
    if (v->dtype == DPCR_F32) {
        const float x = (float)a, y = (float)b, z = (float)c;
        return dpcri_isa_fuses((dpcri_isa)v->level) ? (double)fmaf(x, y, z) : (double)(x * y + z);
    }
    return dpcri_isa_fuses((dpcri_isa)v->level) ? fma(a, b, c) : a * b + c;
}
static void *random_numbers(const variant *v, int64_t n, uint64_t stream) {
    void *p = malloc((size_t)n * v->k->element + 64);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) set(v, p, i, dpcri_random_normal(SEED, DPCRI_STREAM_DATA + stream, (uint64_t)i));
    return p;
}
static void *copy_of(const variant *v, const void *from, int64_t n) {
    void *p = malloc((size_t)n * v->k->element + 64);
    assert_non_null(p);
    memcpy(p, from, (size_t)n * v->k->element);
    return p;
}

enum { SIDE = 66, ROW = 71, CELLS = ROW * (SIDE + 2) };  // room for strides and guards around every operand

typedef struct buffers {
    void *a, *b, *c, *init;
} buffers;

static void check_product(const variant *v, const buffers *f, int64_t m, int64_t n, int64_t depth, int form,
                          int transposed) {
    void *c = copy_of(v, f->c, CELLS);
    // form 0: A by rows, bias row; 1: A transposed, added to c; 2: odd strides, from 0
    dpcri_product p = {.m = m, .n = n, .depth = depth, .a = f->a, .b = f->b, .b_row = ROW, .c = c, .c_row = ROW};
    p.a_row = form == 0 ? ROW : form == 1 ? 1 : 2;
    p.a_col = form == 0 ? 1 : form == 1 ? ROW : 3;
    p.init = form == 0 ? f->init : form == 1 ? c : NULL;
    p.init_row = form == 1 ? ROW : 0;
    (transposed ? v->k->product_transposed : v->k->product)(&p);
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t j = 0; j < ROW; j++) {
            double wanted = get(v, f->c, i * ROW + j);
            if (i < m && j < n) {
                wanted = form == 0 ? get(v, f->init, j) : form == 1 ? wanted : 0;
                for (int64_t q = 0; q < depth; q++) {
                    const double b = get(v, f->b, transposed ? j * ROW + q : q * ROW + j);
                    wanted = multiply_add(v, get(v, f->a, i * p.a_row + q * p.a_col), b, wanted);
                }
            }
            const double got = get(v, c, i * ROW + j);
            if (memcmp(&got, &wanted, sizeof got) != 0)
                fail_msg("%s element %zu m %d n %d k %d form %d transposed %d: c[%d][%d] = %.17g, wanted %.17g",
                         level_names[v->level], v->k->element, (int)m, (int)n, (int)depth, form, transposed, (int)i,
                         (int)j, got, wanted);
        }
    free(c);
}

static void products_equal_the_loop(void **state) {
    (void)state;
    static const int some[] = {0, 1, 2, 3, 5, 8, 15, 17, 33};
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        const buffers f = {random_numbers(v, CELLS, 1), random_numbers(v, CELLS, 2), random_numbers(v, CELLS, 3),
                           random_numbers(v, ROW, 4)};
        for (int form = 0; form < 3; form++)
            for (int size = 0; size < 66; size++)
                for (size_t s = 0; s < sizeof some / sizeof *some; s++)
                    for (int transposed = 0; transposed < 2; transposed++) {
                        const int other = some[(s + 3) % 9], limit = form == 2 ? 13 : 65;
                        if (other > limit || some[s] > limit) continue;
                        check_product(v, &f, some[s], size, other, form, transposed);
                        if (size <= limit) check_product(v, &f, size, some[s], other, form, transposed);
                        if (size <= limit) check_product(v, &f, some[s], other, size, form, transposed);
                    }
        free(f.a), free(f.b), free(f.c), free(f.init);
    }
}

// A deep product: the transposed form goes through several pieces of its scratch.
static void deep_transposed_products_keep_the_order(void **state) {
    (void)state;
    enum { DEPTH = 200, N = 40, M = 3 };
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        void *a = random_numbers(v, M * DEPTH, 1), *b = random_numbers(v, N * DEPTH, 2),
             *c = random_numbers(v, M * N, 3);
        v->k->product_transposed(&(dpcri_product){.m = M,
                                                  .n = N,
                                                  .depth = DEPTH,
                                                  .a = a,
                                                  .a_row = DEPTH,
                                                  .a_col = 1,
                                                  .b = b,
                                                  .b_row = DEPTH,
                                                  .c = c,
                                                  .c_row = N});
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                double wanted = 0;
                for (int k = 0; k < DEPTH; k++)
                    wanted = multiply_add(v, get(v, a, i * DEPTH + k), get(v, b, j * DEPTH + k), wanted);
                assert_true(get(v, c, i * N + j) == wanted);
            }
        free(a), free(b), free(c);
    }
}

// Few rows, or few terms, of wide products go by rows of b or c in blocks of columns: the order of the sums is the
// same.
static void few_rows_of_wide_products_keep_the_order(void **state) {
    (void)state;
    enum { WIDE = 1101, DEEP = 37, MOST = 6 };
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        void *a = random_numbers(v, MOST * WIDE, 1), *b = random_numbers(v, DEEP * WIDE, 2),
             *start = random_numbers(v, MOST * WIDE, 3);
        for (int64_t m = 1; m <= MOST; m++)
            for (int form = 0; form < 4; form++) {  // wide, tall by terms, transposed b, and few terms
                const int64_t n = form == 1 ? DEEP : WIDE, depth = form == 1 ? WIDE : form == 3 ? m : DEEP;
                const int64_t rows = form == 3 ? MOST : m, b_row = form == 2 ? DEEP : n;
                void *c = copy_of(v, start, MOST * WIDE);
                const dpcri_product p = {.m = rows,
                                         .n = n,
                                         .depth = depth,
                                         .a = a,
                                         .a_row = form == 3 ? 1 : depth,
                                         .a_col = form == 3 ? MOST : 1,
                                         .b = b,
                                         .b_row = b_row,
                                         .init = m % 2 ? c : NULL,
                                         .init_row = n,
                                         .c = c,
                                         .c_row = n};
                (form == 2 ? v->k->product_transposed : v->k->product)(&p);
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t j = 0; j < n; j++) {
                        double wanted = m % 2 ? get(v, start, i * n + j) : 0;
                        for (int64_t k = 0; k < depth; k++)
                            wanted = multiply_add(v, get(v, a, i * p.a_row + k * p.a_col),
                                                  get(v, b, form == 2 ? j * b_row + k : k * b_row + j), wanted);
                        if (get(v, c, i * n + j) != wanted)
                            fail_msg("%s element %zu m %d form %d: c[%d][%d]", level_names[v->level], v->k->element,
                                     (int)m, form, (int)i, (int)j);
                    }
                free(c);
            }
        free(a), free(b), free(start);
    }
}

// A large b with its rows far apart is copied in blocks of terms and columns: the order of the sums is the same, and
// nothing beside c is written.
static void large_products_keep_the_order(void **state) {
    (void)state;
    enum { M = 21, N = 205, DEPTH = 270, B_ROW = 1031, C_ROW = N + 5 };
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        void *a = random_numbers(v, 2 * M * DEPTH, 1), *b = random_numbers(v, DEPTH * B_ROW, 2),
             *start = random_numbers(v, M * C_ROW, 3);
        for (int form = 0; form < 3; form++)        // a by rows, transposed, odd strides
            for (int from = 0; from < 3; from++) {  // from 0, added to c, a bias row
                void *c = copy_of(v, start, M * C_ROW);
                const dpcri_product p = {.m = M,
                                         .n = N,
                                         .depth = DEPTH,
                                         .a = a,
                                         .a_row = form == 1 ? 1 : (form == 2 ? 2 : 1) * DEPTH,
                                         .a_col = form == 1   ? M
                                                  : form == 2 ? 2
                                                              : 1,
                                         .b = b,
                                         .b_row = B_ROW,
                                         .init = from == 1   ? c
                                                 : from == 2 ? start
                                                             : NULL,
                                         .init_row = from == 1 ? C_ROW : 0,
                                         .c = c,
                                         .c_row = C_ROW};
                v->k->product(&p);
                for (int64_t i = 0; i < M; i++)
                    for (int64_t j = 0; j < C_ROW; j++) {
                        double wanted = from == 0 ? 0 : get(v, start, from == 1 ? i * C_ROW + j : j);
                        if (j >= N) wanted = get(v, start, i * C_ROW + j);
                        for (int64_t k = 0; j < N && k < DEPTH; k++)
                            wanted =
                                multiply_add(v, get(v, a, i * p.a_row + k * p.a_col), get(v, b, k * B_ROW + j), wanted);
                        if (get(v, c, i * C_ROW + j) != wanted)
                            fail_msg("%s element %zu form %d from %d: c[%d][%d]", level_names[v->level], v->k->element,
                                     form, from, (int)i, (int)j);
                    }
                free(c);
            }
        free(a), free(b), free(start);
    }
}

// Layers in blocks of columns, and the gradients of few rows, against their parts.
static void few_rows_of_wide_layers_equal_their_parts(void **state) {
    (void)state;
    enum { W = 1056, MOST = 5, PAD = W + 9 };  // whole tiles of every level for the gradient
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        const dpcri_nn_kernels *k = v->k;
        void *in = random_numbers(v, MOST * PAD, 1), *weight = random_numbers(v, W * W, 2),
             *bias = random_numbers(v, W, 3), *slope = random_numbers(v, MOST * W, 4);
        for (int rows = 1; rows <= MOST; rows++)
            for (int width = W; width > W - 30; width -= 21) {  // the gradient's whole, and part of a vector
                const int in_row = width + 3, out_row = width + 5, slope_row = width + 9;
                const size_t row_bytes = (size_t)width * k->element;
                void *u = calloc(W, k->element), *y = calloc(W, k->element), *d = calloc(W, k->element),
                     *out = calloc(MOST * PAD, k->element), *own = calloc(MOST * PAD, k->element),
                     *e = calloc(MOST * W, k->element);
                k->layer(&(dpcri_layer){.rows = rows,
                                        .depth = width,
                                        .width = width,
                                        .activation = DPCRI_ACT_TANH,
                                        .weight = weight,
                                        .bias = bias,
                                        .in = in,
                                        .in_row = in_row,
                                        .residual = in,
                                        .residual_row = in_row,
                                        .scale = 0.5,
                                        .out = out,
                                        .out_row = out_row,
                                        .slope = own,
                                        .slope_row = slope_row,
                                        .next = {{weight, width, width, 0}}});
                for (int i = 0; i < MOST; i++) {  // one by one; beyond the rows, and behind each, nothing is written
                    const void *row = (char *)in + (size_t)(i * in_row) * k->element;
                    k->product(&(dpcri_product){.m = 1,
                                                .n = width,
                                                .depth = width,
                                                .a = row,
                                                .a_row = width,
                                                .a_col = 1,
                                                .b = weight,
                                                .b_row = width,
                                                .init = bias,
                                                .c = u,
                                                .c_row = width});
                    k->activate(DPCRI_ACT_TANH, width, u, y, d);
                    k->multiply_add(1, width, row, width, 0.5, y, width, NULL, 0, y, width);
                    if (i >= rows) memset(y, 0, row_bytes), memset(d, 0, row_bytes);
                    assert_memory_equal((char *)out + (size_t)(i * out_row) * k->element, y, row_bytes);
                    assert_memory_equal((char *)own + (size_t)(i * slope_row) * k->element, d, row_bytes);
                    for (int j = width; j < out_row; j++) assert_true(get(v, out, i * out_row + j) == 0);
                    for (int j = width; j < slope_row; j++) assert_true(get(v, own, i * slope_row + j) == 0);
                }
                void *gradients[2], *sums[2];
                for (int fused = 0; fused < 2; fused++) {
                    gradients[fused] = copy_of(v, weight, W * W), sums[fused] = copy_of(v, bias, W);
                    const dpcri_slope_pass pass = {.rows = rows,
                                                   .width = width,
                                                   .scale = 0.5,
                                                   .g = out,
                                                   .g_row = out_row,
                                                   .slope = slope,
                                                   .slope_row = width,
                                                   .e = e,
                                                   .e_row = width,
                                                   .sum = sums[fused]};
                    dpcri_product p = {.m = width,
                                       .n = width,
                                       .depth = rows,
                                       .a = in,
                                       .a_row = 1,
                                       .a_col = width,
                                       .b = e,
                                       .b_row = width,
                                       .init = gradients[fused],
                                       .init_row = width,
                                       .c = gradients[fused],
                                       .c_row = width};
                    if (fused) {
                        k->gradient(&pass, &p);
                        continue;
                    }
                    k->slope_pass(&pass);
                    for (p.depth = 1; p.depth <= rows; p.depth++) {  // term by term, row by row of the gradient
                        dpcri_product term = p;
                        term.depth = 1, term.m = 1;
                        for (int i = 0; i < width; i++) {
                            const int64_t at = (p.depth - 1) * width;
                            term.a = (char *)in + (size_t)(at + i) * k->element;
                            term.b = (char *)e + (size_t)at * k->element;
                            term.c = (char *)gradients[0] + (size_t)(i * width) * k->element, term.init = term.c;
                            k->product(&term);
                        }
                    }
                }
                assert_memory_equal(gradients[0], gradients[1], W * W * k->element);
                assert_memory_equal(sums[0], sums[1], W * k->element);
                for (int fused = 0; fused < 2; fused++) free(gradients[fused]), free(sums[fused]);
                free(u), free(y), free(d), free(out), free(own), free(e);
            }
        free(in), free(weight), free(bias), free(slope);
    }
}

// The sums on the way have the order of the rows, and the product is the one without them.
static void summing_products_equal_their_parts(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 7, 8, 16, 24, 33, 64};
    enum { SIZES = sizeof sizes / sizeof sizes[0], MOST = 9 };
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        void *a = random_numbers(v, MOST * ROW, 1), *b = random_numbers(v, MOST * ROW, 2),
             *start = random_numbers(v, CELLS, 3), *sums = random_numbers(v, ROW, 4);
        for (int at = 0; at < 2 * SIZES * SIZES; at++) {
            const int64_t m = sizes[at / 2 / SIZES], n = sizes[at / 2 % SIZES], depth = at % 2 ? MOST : 3;
            void *c[2] = {copy_of(v, start, CELLS), copy_of(v, start, CELLS)}, *got = copy_of(v, sums, ROW);
            for (int summing = 0; summing < 2; summing++) {
                const dpcri_product p = {.m = m,
                                         .n = n,
                                         .depth = depth,
                                         .a = a,
                                         .a_row = 1,
                                         .a_col = ROW,
                                         .b = b,
                                         .b_row = ROW,
                                         .init = c[summing],
                                         .init_row = ROW,
                                         .c = c[summing],
                                         .c_row = ROW};
                if (summing)
                    v->k->product_summing(&p, got);
                else
                    v->k->product(&p);
            }
            assert_memory_equal(c[0], c[1], CELLS * v->k->element);
            for (int64_t i = 0; i < ROW; i++) {
                double wanted = get(v, sums, i);
                for (int64_t k = 0; i < m && k < depth; k++) {
                    wanted += get(v, a, k * ROW + i);
                    if (v->dtype == DPCR_F32) wanted = (double)(float)wanted;
                }
                assert_true(get(v, got, i) == wanted);
            }
            free(c[0]), free(c[1]), free(got);
        }
        free(a), free(b), free(start), free(sums);
    }
}

static void transposes_move_every_element(void **state) {
    (void)state;
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        void *a = random_numbers(v, CELLS, 1), *c = random_numbers(v, CELLS, 2);
        for (int rows = 0; rows < 66; rows++)
            for (int cols = 0; cols < 66; cols += cols < 18 || cols > 60 ? 1 : 7) {
                void *t = copy_of(v, c, CELLS);
                v->k->transpose(rows, cols, a, ROW, t, ROW);
                for (int i = 0; i < SIDE; i++)
                    for (int j = 0; j < SIDE; j++)
                        assert_true(get(v, t, j * ROW + i) ==
                                    (i < rows && j < cols ? get(v, a, i * ROW + j) : get(v, c, j * ROW + i)));
                free(t);
            }
        free(a), free(c);
    }
}

// out, slope of the fused layer equal product, activation, multiply_add one after the other, and no row depends on
// others.
static void fused_layers_equal_their_parts(void **state) {
    (void)state;
    static const int all_rows[] = {0, 1, 2, 3, 5, 8, 13, 16, 21};
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        const dpcri_nn_kernels *k = v->k;
        void *in = random_numbers(v, CELLS, 1), *weight = random_numbers(v, 66 * 66, 2),
             *bias = random_numbers(v, 66, 3);
        for (int w = 1; w < 66; w += w < 36 ? 1 : 6)
            for (size_t s = 0; s < sizeof all_rows / sizeof *all_rows; s++)
                for (int act = 0; act < DPCRI_ACT_COUNT; act++) {
                    const int rows = all_rows[s], residual = (w + act) % 2;
                    void *u = calloc(CELLS, k->element), *d = calloc(CELLS, k->element), *y = calloc(CELLS, k->element),
                         *out = calloc(CELLS, k->element), *slope = calloc(CELLS, k->element);
                    k->product(&(dpcri_product){.m = rows,
                                                .n = w,
                                                .depth = w,
                                                .a = in,
                                                .a_row = ROW,
                                                .a_col = 1,
                                                .b = weight,
                                                .b_row = w,
                                                .init = bias,
                                                .c = u,
                                                .c_row = ROW});
                    if (k->eights && w == 8) eights(rows, in, ROW, weight, bias, u, ROW);
                    k->activate(act, ROW * rows, u, y, d);
                    k->multiply_add(rows, w, residual ? in : NULL, ROW, residual ? 0.3 : 1, y, ROW, NULL, 0, y, ROW);
                    const int head = rows / 3;  // in two pieces
                    for (int piece = 0; piece < 2; piece++) {
                        const size_t at = (size_t)(piece ? head : 0) * ROW * k->element;
                        k->layer(&(dpcri_layer){.rows = piece ? rows - head : head,
                                                .depth = w,
                                                .width = w,
                                                .activation = act,
                                                .weight = weight,
                                                .bias = bias,
                                                .in = (char *)in + at,
                                                .in_row = ROW,
                                                .residual = residual ? (char *)in + at : NULL,
                                                .residual_row = ROW,
                                                .scale = 0.3,
                                                .out = (char *)out + at,
                                                .out_row = ROW,
                                                .slope = (char *)slope + at,
                                                .slope_row = ROW,
                                                .next = {{weight, 66, 66, 0}}});
                    }
                    for (int i = 0; i < rows; i++)
                        for (int j = 0; j < ROW; j++) {
                            const int64_t at = i * ROW + j;
                            assert_true(get(v, out, at) == (j < w ? get(v, y, at) : 0));
                            assert_true(get(v, slope, at) == (j < w ? get(v, d, at) : 0));
                        }
                    free(u), free(d), free(y), free(out), free(slope);
                }
        free(in), free(weight), free(bias);
    }
}

static void slope_passes_equal_the_loop(void **state) {
    (void)state;
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        void *g0 = random_numbers(v, CELLS, 1), *direct = random_numbers(v, CELLS, 2),
             *slope = random_numbers(v, CELLS, 3), *start = random_numbers(v, ROW, 4);
        for (int w = 0; w < 66; w++) {
            const int rows = (w * 7) % 20;
            void *g = copy_of(v, g0, CELLS), *kept = copy_of(v, direct, CELLS), *e = calloc(CELLS, v->k->element),
                 *sum = copy_of(v, start, ROW);
            v->k->slope_pass(&(dpcri_slope_pass){.rows = rows,
                                                 .width = w,
                                                 .scale = 0.5,
                                                 .g = g,
                                                 .g_row = ROW,
                                                 .direct = kept,
                                                 .direct_row = ROW,
                                                 .kept = kept,
                                                 .kept_row = ROW,
                                                 .slope = slope,
                                                 .slope_row = ROW,
                                                 .e = e,
                                                 .e_row = ROW,
                                                 .sum = sum});
            for (int j = 0; j < ROW; j++) {
                double total = get(v, start, j);
                for (int i = 0; i < rows && j < w; i++) {
                    const int64_t at = i * ROW + j;
                    const double s = v->dtype == DPCR_F32 ? (double)((float)get(v, g0, at) + (float)get(v, direct, at))
                                                          : get(v, g0, at) + get(v, direct, at);
                    assert_true(get(v, g, at) == s && get(v, kept, at) == s);
                    const double x = v->dtype == DPCR_F32 ? (double)(0.5f * (float)s * (float)get(v, slope, at))
                                                          : 0.5 * s * get(v, slope, at);
                    assert_true(get(v, e, at) == x);
                    total = v->dtype == DPCR_F32 ? (double)((float)total + (float)x) : total + x;
                }
                assert_true(get(v, sum, j) == total);
            }
            free(g), free(kept), free(e), free(sum);
        }
        free(g0), free(direct), free(slope), free(start);
    }
}

// ---- activations ----

static long double exact_value(int act, long double x) {
    switch (act) {
        case DPCRI_ACT_IDENTITY: return x;
        case DPCRI_ACT_RELU: return isnan(x) ? x : x > 0 ? x : 0;
        case DPCRI_ACT_TANH: return tanhl(x);
        case DPCRI_ACT_SIGMOID: return x >= 0 ? 1 / (1 + expl(-x)) : expl(x) / (1 + expl(x));
        case DPCRI_ACT_GELU:
            return isinf(x) ? (x > 0 ? x : 0) : 0.5L * x * erfcl(-x * 0.70710678118654752440084436210485L);
        default: return isinf(x) ? (x > 0 ? x : 0) : x >= 0 ? x / (1 + expl(-x)) : x * expl(x) / (1 + expl(x));
    }
}

static long double exact_slope(int act, long double x) {
    const long double pi2 = 6.28318530717958647692528676655901L, s = exact_value(DPCRI_ACT_SIGMOID, x);
    const long double other = exact_value(DPCRI_ACT_SIGMOID, -x);
    switch (act) {
        case DPCRI_ACT_IDENTITY: return 1;
        case DPCRI_ACT_RELU: return x > 0;
        case DPCRI_ACT_TANH: return 1 - tanhl(x) * tanhl(x);
        case DPCRI_ACT_SIGMOID: return s * other;
        case DPCRI_ACT_GELU:
            return isinf(x)
                       ? x > 0
                       : 0.5L * erfcl(-x * 0.70710678118654752440084436210485L) + x * expl(-x * x / 2) / sqrtl(pi2);
        default: return isinf(x) ? x > 0 : s * (1 + x * other);
    }
}

static long double ulp_of(const variant *v, long double x) {
    const int digits = v->dtype == DPCR_F32 ? 24 : 53, least = v->dtype == DPCR_F32 ? -149 : -1074;
    int exponent = 0;
    if (x == 0) return ldexpl(1, least);
    frexpl(x, &exponent);
    return ldexpl(1, exponent - digits > least ? exponent - digits : least);
}

// Largest error of the value in ulp, of the slope in units of eps (absolute: it is a factor near 0..1).
static void measure(const variant *v, int act, double *value_ulp, double *slope_eps) {
    enum { COUNT = 60000 };
    const double eps = v->dtype == DPCR_F32 ? 0x1p-24 : 0x1p-53;
    void *x = malloc(COUNT * 8), *y = malloc(COUNT * 8), *d = malloc(COUNT * 8);
    for (int i = 0; i < COUNT; i++) {
        const double u = dpcri_random_uniform(SEED, DPCRI_STREAM_DATA + 9, (uint64_t)i), sign = i % 2 ? -1 : 1;
        const double lowest = v->dtype == DPCR_F32 ? -103 : -744;
        set(v, x, i,
            i % 3 == 0   ? sign * 10 * u
            : i % 3 == 1 ? sign * exp(lowest + u * (6.6 - lowest))
                         : sign * 110 * u);
    }
    v->k->activate(act, COUNT, x, y, d);
    *value_ulp = *slope_eps = 0;
    for (int i = 0; i < COUNT; i++) {
        const long double t = get(v, x, i), exact = exact_value(act, t), slope = exact_slope(act, t);
        const double value_error = (double)(fabsl(get(v, y, i) - exact) / ulp_of(v, exact));
        const double slope_error = (double)fabsl(get(v, d, i) - slope) / eps;
        // far from its zero GELU's slope keeps its digits, however small it is
        if (act == DPCRI_ACT_GELU && t < -2 && fabsl(get(v, d, i) - slope) > 10 * ulp_of(v, slope))
            fail_msg("%s, %zu bytes: slope of GELU at %Lg: %g", level_names[v->level], v->k->element, t, get(v, d, i));
        if (value_error > *value_ulp) *value_ulp = value_error;
        if (slope_error > *slope_eps) *slope_eps = slope_error;
    }
    free(x), free(y), free(d);
}

static void activations_are_accurate(void **state) {
    (void)state;
    static const char *const names[] = {"identity", "relu", "tanh", "sigmoid", "gelu", "silu"};
    static const double value_bound[] = {0, 0, 4, 3, 5, 4}, slope_bound[] = {0, 0, 9, 4, 3, 8};
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++)
        for (int act = 0; act < DPCRI_ACT_COUNT; act++) {
            double value = 0, slope = 0;
            measure(&list[q], act, &value, &slope);
            print_message("%-8s %zu bytes %-8s value %.2f ulp, slope %.2f eps\n", level_names[list[q].level],
                          list[q].k->element, names[act], value, slope);
            assert_true(value <= value_bound[act]);
            assert_true(slope <= slope_bound[act]);
        }
}

static void activations_keep_the_hazards(void **state) {
    (void)state;
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        const double least = v->dtype == DPCR_F32 ? 0x1p-149 : 0x1p-1074,
                     most = v->dtype == DPCR_F32 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
        const double x[] = {NAN,  INFINITY, -INFINITY, 0.0, -0.0, least, -least, most, -most,
                            -100, 100,      -700,      20,  -20,  1,     -1,     0.5};
        enum { COUNT = sizeof x / sizeof *x };
        double in[COUNT], y[COUNT], d[COUNT];
        for (int act = 0; act < DPCRI_ACT_COUNT; act++) {
            for (int i = 0; i < COUNT; i++) set(v, in, i, x[i]);
            v->k->activate(act, COUNT, in, y, d);
            assert_true(isnan(get(v, y, 0)));
            assert_true(act <= DPCRI_ACT_RELU || isnan(get(v, d, 0)));
            for (int i = 1; i < COUNT; i++) {
                const long double exact = exact_value(act, get(v, in, i)), error = get(v, y, i) - exact;
                const bool right = isinf(exact) ? get(v, y, i) == (double)exact : fabsl(error) <= 4 * ulp_of(v, exact);
                if (!right || !(fabsl(get(v, d, i) - exact_slope(act, x[i])) <= 1e-6))
                    fail_msg("%s, %zu bytes, activation %d of %g: %g, slope %g", level_names[v->level], v->k->element,
                             act, x[i], get(v, y, i), get(v, d, i));
            }
            // What is saturated is so to the bit: a closed gate lets nothing through, however many steps there are.
            for (int i = 1; i < COUNT && act == DPCRI_ACT_TANH; i++)
                assert_true(fabs(x[i]) < 20 || (get(v, y, i) == copysign(1, x[i]) && get(v, d, i) == 0));
            if (act == DPCRI_ACT_TANH || act == DPCRI_ACT_IDENTITY) {
                assert_false(signbit(get(v, y, 3)));
                assert_true(signbit(get(v, y, 4)));
            }
        }
    }
}

// The same number gives the same bits in every lane, in tails too.
static void activations_do_not_depend_on_the_lane(void **state) {
    (void)state;
    variant list[6];
    const int count = variants(list);
    for (int q = 0; q < count; q++) {
        const variant *v = &list[q];
        void *x = random_numbers(v, 64, 5);
        for (int act = 0; act < DPCRI_ACT_COUNT; act++) {
            double all[64], slopes[64];
            v->k->activate(act, 64, x, all, slopes);
            for (int i = 0; i < 64; i++)
                for (int n = 1; n < 20 && i + n <= 64; n++) {
                    double y[20], d[20];
                    v->k->activate(act, n, (char *)x + (size_t)i * v->k->element, y, d);
                    assert_memory_equal(y, (char *)all + (size_t)i * v->k->element, (size_t)n * v->k->element);
                    assert_memory_equal(d, (char *)slopes + (size_t)i * v->k->element, (size_t)n * v->k->element);
                }
        }
        free(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_the_loop),
        cmocka_unit_test(deep_transposed_products_keep_the_order),
        cmocka_unit_test(few_rows_of_wide_products_keep_the_order),
        cmocka_unit_test(large_products_keep_the_order),
        cmocka_unit_test(few_rows_of_wide_layers_equal_their_parts),
        cmocka_unit_test(summing_products_equal_their_parts),
        cmocka_unit_test(transposes_move_every_element),
        cmocka_unit_test(fused_layers_equal_their_parts),
        cmocka_unit_test(slope_passes_equal_the_loop),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(activations_keep_the_hazards),
        cmocka_unit_test(activations_do_not_depend_on_the_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
