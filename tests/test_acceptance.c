// SPDX-License-Identifier: MIT
// Published cases that other projects test themselves by, with their numbers: Newton over time (DEER's scalar
// recurrence and its initial value problem, Lyapunov exponents of Lorenz, a compressor), and linear recurrences and
// scans (accelerated-scan, mamba.py, flash-linear-attention's hgrn, PyTorch's and JAX's associative_scan, XBraid) by
// every scheme. They are numbered, A1 to A38, and each test that is of one says so.
#define NOISE 5
#include "acceptance.h"

// ---- Newton over time ----

// A5: y' = y^2 + x / 2, from DEER's documentation (arXiv 2309.12252).
static void step_square(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b;
    out[0] = in[0] * in[0] + 0.5 * (double)l / 9;
    if (j) j[0] = 2 * in[0];
}

static void deers_scalar_case(void **state) {
    (void)state;
    static const double wanted[10] = {0,          0.05555556, 0.11419753, 0.17970774, 0.2545171,
                                      0.34255673, 0.45067845, 0.59199995, 0.79490839, 1.13187934};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        chain c = {.step = step_square, .length = 10, .batch = 1, .width = 1, .dtype = DPCR_F64};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = schemes[i],
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .atol = 1e-12,
                                            .rtol = 1e-12};
        const double z0 = 0;
        solved r = solve(context, &c, &z0, &options);
        assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
        assert_true(r.report.sweeps <= 6);
        for (int l = 0; l < 10; l++) near(((double *)r.z)[l], wanted[l], 1e-8);
        solved_free(&r);
    }
}

enum { N = 4 };

// df = f(t, y) = -6 tanh(A1 relu(A0 y)) - 10 y^3 + 30 sin 6t + 3, and its Jacobian.
static void problem(double t, const double *y, double *f, double *j) {
    double hidden[N], slope[N];
    for (int i = 0; i < N; i++) {
        hidden[i] = 0;
        for (int k = 0; k < N; k++) hidden[i] += sin(1.3 * (i * N + k) + 0.7) / 2 * y[k];
        slope[i] = hidden[i] > 0;
        hidden[i] = fmax(hidden[i], 0);
    }
    for (int i = 0; i < N; i++) {
        double u = 0;
        for (int k = 0; k < N; k++) u += (1 + sin(1.3 * (i * N + k) + 1.4)) / 4 * hidden[k];
        const double h = tanh(u);
        f[i] = -6 * h - 10 * y[i] * y[i] * y[i] + 30 * sin(6 * t) + 3;
        for (int m = 0; m < N; m++) {
            j[i * N + m] = m == i ? -30 * y[i] * y[i] : 0;
            for (int k = 0; k < N; k++)
                j[i * N + m] -= 6 * (1 - h * h) * (1 + sin(1.3 * (i * N + k) + 1.4)) / 4 * slope[k] *
                                sin(1.3 * (k * N + m) + 0.7) / 2;
        }
    }
}

static void step_euler(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double h = 1 / (double)c->length;
    double f[N], own[N * N];
    (void)b;
    problem((double)l * h, in, f, own);
    for (int i = 0; i < N; i++) out[i] = in[i] + h * f[i];
    for (int i = 0; i < N * N && j; i++) j[i] = (i % (N + 1) == 0) + h * own[i];
}

static void step_runge_kutta(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    static const double at[4] = {0, 0.5, 0.5, 1}, weight[4] = {1.0 / 6, 1.0 / 3, 1.0 / 3, 1.0 / 6};
    const double h = 1 / (double)c->length, t = (double)l * h;
    double k[N] = {0}, dk[N * N] = {0}, sum[N] = {0}, dsum[N * N] = {0};
    (void)b;
    for (int s = 0; s < 4; s++) {
        double y[N], dy[N * N], own[N * N];
        for (int i = 0; i < N; i++) y[i] = in[i] + h * at[s] * k[i];
        for (int i = 0; i < N * N; i++) dy[i] = (i % (N + 1) == 0) + h * at[s] * dk[i];
        problem(t + at[s] * h, y, k, own);
        for (int i = 0; i < N; i++) {
            sum[i] += weight[s] * k[i];
            for (int m = 0; m < N; m++) {
                dk[i * N + m] = 0;
                for (int q = 0; q < N; q++) dk[i * N + m] += own[i * N + q] * dy[q * N + m];
                dsum[i * N + m] += weight[s] * dk[i * N + m];
            }
        }
    }
    for (int i = 0; i < N; i++) out[i] = in[i] + h * sum[i];
    for (int i = 0; i < N * N && j; i++) j[i] = (i % (N + 1) == 0) + h * dsum[i];
}

