// SPDX-License-Identifier: MIT
// The selective scan: every option, layout and extent against the definition in double, forward and gradients, in pages
// whose neighbours must not be touched; whole numbers exactly; the same bits for any number of threads, for a batch and
// its entries, with states kept or made again; step sizes and decays at their ends; requests to stop, refusals and
// refused memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kern/selective.h"

// In: 0 .. 8, then what comes out, then the gradients of what goes in, in the same order.
enum {
    U,
    DELTA,
    A_,
    B_,
    C_,
    SKIP,
    Z,
    BIAS,
    H0,
    INPUTS,
    Y = INPUTS,
    LAST,
    GY,
    GLAST,
    GRADIENTS,
    KEPT = GRADIENTS + INPUTS,
    USES
};
enum { MOST_BYTES = 1 << 20 };
#include "guarded.h"
#include "scan_testing.h"

static const char *const names[] = {"u", "delta", "a", "b", "c", "skip", "z", "delta_bias", "h0"};

typedef struct problem {
    dpcr_dtype dtype;
    int64_t batch, channels, groups, states, length;
    int64_t groups_c;      // 0: as many
    bool softplus, whole;  // whole: small whole numbers, and a = 0
    unsigned there;        // which of SKIP, Z, BIAS, H0, as bits
    layout layout;
    dpcr_array at[USES];
    dpcr_selective in;
    dpcr_selective_gradients out;
} problem;

static int64_t groups_of(const problem *p, int use) { return use == C_ && p->groups_c ? p->groups_c : p->groups; }

static int extents(const problem *p, int use, int64_t *shape) {
    const int what = use >= GRADIENTS              ? use - GRADIENTS
                     : use == Y || use == GY       ? U
                     : use == LAST || use == GLAST ? H0
                                                   : use;
    const int64_t rows[3] = {p->batch, p->channels, what == H0 ? p->states : p->length};
    const int64_t shared[4] = {p->batch, groups_of(p, what), p->states, p->length}, own[2] = {p->channels, p->states};
    const int ndim = what == A_ ? 2 : what == B_ || what == C_ ? 4 : what == SKIP || what == BIAS ? 1 : 3;
    memcpy(shape, ndim == 3 ? rows : ndim == 4 ? shared : own, (size_t)ndim * sizeof *shape);
    return ndim;
}

static const dpcr_array *given(const problem *p, int use) {
    const bool optional = use >= SKIP && use <= H0;
    return optional && !(p->there & 1u << use) ? NULL : &p->at[use];
}

static void fill(problem *p, bool beginning) {
    for (int use = 0; use < KEPT; use++) {
        int64_t shape[4];
        const int ndim = extents(p, use, shape);
        p->at[use] = lay_out(p->layout, p->dtype, ndim, shape, use, beginning);
        const bool rate = use == A_, step = use == DELTA || use == BIAS;
        for (int64_t i = 0; i < count_of(&p->at[use]); i++) {
            double x = use >= GRADIENTS || use == Y || use == LAST ? NAN : rate ? -2 - 1.9 * noise() : noise();
            if (step && !p->softplus) x = 0.3 + 0.2 * x;
            if (p->whole) x = rate ? 0 : use < Y || use == GY || use == GLAST ? (double)(int)(3 * x) : NAN;
            put(&p->at[use], i, x);
        }
    }
    const dpcr_array *const in[INPUTS] = {given(p, U),    given(p, DELTA), given(p, A_),   given(p, B_), given(p, C_),
                                          given(p, SKIP), given(p, Z),     given(p, BIAS), given(p, H0)};
    p->in = (dpcr_selective){sizeof p->in, in[U], in[DELTA], in[A_], in[B_],     in[C_],
                             in[SKIP],     in[Z], in[BIAS],  in[H0], p->softplus};
    const dpcr_array *g = p->at + GRADIENTS;
    p->out = (dpcr_selective_gradients){sizeof p->out,
                                        &g[U],
                                        &g[DELTA],
                                        &g[A_],
                                        &g[B_],
                                        &g[C_],
                                        in[SKIP] ? &g[SKIP] : NULL,
                                        in[Z] ? &g[Z] : NULL,
                                        in[BIAS] ? &g[BIAS] : NULL,
                                        &g[H0]};
}

// ---- the definition, and its derivative, in double ----

typedef struct reference {
    double *value[KEPT];  // of Y, LAST and the gradients
    double *scale[KEPT];  // the sums of what was added up, without signs
} reference;

static void add(const reference *r, int use, int64_t i, double x) {
    r->value[use][i] += x, r->scale[use][i] += fabs(x);
}

static double input(const problem *p, int use, int64_t i) { return given(p, use) ? get(&p->at[use], i) : 0; }

