// SPDX-License-Identifier: MIT
// Which table of narrow kernels serves a dtype at a level.
#include "kern/narrow.h"

#include "kern/levels.h"

bool dpcri_narrow_serves(const dpcri_narrow *chain) {
    return (chain->dtype == DPCR_F32 || chain->dtype == DPCR_F64) && chain->width >= 1 &&
           (chain->width <= DPCRI_NARROW_WIDTH || chain->diagonal) && chain->activation >= DPCRI_ACT_IDENTITY &&
           chain->activation <= DPCRI_ACT_SIGMOID;
}

DPCRI_KERNEL_TABLES(narrow)

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
    // ReLU waits half as long as tanh, or less (bench mlp --layers 4096 --width 1, 2, 4).
    const double part = n->activation > DPCRI_ACT_RELU ? 1 : n->width == 1 || n->diagonal ? 0.5 : 0.42;
    if (n->width <= DPCRI_NARROW_WIDTH) return part * k->loop_seconds[n->diagonal ? 1 : n->width];
    const double filled = k->lane_seconds[0][0] * (double)parts_of(n, k);
    return filled > k->loop_seconds[0] ? filled : k->loop_seconds[0];
}

double dpcri_narrow_lane_seconds(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) {
        const double part = n->activation > DPCRI_ACT_RELU ? 1 : 0.82;  // what ReLU leaves of the work
        return part * k->lane_seconds[dpcri_narrow_form_of(n)][n->width];
    }
    return k->lane_seconds[0][0] * (double)parts_of(n, k);
}
