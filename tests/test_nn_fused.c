// SPDX-License-Identifier: MIT
// The fused kernels of network layers against the separate ones: the same bits, for packed and strided rows, in place,
// with every combination of operands, any number of rows, at every instruction set level. Nothing is written beyond.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "eights.h"
#include "kern/nn_kernels.h"
#include "noise.h"

enum { ROWS = 41, WIDEST = 80, ROOM = ROWS * (WIDEST + 3) + 64, SQUARE = WIDEST * (WIDEST + 1) };

typedef struct buffers {
    float in[ROOM], strided[ROOM], weight[SQUARE], u[ROOM], y[ROOM], slope[ROOM];
    float out1[ROOM], out2[ROOM], slope1[ROOM], slope2[ROOM];
    float g1[ROOM], g2[ROOM], e1[ROOM], e2[ROOM], kept1[ROOM], kept2[ROOM], sums1[SQUARE], sums2[SQUARE];
} buffers;

static void fill(float *x, size_t n, float size) { noise_fill(DPCR_F32, x, (int64_t)n, size / 2); }

static void same_rows(const char *what, const float *a, int64_t a_row, const float *b, int64_t b_row, int64_t rows,
                      int64_t w) {
    for (int64_t i = 0; i < rows; i++)
        if (memcmp(a + i * a_row, b + i * b_row, (size_t)w * sizeof *a) != 0)
            fail_msg("%s, %d rows, width %d: row %d differs", what, (int)rows, (int)w, (int)i);
}

static void untouched(const char *what, const float *x, int64_t from) {
    for (int64_t i = from; i < ROOM; i++)
        if (memcmp(&x[i], "\7\7\7\7", 4) != 0) fail_msg("%s: written beyond its rows", what);
}

// u = in W + b; y = in + scale act(u), or act(u); slope = act'(u), one kernel after the other.
static void layer_apart(const dpcri_nn_kernels *k, buffers *b, int64_t rows, int64_t w, int activation, int residual) {
    k->product(&(dpcri_product){.m = rows,
                                .n = w,
                                .depth = w,
                                .a = b->in,
                                .a_row = w,
                                .a_col = 1,
                                .b = b->weight,
                                .b_row = w,
                                .init = b->weight + w * w,
                                .c = b->u,
                                .c_row = w});
    if (k->eights && w == 8) eights(rows, b->in, w, b->weight, b->weight + w * w, b->u, w);
    k->activate(activation, rows * w, b->u, b->y, b->slope);
    if (residual) k->multiply_add(rows, w, b->in, w, 0.03, b->y, w, NULL, 0, b->y, w);
}

// Fetched meanwhile, mode & 8: a line a row.
static dpcri_prefetch what_comes_next(const buffers *b, int64_t w, int mode) {
    return mode & 8 ? (dpcri_prefetch){b->strided, w, w < 16 ? w : 16, 0} : (dpcri_prefetch){0};
}

static void layers(const dpcri_nn_kernels *k, buffers *b, int64_t rows, int64_t w, int activation, int mode) {
    const int64_t stride = w + 3;
    fill(b->in, ROOM, 2), fill(b->weight, SQUARE, 1);
    for (int64_t i = 0; i < rows; i++) memcpy(b->strided + i * stride, b->in + i * w, (size_t)w * sizeof(float));
    memset(b->out1, 7, sizeof b->out1), memset(b->slope1, 7, sizeof b->slope1);
    const dpcri_layer packed = {.rows = rows,
                                .depth = w,
                                .width = w,
                                .activation = activation,
                                .weight = b->weight,
                                .bias = b->weight + w * w,
                                .in = b->in,
                                .in_row = w,
                                .residual = mode & 1 ? b->in : NULL,
                                .residual_row = w,
                                .scale = mode & 1 ? 0.03 : 1,
                                .out = mode & 2 ? b->out1 : NULL,
                                .out_row = w,
                                .slope = mode & 4 ? b->slope1 : NULL,
                                .slope_row = w,
                                .next = {what_comes_next(b, w, 8)}};
    dpcri_layer apart = packed;
    apart.next[0].data = NULL;
    apart.in = b->strided, apart.in_row = stride, apart.residual = mode & 1 ? b->strided : NULL,
    apart.residual_row = stride;
    apart.out = mode & 2 ? b->out2 : NULL, apart.out_row = stride, apart.slope = mode & 4 ? b->slope2 : NULL,
    apart.slope_row = stride;
    k->layer(&packed), k->layer(&apart);
    layer_apart(k, b, rows, w, activation, mode & 1);
    if (mode & 2)
        same_rows("layer", b->out1, w, b->y, w, rows, w),
            same_rows("layer, strided", b->out2, stride, b->y, w, rows, w);
    if (mode & 4)
        same_rows("slope", b->slope1, w, b->slope, w, rows, w),
            same_rows("slope, strided", b->slope2, stride, b->slope, w, rows, w);
    untouched("layer", b->out1, mode & 2 ? rows * w : 0), untouched("slope", b->slope1, mode & 4 ? rows * w : 0);
    if (mode != 7 || w > k->columns) return;
    dpcri_layer in_place = packed;
    memcpy(b->kept1, b->in, sizeof b->in);
    in_place.in = in_place.residual = in_place.out = b->kept1;
    k->layer(&in_place);
    same_rows("layer in place", b->kept1, w, b->y, w, rows, w);
}

