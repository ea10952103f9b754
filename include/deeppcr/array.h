// SPDX-License-Identifier: MIT
// A view of numbers that somebody else owns: pointer, type, device, shape, strides (in elements). Field for field
// convertible to and from DLPack's DLTensor. A stride of 0 shares one value over that dimension; an array that a call
// writes is refused where its strides make it overlap itself, unless the call says what that means. Host data lie on a
// multiple of the dtype's size, which is taken on trust; a device's are looked at.
#ifndef DEEPPCR_ARRAY_H
#define DEEPPCR_ARRAY_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_dtype {
    DPCR_F32 = 1,
    DPCR_F64 = 2,
    DPCR_U32 = 3  // wrap-around integers: an exact ring, in which every scheme must agree with the loop bit for bit
} dpcr_dtype;

typedef enum dpcr_device_type { DPCR_HOST = 1, DPCR_CUDA = 2 } dpcr_device_type;  // DLPack's numbers

typedef struct dpcr_device {
    dpcr_device_type type;
    int32_t id;
} dpcr_device;

#define DPCR_MAX_DIMS 6

typedef struct dpcr_array {
    void *data;
    dpcr_dtype dtype;
    dpcr_device device;  // {DPCR_HOST, 0} for host memory, as dpcr_array_make has it; type 0 is refused
    int32_t ndim;
    int64_t shape[DPCR_MAX_DIMS];
    int64_t strides[DPCR_MAX_DIMS];  // in elements; may be 0 (shared) or negative (reversed)
} dpcr_array;

// A contiguous row-major view on the host: strides[ndim-1] = 1. `shape` has ndim <= DPCR_MAX_DIMS entries.
DPCR_API dpcr_array dpcr_array_make(void *data, dpcr_dtype dtype, int32_t ndim, const int64_t *shape);

// Bytes of one element: 4 or 8; 0 for an unknown dtype.
DPCR_API size_t dpcr_dtype_size(dpcr_dtype dtype);

// "float32", "float64", "uint32"; "unknown" otherwise.
DPCR_API const char *dpcr_dtype_name(dpcr_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
