// SPDX-License-Identifier: MIT
// Filters that remember long: integrators, poles on one another, narrow resonators; how soon they forget; and arrays
// that lie on one another, or elsewhere.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "filtering.h"
#include "sampled.h"

static dpcr_array signal_of(double *data, int64_t channels, int64_t length) {
    return dpcr_array_make(data, DPCR_F64, 2, (const int64_t[]){channels, length});
}

// (1 - r z^-1)^p, divided out in double.
static void powers_of_a_pole(double r, int64_t p, double *a) {
    memset(a, 0, (size_t)(p + 1) * sizeof *a);
    a[0] = 1;
    for (int64_t k = 0; k < p; k++)
        for (int64_t i = k + 1; i > 0; i--) a[i] -= r * a[i - 1];
}

static dpcr_filter *all_pole(int64_t p, const double *a) {
    const double one = 1;
    dpcr_filter *filter = NULL;
    assert_int_equal(dpcr_filter_create_ba(context, 1, &one, p + 1, a, &filter, NULL), DPCR_OK);
    return filter;
}

// Sums of sums of integers below 2^53, where the loop rounds nothing: neither do the seams.
static void integrators_of_integers_are_exact(void **state) {
    (void)state;
    static const int64_t lengths[] = {2048, 3000, 4095, 20000, 50000, 100000};
    for (int64_t p = 1; p <= 4; p++)
        for (int i = 0; i < (p == 4 ? 3 : TESTS_SANITIZED ? 5 : 6); i++)
            for (int backward = 0; backward < 2; backward++) {
                const int64_t length = lengths[i];
                double a[5], *const x = calloc((size_t)(2 * length), sizeof *x), *const y = x + length;
                powers_of_a_pole(1, p, a);
                dpcr_filter *filter = all_pole(p, a);
                for (int64_t l = 0; l < length; l++) x[l] = floor(100 * noise());
                const dpcr_array ax = signal_of(x, 1, length), ay = signal_of(y, 1, length);
                assert_int_equal(
                    (backward ? dpcr_filter_adjoint : dpcr_filter_execute)(filter, &ax, NULL, &ay, NULL, NULL),
                    DPCR_OK);
                int64_t sum[4] = {0};
                for (int64_t k = 0; k < length; k++) {
                    const int64_t l = backward ? length - 1 - k : k;
                    sum[0] += (int64_t)x[l];
                    for (int64_t d = 1; d < p; d++) sum[d] += sum[d - 1];
                    assert_true(llabs(sum[p - 1]) < INT64_C(1) << 52);
                    if (y[l] != (double)sum[p - 1])
                        fail_msg("order %d, %d samples: %.17g at %d, not %.17g", (int)p, (int)length, y[l], (int)l,
                                 (double)sum[p - 1]);
                }
                dpcr_filter_destroy(filter);
                free(x);
            }
}

typedef struct measured {
    double error, own, most;  // of the filter and of its loop, beside the loop in long double, and its largest
} measured;

typedef enum input { NOISE, STEP, DIFFERENCES } input;

static void fill(double *x, int64_t length, int64_t p, input kind) {
    const double step = 1 + noise() / 2;
    for (int64_t l = 0; l < length; l++) x[l] = kind == STEP ? step : noise() / 3;
    for (int64_t k = 0; k < p && kind == DIFFERENCES; k++)
        for (int64_t l = length - 1; l > 0; l--) x[l] -= x[l - 1];
}

// One channel of a filter of one section of order p. Its loop is the kernel's, in pieces too short to be cut.
static measured measure(int64_t p, const double *b, const double *a, int64_t length, input kind) {
    enum { PIECE = 1500 };
    double *const x = calloc((size_t)(3 * length), sizeof *x), *const y = x + length, *const loop = y + length,
                  z[8] = {0};
    long double exact[9] = {0};
    dpcr_filter *filter = NULL;
    measured m = {0};
    assert_int_equal(dpcr_filter_create_ba(context, p + 1, b, p + 1, a, &filter, NULL), DPCR_OK);
    fill(x, length, p, kind);
    const dpcr_array ax = signal_of(x, 1, length), ay = signal_of(y, 1, length),
                     az = dpcr_array_make(z, DPCR_F64, 3, (const int64_t[]){1, 1, p});
    assert_int_equal(dpcr_filter_execute(filter, &ax, NULL, &ay, NULL, NULL), DPCR_OK);
    for (int64_t l = 0; l < length; l += PIECE) {
        const int64_t count = length - l < PIECE ? length - l : PIECE;
        const dpcr_array in = signal_of(x + l, 1, count), out = signal_of(loop + l, 1, count);
        assert_int_equal(dpcr_filter_execute(filter, &in, &az, &out, &az, NULL), DPCR_OK);
    }
    for (int64_t l = 0; l < length; l++) {
        const long double right = (long double)b[0] * x[l] + exact[0];
        for (int64_t i = 0; i < p; i++)
            exact[i] = (long double)b[i + 1] * x[l] + exact[i + 1] - (long double)a[i + 1] * right;
        m.most = fmax(m.most, (double)fabsl(right));
        m.own = fmax(m.own, (double)fabsl(loop[l] - right));
        m.error = fmax(m.error, (double)fabsl(y[l] - right));
    }
    dpcr_filter_destroy(filter);
    free(x);
    return m;
}

