// SPDX-License-Identifier: MIT
// The processor's caches (cpu.c).
#ifndef DPCRI_CACHE_H
#define DPCRI_CACHE_H

#include <stdint.h>

// Size of the data cache 1, 2 or 3 that a processor reaches; 0: not told.
int64_t dpcri_cache_bytes(int cache);

#endif
