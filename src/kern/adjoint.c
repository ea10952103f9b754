// SPDX-License-Identifier: MIT
// Which table of adjoint kernels serves a dtype at a level.
#include "kern/adjoint.h"

#include "kern/levels.h"
#include "rt/core.h"

bool dpcri_adjoint_serves(const dpcri_narrow *chain) {
    return (chain->dtype == DPCR_F32 || chain->dtype == DPCR_F64) && chain->width >= 1 &&
           (chain->width <= DPCRI_NARROW_WIDTH || chain->diagonal || (chain->width == 8 && chain->dtype == DPCR_F32));
}

DPCRI_KERNEL_TABLES(adjoint)

static int64_t parts_of(const dpcri_narrow *n, const dpcri_adjoint_kernels *k) {
    return (n->width + k->vector - 1) / k->vector;
}

double dpcri_adjoint_loop_seconds(const dpcri_narrow *n) {
    const dpcri_adjoint_kernels *k = dpcri_adjoint_kernels_get(n->dtype);
    const dpcri_slower slower = dpcri_kernels_slower();
    if (n->width <= DPCRI_NARROW_WIDTH) return slower.sums * k->loop_seconds[n->diagonal ? 1 : n->width];
    if (!n->diagonal) return slower.loop_back_of_8 * k->eight_seconds[0];
    const double filled = dpcri_adjoint_lane_seconds(n);
    return filled > k->loop_seconds[0] ? filled : k->loop_seconds[0];
}

double dpcri_adjoint_lane_seconds(const dpcri_narrow *n) {
    const dpcri_adjoint_kernels *k = dpcri_adjoint_kernels_get(n->dtype);
    const dpcri_slower slower = dpcri_kernels_slower();
    if (n->width <= DPCRI_NARROW_WIDTH) return slower.lanes * k->lane_seconds[n->weight_step != 0][n->width];
    if (!n->diagonal) return slower.lanes_of_8 * k->eight_seconds[1];
    return slower.lanes * k->lane_seconds[0][0] * (double)parts_of(n, k);
}
