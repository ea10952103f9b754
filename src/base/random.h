// SPDX-License-Identifier: MIT
// Counter-based random numbers: Philox4x32-10 keyed by the seed. A number is a function of (seed, stream, index) alone,
// so it depends neither on the order of the draws nor on threads. Streams keep purposes apart: DPCRI_STREAM_... |
// number. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the Random123
// library.
#ifndef DPCRI_RANDOM_H
#define DPCRI_RANDOM_H

#include <Random123/philox.h>
#include <math.h>
#include <stdint.h>

#define DPCRI_STREAM_PARAMETERS (UINT64_C(1) << 32)  // | index of the parameter
#define DPCRI_STREAM_SHUFFLE (UINT64_C(2) << 32)     // | epoch
#define DPCRI_STREAM_DROPOUT (UINT64_C(6) << 32)     // | layer
#define DPCRI_STREAM_DATA (UINT64_C(3) << 32)        // test data, synthetic inputs
#define DPCRI_STREAM_SAMPLE (UINT64_C(16) << 32)     // | number of the sample: noise of a denoising path
#define DPCRI_STREAM_DENOISER (UINT64_C(17) << 32)   // | what for: times, noise, dropped classes of training

// 128 random bits: block `block` of the stream.
static inline void dpcri_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]) {
    const philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    const philox4x32_ctr_t counter = {
        {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    const philox4x32_ctr_t bits = philox4x32(counter, key);
    for (int i = 0; i < 4; i++) words[i] = bits.v[i];
}

// Number `index` of the stream as 64 bits; two numbers share a block.
static inline uint64_t dpcri_random_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    dpcri_random_block(seed, stream, index / 2, words);
    const unsigned half = 2 * (unsigned)(index % 2);
    return (uint64_t)words[half] | (uint64_t)words[half + 1] << 32;
}

// Uniform in [0, 1): 53 bits.
static inline double dpcri_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(dpcri_random_u64(seed, stream, index) >> 11) * 0x1p-53;
}

// Uniform in [0, 1): 24 bits, the leading ones of the double.
static inline float dpcri_random_uniform_f32(uint64_t seed, uint64_t stream, uint64_t index) {
    return (float)(dpcri_random_u64(seed, stream, index) >> 40) * 0x1p-24f;
}

// Standard normal, by Box and Muller: number `index` takes block `index` whole.
static inline double dpcri_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    const double turn = 6.28318530717958647692;
    const double u = dpcri_random_uniform(seed, stream, 2 * index),
                 v = dpcri_random_uniform(seed, stream, 2 * index + 1);
    return sqrt(-2 * log(1 - u)) * cos(turn * v);
}

// Uniform in 0..n-1, n >= 1, without a bias that 64 bits could show.
static inline uint64_t dpcri_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
    const uint64_t x = dpcri_random_u64(seed, stream, index);
    const uint64_t low =
        (x & 0xffffffffu) * (n & 0xffffffffu) >> 32;  // high word of x n in 32-bit pieces: C17 has no 128 bits
    const uint64_t mid = (x >> 32) * (n & 0xffffffffu) + low;
    const uint64_t cross = (x & 0xffffffffu) * (n >> 32) + (mid & 0xffffffffu);
    return (x >> 32) * (n >> 32) + (mid >> 32) + (cross >> 32);
}

#endif
