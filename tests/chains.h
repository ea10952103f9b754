// SPDX-License-Identifier: MIT
// Nonlinear chains for the tests, each written as the plain loop that it is, in double and float, with its Jacobian.
#ifndef TESTS_CHAINS_H
#define TESTS_CHAINS_H

#include <deeppcr/deeppcr.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct chain;
// f(l, b, in, out) and its dense Jacobian j[w][w] (may be NULL when not asked for).
typedef void (*chain_step)(const struct chain *chain, int64_t l, int64_t b, const double *in, double *out, double *j);

typedef struct chain {
    chain_step step;
    int64_t length, batch, width;
    dpcr_dtype dtype;
    const double *parameters;  // of the step's own layout
    double *gradients;         // [L][w]: a parameter theta_l added to every state, for gradient tests; or NULL
    int fail_code;             // returned by advance when not 0, from step fail_at on
    int64_t fail_at;
    int wrong_jacobian;        // spoils linearise
    int wrong_stride;          // advance forgets the stride
    int wrong_adjoint_stride;  // adjoint does
    dpcr_transition jacobian;  // structure that linearise gives, when not dense: taken from the dense one
} chain;

static double chain_get(const dpcr_array *a, int64_t offset) {
    return a->dtype == DPCR_F64 ? ((const double *)a->data)[offset] : (double)((const float *)a->data)[offset];
}

static void chain_put(const dpcr_array *a, int64_t offset, double value) {
    if (a->dtype == DPCR_F64)
        ((double *)a->data)[offset] = value;
    else
        ((float *)a->data)[offset] = (float)value;
}

enum { CHAIN_MAX_WIDTH = 40 };

static inline int chain_advance(void *user, const dpcr_span *s, const dpcr_array *in, const dpcr_array *states,
                                const dpcr_array *last, const dpcr_array *tape) {
    const chain *c = user;
    (void)tape;
    if (c->fail_code && s->first + (s->lanes - 1) * s->stride + s->steps > c->fail_at) return c->fail_code;
    for (int64_t lane = 0; lane < s->lanes; lane++)
        for (int64_t b = 0; b < s->rows; b++) {
            double x[CHAIN_MAX_WIDTH], y[CHAIN_MAX_WIDTH];
            for (int64_t i = 0; i < c->width; i++) x[i] = chain_get(in, lane * in->strides[0] + b * in->strides[1] + i);
            for (int64_t k = 0; k < s->steps; k++) {
                c->step(c, s->first + lane * (c->wrong_stride ? 1 : s->stride) + k, s->row + b, x, y, NULL);
                for (int64_t i = 0; i < c->width; i++) {
                    if (c->dtype == DPCR_F32) y[i] = (double)(float)y[i];
                    x[i] = y[i];
                    if (states)
                        chain_put(states,
                                  lane * states->strides[0] + k * states->strides[1] + b * states->strides[2] + i,
                                  x[i]);
                }
            }
            for (int64_t i = 0; last && i < c->width; i++)
                chain_put(last, lane * last->strides[0] + b * last->strides[1] + i, x[i]);
        }
    return 0;
}

static inline int64_t chain_values(const chain *c) {
    return c->jacobian.rows ? dpcr_transition_values(&c->jacobian) : c->width * c->width;
}

// Value i of the declared structure, from the dense Jacobian.
static inline double chain_value(const chain *c, const double *j, int64_t i) {
    const int64_t w = c->width, k = c->jacobian.block;
    if (!c->jacobian.rows || c->jacobian.structure == DPCR_DENSE) return j[i];
    if (c->jacobian.structure == DPCR_BLOCK) return j[(i / k) * w + i / k / k * k + i % k];
    return j[i * w + i];
}

static inline int chain_linearise(void *user, const dpcr_span *s, const dpcr_array *in, const dpcr_array *f,
                                  const dpcr_array *a) {
    const chain *c = user;
    for (int64_t lane = 0; lane < s->lanes; lane++)
        for (int64_t b = 0; b < s->rows; b++) {
            double x[CHAIN_MAX_WIDTH], y[CHAIN_MAX_WIDTH], j[CHAIN_MAX_WIDTH * CHAIN_MAX_WIDTH];
            for (int64_t i = 0; i < c->width; i++) x[i] = chain_get(in, lane * in->strides[0] + b * in->strides[1] + i);
            c->step(c, s->first + lane * s->stride, s->row + b, x, y, j);
            if (c->wrong_jacobian) j[0] += 0.5;
            for (int64_t i = 0; f && i < c->width; i++)
                chain_put(f, lane * f->strides[0] + b * f->strides[1] + i, y[i]);
            for (int64_t i = 0; a && i < chain_values(c); i++)
                chain_put(a, lane * a->strides[0] + b * a->strides[1] + i, chain_value(c, j, i));
        }
    return 0;
}

