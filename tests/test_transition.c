// SPDX-License-Identifier: MIT
// Transitions as an algebra: names, sizes, apply and compose against sums over the pattern, and what is refused.
#include "linear_common.h"

static dpcr_array array_of(void *data, dpcr_dtype dtype, int64_t steps, int64_t rows, int64_t values) {
    return dpcr_array_make(data, dtype, 3, (const int64_t[]){steps, rows, values});
}

static double entry(const dpcr_transition *t, const double *a, int64_t i, int64_t j) {
    const int64_t place = place_of(t, i, j);
    return place == -1 ? 0 : place == -2 ? 1 : a[place];
}

static const dpcr_transition some[] = {
    {DPCR_ZERO, 5, 5, 0, NULL},     {DPCR_IDENTITY, 5, 5, 0, NULL}, {DPCR_SCALAR, 5, 5, 0, NULL},
    {DPCR_DIAGONAL, 5, 5, 0, NULL}, {DPCR_BLOCK, 6, 6, 3, NULL},    {DPCR_BLOCK, 10, 10, 5, NULL},
    {DPCR_BLOCK, 6, 6, 6, NULL},    {DPCR_BLOCK, 4, 4, 1, NULL},    {DPCR_DENSE, 5, 5, 0, NULL},
    {DPCR_DENSE, 1, 1, 0, NULL},    {DPCR_DENSE, 2, 3, 0, NULL},    {DPCR_DENSE, 19, 4, 0, NULL},
};
enum { SOME = sizeof some / sizeof *some };

static void names_and_sizes(void **state) {
    (void)state;
    static const int64_t values[SOME] = {0, 0, 1, 5, 18, 50, 36, 4, 25, 1, 6, 76};
    for (int i = 0; i < SOME; i++) {
        assert_int_equal(dpcr_transition_check(&some[i], NULL), DPCR_OK);
        assert_int_equal(dpcr_transition_values(&some[i]), values[i]);
        const unsigned can = dpcr_transition_capabilities(&some[i]);
        assert_true(can & DPCR_CAN_APPLY);
        assert_int_equal(!!(can & DPCR_CAN_COMPOSE), some[i].rows == some[i].cols);
        assert_int_equal(!!(can & DPCR_HAS_VALUES), values[i] > 0);
        dpcr_structure found;
        assert_int_equal(dpcr_structure_find(dpcr_structure_name(some[i].structure), &found, NULL), DPCR_OK);
        assert_int_equal(found, some[i].structure);
    }
    assert_true(dpcr_transition_apply_flops(&some[11]) == 2 * 76 && dpcr_transition_compose_flops(&some[8]) == 250);
    assert_string_equal(dpcr_structure_name((dpcr_structure)77), "unknown");
}

// [3][2] of them, the transition shared over steps or not, with and without r, y in place of r.
static void apply_and_compose(void **state) {
    (void)state;
    double a[6 * 80], x[6 * 20], r[6 * 20], y[6 * 20], c[6 * 80], e[6 * 80];
    for (int i = 0; i < SOME; i++)
        for (int flags = 0; flags < 8; flags++) {
            const dpcr_transition *t = &some[i];
            const bool transposed = flags & 1, shared = flags & 2, with_r = flags & 4;
            const int64_t v = dpcr_transition_values(t), in = transposed ? t->rows : t->cols,
                          out = transposed ? t->cols : t->rows;
            fill_vector(DPCR_F64, FILL_RANDOM, a, 6 * v);
            fill_vector(DPCR_F64, FILL_RANDOM, e, 6 * v);
            fill_vector(DPCR_F64, FILL_RANDOM, x, 6 * in);
            fill_vector(DPCR_F64, FILL_RANDOM, r, 6 * out);
            memcpy(y, r, sizeof y);
            const dpcr_array va = array_of(a, DPCR_F64, shared ? 1 : 3, 2, v), vx = array_of(x, DPCR_F64, 3, 2, in);
            const dpcr_array vy = array_of(y, DPCR_F64, 3, 2, out);
            assert_int_equal(dpcr_transition_apply(t, transposed, v ? &va : NULL, &vx, with_r ? &vy : NULL, &vy, NULL),
                             DPCR_OK);
            for (int64_t s = 0; s < 6; s++)
                for (int64_t p = 0; p < out; p++) {
                    double sum = with_r ? r[s * out + p] : 0;
                    for (int64_t q = 0; q < in; q++)
                        sum += entry(t, a + (shared ? s % 2 : s) * v, transposed ? q : p, transposed ? p : q) *
                               x[s * in + q];
                    assert_true(fabs(sum - y[s * out + p]) < 1e-13);
                }
            if (t->rows != t->cols) continue;
            const dpcr_array ve = array_of(e, DPCR_F64, 3, 2, v), vc = array_of(c, DPCR_F64, 3, 2, v);
            assert_int_equal(dpcr_transition_compose(t, &va, &ve, &vc, NULL), DPCR_OK);
            for (int64_t s = 0; s < 6 && v; s++)
                for (int64_t p = 0; p < t->rows; p++)
                    for (int64_t q = 0; q < t->rows; q++) {
                        double sum = 0;
                        for (int64_t k = 0; k < t->rows; k++)
                            sum += entry(t, a + (shared ? s % 2 : s) * v, p, k) * entry(t, e + s * v, k, q);
                        assert_true(fabs(sum - entry(t, c + s * v, p, q)) < 1e-13);
                    }
        }
}

