// SPDX-License-Identifier: MIT
// Which table of narrow kernels serves a dtype at a level.
#include "kern/narrow.h"

extern const dpcri_narrow_kernels dpcri_narrow_f32_portable, dpcri_narrow_f64_portable;
#if defined(__x86_64__)
extern const dpcri_narrow_kernels dpcri_narrow_f32_avx2, dpcri_narrow_f64_avx2;
extern const dpcri_narrow_kernels dpcri_narrow_f32_avx512, dpcri_narrow_f64_avx512;
#endif

bool dpcri_narrow_serves(const dpcri_narrow *chain) {
    return (chain->dtype == DPCR_F32 || chain->dtype == DPCR_F64) && chain->width >= 1 &&
           (chain->width <= DPCRI_NARROW_WIDTH || chain->diagonal) && chain->activation >= DPCRI_ACT_IDENTITY &&
           chain->activation <= DPCRI_ACT_SIGMOID;
}

const dpcri_narrow_kernels *dpcri_narrow_kernels_at(dpcri_isa level, dpcr_dtype dtype) {
    if (level > dpcri_isa_level() || (dtype != DPCR_F32 && dtype != DPCR_F64)) return NULL;
    const int wide = dtype == DPCR_F64;
    switch (level) {
        case DPCRI_PORTABLE: return wide ? &dpcri_narrow_f64_portable : &dpcri_narrow_f32_portable;
#if defined(__x86_64__)
        case DPCRI_AVX2: return wide ? &dpcri_narrow_f64_avx2 : &dpcri_narrow_f32_avx2;
        case DPCRI_AVX512: return wide ? &dpcri_narrow_f64_avx512 : &dpcri_narrow_f32_avx512;
#endif
        default: return NULL;
    }
}

enum { STRANDS = 6 };  // vectors of a wide diagonal step that hide each other's latency

static int64_t parts_of(const dpcri_narrow *n, const dpcri_narrow_kernels *k) {
    return (n->width + k->vector - 1) / k->vector;
}

int64_t dpcri_narrow_lanes(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) return k->lanes[dpcri_narrow_form_of(n)][n->width];
    return parts_of(n, k) >= STRANDS ? 1 : STRANDS / parts_of(n, k);
}

double dpcri_narrow_loop_seconds(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    // ReLU waits half as long as tanh (bench mlp --layers 4096 --width 1, 2, 4).
    const double part = n->activation <= DPCRI_ACT_RELU ? 0.5 : 1;
    if (n->width <= DPCRI_NARROW_WIDTH) return part * k->loop_seconds[n->diagonal ? 1 : n->width];
    const double filled = k->lane_seconds[0][0] * (double)parts_of(n, k);
    return filled > k->loop_seconds[0] ? filled : k->loop_seconds[0];
}

double dpcri_narrow_lane_seconds(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) return k->lane_seconds[dpcri_narrow_form_of(n)][n->width];
    return k->lane_seconds[0][0] * (double)parts_of(n, k);
}

const dpcri_narrow_kernels *dpcri_narrow_kernels_get(dpcr_dtype dtype) {
    return dpcri_narrow_kernels_at(dpcri_isa_level(), dtype);
}
