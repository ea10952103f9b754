// SPDX-License-Identifier: MIT
// Losses: long double formulas, finite differences, hazards, strided views, refusals.

// cmocka.h wants the first three before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "deeppcr/train.h"

enum { ROWS = 7, CLASSES = 5 };

static const uint8_t labels[ROWS] = {0, 4, 2, 2, 1, 3, 0};

static dpcr_array view(void *data, dpcr_dtype dtype, int64_t rows, int64_t cols) {
    const int64_t shape[] = {rows, cols};
    return dpcr_array_make(data, dtype, 2, shape);
}

static double wobble(int i) { return 6 * sin(i * 1.7 + 0.3); }

static long double exact_cross_entropy(const double *logits, int64_t rows, int64_t classes) {
    long double total = 0;
    for (int64_t b = 0; b < rows; b++) {
        long double sum = 0;
        for (int64_t j = 0; j < classes; j++) sum += expl((long double)logits[b * classes + j]);
        total += logl(sum) - (long double)logits[b * classes + labels[b]];
    }
    return total / (long double)rows;
}

static void cross_entropy_is_the_long_double_formula(void **state) {
    (void)state;
    double y[ROWS * CLASSES], dy[ROWS * CLASSES], loss;
    float y32[ROWS * CLASSES], dy32[ROWS * CLASSES];
    int64_t correct = -1, wanted_correct = 0;
    for (int i = 0; i < ROWS * CLASSES; i++) y[i] = y32[i] = (float)wobble(i);
    const dpcr_array logits = view(y, DPCR_F64, ROWS, CLASSES), dlogits = view(dy, DPCR_F64, ROWS, CLASSES);
    assert_int_equal(dpcr_loss_cross_entropy(&logits, labels, &loss, &dlogits, &correct, NULL), DPCR_OK);
    const long double wanted = exact_cross_entropy(y, ROWS, CLASSES);
    assert_true(fabsl((long double)loss - wanted) <= 1e-15L * fabsl(wanted) * 4);
    for (int b = 0; b < ROWS; b++) {
        long double sum = 0;
        int best = 0;
        for (int j = 0; j < CLASSES; j++) {
            sum += expl((long double)y[b * CLASSES + j]);
            if (y[b * CLASSES + j] > y[b * CLASSES + best]) best = j;
        }
        wanted_correct += best == labels[b];
        for (int j = 0; j < CLASSES; j++) {
            const long double d = (expl((long double)y[b * CLASSES + j]) / sum - (j == labels[b])) / ROWS;
            assert_true(fabsl((long double)dy[b * CLASSES + j] - d) <= 1e-16L);
        }
    }
    assert_int_equal(correct, wanted_correct);

    // In float the sums are double's all the same: same logits, same loss to the last bit; the gradient rounded once.
    double loss32;
    const dpcr_array logits32 = view(y32, DPCR_F32, ROWS, CLASSES), dlogits32 = view(dy32, DPCR_F32, ROWS, CLASSES);
    assert_int_equal(dpcr_loss_cross_entropy(&logits32, labels, &loss32, &dlogits32, NULL, NULL), DPCR_OK);
    assert_true(loss32 == loss);
    for (int i = 0; i < ROWS * CLASSES; i++) assert_true(dy32[i] == (float)dy[i]);
}

static void cross_entropy_gradient_agrees_with_differences(void **state) {
    (void)state;
    double y[ROWS * CLASSES], dy[ROWS * CLASSES], loss;
    for (int i = 0; i < ROWS * CLASSES; i++) y[i] = wobble(i) / 3;
    const dpcr_array logits = view(y, DPCR_F64, ROWS, CLASSES), dlogits = view(dy, DPCR_F64, ROWS, CLASSES);
    assert_int_equal(dpcr_loss_cross_entropy(&logits, labels, &loss, &dlogits, NULL, NULL), DPCR_OK);
    for (int i = 0; i < ROWS * CLASSES; i++) {
        const double kept = y[i], h = 1e-5;
        double up, down;
        y[i] = kept + h;
        assert_int_equal(dpcr_loss_cross_entropy(&logits, labels, &up, NULL, NULL, NULL), DPCR_OK);
        y[i] = kept - h;
        assert_int_equal(dpcr_loss_cross_entropy(&logits, labels, &down, NULL, NULL, NULL), DPCR_OK);
        y[i] = kept;
        assert_true(fabs((up - down) / (2 * h) - dy[i]) < 1e-9);
    }
}