// As near the exact result as the loop comes, but for a few times: in the mean of some draws, for either error is one
// draw of rounding, now and then near 0.
static void as_near_as_the_loop(const char *what, int64_t p, const double *b, const double *a, int64_t length,
                                input kind) {
    enum { DRAWS = 16 };
    double ratio = 0, error = 0, own = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        const measured m = measure(p, b, a, length, kind);
        const double floor = 1e-15 * m.most;
        ratio += log((m.error + floor) / (m.own + floor)) / DRAWS;
        error = fmax(error, m.error / m.most), own = fmax(own, m.own / m.most);
    }
    if (!(exp(ratio) <= 8))
        fail_msg("%s, %d samples: %g times the loop's error, at most %g of the largest, the loop %g", what, (int)length,
                 exp(ratio), error, own);
}

static void poles_on_one_another_are_as_near_as_the_loop(void **state) {
    (void)state;
    static const double radius[] = {0.9999, 0.999};
    static const int64_t lengths[] = {3000, 4095, 10000, 20000};
    if (LDBL_MANT_DIG < 64) skip();
    for (int i = 0; i < 2 * 4; i++)
        for (int64_t p = 2; p <= 3; p++) {
            double a[5];
            const double b[5] = {1};
            char what[64];
            powers_of_a_pole(radius[i % 2], p, a);
            snprintf(what, sizeof what, "%g^%d", radius[i % 2], (int)p);
            as_near_as_the_loop(what, p, b, a, lengths[i / 2], NOISE);
        }
}

// Band passes of Q = 1e4, and a resonator that rings for a million samples.
static void resonators_are_as_near_as_the_loop(void **state) {
    (void)state;
    static const double corners[] = {0.1, 1, 5, 20};
    static const int64_t lengths[] = {2048, 4095, 20000, 100000};
    if (LDBL_MANT_DIG < 64) skip();
    for (int i = 0; i < (TESTS_SANITIZED ? 3 : 4); i++) {
        for (int c = 0; c < 4; c++) {
            const double k = 1e-4, t = tan(acos(-1) * corners[c] / 48000), scale = 1 / (1 + k * t + t * t);
            const double b[3] = {k * t * scale, 0, -k * t * scale},
                         a[3] = {1, 2 * (t * t - 1) * scale, (1 - k * t + t * t) * scale};
            as_near_as_the_loop("band pass", 2, b, a, lengths[i], STEP);
        }
        const double r = 1 - 1e-6, b[3] = {1}, a[3] = {1, -2 * r * cos(0.3), r * r};
        as_near_as_the_loop("resonator", 2, b, a, lengths[i], NOISE);
    }
}

// Differences, summed again: states stay small, and what a stretch makes of its samples from zero does not.
static void states_that_their_input_keeps_small(void **state) {
    (void)state;
    static const int64_t lengths[] = {2048, 4095, 20000, 50000};
    if (LDBL_MANT_DIG < 64) skip();
    for (int i = 0; i < (TESTS_SANITIZED ? 3 : 4); i++)
        for (int64_t p = 2; p <= 3; p++) {
            const double b[5] = {1};
            double a[5];
            char what[64];
            powers_of_a_pole(1, p, a);
            snprintf(what, sizeof what, "differences of order %d", (int)p);
            as_near_as_the_loop(what, p, b, a, lengths[i], DIFFERENCES);
        }
}

