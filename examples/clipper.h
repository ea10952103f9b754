// SPDX-License-Identifier: MIT
// A diode clipper as a chain of width 1: a resistor R feeds a capacitor C with two diodes across it,
//   dv/dt = (u - v) / (R C) - 2 I_s / C sinh(v / V),
// by the implicit Euler rule. With t = h / (R C), x = v' / V, b = (v + t drive u) / (V (1 + t)):
//   x + a sinh x = b,   a = 2 h I_s / (C V (1 + t))
// which Newton's method solves from the right of the root, where the equation is convex: five steps, always.
//   dv'/dv = 1 / ((1 + t) (1 + a cosh x))
#ifndef CLIPPER_H
#define CLIPPER_H

#include "lanes.h"

typedef struct clipper {
    const float *input;  // [channels][length]
    int64_t length;
    float volts;  // V
    float t, a;
    float drive;  // volts of a full-scale sample
} clipper;

// A pair of 1N4148 at this rate of samples.
static inline clipper clipper_make(const float *input, int64_t length, double rate, double drive) {
    const double volts = 45.3e-3, resistance = 2200, capacity = 10e-9, saturation = 2.52e-9;
    const double t = 1 / (rate * resistance * capacity);
    return (clipper){.input = input,
                     .length = length,
                     .volts = (float)volts,
                     .t = (float)t,
                     .a = (float)(2 * saturation / (rate * capacity * volts * (1 + t))),
                     .drive = (float)drive};
}

enum { CLIPPER_NEWTON = 5 };

// |x| for |b| = m. It begins at the lesser of m and an upper bound of log(1 + 2 m / a), both right of the root.
static inline float clipper_root(float m, float a) {
    const float bits = (float)(int32_t)lanes_bits(1 + 2 * m / a);
    const float log_bound = (bits * 0x1p-23f - 126.9139f) * 0.69314718f;
    float x = m < log_bound ? m : log_bound;
    for (int i = 0; i < CLIPPER_NEWTON; i++) {
        const float e = lanes_exp(x), half = 0.5f * e, other = 0.5f / e;
        x = x - (x + a * (half - other) - m) / (1 + a * (half + other));
    }
    return x;
}

static inline float clipper_step(const clipper *p, float v, float u) {
    const float b = (v + p->t * p->drive * u) / (p->volts * (1 + p->t));
    const float x = clipper_root(b < 0 ? -b : b, p->a) * p->volts;
    return b < 0 ? -x : x;
}

// At the state that comes out.
static inline float clipper_slope(const clipper *p, float v) {
    const float e = lanes_exp(v / p->volts), cosh = 0.5f * e + 0.5f / e;
    return 1 / ((1 + p->t) * (1 + p->a * cosh));
}

static inline const float *clipper_signal(const clipper *p, const dpcr_span *span, int64_t c, int64_t row) {
    return p->input + (span->row + row) * p->length + span->first + c * span->stride;
}

static inline void clipper_alone(const clipper *p, const dpcr_span *span, const dpcr_array *in,
                                 const dpcr_array *states, const dpcr_array *last, int64_t c, int64_t row) {
    const float *u = clipper_signal(p, span, c, row);
    float *z = states ? lanes_at(states, c, 0, row) : NULL, v = *lanes_at(in, c, 0, row);
    for (int64_t k = 0; k < span->steps; k++) {
        v = clipper_step(p, v, u[k]);
        if (z) z[k * states->strides[1]] = v;
    }
    if (last) *lanes_at(last, c, 0, row) = v;
}

static inline void clipper_lanes(const clipper *p, const dpcr_span *span, const dpcr_array *in,
                                 const dpcr_array *states, const dpcr_array *last, int64_t c, int64_t count,
                                 int64_t row) {
    const int64_t padded = lanes_padded(count);
    float v[LANES];
    tile t;
    lanes_load(in, c, 0, row, 0, count, v);
    for (int64_t k0 = 0; k0 < span->steps; k0 += TILE) {
        const int64_t steps = lanes_least(TILE, span->steps - k0);
        lanes_samples(clipper_signal(p, span, c, row) + k0, span->stride, count, steps, t);
        for (int64_t k = 0; k < steps; k++)
            for (int64_t j = 0; j < padded; j++) t[k][j] = v[j] = clipper_step(p, v[j], t[k][j]);
        if (states) lanes_store_tile(t, states, c, k0, row, 0, count, steps);
    }
    if (last) lanes_store(v, last, c, 0, row, 0, count);
}