static void huge_logits_do_not_overflow(void **state) {
    (void)state;
    float y[4] = {3e38f, -3e38f, -1e30f, 1e30f};
    const uint8_t two[2] = {0, 1};
    double loss;
    int64_t correct;
    const dpcr_array logits = view(y, DPCR_F32, 2, 2);
    assert_int_equal(dpcr_loss_cross_entropy(&logits, two, &loss, NULL, &correct, NULL), DPCR_OK);
    assert_true(loss == 0);
    assert_int_equal(correct, 2);
    const uint8_t wrong[2] = {1, 0};
    assert_int_equal(dpcr_loss_cross_entropy(&logits, wrong, &loss, NULL, &correct, NULL), DPCR_OK);
    assert_true(isfinite(loss) && loss > 1e38);
    assert_int_equal(correct, 0);
}

static void nan_and_infinity_show_in_the_loss_and_count_as_wrong(void **state) {
    (void)state;
    const double hazards[] = {NAN, INFINITY};
    const uint8_t zero[1] = {0};
    for (int h = 0; h < 2; h++)
        for (int at = 0; at < 3; at++) {
            double y[3] = {1, 0, -1}, loss = 0;
            int64_t correct = -1;
            y[at] = hazards[h];
            const dpcr_array logits = view(y, DPCR_F64, 1, 3);
            assert_int_equal(dpcr_loss_cross_entropy(&logits, zero, &loss, NULL, &correct, NULL), DPCR_OK);
            assert_false(isfinite(loss));
            assert_false(signbit(loss));  // printf shows a NaN's
            assert_int_equal(correct, 0);
            assert_int_equal(dpcr_loss_mean_square(&logits, &logits, &loss, NULL, NULL), DPCR_OK);
            assert_true(isnan(loss) && !signbit(loss));
        }
    double y[2] = {1, -INFINITY}, loss = 1;
    const dpcr_array logits = view(y, DPCR_F64, 1, 2);
    assert_int_equal(dpcr_loss_cross_entropy(&logits, zero, &loss, NULL, NULL, NULL), DPCR_OK);
    assert_true(loss == 0);
}

