// SPDX-License-Identifier: MIT
// FNV-1a: tells texts and numbers apart that nobody has chosen to collide (Fowler, Noll, Vo).
#ifndef DPCRI_CHECKSUM_H
#define DPCRI_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define DPCRI_CHECKSUM UINT64_C(0xcbf29ce484222325)  // of nothing

// The sum of what `sum` is of with these bytes after it.
static inline uint64_t dpcri_checksum(uint64_t sum, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ at[i]) * UINT64_C(0x100000001b3);
    return sum;
}

#endif