static inline void chain_adjoint_row(const chain *c, const dpcr_span *s, int64_t lane, int64_t b, const dpcr_array *in,
                                     const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                                     const dpcr_array *first_out) {
    double g[CHAIN_MAX_WIDTH], x[CHAIN_MAX_WIDTH], y[CHAIN_MAX_WIDTH], j[CHAIN_MAX_WIDTH * CHAIN_MAX_WIDTH];
    const int64_t w = c->width;
#define AT(a, k) (lane * (a)->strides[0] + (k) * (a)->strides[1] + b * (a)->strides[2])
    for (int64_t i = 0; i < w; i++) g[i] = chain_get(last, lane * last->strides[0] + b * last->strides[1] + i);
    for (int64_t k = s->steps - 1; k >= 0; k--) {
        for (int64_t i = 0; i < w; i++) {
            if (direct) g[i] += chain_get(direct, AT(direct, k) + i);
            if (c->dtype == DPCR_F32) g[i] = (double)(float)g[i];
            if (adjoint) chain_put(adjoint, AT(adjoint, k) + i, g[i]);
            x[i] = chain_get(in, AT(in, k) + i);
        }
        c->step(c, s->first + lane * (c->wrong_adjoint_stride ? 1 : s->stride) + k, s->row + b, x, y, j);
        double next[CHAIN_MAX_WIDTH] = {0};
        for (int64_t i = 0; i < w; i++)
            for (int64_t m = 0; m < w; m++) next[m] += j[i * w + m] * g[i];
        for (int64_t i = 0; i < w; i++) g[i] = c->dtype == DPCR_F32 ? (double)(float)next[i] : next[i];
    }
#undef AT
    for (int64_t i = 0; first_out && i < w; i++)
        chain_put(first_out, lane * first_out->strides[0] + b * first_out->strides[1] + i, g[i]);
}

static inline int chain_adjoint(void *user, const dpcr_span *s, const dpcr_array *in, const dpcr_array *tape,
                                const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                                const dpcr_array *first_out) {
    const chain *c = user;
    (void)tape;
    for (int64_t lane = 0; lane < s->lanes; lane++)
        for (int64_t b = 0; b < s->rows; b++) chain_adjoint_row(c, s, lane, b, in, direct, last, adjoint, first_out);
    return 0;
}

static inline int chain_gradient(void *user, const dpcr_span *s, const dpcr_array *in, const dpcr_array *tape,
                                 const dpcr_array *adjoint) {
    const chain *c = user;
    (void)in, (void)tape;
    for (int64_t lane = 0; c->gradients && lane < s->lanes; lane++)
        for (int64_t b = 0; b < s->rows; b++)
            for (int64_t i = 0; i < c->width; i++)
                c->gradients[(s->first + lane) * c->width + i] +=
                    chain_get(adjoint, lane * adjoint->strides[0] + b * adjoint->strides[1] + i);
    return 0;
}

static dpcr_steps chain_steps(chain *c) {
    dpcr_steps steps = {.size = sizeof steps,
                        .user = c,
                        .length = c->length,
                        .batch = c->batch,
                        .width = c->width,
                        .dtype = c->dtype,
                        .concurrent = 1,
                        .jacobian = c->jacobian.rows ? c->jacobian : dpcr_transition_square(DPCR_DENSE, c->width, 0),
                        .flops = 2.0 * (double)(c->width * c->width),
                        .jacobian_flops = (double)(c->width * c->width),
                        .advance = chain_advance,
                        .linearise = chain_linearise,
                        .adjoint = chain_adjoint,
                        .gradient = chain_gradient};
    return steps;
}

// ---- steps ----

// A number in (-1, 1) that depends on nothing but its arguments.
static double chain_noise(int64_t a, int64_t b, int64_t c) {
    uint64_t x =
        (uint64_t)a * 0x9e3779b97f4a7c15u ^ (uint64_t)b * 0xbf58476d1ce4e5b9u ^ (uint64_t)c * 0x94d049bb133111ebu;
    x ^= x >> 31, x *= 0xd6e8feb86659fd93u, x ^= x >> 32, x *= 0xd6e8feb86659fd93u, x ^= x >> 32;
    return (double)(x >> 11) / 4503599627370496.0 - 1;
}

// tanh(W_l z + b_l) with weights of size `parameters[0]`/sqrt(w), own ones every step; parameters[1] != 0: plus z/..:
// residual scale.
static inline void step_tanh(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double gain = c->parameters[0] / sqrt((double)c->width), scale = c->parameters[1];
    const int64_t w = c->width;
    (void)b;
    for (int64_t i = 0; i < w; i++) {
        double u = gain * chain_noise(l, i, 1000);
        for (int64_t k = 0; k < w; k++) u += gain * chain_noise(l, i, k) * in[k];
        const double t = tanh(u);
        out[i] = scale != 0 ? in[i] + scale * t : t;
        for (int64_t k = 0; j && k < w; k++) {
            const double d = (1 - t * t) * gain * chain_noise(l, i, k);
            j[i * w + k] = scale != 0 ? (i == k) + scale * d : d;
        }
    }
}

