// SPDX-License-Identifier: MIT
// Published cases that other projects test themselves by, continued: chains of implicit steps (DEER's pendulum as a
// differential-algebraic equation) and chains that run into a fixed point (torchdeq's equilibrium layer).
#define NOISE 17
#include "acceptance.h"

// ---- a pendulum in Cartesian coordinates ----

enum { X, Y, U, V, PENDULUM };
static const double gravity = 10;

// Implicit Euler of  x' = u,  y' = v,  u' = -T x,  v' = -T y - g,  x^2 + y^2 = 1.  With a = p + h w - h^2 (0, g) of the
// position p and the velocity w that go in, it says  (1 + h^2 T) p' = a,  so  p' = a / |a|,  w' = (p' - p) / h.
static void step_pendulum(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double h = c->parameters[0], a[2] = {in[X] + h * in[U], in[Y] + h * in[V] - h * h * gravity};
    const double s = sqrt(a[0] * a[0] + a[1] * a[1]);
    (void)l, (void)b;
    for (int i = 0; i < 2; i++) out[X + i] = a[i] / s, out[U + i] = (out[X + i] - in[X + i]) / h;
    for (int i = 0; j && i < 2; i++)
        for (int k = 0; k < 2; k++) {
            const double d = ((i == k) - out[X + i] * out[X + k]) / s;  // dp'_i / da_k
            j[(X + i) * PENDULUM + X + k] = d, j[(X + i) * PENDULUM + U + k] = h * d;
            j[(U + i) * PENDULUM + X + k] = (d - (i == k)) / h, j[(U + i) * PENDULUM + U + k] = d;
        }
}

// What holds the weight in the step from a to b:  w' - w = -h T p' - h (0, g).
static double tension(const double *a, const double *b, double h) {
    return -((b[U] - a[U]) * b[X] + (b[V] - a[V] + h * gravity) * b[Y]) / h;
}

// A7b, DEER's case: from rest at an angle of 90 degrees, two seconds. Its exact end, which a method of first order
// meets to a hundredth; the constraint to rounding, in every step.
static void a_pendulum_with_a_constraint(void **state) {
    (void)state;
    enum { L = 10000 };
    static const double end[PENDULUM] = {0.83148594, -0.55554579, 1.85180303, 2.77159545}, pull = 16.66637371;
    const double h = 2.0 / L, z0[PENDULUM] = {[X] = 1};
    chain c = {.step = step_pendulum, .length = L, .batch = 1, .width = PENDULUM, .dtype = DPCR_F64, .parameters = &h};
    double *loop = loop_of(&c, z0);
    for (size_t k = 0; k < sizeof schemes / sizeof *schemes; k++) {
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = DPCR_METHOD_NEWTON,
                                            .scheme = schemes[k],
                                            .backward = DPCR_SCHEME_SEQUENTIAL,
                                            .guess = DPCR_GUESS_STATE};
        solved r = solve(context, &c, z0, &options);
        const double *z = r.z, *last = z + (L - 1) * PENDULUM;
        assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
        assert_true(largest_error(&c, z, loop) < 1e-8);
        for (int64_t l = 0; l < L; l++)
            near(z[l * PENDULUM + X] * z[l * PENDULUM + X] + z[l * PENDULUM + Y] * z[l * PENDULUM + Y], 1, 1e-12);
        for (int i = 0; i < PENDULUM; i++) near(last[i], end[i], 0.01 * fabs(end[i]));
        near(tension(last - PENDULUM, last, h), pull, 0.01 * pull);
        solved_free(&r);
    }
    free(loop);
}

// ---- an equilibrium layer ----

enum { UNITS = 6 };

// tanh(W z + b): W, then b.
static void step_layer(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double *w = c->parameters, *bias = w + UNITS * UNITS;
    (void)l, (void)b;
    for (int i = 0; i < UNITS; i++) {
        double u = bias[i];
        for (int k = 0; k < UNITS; k++) u += w[i * UNITS + k] * in[k];
        out[i] = tanh(u);
        for (int k = 0; j && k < UNITS; k++) j[i * UNITS + k] = (1 - out[i] * out[i]) * w[i * UNITS + k];
    }
}

// |tanh(W z + b) - z|
static double layer_residual(const chain *c, const double *z) {
    double f[UNITS], sum = 0;
    step_layer(c, 0, 0, z, f, NULL);
    for (int i = 0; i < UNITS; i++) sum += (f[i] - z[i]) * (f[i] - z[i]);
    return sqrt(sum);
}

// A30, torchdeq's solvers: fixed-point iteration in 20 steps, Anderson's in 40, Broyden's in 10. Here the first is the
// chain itself, and what runs the chain at once takes the others' places: parataa, which mixes as Anderson's does, and
// newton.
static void an_equilibrium_layer(void **state) {
    (void)state;
    static const struct {
        dpcr_method method;
        int most;  // sweeps
    } ways[] = {
        {DPCR_METHOD_SEQUENTIAL, 0}, {DPCR_METHOD_JACOBI, 20}, {DPCR_METHOD_PARATAA, 40}, {DPCR_METHOD_NEWTON, 10}};
    enum { L = 20 };
    double parameters[UNITS * UNITS + UNITS], z0[UNITS] = {0};
    for (int i = 0; i < UNITS * UNITS; i++) {  // N(0, 0.15^2), by Box and Muller
        const double a = 0.5 + 0.5 * noise(i, 1), angle = acos(-1) * noise(i, 2);
        parameters[i] = 0.15 * sqrt(-2 * log(a)) * cos(angle);
    }
    for (int i = 0; i < UNITS; i++) parameters[UNITS * UNITS + i] = noise(i, 3);
    chain c = {
        .step = step_layer, .length = L, .batch = 1, .width = UNITS, .dtype = DPCR_F64, .parameters = parameters};
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = ways[k].method,
                                            .scheme = DPCR_SCHEME_CHUNKED,
                                            .backward = DPCR_SCHEME_SEQUENTIAL};
        solved r = solve(context, &c, z0, &options);
        assert_true(r.report.reason > 0 && r.report.reason != DPCR_REASON_FALLBACK);
        assert_true(r.report.sweeps <= ways[k].most);
        near(layer_residual(&c, (const double *)r.z + (L - 1) * UNITS), 0, 1e-9);
        solved_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pendulum_with_a_constraint),
        cmocka_unit_test(an_equilibrium_layer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