static void expect(dpcr_status got, dpcr_status wanted, dpcr_error *error, const char *words) {
    if (got != wanted || !strstr(error->text, words)) fail_msg("got %s \"%s\"", dpcr_status_name(got), error->text);
    *error = (dpcr_error){0};
}

static void refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    dpcr_structure found;
    double data[64] = {0};
    expect(dpcr_structure_find("sparse", &found, &e), DPCR_ERROR_ARGUMENT, &e, "sparse");
    expect(dpcr_structure_find(NULL, &found, &e), DPCR_ERROR_ARGUMENT, &e, "NULL");
    expect(dpcr_transition_check(NULL, &e), DPCR_ERROR_ARGUMENT, &e, "NULL");
    dpcr_transition t = {DPCR_DIAGONAL, 2, 3, 0, NULL};
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "2x3");
    t = (dpcr_transition){DPCR_DENSE, 2, 2, 2, NULL};
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "block");
    t = (dpcr_transition){DPCR_DENSE, 2, 2, 0, data};
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "pattern");
    t = (dpcr_transition){DPCR_DENSE, INT64_MAX / 2, INT64_MAX / 2, 0, NULL};
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_OVERFLOW, &e, "too many");
    t = dpcr_transition_square(DPCR_BLOCK, 6, 4);
    expect(dpcr_transition_check(&t, &e), DPCR_ERROR_ARGUMENT, &e, "divisor of the width 6");
    t = (dpcr_transition){DPCR_DENSE, 2, 3, 0, NULL};
    const dpcr_array a = array_of(data, DPCR_F64, 1, 1, 6), x = array_of(data + 8, DPCR_F64, 1, 1, 3),
                     y = array_of(data + 16, DPCR_F64, 1, 1, 2);
    expect(dpcr_transition_compose(&t, &a, &a, &a, &e), DPCR_ERROR_UNSUPPORTED, &e, "2x3");
    expect(dpcr_transition_apply(&t, 0, &a, &y, NULL, &y, &e), DPCR_ERROR_ARGUMENT, &e,
           "x is [1][1][2] float64, wanted [1][1][3]");
    expect(dpcr_transition_apply(&t, 0, NULL, &x, NULL, &y, &e), DPCR_ERROR_ARGUMENT, &e, "a is NULL");
    expect(dpcr_transition_apply(&t, 0, &a, &x, NULL, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "NULL");
    dpcr_array other = y;
    other.dtype = (dpcr_dtype)8;
    expect(dpcr_transition_apply(&t, 0, &a, &x, NULL, &other, &e), DPCR_ERROR_ARGUMENT, &e, "dtype is 8");
    t = dpcr_transition_square(DPCR_DENSE, 2, 0);
    const dpcr_array s = array_of(data, DPCR_F64, 1, 1, 4);
    expect(dpcr_transition_compose(&t, &s, &s, &s, &e), DPCR_ERROR_ARGUMENT, &e, "one of the inputs");
    expect(dpcr_transition_apply(&t, 0, &s, &y, NULL, &y, &e), DPCR_ERROR_ARGUMENT, &e, "y is x");
}

// Every small shape and stride of what is written: refused where two rows share a place, and only there.
static void rows_written_apart(void **state) {
    (void)state;
    double x[64] = {0}, y[512];
    for (int64_t c = 0; c < 4 * 4 * 3 * 12 * 12; c++) {
        const int64_t steps = 1 + c % 4, rows = 1 + c / 4 % 4, w = 1 + c / 16 % 3, step = c / 48 % 12 - 5,
                      row = c / 576 - 5;
        const dpcr_transition t = dpcr_transition_square(DPCR_IDENTITY, w, 0);
        dpcr_array in = array_of(x, DPCR_F64, steps, rows, w), out = in;
        bool taken[512] = {false}, shared = false;
        out.data = y + 256;
        out.strides[0] = step;
        out.strides[1] = row;
        for (int64_t i = 0; i < steps * rows * w; i++) {
            bool *place = &taken[256 + i / w / rows * step + i / w % rows * row + i % w];
            shared |= *place;
            *place = true;
        }
        assert_int_equal(dpcr_transition_apply(&t, 0, NULL, &in, NULL, &out, NULL),
                         shared ? DPCR_ERROR_ARGUMENT : DPCR_OK);
    }
    const dpcr_transition t = dpcr_transition_square(DPCR_IDENTITY, 1, 0);
    dpcr_array in = array_of(x, DPCR_F64, 4, 4, 1), out = in;
    for (int k = 0; k < 2; k++) {  // places beyond all memory, before anybody asks whether they meet
        out.strides[k] = INT64_MAX / 2;
        out.strides[1 - k] = INT64_MAX / 4;
        assert_int_equal(dpcr_transition_apply(&t, 0, NULL, &in, NULL, &out, NULL), DPCR_ERROR_OVERFLOW);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_and_sizes), cmocka_unit_test(apply_and_compose),
                                       cmocka_unit_test(refusals), cmocka_unit_test(rows_written_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
