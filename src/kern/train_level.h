// SPDX-License-Identifier: MIT
// The optimisers' kernels of one instruction set level: included once by each train_LEVEL.c, whose flags choose the
// level. The template's parameters: T element, V vector, VN lanes, N(name) the function's name, V_(op) the vector
// operation of simd.h.
#include "kern/simd.h"
#include "kern/train_kernels.h"

#include "kern/number_f32.inc"
#include "kern/train_updates.inc"
#include "kern/number_none.inc"

#include "kern/number_f64.inc"
#include "kern/train_updates.inc"
#include "kern/number_none.inc"

const dpcri_train_kernels DPCRI_LEVEL(dpcri_train_f32) = {.sgd = sgd_f32, .adam = adam_f32};
const dpcri_train_kernels DPCRI_LEVEL(dpcri_train_f64) = {.sgd = sgd_f64, .adam = adam_f64};
