// SPDX-License-Identifier: MIT
// The host's counter-based generator (base/random.h), Philox4x32-10, in a lane: the same words.
#ifndef DPCRI_CUDA_RANDOM_H
#define DPCRI_CUDA_RANDOM_H

#include "kern/cuda/simt.h"

namespace generator {

SIMT void multiply(uint32_t a, uint32_t b, uint32_t &high, uint32_t &low) {
    const uint64_t product = (uint64_t)a * b;
    high = (uint32_t)(product >> 32);
    low = (uint32_t)product;
}

// dpcri_random_block.
SIMT void words(uint64_t seed, uint64_t stream, uint64_t block, uint32_t (&x)[4]) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    x[0] = (uint32_t)block, x[1] = (uint32_t)(block >> 32);
    x[2] = (uint32_t)stream, x[3] = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        uint32_t high0, low0, high1, low1;
        multiply(0xD2511F53u, x[0], high0, low0);
        multiply(0xCD9E8D57u, x[2], high1, low1);
        x[0] = high1 ^ x[1] ^ k0;
        x[1] = low1;
        x[2] = high0 ^ x[3] ^ k1;
        x[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// dpcri_random_u64.
SIMT uint64_t number(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t x[4];
    words(seed, stream, index / 2, x);
    return index % 2 ? x[2] | (uint64_t)x[3] << 32 : x[0] | (uint64_t)x[1] << 32;
}

// dpcri_random_below.
SIMT uint64_t below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
    const uint64_t x = number(seed, stream, index), low32 = 0xffffffffu;
    const uint64_t low = (x & low32) * (n & low32) >> 32, mid = (x >> 32) * (n & low32) + low;
    const uint64_t cross = (x & low32) * (n >> 32) + (mid & low32);
    return (x >> 32) * (n >> 32) + (mid >> 32) + (cross >> 32);
}

}  // namespace generator

#endif
