// SPDX-License-Identifier: MIT
// The module's own use of the CUDA runtime.
#ifndef DPCRI_CUDA_RUNTIME_H
#define DPCRI_CUDA_RUNTIME_H

#include "rt/dev/device.h"
#include "rt/dev/tell.h"

// Makes `id` the thread's current device, and puts the one before back; after a failed enter leave does nothing. Codes
// are cudaError_t's.
int dpcri_cuda_enter(int id, int *before);
void dpcri_cuda_leave(int id, int before);

// The status and words of a cudaError_t, and takes it from the runtime, so that the next call does not tell it again.
dpcr_status dpcri_cuda_fail(int id, int code, const char *what, dpcr_error *error);

// Memory, streams and events; without kernels.
extern const dpcri_device_table dpcri_cuda_table;

#endif