static void channel(const problem *p, const reference *r, int64_t b, int64_t d) {
    const int64_t L = p->length, N = p->states, row = b * p->channels + d, Gb = p->groups, Gc = groups_of(p, C_),
                  gb = b * Gb + d / (p->channels / Gb), gc = b * Gc + d / (p->channels / Gc);
    double *h = calloc((size_t)((L + 1) * N), sizeof *h), *carry = calloc((size_t)N, sizeof *carry);
    for (int64_t n = 0; n < N; n++) h[n] = input(p, H0, row * N + n);
    for (int back = 0; back < 2; back++)
        for (int64_t k = 0; k < L; k++) {
            const int64_t l = back ? L - 1 - k : k, i = row * L + l;
            const double u = input(p, U, i), raw = input(p, DELTA, i) + input(p, BIAS, d);
            const double t = p->softplus ? fmax(raw, 0) + log1p(exp(-fabs(raw))) : raw;
            const double z = input(p, Z, i), s = 1 / (1 + exp(-z)), gate = given(p, Z) ? z * s : 1;
            const double gy = get(&p->at[GY], i) * gate;
            double sum = input(p, SKIP, d) * u, size = fabs(sum), by_b = 0, by_a = 0, by_size = 0;
            for (int64_t n = 0; n < N; n++) {
                const double a = get(&p->at[A_], d * N + n), *before = h + l * N + n;
                const int64_t at_b = (gb * N + n) * L + l, at_c = (gc * N + n) * L + l;
                const double B = input(p, B_, at_b), C = input(p, C_, at_c), e = exp(t * a);
                if (!back) h[(l + 1) * N + n] = e * *before + t * B * u;
                sum += C * h[(l + 1) * N + n], size += fabs(C * h[(l + 1) * N + n]);
                if (!back) continue;
                const double x = gy * C + (k == 0 ? get(&p->at[GLAST], row * N + n) : carry[n]), w = x * e * *before;
                add(r, GRADIENTS + C_, at_c, gy * h[(l + 1) * N + n]);
                add(r, GRADIENTS + B_, at_b, x * t * u);
                add(r, GRADIENTS + A_, d * N + n, w * t);
                by_b += x * B, by_a += w * a, by_size += fabs(x * B * u) + fabs(w * a);
                carry[n] = x * e;
            }
            if (!back) {
                r->value[Y][i] = sum * gate, r->scale[Y][i] = size * (fabs(gate) + 1);
                continue;
            }
            const double slope = p->softplus ? 1 / (1 + exp(-raw)) : 1, gt = (u * by_b + by_a) * slope;
            add(r, GRADIENTS + U, i, t * by_b + input(p, SKIP, d) * gy);
            r->scale[GRADIENTS + U][i] += by_size;
            r->value[GRADIENTS + DELTA][i] = gt, r->scale[GRADIENTS + DELTA][i] = by_size;
            add(r, GRADIENTS + SKIP, d, gy * u);
            r->value[GRADIENTS + BIAS][d] += gt, r->scale[GRADIENTS + BIAS][d] += by_size;
            r->value[GRADIENTS + Z][i] = get(&p->at[GY], i) * sum * s * (1 + z * (1 - s));
            r->scale[GRADIENTS + Z][i] = 2 * size;
        }
    for (int64_t n = 0; n < N; n++) {
        add(r, LAST, row * N + n, h[L * N + n]);
        add(r, GRADIENTS + H0, row * N + n, L ? carry[n] : get(&p->at[GLAST], row * N + n));
    }
    free(h);
    free(carry);
}

static reference reference_of(const problem *p) {
    reference r = {{0}, {0}};
    for (int use = Y; use < KEPT; use++) {
        r.value[use] = calloc((size_t)count_of(&p->at[use]) + 1, sizeof(double));
        r.scale[use] = calloc((size_t)count_of(&p->at[use]) + 1, sizeof(double));
    }
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t d = 0; d < p->channels; d++) channel(p, &r, b, d);
    return r;
}

static void compare(const problem *p, int use, const reference *r) {
    if (use >= GRADIENTS && !given(p, use - GRADIENTS) && use - GRADIENTS != H0) return;
    // States add up errors of some ulps over what is not forgotten: here within some ten steps.
    const double eps = p->dtype == DPCR_F32 ? 0x1p-24 : 0x1p-53, bound = p->whole ? 0 : 120 * eps;
    for (int64_t i = 0; i < count_of(&p->at[use]); i++) {
        const double got = get(&p->at[use], i), want = r->value[use][i], error = fabs(got - want);
        if (!(error <= bound * (r->scale[use][i] + 1)))
            fail_msg("%s%s, number %lld: %.17g, wanted %.17g, %g eps of %g", use >= GRADIENTS ? "gradient of " : "",
                     use >= GRADIENTS ? names[use - GRADIENTS]
                     : use == Y       ? "y"
                                      : "last",
                     (long long)i, got, want, error / eps / (r->scale[use][i] + 1), r->scale[use][i]);
    }
}

