// SPDX-License-Identifier: MIT
// What the adapter (src/kern/cuda/adapter.c) wants of the CUDA runtime, without one.
#include "rt/dev/cuda/runtime.h"

void settings_of_simulator(void);  // settings.cpp

int dpcri_cuda_enter(int id, int *before) {
    *before = id;
    settings_of_simulator();
    return 0;
}

void dpcri_cuda_leave(int id, int before) {
    (void)id;
    (void)before;
}

dpcr_status dpcri_cuda_fail(int id, int code, const char *what, dpcr_error *error) {
    return dpcri_tell(error, DPCR_ERROR_DEVICE, "cuda:%d: %s: code %d of the simulator", id, what, code);
}
