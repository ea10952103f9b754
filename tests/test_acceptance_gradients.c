// SPDX-License-Identifier: MIT
// Published cases that other projects test themselves by, continued: gradients through a recurrence by the loop, by
// scans and by Jacobi sweeps (Song et al., arXiv 2002.03629), a weight that two steps share (PyTorch), a scan in log
// space (heinsen), a selective scan (mamba) and a state-space model that is discretised exactly.
#define NOISE 11
#include "acceptance.h"

static const dpcr_scheme every_scheme[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_PCR, DPCR_SCHEME_BLELLOCH,
                                           DPCR_SCHEME_CHUNKED, DPCR_SCHEME_OVERLAP};
enum { SCHEMES = sizeof every_scheme / sizeof *every_scheme };

// ---- a recurrence with softplus, its loss at every step ----

enum { H = 10, T = 100 };

typedef struct softplus_net {
    double w[H][H], in[H], b[H], out[H], out_b, x[T];
} softplus_net;

static softplus_net make_net(void) {
    softplus_net n;
    const double size = 1 / sqrt((double)H);
    for (int i = 0; i < H; i++) {
        for (int k = 0; k < H; k++) n.w[i][k] = size * noise(i * H + k, 1);
        n.in[i] = noise(i, 2) * size, n.b[i] = noise(i, 3) * size, n.out[i] = noise(i, 4) * size;
    }
    n.out_b = noise(0, 5) * size;
    for (int t = 0; t < T; t++) n.x[t] = 0.5 + 0.5 * noise(t, 6);
    return n;
}

// h_i = softplus(u_i); j: its derivatives by the state that went in.
static void softplus_step(const softplus_net *n, double x, const double *in, double *h, double *slope) {
    for (int i = 0; i < H; i++) {
        double u = n->b[i] + n->in[i] * x;
        for (int k = 0; k < H; k++) u += n->w[i][k] * in[k];
        h[i] = log1p(exp(u));
        if (slope) slope[i] = 1 / (1 + exp(-u));
    }
}

static void step_softplus(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const softplus_net *n = (const softplus_net *)(const void *)c->parameters;
    double slope[H];
    (void)b;
    softplus_step(n, n->x[l], in, out, slope);
    for (int i = 0; j && i < H; i++)
        for (int k = 0; k < H; k++) j[i * H + k] = slope[i] * n->w[i][k];
}

// The adjoint chain in its own order: step s is the network's step T - 1 - s. parameters: [T][H][H] of J_{t+1}^T (what
// goes into the first step is 0), then the direct gradients [T][H] by t.
static void step_adjoint(const chain *c, int64_t s, int64_t b, const double *in, double *out, double *j) {
    const double *a = c->parameters + (T - 1 - s) * H * H, *g = c->parameters + T * H * H + (T - 1 - s) * H;
    (void)b;
    for (int i = 0; i < H; i++) {
        out[i] = g[i];
        for (int k = 0; k < H; k++) out[i] += a[i * H + k] * in[k];
    }
    for (int i = 0; j && i < H * H; i++) j[i] = a[i];
}

// Gradients of all parameters from the adjoints, in one array.
enum { PARAMETERS = H * H + 2 * H };

static void gradients_of(const softplus_net *n, const double *h, const double *lambda, double *g) {
    memset(g, 0, PARAMETERS * sizeof *g);
    for (int t = 0; t < T; t++) {
        static const double zero[H];
        const double *before = t ? h + (t - 1) * H : zero;
        double y[H], slope[H];
        softplus_step(n, n->x[t], before, y, slope);
        for (int i = 0; i < H; i++) {
            const double e = lambda[t * H + i] * slope[i];
            for (int k = 0; k < H; k++) g[i * H + k] += e * before[k];
            g[H * H + i] += e * n->x[t];
            g[H * H + H + i] += e;
        }
    }
}

