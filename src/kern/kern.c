// SPDX-License-Identifier: MIT
// Which kernels serve a dtype at an instruction set level.
#include "kern/kern.h"

#include "kern/attention.h"
#include "kern/filter.h"
#include "kern/levels.h"
#include "kern/nn_kernels.h"
#include "kern/para.h"
#include "kern/selective.h"
#include "kern/sparse.h"
#include "kern/squares.h"
#include "kern/train_kernels.h"
#include "kern/wide.h"
#include "kern/window.h"

DPCRI_KERNEL_TABLES(attention)
DPCRI_KERNEL_TABLES(nn)
DPCRI_KERNEL_TABLES(para)
DPCRI_KERNEL_TABLES(selective)
DPCRI_KERNEL_TABLES(train)
DPCRI_KERNEL_TABLES(wide)
DPCRI_KERNEL_TABLES(window)

const dpcri_kernels *dpcri_kernels_at(dpcri_isa level, dpcr_dtype dtype) {
    static const dpcri_kernels *const f32[DPCRI_ISA_COUNT] =
        DPCRI_BY_LEVEL(&dpcri_kernels_f32, &dpcri_kernels_f32_portable),
                                      *const f64[DPCRI_ISA_COUNT] =
                                          DPCRI_BY_LEVEL(&dpcri_kernels_f64, &dpcri_kernels_f64_portable);
    switch (dtype) {
        case DPCR_F32: return f32[level];
        case DPCR_F64: return f64[level];
        case DPCR_U32: return dpcri_kernels_ref(dtype);
    }
    return NULL;
}

extern const dpcri_sparse_kernels dpcri_sparse_f32_portable, dpcri_sparse_f64_portable, dpcri_sparse_u32_portable,
    dpcri_sparse_f32_avx2, dpcri_sparse_f64_avx2, dpcri_sparse_f32_avx512, dpcri_sparse_f64_avx512;

const dpcri_sparse_kernels *dpcri_sparse_kernels_at(dpcri_isa level, dpcr_dtype dtype) {
    static const dpcri_sparse_kernels *const f32[DPCRI_ISA_COUNT] = DPCRI_BY_LEVEL(&dpcri_sparse_f32, NULL),
                                             *const f64[DPCRI_ISA_COUNT] = DPCRI_BY_LEVEL(&dpcri_sparse_f64, NULL);
    if (level > dpcri_isa_level()) return NULL;
    switch (dtype) {
        case DPCR_F32: return f32[level];
        case DPCR_F64: return f64[level];
        case DPCR_U32: return &dpcri_sparse_u32_portable;
    }
    return NULL;
}

const dpcri_sparse_kernels *dpcri_sparse_kernels_get(dpcr_dtype dtype) {
    return dpcri_sparse_kernels_at(dpcri_isa_level(), dtype);
}

void dpcri_filter_portable(const dpcri_filter_run *run);
void dpcri_filter_avx2(const dpcri_filter_run *run);
void dpcri_filter_avx512(const dpcri_filter_run *run);

dpcri_filter_kernel dpcri_filter_at(dpcri_isa level) {
    static const dpcri_filter_kernel kernels[DPCRI_ISA_COUNT] = DPCRI_BY_LEVEL(dpcri_filter, NULL);
    return level > dpcri_isa_level() ? NULL : kernels[level];
}

dpcri_filter_kernel dpcri_filter_get(void) { return dpcri_filter_at(dpcri_isa_level()); }

dpcri_summary_kernel *dpcri_summary_at(dpcri_isa level, dpcr_dtype dtype, dpcr_structure form, int64_t width,
                                       bool transposed) {
    // [width 4, 8][transposed]
    static dpcri_summary_kernel *const kernels[2][2] = {
        {DPCRI_AVX512_OR(dpcri_summary_w4_avx512, NULL), DPCRI_AVX512_OR(dpcri_summary_w4_t_avx512, NULL)},
        {DPCRI_AVX512_OR(dpcri_summary_w8_avx512, NULL), DPCRI_AVX512_OR(dpcri_summary_w8_t_avx512, NULL)}};
    if (level != DPCRI_AVX512 || dtype != DPCR_F32 || form != DPCR_DENSE || (width != 4 && width != 8)) return NULL;
    return kernels[width == 8][transposed];
}

int64_t dpcri_chains_at_once(dpcri_isa level, dpcr_dtype dtype, int64_t width) {
    const int64_t lanes = (int64_t)(16 << level) / (int64_t)dpcr_dtype_size(dtype);
    if (lanes < 4 || dtype == DPCR_U32) return 4;
    if (width == 2) return lanes / 4 * (level == DPCRI_AVX512 ? DPCRI_TWOS_AVX512 : DPCRI_TWOS);
    return width <= 4 ? 8 : 4;
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
