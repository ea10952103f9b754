// SPDX-License-Identifier: MIT
// The optimisers' kernels of one instruction set level: included once by each train_LEVEL.c, whose flags choose the
// level. The template's parameters: T element, V vector, VN lanes, N(name) the function's name, V_(op) the vector
// operation of simd.h.
#include "kern/simd.h"
#include "kern/train_kernels.h"

#define T float
#define V vf
#define VN VF
#define N(name) name##_f32
#define V_(op) vf_##op
#include "kern/train_updates.inc"
#undef T
#undef V
#undef VN
#undef N
#undef V_

#define T double
#define V vd
#define VN VD
#define N(name) name##_f64
#define V_(op) vd_##op
#include "kern/train_updates.inc"
#undef T
#undef V
#undef VN
#undef N
#undef V_

const dpcri_train_kernels DPCRI_LEVEL(dpcri_train_f32) = {.sgd = sgd_f32, .adam = adam_f32};
const dpcri_train_kernels DPCRI_LEVEL(dpcri_train_f64) = {.sgd = sgd_f64, .adam = adam_f64};
