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

// Where the way back adds the gradients of W, of what all rows share of the biases, and of gamma and beta, which lie as
// all these do. NULL: not made.
typedef struct dpcri_narrow_sums {
    void *weight, *bias, *gamma, *beta;
} dpcri_narrow_sums;

// What a normalised layer has beside: [w] each, from step to step as far as its bias.
typedef struct dpcri_narrow_norm {
    const void *gamma, *beta;
} dpcri_narrow_norm;

// dpcr_steps.launch of a chain of cells of any width whose arrays lie on `device`; `norm` and `sums` may be NULL.
dpcr_status dpcri_narrow_launch(const dpcri_narrow *n, const dpcri_narrow_norm *norm, const dpcri_narrow_sums *sums,
                                dpcr_device device, int64_t length, int64_t batch, dpcr_launch *launch,
                                dpcr_error *error);

#endif
