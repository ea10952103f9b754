// SPDX-License-Identifier: MIT
// libdeeppcr_cuda.so.0: the one name that the module exports, and the little of the library that it holds a copy of.
#include <pthread.h>

#include "kern/cuda/adapter.h"
#include "rt/dev/cuda/runtime.h"

static dpcri_device_table table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    table = dpcri_cuda_table;
    table.kernels = &dpcri_cuda_kernels;
}

__attribute__((visibility("default"))) const dpcri_device_table *dpcr_device_module(void);
const dpcri_device_table *dpcr_device_module(void) {
    pthread_once(&once, fill);
    return &table;
}
