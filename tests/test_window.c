// SPDX-License-Identifier: MIT
// Newton and shooting in windows, of every level, against the loop in double: every width, layout of the parameters and
// activation, every length up to 200 and awkward ones, all arrays against inaccessible pages; affine chains, values
// that are not finite, chains that do not converge, the same bits twice. Bounds: a step's f is right to `rounding`, a
// window's states to the tolerance, and errors grow as the chain's Lipschitz constants let them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "kern/window.h"
#include "sampled.h"

enum { SEED = 11, LONGEST = 20000 };

enum { USES = 4, MOST_BYTES = 1 << 22 };
#include "guarded.h"

static const char *const level_names[] = {"portable", "avx2", "avx512"};
static const char *const layout_names[] = {"one W, a bias a step",     "one W [in][out], one bias",
                                           "one W, biases of a batch", "W and bias a step",
                                           "records [in][out]",        "a W a step, no bias"};
enum { SHARED, SHARED_IN_OUT, SHARED_BATCH, OWN, RECORDS, OWN_NO_BIAS, LAYOUTS };

typedef struct test_chain {
    dpcri_isa level;
    dpcr_dtype dtype;
    const dpcri_window_kernels *k;
    int layout;
    int64_t count;
    dpcri_narrow p;
    double z0[4];
    double *truth;  // [count][w]
} test_chain;

// `count` elements that end at the guarded page.
static void *place(int which, int64_t count, dpcr_dtype dtype) {
    return guarded(which, (size_t)count * dpcr_dtype_size(dtype), false);
}

static double activation(int act, double u) {
    return act == DPCRI_ACT_IDENTITY ? u
           : act == DPCRI_ACT_RELU   ? (u > 0    ? u
                                        : u != u ? u
                                                 : 0)
           : act == DPCRI_ACT_TANH   ? tanh(u)
                                     : 1 / (1 + exp(-u));
}

static void step(const test_chain *c, int64_t l, const double *z, double *to) {
    const int64_t w = c->p.width;
    double t[4];
    for (int64_t i = 0; i < w; i++) {
        t[i] = c->p.bias ? number_at(c->dtype, c->p.bias, l * c->p.bias_step + i) : 0;
        for (int64_t j = 0; j < w; j++)
            t[i] +=
                number_at(c->dtype, c->p.weight, l * c->p.weight_step + (c->p.weight_in_out ? j * w + i : i * w + j)) *
                z[j];
    }
    for (int64_t i = 0; i < w; i++)
        to[i] =
            c->p.residual ? z[i] + c->p.scale * activation(c->p.activation, t[i]) : activation(c->p.activation, t[i]);
}

static void run_loop(test_chain *c) {
    const int64_t w = c->p.width;
    for (int64_t l = 0; l < c->count; l++) step(c, l, l ? c->truth + (l - 1) * w : c->z0, c->truth + l * w);
}

// Weights uniform within size / w, so that W's largest row sum is at most `size`; a residual's scale is 1 / count.
static void make(test_chain *c, int64_t w, int act, bool residual, double size, double input, uint64_t stream) {
    const int64_t w2 = w * w, steps = c->count;
    const bool own = c->layout >= OWN;
    c->p = (dpcri_narrow){
        .dtype = c->dtype, .width = w, .activation = act, .residual = residual, .scale = 1.0 / (double)steps};
    c->p.weight_in_out = c->layout == SHARED_IN_OUT || c->layout == RECORDS;
    c->p.weight_step = !own ? 0 : c->layout == RECORDS ? w2 + w : w2;
    c->p.bias_step = c->layout == SHARED || c->layout == OWN ? w
                     : c->layout == SHARED_BATCH             ? 3 * w
                     : c->layout == RECORDS                  ? w2 + w
                                                             : 0;
    const int64_t weights = own ? steps * c->p.weight_step : w2;
    const int64_t biases = c->p.bias_step ? (steps - 1) * c->p.bias_step + w : w;
    void *weight = place(0, weights, c->dtype), *bias = place(1, biases, c->dtype);
    for (int64_t i = 0; i < weights; i++)
        put_number(c->dtype, weight, i, size / (double)w * (2 * dpcri_random_uniform(SEED, stream, (uint64_t)i) - 1));
    for (int64_t i = 0; i < biases && c->layout != RECORDS; i++)
        put_number(c->dtype, bias, i, input * (2 * dpcri_random_uniform(SEED, stream + 1, (uint64_t)i) - 1));
    c->p.weight = weight;
    c->p.bias = c->layout == OWN_NO_BIAS ? NULL
                : c->layout == RECORDS   ? (char *)weight + (size_t)w2 * dpcr_dtype_size(c->dtype)
                                         : bias;
    for (int64_t i = 0; i < 4; i++) {
        c->z0[i] = dpcri_random_normal(SEED, stream + 2, (uint64_t)i);
        if (c->dtype == DPCR_F32) c->z0[i] = (double)(float)c->z0[i];
    }
    c->truth = malloc((size_t)(steps * w) * sizeof(double));
    run_loop(c);
}

