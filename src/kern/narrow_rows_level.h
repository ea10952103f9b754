// SPDX-License-Identifier: MIT
// The narrow kernels for batches of one instruction set level: narrow_rows.inc for float and for double. Included once
// by one source a level, whose flags choose the level.
#ifndef DPCRI_NARROW_ROWS_LEVEL_H
#define DPCRI_NARROW_ROWS_LEVEL_H

#include "kern/interleave.h"
#include "kern/narrow_rows.h"
#include "kern/narrow_values.h"

#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b

#define T float
#define V vf
#define VN VF
#define V_(op) vf_##op
#define VA(name) name##_vf
#define N(name) name##_f32
#define ROWS DPCRI_LEVEL(dpcri_narrow_rows_f32)
#include "kern/narrow_rows.inc"
#undef T
#undef V
#undef VN
#undef V_
#undef VA
#undef N
#undef ROWS

#define T double
#define V vd
#define VN VD
#define V_(op) vd_##op
#define VA(name) name##_vd
#define N(name) name##_f64
#define ROWS DPCRI_LEVEL(dpcri_narrow_rows_f64)
#include "kern/narrow_rows.inc"

#endif
