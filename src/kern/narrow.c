// SPDX-License-Identifier: MIT
// Which table of narrow kernels serves a dtype at a level.
#include "kern/narrow.h"

#include "kern/levels.h"
#include "rt/core.h"

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

// States of a wide diagonal step in one vector.
static int64_t states_of(const dpcri_narrow *n, const dpcri_narrow_kernels *k) {
    return k->halves && 2 * n->width <= k->vector ? 2 : 1;
}

int64_t dpcri_narrow_lanes(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) return k->lanes[dpcri_narrow_form_of(n)][n->width];
    return parts_of(n, k) >= STRANDS ? 1 : states_of(n, k) * STRANDS / parts_of(n, k);
}

// What an activation takes of the table's tanh: ReLU waits half as long, or less (bench mlp --layers 4096 --width 1, 2,
// 4); a sigmoid, beside the tanh that AVX-512 has from a table, a fifth longer.
static double loop_part(const dpcri_narrow *n) {
    const bool table = dpcri_isa_level() == DPCRI_AVX512 && n->dtype == DPCR_F32;
    const dpcri_slower slower = dpcri_kernels_slower();
    const bool alone = n->width == 1 || n->diagonal;
    if (n->activation <= DPCRI_ACT_RELU) return alone ? 0.5 * (n->residual ? slower.sums : 1) : 0.42 * slower.relu;
    return slower.loop * (n->activation == DPCRI_ACT_SIGMOID && table ? 1.2 : 1);
}

double dpcri_narrow_loop_seconds(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) return loop_part(n) * k->loop_seconds[n->diagonal ? 1 : n->width];
    const double filled = dpcri_narrow_lane_seconds(n) * (double)states_of(n, k);
    const double waits = k->loop_seconds[0] * (n->activation > DPCRI_ACT_RELU ? dpcri_kernels_slower().vectors : 1);
    return filled > waits ? filled : waits;
}

double dpcri_narrow_lane_seconds(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    const double slower = dpcri_kernels_slower().lanes;
    if (n->width <= DPCRI_NARROW_WIDTH) {
        const double part = n->activation > DPCRI_ACT_RELU ? 1 : 0.82;  // what ReLU leaves of the work
        return slower * part * k->lane_seconds[dpcri_narrow_form_of(n)][n->width];
    }
    return slower * k->lane_seconds[0][0] * (double)parts_of(n, k) / (double)states_of(n, k);
}