// W_l z + b_l: affine.
static inline void step_affine(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double gain = c->parameters[0] / sqrt((double)c->width);
    (void)b;
    for (int64_t i = 0; i < c->width; i++) {
        out[i] = chain_noise(l, i, 1000);
        for (int64_t k = 0; k < c->width; k++) {
            out[i] += gain * chain_noise(l, i, k) * in[k];
            if (j) j[i * c->width + k] = gain * chain_noise(l, i, k);
        }
    }
}

// Chains whose Jacobian is a block-diagonal (parameters[0] wide), diagonal (1) or identity (0) one.
static inline void step_blocks(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const int64_t w = c->width, k = (int64_t)c->parameters[0];
    (void)b;
    for (int64_t i = 0; i < w * w && j; i++) j[i] = 0;
    for (int64_t i = 0; i < w; i++) {
        if (k == 0) {
            out[i] = in[i] + chain_noise(l, i, 1);
            if (j) j[i * w + i] = 1;
            continue;
        }
        double u = chain_noise(l, i, 1);
        for (int64_t m = i / k * k; m < i / k * k + k; m++) u += 0.8 / (double)k * chain_noise(l, i, m + 2) * in[m];
        out[i] = tanh(u);
        for (int64_t m = i / k * k; j && m < i / k * k + k; m++)
            j[i * w + m] = (1 - out[i] * out[i]) * 0.8 / (double)k * chain_noise(l, i, m + 2);
    }
}

// The golden MLP of the reference: W_l flat k: 0.9 sin(1.3 k + 0.7 l), b_l,k = 0.3 cos(k + l), l from 1, w = 3.
static inline void step_golden(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)b;
    for (int i = 0; i < 3; i++) {
        double u = 0.3 * cos(i + (double)(l + 1));
        for (int k = 0; k < 3; k++) u += 0.9 * sin(1.3 * (3 * i + k) + 0.7 * (double)(l + 1)) * in[k];
        out[i] = tanh(u);
        for (int k = 0; j && k < 3; k++)
            j[3 * i + k] = (1 - out[i] * out[i]) * 0.9 * sin(1.3 * (3 * i + k) + 0.7 * (double)(l + 1));
    }
}

// h <- tanh(A h), A a rotation by 0.01.
static inline void step_rotation(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double a[2][2] = {{cos(.01), sin(.01)}, {-sin(.01), cos(.01)}};
    (void)c, (void)l, (void)b;
    for (int i = 0; i < 2; i++) {
        out[i] = tanh(a[i][0] * in[0] + a[i][1] * in[1]);
        for (int k = 0; j && k < 2; k++) j[2 * i + k] = (1 - out[i] * out[i]) * a[i][k];
    }
}

// x_t = 0.5 + 0.5 sin(0.37 t); h <- c x + (1 - c) h, c = 0.3 if x < h else 0.05: not smooth.
static inline void step_compressor(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double x = 0.5 + 0.5 * sin(0.37 * (double)l), a = x < in[0] ? 0.3 : 0.05;
    (void)c, (void)b;
    out[0] = a * x + (1 - a) * in[0];
    if (j) j[0] = 1 - a;
}

// Lorenz, forward Euler, step parameters[0].
static inline void step_lorenz(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const double h = c->parameters[0], s = 10, r = 28, q = 8.0 / 3, x = in[0], y = in[1], z = in[2];
    (void)l, (void)b;
    out[0] = x + h * s * (y - x);
    out[1] = y + h * (x * (r - z) - y);
    out[2] = z + h * (x * y - q * z);
    if (!j) return;
    const double m[9] = {1 - h * s, h * s, 0, h * (r - z), 1 - h, -h * x, h * y, h * x, 1 - h * q};
    memcpy(j, m, sizeof m);
}

// The logistic map 4 x (1 - x): chaotic.
static inline void step_logistic(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)c, (void)l, (void)b;
    out[0] = 4 * in[0] * (1 - in[0]);
    if (j) j[0] = 4 - 8 * in[0];
}

// z + ReLU(W z + b), unit residual: states grow to 1e98.
static inline void step_growing(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    const int64_t w = c->width;
    const double bound = 1 / sqrt((double)w);
    (void)b;
    for (int64_t i = 0; i < w; i++) {
        double u = bound * chain_noise(l, i, 1000);
        for (int64_t k = 0; k < w; k++) u += bound * chain_noise(l, i, k) * in[k];
        out[i] = in[i] + (u > 0 ? u : 0);
        for (int64_t k = 0; j && k < w; k++) j[i * w + k] = (i == k) + (u > 0 ? bound * chain_noise(l, i, k) : 0);
    }
}

#endif
