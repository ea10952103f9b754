// SPDX-License-Identifier: MIT
#include "kern/window.h"

#if defined(__x86_64__)
extern const dpcri_window_kernels dpcri_window_f32_avx512;
#endif

const dpcri_window_kernels *dpcri_window_kernels_at(dpcri_isa level, dpcr_dtype dtype) {
#if defined(__x86_64__)
    if (level == DPCRI_AVX512 && level <= dpcri_isa_level() && dtype == DPCR_F32) return &dpcri_window_f32_avx512;
#endif
    (void)level, (void)dtype;
    return NULL;
}

const dpcri_window_kernels *dpcri_window_kernels_get(dpcr_dtype dtype) {
    return dpcri_window_kernels_at(dpcri_isa_level(), dtype);
}