static inline int clipper_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                                  const dpcr_array *last, const dpcr_array *tape) {
    (void)tape;
    for (int64_t row = 0; row < span->rows; row++)
        for (int64_t c = 0; c < span->lanes; c += LANES) {
            const int64_t count = lanes_least(LANES, span->lanes - c);
            if (count == 1)
                clipper_alone(user, span, in, states, last, c, row);
            else
                clipper_lanes(user, span, in, states, last, c, count, row);
        }
    return 0;
}

// steps = 1: f and its slope.
static inline int clipper_linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                                    const dpcr_array *a) {
    const clipper *p = user;
    float v[LANES], u[LANES], slope[LANES];
    for (int64_t row = 0; row < span->rows; row++)
        for (int64_t c = 0; c < span->lanes; c += LANES) {
            const int64_t count = lanes_least(LANES, span->lanes - c), padded = lanes_padded(count);
            const float *signal = clipper_signal(p, span, c, row);
            lanes_load(in, c, 0, row, 0, count, v);
            for (int64_t j = 0; j < padded; j++) u[j] = signal[(j < count ? j : 0) * span->stride];
            for (int64_t j = 0; j < padded; j++) v[j] = clipper_step(p, v[j], u[j]), slope[j] = clipper_slope(p, v[j]);
            if (f) lanes_store(v, f, c, 0, row, 0, count);
            if (a) lanes_store(slope, a, c, 0, row, 0, count);
        }
    return 0;
}

// The state that comes out of a step is computed anew.
static inline int clipper_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                                  const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                                  const dpcr_array *first_out) {
    const clipper *p = user;
    (void)tape;
    for (int64_t row = 0; row < span->rows; row++)
        for (int64_t c = 0; c < span->lanes; c += LANES) {
            const int64_t count = lanes_least(LANES, span->lanes - c), padded = lanes_padded(count);
            float g[LANES];
            tile u, z, d;
            lanes_load(last, c, 0, row, 0, count, g);
            for (int64_t k0 = (span->steps - 1) / TILE * TILE; k0 >= 0; k0 -= TILE) {
                const int64_t steps = lanes_least(TILE, span->steps - k0);
                lanes_samples(clipper_signal(p, span, c, row) + k0, span->stride, count, steps, u);
                lanes_load_tile(in, c, k0, row, 0, count, steps, z);
                if (direct) lanes_load_tile(direct, c, k0, row, 0, count, steps, d);
                for (int64_t k = 0; k < steps; k++)
                    for (int64_t j = 0; j < padded; j++) z[k][j] = clipper_slope(p, clipper_step(p, z[k][j], u[k][j]));
                for (int64_t k = steps - 1; k >= 0; k--)
                    for (int64_t j = 0; j < padded; j++) {
                        g[j] = direct ? g[j] + d[k][j] : g[j];
                        u[k][j] = g[j];
                        g[j] = z[k][j] * g[j];
                    }
                if (adjoint) lanes_store_tile(u, adjoint, c, k0, row, 0, count, steps);
            }
            if (first_out) lanes_store(g, first_out, c, 0, row, 0, count);
        }
    return 0;
}

static inline dpcr_steps clipper_steps(clipper *p, int64_t channels) {
    return (dpcr_steps){.size = sizeof(dpcr_steps),
                        .user = p,
                        .length = p->length,
                        .batch = channels,
                        .width = 1,
                        .dtype = DPCR_F32,
                        .concurrent = 1,
                        .jacobian = dpcr_transition_square(DPCR_DIAGONAL, 1, 0),
                        .flops = 40 * CLIPPER_NEWTON,
                        .jacobian_flops = 40,
                        .lanes = LANES,
                        .advance = clipper_advance,
                        .linearise = clipper_linearise,
                        .adjoint = clipper_adjoint};
}

#endif
