// SPDX-License-Identifier: MIT
// The selective scan: every option, layout and extent against the definition in double, forward and gradients, in pages
// whose neighbours must not be touched; whole numbers exactly; step sizes and decays at their ends; requests to stop,
// refusals and refused memory. Its bits: test_selective_bits.c.
#include "selective_problem.h"

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

// Over a million steps all alike: as near as sums of a piece's 256 terms are, and in float64 of as many pieces. b and
// c go by lane, where what is constant in time is summed so too.
enum { MANY = 1 << 20, PIECE = 256 };

// The gradients of one channel, all of whose steps have `in` and gy.
static void sum_many(const double *in, double gy, long double *sums) {
    const double t = in[DELTA] + in[BIAS], e = exp(t * in[A_]);
    double *before = calloc(MANY + 1, sizeof *before), carry = 0;
    assert_non_null(before);
    for (int64_t l = 0; l < MANY; l++) before[l + 1] = e * before[l] + t * in[B_] * in[U];
    for (int64_t l = MANY - 1; l >= 0; l--) {
        const double g = gy * in[C_] + carry, through = g * e * before[l];
        sums[A_] += through * t, sums[B_] += g * t * in[U], sums[C_] += gy * before[l + 1];
        sums[SKIP] += gy * in[U], sums[BIAS] += g * in[B_] * in[U] + through * in[A_];
        carry = g * e;
    }
    free(before);
}

static void sums_over_many_steps(void **state) {
    (void)state;
    enum { CHANNELS = 4 };
    dpcr_context *context = context_of(1, NULL);
    for (int k = 0; k < 2; k++) {
        const dpcr_dtype dtype = k ? DPCR_F64 : DPCR_F32;
        const double eps = k ? 0x1p-53 : 0x1p-24, bound = eps * (PIECE + 64 + (k ? MANY / PIECE : 0));
        const int64_t rows[3] = {1, CHANNELS, MANY}, a[2] = {CHANNELS, 1},
                      shared[4] = {1, CHANNELS, 1, MANY}, *const shapes[] = {rows, rows, a, shared, shared,
                                                                             a,    rows, a, rows};
        static const double values[] = {0.7, 0.3, -0.9, 0.6, 0.9, 1.3, 0, 0.2, 0};  // of U to BIAS
        double in[INPUTS] = {0}, numbers[INPUTS], gy_number = 0, out[INPUTS][CHANNELS] = {{0}};
        dpcr_array arrays[INPUTS], made[INPUTS], gy = dpcr_array_make(&gy_number, dtype, 3, rows);
        put(&gy, 0, 0.7);
        memset(gy.strides, 0, sizeof gy.strides);
        for (int use = 0; use < INPUTS; use++) {
            const int dims = use == A_ ? 2 : use == B_ || use == C_ ? 4 : use == SKIP || use == BIAS ? 1 : 3;
            arrays[use] = dpcr_array_make(&numbers[use], dtype, dims, shapes[use]);
            made[use] = dpcr_array_make(out[use], dtype, dims, shapes[use]);
            put(&arrays[use], 0, values[use]);
            in[use] = get(&arrays[use], 0);
            memset(arrays[use].strides, 0, sizeof arrays[use].strides);
            if (use == B_ || use == C_) made[use].strides[1] = 1, made[use].strides[3] = 0;
        }
        const dpcr_selective scan = {.size = sizeof scan,
                                     .u = &arrays[U],
                                     .delta = &arrays[DELTA],
                                     .a = &arrays[A_],
                                     .b = &arrays[B_],
                                     .c = &arrays[C_],
                                     .skip = &arrays[SKIP],
                                     .delta_bias = &arrays[BIAS]};
        const dpcr_selective_gradients gradients = {.size = sizeof gradients,
                                                    .a = &made[A_],
                                                    .b = &made[B_],
                                                    .c = &made[C_],
                                                    .skip = &made[SKIP],
                                                    .delta_bias = &made[BIAS]};
        assert_int_equal(dpcr_selective_adjoint(context, &scan, &gy, NULL, NULL, &gradients, NULL), DPCR_OK);
        long double sums[INPUTS] = {0};
        sum_many(in, get(&gy, 0), sums);
        static const int summed[] = {A_, B_, C_, SKIP, BIAS};
        for (int i = 0; i < 5; i++) {
            const double want = (double)sums[summed[i]];
            for (int c = 0; c < CHANNELS; c++) {
                const double got = get(&made[summed[i]], c);
                if (!(fabs(got - want) <= bound * fabs(want)))
                    fail_msg("gradient of %s: %.17g, wanted %.17g", names[summed[i]], got, want);
            }
        }
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

// Of no steps either; where nothing is wanted there is nothing to do, however many sequences there are.
static void stops_among_states_of_no_steps(void **state) {
    (void)state;
    enum { BATCH = 1 << 12, CHANNELS = 64 };
    const int64_t rows[3] = {BATCH, CHANNELS, 0}, a[2] = {CHANNELS, 1}, shared[4] = {BATCH, 1, 1, 0};
    const int64_t h[3] = {BATCH, CHANNELS, 1}, many = INT64_C(1) << 40;
    float rate = 0, *memory = calloc((size_t)BATCH * CHANNELS, sizeof *memory);
    dpcr_array u = dpcr_array_make(NULL, DPCR_F32, 3, rows), rates = dpcr_array_make(&rate, DPCR_F32, 2, a),
               b = dpcr_array_make(NULL, DPCR_F32, 4, shared);
    const dpcr_array states = dpcr_array_make(memory, DPCR_F32, 3, h);
    memset(rates.strides, 0, sizeof rates.strides);
    const dpcr_selective in = {.size = sizeof in, .u = &u, .delta = &u, .a = &rates, .b = &b, .c = &b};
    const dpcr_selective_gradients out = {.size = sizeof out, .h0 = &states};
    dpcr_context *context = context_of(2, asked);
    assert_int_equal(dpcr_selective_scan(context, &in, &u, &states, NULL, NULL), DPCR_ERROR_CANCELLED);
    assert_int_equal(dpcr_selective_adjoint(context, &in, &u, NULL, NULL, &out, NULL), DPCR_ERROR_CANCELLED);
    u.shape[0] = b.shape[0] = many;
    assert_int_equal(dpcr_selective_scan(context, &in, &u, NULL, NULL, NULL), DPCR_OK);
    dpcr_context_destroy(context);
    free(memory);
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
    fill(&p, false);  // a gradient that is summed over one axis has to lie apart along the others
    p.at[GRADIENTS + A_].strides[0] = 0;
    assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &p.out, &error), DPCR_OK);
    fill(&p, false);
    p.at[GRADIENTS + A_].strides[0] = p.at[GRADIENTS + A_].strides[1];
    assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, NULL, &p.out, &error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "its strides make it overlap itself"));
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
    p.at[A_].strides[1] = 0;  // nothing is kept then
    char *off = guarded(KEPT, 1 << 16, true) + 16;
    assert_int_equal(dpcr_selective_scan(context, &p.in, &p.at[Y], NULL, off, NULL), DPCR_OK);
    assert_int_equal(dpcr_selective_adjoint(context, &p.in, &p.at[GY], NULL, off, &p.out, NULL), DPCR_OK);
    fill(&p, false);
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
        cmocka_unit_test(meets_ends),
        cmocka_unit_test(keeps_infinities_apart),
        cmocka_unit_test(takes_any_stride_of_one_step),
        cmocka_unit_test(sums_over_many_steps),
        cmocka_unit_test(stops_when_asked),
        cmocka_unit_test(stops_among_states_of_no_steps),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