// A7, from DEER's tests; the exact values to eight digits, and Euler's own. Euler's Newton begins at the other's
// states: from the first state it leaves the finite numbers on the way, and what becomes of it is a matter of rounding.
static void an_initial_value_problem(void **state) {
    (void)state;
    static const double end[N] = {-0.99852932, -0.99802683, -1.00735038, -1.01638359};
    static const double middle[N] = {1.00832630, 0.99553964, 1.00545882, 1.02821437};
    static const double by_euler[N] = {-0.99896649, -0.99846430, -1.00778255, -1.01681076};
    double z0[N];
    for (int k = 0; k < N; k++) z0[k] = 0.5 + 0.5 * sin(1.3 * k + 2.1);
    double better[1000 * N];
    for (int euler = 0; euler < 2; euler++) {
        chain c = {
            .step = euler ? step_euler : step_runge_kutta, .length = 1000, .batch = 1, .width = N, .dtype = DPCR_F64};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = DPCR_SCHEME_CHUNKED,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .guess = euler ? DPCR_GUESS_GIVEN : DPCR_GUESS_STATE};
        const dpcr_steps steps = chain_steps(&c);
        solved r = solve_steps(context, &steps, &c, z0, &options, euler ? better : NULL, 0);
        assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
        const double *z = r.z;
        for (int i = 0; i < N; i++) {
            near(z[999 * N + i], euler ? by_euler[i] : end[i], 1e-8);
            if (!euler) near(z[499 * N + i], middle[i], 1e-8);
        }
        memcpy(better, z, sizeof better);
        solved_free(&r);
    }
}

// A27 and A28, XBraid's ex-07, forward Euler: Gram-Schmidt of the Jacobians' products along the solved trajectory.
static void lyapunov_exponents(void **state) {
    (void)state;
    const double z0[3] = {9.614521163788712, 17.519127090401067, 13.94230712158098};
    static const double wanted[2][3] = {{0.008363, -0.417301, -13.208420}, {0.683315, 0.132332, -14.611722}};
    for (int which = 0; which < 2; which++) {
        const int64_t length = which ? 2048 : 256;
        const double time = log(10) / 0.9 * (which ? 4 : 0.5), h = time / (double)length;
        chain c = {.step = step_lorenz, .length = length, .batch = 1, .width = 3, .dtype = DPCR_F64, .parameters = &h};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = DPCR_SCHEME_SEQUENTIAL,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .guess = DPCR_GUESS_STATE,
                                            .window = 32,
                                            .max_sweeps = 2000};
        solved r = solve(context, &c, z0, &options);
        assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
        double q[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}, sum[3] = {0};  // q[i] a direction
        for (int64_t l = 0; l < length; l++) {
            double out[3], j[9];
            step_lorenz(&c, l, 0, l ? (double *)r.z + (l - 1) * 3 : z0, out, j);
            for (int i = 0; i < 3; i++) {
                double v[3] = {0};
                for (int a = 0; a < 3; a++)
                    for (int b = 0; b < 3; b++) v[a] += j[a * 3 + b] * q[i][b];
                memcpy(q[i], v, sizeof v);
            }
            for (int i = 0; i < 3; i++) {
                for (int k = 0; k < i; k++) {
                    double dot = 0;
                    for (int a = 0; a < 3; a++) dot += q[i][a] * q[k][a];
                    for (int a = 0; a < 3; a++) q[i][a] -= dot * q[k][a];
                }
                const double norm = sqrt(q[i][0] * q[i][0] + q[i][1] * q[i][1] + q[i][2] * q[i][2]);
                for (int a = 0; a < 3; a++) q[i][a] /= norm;
                sum[i] += log(norm);
            }
        }
        for (int i = 0; i < 3; i++) near(sum[i] / time, wanted[which][i], 1e-6);
        solved_free(&r);
    }
}

// x, then of each sequence attack and release.
enum { COMPRESSED = 100, VOICES = 3 };

static void step_compress(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double *x = c->parameters, *rates = x + COMPRESSED * VOICES;
    const double level = x[l * VOICES + b], rate = rates[2 * b + !(level < in[0])];
    out[0] = rate * level + (1 - rate) * in[0];
    if (j) j[0] = 1 - rate;
}

