// SPDX-License-Identifier: MIT
// The launchers (launch.h) as the table that the library calls (kern/device.h).
#ifndef DPCRI_CUDA_ADAPTER_H
#define DPCRI_CUDA_ADAPTER_H

#include "kern/device.h"

extern const dpcri_device_kernels dpcri_cuda_kernels;

#endif
