// SPDX-License-Identifier: MIT
// The kernels that the stand-in module runs when a stream is waited for.
#ifndef DPCRI_TESTS_FAKE_H
#define DPCRI_TESTS_FAKE_H

#include "kern/device.h"
#include "rt/dev/device.h"
#include "rt/dev/tell.h"

extern const dpcri_device_kernels fake_kernels;

#endif
