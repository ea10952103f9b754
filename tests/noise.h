// SPDX-License-Identifier: MIT
// Random numbers for tests that want many: the same in every run, in [-size, size), uniform. rand() takes a lock for
// each.
#ifndef TESTS_NOISE_H
#define TESTS_NOISE_H

#include <stdint.h>

#include "deeppcr/array.h"

static inline double noise(double size) {
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return size * 0x1p-63 * (double)(int64_t)state;
}

// From a pool, a prime number of them, that fills go round.
static inline void noise_fill(dpcr_dtype dtype, void *data, int64_t count, double size) {
    enum { POOL = 16381 };
    static double pool[POOL];
    static int64_t next;
    if (pool[0] == 0)
        for (int i = 0; i < POOL; i++) pool[i] = noise(1);
    for (int64_t done = 0, n; done < count; done += n, next = (next + n) % POOL) {
        n = count - done < POOL - next ? count - done : POOL - next;
        if (dtype == DPCR_F64)
            for (int64_t i = 0; i < n; i++) ((double *)data)[done + i] = size * pool[next + i];
        else
            for (int64_t i = 0; i < n; i++) ((float *)data)[done + i] = (float)(size * pool[next + i]);
    }
}

#endif
