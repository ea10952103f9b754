// SPDX-License-Identifier: MIT
// What the adapter (src/kern/cuda/adapter.c) wants of the CUDA runtime, without one.
#include "rt/dev/cuda/runtime.h"

#include <stdarg.h>
#include <stdio.h>

int dpcri_cuda_enter(int id, int *before) {
    *before = id;
    return 0;
}

void dpcri_cuda_leave(int id, int before) {
    (void)id;
    (void)before;
}

dpcr_status dpcri_cuda_tell(dpcr_error *error, dpcr_status status, const char *format, ...) {
    if (!error) return status;
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    error->code = 0;
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}

dpcr_status dpcri_cuda_fail(int id, int code, const char *what, dpcr_error *error) {
    return dpcri_cuda_tell(error, DPCR_ERROR_DEVICE, "cuda:%d: %s: code %d of the simulator", id, what, code);
}
