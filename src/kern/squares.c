// SPDX-License-Identifier: MIT
// Which summary kernel serves a chain.
#include "kern/squares.h"

dpcri_summary_kernel *dpcri_summary_at(dpcri_isa level, dpcr_dtype dtype, dpcr_structure form, int64_t width,
                                       bool transposed) {
#if defined(__x86_64__)
    if (level != DPCRI_AVX512 || dtype != DPCR_F32 || form != DPCR_DENSE) return NULL;
    if (width == 4) return transposed ? dpcri_summary_w4_t_avx512 : dpcri_summary_w4_avx512;
    if (width == 8) return transposed ? dpcri_summary_w8_t_avx512 : dpcri_summary_w8_avx512;
#else
    (void)level, (void)dtype, (void)form, (void)width, (void)transposed;
#endif
    return NULL;
}
