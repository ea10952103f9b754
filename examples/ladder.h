// SPDX-License-Identifier: MIT
// A transistor ladder as a chain of width 4: four saturating low-pass stages in a row and a feedback of what comes out,
// a sample late (Huovinen, "Non-linear digital implementation of the Moog ladder filter", DAFx 2004):
//   t_0 = tanh(drive u - k z_4);   z_i' = z_i + g (t_{i-1} - tanh z_i),   t_i = tanh z_i',   i = 1..4
// g = 1 - exp(-2 pi f / rate) sets the cutoff frequency f, k in 0..4 the resonance. With D_i = dz_i'/dz, row by row:
//   D_i = (1 - g (1 - tanh^2 z_i)) e_i + g (1 - t_{i-1}^2) D_{i-1},   D_0 = -k e_4
// and the same with partial derivatives for the gradients of g and k.
#ifndef LADDER_H
#define LADDER_H

#include <math.h>

#include "lanes.h"

typedef struct ladder {
    const float *input;  // [channels][length]
    int64_t length;
    float drive, g, k;
    double gradient[2];  // of the loss: by g, by k; added to by backward
} ladder;

static inline ladder ladder_make(const float *input, int64_t length, double rate, double cutoff, double resonance) {
    return (ladder){.input = input,
                    .length = length,
                    .drive = 2,
                    .g = (float)(1 - exp(-6.283185307179586 * cutoff / rate)),
                    .k = (float)resonance};
}

static inline const float *ladder_signal(const ladder *p, const dpcr_span *span, int64_t c, int64_t row) {
    return p->input + (span->row + row) * p->length + span->first + c * span->stride;
}

// t holds tanh z and is kept up with it.
static inline void ladder_step(const ladder *p, float u, float *z1, float *z2, float *z3, float *z4, float *t1,
                               float *t2, float *t3, float *t4) {
    const float t0 = lanes_tanh(p->drive * u - p->k * *z4);
    *z1 = *z1 + p->g * (t0 - *t1);
    *t1 = lanes_tanh(*z1);
    *z2 = *z2 + p->g * (*t1 - *t2);
    *t2 = lanes_tanh(*z2);
    *z3 = *z3 + p->g * (*t2 - *t3);
    *t3 = lanes_tanh(*z3);
    *z4 = *z4 + p->g * (*t3 - *t4);
    *t4 = lanes_tanh(*z4);
}

static inline void ladder_alone(const ladder *p, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                                const dpcr_array *last, int64_t c, int64_t row) {
    const float *u = ladder_signal(p, span, c, row), *from = lanes_at(in, c, 0, row);
    float z1 = from[0], z2 = from[1], z3 = from[2], z4 = from[3];
    float t1 = lanes_tanh(z1), t2 = lanes_tanh(z2), t3 = lanes_tanh(z3), t4 = lanes_tanh(z4);
    for (int64_t s = 0; s < span->steps; s++) {
        ladder_step(p, u[s], &z1, &z2, &z3, &z4, &t1, &t2, &t3, &t4);
        if (!states) continue;
        float *to = lanes_at(states, c, s, row);
        to[0] = z1, to[1] = z2, to[2] = z3, to[3] = z4;
    }
    if (!last) return;
    float *to = lanes_at(last, c, 0, row);
    to[0] = z1, to[1] = z2, to[2] = z3, to[3] = z4;
}

static inline void ladder_lanes(const ladder *p, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                                const dpcr_array *last, int64_t c, int64_t count, int64_t row) {
    const int64_t padded = lanes_padded(count);
    float z[4][LANES], t[4][LANES];
    tile u, kept[4];
    for (int i = 0; i < 4; i++) {
        lanes_load(in, c, 0, row, i, count, z[i]);
        for (int64_t j = 0; j < padded; j++) t[i][j] = lanes_tanh(z[i][j]);
    }
    for (int64_t s0 = 0; s0 < span->steps; s0 += TILE) {
        const int64_t steps = lanes_least(TILE, span->steps - s0);
        lanes_samples(ladder_signal(p, span, c, row) + s0, span->stride, count, steps, u);
        for (int64_t s = 0; s < steps; s++)
            for (int64_t j = 0; j < padded; j++) {
                ladder_step(p, u[s][j], &z[0][j], &z[1][j], &z[2][j], &z[3][j], &t[0][j], &t[1][j], &t[2][j], &t[3][j]);
                kept[0][s][j] = z[0][j], kept[1][s][j] = z[1][j], kept[2][s][j] = z[2][j], kept[3][s][j] = z[3][j];
            }
        for (int i = 0; i < 4 && states; i++) lanes_store_tile(kept[i], states, c, s0, row, i, count, steps);
    }
    for (int i = 0; i < 4 && last; i++) lanes_store(z[i], last, c, 0, row, i, count);
}