static void who_never_forgets_says_so(void **state) {
    (void)state;
    double a[5];
    for (int64_t p = 1; p <= 4; p++) {
        powers_of_a_pole(1, p, a);
        dpcr_filter *filter = all_pole(p, a);
        assert_int_equal(dpcr_filter_memory(filter), 0);
        dpcr_filter_destroy(filter);
    }
    static const double gone[] = {1e-3, 1e-4, 1e-5, 1e-6};
    for (int i = 0; i < 4; i++) {  // n r^n is 1e-24
        const double r = 1 - gone[i];
        double m = 60 / gone[i];
        for (int k = 0; k < 50; k++) m = (log(1e-24) - log(m)) / log(r);
        powers_of_a_pole(r, 2, a);
        dpcr_filter *filter = all_pole(2, a);
        const double memory = (double)dpcr_filter_memory(filter);
        if (!(fabs(memory - m) <= 0.02 * m)) fail_msg("pole 1 - %g twice: %g samples, wanted %g", gone[i], memory, m);
        dpcr_filter_destroy(filter);
    }
}

// ---- refusals ----

static void refused(dpcr_status status, const dpcr_error *error, const char *words) {
    if (status != DPCR_ERROR_ARGUMENT || !strstr(error->text, words))
        fail_msg("'%s' (%s), wanted '%s'", error->text, dpcr_status_name(status), words);
}

static void what_lies_on_another_is_refused(void **state) {
    (void)state;
    enum { LENGTH = 30, CHANNELS = 2, STATES = 2 };
    static double memory[1000];
    dpcr_error e = {0};
    const double a[3] = {1, -0.5, 0.1};
    dpcr_filter *f = all_pole(2, a);
    const int64_t states[3] = {CHANNELS, 1, STATES};
    const dpcr_array x = signal_of(memory, CHANNELS, LENGTH), apart = signal_of(memory + 500, CHANNELS, LENGTH);
    for (int64_t at = -70; at <= 70; at++) {
        const dpcr_array first = signal_of(memory + 100, CHANNELS, LENGTH),
                         y = signal_of(memory + 100 + at, CHANNELS, LENGTH);
        const dpcr_status status = dpcr_filter_execute(f, &first, NULL, &y, NULL, &e);
        if (llabs(at) < CHANNELS * LENGTH)
            refused(status, &e, "filter_execute: x shares memory with y");
        else
            assert_int_equal(status, DPCR_OK);
    }
    // frames of four, of which two go in and two come out; and one of them both
    for (int64_t at = 0; at < 3; at++) {
        dpcr_array in = x, out = x;
        in.strides[0] = out.strides[0] = 1, in.strides[1] = out.strides[1] = 4;
        out.data = memory + at;
        const dpcr_status status = dpcr_filter_execute(f, &in, NULL, &out, NULL, &e);
        if (at < 2)
            refused(status, &e, "x shares memory with y");
        else
            assert_int_equal(status, DPCR_OK);
    }
    // from the last sample down
    dpcr_array down = apart;
    down.data = memory + 2 * LENGTH - 1, down.strides[0] = -LENGTH, down.strides[1] = -1;
    refused(dpcr_filter_execute(f, &x, NULL, &down, NULL, &e), &e, "x shares memory with y");
    down.data = memory + 4 * LENGTH - 1;
    assert_int_equal(dpcr_filter_execute(f, &x, NULL, &down, NULL, NULL), DPCR_OK);

    const dpcr_array on_y = dpcr_array_make(memory + 500 + 2 * LENGTH - 1, DPCR_F64, 3, states),
                     near = dpcr_array_make(memory + 500 + 2 * LENGTH, DPCR_F64, 3, states);
    refused(dpcr_filter_execute(f, &x, &on_y, &apart, NULL, &e), &e, "zi shares memory with y");
    refused(dpcr_filter_execute(f, &x, NULL, &apart, &on_y, &e), &e, "zf shares memory with y");
    refused(dpcr_filter_adjoint(f, &x, &on_y, &apart, NULL, &e), &e, "gzf shares memory with gx");
    refused(dpcr_filter_adjoint(f, &x, NULL, &apart, &on_y, &e), &e, "gzi shares memory with gx");
    assert_int_equal(dpcr_filter_execute(f, &x, &near, &apart, &near, NULL), DPCR_OK);

    double gb[3] = {0}, ga[3] = {0};
    const dpcr_array gy = signal_of(memory + 200, CHANNELS, LENGTH), on_x = signal_of(memory + 59, CHANNELS, LENGTH);
    refused(dpcr_filter_gradient(f, &x, NULL, &gy, NULL, gb, ga, &on_x, NULL, &e), &e, "x shares memory with gx");
    refused(dpcr_filter_gradient(f, &gy, NULL, &x, NULL, gb, ga, &on_x, NULL, &e), &e, "gy shares memory with gx");
    refused(dpcr_filter_gradient(f, &x, &on_y, &gy, NULL, gb, ga, &apart, NULL, &e), &e, "zi shares memory with gx");
    refused(dpcr_filter_gradient(f, &x, NULL, &gy, &on_y, gb, ga, &apart, NULL, &e), &e, "gzf shares memory with gx");
    refused(dpcr_filter_gradient(f, &x, NULL, &gy, NULL, gb, ga, &apart, &on_y, &e), &e, "gzi shares memory with gx");
    dpcr_array off = near;
    off.data = memory + 500 + 2 * LENGTH + 1;
    refused(dpcr_filter_gradient(f, &x, &near, &gy, NULL, gb, ga, &apart, &off, &e), &e, "zi shares memory with gzi");
    refused(dpcr_filter_gradient(f, &x, NULL, &apart, NULL, gb, ga, NULL, &on_y, &e), &e, "gy shares memory with gzi");
    assert_int_equal(dpcr_filter_gradient(f, &x, &near, &gy, &near, gb, ga, &apart, &near, NULL), DPCR_OK);
    dpcr_filter_destroy(f);
}