static void check_problem(dpcr_context *context, problem *p, bool beginning) {
    dpcr_error error = {0};
    fill(p, beginning);
    const size_t bytes = dpcr_selective_kept_bytes(&p->in);
    reference r = reference_of(p);
    char *kept = bytes ? guarded(KEPT, bytes, beginning) : NULL;
    assert_true(bytes % 64 == 0 || p->batch * p->channels == 0 || p->length == 0 || dpcri_isa_level() != DPCRI_AVX512);
    if (kept && ((uintptr_t)kept & 63)) kept = NULL;
    if (dpcr_selective_scan(context, &p->in, &p->at[Y], &p->at[LAST], kept, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    if (dpcr_selective_adjoint(context, &p->in, &p->at[GY], &p->at[GLAST], kept, &p->out, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    for (int use = Y; use < KEPT; use++)
        if (use != GY && use != GLAST) compare(p, use, &r);
    for (int use = 0; use < KEPT; use++) free(r.value[use]), free(r.scale[use]);
}

static void agrees_with_the_definition(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 40}, channels[] = {1, 2, 5, 16, 17, 66},
                         states[] = {1, 3, 16, 17};
    dpcr_context *context = context_of(3, NULL);
    int which = 0;
    for (int64_t l = 0; l < 6; l++)
        for (int64_t c = 0; c < 6; c++)
            for (int64_t n = 0; n < 4; n++, which++) {
                problem p = {.dtype = which % 2 ? DPCR_F64 : DPCR_F32,
                             .batch = 1 + which % 2,
                             .channels = channels[c],
                             .groups = channels[c] % 2 == 0 && which % 3 ? 2 : 1,
                             .states = states[n],
                             .length = lengths[l],
                             .softplus = which / 2 % 2,
                             .there = (unsigned)(which * 37 % 16) << SKIP,
                             .layout = (layout)(which % 3)};
                check_problem(context, &p, which % 5 < 2);
            }
    dpcr_context_destroy(context);
}

// Groups of b and of c, few channels each and many, that fill lanes together or not, of the same channels or across.
static void takes_any_groups(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {
        {6, 6, 6},     {6, 3, 3},   {6, 2, 3},     {6, 1, 6},   {6, 6, 1},   {40, 40, 40}, {40, 20, 20},
        {40, 8, 8},    {40, 5, 40}, {40, 1, 40},   {40, 40, 1}, {40, 8, 20}, {48, 2, 3},   {48, 16, 48},
        {96, 2, 3},    {96, 4, 32}, {90, 5, 6},    {66, 6, 11}, {68, 2, 4},  {72, 8, 9},   {192, 3, 2},
        {144, 48, 36}, {34, 2, 1},  {130, 65, 13}, {7, 7, 7},   {17, 17, 1}, {35, 5, 7},   {35, 7, 7}};
    dpcr_context *context = context_of(3, NULL);
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (int which = 0; which < 6; which++) {
            problem p = {.dtype = which % 2 ? DPCR_F64 : DPCR_F32,
                         .batch = 1 + which / 2 % 2,
                         .channels = sizes[k][0],
                         .groups = sizes[k][1],
                         .groups_c = sizes[k][2],
                         .states = which == 3 ? 17 : 3,
                         .length = which == 4 ? 1 : 19,
                         .softplus = which % 3 == 1,
                         .there = (unsigned)(which * 7 % 16) << SKIP,
                         .layout = (layout)(which / 2)};
            check_problem(context, &p, which < 2);
        }
    dpcr_context_destroy(context);
}

// Without a decay all is sums of whole numbers.
static void adds_whole_numbers_exactly(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 6; k++) {
        problem p = {.dtype = k % 2 ? DPCR_F64 : DPCR_F32,
                     .batch = 2,
                     .channels = 20,
                     .groups = 2,
                     .states = 5,
                     .length = 60,
                     .whole = true,
                     .there = 1u << SKIP | 1u << BIAS | (unsigned)(k < 3) << H0,
                     .layout = (layout)(k / 2)};
        check_problem(context, &p, false);
    }
    dpcr_context_destroy(context);
}

static void takes_no_steps_and_no_channels(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 3; k++) {
        problem p = {.dtype = DPCR_F32,
                     .batch = k == 0 ? 0 : 2,
                     .channels = k == 1 ? 0 : 6,
                     .groups = 1,
                     .states = 3,
                     .length = k == 2 ? 0 : 4,
                     .there = 15u << SKIP};
        check_problem(context, &p, false);
    }
    dpcr_context_destroy(context);
}

// A sum over nothing is 0.
static void sums_nothing(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    problem p = {.dtype = DPCR_F32, .batch = 2, .channels = 6, .groups = 6, .states = 3, .length = 0};
    fill(&p, false);
    float gb[18];
    for (int i = 0; i < 18; i++) gb[i] = NAN;
    p.at[GRADIENTS + B_].data = gb;
    memcpy(p.at[GRADIENTS + B_].strides, (int64_t[]){0, 3, 1, 0}, 4 * sizeof(int64_t));
    assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &p.out, NULL), DPCR_OK);
    for (int i = 0; i < 18; i++) assert_true(gb[i] == 0);
    problem none = {.dtype = DPCR_F32, .batch = 2, .channels = 0, .groups = 3, .states = 3, .length = 2};
    fill(&none, false);
    for (int i = 0; i < 18; i++) gb[i] = NAN;
    none.at[GRADIENTS + B_].data = gb;
    none.at[GRADIENTS + B_].strides[0] = 0;
    assert_int_equal(dpcr_selective_adjoint(context, &none.in, &none.at[GY], NULL, NULL, &none.out, NULL), DPCR_OK);
    for (int i = 0; i < 18; i++) assert_true(gb[i] == 0);
    for (int64_t i = 0; i < 36; i++) assert_true(get(&none.at[GRADIENTS + C_], i) == 0);
    dpcr_context_destroy(context);
}

