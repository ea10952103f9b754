// SPDX-License-Identifier: MIT
// Linear kernels with every array against an inaccessible page, at its end or at its beginning: a kernel that reads or
// writes one element outside ends this program. All operations, structures and widths, every level, float and double.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <stdbool.h>

#include "kern/kern.h"

enum { A, X, R, Y, USES, MOST_BYTES = 1 << 20 };
#include "guarded.h"

// `count` elements that end, or begin, at the guarded page; small numbers in them.
static void *place(int which, int64_t count, dpcr_dtype dtype, bool at_end) {
    char *data = guarded(which, (size_t)count * dpcr_dtype_size(dtype), !at_end);
    for (int64_t i = 0; i < count; i++) put_number(dtype, data, i, 0.01 * (double)(i % 7));
    return data;
}

// apart: sequence by sequence, elsewhere step by step.
static void run(dpcr_dtype dtype, int level, dpcri_operation o, const dpcr_transition *t, int64_t n, int64_t rows,
                bool at_end, bool apart) {
    const bool transposed = o == DPCRI_APPLY_T, order = o == DPCRI_SERIAL || o == DPCRI_SERIAL_T;
    const bool product = o == DPCRI_PRODUCT || o == DPCRI_PRODUCT_T, squares = o >= DPCRI_COMPOSE;
    const int64_t values = dpcr_transition_values(t), w = t->rows, cols = t->cols;
    const int64_t out = squares ? values : transposed ? cols : w;
    const int64_t in = o == DPCRI_COMPOSE               ? values
                       : transposed || o == DPCRI_OUTER ? w
                                                        : cols,
                  r = o == DPCRI_OUTER ? w : out;
    const int64_t step = apart ? 1 : rows, row = apart ? n : 1;
    const int64_t lines = n * rows, x_lines = order ? rows : lines, y_lines = product ? rows : lines;
    dpcri_span span = {.n = n, .rows = rows, .w = w, .cols = cols, .block = t->block};
    span.a = place(A, lines * values, dtype, at_end), span.a_step = step * values, span.a_row = row * values;
    span.x = place(X, x_lines * in, dtype, at_end), span.x_step = order ? 0 : step * in,
    span.x_row = order ? in : row * in;
    span.r = place(R, product ? values : lines * r, dtype, at_end), span.r_step = product ? 0 : step * r,
    span.r_row = product ? 0 : row * r;
    span.y = place(Y, y_lines * out, dtype, at_end), span.y_step = product ? 0 : step * out,
    span.y_row = product ? out : row * out;
    dpcri_kernels_at((dpcri_isa)level, dtype)->table[o][dpcri_kernel_form(t)](&span);
    if (squares) return;
    // the forms without r, and, in order, without an initial state
    if (order)
        span.x = NULL;
    else
        span.r = NULL;
    dpcri_kernels_at((dpcri_isa)level, dtype)->table[o][dpcri_kernel_form(t)](&span);
}

static void every_operation(const dpcr_transition *t) {
    static const int64_t lengths[] = {1, 3}, batches[] = {1, 2, 5, 11};
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int o = 0; o < DPCRI_OPERATION_COUNT; o++)
            for (int i = 0; i < 16; i++) {
                if (t->rows != t->cols && o > DPCRI_APPLY_T) continue;
                if (t->rows > 24 && i % 4 == 3) continue;
                for (int where = 0; where < 4; where++)
                    run(i < 8 ? DPCR_F32 : DPCR_F64, level, (dpcri_operation)o, t, lengths[i / 4 % 2], batches[i % 4],
                        where % 2, where / 2);
            }
}

static void nothing_outside(void **state) {
    (void)state;
    for (int structure = DPCR_ZERO; structure <= DPCR_DENSE; structure++)
        for (int64_t w = 1; w <= 40; w++) {
            const dpcr_transition t = dpcr_transition_square((dpcr_structure)structure, w,
                                                             w % 4 == 0   ? 4
                                                             : w % 3 == 0 ? 3
                                                                          : 1);
            every_operation(&t);
        }
    for (int64_t k = 2; k <= 4; k++)
        for (int64_t w = k; w <= 36; w += k) {
            const dpcr_transition t = dpcr_transition_square(DPCR_BLOCK, w, k);
            every_operation(&t);
        }
    for (int64_t rows = 1; rows <= 35; rows += 2)
        for (int64_t cols = 1; cols <= 35; cols += 3) {
            const dpcr_transition t = {.structure = DPCR_DENSE, .rows = rows, .cols = cols};
            every_operation(&t);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_outside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