typedef struct answer {
    dpcri_window window;
    void *z;
    int64_t step;
} answer;

static answer solve(const test_chain *c, int method, double tolerance, int max_sweeps, int64_t gap) {
    const int64_t w = c->p.width, size = c->count * (w + gap) - gap;
    answer a = {.z = place(2, size, c->dtype), .step = w + gap};
    a.window =
        (dpcri_window){.method = method, .atol = tolerance, .rtol = tolerance, .max_sweeps = max_sweeps, .good = -7};
    void *in = place(3, w, c->dtype);
    for (int64_t i = 0; i < w; i++) put_number(c->dtype, in, i, c->z0[i]);
    for (int64_t i = 0; i < size; i++) put_number(c->dtype, a.z, i, -77);
    const dpcri_window_place where = {.count = c->count, .in = in, .states = a.z, .step = a.step};
    assert_int_equal(c->k->solve(&c->p, &where, &a.window), 0);
    for (int64_t l = 0; l + 1 < c->count; l++)
        for (int64_t i = w; i < w + gap; i++) assert_true(number_at(c->dtype, a.z, l * a.step + i) == -77);
    return a;
}

static double tolerance_of(dpcr_dtype dtype) { return dtype == DPCR_F32 ? 1e-5 : 1e-10; }
static double rounding_of(dpcr_dtype dtype) { return dtype == DPCR_F32 ? 3e-6 : 3e-15; }

static void complain(const test_chain *c, const answer *a, int64_t l, const char *what, double got, double wanted) {
    fail_msg("%s %s, %s, width %d, activation %d, %s, length %d, %s, good %d, sweeps %d: step %d %s %.9g, wanted %.9g",
             level_names[c->level], c->dtype == DPCR_F32 ? "float" : "double", layout_names[c->layout], (int)c->p.width,
             c->p.activation, c->p.residual ? "residual" : "plain", (int)c->count,
             a->window.method == DPCRI_WINDOW_NEWTON ? "newton" : "shooting", (int)a->window.good, a->window.sweeps,
             (int)l, what, got, wanted);
}

// Every component of the first `good` states against the loop in double.
static void check_states(const test_chain *c, const answer *a, double bound) {
    const int64_t w = c->p.width;
    for (int64_t l = 0; l < a->window.good; l++)
        for (int64_t i = 0; i < w; i++) {
            const double got = number_at(c->dtype, a->z, l * a->step + i), wanted = c->truth[l * w + i];
            if (!(fabs(got - wanted) <= bound * fmax(1, fabs(wanted)))) complain(c, a, l, "is", got, wanted);
        }
}

// |z_l - f_l(z_{l-1})| of the first `good` states.
static void check_residuals(const test_chain *c, const answer *a, double tolerance) {
    const int64_t w = c->p.width;
    double z[4], f[4];
    memcpy(z, c->z0, sizeof z);
    for (int64_t l = 0; l < a->window.good; l++) {
        step(c, l, z, f);
        for (int64_t i = 0; i < w; i++) {
            z[i] = number_at(c->dtype, a->z, l * a->step + i);
            const double allowed = (tolerance + rounding_of(c->dtype)) * (1 + fabs(z[i]));
            if (!(fabs(z[i] - f[i]) <= allowed)) complain(c, a, l, "has a residual of", z[i] - f[i], allowed);
        }
    }
}

// What a solve may be off: contractions by 0.9 forget by 1 / (1 - 0.9); a residual chain grows by e at most. A window's
// last corrections are added, so that its own error is of their second order, and they do not add up.
static double bound_of(const test_chain *c) {
    const double largest = 12, window = 2 * tolerance_of(c->dtype), each = rounding_of(c->dtype) * largest;
    if (!c->p.residual) return 10 * (window * largest + each);
    return exp(1) * ((double)(c->count / 16 + 1) * window + (double)c->count * c->p.scale * each + each);
}

static void each_kernel(void (*test)(test_chain *c)) {
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            test_chain c = {.level = (dpcri_isa)level, .dtype = (dpcr_dtype)dtype};
            c.k = dpcri_window_kernels_at(c.level, c.dtype);
            assert_true(c.k || c.level != DPCRI_AVX512 || c.dtype != DPCR_F32);
            if (c.k) test(&c);
        }
}

