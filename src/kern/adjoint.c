// SPDX-License-Identifier: MIT
// Which table of adjoint kernels serves a dtype at a level.
#include "kern/adjoint.h"

extern const dpcri_adjoint_kernels dpcri_adjoint_f32_portable, dpcri_adjoint_f64_portable;
#if defined(__x86_64__)
extern const dpcri_adjoint_kernels dpcri_adjoint_f32_avx2, dpcri_adjoint_f64_avx2;
extern const dpcri_adjoint_kernels dpcri_adjoint_f32_avx512, dpcri_adjoint_f64_avx512;
#endif

bool dpcri_adjoint_serves(const dpcri_narrow *chain) {
    return (chain->dtype == DPCR_F32 || chain->dtype == DPCR_F64) && chain->width >= 1 &&
           (chain->width <= DPCRI_NARROW_WIDTH || chain->diagonal || (chain->width == 8 && chain->dtype == DPCR_F32));
}

const dpcri_adjoint_kernels *dpcri_adjoint_kernels_at(dpcri_isa level, dpcr_dtype dtype) {
    if (level > dpcri_isa_level() || (dtype != DPCR_F32 && dtype != DPCR_F64)) return NULL;
    const int wide = dtype == DPCR_F64;
    switch (level) {
        case DPCRI_PORTABLE: return wide ? &dpcri_adjoint_f64_portable : &dpcri_adjoint_f32_portable;
#if defined(__x86_64__)
        case DPCRI_AVX2: return wide ? &dpcri_adjoint_f64_avx2 : &dpcri_adjoint_f32_avx2;
        case DPCRI_AVX512: return wide ? &dpcri_adjoint_f64_avx512 : &dpcri_adjoint_f32_avx512;
#endif
        default: return NULL;
    }
}

const dpcri_adjoint_kernels *dpcri_adjoint_kernels_get(dpcr_dtype dtype) {
    return dpcri_adjoint_kernels_at(dpcri_isa_level(), dtype);
}

static int64_t parts_of(const dpcri_narrow *n, const dpcri_adjoint_kernels *k) {
    return (n->width + k->vector - 1) / k->vector;
}

double dpcri_adjoint_loop_seconds(const dpcri_narrow *n) {
    const dpcri_adjoint_kernels *k = dpcri_adjoint_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) return k->loop_seconds[n->diagonal ? 1 : n->width];
    if (!n->diagonal) return k->eight_seconds;
    const double filled = k->lane_seconds[0][0] * (double)parts_of(n, k);
    return filled > k->loop_seconds[0] ? filled : k->loop_seconds[0];
}

double dpcri_adjoint_lane_seconds(const dpcri_narrow *n) {
    const dpcri_adjoint_kernels *k = dpcri_adjoint_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) return k->lane_seconds[n->weight_step != 0][n->width];
    if (!n->diagonal) return k->eight_seconds;
    return k->lane_seconds[0][0] * (double)parts_of(n, k);
}
