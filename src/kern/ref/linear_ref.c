// SPDX-License-Identifier: MIT
// The definition of the linear kernels, for float, double and the ring of wrap-around uint32.
#include <string.h>

#include "kern/kern.h"

#define T float
#define K(name) name##_f32
#include "kern/ref/linear_ref.inc"

#define T double
#define K(name) name##_f64
#include "kern/ref/linear_ref.inc"

#define T uint32_t
#define K(name) name##_u32
#include "kern/ref/linear_ref.inc"

const dpcri_kernels *dpcri_kernels_ref(dpcr_dtype dtype) {
    switch (dtype) {
        case DPCR_F32: return &kernels_f32;
        case DPCR_F64: return &kernels_f64;
        case DPCR_U32: return &kernels_u32;
    }
    return NULL;
}
