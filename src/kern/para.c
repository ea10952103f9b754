// SPDX-License-Identifier: MIT
// Which table of elementwise recurrent kernels serves a dtype at a level.
#include "kern/para.h"

extern const dpcri_para_kernels dpcri_para_f32_portable, dpcri_para_f64_portable;
#if defined(__x86_64__)
extern const dpcri_para_kernels dpcri_para_f32_avx2, dpcri_para_f64_avx2;
extern const dpcri_para_kernels dpcri_para_f32_avx512, dpcri_para_f64_avx512;
#endif

const dpcri_para_kernels *dpcri_para_kernels_at(dpcri_isa level, dpcr_dtype dtype) {
    if (level > dpcri_isa_level() || (dtype != DPCR_F32 && dtype != DPCR_F64)) return NULL;
    const int wide = dtype == DPCR_F64;
    switch (level) {
        case DPCRI_PORTABLE: return wide ? &dpcri_para_f64_portable : &dpcri_para_f32_portable;
#if defined(__x86_64__)
        case DPCRI_AVX2: return wide ? &dpcri_para_f64_avx2 : &dpcri_para_f32_avx2;
        case DPCRI_AVX512: return wide ? &dpcri_para_f64_avx512 : &dpcri_para_f32_avx512;
#endif
        default: return NULL;
    }
}

const dpcri_para_kernels *dpcri_para_kernels_get(dpcr_dtype dtype) {
    return dpcri_para_kernels_at(dpcri_isa_level(), dtype);
}