static void strided_and_overlaid_arrays_work(void **state) {
    (void)state;
    double y[ROWS * CLASSES], dy[ROWS * CLASSES], turned[CLASSES * ROWS], loss, loss2;
    for (int i = 0; i < ROWS * CLASSES; i++) y[i] = wobble(i);
    for (int b = 0; b < ROWS; b++)
        for (int j = 0; j < CLASSES; j++) turned[j * ROWS + b] = y[b * CLASSES + j];
    const dpcr_array logits = view(y, DPCR_F64, ROWS, CLASSES), dlogits = view(dy, DPCR_F64, ROWS, CLASSES);
    dpcr_array columns = view(turned, DPCR_F64, ROWS, CLASSES);
    columns.strides[0] = 1;
    columns.strides[1] = ROWS;
    assert_int_equal(dpcr_loss_cross_entropy(&logits, labels, &loss, &dlogits, NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_loss_cross_entropy(&columns, labels, &loss2, &columns, NULL, NULL), DPCR_OK);
    assert_true(loss == loss2);
    for (int b = 0; b < ROWS; b++)
        for (int j = 0; j < CLASSES; j++) assert_true(turned[j * ROWS + b] == dy[b * CLASSES + j]);
}

static void mean_square_is_the_formula_and_its_gradient(void **state) {
    (void)state;
    float y[24], t[24], dy[24];
    const int64_t shape[] = {2, 3, 4};
    long double wanted = 0;
    for (int i = 0; i < 24; i++) {
        y[i] = (float)wobble(i);
        t[i] = (float)wobble(i + 50);
        wanted += ((long double)y[i] - (long double)t[i]) * ((long double)y[i] - (long double)t[i]) / 24;
    }
    const dpcr_array a = dpcr_array_make(y, DPCR_F32, 3, shape), b = dpcr_array_make(t, DPCR_F32, 3, shape);
    const dpcr_array d = dpcr_array_make(dy, DPCR_F32, 3, shape);
    double loss;
    assert_int_equal(dpcr_loss_mean_square(&a, &b, &loss, &d, NULL), DPCR_OK);
    assert_true(fabsl((long double)loss - wanted) < 1e-14L);
    for (int i = 0; i < 24; i++) assert_true(dy[i] == (float)(2 * ((double)y[i] - (double)t[i]) / 24));
    // a shared target: stride 0 in every dimension
    dpcr_array shared = b;
    memset(shared.strides, 0, sizeof shared.strides);
    assert_int_equal(dpcr_loss_mean_square(&a, &shared, &loss, NULL, NULL), DPCR_OK);
    wanted = 0;
    for (int i = 0; i < 24; i++)
        wanted += ((long double)y[i] - (long double)t[0]) * ((long double)y[i] - (long double)t[0]) / 24;
    assert_true(fabsl((long double)loss - wanted) < 1e-14L);
}

static void bad_arguments_are_refused_in_words(void **state) {
    (void)state;
    double y[4] = {0}, dy[4] = {7, 7, 7, 7}, loss = 5;
    uint8_t two[2] = {0, 2};
    int64_t correct = 9;
    dpcr_error error = {0};
    const dpcr_array logits = view(y, DPCR_F64, 2, 2), dlogits = view(dy, DPCR_F64, 2, 2);
    assert_int_equal(dpcr_loss_cross_entropy(&logits, two, &loss, &dlogits, &correct, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "label of row 1 is 2, wanted less than 2"));
    assert_true(loss == 5 && correct == 9 && dy[0] == 7 && dy[3] == 7);
    two[1] = 1;
    const dpcr_array narrow = view(dy, DPCR_F64, 2, 1), other = view(dy, DPCR_F32, 2, 2),
                     empty = view(y, DPCR_F64, 0, 2);
    const dpcr_array integers = view(y, DPCR_U32, 2, 2);
    const int64_t one[] = {4};
    const dpcr_array flat = dpcr_array_make(y, DPCR_F64, 1, one);
    assert_int_equal(dpcr_loss_cross_entropy(&logits, two, &loss, &narrow, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "dlogits is [2][1] float64, wanted [2][2] float64"));
    assert_int_equal(dpcr_loss_cross_entropy(&logits, two, &loss, &other, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_loss_cross_entropy(&empty, two, &loss, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_loss_cross_entropy(&integers, two, &loss, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_loss_cross_entropy(&flat, two, &loss, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "1 dimensions, wanted 2"));
    assert_int_equal(dpcr_loss_cross_entropy(NULL, two, &loss, NULL, NULL, NULL), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_loss_mean_square(&logits, &narrow, &loss, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_loss_mean_square(&logits, NULL, &loss, NULL, &error), DPCR_ERROR_ARGUMENT);
    dpcr_array folded = dlogits;
    folded.strides[0] = 1;
    assert_int_equal(dpcr_loss_cross_entropy(&logits, two, &loss, &folded, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "dlogits is written, but its strides make it overlap itself"));
    assert_int_equal(dpcr_loss_mean_square(&logits, &logits, &loss, &folded, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "dy is written"));
    assert_true(loss == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_is_the_long_double_formula),
        cmocka_unit_test(cross_entropy_gradient_agrees_with_differences),
        cmocka_unit_test(huge_logits_do_not_overflow),
        cmocka_unit_test(nan_and_infinity_show_in_the_loss_and_count_as_wrong),
        cmocka_unit_test(strided_and_overlaid_arrays_work),
        cmocka_unit_test(mean_square_is_the_formula_and_its_gradient),
        cmocka_unit_test(bad_arguments_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