// Of ReLU chains by shooting and newton: all, and those of which a part was left to the loop. Where they die, as
// without a bias, more than roundings of their numbers may be left.
static int kinked[2], left[2];

static void solve_both(test_chain *c, int64_t w, int act, bool residual) {
    make(c, w, act, residual, 0.9, 1, (uint64_t)(c->count * 8 + w));
    for (int method = 0; method < 2; method++) {
        const answer a =
            solve(c, method ? DPCRI_WINDOW_NEWTON : DPCRI_WINDOW_SHOOTING, tolerance_of(c->dtype), 0, c->count % 3);
        const bool relu = act == DPCRI_ACT_RELU, whole = a.window.good == c->count;
        kinked[method] += relu, left[method] += relu && !whole;
        if (!relu && !whole) complain(c, &a, -1, "good is", (double)a.window.good, (double)c->count);
        check_states(c, &a, bound_of(c));
        check_residuals(c, &a, (method ? 1 : 2) * tolerance_of(c->dtype));
        assert_true(a.window.residual <= 2 * tolerance_of(c->dtype) && a.window.estimate <= 2 * tolerance_of(c->dtype));
    }
    free(c->truth);
}

static void every_length(test_chain *c) {
    static const int acts[] = {DPCRI_ACT_TANH, DPCRI_ACT_TANH, DPCRI_ACT_SIGMOID, DPCRI_ACT_RELU, DPCRI_ACT_IDENTITY};
    for (int64_t w = 1; w <= 4; w++)
        for (c->count = 1; c->count <= 200; c->count++) {
            if (!sampled(4 * c->count + w)) continue;
            c->layout = (int)((c->count + w) % LAYOUTS);
            solve_both(c, w, acts[(c->count + w) % 5], c->count / 3 % 2);
        }
}

