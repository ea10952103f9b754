// SPDX-License-Identifier: MIT
// What a backend's module offers beside memory and streams: whole solves as launches. Each call checks what it serves,
// puts its launches into the caller's stream and returns: nothing waits, nothing is allocated, nothing of the arrays is
// looked at on the host. All pointers are of the device.
#ifndef DPCRI_KERN_DEVICE_H
#define DPCRI_KERN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "deeppcr/transition.h"

// z_l = A_l z_{l-1} + b_l, l = 0..length-1, or z_l = A_{l+1}^T z_{l+1} + b_l from the last step: `rows` sequences of
// width w. Strides in elements, 0 shares; the last dimension is contiguous.
typedef struct dpcri_device_linear {
    dpcr_structure structure;
    dpcr_dtype dtype;
    int transposed;
    int64_t length, rows, w, block;
    const void *a;  // [length][rows][values]; NULL for zero and identity
    int64_t a_step, a_row;
    const void *b;
    int64_t b_step, b_row;
    const void *z0;  // [rows][w] or NULL: zero, and the first transition is not read; not with transposed
    int64_t z0_row;
    void *z;  // may be b, with the same strides
    int64_t z_step, z_row;
} dpcri_device_linear;

typedef struct dpcri_device_kernels {
    size_t size;  // sizeof(dpcri_device_kernels) of the module's headers
    // Bytes of device memory, 256-byte aligned, that a solve of this form (pointers and strides unread) takes.
    // DPCR_ERROR_UNSUPPORTED, in words that name what would work, where no kernel serves it.
    dpcr_status (*linear_workspace)(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error);
    // The same bits from run to run on one device.
    dpcr_status (*linear)(int id, const dpcri_device_linear *chain, void *workspace, size_t bytes, void *stream,
                          dpcr_error *error);
} dpcri_device_kernels;

#endif