// A11, philtorch's test: a level that follows x, faster down than up or the other way; everything random.
static void a_compressor(void **state) {
    (void)state;
    for (int draw = 0; draw < 20; draw++) {
        double parameters[COMPRESSED * VOICES + 2 * VOICES];
        const double z0[VOICES] = {1, 1, 1};
        for (int k = 0; k < COMPRESSED * VOICES + 2 * VOICES; k++) parameters[k] = 0.5 + 0.5 * noise(k, 100 + draw);
        chain c = {.step = step_compress,
                   .length = COMPRESSED,
                   .batch = VOICES,
                   .width = 1,
                   .dtype = DPCR_F64,
                   .parameters = parameters};
        double *loop = loop_of(&c, z0);
        for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
            const dpcr_solve_options options = {.size = sizeof options,
                                                .method = DPCR_METHOD_NEWTON,
                                                .scheme = schemes[i],
                                                .backward = DPCR_SCHEME_SEQUENTIAL,
                                                .atol = 1e-12,
                                                .rtol = 1e-12};
            solved r = solve(context, &c, z0, &options);
            assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
            assert_true(r.report.sweeps <= 10);
            assert_true(largest_error(&c, r.z, loop) <= 1e-8);
            solved_free(&r);
        }
        free(loop);
    }
}

// ---- linear recurrences, by every scheme ----

static const dpcr_scheme every_scheme[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_PCR, DPCR_SCHEME_BLELLOCH,
                                           DPCR_SCHEME_CHUNKED, DPCR_SCHEME_OVERLAP};
enum { SCHEMES = sizeof every_scheme / sizeof *every_scheme };

typedef struct scan {
    dpcr_dtype dtype;
    int64_t length, batch, width;
    bool reverse;  // z_l = a_{l+1} z_{l+1} + b_l
    void *a, *b, *z0, *z;
} scan;

static dpcr_array view_of(const scan *s, void *data, bool start) {
    const int64_t shape[] = {s->length, s->batch, s->width};
    return dpcr_array_make(data, s->dtype, start ? 2 : 3, start ? shape + 1 : shape);
}

// g not NULL: the derivatives by a and b too, of diagonal ones.
static void run_structure(const scan *s, dpcr_structure structure, dpcr_scheme scheme, void *g, void *da, void *db) {
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = s->length,
                                    .batch = s->batch,
                                    .transition = dpcr_transition_square(structure, s->width, 0),
                                    .dtype = s->dtype,
                                    .transposed = s->reverse};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = (dpcr_chain_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    const int64_t values[] = {s->length, s->batch, s->width * (structure == DPCR_DENSE ? s->width : 1)};
    const dpcr_array a = dpcr_array_make(s->a, s->dtype, 3, values), b = view_of(s, s->b, false),
                     z = view_of(s, s->z, false), z0 = view_of(s, s->z0, true);
    assert_int_equal(dpcr_chain_execute(plan, &a, &b, s->z0 ? &z0 : NULL, &z, workspace, bytes, NULL, NULL), DPCR_OK);
    if (g) {
        const dpcr_array vg = view_of(s, g, false), va = view_of(s, da, false), vb = view_of(s, db, false);
        const dpcr_status status =
            dpcr_chain_vjp(plan, &a, s->z0 ? &z0 : NULL, &z, &vg, &va, &vb, NULL, workspace, bytes, NULL);
        assert_int_equal(status, DPCR_OK);
    }
    free(workspace);
    dpcr_chain_plan_destroy(plan);
}

static void run_scan(const scan *s, dpcr_scheme scheme, void *g, void *da, void *db) {
    run_structure(s, DPCR_DIAGONAL, scheme, g, da, db);
}