// ---- bits ----

static problem middling(dpcr_dtype dtype, int64_t batch, int64_t channels) {
    return (problem){.dtype = dtype,
                     .batch = batch,
                     .channels = channels,
                     .groups = 1,
                     .states = 4,
                     .length = 35,
                     .softplus = true,
                     .there = 15u << SKIP};
}

static void run(dpcr_context *context, problem *p, void *kept) {
    assert_int_equal(dpcr_selective_scan(context, &p->in, &p->at[Y], &p->at[LAST], kept, NULL), DPCR_OK);
    assert_int_equal(dpcr_selective_adjoint(context, &p->in, &p->at[GY], &p->at[GLAST], kept, &p->out, NULL), DPCR_OK);
}

// What comes out, copied the first time and compared from then on.
static void same_bits(const problem *p, void **first, const char *of) {
    for (int use = Y; use < KEPT; use++) {
        const size_t all = (size_t)count_of(&p->at[use]) * dpcr_dtype_size(p->dtype);
        if (use == GY || use == GLAST) continue;
        if (!first[use]) first[use] = memcpy(malloc(all + 1), p->at[use].data, all);
        if (memcmp(first[use], p->at[use].data, all) != 0) fail_msg("%s: use %d has other bits", of, use);
    }
}

static void forget_bits(void **first) {
    for (int use = 0; use < KEPT; use++) free(first[use]);
}

static void bits_are_those_of_one_thread(void **state) {
    (void)state;
    static const int64_t groups[][2] = {{1, 1}, {1, 300}, {150, 20}, {100, 300}};
    for (int k = 0; k < 10; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 1 + k / 2 % 2, k / 2 ? 300 : 70);
        if (k / 2) p.length = 20, p.states = 3;
        if (k > 2) p.groups = groups[(k - 2) / 2][0], p.groups_c = groups[(k - 2) / 2][1];
        fill(&p, false);
        void *kept = aligned_alloc(64, (dpcr_selective_kept_bytes(&p.in) + 63) / 64 * 64), *first[KEPT] = {0};
        for (int threads = 1; threads <= 4; threads++) {
            dpcr_context *context = context_of(threads, NULL);
            run(context, &p, threads % 2 ? kept : NULL);
            same_bits(&p, first, "more threads");
            dpcr_context_destroy(context);
        }
        forget_bits(first);
        free(kept);
    }
}

// An entry alone, and some channels alone, have the bits of the whole.
static void bits_do_not_depend_on_neighbours(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    problem p = middling(DPCR_F32, 2, 40);
    fill(&p, false);
    run(context, &p, NULL);
    const int64_t L = p.length, N = p.states, from = 17, channels = 9;
    float *y = malloc((size_t)(channels * L) * sizeof *y), *last = malloc((size_t)(channels * N) * sizeof *last);
    dpcr_array part[INPUTS];
    for (int use = 0; use < INPUTS; use++) {
        part[use] = p.at[use];
        const int batched = use != A_ && use != SKIP && use != BIAS, own = use != B_ && use != C_;
        float *data = part[use].data;
        if (batched) data += part[use].strides[0], part[use].shape[0] = 1;
        if (own) data += from * part[use].strides[batched], part[use].shape[batched] = channels;
        part[use].data = data;
    }
    const dpcr_selective in = {sizeof in,   &part[U], &part[DELTA], &part[A_], &part[B_], &part[C_],
                               &part[SKIP], &part[Z], &part[BIAS],  &part[H0], 1};
    const int64_t rows[3] = {1, channels, L}, ends[3] = {1, channels, N};
    const dpcr_array to = dpcr_array_make(y, DPCR_F32, 3, rows), end = dpcr_array_make(last, DPCR_F32, 3, ends);
    assert_int_equal(dpcr_selective_scan(context, &in, &to, &end, NULL, NULL), DPCR_OK);
    assert_memory_equal(y, (float *)p.at[Y].data + (40 + from) * L, (size_t)(channels * L) * sizeof *y);
    assert_memory_equal(last, (float *)p.at[LAST].data + (40 + from) * N, (size_t)(channels * N) * sizeof *last);
    free(y);
    free(last);
    dpcr_context_destroy(context);
}

