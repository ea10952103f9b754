// SPDX-License-Identifier: MIT
// binary16 (IEEE 754): a sign, 5 bits of exponent (bias 15), 10 of fraction; bfloat16: a float's first two bytes.
#include "data/half.h"

#include <string.h>

static uint32_t widen_binary16(uint32_t bits) {
    const uint32_t sign = bits >> 15 << 31, exponent = bits >> 10 & 31;
    uint32_t fraction = bits & 1023;
    if (exponent == 31) return sign | 255u << 23 | fraction << 13;
    if (exponent > 0) return sign | (exponent + 127 - 15) << 23 | fraction << 13;
    if (fraction == 0) return sign;
    uint32_t shifts = 0;
    for (; fraction < 1024; shifts++) fraction <<= 1;
    return sign | (1 + 127 - 15 - shifts) << 23 | (fraction & 1023) << 13;
}

void dpcri_half_widen(dpcri_half kind, const void *from, int64_t count, float *to) {
    const char *at = from;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, at + i * (int64_t)sizeof bits, sizeof bits);
        const uint32_t wide = kind == DPCRI_BFLOAT16 ? (uint32_t)bits << 16 : widen_binary16(bits);
        memcpy(&to[i], &wide, sizeof wide);
    }
}