// A13: dense scans of every width to 8 and length to 64, forward and reverse.
static void every_size(void **state) {
    (void)state;
    enum { T = 64, W = 8 };
    double a[T * W * W], b[T * W], z[T * W], want[T * W];
    for (int64_t width = 1; width <= W; width++)
        for (int64_t length = 1; length <= T; length++)
            for (int k = 0; k < 2 * SCHEMES; k++) {
                const bool reverse = k % 2;
                for (int64_t i = 0; i < length * width * width; i++) a[i] = noise(i, 40 + width) / sqrt((double)width);
                for (int64_t i = 0; i < length * width; i++) b[i] = noise(i, 50 + length);
                const scan s = {DPCR_F64, length, 1, width, reverse, a, b, NULL, z};
                run_structure(&s, DPCR_DENSE, every_scheme[k / 2], NULL, NULL, NULL);
                for (int64_t t = 0; t < length; t++)
                    for (int64_t i = 0; i < width; i++) {
                        const int64_t l = reverse ? length - 1 - t : t, at = l * width;
                        const double *before = want + (reverse ? at + width : at - width);
                        want[at + i] = b[at + i];
                        for (int64_t m = 0; t > 0 && m < width; m++)
                            want[at + i] += before[m] * (reverse ? a[(at + width) * width + m * width + i]
                                                                 : a[at * width + i * width + m]);
                        near(z[at + i], want[at + i], 1e-12 * fmax(1, fabs(want[at + i])));
                    }
            }
}

// A14, accelerated-scan: gates U(0, 1) 0.9, tokens, forward and reverse, two lengths.
static void gates_and_tokens(void **state) {
    (void)state;
    enum { T = 64, W = 3 };
    for (int i = 0; i < SCHEMES; i++)
        for (int narrow = 0; narrow < 2; narrow++)
            for (int reverse = 0; reverse < 2; reverse++)
                for (int64_t length = 50; length <= T; length += 14) {
                    double a[T * W], b[T * W], z[T * W], want[T * W];
                    float fa[T * W], fb[T * W], fz[T * W];
                    for (int64_t k = 0; k < length * W; k++) {
                        fa[k] = (float)(a[k] = (double)(float)(0.45 * (1 + noise(k, 1))));
                        fb[k] = (float)(b[k] = (double)(float)(2 * noise(k, 2)));
                    }
                    const scan s = {narrow ? DPCR_F32 : DPCR_F64,
                                    length,
                                    1,
                                    W,
                                    reverse,
                                    narrow ? (void *)fa : a,
                                    narrow ? (void *)fb : b,
                                    NULL,
                                    narrow ? (void *)fz : z};
                    run_scan(&s, every_scheme[i], NULL, NULL, NULL);
                    for (int64_t t = 0; t < length; t++)
                        for (int64_t w = 0; w < W; w++) {
                            const int64_t l = reverse ? length - 1 - t : t, k = l * W + w;
                            const double before = t == 0 ? 0 : want[reverse ? k + W : k - W];
                            want[k] = b[k] + (t == 0 ? 0 : a[reverse ? k + W : k] * before);
                            if (narrow)
                                near((double)fz[k], want[k], 1e-7 + 1.3e-6 * fabs(want[k]));
                            else
                                near(z[k], want[k], 1e-14 * fmax(1, fabs(want[k])));
                        }
                }
}

// A15, mamba.py: the gradients of sum sin h by gates and tokens.
static void gradients_of_a_scan(void **state) {
    (void)state;
    enum { T = 50, W = 2 };
    for (int i = 0; i < SCHEMES; i++) {
        double a[T * W], b[T * W], z[T * W], h[T * W], g[T * W], da[T * W], db[T * W];
        for (int k = 0; k < T * W; k++) {
            a[k] = 0.45 * (1 + noise(k, 3)), b[k] = 2 * noise(k, 4);
            h[k] = b[k] + (k < W ? 0 : a[k] * h[k - W]);
            g[k] = cos(h[k]);
        }
        const scan s = {DPCR_F64, T, 1, W, false, a, b, NULL, z};
        run_scan(&s, every_scheme[i], g, da, db);
        double lambda[W] = {0};
        for (int k = T * W - 1; k >= 0; k--) {
            lambda[k % W] = g[k] + (k + W < T * W ? a[k + W] * lambda[k % W] : 0);
            near(z[k], h[k], 1e-14 * fmax(1, fabs(h[k])));
            near(db[k], lambda[k % W], 1e-13);
            near(da[k], k < W ? 0 : lambda[k % W] * h[k - W], 1e-13 * 10);
        }
    }
}