// One rate for all states of a channel, as a view with a stride of 0: the bits of as many rates as there are states.
static void shares_a_rate(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 4; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 2, 40);
        void *first[KEPT] = {0};
        p.states = k / 2 ? 19 : 4, p.length = 33;
        fill(&p, false);
        for (int64_t i = 0; i < count_of(&p.at[A_]); i++) put(&p.at[A_], i, get(&p.at[A_], i / p.states * p.states));
        for (int shared = 0; shared < 2; shared++) {
            _Alignas(64) char unused[64] = {7};
            if (shared) p.at[A_].strides[1] = 0;
            assert_true((dpcr_selective_kept_bytes(&p.in) == 0) == shared);  // they are made again: there is no room
            run(context, &p, shared ? unused : NULL);
            assert_int_equal(unused[0], 7);
            same_bits(&p, first, "a shared rate");
        }
        forget_bits(first);
    }
    dpcr_context_destroy(context);
}

// The same numbers of b and c for all channels, given for each and as one's view; and constant in time, as strides of 0
// and step by step: the same bits but of what the views leave out.
static void bits_do_not_depend_on_how_groups_lie(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 8; k++) {
        const bool constant = k / 2 % 2;
        const int64_t groups = k / 4 ? 14 : 42;
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 2, 42);
        void *first[KEPT] = {0};
        p.groups = groups;
        fill(&p, false);
        for (int use = B_; use <= C_; use++)
            for (int64_t i = 0; i < count_of(&p.at[use]); i++) {
                const int64_t L = p.length, N = p.states;
                put(&p.at[use], i,
                    get(&p.at[use],
                        constant ? i / L % (groups * N) * L : i / (groups * N * L) * groups * N * L + i % (N * L)));
            }
        run(context, &p, NULL);
        same_bits(&p, first, "groups");
        for (int use = B_; use <= C_; use++) {
            dpcr_array *b = &p.at[use], *g = &p.at[GRADIENTS + use];
            if (constant) {
                b->strides[0] = b->strides[3] = 0;
                run(context, &p, NULL);
                same_bits(&p, first, "constant in time");
                continue;
            }
            b->shape[1] = 1, g->shape[1] = 1;
            run(context, &p, NULL);
            b->shape[1] = groups, b->strides[1] = 0, g->shape[1] = groups;
            for (int other = Y; other < KEPT; other++)
                if (other == GRADIENTS + B_ || other == GRADIENTS + C_) free(first[other]), first[other] = NULL;
            same_bits(&p, first, "one group");
            run(context, &p, NULL);
            for (int other = GRADIENTS + B_; other <= GRADIENTS + C_; other++) free(first[other]), first[other] = NULL;
            same_bits(&p, first, "a group for each, as one's view");
        }
        forget_bits(first);
    }
    dpcr_context_destroy(context);
}

// Of all gradients but those that are summed over the batch, however many channels there are beside the entry's.
static void gradients_do_not_depend_on_the_batch(void **state) {
    (void)state;
    static const int uses[] = {U, DELTA, B_, C_, Z, H0};
    for (int threads = 1; threads <= 4; threads++) {
        dpcr_context *context = context_of(threads, NULL);
        problem p = middling(DPCR_F32, 2, 300);
        p.length = 20, p.states = 3;
        fill(&p, false);
        run(context, &p, NULL);
        void *whole[6];
        for (int use = 0; use < KEPT; use++) {
            const int what = use % GRADIENTS;
            if (what == A_ || what == SKIP || what == BIAS) continue;
            p.at[use].data = (float *)p.at[use].data + p.at[use].strides[0];
            p.at[use].shape[0] = 1;
        }
        for (int i = 0; i < 6; i++) {
            const dpcr_array *a = &p.at[GRADIENTS + uses[i]];
            const size_t bytes = (size_t)count_of(a) * sizeof(float);
            whole[i] = memcpy(malloc(bytes), a->data, bytes);
            memset(a->data, 0xff, bytes);
        }
        run(context, &p, NULL);
        for (int i = 0; i < 6; i++) {
            const dpcr_array *a = &p.at[GRADIENTS + uses[i]];
            if (memcmp(whole[i], a->data, (size_t)count_of(a) * sizeof(float)) != 0)
                fail_msg("%d threads: the gradient of %s has other bits alone", threads, names[uses[i]]);
            free(whole[i]);
        }
        dpcr_context_destroy(context);
    }
}

// A gradient's stride of 0 is the sum over that axis of what is there without: whatever the threads, the same bits.
static void sums_over(problem *p, int use, unsigned axes) {
    dpcr_array *a = &p->at[GRADIENTS + use];
    const int64_t count = count_of(a);
    double *sum = calloc((size_t)count, sizeof *sum), *size = calloc((size_t)count, sizeof *size);
    const dpcr_array whole = *a;
    double *first = malloc((size_t)count * sizeof *first);
    dpcr_context *context = context_of(2, NULL);
    fill(p, false);
    run(context, p, NULL);
    dpcr_context_destroy(context);
    for (int d = 0; d < a->ndim; d++)
        if (axes >> d & 1) a->strides[d] = 0;
    for (int64_t i = 0; i < count; i++)
        sum[place_of(a, i)] += get(&whole, i), size[place_of(a, i)] += fabs(get(&whole, i));
    for (int threads = 1; threads <= 4; threads++) {
        context = context_of(threads, NULL);
        for (int64_t i = 0; i < count; i++) put(&whole, i, NAN);
        run(context, p, NULL);
        dpcr_context_destroy(context);
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = place_of(a, i);
            const double got = get(a, i), eps = p->dtype == DPCR_F32 ? 0x1p-24 : 0x1p-53;
            if (!(fabs(got - sum[at]) <= 200 * eps * (size[at] + 1)) || (threads > 1 && got != first[at]))
                fail_msg("gradient of %s, axes %u, number %lld, %d threads: %.17g, wanted %.17g", names[use], axes,
                         (long long)i, threads, got, sum[at]);
            first[at] = got;
        }
        for (int64_t i = 0; i < count; i++)  // and nothing else is written
            if (place_of(a, i) != place_of(&whole, i))
                assert_true(size[place_of(&whole, i)] != 0 || isnan(get(&whole, i)));
    }
    *a = whole;
    free(sum), free(size), free(first);
}