static inline int ladder_advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                                 const dpcr_array *last, const dpcr_array *tape) {
    (void)tape;
    for (int64_t row = 0; row < span->rows; row++)
        for (int64_t c = 0; c < span->lanes; c += LANES) {
            const int64_t count = lanes_least(LANES, span->lanes - c);
            if (count == 1)
                ladder_alone(user, span, in, states, last, c, row);
            else
                ladder_lanes(user, span, in, states, last, c, count, row);
        }
    return 0;
}

// steps = 1: f and its Jacobian [4][4].
static inline int ladder_linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                                   const dpcr_array *a) {
    const ladder *p = user;
    for (int64_t row = 0; row < span->rows; row++)
        for (int64_t c = 0; c < span->lanes; c++) {
            const float *z = lanes_at(in, c, 0, row), u = *ladder_signal(p, span, c, row);
            float out[4] = {z[0], z[1], z[2], z[3]}, was[4], t[5], above[4] = {0, 0, 0, -p->k};
            for (int i = 0; i < 4; i++) t[i + 1] = was[i] = lanes_tanh(z[i]);
            t[0] = lanes_tanh(p->drive * u - p->k * z[3]);
            ladder_step(p, u, &out[0], &out[1], &out[2], &out[3], &t[1], &t[2], &t[3], &t[4]);
            if (f) memcpy(lanes_at(f, c, 0, row), out, sizeof out);
            if (!a) continue;
            float *j = lanes_at(a, c, 0, row);
            for (int i = 0; i < 4; i++)
                for (int m = 0; m < 4; m++) {
                    above[m] = p->g * (1 - t[i] * t[i]) * above[m];
                    if (m == i) above[m] += 1 - p->g * (1 - was[i] * was[i]);
                    j[4 * i + m] = above[m];
                }
        }
    return 0;
}

// g <- J^T g, from the last row to the first; h_i is what has come to z_i' in all.
static inline void ladder_back(const ladder *p, float u, float z1, float z2, float z3, float z4, float *g1, float *g2,
                               float *g3, float *g4) {
    const float g = p->g, t0 = lanes_tanh(p->drive * u - p->k * z4);
    const float s1 = lanes_tanh(z1), s2 = lanes_tanh(z2), s3 = lanes_tanh(z3), s4 = lanes_tanh(z4);
    const float t1 = lanes_tanh(z1 + g * (t0 - s1)), t2 = lanes_tanh(z2 + g * (t1 - s2)),
                t3 = lanes_tanh(z3 + g * (t2 - s3));
    const float h4 = *g4, h3 = *g3 + g * (1 - t3 * t3) * h4, h2 = *g2 + g * (1 - t2 * t2) * h3,
                h1 = *g1 + g * (1 - t1 * t1) * h2;
    *g4 = (1 - g * (1 - s4 * s4)) * h4 - p->k * (g * (1 - t0 * t0) * h1);
    *g3 = (1 - g * (1 - s3 * s3)) * h3;
    *g2 = (1 - g * (1 - s2 * s2)) * h2;
    *g1 = (1 - g * (1 - s1 * s1)) * h1;
}

static inline void ladder_adjoint_lanes(const ladder *p, const dpcr_span *span, const dpcr_array *in,
                                        const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                                        const dpcr_array *first_out, int64_t c, int64_t count, int64_t row) {
    const int64_t padded = lanes_padded(count);
    float g[4][LANES];
    tile u, z[4], d[4];
    for (int i = 0; i < 4; i++) lanes_load(last, c, 0, row, i, count, g[i]);
    for (int64_t s0 = (span->steps - 1) / TILE * TILE; s0 >= 0; s0 -= TILE) {
        const int64_t steps = lanes_least(TILE, span->steps - s0);
        lanes_samples(ladder_signal(p, span, c, row) + s0, span->stride, count, steps, u);
        for (int i = 0; i < 4; i++) {
            lanes_load_tile(in, c, s0, row, i, count, steps, z[i]);
            if (direct) lanes_load_tile(direct, c, s0, row, i, count, steps, d[i]);
        }
        for (int64_t s = steps - 1; s >= 0; s--) {
            for (int i = 0; i < 4; i++)
                for (int64_t j = 0; j < padded; j++) d[i][s][j] = g[i][j] = direct ? g[i][j] + d[i][s][j] : g[i][j];
            for (int64_t j = 0; j < padded; j++)
                ladder_back(p, u[s][j], z[0][s][j], z[1][s][j], z[2][s][j], z[3][s][j], &g[0][j], &g[1][j], &g[2][j],
                            &g[3][j]);
        }
        for (int i = 0; i < 4 && adjoint; i++) lanes_store_tile(d[i], adjoint, c, s0, row, i, count, steps);
    }
    for (int i = 0; i < 4 && first_out; i++) lanes_store(g[i], first_out, c, 0, row, i, count);
}