// A17, hgrn of flash-linear-attention: h <- exp(g) h + x with h0, g = log-sigmoid, float.
static void gated_with_a_start(void **state) {
    (void)state;
    enum { T = 64, W = 4 };
    for (int i = 0; i < SCHEMES; i++) {
        float a[T * W], b[T * W], z[T * W], z0[W];
        double h[W];
        for (int k = 0; k < T * W; k++) a[k] = (float)exp(-log1p(exp(-2 * noise(k, 6)))), b[k] = (float)noise(k, 7);
        for (int w = 0; w < W; w++) h[w] = (double)(z0[w] = (float)noise(w, 8));
        const scan s = {DPCR_F32, T, 1, W, false, a, b, z0, z};
        run_scan(&s, every_scheme[i], NULL, NULL, NULL);
        for (int k = 0; k < T * W; k++) {
            h[k % W] = (double)a[k] * h[k % W] + (double)b[k];
            near((double)z[k], h[k % W], 2e-7 * fmax(1, fabs(h[k % W])));
        }
    }
}

// A19a, pytorch #137943: a reverse cumulative sum; A21, JAX: cumulative sums, and the exclusive or as sums modulo two.
static void sums(void **state) {
    (void)state;
    static const double wanted[2][9] = {{36, 36, 35, 33, 30, 26, 21, 15, 8}, {117, 108, 98, 87, 75, 62, 48, 33, 17}};
    for (int i = 0; i < SCHEMES; i++) {
        double a[18], b[18], z[18];
        for (int k = 0; k < 18; k++) a[k] = 1, b[k] = k % 2 * 9 + k / 2;
        scan s = {DPCR_F64, 9, 2, 1, true, a, b, NULL, z};
        run_scan(&s, every_scheme[i], NULL, NULL, NULL);
        for (int k = 0; k < 18; k++) assert_true(z[k] == wanted[k % 2][k / 2]);
        s.reverse = false;
        run_scan(&s, every_scheme[i], NULL, NULL, NULL);
        for (int l = 0; l < 9; l++) assert_true(z[2 * l] == l * (l + 1) / 2);

        static const uint32_t bits[6] = {0, 1, 1, 1, 0, 1}, parity[6] = {0, 1, 0, 1, 1, 0};
        uint32_t one[6], in[6], out[6];
        for (int l = 0; l < 6; l++) one[l] = 1, in[l] = bits[l];
        const scan words = {DPCR_U32, 6, 1, 1, false, one, in, NULL, out};
        run_scan(&words, every_scheme[i], NULL, NULL, NULL);
        for (int l = 0; l < 6; l++) assert_int_equal(out[l] & 1, parity[l]);
    }
}

// A19c, pytorch #191846: c_t = c_{t-1} / x_t in two columns, one of which divides by zero.
static void a_bad_column_stays_alone(void **state) {
    (void)state;
    for (int i = 0; i < SCHEMES; i++) {
        static const double x[6] = {2, 2, 0, 4, 2, 2};  // [3][2]
        double a[6], b[6] = {0}, z0[2] = {1, 1}, z[6], loss[2] = {0};
        for (int k = 0; k < 6; k++) a[k] = 1 / x[k];
        const scan s = {DPCR_F64, 3, 2, 1, false, a, b, z0, z};
        run_scan(&s, every_scheme[i], NULL, NULL, NULL);
        for (int k = 0; k < 6; k++) loss[k % 2] += z[k] * (k >= 4 ? 2 : 1);
        assert_true(isinf(loss[0]));
        assert_true(loss[1] == 0.75);
    }
}

// A26, XBraid's ex-01: u <- u / 1.5.
static void decay(void **state) {
    (void)state;
    for (int i = 0; i < SCHEMES; i++) {
        double a[10], b[10] = {0}, z0 = 1, z[10];
        for (int l = 0; l < 10; l++) a[l] = 1 / 1.5;
        const scan s = {DPCR_F64, 10, 1, 1, false, a, b, &z0, z};
        run_scan(&s, every_scheme[i], NULL, NULL, NULL);
        for (int l = 0; l < 10; l++) near(z[l], pow(2.0 / 3, l + 1), 4e-16);
        near(z[9], 0.0173415299158326, 1e-16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deers_scalar_case),
        cmocka_unit_test(an_initial_value_problem),
        cmocka_unit_test(lyapunov_exponents),
        cmocka_unit_test(a_compressor),
        cmocka_unit_test(every_size),
        cmocka_unit_test(gates_and_tokens),
        cmocka_unit_test(gradients_of_a_scan),
        cmocka_unit_test(gated_with_a_start),
        cmocka_unit_test(sums),
        cmocka_unit_test(a_bad_column_stays_alone),
        cmocka_unit_test(decay),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
