// SPDX-License-Identifier: MIT
// Normal numbers by counter, four from a block of 128 bits, by Box and Muller in double.
#ifndef DPCRI_NORMALS_H
#define DPCRI_NORMALS_H

#include "base/random.h"

// Streams of training beside DPCRI_STREAM_DENOISER.
enum { DPCRI_LEARN_CODE = 1, DPCRI_LEARN_NOISE, DPCRI_LEARN_TIME, DPCRI_LEARN_DROP };

static inline void dpcri_normals_block(uint64_t seed, uint64_t stream, uint64_t block, double four[4]) {
    uint32_t words[4];
    dpcri_random_block(seed, stream, block, words);
    for (int i = 0; i < 4; i += 2) {
        const double radius = sqrt(-2 * log(((double)words[i] + 0.5) * 0x1p-32));
        const double turn = 6.28318530717958647692 * ((double)words[i + 1] * 0x1p-32);
        four[i] = radius * cos(turn);
        four[i + 1] = radius * sin(turn);
    }
}

// Row `row` of n numbers each.
static inline void dpcri_normals_f32(uint64_t seed, uint64_t stream, uint64_t row, int64_t n, float *to) {
    const uint64_t first = row * (uint64_t)((n + 3) / 4);
    double four[4];
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) dpcri_normals_block(seed, stream, first + (uint64_t)(i / 4), four);
        to[i] = (float)four[i % 4];
    }
}

static inline void dpcri_normals_f64(uint64_t seed, uint64_t stream, uint64_t row, int64_t n, double *to) {
    const uint64_t first = row * (uint64_t)((n + 3) / 4);
    double four[4];
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) dpcri_normals_block(seed, stream, first + (uint64_t)(i / 4), four);
        to[i] = four[i % 4];
    }
}

#endif
