// SPDX-License-Identifier: MIT
#include "kern/sparse.h"

extern const dpcri_sparse_kernels dpcri_sparse_f32_portable, dpcri_sparse_f64_portable, dpcri_sparse_u32_portable;
#if defined(__x86_64__)
extern const dpcri_sparse_kernels dpcri_sparse_f32_avx2, dpcri_sparse_f64_avx2;
extern const dpcri_sparse_kernels dpcri_sparse_f32_avx512, dpcri_sparse_f64_avx512;
#endif

const dpcri_sparse_kernels *dpcri_sparse_kernels_get(dpcr_dtype dtype) {
    if (dtype == DPCR_U32) return &dpcri_sparse_u32_portable;
    if (dtype != DPCR_F32 && dtype != DPCR_F64) return NULL;
    const bool wide = dtype == DPCR_F64;
    switch (dpcri_isa_level()) {
#if defined(__x86_64__)
        case DPCRI_AVX2: return wide ? &dpcri_sparse_f64_avx2 : &dpcri_sparse_f32_avx2;
        case DPCRI_AVX512: return wide ? &dpcri_sparse_f64_avx512 : &dpcri_sparse_f32_avx512;
#endif
        default: return wide ? &dpcri_sparse_f64_portable : &dpcri_sparse_f32_portable;
    }
}
