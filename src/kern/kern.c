// SPDX-License-Identifier: MIT
// Which table serves a dtype at a level.
#include "kern/kern.h"

#if defined(__x86_64__)
#define BY_LEVEL(dtype) \
    { &dpcri_kernels_##dtype##_portable, &dpcri_kernels_##dtype##_avx2, &dpcri_kernels_##dtype##_avx512 }
#else
#define BY_LEVEL(dtype) \
    { &dpcri_kernels_##dtype##_portable, &dpcri_kernels_##dtype##_portable, &dpcri_kernels_##dtype##_portable }
#endif
static const dpcri_kernels *const f32[DPCRI_ISA_COUNT] = BY_LEVEL(f32);
static const dpcri_kernels *const f64[DPCRI_ISA_COUNT] = BY_LEVEL(f64);
#undef BY_LEVEL

const dpcri_kernels *dpcri_kernels_at(dpcri_isa level, dpcr_dtype dtype) {
    switch (dtype) {
        case DPCR_F32: return f32[level];
        case DPCR_F64: return f64[level];
        case DPCR_U32: return dpcri_kernels_ref(dtype);
    }
    return NULL;
}

dpcr_structure dpcri_kernel_form(const dpcr_transition *transition) {
    const bool square = transition->rows == transition->cols;
    switch (transition->structure) {
        case DPCR_SCALAR: return transition->rows == 1 ? DPCR_DIAGONAL : DPCR_SCALAR;
        case DPCR_DENSE: return square && transition->rows == 1 ? DPCR_DIAGONAL : DPCR_DENSE;
        case DPCR_BLOCK:
            if (transition->block == 1) return DPCR_DIAGONAL;
            return transition->block == transition->rows ? DPCR_DENSE : DPCR_BLOCK;
        default: return transition->structure;
    }
}