static double farthest(const double *a, const double *b, int count) {
    double most = 0;
    for (int i = 0; i < count; i++) most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

static void by_jacobi(const double *parameters, const double *lambda, const softplus_net *n, const double *h,
                      const double *wanted) {
    static const struct {
        int sweeps;
        double least, most;
    } cases[] = {{10, 1e-14, 1e-6}, {30, 0, 1e-15}};
    const double z0[H] = {0};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        chain c = {
            .step = step_adjoint, .length = T, .batch = 1, .width = H, .dtype = DPCR_F64, .parameters = parameters};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_JACOBI,
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .guess = DPCR_GUESS_STATE,
                                            .atol = -1,
                                            .rtol = -1,
                                            .max_sweeps = cases[k].sweeps,
                                            .no_fallback = 1};
        solved r = solve(context, &c, z0, &options);
        assert_int_equal(r.status, DPCR_OK);
        const int sweeps = r.report.sweeps;  // those of a shorter rest count less against the budget
        assert_true(sweeps >= cases[k].sweeps && sweeps <= cases[k].sweeps * 5 / 4);
        double back[T * H], g[PARAMETERS], own[2][T + 1][H] = {{{0}}};
        for (int t = 0; t < T; t++) memcpy(back + t * H, (const double *)r.z + (T - 1 - t) * H, H * sizeof *back);
        gradients_of(n, h, back, g);
        const double error = farthest(g, wanted, PARAMETERS);
        if (error > cases[k].most || error < cases[k].least)
            fail_msg("after %d sweeps the gradients are off by %g", cases[k].sweeps, error);
        for (int s = 0; s < sweeps; s++)  // the same sweeps, written out
            for (int t = 0; t < T; t++) step_adjoint(&c, T - 1 - t, 0, own[s % 2][t + 1], own[(s + 1) % 2][t], NULL);
        assert_true(farthest(back, own[sweeps % 2][0], T * H) <= 1e-15);
        assert_true(farthest(back, lambda, T * H) <= 1e2 * cases[k].most);
        solved_free(&r);
    }
}

