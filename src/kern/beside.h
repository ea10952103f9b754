// SPDX-License-Identifier: MIT
// Up to eight chains of a span side by side: where each of them has its numbers.
#ifndef DPCRI_BESIDE_H
#define DPCRI_BESIDE_H

#include <string.h>

#include "kern/kern.h"
#include "kern/simd.h"

// Bytes of matrices, of all sequences, that a second-level cache holds: to ask for them takes a third longer than to
// read them (w = 48, 24 steps: 110 instead of 75 ns). And so many ahead of the step at hand others are asked for.
enum { DPCRI_NEAR_BYTES = 1 << 19, DPCRI_AHEAD_BYTES = 8192 };

// One array of up to eight chains. Where all chains are there (whole), their places are a few strides apart, which
// addresses hold: as many pointers would not fit the registers. Elsewhere they are pointers, and a chain past the last
// one is the last one again, which computes and writes the same.
typedef struct dpcri_beside {
    char *first;
    int64_t step, one, three, five, seven;  // bytes
    char *each[8];
    int64_t now;  // bytes that they have gone on
} dpcri_beside;

// Chains q .. q + count - 1 of `rows`; step and row in elements of `size` bytes.
DPCRI_INLINE dpcri_beside dpcri_beside_of(const void *base, int64_t step, int64_t row, int64_t q, int64_t rows,
                                          const int count, const int64_t size) {
    const int64_t bytes = row * size;
    dpcri_beside p = {.first = (char *)(uintptr_t)base + q * bytes,
                      .step = step * size,
                      .one = bytes,
                      .three = 3 * bytes,
                      .five = 5 * bytes,
                      .seven = 7 * bytes};
    for (int c = 0; c < count; c++) p.each[c] = (char *)(uintptr_t)base + (q + c < rows ? q + c : rows - 1) * bytes;
    return p;
}

DPCRI_INLINE void *dpcri_place(const dpcri_beside *p, const bool whole, const int c) {
    if (!whole) return p->each[c] + p->now;
    switch (c) {
        case 0: return p->first;
        case 1: return p->first + p->one;
        case 2: return p->first + 2 * p->one;
        case 3: return p->first + p->three;
        case 4: return p->first + 4 * p->one;
        case 5: return p->first + p->five;
        case 6: return p->first + 2 * p->three;
        default: return p->first + p->seven;
    }
}

// `steps` on; the compiler shall not make pointers of all places again.
DPCRI_INLINE void dpcri_beside_advance(dpcri_beside *p, const bool whole, int64_t steps) {
    if (!whole) {
        p->now += steps * p->step;
        return;
    }
    p->first += steps * p->step;
    __asm__("" : "+r"(p->first));
}

// Asks for the bytes of all chains, which lie one after another, `steps` on.
DPCRI_INLINE void dpcri_beside_fetch(const dpcri_beside *p, const bool whole, int64_t steps, const int bytes) {
    const char *const next = (const char *)dpcri_place(p, whole, 0) + steps * p->step;
    DPCRI_UNROLL_ALL
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(next + line, 0, 2);
}

// Those of the serial kernel.
typedef struct dpcri_besides {
    dpcri_beside a, r, y;
} dpcri_besides;

DPCRI_INLINE dpcri_besides dpcri_besides_of(const dpcri_span *s, int64_t q, const int count, const int64_t size) {
    return (dpcri_besides){dpcri_beside_of(s->a, s->a_step, s->a_row, q, s->rows, count, size),
                           dpcri_beside_of(s->r, s->r_step, s->r_row, q, s->rows, count, size),
                           dpcri_beside_of(s->y, s->y_step, s->y_row, q, s->rows, count, size)};
}

DPCRI_INLINE void dpcri_besides_step(dpcri_besides *p, const bool whole) {
    dpcri_beside_advance(&p->a, whole, 1);
    dpcri_beside_advance(&p->r, whole, 1);
    dpcri_beside_advance(&p->y, whole, 1);
}

// What comes before the first step, or, without x, is its result.
DPCRI_INLINE const void *dpcri_start_of(const dpcri_span *s, int64_t q, int c, const int64_t size) {
    const int64_t row = q + c < s->rows ? q + c : s->rows - 1;
    return s->x ? (const char *)s->x + row * s->x_row * size : (const char *)s->r + row * s->r_row * size;
}

// Without an initial state the first one is r's, of `bytes`: writes it and goes on to the second step. The steps that
// are left.
DPCRI_INLINE int64_t dpcri_besides_begin(const dpcri_span *s, dpcri_besides *p, const bool whole, const int count,
                                         const size_t bytes) {
    if (s->x) return s->n;
    for (int c = 0; c < count; c++) memmove(dpcri_place(&p->y, whole, c), dpcri_place(&p->r, whole, c), bytes);
    dpcri_besides_step(p, whole);
    return s->n - 1;
}

#endif