static inline int ladder_adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                                 const dpcr_array *direct, const dpcr_array *last, const dpcr_array *adjoint,
                                 const dpcr_array *first_out) {
    (void)tape;
    for (int64_t row = 0; row < span->rows; row++)
        for (int64_t c = 0; c < span->lanes; c += LANES)
            ladder_adjoint_lanes(user, span, in, direct, last, adjoint, first_out, c,
                                 lanes_least(LANES, span->lanes - c), row);
    return 0;
}

// What one step adds to the gradients by g and by k, e the adjoint of what comes out.
static inline void ladder_by(const ladder *p, float u, float z1, float z2, float z3, float z4, float e1, float e2,
                             float e3, float e4, float *by_g, float *by_k) {
    const float g = p->g, t0 = lanes_tanh(p->drive * u - p->k * z4);
    const float s1 = lanes_tanh(z1), s2 = lanes_tanh(z2), s3 = lanes_tanh(z3), s4 = lanes_tanh(z4);
    const float t1 = lanes_tanh(z1 + g * (t0 - s1)), t2 = lanes_tanh(z2 + g * (t1 - s2)),
                t3 = lanes_tanh(z3 + g * (t2 - s3));
    const float d1 = t0 - s1, d2 = g * (1 - t1 * t1) * d1 + (t1 - s2), d3 = g * (1 - t2 * t2) * d2 + (t2 - s3),
                d4 = g * (1 - t3 * t3) * d3 + (t3 - s4);
    const float k1 = -z4 * (g * (1 - t0 * t0)), k2 = g * (1 - t1 * t1) * k1, k3 = g * (1 - t2 * t2) * k2,
                k4 = g * (1 - t3 * t3) * k3;
    *by_g = e1 * d1 + e2 * d2 + e3 * d3 + e4 * d4;
    *by_k = e1 * k1 + e2 * k2 + e3 * k3 + e4 * k4;
}

// Called once for all steps of a stretch, which are the lanes (gradient_whole).
static inline int ladder_gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                                  const dpcr_array *adjoint) {
    ladder *p = user;
    (void)tape;
    for (int64_t row = 0; row < span->rows; row++)
        for (int64_t c = 0; c < span->lanes; c += LANES) {
            const int64_t count = lanes_least(LANES, span->lanes - c), padded = lanes_padded(count);
            float u[LANES], z[4][LANES], e[4][LANES], by_g[LANES], by_k[LANES];
            const float *signal = ladder_signal(p, span, c, row);
            for (int64_t j = 0; j < padded; j++) u[j] = signal[(j < count ? j : 0) * span->stride];
            for (int i = 0; i < 4; i++) {
                lanes_load(in, c, 0, row, i, count, z[i]);
                lanes_load(adjoint, c, 0, row, i, count, e[i]);
            }
            for (int64_t j = 0; j < padded; j++)
                ladder_by(p, u[j], z[0][j], z[1][j], z[2][j], z[3][j], e[0][j], e[1][j], e[2][j], e[3][j], &by_g[j],
                          &by_k[j]);
            for (int64_t j = 0; j < count; j++) {
                p->gradient[0] += (double)by_g[j];
                p->gradient[1] += (double)by_k[j];
            }
        }
    return 0;
}

static inline dpcr_steps ladder_steps(ladder *p, int64_t channels) {
    return (dpcr_steps){.size = sizeof(dpcr_steps),
                        .user = p,
                        .length = p->length,
                        .batch = channels,
                        .width = 4,
                        .dtype = DPCR_F32,
                        .concurrent = 1,
                        .jacobian = dpcr_transition_square(DPCR_DENSE, 4, 0),
                        .flops = 140,
                        .jacobian_flops = 120,
                        .lanes = LANES,
                        .advance = ladder_advance,
                        .linearise = ladder_linearise,
                        .adjoint = ladder_adjoint,
                        .gradient = ladder_gradient,
                        .gradient_whole = 1};
}

#endif