// A23: one input, a loss at every step, the adjoint by the loop, by scans and by ten and thirty Jacobi sweeps.
static void softplus_by_loop_scan_and_jacobi(void **state) {
    (void)state;
    const softplus_net n = make_net();
    double h[T * H], direct[T * H], lambda[T * H], wanted[PARAMETERS], slope[T][H];
    const double z0[H] = {0};
    for (int t = 0; t < T; t++) {
        softplus_step(&n, n.x[t], t ? h + (t - 1) * H : z0, h + t * H, slope[t]);
        double o = n.out_b - n.x[t];
        for (int i = 0; i < H; i++) o += n.out[i] * h[t * H + i];
        for (int i = 0; i < H; i++) direct[t * H + i] = 2.0 / T * o * n.out[i];
    }
    static double adjoint[T * H * H + T * H];  // of the last step J is 0
    memset(adjoint, 0, sizeof adjoint);
    for (int t = 0; t + 1 < T; t++)
        for (int i = 0; i < H; i++)
            for (int k = 0; k < H; k++) adjoint[(t * H + i) * H + k] = slope[t + 1][k] * n.w[k][i];
    memcpy(adjoint + T * H * H, direct, sizeof direct);
    for (int t = T - 1; t >= 0; t--)
        for (int i = 0; i < H; i++) {
            double sum = direct[t * H + i];
            for (int k = 0; t + 1 < T && k < H; k++) sum += slope[t + 1][k] * n.w[k][i] * lambda[(t + 1) * H + k];
            lambda[t * H + i] = sum;
        }
    gradients_of(&n, h, lambda, wanted);

    chain c = {.step = step_softplus,
               .length = T,
               .batch = 1,
               .width = H,
               .dtype = DPCR_F64,
               .parameters = (const double *)(const void *)&n};
    const int64_t shape[3] = {T, 1, H};
    for (int i = 0; i < SCHEMES; i++) {
        const dpcr_steps steps = chain_steps(&c);
        const dpcr_solve_options options = {
            .size = sizeof options,
            .method = DPCR_METHOD_NEWTON,
            .scheme = every_scheme[i] == DPCR_SCHEME_OVERLAP ? DPCR_SCHEME_CHUNKED : every_scheme[i],
            .backward = every_scheme[i]};
        dpcr_solve_plan *plan = NULL;
        double z[T * H], back[T * H], dz0[H], g[PARAMETERS];
        assert_int_equal(dpcr_solve_plan_create(context, &steps, &options, &plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = solving_workspace(bytes);
        const dpcr_array first = dpcr_array_make((void *)(uintptr_t)z0, DPCR_F64, 2, shape + 1),
                         states = dpcr_array_make(z, DPCR_F64, 3, shape),
                         given = dpcr_array_make(direct, DPCR_F64, 3, shape),
                         adjoints = dpcr_array_make(back, DPCR_F64, 3, shape),
                         start = dpcr_array_make(dz0, DPCR_F64, 2, shape + 1);
        dpcr_solve_report report = {.size = sizeof report};
        assert_int_equal(dpcr_solve_execute(plan, &first, &states, NULL, workspace, bytes, &report, NULL), DPCR_OK);
        assert_true(report.reason > 0 && report.reason != DPCR_REASON_FALLBACK);
        assert_true(farthest(z, h, T * H) <= 1e-13);
        const dpcr_status status = dpcr_solve_backward(plan, &first, &states, NULL, &given, NULL, &adjoints, &start,
                                                       workspace, bytes, NULL, NULL);
        assert_int_equal(status, DPCR_OK);
        gradients_of(&n, h, back, g);
        const double error = farthest(g, wanted, PARAMETERS);
        if (error > 1e-15) fail_msg("%s: the gradients are off by %g", dpcr_scheme_name(every_scheme[i]), error);
        free(workspace);
        dpcr_solve_plan_destroy(plan);
    }
    by_jacobi(adjoint, lambda, &n, h, wanted);
}

// ---- linear chains ----

typedef struct linear {
    dpcr_dtype dtype;
    dpcr_transition transition;
    int64_t length;
    bool shared;  // one A for all steps
    void *a, *b, *z0, *z;
} linear;

static void run_linear(const linear *l, dpcr_scheme scheme, double *g, double *da, double *db, double *dz0) {
    const int64_t w = l->transition.rows, values = dpcr_transition_values(&l->transition);
    const dpcr_chain_shape shape = {
        .size = sizeof shape, .length = l->length, .batch = 1, .transition = l->transition, .dtype = l->dtype};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    void *workspace = solving_workspace(bytes);
    const int64_t states[3] = {l->length, 1, w}, matrices[3] = {l->length, 1, values};
    dpcr_array a = dpcr_array_make(l->a, l->dtype, 3, matrices);
    if (l->shared) a.strides[0] = 0;
    const dpcr_array b = dpcr_array_make(l->b, l->dtype, 3, states), z = dpcr_array_make(l->z, l->dtype, 3, states),
                     z0 = dpcr_array_make(l->z0, l->dtype, 2, states + 1);
    assert_int_equal(dpcr_chain_execute(plan, &a, &b, &z0, &z, workspace, bytes, NULL, NULL), DPCR_OK);
    if (g) {
        const dpcr_array vg = dpcr_array_make(g, l->dtype, 3, states), va = dpcr_array_make(da, l->dtype, 3, matrices),
                         vb = dpcr_array_make(db, l->dtype, 3, states),
                         vz = dpcr_array_make(dz0, l->dtype, 2, states + 1);
        assert_int_equal(dpcr_chain_vjp(plan, &a, &z0, &z, &vg, &va, &vb, &vz, workspace, bytes, NULL), DPCR_OK);
    }
    free(workspace);
    dpcr_chain_plan_destroy(plan);
}

// A19b, pytorch #180952: the sum of (x W) W; the gradient by W has both uses, once each.
static void a_shared_weight(void **state) {
    (void)state;
    static const double dw[4] = {0.17, 1.05, -0.57, -1.13}, dx[2] = {-0.12, 0.44};
    for (int i = 0; i < SCHEMES; i++) {
        double a[4] = {0.4, 0.7, -0.2, 0.3};  // W^T
        double x[2] = {1.1, -0.7}, b[4] = {0}, z[4], g[4] = {0, 0, 1, 1}, da[8], db[4], back[2];
        const linear l = {DPCR_F64, dpcr_transition_square(DPCR_DENSE, 2, 0), 2, true, a, b, x, z};
        run_linear(&l, every_scheme[i], g, da, db, back);
        for (int r = 0; r < 2; r++) {
            near(back[r], dx[r], 1e-15);
            for (int c = 0; c < 2; c++) near(da[c * 2 + r] + da[4 + c * 2 + r], dw[r * 2 + c], 2e-15);
        }
    }
}

// A18, heinsen: x_t = a_t x_{t-1} + b_t, nothing negative, as exp(A_t + log sum exp(log b_s - A_s)), A_t = sum log a_s.
static void scan_in_log_space(void **state) {
    (void)state;
    enum { STEPS = 1000 };
    static double a[STEPS], b[STEPS], z[STEPS];
    for (int i = 0; i < SCHEMES; i++) {
        double x0 = 0.7;
        long double A = 0, largest = logl(0.7L), sum = 1;  // sum: in units of exp(largest)
        for (int t = 0; t < STEPS; t++) a[t] = 0.5 + 0.5 * noise(t, 21), b[t] = 0.5 + 0.5 * noise(t, 22);
        const linear l = {DPCR_F64, dpcr_transition_square(DPCR_DIAGONAL, 1, 0), STEPS, false, a, b, &x0, z};
        run_linear(&l, every_scheme[i], NULL, NULL, NULL, NULL);
        for (int t = 0; t < STEPS; t++) {
            A += logl((long double)a[t]);
            const long double term = logl((long double)b[t]) - A;
            if (term > largest) sum *= expl(largest - term), largest = term;
            sum += expl(term - largest);
            const double wanted = (double)expl(A + largest + logl(sum));
            near(z[t], wanted, 1e-12 * wanted);
        }
    }
}

// A16, mamba's selective scan: h <- exp(D A) h + D B u, y = (C h + E u) silu(s), D = softplus(d + bias); the last state
// too.
static void selective_scan(void **state) {
    (void)state;
    enum { STEPS = 96, CHANNELS = 3, STATES = 4, W = CHANNELS * STATES };
    static float a[STEPS * W], b[STEPS * W], z[STEPS * W];
    for (int i = 0; i < SCHEMES; i++) {
        float z0[W] = {0};
        double h[W] = {0};
#define U(t, c) noise((t)*CHANNELS + (c), 31)
#define D(t, c) log1p(exp(noise((t)*CHANNELS + (c), 32) - 0.5))
#define A(c, n) (-exp(0.5 * noise((c)*STATES + (n), 33)) * (1 + (n)))
#define B(t, n) noise((t)*STATES + (n), 34)
        for (int t = 0; t < STEPS; t++)
            for (int c = 0; c < CHANNELS; c++)
                for (int n = 0; n < STATES; n++) {
                    a[t * W + c * STATES + n] = (float)exp(D(t, c) * A(c, n));
                    b[t * W + c * STATES + n] = (float)(D(t, c) * B(t, n) * U(t, c));
                }
        const linear l = {DPCR_F32, dpcr_transition_square(DPCR_DIAGONAL, W, 0), STEPS, false, a, b, z0, z};
        run_linear(&l, every_scheme[i], NULL, NULL, NULL, NULL);
        for (int t = 0; t < STEPS; t++)
            for (int c = 0; c < CHANNELS; c++) {
                double y = 0.3 * U(t, c), wanted = y;
                const double s = noise(t * CHANNELS + c, 35), gate = s / (1 + exp(-s));
                for (int n = 0; n < STATES; n++) {
                    const int k = c * STATES + n;
                    h[k] = exp(D(t, c) * A(c, n)) * h[k] + D(t, c) * B(t, n) * U(t, c);
                    wanted += noise(t * STATES + n, 36) * h[k];
                    y += noise(t * STATES + n, 36) * (double)z[t * W + k];
                }
                near(y * gate, wanted * gate, 1e-5);
            }
        for (int k = 0; k < W; k++) near((double)z[(STEPS - 1) * W + k], h[k], 1e-5);
#undef U
#undef D
#undef A
#undef B
    }
}

// A12: x' = A x + B u, u constant over a step: x <- e^{Ah} x + (integral of e^{As}) B u, against Runge-Kutta.
static void discretised_state_space(void **state) {
    (void)state;
    enum { N = 4, STEPS = 200, FINE = 32 };
    static const double A[N][N] = {{-0.2, 2, 0, 0.1}, {-2, -0.2, 0.3, 0}, {0, 0.2, -0.5, 5}, {0.1, 0, -5, -0.5}};
    static const double B[N] = {1, 0, -0.5, 0.25};
    const double h = 0.05;
    double e[N * N], p[N][N], s[N][N];  // e^{Ah}; A^k h^k / k!; the integral, h sum of A^k h^k / (k + 1)!
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) e[i * N + k] = p[i][k] = i == k, s[i][k] = h * (i == k);
    for (int order = 1; order < 30; order++) {
        double next[N][N] = {{0}};
        for (int i = 0; i < N; i++)
            for (int k = 0; k < N; k++)
                for (int m = 0; m < N; m++) next[i][k] += p[i][m] * A[m][k] * h / order;
        memcpy(p, next, sizeof p);
        for (int i = 0; i < N; i++)
            for (int k = 0; k < N; k++) e[i * N + k] += p[i][k], s[i][k] += h * p[i][k] / (order + 1);
    }
    double b[STEPS * N], z[STEPS * N], z0[N] = {1, -1, 0.5, 0};
    for (int t = 0; t < STEPS; t++)
        for (int i = 0; i < N; i++) {
            b[t * N + i] = 0;
            for (int k = 0; k < N; k++) b[t * N + i] += s[i][k] * B[k] * noise(t, 41);
        }
    for (int i = 0; i < SCHEMES; i++) {
        const linear l = {DPCR_F64, dpcr_transition_square(DPCR_DENSE, N, 0), STEPS, true, e, b, z0, z};
        run_linear(&l, every_scheme[i], NULL, NULL, NULL, NULL);
        double x[N];
        memcpy(x, z0, sizeof x);
        for (int t = 0; t < STEPS; t++) {
            for (int fine = 0; fine < FINE; fine++) {
                double k[N] = {0}, sum[N] = {0};
                for (int stage = 0; stage < 4; stage++) {
                    static const double at[4] = {0, 0.5, 0.5, 1}, weight[4] = {1.0 / 6, 1.0 / 3, 1.0 / 3, 1.0 / 6};
                    double y[N], slope[N];
                    for (int m = 0; m < N; m++) y[m] = x[m] + at[stage] * h / FINE * k[m];
                    for (int m = 0; m < N; m++) {
                        slope[m] = B[m] * noise(t, 41);
                        for (int q = 0; q < N; q++) slope[m] += A[m][q] * y[q];
                    }
                    for (int m = 0; m < N; m++) k[m] = slope[m], sum[m] += weight[stage] * slope[m];
                }
                for (int m = 0; m < N; m++) x[m] += h / FINE * sum[m];
            }
            for (int m = 0; m < N; m++) near(z[t * N + m], x[m], 1e-7 * fmax(1, fabs(x[m])));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softplus_by_loop_scan_and_jacobi),
        cmocka_unit_test(a_shared_weight),
        cmocka_unit_test(scan_in_log_space),
        cmocka_unit_test(selective_scan),
        cmocka_unit_test(discretised_state_space),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