static void sums_over_strides_of_0(void **state) {
    (void)state;
    static const int summed[] = {A_, B_, C_, SKIP, BIAS},
                     groups[][2] = {{1, 1}, {3, 3}, {12, 12}, {36, 36}, {36, 1}, {4, 9}};
    for (int k = 0; k < 12; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 2, 36);
        p.groups = groups[k / 2][0], p.groups_c = groups[k / 2][1];
        fill(&p, false);
        for (int i = 0; i < 5; i++)
            for (unsigned axes = 1; axes < 1u << p.at[summed[i]].ndim; axes++) sums_over(&p, summed[i], axes);
    }
}

// ---- numbers at their ends ----

static double one_step(dpcr_context *context, dpcr_dtype dtype, double delta, double a, bool softplus, double u,
                       double h0) {
    problem p = {.dtype = dtype,
                 .batch = 1,
                 .channels = 1,
                 .groups = 1,
                 .states = 1,
                 .length = 1,
                 .softplus = softplus,
                 .there = 1u << H0};
    fill(&p, false);
    put(&p.at[DELTA], 0, delta), put(&p.at[A_], 0, a), put(&p.at[U], 0, u), put(&p.at[H0], 0, h0);
    put(&p.at[B_], 0, 1), put(&p.at[C_], 0, 1);
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, NULL, NULL), DPCR_OK);
    return get(&p.at[Y], 0);
}

static void meets_ends(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    for (int wide = 0; wide < 2; wide++) {
        const dpcr_dtype dtype = wide ? DPCR_F64 : DPCR_F32;
        const double eps = wide ? 0x1p-52 : 0x1p-23, least = wide ? 4e-308 : 2e-38;
        for (double y = -800; y < 800; y += 0.37) {  // the decay alone
            const double x = wide ? y : (double)(float)y, want = exp(x),
                         got = one_step(context, dtype, 1, x, false, 0, 1);
            const double most = wide ? 709.4 : 88.3;
            if (x > most ? !(got > (wide ? 1e308 : 2e38)) : !(fabs(got - want) <= 2 * eps * want + least))
                fail_msg("e^%g: %g, wanted %g", x, got, want);
            const double slope = one_step(context, dtype, x / 10, 0, true, 1, 0),
                         soft = fmax(x / 10, 0) + log1p(exp(-fabs(x / 10)));
            if (!(fabs(slope - (wide ? soft : fmax((float)(x / 10), 0) + log1p(exp(-fabs((double)(float)(x / 10)))))) <=
                  3 * eps * soft + least))
                fail_msg("softplus %g: %.17g, wanted %.17g", x / 10, slope, soft);
        }
        assert_true(one_step(context, dtype, INFINITY, -1, false, 0, 1) !=
                    one_step(context, dtype, INFINITY, -1, false, 0, 1));
        assert_true(fabs(one_step(context, dtype, 1, -INFINITY, false, 2, 1) - 2) <= least);
        assert_true(isinf(one_step(context, dtype, 1, INFINITY, false, 2, 1)));
        assert_true(isnan(one_step(context, dtype, NAN, -1, true, 1, 1)));
        assert_true(isnan(one_step(context, dtype, 1, NAN, false, 1, 1)));
        assert_true(isnan(one_step(context, dtype, 1, -1, false, NAN, 1)));
        assert_true(isinf(one_step(context, dtype, INFINITY, 0, true, 1, 0)) ||
                    isnan(one_step(context, dtype, INFINITY, 0, true, 1, 0)));
    }
    dpcr_context_destroy(context);
}