static void awkward_lengths(test_chain *c) {
    static const int64_t lengths[] = {255, 256, 257, 511, 1000, 1023, 1024, 1025, 3071, 4999};
    for (int64_t w = 1; w <= 4; w++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (c->layout = 0; c->layout < LAYOUTS; c->layout++)
                for (int residual = 0; residual < 2; residual++) {
                    if (!sampled(((int64_t)i * LAYOUTS + c->layout) * 8 + w * 2 + residual)) continue;
                    c->count = lengths[i];
                    solve_both(c, w, i % 3 ? DPCRI_ACT_TANH : DPCRI_ACT_SIGMOID, residual);
                }
}

// Newton on an affine chain: the guess, one sweep, whose measure is the check. Shooting likewise where M is the
// product.
static void affine_chains(test_chain *c) {
    for (int64_t w = 1; w <= 4; w++)
        for (c->layout = 0; c->layout < LAYOUTS; c->layout++)
            for (int residual = 0; residual < 2; residual++) {
                c->count = 3000;
                make(c, w, DPCRI_ACT_IDENTITY, residual, 0.9, 1, (uint64_t)w);
                const answer newton = solve(c, DPCRI_WINDOW_NEWTON, tolerance_of(c->dtype), 0, 0);
                // a residual's many small steps round, and their corrections add up: one more may be needed
                if (newton.window.sweeps > 2 + residual)
                    complain(c, &newton, -1, "sweeps are", newton.window.sweeps, 2);
                check_states(c, &newton, bound_of(c));
                const answer shooting = solve(c, DPCRI_WINDOW_SHOOTING, tolerance_of(c->dtype), 0, 0);
                if (!residual && shooting.window.sweeps > 2)
                    complain(c, &shooting, -1, "sweeps are", shooting.window.sweeps, 2);
                check_states(c, &shooting, bound_of(c));
                free(c->truth);
            }
}

// Nothing from a step that is not finite on is called good, and what is before it is right.
static void values_that_are_not_finite(test_chain *c) {
    static const double values[] = {NAN, INFINITY, -INFINITY};
    for (int64_t w = 1; w <= 4; w++)
        for (int method = 0; method < 2; method++)
            for (int kind = 0; kind < 3; kind++)
                for (int64_t at = 0; at < 3000; at += at < 3 ? 1 : 389) {
                    if (!sampled((at * 3 + kind) * 8 + method * 4 + w)) continue;
                    c->count = 3000;
                    c->layout = SHARED;
                    make(c, w, DPCRI_ACT_RELU, true, 0.9, 1, (uint64_t)w);
                    put_number(c->dtype, (void *)(uintptr_t)c->p.bias, at * w + (w - 1), values[kind]);
                    const answer a =
                        solve(c, method ? DPCRI_WINDOW_NEWTON : DPCRI_WINDOW_SHOOTING, tolerance_of(c->dtype), 0, 0);
                    if (values[kind] < 0) {  // relu's limit is 0: the chain stays finite, whatever a sweep saw
                        run_loop(c);
                        check_states(c, &a, bound_of(c));
                    } else {
                        if (a.window.good < 0 || a.window.good > at)
                            complain(c, &a, at, "is not finite, good", (double)a.window.good, (double)at);
                        check_states(c, &a, bound_of(c));
                    }
                    free(c->truth);
                }
    c->count = 2000;
    make(c, 2, DPCRI_ACT_TANH, true, 0.9, 1, 2);
    c->z0[1] = NAN;
    assert_int_equal(solve(c, DPCRI_WINDOW_NEWTON, 1e-5, 0, 0).window.good, 0);
    assert_int_equal(solve(c, DPCRI_WINDOW_SHOOTING, 1e-5, 0, 0).window.good, 0);
    free(c->truth);
}

// x' = mu min(x, 1 - x) as x' = mu x - 2 mu relu(x - 1/2), in the first two components: neighbours part by mu a step.
static void tent(test_chain *c) {
    const double mu = 1.9;
    void *weight = (void *)(uintptr_t)c->p.weight, *bias = (void *)(uintptr_t)c->p.bias;
    const int64_t w = c->p.width;
    for (int64_t i = 0; i < 2; i++)
        for (int64_t j = 0; j < w; j++) put_number(c->dtype, weight, i * w + j, j == 0 ? mu : j == 1 ? -2 * mu : 0);
    for (int64_t l = 0; l < c->count; l++) put_number(c->dtype, bias, l * w + 1, -0.5);
    c->z0[0] = 0.3, c->z0[1] = 0;
}

// Chaos, or hardly any sweeps: stops early, and what is called good still is.
static void chains_that_do_not_converge(test_chain *c) {
    for (int64_t w = 2; w <= 4; w += w)
        for (int method = 0; method < 2; method++) {
            c->count = LONGEST;
            c->layout = SHARED;
            make(c, w, DPCRI_ACT_RELU, false, 0.9, 0, (uint64_t)w);
            tent(c);
            const answer a =
                solve(c, method ? DPCRI_WINDOW_NEWTON : DPCRI_WINDOW_SHOOTING, tolerance_of(c->dtype), 0, 0);
            // windows of a few steps may pay even here: those of 64 at least do not
            if (c->level == DPCRI_AVX512 && c->dtype == DPCR_F32 && w == 2 && a.window.good > LONGEST / 4)
                complain(c, &a, -1, "good is", (double)a.window.good, 0);
            check_residuals(c, &a, (method ? 1 : 100) * tolerance_of(c->dtype));
            free(c->truth);
            make(c, w, DPCRI_ACT_TANH, false, 0.9, 1, (uint64_t)w);
            const answer few =
                solve(c, method ? DPCRI_WINDOW_NEWTON : DPCRI_WINDOW_SHOOTING, tolerance_of(c->dtype), 1, 0);
            if (method) assert_true(few.window.good < LONGEST);  // shooting may need no more than one
            check_states(c, &few, bound_of(c));
            free(c->truth);
        }
}

// Newton's windows of chains that keep their past: what a coarse tolerance leaves of each does not add up, since the
// last corrections are added. Without, the errors are 1.2e-4 to 1.5e-3.
static void corrections_do_not_add_up(test_chain *c) {
    const double coarse = 1e-3, allowed = c->dtype == DPCR_F32 ? 1e-4 : 1e-7;
    for (int64_t w = 1; w <= 4; w *= 2) {
        c->count = 5 * LONGEST;
        c->layout = SHARED;
        make(c, w, DPCRI_ACT_TANH, true, 0.01, 1, (uint64_t)w);
        c->p.scale = 0.5;
        run_loop(c);
        const answer a = solve(c, DPCRI_WINDOW_NEWTON, coarse, 0, 0);
        assert_int_equal(a.window.good, c->count);
        check_states(c, &a, allowed);
        free(c->truth);
    }
}

// Short chains that forget within a chunk need no Jacobian and, started from what the chunk before makes of zero, one
// sweep or two; where a window of them is cut, at the window's end, is seen by none of the states.
static void chains_that_forget(test_chain *c) {
    static const int64_t counts[] = {511, 512, 800, 1024, 1040, 1500, 2047};
    static const int acts[] = {DPCRI_ACT_RELU, DPCRI_ACT_TANH, DPCRI_ACT_IDENTITY};
    for (int64_t w = 2; w <= 4; w++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (c->layout = 0; c->layout < LAYOUTS; c->layout++) {
                c->count = counts[i];
                make(c, w, acts[(i + (size_t)c->layout) % 3], false, 0.2, 1, (uint64_t)(c->count * 4 + w));
                const answer a = solve(c, DPCRI_WINDOW_SHOOTING, tolerance_of(c->dtype), 0, c->count % 3);
                if (a.window.good != c->count) complain(c, &a, -1, "good is", (double)a.window.good, (double)c->count);
                if (c->count == 1024 && a.window.sweeps > 2) complain(c, &a, -1, "sweeps are", a.window.sweeps, 2);
                check_states(c, &a, 2 * (tolerance_of(c->dtype) + rounding_of(c->dtype)));
                free(c->truth);
            }
}

// From next to a fixed point at zero that repels in one direction alone: what zero makes of a chunk is right until the
// state has left, and the defects are as small as the state.
static void a_past_that_grows(test_chain *c) {
    if (c->level == DPCRI_PORTABLE && c->dtype == DPCR_F64) return;  // whose windows end before it has grown
    for (int64_t w = 2; w <= 4; w++)
        for (int direction = 0; direction < 2; direction++) {
            c->count = 1024, c->layout = SHARED;
            make(c, w, DPCRI_ACT_TANH, false, 0, 0, (uint64_t)w);
            void *weight = (void *)(uintptr_t)c->p.weight;
            const double along = direction ? 1.4 : 0.2, across = direction ? 0.2 : 1.4;
            for (int64_t i = 0; i < 4; i++)
                put_number(c->dtype, weight, i / 2 * w + i % 2, (along + (i % 3 ? -across : across)) / 2);
            for (int64_t i = 0; i < w; i++) c->z0[i] = i > 1 ? 0 : i && !direction ? -0x1p-40 : 0x1p-40;
            run_loop(c);
            assert_true(fabs(c->truth[1000 * w]) > 0.5);
            const answer a = solve(c, DPCRI_WINDOW_SHOOTING, 1e-6, 0, 0);
            check_states(c, &a, c->dtype == DPCR_F32 ? 1e-3 : 1e-5);
            free(c->truth);
        }
}

// With a tolerance of nothing no defect is left, so the states hang on no cut: by one call, or by two with shorter
// chunks.
static void nothing_allowed(test_chain *c) {
    for (int64_t w = 2; w <= 4; w++)
        for (int size = 0; size < 6; size++) {
            c->count = 1024, c->layout = RECORDS;
            make(c, w, DPCRI_ACT_TANH, false, 0.6 + 0.2 * size, 1, (uint64_t)(w * 8 + size));
            const answer whole = solve(c, DPCRI_WINDOW_SHOOTING, 0, 0, 0);
            const size_t bytes = (size_t)(c->count * w) * dpcr_dtype_size(c->dtype);
            void *kept = malloc(bytes);
            memcpy(kept, whole.z, bytes);
            const bool all = whole.window.good == c->count && whole.window.residual == 0;
            dpcri_window_place half = {.count = 512, .in = place(3, w, c->dtype), .states = whole.z, .step = w};
            bool halves = true;
            for (int i = 0; i < 2; i++) {
                dpcri_window window = {.method = DPCRI_WINDOW_SHOOTING};
                assert_int_equal(c->k->solve(&c->p, &half, &window), 0);
                halves = halves && window.good == 512 && window.sweeps > 0 && window.residual == 0;
                half.first = 512;
                half.in = (char *)whole.z + (size_t)(511 * w) * dpcr_dtype_size(c->dtype);
                half.states = (char *)whole.z + (size_t)(512 * w) * dpcr_dtype_size(c->dtype);
            }
            if (all && whole.window.sweeps > 0 && halves && memcmp(kept, whole.z, bytes) != 0)
                complain(c, &whole, -1, "has other bits in halves, size", 0.6 + 0.2 * size, 0);
            free(kept), free(c->truth);
        }
}

// W_l = a along (1, 1), b across it.
static void set_own(test_chain *c, int64_t l, double a, double b) {
    const int64_t w = c->p.width;
    for (int64_t i = 0; i < 4; i++)
        put_number(c->dtype, (void *)(uintptr_t)c->p.weight, l * c->p.weight_step + i / 2 * w + i % 2,
                   (a + (i % 3 ? -b : b)) / 2);
}

// Chains without a residual that keep all of their past: a sum, and one that turns. What windows leave within the
// tolerance is not carried on by those that follow, so the estimate is of the whole.
static void windows_do_not_add_up(test_chain *c) {
    for (int64_t w = 1; w <= 4; w++)
        for (int kind = 0; kind < 2; kind++) {
            const double tolerance = kind ? tolerance_of(c->dtype) : 1e-3, sum = 2e-7;
            c->count = 20000, c->layout = SHARED;
            make(c, w, DPCRI_ACT_IDENTITY, false, 0, 1e-3, (uint64_t)w);
            for (int64_t i = 0; i < w * w; i++) {
                const int64_t row = i / w, column = i % w;
                const bool turns = kind && (row ^ 1) < w && row / 2 == column / 2;
                const double turned = row == column ? cos(0.3) : row < column ? -sin(0.3) : sin(0.3);
                put_number(c->dtype, (void *)(uintptr_t)c->p.weight, i, turns ? turned : row == column);
            }
            for (int64_t i = 0; kind == 0 && i < c->count * w; i++)
                put_number(c->dtype, (void *)(uintptr_t)c->p.bias, i, sum);
            for (int64_t i = 0; i < w; i++) c->z0[i] = kind ? c->z0[i] : 0;
            run_loop(c);
            const answer a = solve(c, DPCRI_WINDOW_SHOOTING, tolerance, 50, 0);
            double error = 0;
            assert_int_equal(a.window.good, c->count);
            for (int64_t i = 0; i < c->count * w; i++)
                error = fmax(error, fabs(number_at(c->dtype, a.z, i) - c->truth[i]));
            if (!(error <= 2 * a.window.estimate + 10 * rounding_of(c->dtype)))
                complain(c, &a, kind, "is the kind: an error, and its estimate", error, a.window.estimate);
            free(c->truth);
        }
}

// A sum that is taken times eight where a window ends, and back by the next step: there its last state moves by more
// than what its chunks' starts are off by, and the residual that is told is that of the states.
static void moved_ends_are_told(test_chain *c) {
    enum { RISE = 8, EVERY = 512 };  // a whole number of windows, whatever the level
    const double tolerance = 1e-2;
    double told = 0, most = 0;
    for (int64_t w = 1; w <= 4; w++) {
        c->count = 4096, c->layout = OWN;
        make(c, w, DPCRI_ACT_IDENTITY, false, 0, 0, (uint64_t)w);
        for (int64_t l = 0; l < c->count; l++)
            for (int64_t i = 0; i < w * w; i++) {
                const double rise = l % EVERY == EVERY - 1 ? RISE : l > 0 && l % EVERY == 0 ? 1.0 / RISE : 1;
                put_number(c->dtype, (void *)(uintptr_t)c->p.weight, l * w * w + i, i % (w + 1) ? 0 : rise);
            }
        for (int64_t i = 0; i < c->count * w; i++) put_number(c->dtype, (void *)(uintptr_t)c->p.bias, i, 2e-6);
        for (int64_t i = 0; i < w; i++) c->z0[i] = 0;
        run_loop(c);
        const answer a = solve(c, DPCRI_WINDOW_SHOOTING, tolerance, 50, 0);
        assert_int_equal(a.window.good, c->count);
        double z[4] = {0}, f[4], residual = 0;
        for (int64_t l = 0; l < c->count; l++) {
            step(c, l, z, f);
            for (int64_t i = 0; i < w; i++) {
                z[i] = number_at(c->dtype, a.z, l * w + i);
                residual = fmax(residual, fabs(z[i] - f[i]));
            }
        }
        if (!(residual <= a.window.residual + rounding_of(c->dtype)))
            complain(c, &a, -1, "has a residual of", residual, a.window.residual);
        told = fmax(told, a.window.residual), most = fmax(most, residual);
        free(c->truth);
    }
    assert_true(most > 0 && told < 2 * tolerance);
}

// Chunks that forget what is far from them and not what is near, and one that repels across the corner it is asked by:
// from what zero makes of the chunk before, every chunk looks right and every defect is below the tolerance.
static void growth_that_no_start_shows(test_chain *c) {
    enum { CHUNK = 32 };
    for (int64_t w = 2; w <= 4; w++)
        for (int kind = 0; kind < 2; kind++) {
            c->count = 1024, c->layout = OWN;
            make(c, w, DPCRI_ACT_TANH, false, 0, 0, (uint64_t)w);
            for (int64_t l = 0; l < c->count; l++) {
                const int64_t k = l % CHUNK;
                const double near = k < 8 ? 0.6 : k < CHUNK - 1 ? 3 : 1e-7, calm = l < CHUNK ? 0.6 : 0.2;
                if (kind)
                    set_own(c, l, calm, l / CHUNK == 1 ? 1.4 : calm);
                else
                    set_own(c, l, near, near);
            }
            for (int64_t i = 0; i < w; i++) c->z0[i] = i > 1 ? 0 : i && kind ? -0.5 : 0.5;
            run_loop(c);
            assert_true(kind ? fabs(c->truth[63 * w]) > 1e-3 : fabs(c->truth[90 * w]) > 0.5);
            const answer a = solve(c, DPCRI_WINDOW_SHOOTING, 1e-6, 0, 0);
            check_states(c, &a, kind ? 1e-5 : 1e-2);
            free(c->truth);
        }
}

static void the_same_bits_twice(test_chain *c) {
    for (int64_t w = 1; w <= 4; w++)
        for (int method = 0; method < 2; method++) {
            const int named = method ? DPCRI_WINDOW_NEWTON : DPCRI_WINDOW_SHOOTING;
            c->count = 2900;
            c->layout = RECORDS;
            make(c, w, DPCRI_ACT_TANH, true, 0.9, 1, (uint64_t)w);
            const size_t bytes = (size_t)(c->count * w) * dpcr_dtype_size(c->dtype);
            const answer first = solve(c, named, tolerance_of(c->dtype), 0, 0);
            void *kept = malloc(bytes);
            memcpy(kept, first.z, bytes);
            solve(c, method ? DPCRI_WINDOW_SHOOTING : DPCRI_WINDOW_NEWTON, tolerance_of(c->dtype), 0,
                  0);  // another stack
            const answer again = solve(c, named, tolerance_of(c->dtype), 0, 0);
            assert_memory_equal(kept, again.z, bytes);
            assert_int_equal(first.window.sweeps, again.window.sweeps);
            free(kept), free(c->truth);
        }
}

static void what_is_not_served(test_chain *c) {
    c->count = 100, c->layout = SHARED;
    make(c, 2, DPCRI_ACT_TANH, false, 0.9, 1, 1);
    const dpcri_window_place where = {
        .count = c->count, .in = place(3, 8, c->dtype), .states = place(2, 400, c->dtype), .step = 2};
    dpcri_window window = {.method = 2, .atol = 1, .max_sweeps = 3};
    assert_int_equal(c->k->solve(&c->p, &where, &window), 1);
    window.method = DPCRI_WINDOW_NEWTON;
    c->p.diagonal = true;
    assert_int_equal(c->k->solve(&c->p, &where, &window), 1);
    c->p.diagonal = false, c->p.width = 5;
    assert_int_equal(c->k->solve(&c->p, &where, &window), 1);
    c->p.width = 2, c->p.activation = DPCRI_ACT_GELU;
    assert_int_equal(c->k->solve(&c->p, &where, &window), 1);
    free(c->truth);
}

// Adjoint chains against the loop in double. Rounding: a sum of at most `count` terms, relative to the largest state.
static void adjoint_chain(test_chain *c, int64_t w, bool residual, int direct_kind, int64_t gap) {
    make(c, w, DPCRI_ACT_TANH, residual, 0.9, 1, (uint64_t)(3 * c->count + w));
    const int64_t first = c->count / 7, count = c->count - first, step = w + gap, size = count * step - gap;
    const size_t each = dpcr_dtype_size(c->dtype);
    double *slope = malloc((size_t)size * sizeof *slope), *direct = malloc((size_t)size * sizeof *direct), g[4],
           most = 1;
    void *adjoint = place(2, size, c->dtype), *given = malloc((size_t)size * each),
         *slopes = malloc((size_t)size * each);
    void *last = place(3, w, c->dtype), *given_end = (char *)given + (size_t)size * each;
    for (int64_t i = 0; i < size; i++) {
        put_number(c->dtype, slopes, i, dpcri_random_uniform(SEED, 9, (uint64_t)i));
        put_number(c->dtype, given, i, dpcri_random_normal(SEED, 10, (uint64_t)i));
        slope[i] = number_at(c->dtype, slopes, i), direct[i] = direct_kind ? number_at(c->dtype, given, i) : 0;
        put_number(c->dtype, adjoint, i, -77);
    }
    for (int64_t i = 0; i < w; i++) put_number(c->dtype, last, i, g[i] = 0.5 * (double)(i + 1));
    if (direct_kind == 2) memcpy(adjoint, given, (size_t)((char *)given_end - (char *)given));
    const dpcri_window_adjoint a = {.first = first,
                                    .count = count,
                                    .slope = slopes,
                                    .slope_step = step,
                                    .direct = direct_kind == 0   ? NULL
                                              : direct_kind == 1 ? given
                                                                 : adjoint,
                                    .direct_step = step,
                                    .last = last,
                                    .adjoint = adjoint,
                                    .adjoint_step = step,
                                    .first_out = last};
    assert_int_equal(c->k->adjoint(&c->p, &a), 0);
    double *wanted = malloc((size_t)size * sizeof *wanted);
    for (int64_t l = count; l-- > 0;) {
        double d[4], to[4];
        const void *weight = c->p.weight;
        for (int64_t i = 0; i < w; i++) {
            g[i] += direct[l * step + i];
            wanted[l * step + i] = g[i];
            most = fmax(most, fabs(g[i]));
            d[i] = (residual ? c->p.scale : 1) * slope[l * step + i] * g[i];
        }
        for (int64_t j = 0; j < w; j++) {
            to[j] = residual ? g[j] : 0;
            for (int64_t i = 0; i < w; i++)
                to[j] +=
                    d[i] * number_at(c->dtype, weight,
                                     (first + l) * c->p.weight_step + (c->p.weight_in_out ? j * w + i : i * w + j));
        }
        memcpy(g, to, sizeof g);
    }
    const double bound = (64 + (double)count) * (c->dtype == DPCR_F32 ? 0x1p-23 : 0x1p-52) * most;
    for (int64_t l = 0; l < count; l++)
        for (int64_t i = 0; i < step && l * step + i < size; i++) {
            const double got = number_at(c->dtype, adjoint, l * step + i);
            const double right = i < w ? wanted[l * step + i] : direct_kind == 2 ? direct[l * step + i] : -77;
            if (!(fabs(got - right) <= (i < w ? bound : 0)))
                fail_msg("%s %s, %s, width %d, length %d, direct %d: adjoint state %d is %.9g, wanted %.9g",
                         level_names[c->level], c->dtype == DPCR_F32 ? "float" : "double", layout_names[c->layout],
                         (int)w, (int)count, direct_kind, (int)l, got, right);
        }
    for (int64_t i = 0; i < w; i++) assert_true(fabs(number_at(c->dtype, last, i) - g[i]) <= bound);
    // the end alone has the same bits
    double end[4], start[4];
    for (int64_t i = 0; i < w; i++)
        end[i] = number_at(c->dtype, last, i), put_number(c->dtype, last, i, 0.5 * (double)(i + 1));
    dpcri_window_adjoint alone = a;
    alone.direct = direct_kind ? given : NULL, alone.adjoint = NULL;
    assert_int_equal(c->k->adjoint(&c->p, &alone), 0);
    for (int64_t i = 0; i < w; i++) start[i] = number_at(c->dtype, last, i);
    assert_memory_equal(start, end, (size_t)w * sizeof *end);
    free(slope), free(direct), free(given), free(slopes), free(wanted), free(c->truth);
}

static void adjoint_chains(test_chain *c) {
    static const int64_t lengths[] = {255, 256, 257, 511, 1000, 1023, 1024, 1025, 3071, 4999};
    int64_t run = 0;
    for (int64_t w = 1; w <= 4; w++) {
        for (c->count = 2; c->count <= 200; c->count++) {
            c->layout = (int)((c->count + w) % LAYOUTS);
            adjoint_chain(c, w, c->count / 3 % 2, (int)(c->count % 3), c->count % 2);
        }
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (c->layout = 0; c->layout < LAYOUTS; c->layout++)
                for (int kind = 0; kind < 3; kind++) {
                    if (!sampled(run++)) continue;
                    c->count = lengths[i];
                    adjoint_chain(c, w, (i + (size_t)kind) % 2, kind, 0);
                }
    }
}

#define TEST(name) \
    static void test_##name(void **state) { (void)state, each_kernel(name); }
static void test_every_length(void **state) {
    (void)state;
    each_kernel(every_length);
    assert_true(kinked[0] > 0 && left[0] <= 1 + kinked[0] / 100);
    assert_true(left[1] <= 4 + kinked[1] / 10);  // 31 of all 960 cases with AVX-512; of a sample a part more
}
TEST(awkward_lengths)
TEST(affine_chains)
TEST(values_that_are_not_finite)
TEST(chains_that_do_not_converge)
TEST(corrections_do_not_add_up)
TEST(chains_that_forget)
TEST(a_past_that_grows)
TEST(nothing_allowed)
TEST(windows_do_not_add_up)
TEST(moved_ends_are_told)
TEST(growth_that_no_start_shows)
TEST(the_same_bits_twice)
TEST(what_is_not_served)
TEST(adjoint_chains)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_awkward_lengths),
        cmocka_unit_test(test_affine_chains),
        cmocka_unit_test(test_values_that_are_not_finite),
        cmocka_unit_test(test_chains_that_do_not_converge),
        cmocka_unit_test(test_corrections_do_not_add_up),
        cmocka_unit_test(test_chains_that_forget),
        cmocka_unit_test(test_a_past_that_grows),
        cmocka_unit_test(test_nothing_allowed),
        cmocka_unit_test(test_windows_do_not_add_up),
        cmocka_unit_test(test_moved_ends_are_told),
        cmocka_unit_test(test_growth_that_no_start_shows),
        cmocka_unit_test(test_the_same_bits_twice),
        cmocka_unit_test(test_what_is_not_served),
        cmocka_unit_test(test_adjoint_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