// Views of any strides in one piece of memory: refused where two samples are one, or y's own meet, and only there.
static void views_apart_are_taken(void **state) {
    (void)state;
    enum { ROOM = 400, MIDDLE = 200 };
    static double memory[ROOM];
    const double a[2] = {1, -0.5};
    dpcr_filter *f = all_pole(1, a);
    int64_t taken = 0, shared = 0;
    for (int i = 0; i < 4000; i++) {
        const int64_t shape[2] = {1 + (int64_t)(3 * fabs(noise())), 1 + (int64_t)(9 * fabs(noise()))};
        dpcr_array view[2];
        int use[2][ROOM] = {{0}}, together = 0, twice = 0;
        for (int k = 0; k < 2; k++) {
            view[k] = dpcr_array_make(memory + MIDDLE + (int64_t)(20 * noise()), DPCR_F64, 2, shape);
            for (int d = 0; d < 2; d++) view[k].strides[d] = (int64_t)(9 * noise());
            if (i % 3 == 0 && k == 1) memcpy(view[1].strides, view[0].strides, sizeof view[1].strides);
            for (int64_t b = 0; b < shape[0]; b++)
                for (int64_t l = 0; l < shape[1]; l++)
                    use[k][(double *)view[k].data - memory + b * view[k].strides[0] + l * view[k].strides[1]]++;
        }
        for (int at = 0; at < ROOM; at++) {
            if (use[1][at] > 1) twice = 1;
            if (use[0][at] && use[1][at]) together = 1;
        }
        dpcr_error e = {0};
        const dpcr_status status = dpcr_filter_execute(f, &view[0], NULL, &view[1], NULL, &e);
        assert_int_equal(status, twice || together ? DPCR_ERROR_ARGUMENT : DPCR_OK);
        if (!twice && together) assert_non_null(strstr(e.text, "x shares memory with y")), shared++;
        taken += status == DPCR_OK;
    }
    assert_true(taken > 100 && shared > 100);
    dpcr_filter_destroy(f);
}

static void the_wrong_device_is_named(void **state) {
    (void)state;
    static double memory[64];
    const double a[2] = {1, -0.5};
    dpcr_filter *f = all_pole(1, a);
    dpcr_error e = {0};
    const dpcr_array y = signal_of(memory + 32, 1, 8),
                     states = dpcr_array_make(memory + 48, DPCR_F64, 3, (const int64_t[]){1, 1, 1});
    dpcr_array x = signal_of(memory, 1, 8), away = states;
    x.device.type = 0;
    refused(dpcr_filter_execute(f, &x, NULL, &y, NULL, &e), &e, "x is [1][8] float64 on unknown:0, wanted");
    x.device = (dpcr_device){DPCR_HOST, 0}, away.device = (dpcr_device){DPCR_CUDA, 1};
    refused(dpcr_filter_execute(f, &x, &away, &y, NULL, &e), &e, "zi is [1][1][1] float64 on cuda:1, wanted");
    dpcr_filter_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integrators_of_integers_are_exact),
        cmocka_unit_test(poles_on_one_another_are_as_near_as_the_loop),
        cmocka_unit_test(resonators_are_as_near_as_the_loop),
        cmocka_unit_test(states_that_their_input_keeps_small),
        cmocka_unit_test(who_never_forgets_says_so),
        cmocka_unit_test(what_lies_on_another_is_refused),
        cmocka_unit_test(views_apart_are_taken),
        cmocka_unit_test(the_wrong_device_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