static void adjoints(const dpcri_nn_kernels *k, buffers *b, int64_t rows, int64_t w, int mode) {
    fill(b->g1, ROOM, 1), fill(b->slope1, ROOM, 1);
    memcpy(b->g2, b->g1, sizeof b->g1), memcpy(b->e1, b->slope1, sizeof b->e1), memcpy(b->e2, b->slope1, sizeof b->e2);
    memset(b->kept1, 0, sizeof b->kept1), memset(b->kept2, 0, sizeof b->kept2);
    dpcri_slope_pass pass = {.rows = rows,
                             .width = w,
                             .scale = 0.3,
                             .g = b->g1,
                             .g_row = w,
                             .slope = b->e1,
                             .slope_row = w,
                             .e = b->e1,
                             .e_row = w,
                             .kept = mode & 2 ? b->kept1 : NULL,
                             .kept_row = w,
                             .direct = mode & 4 ? b->in : NULL,
                             .direct_row = w,
                             .next = {what_comes_next(b, w, mode)}};
    dpcri_product product = {.m = rows,
                             .n = w,
                             .depth = w,
                             .a = b->e1,
                             .a_row = w,
                             .a_col = 1,
                             .b = b->weight,
                             .b_row = w,
                             .init = mode & 1 ? b->g1 : NULL,
                             .init_row = w,
                             .c = b->g1,
                             .c_row = w};
    k->adjoint(&pass, &product);
    pass.g = b->g2, pass.slope = pass.e = b->e2, pass.kept = mode & 2 ? b->kept2 : NULL, pass.next[0].data = NULL;
    product.a = b->e2, product.c = b->g2, product.init = mode & 1 ? b->g2 : NULL;
    k->slope_pass(&pass), k->product_transposed(&product);
    same_rows("adjoint", b->g1, w, b->g2, w, rows, w), same_rows("adjoint's e", b->e1, w, b->e2, w, rows, w);
    same_rows("adjoint's kept", b->kept1, w, b->kept2, w, rows, w);
}

static void gradients(const dpcri_nn_kernels *k, buffers *b, int64_t rows, int64_t w, int mode) {
    fill(b->sums1, SQUARE, 1);
    memcpy(b->sums2, b->sums1, sizeof b->sums1);
    dpcri_slope_pass pass = {.rows = rows,
                             .width = w,
                             .scale = mode & 1 ? 0.3 : 1,
                             .g = b->g1,
                             .g_row = w,
                             .slope = mode & 1 ? b->slope1 : NULL,
                             .slope_row = w,
                             .e = mode & 1 ? b->e1 : NULL,
                             .e_row = w,
                             .sum = b->sums1 + w * w,
                             .next = {what_comes_next(b, w, mode)}};
    dpcri_product product = {.m = w,
                             .n = w,
                             .depth = rows,
                             .a = b->in,
                             .a_row = 1,
                             .a_col = w,
                             .b = mode & 1 ? b->e1 : b->g1,
                             .b_row = w,
                             .init = b->sums1,
                             .init_row = w,
                             .c = b->sums1,
                             .c_row = w};
    k->gradient(&pass, &product);
    pass.sum = b->sums2 + w * w, product.init = product.c = b->sums2, pass.next[0].data = NULL;
    k->slope_pass(&pass), k->product(&product);
    same_rows("gradient", b->sums1, w, b->sums2, w, w + 1, w);
}

static void fused_equals_separate(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 5, 8, 16, 17, 31, 32, 33, 48, 64, 80};
    static const int activations[] = {DPCRI_ACT_TANH, DPCRI_ACT_RELU, DPCRI_ACT_SILU};
    buffers *b = calloc(1, sizeof *b);
    for (int level = 0; level < DPCRI_ISA_COUNT; level++) {
        const dpcri_nn_kernels *k = dpcri_nn_kernels_at((dpcri_isa)level, DPCR_F32);
        for (size_t w = 0; k && w < sizeof widths / sizeof *widths; w++)
            for (int64_t rows = 0; rows <= ROWS; rows += rows < 18 ? 1 : 5)
                for (int mode = 0; mode < 16; mode++) {
                    for (int a = 0; a < 3 && mode < 8; a++) layers(k, b, rows, widths[w], activations[a], mode);
                    adjoints(k, b, rows, widths[w], mode);
                    gradients(k, b, rows, widths[w], mode);
                }
    }
    free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fused_equals_separate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
