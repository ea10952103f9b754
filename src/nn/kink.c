// SPDX-License-Identifier: MIT
#include "nn/kink.h"

#define T float
#define K(name) name##_f32
#include "nn/kink.inc"
#undef T
#undef K
#define T double
#define K(name) name##_f64
#include "nn/kink.inc"
#undef T
#undef K

void dpcri_kink_reach(size_t element, int64_t out, int64_t in, const void *weight, int64_t out_step, int64_t in_step,
                      void *reach) {
    if (element == sizeof(float))
        reach_f32(out, in, weight, out_step, in_step, reach);
    else
        reach_f64(out, in, weight, out_step, in_step, reach);
}

void dpcri_kink_normed(size_t element, int64_t n, const void *reach, const void *gamma, const void *normal,
                       const void *reciprocal, void *to) {
    if (element == sizeof(float))
        normed_f32(n, reach, gamma, normal, *(const float *)reciprocal, to);
    else
        normed_f64(n, reach, gamma, normal, *(const double *)reciprocal, to);
}

double dpcri_kink_size(size_t element, int64_t n, const void *z) {
    return element == sizeof(float) ? size_f32(n, z) : size_f64(n, z);
}

void dpcri_kink_open(size_t element, int64_t n, const void *u, const void *reach, double far, void *slope) {
    if (element == sizeof(float))
        open_f32(n, u, reach, (float)far, slope);
    else
        open_f64(n, u, reach, far, slope);
}