// Infinities of b and c come out as such: lanes without a channel, where they meet zeros, are of no sum.
static void keeps_infinities_apart(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    for (int which = 0; which < 16; which++) {
        const int k = which % 4;
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, 1, 17);
        p.groups = which / 4 % 2 ? 17 : 1, p.groups_c = which / 8 ? 17 : 1;
        p.length = 3, p.states = 2, p.softplus = false, p.there = 0;
        fill(&p, false);
        for (int use = U; use < INPUTS; use++)
            for (int64_t i = 0; i < count_of(&p.at[use]); i++) put(&p.at[use], i, use == A_ ? -1 : 1);
        for (int64_t i = 0; i < 51; i++) put(&p.at[GY], i, 1);
        for (int64_t i = 0; i < 34; i++) put(&p.at[GLAST], i, 1);
        put(&p.at[k < 2 ? B_ : C_], 1, INFINITY);  // of state 0 and step 1
        run(context, &p, NULL);
        for (int64_t l = 0; l < 3; l++) {
            const double gb = get(&p.at[GRADIENTS + B_], l), gc = get(&p.at[GRADIENTS + C_], l);
            if (isnan(gb) || isnan(gc) || !isinf(gc) == (k < 2 && l >= 1) || !isinf(gb) == (k >= 2 && l <= 1))
                fail_msg("step %d: gradients %g of b and %g of c", (int)l, gb, gc);
        }
        for (int use = B_; use <= C_; use++)  // other groups' are finite where either is by channels
            for (int64_t i = 6; i < count_of(&p.at[GRADIENTS + use]); i++)
                if ((k < 2 ? p.groups : p.groups_c) == 17 && !isfinite(get(&p.at[GRADIENTS + use], i)))
                    fail_msg("gradient of %s, number %d: %g", names[use], (int)i, get(&p.at[GRADIENTS + use], i));
    }
    dpcr_context_destroy(context);
}

// The stride of a single step says nothing.
static void takes_any_stride_of_one_step(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    problem p = middling(DPCR_F32, 1, 5);
    p.length = 1;
    fill(&p, false);
    const int64_t odd[] = {INT64_MAX, INT64_MIN, 1};
    double last = 0;
    for (int k = 0; k < 3; k++) {
        for (int use = 0; use < KEPT; use++) {
            const int what = use >= GRADIENTS ? use - GRADIENTS : use;
            if (what == B_ || what == C_) p.at[use].strides[3] = odd[k];
            if (what == U || what == DELTA || what == Z || what == Y || what == GY) p.at[use].strides[2] = odd[k];
        }
        run(context, &p, NULL);
        const double sum = get(&p.at[Y], 3) + get(&p.at[GRADIENTS + DELTA], 2) + get(&p.at[GRADIENTS + B_], 1);
        assert_true(k == 0 || sum == last);
        last = sum;
    }
    dpcr_context_destroy(context);
}

// ---- what is refused, and who stops ----

// One number for all that goes in, and much of it.
static void stops_when_asked(void **state) {
    (void)state;
    enum { CHANNELS = 64, LENGTH = 1 << 14, STATES = 2048 };
    const int64_t rows[3] = {1, CHANNELS, LENGTH}, a[2] = {CHANNELS, STATES}, shared[4] = {1, 1, STATES, LENGTH};
    float one = 1, *y = malloc((size_t)CHANNELS * LENGTH * sizeof *y);
    const dpcr_array to = dpcr_array_make(y, DPCR_F32, 3, rows);
    dpcr_array u = dpcr_array_make(&one, DPCR_F32, 3, rows), rates = dpcr_array_make(&one, DPCR_F32, 2, a),
               b = dpcr_array_make(&one, DPCR_F32, 4, shared);
    memset(u.strides, 0, sizeof u.strides);
    memset(rates.strides, 0, sizeof rates.strides);
    memset(b.strides, 0, sizeof b.strides);
    const dpcr_selective in = {.size = sizeof in, .u = &u, .delta = &u, .a = &rates, .b = &b, .c = &b};
    const dpcr_selective_gradients out = {.size = sizeof out, .u = &to};
    dpcr_context *context = context_of(2, asked);
    dpcr_error error = {0};
    for (int back = 0; back < 2; back++) {
        const dpcr_status status = back ? dpcr_selective_adjoint(context, &in, &u, NULL, NULL, &out, &error)
                                        : dpcr_selective_scan(context, &in, &to, NULL, NULL, &error);
        assert_int_equal(status, DPCR_ERROR_CANCELLED);
        assert_non_null(strstr(error.text, back ? "selective_adjoint" : "selective_scan"));
    }
    dpcr_context_destroy(context);
    free(y);
}

static dpcr_status there_and_back(dpcr_context *context, void *user) {
    const problem *p = user;
    const dpcr_status status = dpcr_selective_scan(context, &p->in, &p->at[Y], NULL, NULL, NULL);
    return status == DPCR_OK ? dpcr_selective_adjoint(context, &p->in, &p->at[GY], NULL, NULL, &p->out, NULL) : status;
}

