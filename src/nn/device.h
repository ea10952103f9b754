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

// dpcr_steps.launch of a narrow chain whose arrays lie on `device`.
dpcr_status dpcri_narrow_launch(const dpcri_narrow *n, dpcr_device device, int64_t length, int64_t batch,
                                dpcr_launch *launch, dpcr_error *error);

#endif
