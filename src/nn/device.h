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

// Where the way back adds the gradients of W and of what all rows share of the biases, which lie as both do. NULL: not
// made.
typedef struct dpcri_narrow_sums {
    void *weight, *bias;
} dpcri_narrow_sums;

// dpcr_steps.launch of a chain of cells of any width whose arrays lie on `device`; `sums` may be NULL.
dpcr_status dpcri_narrow_launch(const dpcri_narrow *n, const dpcri_narrow_sums *sums, dpcr_device device,
                                int64_t length, int64_t batch, dpcr_launch *launch, dpcr_error *error);

#endif
