// SPDX-License-Identifier: MIT
// What a callback of float states needs to run many lanes side by side: tiles of steps in which lanes lie innermost, so
// that the compiler's vectors are lanes, and the way from and to the driver's arrays, where a lane's states lie one
// after the other and lanes far apart. A step must give the same bits alone and in a vector: -ffp-contract=off.
#ifndef LANES_H
#define LANES_H

#include <deeppcr/deeppcr.h>
#include <string.h>

enum { LANES = 64, TILE = 32 };  // lanes of one call at its best; steps of a tile

typedef float tile[TILE][LANES];

static inline int64_t lanes_least(int64_t a, int64_t b) { return a < b ? a : b; }

// The numbers of (lane, step, row) in a view [lanes][steps][rows][.], or of (lane, row) in [lanes][rows][.].
static inline float *lanes_at(const dpcr_array *array, int64_t lane, int64_t step, int64_t row) {
    float *data = array->data;
    return array->ndim == 4 ? data + lane * array->strides[0] + step * array->strides[1] + row * array->strides[2]
                            : data + lane * array->strides[0] + row * array->strides[1];
}

// A number of lanes that fills vectors: those past the end repeat the first lane, so that nothing odd is computed.
static inline int64_t lanes_padded(int64_t count) { return count == 1 ? 1 : (count + 15) / 16 * 16; }

// Component i of the states at (lane c + j, step) to to[j].
static inline void lanes_load(const dpcr_array *from, int64_t c, int64_t step, int64_t row, int64_t i, int64_t count,
                              float *to) {
    for (int64_t j = 0; j < lanes_padded(count); j++) to[j] = lanes_at(from, c + (j < count ? j : 0), step, row)[i];
}

static inline void lanes_store(const float *from, const dpcr_array *to, int64_t c, int64_t step, int64_t row, int64_t i,
                               int64_t count) {
    for (int64_t j = 0; j < count; j++) lanes_at(to, c + j, step, row)[i] = from[j];
}

// Samples [l, l + steps) of lanes whose signals begin `stride` apart, turned: to[k][j].
static inline void lanes_samples(const float *signal, int64_t stride, int64_t count, int64_t steps, tile to) {
    const int64_t padded = lanes_padded(count);
    for (int64_t j = 0; j < padded; j++) {
        const float *from = signal + (j < count ? j : 0) * stride;
        for (int64_t k = 0; k < steps; k++) to[k][j] = from[k];
    }
}

// Steps k0 .. k0 + steps - 1 of component i of every lane's states, from a tile and into one.
static inline void lanes_store_tile(tile from, const dpcr_array *to, int64_t c, int64_t k0, int64_t row, int64_t i,
                                    int64_t count, int64_t steps) {
    for (int64_t j = 0; j < count; j++) {
        float *at = lanes_at(to, c + j, k0, row) + i;
        for (int64_t k = 0; k < steps; k++) at[k * to->strides[1]] = from[k][j];
    }
}

static inline void lanes_load_tile(const dpcr_array *from, int64_t c, int64_t k0, int64_t row, int64_t i, int64_t count,
                                   int64_t steps, tile to) {
    for (int64_t j = 0; j < lanes_padded(count); j++) {
        const float *at = lanes_at(from, c + (j < count ? j : 0), k0, row) + i;
        for (int64_t k = 0; k < steps; k++) to[k][j] = at[k * from->strides[1]];
    }
}

// ---- functions that the compiler turns into vectors ----

static inline float lanes_float(uint32_t bits) {
    union {
        uint32_t u;
        float f;
    } x = {.u = bits};
    return x.f;
}

static inline uint32_t lanes_bits(float value) {
    union {
        float f;
        uint32_t u;
    } x = {.f = value};
    return x.u;
}

// exp(x) = 2^n (1 + p), n the integer next to x / ln 2; |x| is cut at 87. Returns p, and 2^n in *scale; 2 ulp.
static inline float lanes_exp_parts(float x, float *scale) {
    x = x > 87 ? 87 : x;
    x = x < -87 ? -87 : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 2^23: n lies in the last bits
    const float n = shifted - 12582912.0f;
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float q = 1.9875691500e-4f;
    q = q * r + 1.3981999507e-3f;
    q = q * r + 8.3334519073e-3f;
    q = q * r + 4.1665795894e-2f;
    q = q * r + 1.6666665459e-1f;
    q = q * r + 0.5f;
    *scale = lanes_float((lanes_bits(shifted) << 23) + 0x3f800000u);
    return q * r * r + r;
}

static inline float lanes_exp(float x) {
    float scale;
    const float p = lanes_exp_parts(x, &scale);
    return scale + scale * p;
}

// e / (e + 2) with e = exp(2 x) - 1, good for small x too; |x| is cut at 9, where float knows no more than 1.
static inline float lanes_tanh(float x) {
    float scale;
    x = x > 9 ? 9 : x;
    x = x < -9 ? -9 : x;
    const float p = lanes_exp_parts(2 * x, &scale), e = scale * p + (scale - 1);
    return e / (e + 2);
}

#endif
