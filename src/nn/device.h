// SPDX-License-Identifier: MIT
// Steps on a device.
#ifndef DPCRI_NN_DEVICE_H
#define DPCRI_NN_DEVICE_H

#include "kern/device.h"
#include "kern/narrow.h"
#include "solve/solve_internal.h"

// The kernels of a device that is there.
dpcr_status dpcri_kernels_of(dpcr_device device, const char *call, const dpcri_device_kernels **kernels,
                             dpcr_error *error);

// Where the way back adds the gradients of W, of what all rows share of the biases, of gamma and beta, and of W2 and
// its bias, which lie as all these do. NULL: not made.
typedef struct dpcri_narrow_sums {
    void *weight, *bias, *gamma, *beta, *weight2, *bias2;
} dpcri_narrow_sums;

// What a layer has beside, from step to step as far as its bias: gamma and beta of a normalised one, or NULL; W2 and
// its bias of a two-layer branch `hidden` wide, or 0.
typedef struct dpcri_narrow_more {
    const void *gamma, *beta;
    int64_t hidden;
    const void *weight2, *bias2;
} dpcri_narrow_more;

// dpcr_steps.launch of a chain of cells of any width whose arrays lie on `device`; `more` and `sums` may be NULL.
dpcr_status dpcri_narrow_launch(const dpcri_narrow *n, const dpcri_narrow_more *more, const dpcri_narrow_sums *sums,
                                dpcr_device device, int64_t length, int64_t batch, dpcr_launch *launch,
                                dpcr_error *error);

#endif
