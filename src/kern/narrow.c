// SPDX-License-Identifier: MIT
// Which table of narrow kernels serves a dtype at a level.
#include "kern/narrow.h"

#include <math.h>

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

// What sums and products alone take, ReLU among them; what the residual adds is one more of them. Of tanh, the table's;
// a sigmoid, beside float's tanh of few operations, takes twice as long.
static double loop_seconds(const dpcri_narrow *n, int64_t w) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    const dpcri_slower slower = dpcri_kernels_slower();
    const bool wide = n->dtype == DPCR_F64;
    const double sum = 1e-9;
    if (n->activation <= DPCRI_ACT_RELU) return slower.relu * (k->relu_seconds[w] + (n->residual ? sum : 0));
    const double sigmoid = wide ? (w > 0 ? 1 : 1.4) : w > 0 ? 1.95 : 2.5;
    const double waits = (w > 0 ? slower.loop : slower.vectors) * (wide ? slower.doubles : 1);
    return waits * k->loop_seconds[w] * (n->activation == DPCRI_ACT_SIGMOID ? sigmoid : 1);
}

// What lanes take of the table's tanh, by dtype where it differs: sums alone (ReLU among them), tanh, sigmoid. With one
// W float's sums wait for the same units as its tanh. Two states in a vector come and go by masks.
static double lane_part(const dpcri_narrow *n) {
    static const double diagonal[2][3] = {{0.4, 1, 1.8}, {0.2, 1, 1.1}}, own[3] = {0.82, 1, 1.3};
    static const double shared[2][3] = {{1, 1, 1.8}, {0.6, 1, 1.4}};
    const int wide = n->dtype == DPCR_F64, kind = n->activation <= DPCRI_ACT_RELU ? 0 : n->activation - DPCRI_ACT_RELU;
    if (n->width > DPCRI_NARROW_WIDTH)
        return diagonal[wide][kind] * (kind == 0 && states_of(n, dpcri_narrow_kernels_get(n->dtype)) > 1 ? 1.5 : 1);
    if (n->weight_step) return own[kind];
    return shared[wide][kind] * (kind == 1 && n->residual ? 1.2 : 1);
}

double dpcri_narrow_loop_seconds(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    if (n->width <= DPCRI_NARROW_WIDTH) return loop_seconds(n, n->diagonal ? 1 : n->width);
    const double filled = dpcri_narrow_lane_seconds(n) * (double)states_of(n, k), waits = loop_seconds(n, 0);
    return filled > waits ? filled : waits;
}

double dpcri_narrow_lane_seconds(const dpcri_narrow *n) {
    const dpcri_narrow_kernels *k = dpcri_narrow_kernels_get(n->dtype);
    const double each = dpcri_kernels_slower().lanes * lane_part(n);
    if (n->width <= DPCRI_NARROW_WIDTH) {  // a loop that is done sooner than a lane is no slower beside others
        const double lane =
            each * k->lane_seconds[n->weight_step ? DPCRI_NARROW_TILES : DPCRI_NARROW_REGISTERS][n->width];
        return fmin(lane, loop_seconds(n, n->diagonal ? 1 : n->width));
    }
    return each * k->lane_seconds[0][0] * (double)parts_of(n, k) / (double)states_of(n, k);
}
