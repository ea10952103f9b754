// SPDX-License-Identifier: MIT
#include "kern/filter.h"

void dpcri_filter_portable(const dpcri_filter_run *run);
#if defined(__x86_64__)
void dpcri_filter_avx2(const dpcri_filter_run *run);
void dpcri_filter_avx512(const dpcri_filter_run *run);
#endif

dpcri_filter_kernel dpcri_filter_at(dpcri_isa level) {
    if (level > dpcri_isa_level()) return NULL;
    switch (level) {
        case DPCRI_PORTABLE: return dpcri_filter_portable;
#if defined(__x86_64__)
        case DPCRI_AVX2: return dpcri_filter_avx2;
        case DPCRI_AVX512: return dpcri_filter_avx512;
#endif
        default: return NULL;
    }
}

dpcri_filter_kernel dpcri_filter_get(void) { return dpcri_filter_at(dpcri_isa_level()); }