static void refuses(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    dpcr_error error = {0};
    problem p = middling(DPCR_F32, 2, 6);
    static const char *const wanted[] = {"[B][D][L]",          "[2][6][35] float32",    "[D][N]",
                                         "[B][G][N][L]",       "[2][1][4][35] float32", "[6] float32",
                                         "[2][6][35] float32", "[6] float32",           "[2][6][4] float32"};
    for (int use = 0; use < INPUTS; use++) {
        fill(&p, false);
        dpcr_array *a = &p.at[use];
        a->ndim++, a->shape[a->ndim - 1] = 1;
        assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
        if (!strstr(error.text, names[use]) || !strstr(error.text, wanted[use]))
            fail_msg("%s: '%s'", names[use], error.text);
        assert_int_equal(dpcr_selective_kept_bytes(&p.in), 0);
        fill(&p, false);
        if (use == A_) continue;  // its extents are what the others are held to
        a->shape[a->ndim - 1]++;
        assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &p.out, &error),
                         DPCR_ERROR_ARGUMENT);
        if (use != U && use != DELTA && use != Z && use != H0) continue;  // the others' are sums
        fill(&p, false);
        p.at[GRADIENTS + use].strides[0] = 0;
        assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &p.out, &error),
                         DPCR_ERROR_ARGUMENT);
        if (!strstr(error.text, names[use]) || !strstr(error.text, "stride of 0"))
            fail_msg("%s: '%s'", names[use], error.text);
    }
    for (int use = 0; use < KEPT; use++) {  // the farthest number's place, there or back, is beyond what memory has
        const int what = use % GRADIENTS, steps = what == B_ || what == C_ ? 3 : use == Y || use == GY ? 2 : 0;
        for (int k = 0; k < 2; k++) {
            fill(&p, false);
            p.at[use].strides[steps] = k ? INT64_MIN : INT64_MAX / 4 / (p.at[use].shape[steps] - 1) + 1;
            const dpcr_status status =
                use == Y || use == LAST
                    ? dpcr_selective_scan(context, &p.in, &p.at[Y], &p.at[LAST], NULL, &error)
                    : dpcr_selective_adjoint(context, &p.in, &p.at[GY], &p.at[GLAST], NULL, &p.out, &error);
            assert_int_equal(status, DPCR_ERROR_OVERFLOW);
            assert_non_null(strstr(error.text, "beyond the address space"));
            if (use < INPUTS || use >= GRADIENTS) assert_non_null(strstr(error.text, names[what]));
        }
    }
    fill(&p, false);
    p.at[B_].shape[1] = 4, p.at[C_].shape[1] = 4;
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "G divides D = 6"));
    for (int k = 0; k < 2; k++) {  // nothing, but sizes beside it that are too large
        fill(&p, false);
        for (int use = U; use < INPUTS; use++) {
            const int steps = use == B_ || use == C_ ? 3 : use == U || use == DELTA || use == Z ? 2 : 0;
            if (use != A_ && use != SKIP && use != BIAS) p.at[use].shape[0] = k == 0 ? 0 : INT64_MAX / 64;
            if (k == 0 && steps) p.at[use].shape[steps] = INT64_MAX;
            if (k == 1 && steps) p.at[use].shape[steps] = 0;
        }
        p.at[GY] = p.at[U];
        const dpcr_selective_gradients none = {.size = sizeof none};
        assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &none, &error),
                         DPCR_ERROR_OVERFLOW);
        assert_non_null(strstr(error.text, "more than memory can number"));
        assert_int_equal(dpcr_selective_kept_bytes(&p.in), 0);
    }
    fill(&p, false);
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[U], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "y lies where u does"));
    fill(&p, false);
    p.at[GRADIENTS + B_].data = p.at[GRADIENTS + A_].data;
    assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &p.out, &error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "the gradient of a lies where the gradient of b does"));
    fill(&p, false);
    for (int back = 0; back < 2; back++) {
        char *off = guarded(KEPT, 1 << 16, true) + 16;
        const dpcr_status status = back ? dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, off, &p.out, &error)
                                        : dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, off, &error);
        assert_int_equal(status, DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "kept lies 16 bytes off"));
    }
    p.in.z = NULL;
    assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &p.out, &error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "not there"));
    fill(&p, false);
    p.at[DELTA].data = NULL;
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "delta has no data"));
    fill(&p, false);
    p.in.size--;
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    fill(&p, false);
    p.in.c = NULL;
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    fill(&p, false);
    p.at[Z].dtype = DPCR_F64;
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_selective_scan(NULL, &p.in, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_selective_scan(context, NULL, &p.at[Y], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_selective_scan(context, &p.in, NULL, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    fill(&p, false);
    assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(context);
    refuses_without_memory(there_and_back, &p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_definition),
        cmocka_unit_test(takes_any_groups),
        cmocka_unit_test(adds_whole_numbers_exactly),
        cmocka_unit_test(takes_no_steps_and_no_channels),
        cmocka_unit_test(sums_nothing),
        cmocka_unit_test(bits_are_those_of_one_thread),
        cmocka_unit_test(bits_do_not_depend_on_neighbours),
        cmocka_unit_test(shares_a_rate),
        cmocka_unit_test(bits_do_not_depend_on_how_groups_lie),
        cmocka_unit_test(gradients_do_not_depend_on_the_batch),
        cmocka_unit_test(sums_over_strides_of_0),
        cmocka_unit_test(meets_ends),
        cmocka_unit_test(keeps_infinities_apart),
        cmocka_unit_test(takes_any_stride_of_one_step),
        cmocka_unit_test(stops_when_asked),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
